"""What was computed once comes back: every state to the bit, for target and draft head, and text
and acceptance with it. The reference is an engine that keeps its slots and no snapshots.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from flarechat.engine.memory import snapshot_budget
from flarechat.engine.player import RECALLED
from flarechat.errors import SettingsError
from flarechat.protocol import Ready
from tests.engine.captures import captured
from tests.engine.conftest import Desk
from tests.engine.restoring import (
    BOTH,
    Make,
    Said,
    ask,
    assert_same,
    emptied,
    llama,
    lose,
    qwen,
    state_of,
    text_of,
    with_vault,
)
from tests.engine.test_flights import late

Scene = Callable[[list[int], list[int]], list[int]]
# From the first prompt and its answer to the prompt that is restored.
SCENES: dict[str, Scene] = {
    "turn": lambda prompt, said: [*prompt, *said, *text_of(9, 5)],
    "edit": lambda prompt, said: [*prompt[: len(prompt) // 2 + 1], *text_of(9, 6)],
    "continued": lambda prompt, said: [*prompt, *said[:7]],
    "other session": lambda prompt, said: [*prompt, *text_of(5, 7)],
    "regenerate": lambda prompt, said: prompt,
}
LENGTHS = (2, 5, 63, 64, 65, 66, 256, 257, 258)
MAKERS: dict[str, Make] = {
    "llama": llama,
    "late": lambda **boot: late(llama(context=512, **boot)),
    "captured": lambda **boot: captured(llama(context=512, **boot)),
    "qwen38": qwen,
}


@cache
def _pair(kind: str) -> tuple[Desk, Desk]:
    make = MAKERS[kind]
    return make(prefix_cache=64), make(prefix_cache=0)


def pair(kind: str, *, plain: bool = False) -> tuple[Desk, Desk]:
    """An engine with snapshots and one without, that know nothing yet. A recalled first round
    offers no drafts: with `plain`, no first round does."""
    made, kept = _pair(kind)
    tree = made.engine.bookings.keeper.tree
    tree.resize(0)
    tree.resize(64 << 20)
    for desk in (made, kept):
        lose(desk)
        desk.engine.player.plain_start = plain
    return made, kept


def played(desk: Desk, length: int, scene: Scene, *, lost: bool, **how: object) -> Said:
    """A prompt is answered, then what the scene makes of it, with or without the slots' state."""
    prompt = text_of(length)
    first = ask(desk, prompt, **how)
    if lost:
        lose(desk)
    return ask(desk, scene(prompt, first.tokens), **how)


def assert_restored(ours: Desk, theirs: Desk, said: Said, expected: Said) -> None:
    """Nobody could tell the two apart."""
    assert expected.tokens == said.tokens
    assert expected.played == said.played
    assert theirs.engine.residents.held(0) == ours.engine.residents.held(0)
    assert_same(state_of(ours), state_of(theirs))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("scene", SCENES)
def test_what_a_llama_lost_comes_back_to_the_bit(scene: str, length: int) -> None:
    made, kept = pair("llama", plain=scene == "regenerate")
    said = played(made, length, SCENES[scene], lost=True)
    expected = played(kept, length, SCENES[scene], lost=False)

    assert expected.started.restored_tokens == said.started.restored_tokens
    assert "memory" == said.started.restored_from
    assert sum(r.accepted for r in said.rounds) > 10
    assert_restored(made, kept, said, expected)
    reasons = {r.reason for r in said.rounds}
    assert (RECALLED in reasons) == (scene == "regenerate")


@pytest.mark.parametrize("kind", ["late", "captured"])
@pytest.mark.parametrize("scene", SCENES)
def test_so_it_does_with_two_rounds_under_way(scene: str, kind: str) -> None:
    made, kept = pair(kind, plain=scene == "regenerate")
    said = played(made, 65, SCENES[scene], lost=True, speculation=BOTH)
    expected = played(kept, 65, SCENES[scene], lost=False, speculation=BOTH)

    assert expected.started.restored_tokens == said.started.restored_tokens > 30
    assert_restored(made, kept, said, expected)


@pytest.mark.parametrize("length", [64, 65, 257])
@pytest.mark.parametrize("scene", SCENES)
def test_what_a_recurrence_lost_comes_back_to_the_bit(scene: str, length: int) -> None:
    made, kept = pair("qwen38", plain=True)
    prompt = text_of(length)
    first = ask(made, prompt, max_tokens=64 if scene == "turn" else 8)
    following = SCENES[scene](prompt, first.tokens)
    lose(made)
    said = ask(made, following)
    # The reference stops where the state can be had from: behind a turn, or behind a prompt.
    ask(kept, prompt, max_tokens=64 if scene == "turn" else 1)
    expected = ask(kept, following)

    wanted = {"turn": length + 63, "edit": 0, "regenerate": length - 1}
    assert wanted.get(scene, length) == said.started.restored_tokens
    assert_restored(made, kept, said, expected)


@cache
def _first(family: str) -> Desk:
    return MAKERS[family](prefix_cache=64)


COLD = [("llama", n) for n in (4, 5, 63, 64, 65)] + [("qwen38", n) for n in (64, 65, 66, 67)]


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize(("family", "length"), COLD)
def test_a_cold_start_goes_on_from_what_lies_on_disk(
    family: str, length: int, scene: str, tmp_path: Path
) -> None:
    prompt, rows = text_of(length), family == "llama"
    count = 16 if rows or scene == "turn" else 8
    before = emptied(_first(family))
    before.engine.player.plain_start = not rows or scene == "regenerate"
    with_vault(before, tmp_path)
    first = ask(before, prompt, max_tokens=count)
    assert before.engine.close(10.0)

    made, kept = pair(family, plain=not rows or scene == "regenerate")
    emptied(made)
    with_vault(made, tmp_path)
    following = SCENES[scene](prompt, first.tokens)
    said = ask(made, following, max_tokens=32)
    made.engine.close(10.0)
    # The reference stops where the state can be had from: behind a turn, or behind a prompt.
    ask(kept, prompt, max_tokens=count if rows or scene == "turn" else 1)
    expected = ask(kept, following, max_tokens=32)

    if rows or scene != "edit":
        assert "disk" == said.started.restored_from
        behind = {"turn": count - 1, "regenerate": -1}.get(scene, 0)
        assert said.started.restored_tokens >= (length // 2 if scene == "edit" else length + behind)
    assert () == said.started.notices
    assert_restored(made, kept, said, expected)


def test_a_recurrence_that_went_on_in_its_first_round_is_not_recalled() -> None:
    (made, kept), recalled = pair("qwen38", plain=False), list[bool]()
    for seed in range(6):
        prompt = text_of(9, seed)
        first = ask(made, prompt, max_tokens=12)
        lose(made)
        said, expected = (ask(each, prompt, max_tokens=12) for each in (made, kept))
        recalled.append(said.rounds[0].reason == RECALLED)

        assert recalled[-1] == (first.rounds[0].emitted == 1)
        assert first.tokens == said.tokens == expected.tokens
        lose(kept)
    assert {True, False} == set(recalled)


def test_the_budget_is_what_was_asked_for_or_a_part_of_what_is_free() -> None:
    assert [1 << 30, 100, 0] == [snapshot_budget(None, left) for left in (8 << 30, 400, -5)]
    assert [0, 3 << 20, 4 << 20] == [snapshot_budget(asked, 4 << 20) for asked in (0, 3, 4)]
    with pytest.raises(SettingsError, match="--prefix-cache 5 does not fit: 4 MiB are free"):
        snapshot_budget(5, 4 << 20)
    made = llama(prefix_cache=3)
    (ready,) = [event for event in made.events if isinstance(event, Ready)]
    assert ready.model.memory is not None
    assert 3 << 20 == ready.model.memory.snapshots == made.engine.bookings.keeper.tree.budget
    assert "snapshots up to 3,145,728 B" in str(ready.model.memory)


def test_without_a_budget_nothing_is_kept() -> None:
    made = llama(prefix_cache=0)
    for _ in range(2):
        lose(made)
        assert "" == ask(made, text_of(70), max_tokens=3).started.restored_from
    assert {} == made.engine.bookings.keeper.tree.nodes
