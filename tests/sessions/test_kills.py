"""kill -9 at any moment, in the middle of a write too: what was said to be saved is found again."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator

import pytest

from flarechat.chat import Conversation
from flarechat.config import Settings
from flarechat.sessions import store
from flarechat.sessions.session import Session
from tests.fakes import MODEL, ScriptedEngine, words
from tests.test_chat import play

MOMENTS, SESSIONS = 200, 40


@pytest.fixture
def killer() -> Iterator[subprocess.Popen[str]]:
    """The process that forks chats and kills them."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.sessions.killed"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        yield process
        process.communicate()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork and no SIGKILL")
def test_nothing_that_was_saved_is_lost_at_any_of_200_moments(
    killer: subprocess.Popen[str],
) -> None:
    """Every chat goes on with a file that the one before was killed on."""
    assert killer.stdin and killer.stdout
    chance, torn = random.Random(0), 0
    for moment in range(MOMENTS):
        name = f"s{moment % SESSIONS}"
        later = chance.random() * 2e-3
        killer.stdin.write(f"{name} {moment} {chance.randrange(12)} {later:.6f}\n")
        killer.stdin.flush()
        last = json.loads(killer.stdout.readline())
        if not store.exists(name):
            assert {} == last
            continue
        found = Session(store.find(name))
        torn += len(found.notices) > 0
        for turn, role, text, tokens, sources, status in last.get("turns", ()):
            now = found.tree.turns[turn]
            assert role == now.role
            assert now.text.startswith(text)
            assert tokens == now.tokens[: len(tokens)]
            assert sources == now.sources[: len(tokens)]
            assert len(now.tokens) == len(now.sources)
            if status not in ("streaming", "partial") and now.status != "partial":
                assert status == now.status

    assert torn > MOMENTS / 50
    for number in range(SESSIONS):
        taken_up(f"s{number}")


def taken_up(name: str) -> None:
    """The session goes on, and says of its file only that lines were cut off."""
    engine = ScriptedEngine([words("ok")])
    conversation = Conversation.resume(engine, Settings(), name)
    conversation.bind(MODEL)
    before = [turn.text for turn in conversation.turns]
    play(conversation, engine, "Still there?")
    conversation.close()
    session = Session(store.find(name))

    assert [*before, "Still there?", "ok"] == [turn.text for turn in session.tree.path()]
    assert all("not understood" in n or "cut off" in n for n in session.notices)
