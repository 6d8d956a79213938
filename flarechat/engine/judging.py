"""Judging: what of a round's tokens the host lets stand, and the round amended to that.

Owns the order of judges: the grammar keeps its legal beginning, a stop string within that ends the
answer, and only where none does is the first illegal token drawn anew. Where the grammar cannot be
followed any further, its legal beginning stands all the same. Until then nothing of the round is
final to anybody.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from flarechat.engine.answer import Answer
from flarechat.engine.contracts import Executor
from flarechat.engine.frame import LaneRecord
from flarechat.errors import ConstraintError

_HINT = "Give a simpler constraint."


@dataclass(frozen=True, slots=True)
class Judged:
    """A lane's record as it stands, and whether its last token was drawn anew. Where the judges
    failed, `failure` says why the answer ends behind what stands."""

    record: LaneRecord
    redrawn: bool = False
    failure: Exception | None = None


def judged(executor: Executor, answer: Answer, record: LaneRecord) -> Judged:
    """Judge the tokens that the last round brought an answer; its slot's state is what stands."""
    try:
        return _judged(executor, answer, record)
    except Exception as failure:
        return Judged(_nothing(record), failure=failure)


def _judged(executor: Executor, answer: Answer, record: LaneRecord) -> Judged:
    tokens = record.tokens
    if not answer.amendable or not tokens:
        return Judged(record)
    verdict = answer.verdict(tokens)
    kept, fault = verdict.kept, verdict.fault
    stopped = answer.stops_at(tokens[:kept])
    if stopped is None and kept < len(tokens) and verdict.legal is not None:
        token = executor.redraw(answer.slot, kept, verdict.legal)
        fault = answer.verdict((*tokens[:kept], token)).fault
        if not fault:
            return Judged(executor.amend(answer.slot, kept + 1, token), redrawn=True)
    failure = ConstraintError(fault, _HINT) if fault and stopped is None else None
    kept = kept if stopped is None else stopped
    if failure is not None and kept == 0:
        return Judged(_nothing(record), failure=failure)
    if kept < len(tokens):
        record = executor.amend(answer.slot, kept)
    return Judged(record, failure=failure)


def _nothing(record: LaneRecord) -> LaneRecord:
    """The record of a lane of whose round nothing stands."""
    return replace(record, emitted=0, tokens=())
