"""A chat to be killed: `python -m tests.sessions.killed` forks one for every line it is given.

A line is a session's name, a seed, after how many reports to kill, and how many seconds later. What
the chat had said to be saved is printed: its last report, one JSON object a line.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from flarechat import chat
from flarechat.chat import Conversation
from flarechat.config import Settings
from flarechat.errors import UsageError
from flarechat.protocol import Request
from tests.fakes import MODEL, Play, ScriptedEngine


class Talking(ScriptedEngine):
    """Answers a number and letters, some drafted; every other answer is cut off."""

    def submit(self, request: Request) -> None:
        number = len(self.requests)
        self.reason = "length" if number % 2 else "stop"
        drafted = Play((f" {number}b", f" {number}c"), width=3, source="history")
        self.answers = [(Play((f"{number}a",)), drafted, Play((" é\n",)), Play((" end",)))]
        super().submit(request)


def state(conversation: Conversation) -> dict[str, Any]:
    """All that is to be on the disk."""
    turns = conversation._tree.turns.values()
    said = [turn for turn in turns if turn.role == "user" or turn.tokens or turn.finished]
    return {"turns": [[t.id, t.role, t.text, t.tokens, t.sources, t.status] for t in said]}


def talk(name: str, chance: random.Random, report: int) -> None:
    """Use every verb, and say after each step what it left to be found."""
    engine = Talking()
    conversation = Conversation.open(engine, Settings(seed=1), name)
    conversation.bind(MODEL)
    verbs: list[Callable[[], object]] = [
        lambda: conversation.send(f"q {chance.random()}"),
        lambda: conversation.send(f"q {chance.random()}"),
        lambda: conversation.edit(chance.choice(conversation.turns), f"e {chance.random()}"),
        conversation.regenerate,
        conversation.continue_answer,
        conversation.undo,
        lambda: conversation.branch_at(chance.choice(conversation.turns)),
    ]
    while True:
        try:
            chance.choice(verbs)()
        except (UsageError, IndexError):
            continue
        os.write(report, json.dumps(state(conversation)).encode() + b"\n")
        while conversation.live:
            if chance.random() < 0.1:
                conversation.stop()
            for event in engine.drain():
                conversation.apply(event)
                os.write(report, json.dumps(state(conversation)).encode() + b"\n")


def torn(write: Any, chance: random.Random) -> Any:
    """A write that takes its time, so that a kill can meet it in the middle."""

    def slowly(fd: int, data: bytes) -> int:
        cut = chance.randrange(len(data) + 1)
        write(fd, data[:cut])
        time.sleep(chance.random() * 2e-4)
        write(fd, data[cut:])
        return len(data)

    return slowly


def killed(name: str, seed: int, reports: int, later: float) -> bytes:
    """Fork a chat, kill it, and return its last whole report."""
    coming, report = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(coming)
        chance, write = random.Random(seed), os.write
        chat.CHECKPOINT_S = 0.0
        os.write = torn(write, chance)  # type: ignore[assignment]
        try:
            talk(name, chance, report)
        finally:
            os._exit(1)
    os.close(report)
    got = b""
    while got.count(b"\n") < reports and (more := os.read(coming, 1 << 16)):
        got += more
    time.sleep(later)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(coming, 1 << 16):
        got += more
    os.close(coming)
    return got[: got.rfind(b"\n")].rpartition(b"\n")[2]


def main() -> None:
    for line in sys.stdin:
        name, seed, reports, later = line.split()
        last = killed(name, int(seed), int(reports), float(later))
        sys.stdout.write((last.decode() or "{}") + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
