"""Carries out what holds answers to something: constraints and tools, by command or by form.

Knows how the screen says so, not what a constraint means or what a tool does.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from flarechat.config import Settings
from flarechat.tools.toolbox import Toolbox
from flarechat.ui.constraints import NamedConstraint, named, taken_from
from flarechat.ui.equipment import equipped, sources_of, tools_text

if TYPE_CHECKING:
    from flarechat.ui.screens.chat import ChatScreen


class Holding:
    """One method a command; each raises what was refused. Files are read aside."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen

    async def begin(self, settings: Settings) -> None:
        """Take what the settings hold answers to, and their tools, from the start."""
        if not (settings.constraints or settings.tools):
            return
        constraint, free = await asyncio.to_thread(taken_from, settings)
        toolbox, free = await asyncio.to_thread(equipped, free, free.tools, free.tool_choice)
        self._screen.bridge.constrain(constraint)
        self._screen.bridge.equip(toolbox, free)

    def hold_to(self, constraint: NamedConstraint | None) -> None:
        """Hold the answers from the next on to a constraint, or to none."""
        bridge, was = self._screen.bridge, self._screen.bridge.constraint
        if constraint == was:
            return
        bridge.constrain(constraint)
        self._screen.dashboard.hurry()
        if constraint is None:
            self._screen.remark("The next answers may be any text.")
            return
        resting = "; no tool can be called meanwhile" if bridge.toolbox.tools else ""
        self._screen.remark(f"The next answers are held to {constraint.label}{resting}.")

    def equip(self, toolbox: Toolbox | None, settings: Settings) -> None:
        """Let the model call these tools, if they are others or otherwise chosen."""
        bridge = self._screen.bridge
        if toolbox is None:
            return
        bridge.equip(toolbox, settings)
        self._screen.dashboard.hurry()
        self._screen.remark(tools_text(toolbox, settings, bridge.conversation.allowed))

    async def _json(self, argument: str) -> None:
        await self._constrain("json", "")

    async def _schema(self, argument: str) -> None:
        await self._constrain("schema", argument)

    async def _regex(self, argument: str) -> None:
        await self._constrain("regex", argument)

    async def _grammar(self, argument: str) -> None:
        await self._constrain("grammar", argument)

    async def _unconstrained(self, argument: str) -> None:
        self.hold_to(None)

    async def _constrain(self, form: str, source: str) -> None:
        self.hold_to(await asyncio.to_thread(named, form, source))

    async def _tools(self, argument: str) -> None:
        bridge = self._screen.bridge
        word, _, rest = argument.partition(" ")
        sources = () if argument == "off" else sources_of(argument)
        if not argument:
            told = tools_text(bridge.toolbox, bridge.settings, bridge.conversation.allowed)
            self._screen.transcript.note(told)
            return
        choice = "auto"
        if word == "choice":
            sources, choice = bridge.settings.tools, rest.strip() or "auto"
        self.equip(*await asyncio.to_thread(equipped, bridge.settings, sources, choice))
