"""What the comparison and its children say to each other: one JSON object a line.

Owns the words and the clock of an answer. A child says what it is once it is ready, then answers a
line with a line until its input ends. Only the standard library is imported here, as children
run in other environments than flarechat's.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

Verb = Callable[[dict[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """The law an answer is drawn from; temperature 0 is argmax."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One answer: `messages` of role and content, and `ids`, the tokens that they should become."""

    messages: Sequence[Mapping[str, str]]
    ids: Sequence[int]
    tokens: int
    law: Law = Law()

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Ask:
        """From a line."""
        return cls(**{**body, "law": Law(**body["law"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What came back: milliseconds to the first tokens, how many those were, and milliseconds from
    them to the last. `prompt` has the tokens that were put to the model, where the engine made them
    itself, and `restored` how many of them it had still in its caches."""

    tokens: Sequence[int]
    first_ms: float
    first_tokens: int
    decode_ms: float
    prompt: Sequence[int] | None = None
    restored: int = 0

    @property
    def rate(self) -> float:
        """Tokens a second after the first ones; 0 where none came."""
        later = len(self.tokens) - self.first_tokens
        return 1e3 * later / self.decode_ms if later > 0 and self.decode_ms > 0 else 0.0


class Clock:
    """Times one answer; it runs from when it is made."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.tokens: list[int] = []
        self._first: tuple[float, int] | None = None
        self._last = self.began

    def got(self, tokens: Sequence[int]) -> None:
        """Tokens came."""
        if not tokens:
            return
        self._last = time.perf_counter()
        self.tokens += tokens
        if self._first is None:
            self._first = self._last, len(tokens)

    def told(self, prompt: Sequence[int] | None = None, restored: int = 0) -> Mapping[str, Any]:
        """The answer as a line's body; without any token it is a ValueError."""
        if self._first is None:
            raise ValueError("the answer has no token")
        first, count = self._first
        told = Told(
            tokens=self.tokens, first_ms=1e3 * (first - self.began), first_tokens=count,
            decode_ms=1e3 * (self._last - first), prompt=prompt, restored=restored,
        )  # fmt: skip
        return asdict(told)


def serve(ready: Mapping[str, Any], verbs: Mapping[str, Verb], channel: Any) -> None:
    """Say `ready`, then answer every line by its verb until the input ends."""
    _say(channel, {"ok": dict(ready)})
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            _say(channel, {"ok": dict(verbs[asked["do"]](asked["with"]))})
        except Exception as failure:
            _say(channel, {"failed": f"{type(failure).__name__}: {failure}"})


def private_channel() -> Any:
    """Standard output for the lines alone; whatever libraries print goes to standard error."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return channel


def _say(channel: Any, body: Mapping[str, Any]) -> None:
    channel.write(json.dumps(body) + "\n")
    channel.flush()
