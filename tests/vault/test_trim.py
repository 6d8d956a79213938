"""Which nodes leave a vault that is too large: held to a plain model, and in the others' way."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from flarechat.vault import folder as module
from flarechat.vault.folder import VaultFolder
from flarechat.vault.nodefile import Header, read_header
from tests.vault.nodes import ALIEN, IDENTITY, Made, made

TREES = 60


@dataclass
class Plain:
    """A vault as a list: what is there, and when each was used, by a count."""

    nodes: dict[Path, Made] = field(default_factory=dict)
    above: dict[Path, Path | None] = field(default_factory=dict)
    used: dict[Path, int] = field(default_factory=dict)
    useless: set[Path] = field(default_factory=set)
    clock: int = 0

    def path(self, node: Path | None) -> list[Path]:
        return [] if node is None else [node, *self.path(self.above[node])]

    def size(self) -> int:
        return sum(len(node.data) for node in self.nodes.values())

    def trim(self, budget: int) -> None:
        if self.size() <= budget:
            return
        for path in [p for p in self.nodes if self.useless & set(self.path(p))]:
            del self.nodes[path]
        while 10 * self.size() > 9 * budget and self.nodes:
            leaves = [p for p in self.nodes if p not in {self.above[q] for q in self.nodes}]
            del self.nodes[min(leaves, key=lambda path: self.used[path])]


def grown(draw: random.Random, root: Path) -> Plain:
    """Random trees of two identities, some of their files damaged or gone."""
    plain = Plain()
    for _ in range(draw.randint(1, 25)):
        over = draw.choice([None, *plain.nodes])
        after = plain.nodes[over] if over else None
        node = made(
            [draw.randrange(1000) for _ in range(draw.randint(1, 3))], after,
            identity=after.identity if after else draw.choice((IDENTITY, ALIEN)),
            offset=draw.randint(0, len(after.tokens)) if after else 0,
            extra=draw.choice((0, 0, 500, 3000)),
        )  # fmt: skip
        path = node.put(root)
        plain.nodes[path], plain.above[path] = node, over
    return plain


def use(draw: random.Random, plain: Plain, vault: VaultFolder) -> None:
    """Everything once, in random order, then some paths again and again."""
    order = draw.sample([*plain.nodes], len(plain.nodes))
    for clock, path in enumerate(order):
        os.utime(path, ns=(clock, clock))
        plain.used[path] = clock
    plain.clock = len(order)
    for _ in range(draw.randint(0, 20)):
        way = plain.path(draw.choice(order))
        vault.touch(way)
        for path in way:
            plain.clock += 1
            plain.used[path] = plain.clock


def spoil(draw: random.Random, plain: Plain) -> None:
    for path in draw.sample([*plain.nodes], min(len(plain.nodes), draw.choice((0, 0, 1, 3)))):
        plain.useless.add(path)
        if draw.random() < 0.5:
            path.unlink()
            del plain.nodes[path]
        else:
            size, used = path.stat().st_size, path.stat().st_mtime_ns
            path.write_bytes(bytes(size))
            os.utime(path, ns=(used, used))


@pytest.mark.parametrize("seed", range(TREES))
def test_what_is_left_is_what_a_plain_list_would_leave(seed: int, tmp_path: Path) -> None:
    draw, vault = random.Random(seed), VaultFolder(tmp_path)
    plain = grown(draw, tmp_path)
    use(draw, plain, vault)
    spoil(draw, plain)
    before = plain.size()
    for share in (1.0, draw.uniform(0.5, 1), draw.uniform(0, 0.7), 0.0):
        budget = int(before * share)
        size = plain.size()
        plain.trim(budget)

        assert size - plain.size() == vault.trim(budget)
        left = {entry.path: entry for entry in vault.entries()}
        assert set(plain.nodes) == set(left)
        assert sum(entry.size for entry in left.values()) <= budget
        if share < 1 and not plain.useless:
            assert all(plain.above[path] in {None, *left} for path in left)
    assert not left


def chain(root: Path) -> list[Path]:
    """Three nodes, one behind the other, and a fourth beside the last; the third is the oldest."""
    one = made([1, 2])
    two = made([3], one)
    paths = [n.put(root) for n in (one, two, made([4], two), made([5], two))]
    for age, path in enumerate((paths[2], paths[3], paths[1], paths[0])):
        os.utime(path, ns=(age, age))
    return paths


def meanwhile(monkeypatch: pytest.MonkeyPatch, what: object) -> None:
    """Another process does this once the folder was listed."""
    done = []

    def read(path: Path) -> Header:
        if not done:
            done.append(what())  # type: ignore[operator]
        return read_header(path)

    monkeypatch.setattr(module, "read_header", read)


def test_what_is_used_meanwhile_stays_with_all_that_it_hangs_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three, four = chain(tmp_path)
    meanwhile(monkeypatch, lambda: VaultFolder(tmp_path).touch([three]))
    VaultFolder(tmp_path).trim(0)

    assert [three.exists(), four.exists(), two.exists(), one.exists()] == [True, False, True, True]


def test_what_vanishes_meanwhile_is_no_error_and_counts_as_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, three, four = chain(tmp_path)
    budget = sum(entry.size for entry in VaultFolder(tmp_path).entries()) - 1
    meanwhile(monkeypatch, three.unlink)

    assert 0 == VaultFolder(tmp_path).trim(budget)
    assert four.exists()


def test_a_vault_within_its_budget_is_not_even_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = chain(tmp_path)
    size = sum(path.stat().st_size for path in paths)
    meanwhile(monkeypatch, lambda: pytest.fail("it was read"))

    assert 0 == VaultFolder(tmp_path).trim(size)
