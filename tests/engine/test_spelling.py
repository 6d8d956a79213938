"""What tokens say, asked through the door of a real child, while it answers too."""

from __future__ import annotations

import time
from pathlib import Path

from flarechat import paths
from flarechat.engine.host import EngineHost
from flarechat.protocol import Boot, Finished, Message, Ready, Request, Round, Sampling
from tests.models import tiny

PATIENCE = 60.0


def until(door: EngineHost, kind: type, seen: list[object]) -> None:
    """Listen until an event of a kind has come."""
    end = time.monotonic() + PATIENCE
    while not any(isinstance(event, kind) for event in seen):
        assert time.monotonic() < end, seen
        seen += door.wait(1.0)


def expected() -> list[str]:
    """The texts of the tiny model's tokens by their bytes, and of two ids that are none."""
    letters = tiny.byte_letters()
    merged = (merge.replace(" ", "") for merge in tiny.MERGES)
    bytes_of = [bytes([byte]) for byte in range(256)]
    bytes_of += [bytes(map(letters.index, word)) for word in merged]
    texts = [
        data.decode() if data.isascii() else "".join(f"\\x{byte:02x}" for byte in data)
        for data in bytes_of
    ]
    return [*tiny.SPECIALS, *texts, "", ""]


def test_tokens_are_spelled_by_their_bytes_and_rounds_go_on(tiny_gguf: Path) -> None:
    texts = expected()
    door = EngineHost(Boot(model=str(tiny_gguf), cache=str(paths.cache_dir()), threads=1))
    seen: list[object] = []
    try:
        door.start()
        until(door, Ready, seen)
        door.spell((0, 9))
        messages = (Message(role="user", content="hello"),)
        door.submit(
            Request(id="one", messages=messages, sampling=Sampling(temperature=0), max_tokens=40)
        )
        until(door, Round, seen)
        first = door.spelled()
        door.spell(tuple(range(len(texts))))
        until(door, Finished, seen)
        spelled, again = door.spelled(), door.spelled()
    finally:
        door.close()

    assert {0: texts[0], 9: texts[9]} == first
    assert dict(enumerate(texts)) == spelled
    assert {} == again
