"""What an answer is held to and how that goes, in words and figures, for the panels.

Owns the wording. Counts nothing itself and knows no widget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from flarechat.chat import Turn
from flarechat.textsafe import strip_controls
from flarechat.ui import jsontext
from flarechat.ui.constraints import NamedConstraint

CALLS_SEEN = 64


@dataclass(frozen=True, slots=True)
class Held:
    """`label` is what constrains; `state` says where the answer is, `verdict` what became of it, ""
    before that is known. `forced` tokens were the only legal ones, `removed` drafts illegal, and
    `redrawn` rounds ended with a token that was drawn again.
    """

    label: str
    state: str = ""
    verdict: str = ""
    forced: int = 0
    removed: int = 0
    redrawn: int = 0


class Counted(Protocol):
    """What a grammar did to the rounds of an answer."""

    forced: int
    removed: int
    redrawn: int


def held_to(constraint: NamedConstraint, turn: Turn | None, counted: Counted) -> Held:
    """How an answer that was asked for under a constraint stands; None for the next one."""
    if turn is None:
        return Held(constraint.label, "from the next answer on")
    state, verdict = _json_words(turn) if constraint.json else (_length(turn), "")
    result = turn.finished.constraint if turn.finished else None
    if result is not None:
        verdict = f"{'satisfied' if result.satisfied else 'not satisfied'}  {verdict}".rstrip()
    elif turn.status == "streaming":
        verdict = ""
    elif turn.status == "error":
        verdict = "no answer"
    return Held(constraint.label, state, verdict, counted.forced, counted.removed, counted.redrawn)


def _length(turn: Turn) -> str:
    writing = "writing" if turn.status == "streaming" else "ended"
    return f"{writing}, {len(turn.text):,} characters"


def _json_words(turn: Turn) -> tuple[str, str]:
    """Where a JSON answer is, and whether it parses."""
    if turn.status == "streaming" and not turn.text:
        return ("thinking" if turn.thinking else "nothing written yet"), ""
    if len(turn.text) > jsontext.MOST:
        return _length(turn), ""
    reading = jsontext.read(strip_controls(turn.text))
    if reading.whole:
        return reading.state, "parses"
    place = reading.place
    where = f" at {place.line}:{place.column}" if place else ""
    return reading.state, f"{'broken' if reading.broken else 'incomplete'}{where}"


def held_to_calls(label: str, state: str, turns: Sequence[Turn], counted: Counted) -> Held:
    """How an answer that may call tools stands, with the calls since the last message."""
    words = {"ASKING": "a call waits for you", "TOOL": "a tool runs"}
    made, results = 0, list[str]()
    for turn in reversed(turns):
        if turn.role == "user":
            break
        made += len(turn.calls)
        results += [turn.reason] if turn.role == "tool" else []
    counts = [f"{results.count(word)} {word}" for word in dict.fromkeys(results[::-1])]
    verdict = ", ".join([f"{made} calls" if made != 1 else "1 call", *counts]) if made else ""
    return Held(
        label,
        words.get(state, "text or calls"),
        verdict,
        counted.forced,
        counted.removed,
        counted.redrawn,
    )
