"""The copy index against a plain scan of what the ring holds."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarechat.engine.drafters import keys
from flarechat.engine.drafters.context import ContextSource
from flarechat.engine.drafters.history import HISTORY_TOKENS, HistorySource
from flarechat.engine.drafters.index import MAX_COPY, Copy, CopyIndex, TextIndex

appends = st.lists(
    st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 2), min_size=1, max_size=9)),
    max_size=25,
)


def scan(
    ring: list[tuple[str, int]], suffix: list[int], capacity: int | None, limit: int
) -> Copy | None:
    """The contract, by brute force: ring is everything ever appended, oldest first."""
    first = 0 if capacity is None else max(0, len(ring) - capacity)
    places = {
        name: [i for i, (s, _) in enumerate(ring) if s == name and i >= first] for name in "abc"
    }
    for length in (8, 4):
        key, best = suffix[-length:], None
        if len(key) < length:
            continue
        for stream, own in places.items():
            for at in range(length, len(own)):
                said = [ring[i][1] for i in own[at - length : at]]
                if said == key and (best is None or own[at] > best[0]):
                    best = (own[at], stream, [ring[i][1] for i in own[at : at + limit]])
        if best is not None:
            return Copy(tuple(best[2]), length, best[1])
    return None


@settings(deadline=None, max_examples=200)
@given(
    appends=appends,
    suffix=st.lists(st.integers(0, 2), max_size=10),
    capacity=st.sampled_from([None, 6, 20, 60]),
    limit=st.integers(1, MAX_COPY),
)
def test_it_finds_what_a_scan_of_the_ring_finds(
    appends: list[tuple[str, list[int]]], suffix: list[int], capacity: int | None, limit: int
) -> None:
    index, ring = CopyIndex(capacity), []
    for stream, tokens in appends:
        index.append(stream, tokens)
        ring += [(stream, token) for token in tokens]

    assert scan(ring, suffix, capacity, limit) == index.find(suffix, limit)
    assert min(len(ring), capacity or len(ring)) == len(index)


def test_an_older_occurrence_is_found_once_the_newest_has_lost_its_beginning() -> None:
    index = CopyIndex(12)
    index.append("one", [0])
    index.append("two", [0, 0, 0, 1, 5])
    index.append("one", [0, 0, 1, 6])
    assert Copy((6,), 4, "one") == index.find([0, 0, 0, 1])
    index.append("three", [9, 9, 9])

    assert Copy((5,), 4, "two") == index.find([0, 0, 0, 1])


def behind(
    ring: list[tuple[str, int]], copy: Copy, kept: int, capacity: int | None
) -> tuple[int, Copy] | None:
    """The contract of `onward`, by brute force over everything ever appended."""
    first = 0 if capacity is None else max(0, len(ring) - capacity)
    own = [at for at in range(copy.place, len(ring)) if ring[at][0] == copy.stream][kept:]
    if copy.place < first or len(own) < 2:
        return None
    expected, *drafts = (ring[at][1] for at in own[: 1 + MAX_COPY])
    length = 8 if copy.match_length + kept + 1 >= 8 else 4
    return expected, Copy(tuple(drafts), length, copy.stream)


@settings(deadline=None, max_examples=300)
@given(
    appends=appends, later=appends, suffix=st.lists(st.integers(0, 2), min_size=4, max_size=10),
    capacity=st.sampled_from([None, 20, 60]), kept=st.integers(0, MAX_COPY),
)  # fmt: skip
def test_a_copy_goes_on_as_its_stream_did(
    appends: list[tuple[str, list[int]]], later: list[tuple[str, list[int]]], suffix: list[int],
    capacity: int | None, kept: int,
) -> None:  # fmt: skip
    index, ring = CopyIndex(capacity), []
    for stream, tokens in appends:
        index.append(stream, tokens)
        ring += [(stream, token) for token in tokens]
    copy = index.find(suffix)
    if copy is None:
        return
    for stream, tokens in later[:3]:
        index.append(stream, tokens)
        ring += [(stream, token) for token in tokens]

    assert behind(ring, copy, kept, capacity) == index.onward(copy, kept)


def test_a_copy_that_goes_on_can_go_on_again_and_ends_with_its_stream() -> None:
    index = CopyIndex()
    index.append("one", range(20))
    index.append("two", range(50, 60))
    first = index.find([0, 1, 2, 3], 3)
    assert first is not None
    second = index.onward(first, 3)
    assert second is not None
    third = index.onward(second[1], 5)

    assert (7, Copy(tuple(range(8, 15)), 8, "one")) == second
    assert (13, Copy(tuple(range(14, 20)), 8, "one")) == third
    assert (18, Copy((19,), 8, "one")) == index.onward(third[1], 4)
    assert index.onward(third[1], 5) is None
    assert (5, Copy(tuple(range(6, 13)), 4, "one")) == index.onward(first, 1)


def test_a_copy_never_runs_from_one_response_into_the_next() -> None:
    index = CopyIndex()
    index.append("first", [1, 2, 3, 4, 5])
    index.append("second", [6, 7, 8])
    found = index.find([1, 2, 3, 4])

    assert Copy((5,), 4, "first") == found


def test_interleaved_responses_keep_their_own_links() -> None:
    index = CopyIndex()
    for step in range(8):
        index.append("even", [2 * step])
        index.append("odd", [2 * step + 1])

    assert Copy((8, 10, 12, 14), 4, "even") == index.find([0, 2, 4, 6])
    assert Copy((9, 11, 13, 15), 4, "odd") == index.find([1, 3, 5, 7])


def test_a_suffix_that_is_the_newest_text_finds_the_occurrence_before_it() -> None:
    index = CopyIndex()
    index.append("only", [1, 2, 3, 4, 9, 1, 2, 3, 4])

    assert Copy((9, 1, 2, 3, 4), 4, "only") == index.find([1, 2, 3, 4])


def test_eight_tokens_win_over_a_more_recent_four() -> None:
    index = CopyIndex()
    index.append("long", [1, 2, 3, 4, 5, 6, 7, 8, 50])
    index.append("short", [0, 5, 6, 7, 8, 60])

    assert Copy((50,), 8, "long") == index.find([1, 2, 3, 4, 5, 6, 7, 8])
    assert Copy((60,), 4, "short") == index.find([9, 5, 6, 7, 8])


def test_the_history_keeps_exactly_the_last_65536_tokens() -> None:
    source = HistorySource()
    source.open(0, "old", [])
    source.commit(0, [1, 2, 3, 4, 5, 6])
    source.close(0)
    source.open(0, "new", [])
    source.commit(0, [7] * (HISTORY_TOKENS - 6))

    assert HISTORY_TOKENS == 65_536 == len(source.index)
    assert Copy((5, 6), 4, "old") == source.find(0, [1, 2, 3, 4], 7)
    source.commit(0, [7])
    assert len(source.index) == HISTORY_TOKENS
    assert source.find(0, [1, 2, 3, 4], 7) is None
    assert Copy((6,), 4, "old") == source.find(0, [2, 3, 4, 5], 7)


def test_prompts_are_not_offered_to_others_but_may_be_copied_by_their_own_request() -> None:
    secret = [11, 12, 13, 14, 15]
    history, context = HistorySource(), ContextSource()
    for source in (history, context):
        source.open(0, "mine", secret)
        source.open(1, "theirs", [])

    assert history.find(0, secret[:4], 7) is None
    assert history.find(1, secret[:4], 7) is None
    assert context.find(1, secret[:4], 7) is None
    assert Copy((15,), 4, "") == context.find(0, secret[:4], 7)


def test_the_context_is_gone_with_its_request() -> None:
    context = ContextSource()
    context.open(0, "one", [1, 2, 3, 4, 5])
    context.close(0)
    context.open(0, "two", [])

    assert context.find(0, [1, 2, 3, 4], 7) is None


@settings(deadline=None, max_examples=200)
@given(
    beginning=st.lists(st.integers(0, 2), max_size=60),
    appends=st.lists(st.lists(st.integers(0, 2), max_size=30), max_size=6),
    suffix=st.lists(st.integers(0, 2), max_size=10),
    limit=st.integers(0, MAX_COPY),
    kept=st.integers(0, MAX_COPY),
)
def test_one_text_is_found_as_a_stream_is(
    beginning: list[int], appends: list[list[int]], suffix: list[int], limit: int, kept: int
) -> None:
    text, stream = TextIndex(beginning), CopyIndex()
    stream.append("", beginning)
    for tokens in appends:
        text.append(tokens)
        stream.append("", tokens)
    for said in (suffix, [token for tokens in (beginning, *appends) for token in tokens]):
        found, expected = text.find(said, limit), stream.find(said, limit)
        assert expected == found
        if found is not None and expected is not None:
            assert expected.place == found.place
            assert stream.onward(expected, kept) == text.onward(found, kept)


@pytest.mark.parametrize("length", [4, 8])
def test_runs_of_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    # Two bits are left of a hash, so that every run shares it with many.
    monkeypatch.setattr(keys, "_PLACE", (1 << 62) - 1)
    draw = random.Random(length)
    text = [draw.randrange(2) for _ in range(300)]
    found = keys.SortedKeys(np.array(text, dtype=np.uint64), length)
    for run in ([draw.randrange(2) for _ in range(length)] for _ in range(100)):
        ends = [at for at in range(length, len(text)) if text[at - length : at] == run]
        assert (ends[-1] if ends else None) == found.last(run)
