"""How one turn appears on stdout: as text, or as one JSON object a line.

Owns stdout during a turn. Everything else a turn has to say goes to stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, Protocol

from flarechat.asking import CALLED
from flarechat.cli.progress import Bar
from flarechat.protocol import (
    Called,
    ConstraintResult,
    Delta,
    Event,
    Finished,
    Loading,
    Progress,
    Ready,
    Round,
    Started,
    ToolCall,
    to_dict,
)
from flarechat.sessions.turns import Turn
from flarechat.textsafe import spelt_out, strip_controls


class Printer(Protocol):
    """What a turn needs to be shown."""

    def asked(self, requests: Sequence[str]) -> None:
        """Learn which requests answer the prompt, in their order, before any is shown."""

    def show(self, event: Event) -> None:
        """Show one event, at once."""

    def left(self, call: ToolCall) -> None:
        """Show a call that whoever reads the output is to answer."""

    def result(self, turn: Turn, answer: Turn) -> None:
        """Show the result of a call that this answer made."""

    def end(self) -> None:
        """Leave stdout and stderr tidy, however the turn ended."""


class TextPrinter:
    """The answer's text as it comes, free of control characters, ending with a line break.

    What the model thinks is not printed, only that it does; JSON events have all of it. Calls of
    tools and the beginnings of their results go to stderr.
    """

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._last = "\n"

    def asked(self, requests: Sequence[str]) -> None:
        pass

    def show(self, event: Event) -> None:
        if isinstance(event, Delta) and event.channel == "thinking":
            self._bar.show("thinking", 0, 0)
        elif not isinstance(event, Round):
            show_progress(self._bar, event)
        if isinstance(event, Delta) and event.channel == "answer":
            self._write(strip_controls(event.text))
        if isinstance(event, Finished) and event.reason == CALLED:
            self._break_line()

    def left(self, call: ToolCall) -> None:
        self._break_line()
        self._write(json.dumps({"name": call.name, "arguments": call.arguments}) + "\n")

    def result(self, turn: Turn, answer: Turn) -> None:
        self._bar.clear()
        [call] = [call for call in answer.calls if call.id == turn.call]
        arguments = _shortened(json.dumps(call.arguments, ensure_ascii=False))
        told = f"{turn.name} {arguments} → {_shortened(turn.text)}"
        print(f"flarechat: {spelt_out(told)}", file=sys.stderr, flush=True)

    def _break_line(self) -> None:
        if self._last != "\n":
            self._write("\n")

    def end(self) -> None:
        self._bar.clear()
        self._break_line()

    def _write(self, text: str) -> None:
        if text:
            self._bar.clear()
            sys.stdout.write(text)
            sys.stdout.flush()
            self._last = text[-1]


class FanPrinter(TextPrinter):
    """Several answers as text, one behind the other, each below a line with its number. The one
    whose turn it is streams; those behind it wait until it has ended.
    """

    def __init__(self, bar: Bar) -> None:
        super().__init__(bar)
        self._requests: list[str] = []
        self._held: dict[str, list[Event]] = {}
        self._at = 0

    def asked(self, requests: Sequence[str]) -> None:
        self._requests = list(requests)
        self._held = {request: [] for request in requests}
        self._open()

    def show(self, event: Event) -> None:
        request = getattr(event, "request", None)
        if request not in self._held or self._is_next(request):
            super().show(event)
        elif isinstance(event, Delta | Finished):
            self._held[request].append(event)
        if isinstance(event, Finished) and self._is_next(request):
            self._advance()

    def end(self) -> None:
        """Also print what answers behind an unfinished one had, for they may be all there is."""
        while self._at < len(self._requests):
            self._advance()
        super().end()

    def _is_next(self, request: str | None) -> bool:
        return self._at < len(self._requests) and self._requests[self._at] == request

    def _advance(self) -> None:
        """Go on to the next answer and print what it has so far."""
        self._at += 1
        if self._at < len(self._requests):
            self._open()
            for event in self._held[self._requests[self._at]]:
                self.show(event)

    def _open(self) -> None:
        self._break_line()
        blank = "\n" if self._at else ""
        self._write(f"{blank}--- answer {self._at + 1} of {len(self._requests)} ---\n")


class JsonPrinter:
    """The turn's events, each flushed; `finished` without the controller's state. A `ready` comes
    before them only when it has notices. Of several answers each event says which, from 1.
    """

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._numbers: dict[str, int] = {}

    def asked(self, requests: Sequence[str]) -> None:
        if len(requests) > 1:
            self._numbers = {request: n for n, request in enumerate(requests, start=1)}

    def show(self, event: Event) -> None:
        show_progress(self._bar, event)
        told = isinstance(event, Ready) and event.notices
        if told or isinstance(event, Started | Progress | Round | Delta | Called | Finished):
            fields = to_dict(event)
            fields.pop("controller", None)
            if number := self._numbers.get(fields.get("request", "")):
                fields["answer"] = number
            self._print(fields)

    def left(self, call: ToolCall) -> None:
        pass

    def result(self, turn: Turn, answer: Turn) -> None:
        fields = {"call": turn.call, "name": turn.name, "outcome": turn.reason, "text": turn.text}
        self._print({"event": "tool_result", "request": answer.id, **fields})

    def _print(self, fields: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(fields, separators=(",", ":")) + "\n")
        sys.stdout.flush()

    def end(self) -> None:
        self._bar.clear()


def show_progress(bar: Bar, event: Event) -> None:
    """Move the bar for work that shows no text yet, and take it away when text comes."""
    if isinstance(event, Loading):
        bar.show(event.stage, event.done, event.total)
    elif isinstance(event, Progress) and event.done < event.total:
        bar.show("prefill", event.done, event.total)
    else:
        bar.clear()


def _shortened(text: str) -> str:
    """A text on one line, its beginning."""
    line = " ".join(text.split())
    return line if len(line) <= 160 else line[:160] + "…"


def stats_line(finished: Finished) -> str:
    """What a turn cost, on one line."""
    usage, timings, drafts = finished.usage, finished.timings, finished.speculation
    parts = [
        f"{usage.prompt_tokens} prompt tokens ({usage.restored_tokens} restored)",
        f"{usage.completion_tokens} answer tokens",
        f"first after {timings.first_token_ms:.0f} ms",
        f"{timings.tokens_per_second:.1f} tok/s",
        f"{drafts.mean_acceptance_length:.2f} tok/round",
        f"{drafts.accepted} of {drafts.offered} drafts accepted",
        finished.reason,
    ]
    if finished.constraint:
        parts.append(constraint_line(finished.constraint))
    return ", ".join(parts)


def constraint_line(result: ConstraintResult) -> str:
    """What became of a constraint, in a few words."""
    state = "satisfied" if result.satisfied else "not satisfied"
    return (
        f"{result.kind} {state} ({result.forced} tokens forced, {result.removed} drafts removed, "
        f"{result.redrawn} tokens redrawn)"
    )
