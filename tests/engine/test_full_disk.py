"""A disk that is full for a while in the middle of a chat: it goes on, says so, loses nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

from flarechat import paths
from flarechat.sessions import store, verify
from flarechat.sessions.session import Session
from flarechat.vault.folder import VaultFolder
from tests.engine.conftest import Desk
from tests.engine.restoring import emptied, with_vault
from tests.engine.test_resumed import Door, hear, opened
from tests.vault.test_folder import longest_file

LONG = 10.0


def test_a_chat_goes_on_while_the_disk_is_full_and_all_of_it_is_saved_in_the_end(
    desk: Callable[..., Desk],
) -> None:
    made, root = desk(prefix_cache=64), paths.snapshots_dir()
    with_vault(emptied(made), root)
    door = Door(made)
    chat = opened(door, "trip")
    chat.send("abc")
    hear(chat, door)
    before = store.find("trip").stat().st_size
    with longest_file(before):
        chat.send("def")
        hear(chat, door)
        said = [turn.text for turn in chat.turns]
        deadline = time.monotonic() + LONG
        while made.engine.store.writer._queued:  # type: ignore[union-attr]
            assert time.monotonic() < deadline
            time.sleep(0.002)
        full = store.find("trip").read_bytes()
    chat.send("ghi")
    hear(chat, door)
    expected = [(turn.role, turn.text) for turn in chat.turns]
    chat.close()
    assert made.engine.close(LONG)

    assert 4 == len(said) and before >= len(full)
    told = " ".join(chat.notices)
    assert 1 == told.count("Prefixes cannot be kept on disk for now: The disk is full")
    assert 1 == told.count("The chat goes on and is saved when it can be.")
    assert 1 == told.count("trip is saved again; nothing is missing.")
    session = Session(store.find("trip"))
    assert [] == session.notices
    assert expected == [(turn.role, turn.text) for turn in session.tree.path()]
    report = verify.verify()
    assert report.sound, (report.vault, report.sessions)
    assert chat.turns[-1].snapshot in {entry.digest for entry in VaultFolder(root).entries()}
