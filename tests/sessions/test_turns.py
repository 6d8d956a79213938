"""The tree: what the events of a file mean."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flarechat.protocol import Finished
from flarechat.sessions.log import Line
from flarechat.sessions.records import assistant_record, partial_record, user_record
from flarechat.sessions.turns import Turn, TurnTree
from tests.fakes import ScriptedEngine, words
from tests.test_protocol import REQUEST


def finish(text: str, reason: str = "stop") -> Finished:
    engine = ScriptedEngine([words(text)], rounds_per_drain=20, reason=reason)
    engine.submit(REQUEST)
    [finished] = [event for event in engine.drain() if isinstance(event, Finished)]
    return finished


def user(turn_id: str, parent: str | None, text: str = "q") -> dict[str, Any]:
    return user_record(Turn(id=turn_id, parent=parent, role="user", text=text, started_at=1.0))


def answer(turn_id: str, parent: str | None, text: str = "a", **kw: str) -> dict[str, Any]:
    turn = Turn(id=turn_id, parent=parent, role="assistant", text=text, started_at=2.0)
    return assistant_record(turn, finish(text, **kw), "cpu-1")


def partial(turn_id: str, parent: str | None, offset: int, text: str) -> dict[str, Any]:
    whole = "." * offset + text
    turn = Turn(id=turn_id, parent=parent, role="assistant", text=whole, started_at=2.0)
    return partial_record(turn, offset)


def replayed(*records: dict[str, Any] | None) -> tuple[TurnTree, list[int]]:
    tree = TurnTree()
    lines = [Line(number, record) for number, record in enumerate(records, start=2)]
    return tree, tree.replay(lines)


def texts(tree: TurnTree) -> list[str]:
    return [turn.text for turn in tree.path()]


def test_a_conversation_comes_back_as_it_was() -> None:
    tree, alien = replayed(user("u", None, "hi"), answer("a", "u", "ho"))

    [first, second] = tree.path()

    assert [] == alien
    assert ("user", "hi", "complete", 1.0) == (
        first.role,
        first.text,
        first.status,
        first.started_at,
    )
    assert ("assistant", "ho", "complete", "stop") == (
        second.role,
        second.text,
        second.status,
        second.reason,
    )
    assert finish("ho").speculation == second.finished.speculation if second.finished else False
    assert ({"scripted": True}, "cpu-1") == (tree.controller, tree.device_fingerprint)


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("stop", "complete"),
        ("length", "complete"),
        ("context", "complete"),
        ("cancelled", "stopped"),
        ("error", "error"),
    ],
)
def test_the_reason_gives_the_status(reason: str, status: str) -> None:
    tree, _ = replayed(user("u", None), answer("a", "u", reason=reason))

    assert status == tree.path()[-1].status


@given(st.lists(st.text(min_size=1, max_size=5), max_size=6))
def test_pieces_add_up_and_the_end_replaces_them(pieces: list[str]) -> None:
    records, length = [], 0
    for piece in pieces:
        records.append(partial("a", "u", length, piece))
        length += len(piece)
    before, _ = replayed(user("u", None), *records)
    after, alien = replayed(user("u", None), *records, answer("a", "u", "whole"))

    assert ["q", *(["".join(pieces)] if pieces else [])] == texts(before)
    assert [] == alien
    assert ["q", "whole"] == texts(after)


def test_an_answer_cut_off_is_partial() -> None:
    tree, _ = replayed(user("u", None), partial("a", "u", 0, "so f"))

    assert ("partial", "so f") == (tree.path()[-1].status, tree.path()[-1].text)


def test_a_piece_behind_a_lost_one_is_left_out() -> None:
    tree, alien = replayed(
        user("u", None), partial("a", "u", 0, "one"), partial("a", "u", 9, "three")
    )

    assert ["q", "one"] == texts(tree)
    assert [4] == alien


def test_branches_share_their_beginning_and_the_head_chooses() -> None:
    records = [user("u", None, "q"), answer("a1", "u", "first"), answer("a2", "u", "second")]
    last, _ = replayed(*records)
    chosen, alien = replayed(*records, {"type": "head", "id": "h", "parent": "a1"})

    assert ["q", "second"] == texts(last)
    assert ["q", "first"] == texts(chosen)
    assert [] == alien


def test_a_turn_whose_parent_was_lost_follows_the_one_before_it() -> None:
    tree, alien = replayed(user("u", None), None, answer("a", "lost", "still here"))

    assert ["q", "still here"] == texts(tree)
    assert [3] == alien


def test_another_model_takes_over() -> None:
    model = {"name": "m", "fingerprint": "f", "recipe": "llama"}
    record = {"type": "model", "id": "m1", "parent": None, "model": model, "template_digest": "d"}

    tree, alien = replayed(record)

    assert ([], model, "d") == (alien, tree.model, tree.template_digest)


GOOD = [user("u", None), partial("a", "u", 0, "x"), answer("a", "u")]


@pytest.mark.parametrize(
    "record",
    [
        {"type": "song"},
        {"type": None},
        {"type": ["user"]},
        {},
        user("u", None),
        {"type": "user", "id": "n", "parent": None, "at": 1},
        {"type": "user", "id": 7, "parent": None, "at": 1, "text": "x"},
        {"type": "user", "id": "n", "parent": ["u"], "at": 1, "text": "x"},
        {"type": "user", "id": "n", "parent": None, "at": "noon", "text": "x"},
        {"type": "user", "id": "n", "parent": None, "at": 1, "text": None},
        {"type": "partial", "id": "a", "parent": "u", "at": 1, "offset": 0, "text": "late"},
        {"type": "partial", "id": "n", "parent": "u", "at": 1, "offset": 3, "text": "late"},
        {"type": "head", "id": "h", "parent": "nobody"},
        {"type": "model", "id": "m", "parent": None, "model": 3, "template_digest": ""},
        {"type": "assistant", "id": "n", "parent": "u", "at": 1, "text": "x"},
        answer("a", "u", "again"),
        answer("n", "u") | {"usage": 3},
        answer("n", "u") | {"text": 3},
        answer("n", "u") | {"reason": None},
    ],
)
def test_an_alien_event_changes_nothing(record: dict[str, Any]) -> None:
    tree, alien = replayed(*GOOD, record, user("u2", "a", "next"))

    assert [5] == alien
    assert ["q", "a", "next"] == texts(tree)


@given(st.permutations(range(3)), st.integers(0, 3))
def test_any_order_and_any_loss_gives_a_path_without_a_loop(order: list[int], kept: int) -> None:
    tree, _ = replayed(*[GOOD[index] for index in order][:kept])

    ids = [turn.id for turn in tree.path()]

    assert len(ids) == len(set(ids))
