"""Stop strings against plain searching, for any cut of the text."""

from __future__ import annotations

import itertools
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from flarechat.engine.text.stops import StopMatcher

LETTERS = st.sampled_from("ab")
TEXTS = st.text(LETTERS, min_size=8, max_size=40) | st.text(LETTERS, max_size=8)
# Short stops end nearly every text at once; most lists have none.
STOPS = st.lists(st.text(LETTERS, min_size=3, max_size=6), min_size=1, max_size=3) | st.lists(
    st.text(LETTERS, min_size=1, max_size=6), min_size=1, max_size=4
)


def oracle(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text before the stop that is complete first, of several at one place the longest."""
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not ends:
        return text, None
    end, _, stop = min(ends)
    return text[: end - len(stop)], stop


def run(matcher: StopMatcher, pieces: list[str]) -> tuple[str, str | None]:
    shown = ""
    for piece in pieces:
        safe, hit = matcher.push(piece)
        shown += safe
        if hit is not None:
            return shown, hit
    return shown + matcher.flush(), matcher.hit


@settings(max_examples=400, deadline=None)
@given(text=TEXTS, stops=STOPS, cuts=st.lists(st.integers(0, 40), max_size=8))
def test_any_cut_of_a_text_finds_what_searching_the_whole_finds(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]

    assert oracle(text, stops) == run(StopMatcher(stops), pieces)


@given(text=TEXTS, stops=STOPS)
def test_never_more_is_held_back_than_could_begin_a_stop(text: str, stops: list[str]) -> None:
    matcher, shown = StopMatcher(stops), ""
    for count, character in enumerate(text, start=1):
        safe, hit = matcher.push(character)
        shown += safe
        if hit is not None:
            break
        held = text[len(shown) : count]

        assert text.startswith(shown)
        assert len(held) < max(map(len, stops))
        assert not held or any(stop.startswith(held) for stop in stops)


def test_text_is_shown_as_soon_as_it_cannot_be_a_stop() -> None:
    matcher = StopMatcher(["STOP"])

    assert [("a", None), ("", None), ("STX", None)] == [matcher.push(t) for t in ("aS", "T", "X")]


def test_nothing_follows_a_hit() -> None:
    matcher = StopMatcher(["\n\n"])

    assert ("one", "\n\n") == matcher.push("one\n\ntwo")
    assert ("", None) == matcher.push("three")
    assert "" == matcher.flush()
    assert "\n\n" == matcher.hit


def test_a_stop_ends_the_text_when_it_is_complete_whatever_else_has_begun() -> None:
    assert ("xa", "bc") == run(StopMatcher(["bc", "abcd"]), ["xab", "c", "d"])
    assert ("x", "abc") == run(StopMatcher(["bc", "abc"]), ["xab", "c"])


def test_a_stop_is_found_behind_a_false_start_of_itself() -> None:
    assert ("a", "aab") == run(StopMatcher(["aab"]), ["a", "aa", "b"])
    assert ("aba", "abac") == run(StopMatcher(["abac", "cc"]), ["abaabac"])


def test_without_stops_text_passes_through() -> None:
    matcher = StopMatcher([])

    assert ("anything", None) == matcher.push("anything")
    assert "" == matcher.flush()


def test_a_long_stop_does_not_make_long_text_slow() -> None:
    matcher = StopMatcher(["a" * 5000 + "b"])
    began = time.thread_time()
    for _ in range(50_000):
        matcher.push("a")

    assert time.thread_time() - began < 2.0
