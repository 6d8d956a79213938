"""When an answer counts as repeating itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flarechat.bench.samples import LOOP_SHARE, repeated_share


def test_fresh_tokens_do_not_repeat() -> None:
    assert 0.0 == repeated_share(range(200))


def test_a_sentence_said_three_times_is_a_loop() -> None:
    assert LOOP_SHARE < repeated_share([*range(40)] * 3)


def test_a_short_answer_is_never_a_loop() -> None:
    assert 0.0 == repeated_share([1] * 15)


@given(st.lists(st.integers(0, 3), max_size=60))
def test_the_share_is_a_share(tokens: list[int]) -> None:
    assert 0.0 <= repeated_share(tokens) < 1.0
