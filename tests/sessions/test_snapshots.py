"""A session that is deleted takes along the snapshots that are its own, and no others."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarechat import paths
from flarechat.errors import StorageError
from flarechat.sessions import store
from flarechat.sessions.session import Session, SessionWriter
from flarechat.vault.folder import VaultFolder
from tests.sessions.naming import answer_with, naming, put
from tests.sessions.saving import saved
from tests.vault.nodes import ALIEN, IDENTITY, Made, made


def there(*nodes: Made) -> list[bool]:
    folder = VaultFolder(paths.snapshots_dir())
    return [folder.place(node.identity.digest, node.digest).exists() for node in nodes]


def test_what_only_this_session_names_goes_and_what_another_needs_stays() -> None:
    system = made([1, 2])
    trip, trips_end = (one := made([3], system)), made([4], one)
    work = made([5], system)
    put(system, trip, trips_end, work)
    path = naming("trip", trips_end)
    naming("work", work)

    assert 2 == store.remove(path).gone

    assert [True, False, False, True] == there(system, trip, trips_end, work)
    assert [] == VaultFolder(paths.snapshots_dir()).verify()
    assert 2 == store.remove(store.find("work")).gone
    assert [] == VaultFolder(paths.snapshots_dir()).entries()


def test_every_answer_of_every_branch_counts_and_so_does_a_copy() -> None:
    left, right, deep = made([1]), made([2]), made([3, 4])
    put(left, right, deep)
    path = naming("trip", left, right, deep)
    path.with_name("copy.jsonl").write_bytes(path.read_bytes())

    assert 0 == store.remove(path).gone
    assert [True, True, True] == there(left, right, deep)
    assert 3 == store.remove(store.find("copy")).gone


def test_what_stays_for_another_and_holds_words_of_the_deleted_is_counted() -> None:
    first = made([1, 2, 3, 4])
    end, branch, twin = made([5], first), made([6], first, offset=2), made([7], first)
    put(first, end, branch, twin)
    path = naming("trip", end)
    naming("work", branch)
    twins = naming("twin", twin)
    assert (1, 0) == store.remove(path)

    assert (1, 1) == store.remove(twins)
    assert [True, False, True, False] == there(first, end, branch, twin)
    assert (2, 0) == store.remove(store.find("work"))


def test_what_hangs_on_a_session_that_is_gone_goes_too() -> None:
    """A turn that nobody saved went on from it; nothing could be restored behind it."""
    end = made([1, 2])
    onward, other = made([3], end, offset=1), made([9])
    put(end, onward, made([4], onward), other)
    naming("other", other)

    assert 3 == store.remove(naming("trip", end)).gone
    assert [True] == there(other)


def test_what_no_line_names_goes_with_any_session_and_what_cannot_be_read_stays_if_needed() -> None:
    """A process that was killed names nothing of what it wrote."""
    words, lost, end = made([1, 2]), made([5], made([3])), made([8, 9], made([7]))
    put(words, made([4], words, 1), lost, end)
    naming("other", end)
    left_over = VaultFolder(paths.snapshots_dir()).place(IDENTITY.digest, end.digest)
    left_over.with_name(".x.12345678.part").write_bytes(b"words")

    assert (3, 0) == store.remove(saved("trip", "Hi"))
    assert [False, False, True] == there(words, lost, end)
    assert [left_over.name] == os.listdir(left_over.parent)


def test_what_came_with_a_session_from_elsewhere_is_needed_until_it_goes() -> None:
    first = made([1, 2])
    left, right = made([3], first), made([4], first)
    put(first, left, right, made([5], first))
    path = saved("trip", "Hi")
    writer, _ = SessionWriter.open(path)
    writer.kept([left.digest, right.digest])
    writer.close()

    assert [] == Session(path).notices
    assert 1 == store.remove(saved("other", "Hi")).gone
    assert [True, True, True] == there(first, left, right)
    assert 3 == store.remove(path).gone


def test_the_same_tokens_on_another_device_go_too() -> None:
    ours, theirs = made([1]), made([1], identity=ALIEN)
    twins = made([2], ours), made([2], theirs, identity=ALIEN)
    put(ours, theirs, *twins)
    path = naming("trip", twins[0])
    answer_with(path, twins[1])

    assert 4 == store.remove(path).gone


def test_a_damaged_snapshot_goes_too_and_its_session_may_be_damaged() -> None:
    end = made([1, 2])
    [file] = put(end)
    file.write_bytes(b"junk")
    path = naming("trip", end)
    path.write_bytes(b"junk\n" + path.read_bytes())

    assert 1 == store.remove(path).gone
    assert not file.exists()


def test_a_line_that_is_no_event_still_names_what_another_session_needs() -> None:
    end = made([1, 2])
    put(end)
    path, other = naming("trip", end), saved("other", "Hi")
    with other.open("a") as file:
        file.write(f'{{"type":"of-tomorrow","snapshot": "{end.digest}"}}\n')

    assert 0 == store.remove(path).gone
    assert [True] == there(end)


def test_a_text_that_looks_like_a_name_names_nothing() -> None:
    end = made([1, 2])
    put(end)
    saved("other", f'"snapshot":"{end.digest}"')

    assert 1 == store.remove(naming("trip", end)).gone


def test_an_empty_vault_needs_no_session_read(monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = saved("trip", "Hi"), saved("other", "Hi")
    read: list[Path] = []
    whole = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda p: read.append(p) or whole(p))

    assert 0 == store.remove(path).gone
    assert other not in read


def test_a_snapshot_that_cannot_be_deleted_is_told_and_the_session_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end = made([1, 2])
    put(end)
    path = naming("trip", end)
    whole = Path.unlink

    def refuse(self: Path, missing_ok: bool = False) -> None:
        if self.suffix == ".safetensors":
            raise PermissionError(13, "Permission denied")
        whole(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)

    with pytest.raises(StorageError, match="cannot be deleted: Permission denied"):
        store.remove(path)
    assert [] == os.listdir(paths.sessions_dir())


@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_what_goes_is_what_a_plain_reckoning_says(seed: int, count: int, sessions: int) -> None:
    """Parents by number, names by session: no file is looked at."""
    chance, nodes, parents = random.Random(seed), list[Made](), list[int | None]()
    for number in range(count):
        after = chance.randrange(number) if number and chance.random() < 0.8 else None
        offset = None if after is None else chance.randint(0, len(nodes[after].tokens))
        tokens = [number] * chance.randint(1, 3)
        nodes.append(made(tokens, None if after is None else nodes[after], offset))
        parents.append(after)
    VaultFolder(paths.snapshots_dir()).clear()
    for old in store.files():
        old.unlink()
    put(*nodes)
    named = {
        f"s{n}": chance.sample(range(count), chance.randint(0, count)) for n in range(sessions)
    }
    for name, ends in named.items():
        naming(name, *(nodes[end] for end in ends))

    def up(number: int | None) -> set[int]:
        return set() if number is None else {number, *up(parents[number])}

    others = set().union(*(up(end) for name, ends in named.items() if name != "s0" for end in ends))
    going = set(range(count)) - others

    assert len(going) == store.remove(store.find("s0")).gone
    assert [number not in going for number in range(count)] == there(*nodes)
