"""Snapshots on a GPU: what was lost comes back to the bit, by plain calls and by replays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.conftest import Desk
from tests.engine.restoring import (
    ask,
    assert_same,
    files,
    lose,
    numbered,
    state_of,
    text_of,
    with_vault,
)
from tests.engine.test_snapshots import SCENES

pytestmark = pytest.mark.cuda


def desk(executor: str, **boot: object) -> Desk:
    """An engine on the tiny llama with its head, as it is."""
    model, head = files()
    settings = {"device": "cuda", "dtype": "float32", "context": 1024, **boot}
    return numbered(Desk(model, model.parent, mtp_file=str(head), executor=executor, **settings))


@pytest.mark.parametrize("length", [5, 65, 300])
@pytest.mark.parametrize("executor", ["eager", "graph"])
def test_what_was_lost_on_a_gpu_comes_back_to_the_bit(executor: str, length: int) -> None:
    made, kept = desk(executor), desk(executor, prefix_cache=0)
    for player in (made.engine.player, kept.engine.player):
        player.plain_start = True
    prompt = text_of(length)
    for scene in SCENES.values():
        found = []
        for each in (made, kept):
            first = ask(each, prompt)
            if each is made:
                lose(each)
            found.append(ask(each, scene(prompt, first.tokens)))
        said, expected = found
        assert "memory" == said.started.restored_from
        assert expected.tokens == said.tokens
        if expected.started.restored_tokens == said.started.restored_tokens:
            assert expected.played == said.played
            assert_same(state_of(made), state_of(kept))
        lose(kept)
    tree = made.engine.bookings.keeper.tree
    tensors = [t for node in tree.nodes.values() for t in (node.tensors or {}).values()]
    assert tensors and all(t.is_cuda for t in tensors)


@pytest.mark.parametrize("executor", ["eager", "graph"])
def test_what_lies_on_disk_comes_back_on_a_gpu_to_the_bit(executor: str, tmp_path: Path) -> None:
    before, made, kept = desk(executor), desk(executor), desk(executor, prefix_cache=0)
    for each in (before, made, kept):
        each.engine.player.plain_start = True
    prompt = text_of(300)
    with_vault(before, tmp_path)
    first = ask(before, prompt)
    assert before.engine.close(30.0)
    assert first.tokens == ask(kept, prompt).tokens
    with_vault(made, tmp_path)
    following = SCENES["turn"](prompt, first.tokens)
    said, expected = ask(made, following), ask(kept, following)

    assert ("disk", ()) == (said.started.restored_from, said.started.notices)
    assert expected.started.restored_tokens == said.started.restored_tokens
    assert (expected.tokens, expected.played) == (said.tokens, said.played)
    assert_same(state_of(made), state_of(kept))
