"""Stop strings against plain searching, for any cut of the text."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarechat.engine.text import finder
from flarechat.engine.text.stops import StopMatcher
from tests.engine.text.cuts import all_cuts, cut, quickest

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
    assert oracle(text, stops) == run(StopMatcher(stops), cut(text, cuts))


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


# Overlapping, one the beginning, the end or the inside of another, and one that repeats itself.
LISTS = (
    ["aab"], ["abab"], ["b", "ab"], ["ab", "abb"], ["bab", "aba"], ["a", "aaaa"],
    ["babb", "ab"], ["aabba", "abb", "bba"], ["bbbbbbbb"],
)  # fmt: skip


@pytest.mark.parametrize("stops", LISTS)
def test_every_way_to_cut_every_short_text(stops: list[str]) -> None:
    for letters in itertools.chain.from_iterable(
        itertools.product("ab", repeat=length) for length in range(7)
    ):
        text = "".join(letters)
        expected = oracle(text, stops)
        for pieces in all_cuts(text):
            assert expected == run(StopMatcher(stops), list(pieces)), pieces


@pytest.mark.parametrize(
    ("text", "stops"),
    [
        ("déjà vu", ["à", "jà v"]),
        ("e\u0301té", ["e"]),
        ("e\u0301té", ["é", "\u0301t"]),
        ("a\ufffd\ufffdb", ["\ufffdb", "\ufffd\ufffd\ufffd"]),
        ("🦙🦙🦘日本", ["🦙🦘", "本"]),
        ("👩\u200d👧 hi", ["👧"]),
        ("x\r\n\r\ny", ["\n\n", "\r\n\r"]),
        ("a\x00b", ["\x00"]),
    ],
)
def test_text_is_compared_by_code_points(text: str, stops: list[str]) -> None:
    expected = oracle(text, stops)

    assert all(expected == run(StopMatcher(stops), list(pieces)) for pieces in all_cuts(text))


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])


@pytest.mark.parametrize("stops", LISTS)
def test_what_was_heard_counts_only_where_it_goes_on(stops: list[str]) -> None:
    for letters in itertools.product("ab", repeat=7):
        text = "".join(letters)
        for heard in range(len(text)):
            ends = [
                (end, -len(stop), stop)
                for stop in stops
                for end in range(max(heard + 1, len(stop)), len(text) + 1)
                if text[:end].endswith(stop)
            ]
            end, _, stop = min(ends, default=(len(text), 0, None))
            matcher = StopMatcher(stops)
            shown = matcher.hear(text[:heard])
            assert heard - len(shown) < max(map(len, stops))
            said, hit = run(matcher, [text[heard:]])

            assert (text[: end - len(stop or "")], stop) == (shown + said, hit)


def test_a_copy_goes_its_own_way() -> None:
    matcher = StopMatcher(["abc"])
    matcher.push("xab")
    other = matcher.copy()

    assert ("", "abc") == other.push("c")
    assert ("abd", None) == matcher.push("d")
    assert ("abc", None) == (other.hit, matcher.hit)


def lines_run(work: Callable[[], object]) -> int:
    """How many lines of the finder it runs."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace if frame.f_code.co_filename == finder.__file__ else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


RUN = 300
ADVERSARIES: list[tuple[str, list[str]]] = [
    ("a" * 4 * RUN, ["a" * RUN + "b"]),
    (("a" * RUN + "c") * 4, ["a" * (RUN + 1) + "b"]),
    ("a" * 4 * RUN, ["a" * length + "b" for length in range(1, 60)]),
    ("a" * 4 * RUN, ["b" + "a" * length for length in range(1, 60)]),
    ("ab" * 2 * RUN, ["ab" * (RUN // 2) + "b", "ba" * (RUN // 3) + "a"]),
]


@pytest.mark.parametrize(("text", "stops"), ADVERSARIES)
@pytest.mark.parametrize("at_once", [True, False])
def test_a_character_takes_few_steps_whatever_the_stops(
    text: str, stops: list[str], at_once: bool
) -> None:
    matcher = StopMatcher(stops)
    pieces = [text] if at_once else list(text)

    # Six lines go on by a character and eleven return a piece; two fall back once.
    steps = lines_run(lambda: [matcher.push(piece) for piece in pieces])

    assert matcher.hit is None
    assert steps < (9 if at_once else 24) * len(text)


def test_making_ready_takes_few_steps_a_character_of_the_stops() -> None:
    stops = [*("a" * length + "b" for length in range(1, 60)), "ab" * 400 + "c", "a" * 900]

    assert lines_run(lambda: StopMatcher(stops)) < 25 * sum(map(len, stops))


def test_a_push_costs_the_same_however_much_is_held() -> None:
    matcher = StopMatcher(["a" * 100_000 + "b"])
    matcher.push("a" * 10)
    little = quickest(matcher.push, "a")
    matcher.push("a" * 99_000)
    much = quickest(matcher.push, "a")
    matcher.push("a" * 2_000)
    passing = quickest(matcher.push, "a")

    assert max(much, passing) < 4 * little
    assert 100_000 == len(matcher.flush())
