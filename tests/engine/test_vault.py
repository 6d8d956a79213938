"""The vault of an engine: what lies on disk is what was computed, what is wrong there costs time
and nothing else, and what is private never gets there. The reference is an engine without one.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save

from flarechat import paths
from flarechat.engine import keeper as keeper_module
from flarechat.engine.host import EngineHost
from flarechat.engine.vault import Vault
from flarechat.errors import StorageError
from flarechat.protocol import Boot, Finished, Ready, Started
from flarechat.sessions import store
from flarechat.vault import nodefile
from flarechat.vault.folder import VaultFolder
from tests.engine.conftest import Desk
from tests.engine.restoring import Said, ask, asking, emptied, llama, lose, text_of, with_vault
from tests.engine.test_host import request, until
from tests.sessions.saving import saved

PROMPT = text_of(70)
LONG = 10.0


@cache
def _engine(number: int) -> Desk:
    return llama(prefix_cache=64, context=1024)


def engine(root: Path, number: int = 0, *, budget: int = 64 << 20) -> Desk:
    """An engine that was just started, with the vault below a folder."""
    desk = emptied(_engine(number))
    with_vault(desk, root, budget=budget)
    return desk


def vault_of(desk: Desk) -> Vault:
    store = desk.engine.store
    assert isinstance(store, Vault)
    return store


@cache
def plain(prompt: tuple[int, ...], count: int = 8) -> list[int]:
    """What an engine says that keeps nothing."""
    desk = emptied(_engine(9))
    return ask(desk, prompt, max_tokens=count).tokens


def say(desk: Desk, prompt: Sequence[int], **how: object) -> Said:
    """An answer of 8 tokens, which must be the plain one."""
    said = ask(desk, prompt, max_tokens=8, **how)
    assert plain(tuple(prompt)) == said.tokens
    return said


def told_by(*said: Said) -> list[str]:
    """What the user was told, at the beginnings and the ends of these."""
    return [n for one in said for n in (*one.started.notices, *one.finished.notices)]


def files(root: Path) -> list[Path]:
    return sorted(root.rglob(f"*{nodefile.SUFFIX}"))


def filled(root: Path) -> tuple[list[int], Said]:
    """A folder in which a prompt and its answer lie, and a prompt that goes on from them."""
    desk = engine(root, 1)
    said = say(desk, PROMPT)
    assert desk.engine.close(LONG)
    assert said.finished.snapshot in {path.stem for path in files(root)}
    return [*PROMPT, *said.tokens, *text_of(9, 5)], said


def depth(path: Path) -> int:
    """How far from its identity a file's node is."""
    header = nodefile.read_header(path)
    above = path.with_name(header.parent + nodefile.SUFFIX)
    return 0 if header.first else 1 + depth(above)


# What is wrong with files.


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-7] ^= 16
    path.write_bytes(data)


def emptied_file(path: Path) -> None:
    path.write_bytes(b"")


def foreign(path: Path) -> None:
    path.write_bytes(b"not a snapshot at all" * 40)


def reshaped(path: Path) -> None:
    """A sound file, whose rows are those of another model."""
    header, data = nodefile.read_whole(path)
    tensors = {name: tensor[..., :-1].clone() for name, tensor in load(data).items()}
    fields = nodefile.metadata(
        header.identity, model=header.model, parent=header.parent, offset=header.offset,
        tokens=header.tokens, drafted=header.drafted,
    )  # fmt: skip
    path.write_bytes(nodefile.sealed(save(tensors, fields)))


@pytest.mark.parametrize("spoil", [torn, flipped, emptied_file, foreign, reshaped])
@pytest.mark.parametrize("which", [0, -1])
def test_a_file_that_is_no_good_costs_time_and_one_notice(
    spoil: Callable[[Path], None], which: int, tmp_path: Path
) -> None:
    following, _ = filled(tmp_path)
    path = sorted(files(tmp_path), key=depth)[which]
    was = path.read_bytes()
    spoil(path)
    desk = engine(tmp_path)
    said = say(desk, following)

    (notice,) = said.started.notices
    assert notice.startswith("A kept prefix could not be used (it")
    assert notice.endswith("); it is computed anew.")
    assert said.started.restored_tokens < len(following) - 10
    assert desk.engine.close(LONG)
    # It went, and what was computed anew is there in its place.
    assert not path.exists() or path.read_bytes() != was or spoil is not torn
    again = say(engine(tmp_path), following)
    assert (len(following) - 1, ()) == (again.started.restored_tokens, again.started.notices)


def test_a_damaged_file_is_deleted_before_anything_takes_its_place(tmp_path: Path) -> None:
    _, said = filled(tmp_path)
    path = files(tmp_path)[0].with_name(said.finished.snapshot + nodefile.SUFFIX)
    flipped(path)
    desk = engine(tmp_path)
    vault = vault_of(desk)
    keeper = desk.engine.bookings.keeper
    tree = keeper.tree
    tree.join(vault.news(tree))
    node = tree.nodes[said.finished.snapshot]

    assert vault.holds(node) and path.exists()
    assert vault.load(node) is None
    assert not path.exists() and not vault.holds(node)
    assert ("A kept prefix could not be used (its checksum is wrong); it is computed anew.",) == (
        vault.notices()
    )
    assert () == vault.notices()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_file_that_is_gone_costs_time(when: str, tmp_path: Path) -> None:
    following, said = filled(tmp_path)
    path = files(tmp_path)[0].with_name(said.finished.snapshot + nodefile.SUFFIX)
    desk = engine(tmp_path)
    if when == "after":
        vault = vault_of(desk)
        vault.expect = lambda _: path.unlink(missing_ok=True)  # type: ignore[method-assign]
    else:
        path.unlink()
    told = say(desk, following).started.notices

    # What was never heard of is not missed.
    missed = "A kept prefix could not be used (its file is missing); it is computed anew."
    assert ((missed,) if when == "after" else ()) == told


def test_what_hangs_on_nothing_is_left_out(tmp_path: Path) -> None:
    following, _ = filled(tmp_path)
    min(files(tmp_path), key=depth).unlink()
    said = say(engine(tmp_path), following)

    assert ("", ()) == (said.started.restored_from, said.started.notices)


def test_nodes_longer_than_the_context_are_left_alone(tmp_path: Path) -> None:
    filled(tmp_path)
    desk = engine(tmp_path)
    vault_of(desk).context = 60
    said = say(desk, PROMPT)

    assert ("", ()) == (said.started.restored_from, said.started.notices)


# What is private.


def spelled(tokens: Sequence[int]) -> bytes:
    return ",".join(map(str, tokens)).encode()


def test_a_private_text_never_gets_to_the_disk(tmp_path: Path) -> None:
    desk, secret = engine(tmp_path), [*PROMPT, *text_of(30, 7)]
    said = say(desk, secret, private=True)
    other = [*PROMPT, *text_of(20, 8)]
    before, public = say(desk, other), [*other, *text_of(3, 9)]
    after = say(desk, public)
    assert desk.engine.close(LONG)

    assert "" == said.finished.snapshot
    assert len(PROMPT) <= before.started.restored_tokens
    names = {path.stem for path in files(tmp_path)}
    assert {before.finished.snapshot, after.finished.snapshot} <= names
    held = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert any(spelled(other[60:88]) in data for data in held)
    for hidden in (secret[69:72], secret[-3:], said.tokens[:3]):
        assert not any(spelled(hidden) in data for data in held)
    # The rows that the private text left behind the shared ones are not there either.
    tree = desk.engine.bookings.keeper.tree
    ours = [n for n in tree.nodes.values() if n.private]
    assert ours
    for node in ours:
        assert node.digest not in names
        for tensor in (node.tensors or {}).values():
            row = tensor.select(-2, -1).reshape(-1)[:4] if tensor.ndim > 1 else tensor[:4]
            assert not any(row.numpy().tobytes() in data for data in held)


def test_what_a_public_text_has_of_a_private_one_is_private_no_more(tmp_path: Path) -> None:
    desk = engine(tmp_path)
    hidden = say(desk, PROMPT, private=True)
    assert not files(tmp_path)
    following = [*PROMPT, *hidden.tokens, *text_of(5, 3)]
    said = say(desk, following)
    assert "slot" == said.started.restored_from
    assert desk.engine.close(LONG)

    tree = desk.engine.bookings.keeper.tree
    node = tree.nodes[said.finished.snapshot]
    assert not any(each.private for each in node.path())
    again = say(engine(tmp_path, 2), following)
    assert (len(following) - 1, "disk") == (
        again.started.restored_tokens, again.started.restored_from,
    )  # fmt: skip


# What happens meanwhile.


def test_two_engines_learn_from_each_other_while_they_run(tmp_path: Path) -> None:
    one, two = engine(tmp_path), engine(tmp_path, 1)
    say(two, text_of(9, 1))
    said = say(one, PROMPT)
    assert one.engine.close(LONG)
    following = [*PROMPT, *said.tokens, *text_of(4, 2)]
    heard = say(two, following)

    assert "disk" == heard.started.restored_from
    assert len(PROMPT) + 7 == heard.started.restored_tokens
    assert two.engine.close(LONG)


class Gate(VaultFolder):
    """A folder whose writes wait until they may."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.open, self.asked = threading.Event(), threading.Event()

    def write(
        self, identity: str, digest: str, data: bytes, behind: Collection[Path] = ()
    ) -> Path | None:
        self.asked.set()
        assert self.open.wait(LONG)
        return super().write(identity, digest, data, behind)


def gated(desk: Desk, root: Path) -> Gate:
    gate = Gate(root)
    vault_of(desk).writer.folder = gate
    return gate


def test_what_left_memory_before_it_was_written_is_not_written(tmp_path: Path) -> None:
    desk = engine(tmp_path)
    gate, tree = gated(desk, tmp_path), desk.engine.bookings.keeper.tree
    said = say(desk, PROMPT)
    assert gate.asked.wait(LONG)
    tree.resize(0)
    assert {} == tree.nodes
    gate.open.set()
    tree.resize(64 << 20)
    assert desk.engine.close(LONG)

    # One was under way.
    assert 1 == len(files(tmp_path))
    assert said.finished.snapshot not in {path.stem for path in files(tmp_path)}
    lose(desk)
    assert () == say(desk, [*PROMPT, *said.tokens]).started.notices


def test_closing_waits_as_long_as_it_was_told_and_no_longer(tmp_path: Path) -> None:
    desk = engine(tmp_path)
    gate = gated(desk, tmp_path)
    say(desk, PROMPT)
    began = time.monotonic()
    assert not desk.engine.close(0.2)
    assert time.monotonic() - began < 2
    gate.open.set()
    vault_of(desk).writer._thread.join(LONG)  # type: ignore[union-attr]
    assert 1 == len(files(tmp_path))


def test_the_budget_is_kept_and_what_went_for_it_is_no_news(tmp_path: Path) -> None:
    desk = engine(tmp_path, budget=150_000)
    tree, prompts = desk.engine.bookings.keeper.tree, [text_of(80, seed) for seed in range(5)]
    for prompt in prompts:
        say(desk, prompt)
        _settled(desk)
        tree.resize(0)  # from now on it lies on disk alone
        tree.resize(64 << 20)
    lose(desk)
    told = [say(desk, prompt).started for prompt in (prompts[4], prompts[0])]
    assert desk.engine.close(LONG)

    assert ["disk", ""] == [started.restored_from for started in told]
    assert [(), ()] == [started.notices for started in told]
    assert 0 < sum(path.stat().st_size for path in files(tmp_path)) <= 150_000


def test_a_full_disk_is_told_once_and_written_to_again_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, write = engine(tmp_path), VaultFolder.write

    def full(*_: object) -> Path:
        raise StorageError("The disk is nearly full: x needs 1 MB.", "Free space.")

    monkeypatch.setattr(VaultFolder, "write", full)
    first = say(desk, PROMPT)
    _settled(desk)
    second = say(desk, [*PROMPT, *first.tokens, 5])
    _settled(desk)
    third = say(desk, [*PROMPT, *first.tokens, 6])
    told = told_by(first, second, third)
    monkeypatch.setattr(VaultFolder, "write", write)
    _settled(desk)
    last = say(desk, [*PROMPT, *first.tokens, 6, 7])
    assert desk.engine.close(LONG)

    sentence = (
        "Prefixes cannot be kept on disk for now: The disk is nearly full: x needs 1 MB. "
        "Free space."
    )
    assert [sentence] == told
    assert [] == told_by(last)
    assert last.finished.snapshot in {path.stem for path in files(tmp_path)}
    again = say(engine(tmp_path, 2), [*PROMPT, *first.tokens, 6, 7])
    assert len(PROMPT) + 9 == again.started.restored_tokens


def _settled(desk: Desk) -> None:
    """Wait until nothing is queued."""
    writer = vault_of(desk).writer
    deadline = time.monotonic() + LONG
    while writer._queued:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_folder_that_cannot_be_made_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    desk = engine(tmp_path / "file")
    first = say(desk, PROMPT)
    _settled(desk)
    second, third = say(desk, PROMPT[:40]), say(desk, PROMPT[:30])

    (notice,) = told_by(first)
    assert notice.startswith("Prefixes cannot be kept on disk for now: ")
    assert notice.endswith("file is no folder. Move it away.")
    assert [] == told_by(second, third)
    assert desk.engine.close(LONG)


def test_a_folder_that_goes_while_the_engine_runs_comes_back(tmp_path: Path) -> None:
    root = tmp_path / "snapshots"
    desk = engine(root)
    said = say(desk, PROMPT)
    _settled(desk)
    shutil.rmtree(root)
    following = [*PROMPT, *said.tokens, 9]
    assert () == say(desk, following).started.notices
    assert desk.engine.close(LONG)

    assert len(PROMPT) + 8 == say(engine(root, 2), following).started.restored_tokens


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("part", ["list", "keep", "trim", "thread"])
def test_whatever_fails_behind_it_the_engine_is_right(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    following, _ = filled(tmp_path)
    desk = engine(tmp_path)
    owner, name = {
        "list": (Vault, "_list"), "trim": (VaultFolder, "trim"), "keep": (VaultFolder, "touch"),
        "thread": (type(vault_of(desk).writer), "_keep"),
    }[part]  # fmt: skip

    def failing(*_: object) -> None:
        raise SystemExit if part == "thread" else RuntimeError("out of order")

    monkeypatch.setattr(owner, name, failing)
    told = told_by(*(say(desk, prompt) for prompt in (following, PROMPT[:30])))
    _ended(desk) if part == "thread" else _settled(desk)
    last = say(desk, PROMPT[:20])
    assert (part != "thread") == bool(last.finished.snapshot)
    told += told_by(last)
    sentence = "Prefixes cannot be kept on disk for now: out of order."
    assert ([sentence] if part == "keep" else []) == told
    began = time.monotonic()
    desk.engine.close(LONG)
    assert time.monotonic() - began < LONG / 2


def _ended(desk: Desk) -> None:
    thread = vault_of(desk).writer._thread
    assert thread is not None
    thread.join(LONG)


def test_room_is_made_before_anything_is_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = emptied(_engine(0))
    tree, copy, most = desk.engine.bookings.keeper.tree, keeper_module._copy, list[int]()
    tree.resize(60_000)
    taken = list[int]()

    def watched(view: torch.Tensor) -> torch.Tensor:
        taken.append(view.nbytes)
        most.append(tree.nbytes + sum(taken))
        return copy(view)

    def added(*how: object) -> bool:
        taken.clear()
        return add(*how)

    add = tree.add
    monkeypatch.setattr(keeper_module, "_copy", watched)
    monkeypatch.setattr(tree, "add", added)
    for seed in range(4):
        ask(desk, text_of(60, seed), max_tokens=8)
    tree.resize(64 << 20)

    assert 30_000 < max(most) <= 60_000


# The whole of it.


def test_a_vault_is_made_where_both_bounds_allow_it(tmp_path: Path) -> None:
    def store(**boot: object) -> object:
        return llama(context=256, **boot).engine.store

    assert store(prefix_cache=8) is None
    assert store(prefix_cache=0, prefix_cache_disk=8) is None
    made = store(prefix_cache=8, prefix_cache_disk=8)
    assert isinstance(made, Vault)
    assert (8 << 20, "snapshots") == (made.writer.budget, made.folder.root.name)


def test_a_process_writes_before_it_leaves_and_the_next_one_goes_on(
    tiny_gguf: Path, tmp_path: Path
) -> None:
    boot = Boot(
        model=str(tiny_gguf), cache=str(tmp_path), threads=1, prefix_cache=8, prefix_cache_disk=8
    )
    told = list[tuple[Started, Finished]]()
    for _ in range(2):
        door, seen = EngineHost(boot), list[object]()
        door.start()
        try:
            assert isinstance(until(door, Ready), Ready)
            door.submit(request("hello, who are you?", max_tokens=9))
            finished = until(door, Finished, seen)  # type: ignore[arg-type]
        finally:
            door.close()
        (started,) = [event for event in seen if isinstance(event, Started)]
        assert isinstance(finished, Finished)
        assert finished.snapshot in {path.stem for path in files(tmp_path / "snapshots")}
        told.append((started, finished))
        assert 0 == door._process.returncode  # type: ignore[union-attr]

    assert ["", "disk"] == [started.restored_from for started, _ in told]
    assert 1 == len({finished.text for _, finished in told})


# What somebody deletes meanwhile.


def test_what_was_deleted_is_not_written_again_but_by_a_text_that_has_all_of_it(
    tmp_path: Path,
) -> None:
    desk, secret = engine(tmp_path), [*PROMPT, *text_of(30, 7)]
    said = say(desk, secret)
    _settled(desk)
    for path in files(tmp_path):
        path.unlink()
    say(desk, [*PROMPT[:40], *text_of(20, 8)])
    _settled(desk)

    held = [path.read_bytes() for path in files(tmp_path)]
    assert held
    for hidden in (secret[41:50], secret[69:72], said.tokens[:3]):
        assert not any(spelled(hidden) in data for data in held)

    again = say(desk, secret)
    assert desk.engine.close(LONG)
    assert len(secret) - 1 == again.started.restored_tokens
    assert again.finished.snapshot in {path.stem for path in files(tmp_path)}
    assert [] == VaultFolder(tmp_path).verify()


def test_what_goes_while_an_answer_is_under_way_leaves_no_node_behind_it(tmp_path: Path) -> None:
    desk = engine(tmp_path)
    first = say(desk, PROMPT)
    _settled(desk)
    gate = gated(desk, tmp_path)
    say(desk, [*PROMPT, *first.tokens, *text_of(20, 3)])
    assert gate.asked.wait(LONG)
    VaultFolder(tmp_path).clear()
    gate.open.set()
    assert desk.engine.close(LONG)

    assert [] == files(tmp_path)


def test_an_answer_that_is_cut_off_in_its_prompt_names_what_was_kept_of_it(tmp_path: Path) -> None:
    desk, prompt = engine(tmp_path), text_of(600, 4)
    request = asking(desk, prompt)
    desk.engine.submit(request)
    while not desk.engine.prefilling or desk.engine.prefilling[0].prefilled < 256:
        desk.engine.step()
    desk.engine.cancel(request.id)
    assert desk.engine.close(LONG)

    assert desk.finished(request.id).snapshot in {path.stem for path in files(tmp_path)}


def test_a_list_that_takes_too_long_is_waited_for_a_second_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    following, _ = filled(tmp_path)
    desk, go_on = engine(tmp_path), threading.Event()
    look = Vault._look
    monkeypatch.setattr(Vault, "_look", lambda *which: (go_on.wait(LONG), look(*which))[1])
    vault = vault_of(desk)
    began = time.monotonic()
    assert [] == vault.news(desk.engine.bookings.keeper.tree)
    assert 0.9 < time.monotonic() - began < 2
    go_on.set()
    (notice,) = vault.notices()
    assert notice.startswith("Kept prefixes are still being listed")
    assert vault._reader is not None
    vault._reader.join(LONG)
    assert "disk" == say(desk, following).started.restored_from


def test_nothing_more_is_read_ahead_once_a_file_could_not_be_used(tmp_path: Path) -> None:
    following, _ = filled(tmp_path)
    flipped(min(files(tmp_path), key=depth))
    desk = engine(tmp_path)
    expected, expect = list[int](), vault_of(desk).expect
    vault_of(desk).expect = lambda nodes: (  # type: ignore[method-assign]
        expected.append(len(nodes)), expect(nodes),
    )[1]  # fmt: skip
    say(desk, following)

    assert 1 < expected[0] and 0 in expected


def test_what_a_killed_write_left_is_swept_when_an_engine_starts(tmp_path: Path) -> None:
    filled(tmp_path)
    part = files(tmp_path)[0].with_name(".x.12345678.part")
    part.write_bytes(b"half")
    desk = engine(tmp_path)
    vault_of(desk).news(desk.engine.bookings.keeper.tree)

    assert not part.exists()


def test_a_session_whose_answer_never_ended_is_deleted_with_what_was_kept_of_it() -> None:
    """As kill -9 in the middle of an answer leaves it: no line names a snapshot."""
    root = paths.snapshots_dir()
    desk = engine(root)
    desk.engine.submit(asking(desk, text_of(600, 4)))
    while not desk.engine.playing:
        desk.engine.step()
    assert desk.engine.close(LONG)
    path = saved("trip", "Hi")
    assert 1 < len(files(root))

    assert 0 == store.remove(path).left
    assert [] == files(root)
    emptied(desk).run()


def test_what_went_wrong_during_an_answer_is_told_at_its_end(tmp_path: Path) -> None:
    desk = engine(tmp_path)
    request = asking(desk, PROMPT, max_tokens=8)
    desk.engine.submit(request)
    while not desk.engine.playing:
        desk.engine.step()
    vault_of(desk)._tell("written", "The disk is full.")
    desk.run()

    assert ("The disk is full.",) == desk.finished(request.id).notices
