"""What is captured: every plan a player can ask for has exactly one that stands for it."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flarechat.engine.executors import choose
from flarechat.engine.executors.catalogue import LIKELIEST, WHOLE, Catalogue
from flarechat.engine.plan import LawShape, Plan
from flarechat.errors import SettingsError
from flarechat.protocol import Sampling


def catalogue(slots: int = 4, capacity: int = 128, **how: bool) -> Catalogue:
    return Catalogue(
        slots=slots, capacity=capacity, context=8192, extent=8208, **{"learned": True, **how}
    )


@pytest.mark.parametrize(
    ("how", "rounds", "prefills"),
    [
        ({"slots": 1}, 2 * (2 + 7 * 2 + 7 + 7), 18),
        ({"slots": 1, "learned": False}, 2 * 8, 9),
        ({"slots": 1, "always_absorbs": True}, 2 * (1 + 7 + 7 + 7), 9),
        ({"slots": 2}, 2 * 2 * 30, 18),
        ({"slots": 4}, 3 * 2 * 30, 18),
        ({"slots": 4, "capacity": 4}, 2 * (14 + 6 + 2), 18),
    ],
)
def test_the_plans_are_counted(how: dict[str, int], rounds: int, prefills: int) -> None:
    made = catalogue(**how)  # type: ignore[arg-type]

    assert (rounds, prefills) == (len(made.rounds()), len(made.prefills()))
    assert len(made.all()) == len(set(made.all())) == rounds + prefills


def test_the_largest_come_first_and_none_is_over_the_capacity() -> None:
    rows = [captured.rows for captured in catalogue().all()]

    assert rows == sorted(rows, reverse=True)
    assert (256, 1) == (rows[0], rows[-1])
    for capacity in (4, 7, 12, 128):
        made = catalogue(capacity=capacity).rounds()
        assert max(captured.rows for captured in made) <= capacity
        assert {captured.lanes for captured in made} == {1, 2, 4}


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.7]),
    top_k=st.sampled_from([0, 1, 20, 64, 65, 49152, 60000]),
    top_p=st.sampled_from([0.9, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.2]),
)


@given(
    samplings=st.lists(SAMPLINGS, min_size=1, max_size=4),
    lanes=st.sampled_from([1, 2, 4]),
    way=st.sampled_from([("none", 0), *product(("copies", "mtp", "both"), range(1, 8))]),
    acceptance=st.sampled_from(["ratio", "match", "mixed"]),
    absorb=st.booleans(),
    logprobs=st.integers(0, 20),
    learned=st.booleans(),
)
def test_every_plan_of_a_player_has_one_that_does_all_it_asks(
    samplings: list[Sampling], lanes: int, way: tuple[str, int], acceptance: str, absorb: bool,
    logprobs: int, learned: bool,
) -> None:  # fmt: skip
    drafting, depth = way
    if not learned and drafting in ("mtp", "both"):
        drafting = "copies"
    law = LawShape.of(samplings, 49152)
    asked = Plan(depth, 1024, law, acceptance, logprobs, drafting, absorb)
    made = catalogue(learned=learned)
    found = made.round_for(lanes, asked)
    own = found.plan

    assert found in made.rounds()
    assert (lanes, depth, drafting) == (found.lanes, own.draft_tokens, own.drafting)
    assert 8208 == own.extent and "mixed" == own.acceptance and 0 == own.logprobs
    assert own.absorb or not (absorb and learned)
    assert own.law in (LIKELIEST, WHOLE) and own.law.penalties
    if own.law == LIKELIEST:
        kept = [1 if s.temperature == 0 else s.top_k or 49152 for s in samplings]
        assert max(kept) <= 64


@given(tokens=st.integers(1, 256), absorb=st.booleans(), context=st.sampled_from([2, 100, 8192]))
def test_a_chunk_is_played_as_its_exact_pieces(tokens: int, absorb: bool, context: int) -> None:
    made = Catalogue(slots=1, capacity=128, context=context, extent=context + 16, learned=True)
    pieces = made.pieces(tokens)

    assert tokens == sum(pieces)
    assert pieces == sorted(pieces, reverse=True)
    captured = made.prefills()
    for piece in pieces:
        own = made.prefill_for(piece, Plan(tokens - 1, 512, absorb=absorb))
        assert own in captured
        assert (piece, absorb) == (own.plan.width, own.plan.absorb)
        assert piece <= context
    assert context < 256 or len(pieces) <= 8


def test_the_executor_is_chosen_and_says_why() -> None:
    def chosen(asked: str = "auto", **how: bool) -> tuple[str, str]:
        return choose(asked, **{"cuda": True, "kernels": True, "capturable": True, **how})

    assert "graph" == chosen()[0] == chosen("graph")[0]
    assert "eager" == chosen("eager")[0]
    for lacking, words in (
        ("cuda", "CUDA device"), ("kernels", "Triton"), ("capturable", "model family"),
    ):  # fmt: skip
        name, why = chosen(**{lacking: False})
        assert "eager" == name and words in why
        with pytest.raises(SettingsError, match=words):
            chosen("graph", **{lacking: False})
