"""A node cut to its first tokens is the one that an engine keeps of a text that ends there."""

from __future__ import annotations

import torch
from safetensors.torch import load, save

from flarechat.engine.keeper import Keeper
from flarechat.engine.snapshots import Node
from flarechat.vault.nodefile import metadata, parsed, sealed
from flarechat.vault.tensors import beginning
from tests.engine.restoring import ask, llama, text_of


def test_a_node_s_beginning_is_what_an_engine_keeps_of_a_text_that_ends_there() -> None:
    desk = llama()
    ask(desk, text_of(40), max_tokens=8)
    engine = desk.engine
    keeper, text = engine.bookings.keeper, engine.residents.held(0)[:44]

    def nodes_of(*ends: int) -> list[Node]:
        """The nodes of a tree that keeps the text up to each of these places, one by one."""
        states = [keeper._target.values(), engine.drafter]
        own = Keeper(keeper.tree.identity, 1 << 30, *states)
        for end in ends:
            own.take(0, text[:end])
        return list(own.tree.nodes.values())

    def file_of(node: Node) -> bytes:
        assert node.parent is not None and node.tensors is not None
        said = metadata(
            keeper.tree.identity, model="tiny", parent=node.parent.digest, offset=node.offset,
            tokens=node.tokens, drafted=node.drafted,
        )  # fmt: skip
        return sealed(save(dict(node.tensors), said))

    for first, last in ((0, 44), (17, 44), (1, 30)):
        whole = nodes_of(*filter(None, (first, last)))[-1]
        data, folder = file_of(whole), keeper.tree.identity.digest
        header = parsed(data, whole.digest, folder)
        for count in range(1, len(header.tokens) + 1):
            expected = nodes_of(*filter(None, (first, first + count)))[-1]

            digest, cut = beginning(header, data, parent=header.parent, count=count) or ("", b"")

            ours, theirs = load(cut), load(file_of(expected))
            assert parsed(cut, digest, folder).tokens == expected.tokens
            assert expected.digest == digest
            assert {name: tensor.shape for name, tensor in theirs.items()} == {
                name: tensor.shape for name, tensor in ours.items()
            }
            assert all(torch.equal(tensor, ours[name]) for name, tensor in theirs.items())
