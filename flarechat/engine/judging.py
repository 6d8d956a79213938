"""Judging: what of a round's tokens the host lets stand, and the round amended to that.

Owns the order of judges: the grammar keeps its legal beginning, a stop string within that ends the
answer, and only where none does is the first illegal token drawn anew. Until then nothing of the
round is final to anybody.
"""

from __future__ import annotations

from dataclasses import dataclass

from flarechat.engine.answer import Answer
from flarechat.engine.contracts import Executor
from flarechat.engine.frame import LaneRecord
from flarechat.errors import ConstraintError


@dataclass(frozen=True, slots=True)
class Judged:
    """A lane's record as it stands, and whether its last token was drawn anew. Where the judges
    failed, nothing stands, and `failure` says why."""

    record: LaneRecord
    redrawn: bool = False
    failure: Exception | None = None


def judged(executor: Executor, answer: Answer, record: LaneRecord) -> Judged:
    """Judge the tokens that the last round brought an answer; its slot's state is what stands."""
    try:
        return _judged(executor, answer, record)
    except Exception as failure:
        return Judged(record, failure=failure)


def _judged(executor: Executor, answer: Answer, record: LaneRecord) -> Judged:
    tokens = record.tokens
    if not answer.amendable or not tokens:
        return Judged(record)
    verdict = answer.verdict(tokens)
    if answer.fault:
        raise ConstraintError(answer.fault, "Give a simpler constraint.")
    kept = verdict.kept
    stopped = answer.stops_at(tokens[:kept])
    if stopped is None and kept < len(tokens) and verdict.legal is not None:
        token = executor.redraw(answer.slot, kept, verdict.legal)
        return Judged(executor.amend(answer.slot, kept + 1, token), redrawn=True)
    kept = kept if stopped is None else stopped
    return Judged(record if kept == len(tokens) else executor.amend(answer.slot, kept))
