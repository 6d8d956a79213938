"""The prompts a bench puts to every arm. Owns their file form and how they are chosen.

Knows no engine and no arm: a workload is a prompt, a category and an output budget.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from flarechat.errors import SettingsError, reason_of

BUILT_IN = "workloads.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One prompt. `repetition_asked` says that an answer repeating itself is what was asked."""

    name: str
    category: str
    prompt: str
    max_tokens: int
    repetition_asked: bool = False


def load_workloads(choice: str) -> tuple[Workload, ...]:
    """The workloads of `choice`: all, names or categories joined by commas, or a JSON file."""
    if choice.endswith(".json"):
        return _read(choice, _text_of(Path(choice)))
    known = _read(BUILT_IN, files("flarechat.bench").joinpath(BUILT_IN).read_text("utf-8"))
    if choice == "all":
        return known
    return _select(known, [part.strip() for part in choice.split(",") if part.strip()])


def _select(known: Sequence[Workload], wanted: Sequence[str]) -> tuple[Workload, ...]:
    names = sorted({w.name for w in known} | {w.category for w in known})
    for word in wanted or [""]:
        if word not in names:
            near = difflib.get_close_matches(word, names, n=1)
            offer = f"Did you mean {near[0]}?" if near else f"Use all, {', '.join(names)}."
            raise SettingsError(f"--workload {word or repr(word)} is unknown.", offer)
    return tuple(w for w in known if w.name in wanted or w.category in wanted)


def _text_of(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"The workload file {path} cannot be read: {reason_of(error)}.",
            "Give a JSON file of prompts.",
        ) from error


def _read(name: str, text: str) -> tuple[Workload, ...]:
    """Parse a list of workloads, refusing what is not one by name."""
    try:
        entries = json.loads(text)
    except json.JSONDecodeError as error:
        raise SettingsError(
            f"{name} is not JSON: {error.msg} on line {error.lineno}.", "Give a list of prompts."
        ) from error
    if not isinstance(entries, list) or not entries:
        raise SettingsError(f"{name} holds no list of prompts.", "Write at least one entry.")
    workloads = tuple(_workload(name, index, entry) for index, entry in enumerate(entries))
    twice = [w.name for i, w in enumerate(workloads) if w.name in {v.name for v in workloads[:i]}]
    if twice:
        raise SettingsError(f"{name} names {twice[0]!r} twice.", "Give every prompt its own name.")
    return workloads


def _workload(name: str, index: int, entry: Any) -> Workload:
    fields = {"name": str, "category": str, "prompt": str, "max_tokens": int}
    where = f"Entry {index + 1} of {name}"
    if not isinstance(entry, dict):
        raise SettingsError(f"{where} is not an object.", f"Give {', '.join(fields)}.")
    for field, kind in fields.items():
        if type(entry.get(field)) is not kind or not entry[field]:
            raise SettingsError(
                f"{where} has {field} = {entry.get(field)!r}.", f"Give a {kind.__name__}."
            )
    return Workload(
        repetition_asked=bool(entry.get("repetition_asked", False)),
        **{field: entry[field] for field in fields},
    )
