"""One answer that was asked for: what the engine is given, and how its events become a turn.

Owns a turn under way with its totals, the messages of a request and the seeds of several answers
to one. Knows no file and no conversation; chat puts answers and turns in order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from flarechat.errors import UsageError
from flarechat.protocol import (
    MAX_LANES,
    Delta,
    ErrorInfo,
    Finished,
    Message,
    RequestEvent,
    Round,
    Sampling,
    Timings,
    Usage,
)
from flarechat.sessions.turns import Turn
from flarechat.telemetry import RoundTotals
from flarechat.textsafe import well_formed

FEWEST, MOST = 2, MAX_LANES
_SEEDS = 2**63


class Asked:
    """One answer under way: its turn, its rounds' totals and whether the engine was asked."""

    def __init__(self, turn: Turn) -> None:
        self.turn, self.totals, self.submitted = turn, RoundTotals(), False

    def take(self, event: RequestEvent) -> None:
        """Take in one event of this answer but its end."""
        if isinstance(event, Round):
            self.totals.add(event)
        if isinstance(event, Delta) and event.channel == "answer":
            self.turn.text += event.text
        elif isinstance(event, Delta) and event.channel == "thinking":
            self.turn.thinking += event.text

    def ending(self, reason: str, error: ErrorInfo | None = None) -> Finished:
        """The finish record of an answer that the engine could not end itself."""
        totals = self.totals
        usage = Usage(
            prompt_tokens=0, restored_tokens=0, completion_tokens=totals.emitted, context=0
        )
        return Finished(
            request=self.turn.id,
            reason=reason,
            text=self.turn.text,
            usage=usage,
            timings=Timings(
                prefill_ms=0.0,
                decode_ms=totals.decode_ms,
                first_token_ms=0.0,
                tokens_per_second=totals.tokens_per_second(),
            ),
            speculation=totals.summary(),
            error=error,
            thinking=self.turn.thinking,
        )


def messages_of(turns: Sequence[Turn], system: str | None) -> tuple[Message, ...]:
    """What the model is given: no empty turn, neighbours of one role as one message, and nothing
    of what it thought.

    A message whose answer failed is left out with it: it is sent again, or never fits.
    """
    messages = [Message(role="system", content=well_formed(system))] if system else []
    for turn, reply in zip(turns, [*turns[1:], None], strict=True):
        failed = turn.status == "error" or (reply is not None and reply.status == "error")
        if failed or not turn.text.strip():
            continue
        text = well_formed(turn.text)
        if messages and messages[-1].role == turn.role:
            text = f"{messages.pop().content}\n\n{text}"
        messages.append(Message(role=turn.role, content=text))
    return tuple(messages)


def law_of(sampling: Sampling, answer: int) -> Sampling:
    """The law of answer number `answer` of a fan: a seed that was given counts up from answer 1;
    without one the engine draws a seed for each.
    """
    if sampling.seed is None or answer < 2:
        return sampling
    return dataclasses.replace(sampling, seed=(sampling.seed + answer - 1) % _SEEDS)


def check_ways(ways: int, lanes: int | None, temperature: float | None) -> None:
    """Refuse a fan that is no fan, that has more answers than lanes, or whose answers would all
    be the same. None stands for what is not known yet.
    """
    if not FEWEST <= ways <= MOST:
        raise UsageError(f"A fan has {FEWEST} to {MOST} answers, not {ways}.", "Give 2, 3 or 4.")
    if lanes is not None and ways > lanes:
        at_once = "one answer" if lanes == 1 else f"{lanes} answers"
        raise UsageError(
            f"The engine gives {at_once} at a time; a fan of {ways} needs {ways}.",
            f"Start flarechat with --concurrency {2 if ways == 2 else 4}.",
        )
    if temperature == 0:
        raise UsageError(
            f"At temperature 0 all {ways} answers would be the same.", "Raise the temperature."
        )
