"""The tools that a conversation may use, and what came of running one: always a Result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from threading import Event

from flarechat.protocol import Tool, ToolCall
from flarechat.tools import runner
from flarechat.tools.definitions import Definition, load
from flarechat.tools.results import DONE, FAILED, STOPPED, Result, ToolError


class Toolbox:
    """Definitions by name. Runs a call wherever it is asked to; asks nobody for leave."""

    def __init__(self, definitions: Sequence[Definition] = ()) -> None:
        self._definitions = {definition.tool.name: definition for definition in definitions}

    @classmethod
    def of(cls, sources: Sequence[str]) -> Toolbox:
        """The tools of these files and names; see `definitions.load`."""
        return cls(load(sources))

    @property
    def tools(self) -> tuple[Tool, ...]:
        """What the model is told of."""
        return tuple(definition.tool for definition in self._definitions.values())

    def find(self, name: str) -> Definition | None:
        """The definition of this name."""
        return self._definitions.get(name)

    def run(self, call: ToolCall, stop: Event | None = None) -> Result:
        """Run a call of a tool that is not answered by hand; `stop` ends it."""
        definition = self._definitions.get(call.name)
        if definition is None or definition.by_hand:
            return Result.of(call, FAILED, f"Error: there is no tool {call.name} to run.")
        if definition.function is None:
            return _commanded(definition, call, stop)
        try:
            return Result.of(call, DONE, definition.function(call.arguments))
        except ToolError as error:
            return Result.of(call, FAILED, f"Error: {error}")


def _commanded(definition: Definition, call: ToolCall, stop: Event | None) -> Result:
    """Run a program with the arguments as JSON on its stdin."""
    arguments = json.dumps(call.arguments).encode()
    ran = runner.run(
        definition.command,
        arguments,
        timeout=definition.timeout,
        limit=definition.output_limit,
        stop=stop,
    )
    output = ran.output.decode("utf-8", "replace").rstrip()
    if ran.cut:
        output += f"\n[cut here: {definition.output_limit} bytes are the most that is kept]"
    if ran.end == "exited" and ran.status == 0:
        return Result.of(call, DONE, output)
    errors = ran.errors.decode("utf-8", "replace").strip()
    if ran.end == "exited":
        return Result.of(call, FAILED, _lines(_ended(call.name, ran.status), errors or output))
    if ran.end == "unstarted":
        return Result.of(call, FAILED, f"Error: {call.name} could not be started: {errors}.")
    if ran.end == "stopped":
        return Result.of(call, STOPPED, "Error: the user stopped it.")
    why = f"it took more than {definition.timeout:g} s"
    if ran.end == "flooded":
        why = "it wrote without an end"
    told = f"Error: {call.name} was ended, as {why}."
    return Result.of(call, FAILED, _lines(told, output or errors))


def _lines(*texts: str) -> str:
    return "\n".join(filter(None, texts))


def _ended(name: str, status: int | None) -> str:
    if status is not None and status < 0:
        return f"Error: {name} was ended by signal {-status}."
    return f"Error: {name} ended with status {status}."
