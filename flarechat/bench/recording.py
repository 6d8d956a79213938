"""Reads recorded rounds back. Owns what counts as a recording: `run --json` lines or a bench file.

Knows no policy and no price.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flarechat.errors import UsageError, reason_of
from flarechat.protocol import Round, from_dict

RUN_LABEL = "run"
_REMEDY = "Give the output of `flarechat run --json` or of `flarechat bench --json`."


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The rounds of one answer; `label` is its arm, or "run"."""

    label: str
    rounds: tuple[Round, ...]


def read_recording(path: Path) -> tuple[Trace, ...]:
    """The traces of a file that hold at least one round."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"The recording {path} cannot be read: {reason_of(error)}.", _REMEDY
        ) from error
    try:
        document = _document(text)
        traces = _of_lines(text) if document is None else _of_bench(document)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"The recording {path} is damaged: {error}.", _REMEDY) from error
    kept = tuple(trace for trace in traces if trace.rounds)
    if not kept:
        raise UsageError(f"The recording {path} holds no round.", _REMEDY)
    return kept


def _document(text: str) -> dict[str, Any] | None:
    """The bench document that `text` is, or None when it is something else."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError:
        return None
    return data if isinstance(data, dict) and "samples" in data else None


def _of_bench(document: dict[str, Any]) -> list[Trace]:
    return [
        Trace(label=str(sample["arm"]), rounds=_rounds(sample["rounds"]))
        for sample in document["samples"]
    ]


def _of_lines(text: str) -> list[Trace]:
    """A trace for every request whose rounds are among the lines."""
    by_request: dict[str, list[Any]] = {}
    for line in text.splitlines():
        event = json.loads(line) if line.strip() else {}
        if event.get("event") == "round":
            by_request.setdefault(event["request"], []).append(event)
    return [Trace(label=RUN_LABEL, rounds=_rounds(events)) for events in by_request.values()]


def _rounds(data: Iterable[Any]) -> tuple[Round, ...]:
    return tuple(from_dict(Round, entry) for entry in data)
