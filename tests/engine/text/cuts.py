"""A text cut into pieces: every way there is, or at places that were drawn; what a piece costs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

Text = TypeVar("Text", str, bytes)


def cut(text: Text, places: Iterable[int]) -> list[Text]:
    """The pieces between the places that lie inside; none is empty."""
    inner = sorted({place for place in places if 0 < place < len(text)})
    edges = [0, *inner, len(text)] if text else [0]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


def all_cuts(text: Text) -> Iterator[Sequence[Text]]:
    """All 2 ** (len - 1) ways to cut a text."""
    for kept in itertools.product((False, True), repeat=max(0, len(text) - 1)):
        yield cut(text, itertools.compress(range(1, len(text)), kept))


def quickest(push: Callable[[str], object], text: str) -> int:
    """The ns that a push takes at best, as what else the machine does adds to no minimum."""
    took = []
    for _ in range(40):
        began = time.perf_counter_ns()
        push(text)
        took.append(time.perf_counter_ns() - began)
    return min(took)
