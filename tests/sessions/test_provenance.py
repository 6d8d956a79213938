"""What a session keeps of an answer's tokens: whole at the end, and so far at every moment."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarechat.protocol import Finished, Round, Sampling, Speculation
from flarechat.sessions import names, store
from flarechat.sessions.provenance import LETTERS, UNKNOWN, add_round
from flarechat.sessions.session import Session, SessionWriter, new_header
from flarechat.sessions.turns import Turn
from tests.fakes import Play
from tests.sessions.test_turns import answer, partial, replayed, user

LAW = Sampling(temperature=0.7, presence_penalty=0.3, seed=4)
OLD = Path(__file__).parent / "old" / "before-tokens.jsonl"
pieces = st.tuples(
    st.sampled_from(list(LETTERS)),
    st.lists(st.integers(0, 60_000), min_size=1, max_size=4),
    st.sampled_from(["", "turn-a", "turn-b"]),
    st.text(max_size=3),
    st.text(max_size=3),
    st.booleans(),
)


def played(source: str, tokens: list[int], origin: str) -> Round:
    made = Play(("x",)).round("a", 0, 0)
    sources = (source,) * (len(tokens) - 1) + ("bonus",)
    return dataclasses.replace(made, tokens=tuple(tokens), sources=sources, origin=origin)


def runs_of(rounds: list[Round]) -> tuple[list[int], str, list[tuple[int, int, str]]]:
    """Tokens, letters and runs, token by token."""
    tokens, sources, origins = [], "", []
    for each in rounds:
        for token, source in zip(each.tokens, each.sources, strict=True):
            tokens.append(token)
            sources += LETTERS[source]
            of = {"history": each.origin, "context": ""}
            origins.append(of.get(source))
    runs: list[tuple[int, int, str]] = []
    for place, origin in enumerate(origins):
        if origin is None:
            continue
        if place and origins[place - 1] == origin:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1, origin)
        else:
            runs.append((place, 1, origin))
    return tokens, sources, runs


def begun(name: str) -> tuple[SessionWriter, Turn]:
    header = new_header(
        model=None, model_name="m", sampling=LAW, speculation=Speculation(), system=None
    )
    writer = store.create(name, "", header)
    question = Turn(id="u", parent=None, role="user", text="q")
    writer.user(question)
    return writer, Turn(id="a", parent="u", role="assistant", text="", status="streaming")


def saved(turn: Turn) -> tuple[Any, ...]:
    law = (turn.sampling, turn.seed, turn.draw, turn.model_fingerprint)
    return (turn.text, turn.thinking, turn.tokens, turn.sources, turn.copied, *law)


@settings(max_examples=40, deadline=None)
@given(rounds=st.lists(pieces, max_size=8))
def test_whatever_was_saved_of_an_answer_so_far_is_read_back(rounds: list[Any]) -> None:
    writer, turn = begun(names.new_id())
    turn.sampling, turn.seed, turn.draw, turn.model_fingerprint = LAW, 4, 17, "f" * 8
    told: list[Round] = []
    for source, tokens, origin, text, thinking, saves in rounds:
        told.append(played(source, tokens, origin))
        add_round(turn, told[-1])
        turn.text, turn.thinking = turn.text + text, turn.thinking + thinking
        if saves:
            writer.partial(turn)
            assert saved(turn) == saved(Session(writer.path).tree.turns["a"])
    assert runs_of(told) == (turn.tokens, turn.sources, turn.copied)
    unplayed = Finished.unplayed("a", "length")
    turn.finish(dataclasses.replace(unplayed, text=turn.text, thinking=turn.thinking))
    writer.finish(turn, "cpu")
    writer.close()

    assert saved(turn) == saved(Session(writer.path).tree.turns["a"])


@settings(max_examples=40, deadline=None)
@given(rounds=st.lists(pieces, min_size=1, max_size=4), cut=st.integers(0, 3))
def test_what_an_answer_takes_back_when_it_goes_on_is_taken_back_in_the_file(
    rounds: list[Any], cut: int
) -> None:
    """A held-back stop, half a character, or all tokens, of another model."""
    writer, turn = begun(names.new_id())
    turn.text, turn.thinking = "said so far", "thought"
    turn.tokens, turn.sources, turn.copied = [1, 2, 3], "+hh", [(1, 2, "t")]
    turn.finish(
        dataclasses.replace(
            Finished.unplayed("a", "cancelled"), text=turn.text, thinking=turn.thinking
        )
    )
    writer.finish(turn, "cpu")
    writer.go_on(turn)
    assert "partial" == Session(writer.path).tree.turns["a"].status
    turn.text, turn.thinking = turn.text[: len(turn.text) - cut], turn.thinking[: 7 - cut]
    if cut:
        turn.tokens, turn.sources, turn.copied = [9] * cut, UNKNOWN * cut, []
    turn.sampling, turn.seed, turn.draw, turn.model_fingerprint = LAW, 5, 2, "g"
    for source, tokens, origin, text, thinking, _ in rounds:
        add_round(turn, played(source, tokens, origin))
        turn.text, turn.thinking = turn.text + text, turn.thinking + thinking
        writer.partial(turn)

        assert saved(turn) == saved(Session(writer.path).tree.turns["a"])
    writer.close()


def test_a_copy_that_goes_on_over_many_rounds_is_one_run() -> None:
    turn = Turn(id="a", parent=None, role="assistant", text="")
    for _ in range(40):
        add_round(
            turn, dataclasses.replace(played("history", [7, 7], "t"), sources=("history",) * 2)
        )

    assert [(0, 80, "t")] == turn.copied
    assert "h" * 80 == turn.sources


SENSELESS: list[dict[str, Any]] = [
    {"tokens": "abc"},
    {"tokens": [1, "2"], "sources": "++"},
    {"tokens": [1, True], "sources": "++"},
    {"tokens": [1, -2], "sources": "++"},
    {"tokens": [1, 2.0], "sources": "++"},
    {"tokens": [1, 2], "sources": "+"},
    {"tokens": [1, 2]},
    {"tokens": [1, 2], "sources": ["+", "+"]},
    {"tokens": [10**40], "sources": "+"},
    {"tokens": None, "sources": None, "copied": None},
]


@pytest.mark.parametrize("fields", SENSELESS)
def test_tokens_that_make_no_sense_cost_no_text(fields: dict[str, Any]) -> None:
    tree, alien = replayed(user("u", None), answer("a", "u", "text") | fields)

    assert [] == alien
    assert ("text", [], "", []) == (
        tree.turns["a"].text,
        tree.turns["a"].tokens,
        tree.turns["a"].sources,
        tree.turns["a"].copied,
    )


@pytest.mark.parametrize(
    "copied",
    [3, [3], [[0]], [[0, 1, 2]], [["0", 1, ""]], [[0, 5, ""]], [[-1, 1, ""]], [[0, 0, ""]],
     [[0, True, ""]], [[1, 1, ""], [0, 1, ""]], [[0, 2, ""], [1, 1, ""]]],
)  # fmt: skip
def test_runs_that_make_no_sense_cost_no_tokens(copied: Any) -> None:
    fields = {"tokens": [5, 6, 7], "sources": "hh+", "copied": copied}
    tree, alien = replayed(user("u", None), answer("a", "u", "text") | fields)

    assert ([], [5, 6, 7], []) == (alien, tree.turns["a"].tokens, tree.turns["a"].copied)


@pytest.mark.parametrize(
    "fields",
    [
        {"sampling": 3, "seed": "x", "draw": -1, "model_fingerprint": 7},
        {"sampling": {"temperature": -4}, "seed": True, "draw": 1.5},
        {"sampling": {"temperature": "warm"}, "seed": 2**70},
        {"sampling": {"temperature": None}},
    ],
)
def test_a_law_that_makes_no_sense_is_none(fields: dict[str, Any]) -> None:
    tree, alien = replayed(user("u", None), answer("a", "u", "text") | fields)
    turn = tree.turns["a"]

    assert ([], "text", None, None, None, "") == (
        alien, turn.text, turn.sampling, turn.seed, turn.draw, turn.model_fingerprint,
    )  # fmt: skip


def test_tokens_behind_lost_ones_are_not_taken_for_the_beginning() -> None:
    late = partial("a", "u", 2, "cd") | {"since": 2, "tokens": [3], "sources": "+", "copied": []}
    tree, _ = replayed(user("u", None), partial("a", "u", 0, "ab"), late)

    assert ("abcd", []) == (tree.turns["a"].text, tree.turns["a"].tokens)


def test_only_an_answer_goes_on() -> None:
    record = {"type": "continue", "id": "c", "parent": "u", "at": 1.0}
    lost = {"type": "continue", "id": "d", "parent": "nobody", "at": 1.0}
    _, alien = replayed(user("u", None), answer("a", "u"), record, lost)

    assert [4, 5] == alien


def test_a_file_from_before_tokens_were_saved_is_read_whole() -> None:
    """Every kind of line that was there: a fan, a pick, another model, another system prompt."""
    session = Session(OLD)
    tree = session.tree
    wanted = json.loads(OLD.with_suffix(".tree.json").read_text())

    assert [] == session.notices
    assert wanted == {
        turn.id: [turn.parent, turn.role, turn.text, turn.thinking, turn.status, turn.reason]
        for turn in tree.turns.values()
    } | {"head": tree.head, "system": tree.system, "model": tree.model["name"]}
    for turn in tree.turns.values():
        assert ([], "", [], None, None, None, "") == (
            turn.tokens, turn.sources, turn.copied, turn.sampling, turn.seed, turn.draw,
            turn.model_fingerprint,
        )  # fmt: skip
