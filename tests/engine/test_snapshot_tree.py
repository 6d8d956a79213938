"""The tree of snapshots against plain lists: what is found, what goes, and what branches share."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flarechat.engine.snapshot_tree import SnapshotTree
from flarechat.engine.snapshots import BESIDE, ROWS, Node
from flarechat.vault.identity import Identity, digest_of
from tests.engine.restoring import Disk, ask, llama, text_of

IDENTITY = Identity(recipe="llama", fingerprint="f", dtype="float32", device="cpu")
ROW = 8


def each(held: int, rows: int) -> int:
    """Rows stand on their own."""
    return rows


def whole(held: int, rows: int) -> int:
    """All or nothing."""
    return rows if rows == held else 0


def grown(tree: SnapshotTree, tokens: Sequence[int], name: str = ROWS) -> Node | None:
    """Hang what is missing of `tokens` into the tree: ROW bytes a token."""
    parent, offset = tree.place(tokens)
    start = parent.start + offset
    if start == len(tokens):
        return None
    tensors = {name: torch.zeros(len(tokens) - start, ROW, dtype=torch.uint8)}
    node = Node.of(parent, offset, tokens[start:], tensors, drafted=True)
    return node if tree.add(node) else None


def tokens_of(node: Node) -> list[int]:
    """All tokens up to a node's end, walked up."""
    if node.parent is None:
        return []
    before = tokens_of(node.parent)
    return [*before[: node.parent.start + node.offset], *node.tokens]


def common(left: Sequence[int], right: Sequence[int]) -> int:
    pairs = zip(left, right, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def assert_sound(tree: SnapshotTree) -> None:
    """Within its budget, and nothing lacks what it hangs on."""
    loaded = [node for node in tree.nodes.values() if node.tensors is not None]
    assert tree.nbytes == sum(node.nbytes for node in loaded) <= tree.budget
    for node in loaded:
        for above in node.path():
            assert above.tensors is not None or tree.store is not None
            assert tree.nodes[above.digest] is above
        assert node.end == len(tokens_of(node))


texts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=20)


@settings(deadline=None)
@given(kept=texts, asked=texts, budget=st.sampled_from([0, 40, 200, 10_000]))
def test_the_longest_prefix_is_found_of_all_that_is_kept(
    kept: list[list[int]], asked: list[list[int]], budget: int
) -> None:
    tree = SnapshotTree(IDENTITY, budget, each)
    for tokens in kept:
        grown(tree, tokens)
        assert_sound(tree)
    for tokens in asked:
        expected = max((common(tokens_of(n), tokens) for n in tree.nodes.values()), default=0)
        node, rows = tree.find(tokens)
        assert (expected, tokens[:rows]) == (rows, tokens_of(node)[:rows])
    if budget == 10_000:
        assert all(tree.find(tokens)[1] == len(tokens) for tokens in kept)


@settings(deadline=None)
@given(kept=texts, asked=texts)
def test_what_stands_only_at_its_end_is_found_there(
    kept: list[list[int]], asked: list[list[int]]
) -> None:
    tree = SnapshotTree(IDENTITY, 10_000, whole)
    for tokens in kept:
        grown(tree, tokens, BESIDE)
    ends = [tokens_of(node) for node in tree.nodes.values()]
    for tokens in asked:
        expected = max((len(own) for own in ends if own == tokens[: len(own)]), default=0)
        assert expected == tree.find(tokens)[1]


def test_the_leaf_used_longest_ago_goes_first_and_no_parent_before_its_child() -> None:
    tree = SnapshotTree(IDENTITY, 8 * ROW, each)
    trunk, left = grown(tree, [1, 2, 3]), grown(tree, [1, 2, 3, 4, 5])
    right = grown(tree, [1, 2, 6, 7])
    assert trunk and left and right
    tree.touch(left)
    other = grown(tree, [9, 9])

    assert other is not None
    assert {trunk.digest, left.digest, other.digest} == set(tree.nodes)
    assert grown(tree, [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]) is None
    assert tree.find([1, 2, 3, 4, 5])[1] == 5
    tree.resize(5 * ROW)
    assert {trunk.digest, other.digest} == set(tree.nodes)
    tree.resize(3 * ROW)
    assert {other.digest} == set(tree.nodes)
    tree.resize(0)
    assert (0, {}) == (tree.nbytes, tree.nodes)


def test_what_was_written_stays_in_the_tree_and_what_is_lost_leaves_it() -> None:
    disk = Disk()
    tree = SnapshotTree(IDENTITY, 6 * ROW, each, disk)
    trunk, leaf = grown(tree, [1, 2, 3]), grown(tree, [1, 2, 3, 4, 5])
    assert trunk and leaf
    tree.resize(ROW)
    assert trunk.tensors is None and leaf.tensors is None
    assert tree.find([1, 2, 3, 4])[1] == 4
    tree.resize(6 * ROW)

    assert tree.load(leaf) and trunk.tensors is not None
    assert 2 == disk.loaded
    tree.resize(0)
    del disk.nodes[trunk.digest]
    assert not tree.load(leaf)
    assert {} == tree.nodes


def test_a_private_text_and_what_hangs_on_it_is_not_written() -> None:
    disk = Disk()
    tree = SnapshotTree(IDENTITY, 1000, each, disk)
    tensors = {ROWS: torch.zeros(2, ROW)}
    secret = Node.of(tree.root, 0, [1, 2], tensors, drafted=True, private=True)
    tree.add(secret)
    tree.add(Node.of(secret, 2, [3, 4], tensors, drafted=True))

    assert 2 == len(tree.nodes)
    assert {} == disk.nodes


@pytest.mark.parametrize("change", ["recipe", "fingerprint", "dtype", "layout"])
def test_a_digest_tells_whose_state_it_is(change: str) -> None:
    from dataclasses import replace

    other = replace(IDENTITY, **{change: 7 if change == "layout" else "x"})
    assert IDENTITY.digest != other.digest
    assert digest_of(IDENTITY.digest, 0, [1, 2]) != digest_of(other.digest, 0, [1, 2])


def test_a_digest_tells_place_and_tokens() -> None:
    made = {
        digest_of(parent, offset, tokens)
        for parent in (IDENTITY.digest, "ab" * 32)
        for offset in (0, 1, 2)
        for tokens in ([1], [1, 2], [2, 1], [12], [0, 1])
    }
    assert 30 == len(made)


def test_ten_branches_of_a_long_trunk_take_little_more_than_one() -> None:
    made, trunk = llama(), text_of(4096)
    tree, sizes = made.engine.bookings.keeper.tree, []
    for branch in range(10):
        said = ask(made, [*trunk, *text_of(11, branch + 1)], max_tokens=8)
        assert (4096 if branch else 0) <= said.started.restored_tokens
        sizes.append(tree.nbytes)

    assert sizes[9] <= 1.3 * sizes[0]
    assert sizes[0] >= 4096 * (2 * 2 * 2 * 8 + 2 * 2 * 8 + 32) * 4


def test_a_long_chain_goes_as_one_whatever_hangs_on_it() -> None:
    tree = SnapshotTree(IDENTITY, 1 << 20, each)
    stays = grown(tree, [9] * 4)
    chain = [tree.root]
    for _ in range(3000):
        above = chain[-1]
        rows = {ROWS: torch.zeros(1, ROW, dtype=torch.uint8)}
        chain.append(Node.of(above, len(above.tokens), [1], rows, drafted=True))
    side = Node.of(chain[2000], 1, [7], {}, drafted=True)
    tree.join([*chain[1:], side])
    tree.nbytes += 3000 * ROW
    tree.drop(chain[2])

    assert {stays, chain[1]} == set(tree.nodes.values())
    assert (5 * ROW, {}) == (tree.nbytes, chain[1].children)
    assert all(node.tensors is None and not node.children for node in [*chain[2:], side])
    assert (chain[1], 1) == tree.find([1, 1, 1])
