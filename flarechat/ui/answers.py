"""How answers that are JSON, and calls of tools with their results, look in the transcript.

Owns these as blocks; the text of a turn stays what it was. Knows no widget.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from textual.content import Content

from flarechat.chat import Turn
from flarechat.protocol import ToolCall
from flarechat.textsafe import spelt_out, strip_controls
from flarechat.ui import jsontext, markdown
from flarechat.ui.format import UNICODE, Glyphs
from flarechat.ui.markdown import MUTED, Block, Prose

SHOWN_LINES = 8
_ERROR = "$text-error"
OUTCOMES = {
    "done": "",
    "failed": "failed",
    "refused": "not allowed",
    "unrun": "not run",
    "stopped": "stopped",
}


@dataclass(slots=True)
class Located:
    """What is wrong with a text and where: its line around the place, a caret below, a sentence."""

    place: jsontext.Place
    fault: str
    marks: Glyphs
    gap: bool = True

    def lines(self, width: int) -> list[Content]:
        room = max(width - 2, 8)
        text, at = self.place.text.expandtabs(1), self.place.column - 1
        start = max(0, at - 2 * room // 3)
        before, behind = text[start:at], text[at : at + room]
        while cell_len(before) > 2 * room // 3:
            before, start = before[1:], start + 1
        cut = self.marks.ellipsis if start else ""
        shown = Content(cut + before) + Content.styled(behind, _ERROR)
        caret = Content.styled(" " * cell_len(cut + before) + "^", f"bold {_ERROR}")
        said = f"Line {self.place.line}, column {self.place.column}: {self.fault}."
        told = Content.styled(said, _ERROR).wrap(max(width, 8))
        return [shown.truncate(width), caret, *told]


def json_blocks(text: str, marks: Glyphs = UNICODE, *, live: bool = False) -> list[Block]:
    """A text as JSON, laid out; where it is not whole, what is wrong with it. While it is `live`
    there is no colour, and nothing is said of what has not come yet.
    """
    reading = jsontext.read(text)
    parts: list[Block] = []
    if reading.pretty.strip():
        parts.append(markdown.code(reading.pretty, "json", colour=not live))
    if reading.place and (reading.broken or not live):
        parts.append(Located(reading.place, reading.fault, marks))
    return parts


def is_json(turn: Turn, text: str) -> bool:
    """Whether the answer is to be shown as JSON: it was to be, it is, or it begins so."""
    held = turn.finished.constraint if turn.finished else None
    if len(text) > jsontext.MOST or not text.strip():
        return False
    if held is not None and held.kind == "json-schema":
        return True
    listed = text.lstrip()[:1] == "["
    return jsontext.begins(text) or (listed and jsontext.read(text).whole)


def call_blocks(calls: Sequence[ToolCall]) -> list[Block]:
    """Calls of tools: the name of each, and its arguments laid out."""
    parts: list[Block] = []
    for call in calls:
        parts.append(Prose(Content.assemble("calls ", (spelt_out(call.name), "bold"))))
        written = arguments_text(call)
        reading = jsontext.read(written)
        laid_out = spelt_out(reading.pretty) if reading.whole else written
        block = markdown.code(laid_out, "json")
        block.gap = False
        parts.append(block)
    return parts


def arguments_text(call: ToolCall) -> str:
    """The arguments of a call as JSON in one line."""
    return spelt_out(json.dumps(call.arguments, ensure_ascii=False))


def result_blocks(text: str, *, folded: bool) -> list[Block]:
    """The result of a call; of a long one its beginning, where it is folded."""
    lines = text.split("\n")
    if not folded or len(lines) <= SHOWN_LINES:
        return markdown.plain(text)
    more = f"{len(lines) - SHOWN_LINES:,} more lines; t in turn mode shows them"
    shown = Content("\n".join(lines[:SHOWN_LINES]))
    return [Prose(shown), Prose(Content.styled(more, MUTED), gap=False)]


def held_blocks(turn: Turn) -> list[Block]:
    """What an answer says that does not satisfy what it was to satisfy."""
    held = turn.finished.constraint if turn.finished else None
    if held is None or held.satisfied:
        return []
    said = held.error or f"The answer does not satisfy its {held.kind} constraint."
    return [Prose(Content.styled(strip_controls(said), "$text-warning"))]
