"""The file of tools, JSON or TOML, strictly: every fault is one sentence with its place.

    a list of tools, or an object whose `tools` is one; in TOML [[tools]]
    a tool      {"type": "function", "function": {name, description, parameters}} as others have it,
                or these three beside what follows
    command     a list of texts, the program and its arguments; no shell reads them
    timeout     seconds, 30 unless given, 600 at most
    output_limit  bytes, 16384 unless given, 1048576 at most
    builtin     calculator, clock or read_file, in place of a command and of `parameters`
    folder      where read_file may read

A tool with neither is answered by hand. Knows nothing of what a call does.
"""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flarechat.errors import SettingsError
from flarechat.protocol import Tool
from flarechat.textsafe import well_formed
from flarechat.tools.builtin import BUILT_IN, Function, built_in
from flarechat.tools.jsontoml import content_of

TIMEOUT_S, MOST_TIMEOUT_S = 30.0, 600.0
OUTPUT_LIMIT, MOST_OUTPUT = 16 << 10, 1 << 20
_DESCRIBING = ("name", "description", "parameters", "strict")
_OWN = ("type", "function", "command", "timeout", "output_limit", "builtin", "folder")


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A tool and how it is run: by a command, by a function of flarechat's own, or by hand.

    `timeout` is in seconds, `output_limit` in bytes.
    """

    tool: Tool
    command: tuple[str, ...] = ()
    function: Function | None = None
    timeout: float = TIMEOUT_S
    output_limit: int = OUTPUT_LIMIT

    @property
    def by_hand(self) -> bool:
        """Whether the user is asked for the result."""
        return not self.command and self.function is None


def load(sources: Sequence[str]) -> list[Definition]:
    """The tools of all sources, each a file or names of built-in tools with commas between them.

    Raises SettingsError with the place of the fault.
    """
    found: list[Definition] = []
    places: dict[str, str] = {}
    for source in sources:
        names = [name.strip() for name in source.split(",")]
        built = all(name in BUILT_IN for name in names) and not Path(source).is_file()
        for definition in _named(names) if built else read_file(Path(source)):
            name = definition.tool.name
            if name in places:
                where = f" of {places[name]} and" if places[name] != source else " of"
                raise SettingsError(
                    f"Two tools{where} {source} are named {name!r}.", "Give each its own name."
                )
            places[name] = source
            found.append(definition)
    return found


def _named(names: Sequence[str]) -> list[Definition]:
    """Built-in tools that were asked for by nothing but their names."""
    if "read_file" in names:
        raise SettingsError(
            "--tools read_file does not say which folder may be read.",
            'Give a file with {"builtin": "read_file", "folder": "PATH"}.',
        )
    return [_built_in(name, None, OUTPUT_LIMIT) for name in names]


def _built_in(name: str, folder: Path | None, limit: int) -> Definition:
    tool, function = built_in(name, folder, limit)
    return Definition(tool=tool, function=function, output_limit=limit)


def read_file(path: Path) -> list[Definition]:
    """The tools of one file."""
    entries = _entries(path, content_of(path))
    definitions = []
    for number, entry in enumerate(entries, start=1):
        place = f"{path}, tool {number}"
        if isinstance(entry, dict) and isinstance(name := _function(entry).get("name"), str):
            place += f" ({name[:64]})"
        try:
            definitions.append(_definition(entry, path.parent))
        except _Fault as fault:
            raise SettingsError(f"{place}: {fault}.", fault.remedy) from None
        except SettingsError as error:
            raise SettingsError(f"{place}: {error.message}", error.hint) from None
    return definitions


class _Fault(Exception):
    """What is wrong with one tool, to be said behind its place, and what to do."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


def _entries(path: Path, content: Any) -> list[Any]:
    if isinstance(content, dict) and set(content) == {"tools"}:
        content = content["tools"]
    if not isinstance(content, list):
        what = "Give a list of tools" + (
            " as [[tools]]." if path.suffix.lower() == ".toml" else ', or {"tools": [...]}.'
        )
        raise SettingsError(f"{path} has no list of tools.", what)
    if not content:
        raise SettingsError(f"{path} names no tool.", "Leave --tools out to have none.")
    return content


def _function(entry: dict[str, Any]) -> dict[str, Any]:
    """Where name, description and parameters stand."""
    function = entry.get("function")
    return function if isinstance(function, dict) else entry


def _definition(entry: Any, folder: Path) -> Definition:
    if not isinstance(entry, dict):
        raise _Fault("it is no object", "Give an object with name, description and parameters.")
    function = _function(entry)
    if function is entry:
        _only(entry, (*_DESCRIBING, *_OWN))
    else:
        _only(entry, _OWN)
        _only(function, _DESCRIBING, "function.")
    if entry.get("type", "function") != "function":
        raise _Fault(f"type is {entry['type']!r}", 'Leave it out, or give "function".')
    if "function" in entry and function is entry:
        raise _Fault("function is no object", "Give name, description and parameters in it.")
    if "builtin" in entry:
        return _own(entry, function, folder)
    if "folder" in entry:
        raise _Fault("folder is for read_file alone", 'Give "builtin": "read_file" or no folder.')
    tool = Tool(
        name=_of(function, "name", str, "a text"),
        description=_of(function, "description", str, "a text", ""),
        parameters=_of(function, "parameters", dict, "an object", {}),
    )
    command = _command(entry)
    if not command and (given := [key for key in ("timeout", "output_limit") if key in entry]):
        raise _Fault(f"{given[0]} is given, but no command", "Give a command, or leave it out.")
    return Definition(
        tool=tool, command=command, timeout=_timeout(entry), output_limit=_output_limit(entry)
    )


def _own(entry: dict[str, Any], function: dict[str, Any], folder: Path) -> Definition:
    """A built-in tool, which may have another name and description."""
    name = entry["builtin"]
    if name not in BUILT_IN:
        raise _Fault(f"builtin is {name!r}", f"Use {', '.join(BUILT_IN)}.")
    reads = name == "read_file"
    unfit = ["parameters", "strict", "command", "timeout"]
    unfit += [] if reads else ["folder", "output_limit"]
    given = next((key for key in unfit if key in entry or key in function), None)
    if given is not None:
        raise _Fault(f"{given} is given for the builtin {name}", f"Leave {given} out.")
    below = None
    if reads:
        below = folder / Path(_of(entry, "folder", str, "a text")).expanduser()
        if not below.is_dir():
            raise _Fault(f"folder {str(below)!r} is no folder", "Give one that is there.")
    built = _built_in(name, below, _output_limit(entry))
    tool = replace(
        built.tool,
        name=_of(function, "name", str, "a text", built.tool.name),
        description=_of(function, "description", str, "a text", built.tool.description),
    )
    return replace(built, tool=tool)


_NONE: Any = object()


def _of(table: dict[str, Any], key: str, kind: type, word: str, default: Any = _NONE) -> Any:
    value = table.get(key, default)
    if value is _NONE:
        raise _Fault(f"{key} is missing", f"Give {word}.")
    if not isinstance(value, kind):
        raise _Fault(f"{key} is {_short(value)}, not {word}", f"Give {word}.")
    return value


def _only(table: dict[str, Any], known: Sequence[str], inside: str = "") -> None:
    """Refuse a key that means nothing here, naming the nearest that does."""
    unknown = next((key for key in table if key not in known), None)
    if unknown is not None:
        near = difflib.get_close_matches(unknown, known, n=1)
        remedy = f"Did you mean {near[0]}?" if near else f"There are {', '.join(known)}."
        raise _Fault(f"{inside}{unknown} is unknown", remedy)


def _command(entry: dict[str, Any]) -> tuple[str, ...]:
    if "command" not in entry:
        return ()
    command = entry["command"]
    fits = isinstance(command, list) and all(isinstance(part, str) for part in command)
    unfit = fits and any("\0" in part or well_formed(part) != part for part in command)
    if not fits or not command or not command[0] or unfit:
        raise _Fault(
            f"command is {_short(command)}, not a list of texts",
            'Give the program and its arguments, as ["python3", "tool.py"]; no shell reads them.',
        )
    if shutil.which(command[0]) is None:
        raise _Fault(
            f"there is no program {command[0]!r}", "Give its path, or a name that PATH has."
        )
    return tuple(command)


def _timeout(entry: dict[str, Any]) -> float:
    value = entry.get("timeout", TIMEOUT_S)
    if type(value) not in (int, float) or not 0 < value <= MOST_TIMEOUT_S:
        raise _Fault(
            f"timeout is {_short(value)}", f"Give seconds, above 0 and up to {MOST_TIMEOUT_S:g}."
        )
    return float(value)


def _output_limit(entry: dict[str, Any]) -> int:
    value = entry.get("output_limit", OUTPUT_LIMIT)
    if type(value) is not int or not 1 <= value <= MOST_OUTPUT:
        raise _Fault(f"output_limit is {_short(value)}", f"Give bytes, 1 to {MOST_OUTPUT}.")
    return value


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:60] + "…"
