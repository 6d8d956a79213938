"""Drives the chat without waiting: a stopped clock, beats by hand, and the screen as text.

Owns plain-text snapshots: `FLARECHAT_UPDATE=1 pytest tests/ui` rewrites them.
"""

from __future__ import annotations

import asyncio
import functools
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from flarechat.config import Settings
from flarechat.ui.app import FlarechatApp
from flarechat.ui.bridge import Bridge
from flarechat.ui.format import UNICODE, Glyphs
from flarechat.ui.widgets.prompt import Prompt
from tests.fakes import ScriptedEngine

SNAPSHOTS = Path(__file__).parent / "snapshots"
UPDATE = os.environ.get("FLARECHAT_UPDATE") == "1"
STEP_S = 0.25


def played(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test to its end."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


async def answered(app: FlarechatApp, pilot: Pilot[None], text: str, patience: float) -> None:
    """Type a message into a chat over a real engine and wait, seconds at most, for its answer."""
    app.chat.prompt.burst_gap = 0.0
    await pilot.press(*text, "enter")
    end = time.monotonic() + patience
    while app.bridge.busy or app.bridge.model is None:
        assert time.monotonic() < end, app.bridge.state
        assert app.bridge.state != "ERROR", app.bridge.error
        await pilot.pause(0.1)


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Chat:
    """A running chat under test."""

    def __init__(self, app: FlarechatApp, pilot: Pilot[None], clock: Clock) -> None:
        self.app, self.pilot, self.clock = app, pilot, clock
        self.screen = app.chat
        self._seen: list[Prompt] = []

    @property
    def bridge(self) -> Bridge:
        """The chat that is shown."""
        return self.app.bridge

    @property
    def prompt(self) -> Prompt:
        """Its prompt, made ready to be typed into by a program when it is first seen."""
        prompt = self.screen.prompt
        if prompt not in self._seen:
            self._seen.append(prompt)
            prompt.cursor_blink, prompt.burst_gap = False, 0.0
        return prompt

    async def beat(self, times: int = 1) -> None:
        """Let the engine say something, that many times, then draw."""
        for _ in range(times):
            await self._tick()
        await self.pilot.pause()

    async def _tick(self) -> None:
        self.clock.now += STEP_S
        self.screen.beat()
        await asyncio.sleep(0)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def pick(self, *keys: str) -> None:
        """Press a key that opens a list, wait until its lines are there, press the others."""
        await self.press(keys[0])
        await self.app.workers.wait_for_complete()
        await self.press(*keys[1:])

    async def say(self, text: str) -> None:
        """Put a text into the prompt and press enter."""
        self.prompt.put(text)
        await self.press("enter")

    async def answer(self, limit: int = 400) -> None:
        """Beat until the answer is finished."""
        for _ in range(limit):
            await self._tick()
            if not self.bridge.busy and not self.bridge.queue:
                break
        else:
            raise AssertionError("the answer does not end")
        await self.beat()

    @property
    def text(self) -> str:
        """What is on the screen, line by line."""
        strips = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text.rstrip() for strip in strips)


@asynccontextmanager
async def chatting(
    engine: ScriptedEngine | None = None,
    *,
    size: tuple[int, int] = (80, 24),
    settings: Settings | None = None,
    resume: str | None = None,
    continue_last: bool = False,
    marks: Glyphs = UNICODE,
) -> AsyncIterator[Chat]:
    """A chat over a scripted engine, ready for the first message."""
    clock = Clock()
    app = FlarechatApp(
        settings or Settings(theme="dark"),
        engine or ScriptedEngine(),
        resume=resume,
        continue_last=continue_last,
        clock=clock,
        marks=marks,
        interval=3600.0,
    )
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        chat = Chat(app, pilot, clock)
        assert chat.prompt.display
        await chat.beat(2)
        yield chat


def check_snapshot(name: str, text: str) -> None:
    """Compare a screen with the stored one; times of day do not count."""
    path = SNAPSHOTS / f"{name}.txt"
    shown = re.sub(r"\b\d\d:\d\d\b", "14:02", text) + "\n"
    if UPDATE:
        SNAPSHOTS.mkdir(exist_ok=True)
        path.write_text(shown, "utf-8")

    assert path.read_text("utf-8") == shown
