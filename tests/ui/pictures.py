"""Draws the pictures in docs/ from a real chat: `python -m tests.ui.pictures [model [picture]]`.

Asks the real model two questions at temperature 0, in a home of its own, and exports the screen
wide and narrow, and the tokens of the second answer; then one question three ways in a second tab,
an answer under a schema, and a call of a tool that waits.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from flarechat.config import Settings
from flarechat.launch import open_engine
from flarechat.models import store
from flarechat.protocol import EngineDoor
from flarechat.ui.app import FlarechatApp
from flarechat.ui.opening import LateEngine

DOCS = Path(__file__).parents[2] / "docs"
LETTER = (
    "Dear Ms Green, thank you for your order of three blue lamps. They left our store this "
    "morning and will reach you on Friday. Please keep the boxes. Yours, Ada Stone"
)
QUESTIONS = (
    "What is special about the sea?",
    f"Repeat this letter exactly, word for word, twice: {LETTER}",
)
TOKENS = ("shift+tab", "i", "n", "n", "n")
KEYS = ("ctrl+n", *TOKENS)
FAN = ("What is special about the sea?", "ctrl+n", "/fan 3 Describe a cat in two sentences.")
SCHEMA = (
    '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, '
    '"lamps": {"type": "integer"}, "city": {"enum": ["Rome", "Oslo"]}}, '
    '"required": ["name", "lamps", "city"], "additionalProperties": false}'
)
PLAIN: dict[str, Any] = {"temperature": 0.0, "max_tokens": 160}
PICTURES: tuple[tuple[str, tuple[int, int], tuple[str, ...], dict[str, Any]], ...] = (
    ("chat-wide.svg", (120, 36), QUESTIONS, {**PLAIN, "theme": "dark"}),
    ("chat-narrow.svg", (80, 24), QUESTIONS, {**PLAIN, "theme": "light"}),
    ("chat-tokens.svg", (100, 20), (*QUESTIONS, *TOKENS), {**PLAIN, "theme": "dark"}),
    (
        "chat-fan.svg", (120, 36), FAN,
        {"temperature": 0.7, "seed": 5, "max_tokens": 120, "concurrency": 4, "theme": "dark"},
    ),
    (
        "chat-constraint.svg", (120, 36),
        ("Ada Stone from Rome ordered three blue lamps. Say so in JSON.",),
        {**PLAIN, "theme": "dark", "json_schema": SCHEMA},
    ),
    (
        "chat-tools.svg", (80, 24), ("17*23",),
        {**PLAIN, "theme": "light", "tools": ("calculator",), "tool_choice": "required"},
    ),
)  # fmt: skip


async def ask(app: FlarechatApp, pilot: Pilot[None], question: str) -> None:
    """Send a question and wait for the end of its answers, or for a call that waits; or press a
    key.
    """
    if question in KEYS:
        await pilot.press(question)
        app.chat.prompt.cursor_blink = False
        await pilot.pause(0.6)
        return
    app.chat.prompt.burst_gap = 0.0
    app.chat.prompt.put(question)
    await pilot.press("enter")
    await pilot.pause(0.6)
    while app.bridge.busy and not app.bridge.conversation.waiting:
        await pilot.pause(0.2)
    await pilot.pause(0.6)


async def picture(
    settings: Settings, engine: EngineDoor, size: tuple[int, int], questions: Sequence[str]
) -> str:
    """The screen after the questions, as SVG."""
    app = FlarechatApp(settings, engine)
    async with app.run_test(size=size) as pilot:
        app.chat.prompt.cursor_blink = False
        while app.bridge.model is None:
            if app.bridge.error:
                raise app.bridge.error.exception()
            await pilot.pause(0.2)
        for question in questions:
            await ask(app, pilot, question)
        return re.sub(r"terminal-\d+-", "terminal-", app.export_screenshot(simplify=True))


def main() -> None:
    """Draw every picture."""
    model = str(store.resolve(sys.argv[1] if len(sys.argv) > 1 else "smollm2"))
    wanted = sys.argv[2:]
    for name, size, questions, chosen in PICTURES:
        if wanted and name not in wanted:
            continue
        with tempfile.TemporaryDirectory() as home:
            os.environ["FLARECHAT_HOME"] = home
            settings = Settings(model=model, **chosen)
            with closing(LateEngine(partial(open_engine, settings))) as engine:
                drawn = asyncio.run(picture(settings, engine, size, questions))
            (DOCS / name).write_text(drawn, "utf-8")


if __name__ == "__main__":
    main()
