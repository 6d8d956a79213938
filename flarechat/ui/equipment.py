"""The tools that a chat's model may call: taken from what the user wrote, and told in words."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Collection, Sequence

from flarechat.config import Settings
from flarechat.errors import UsageError
from flarechat.protocol.tools import require_tools
from flarechat.tools.toolbox import Toolbox


def equipped(settings: Settings, sources: Sequence[str], choice: str) -> tuple[Toolbox, Settings]:
    """The tools of files and names, and the settings with them. Reads files.

    Raises SettingsError with the place of the fault.
    """
    toolbox = Toolbox.of(sources)
    require_tools(toolbox.tools, choice)
    return toolbox, dataclasses.replace(settings, tools=tuple(sources), tool_choice=choice)


def sources_of(text: str) -> tuple[str, ...]:
    """Files and names as the user wrote them, with blanks between; quotes keep one together."""
    try:
        return tuple(shlex.split(text))
    except ValueError:
        raise UsageError(f"A quote in {text} is not closed.", "Close it.") from None


def tools_text(toolbox: Toolbox, settings: Settings, allowed: Collection[str]) -> str:
    """The tools, a line each, and how they are chosen."""
    if not toolbox.tools:
        return "There are no tools. /tools FILE, or /tools calculator,clock, gives the model some."
    lines = []
    for tool in toolbox.tools:
        definition = toolbox.find(tool.name)
        how = "answered by you" if definition and definition.by_hand else "asks you first"
        how = "runs without asking" if tool.name in allowed else how
        lines.append(f"{tool.name}: {how}. {tool.description}".rstrip())
    return "\n".join([*lines, f"Tool choice: {settings.tool_choice}"])
