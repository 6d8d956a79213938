"""Markdown as blocks of Textual Content, laid out for a width, so that one widget shows a turn.

Owns the look of prose, lists, quotes, tables and code fences, and the split of a growing text into
finished blocks and a tail. Knows no widget; markup in the text is never interpreted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from rich.cells import cell_len
from textual.content import Content

from flarechat.ui.format import UNICODE, Glyphs

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.tree import SyntaxTreeNode

CODE = "$foreground on $surface"
CODE_LABEL = "$foreground 60% on $surface"
HEADING = "bold $text-primary"
MUTED = "$foreground 60%"
INLINE = {
    "strong": "bold",
    "em": "italic",
    "s": "strike",
    "link": "underline",
}
INLINE_CODE = "$text-accent"
_FENCE = re.compile(r"\s*(`{3,}|~{3,})(.*)")


class Block(Protocol):
    """A stretch of the page that knows its lines at any width."""

    gap: bool

    def lines(self, width: int) -> list[Content]: ...


@dataclass(slots=True)
class Prose:
    """Wrapped text behind a hanging indent; `lead` styles what stands before its first line."""

    content: Content
    first: str = ""
    rest: str = ""
    gap: bool = True
    lead: str = ""

    def lines(self, width: int) -> list[Content]:
        room = max(width - cell_len(self.first), 4)
        wrapped = self.content.wrap(room)
        first = Content.styled(self.first, self.lead) if self.lead else Content(self.first)
        return [(Content(self.rest) if n else first) + line for n, line in enumerate(wrapped)]


@dataclass(slots=True)
class Code:
    """Code on a ground of its own, its language above; long lines fold."""

    content: Content
    language: str = ""
    first: str = ""
    rest: str = ""
    gap: bool = True

    def lines(self, width: int) -> list[Content]:
        room = max(width - cell_len(self.rest) - 2, 4)
        label = [Content.styled(self.language[:room], CODE_LABEL)] if self.language else []
        rows = [line for row in self.content.split(allow_blank=True) for line in row.fold(room)]
        out = []
        for n, line in enumerate(label + rows):
            ground = CODE_LABEL if n < len(label) else CODE
            padded = (Content(" ") + line).pad_right(room + 1 - line.cell_length)
            out.append(Content(self.rest if n else self.first) + padded.stylize_before(ground))
        return out


@dataclass(slots=True)
class Table:
    """Aligned columns; the widest give way when the width does not hold them all."""

    rows: list[list[Content]]
    marks: Glyphs
    first: str = ""
    rest: str = ""
    gap: bool = True

    def lines(self, width: int) -> list[Content]:
        columns = max(len(row) for row in self.rows)
        room = max(width - cell_len(self.rest) - 3 * (columns - 1), columns)
        widths = [
            max(r[c].cell_length if c < len(r) else 0 for r in self.rows) for c in range(columns)
        ]
        while sum(widths) > room:
            widths[widths.index(max(widths))] -= 1
        bar = f" {self.marks.quote} "
        out = []
        for n, row in enumerate(self.rows):
            cells = [
                cell.truncate(w, ellipsis=True).pad_right(w - min(cell.cell_length, w))
                for cell, w in zip(row, widths, strict=False)
            ]
            line = Content(bar).join(cells)
            out.append(line.stylize("bold") if n == 0 else line)
        cross = self.marks.rule + self.marks.cross + self.marks.rule
        out.insert(1, Content.styled(cross.join(self.marks.rule * w for w in widths), MUTED))
        return [Content(self.rest if n else self.first) + line for n, line in enumerate(out)]


@dataclass(slots=True)
class Rule:
    """A horizontal line."""

    marks: Glyphs
    gap: bool = True

    def lines(self, width: int) -> list[Content]:
        return [Content.styled(self.marks.rule * width, MUTED)]


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    """The parser, imported at the first answer rather than before the first paint."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False})
    return parser.enable(["table", "strikethrough"]).disable(["html_block", "html_inline"])


def blocks(text: str, marks: Glyphs = UNICODE, *, colour: bool = True) -> list[Block]:
    """The blocks of a Markdown text, in order; `colour` False leaves code unhighlighted."""
    from markdown_it.tree import SyntaxTreeNode

    root = SyntaxTreeNode(_parser().parse(text))
    writer = _Writer(marks, colour)
    return [part for node in root.children for part in writer.walk(node, "", "", True)]


def plain(text: str) -> list[Block]:
    """A text as it stands, one block: what users type is not Markdown."""
    return [Prose(Content(text))]


def code(text: str, language: str = "", *, colour: bool = True) -> Code:
    """A piece of code as a block of its own."""
    shown = text.expandtabs(4)
    return Code(_highlight(shown, language) if colour else Content(shown), language)


def layout(parts: Sequence[Block], width: int) -> Content:
    """Blocks as one content of `width` cells, a blank line where a block asks for it."""
    lines: list[Content] = []
    for part in parts:
        if lines and part.gap:
            lines.append(Content(""))
        lines.extend(part.lines(width))
    return Content("\n").join(lines)


def code_blocks(text: str) -> list[str]:
    """The code of every fence or indented block, without its last line break."""
    tokens = _parser().parse(text)
    return [t.content.rstrip("\n") for t in tokens if t.type in ("fence", "code_block")]


def split_finished(text: str) -> int:
    """Where the tail of a growing text begins; what lies before it will not change its look.

    A block is finished by a closing fence, or by a blank line outside a fence that a line at the
    margin follows (an indented one may still belong to the block).
    """
    fence, start, offset, blank = "", 0, 0, False
    for line in text.splitlines(keepends=True):
        whole = line.endswith("\n")
        found = _FENCE.match(line)
        if not fence and blank and line.strip() and not line[0].isspace():
            start = offset
        offset += len(line)
        if found and not fence:
            fence = found[1]
        elif found and found[1].startswith(fence) and not found[2].strip() and whole:
            fence = ""
            start = start if line[0].isspace() else offset
        blank = not fence and not line.strip()
    return start


@dataclass(frozen=True, slots=True)
class _Writer:
    """Turns syntax nodes into blocks; `first` and `rest` are the indents of a block's lines."""

    marks: Glyphs
    colour: bool

    def walk(self, node: SyntaxTreeNode, first: str, rest: str, gap: bool) -> Iterator[Block]:
        """The blocks of one node."""
        if node.type in ("bullet_list", "ordered_list"):
            yield from self._list(node, first, rest, gap)
        elif node.type == "blockquote":
            bar = self.marks.quote + " "
            for n, child in enumerate(node.children):
                lead = rest if n else first
                yield from self.walk(child, lead + bar, rest + bar, gap or n > 0)
        elif node.type in ("fence", "code_block"):
            words = node.info.split() if node.type == "fence" else []
            language = words[0] if words else ""
            block = code(node.content.rstrip("\n"), language, colour=self.colour)
            block.first, block.rest, block.gap = first, rest, gap
            yield block
        elif node.type == "hr":
            yield Rule(self.marks, gap)
        elif node.type == "table":
            rows = [
                [_inline(cell) for cell in row.children]
                for part in node.children
                for row in part.children
            ]
            yield Table(rows, self.marks, first, rest, gap)
        else:
            text = _inline(node)
            yield Prose(text.stylize(HEADING) if node.type == "heading" else text, first, rest, gap)

    def _list(self, node: SyntaxTreeNode, first: str, rest: str, gap: bool) -> Iterator[Block]:
        """The items of a list, each behind its bullet or number."""
        number = int(node.attrs.get("start", 1))
        for n, item in enumerate(node.children):
            ordered = node.type == "ordered_list"
            mark = f"{number + n}. " if ordered else f"{self.marks.bullet} "
            hang = rest + " " * cell_len(mark)
            for m, child in enumerate(item.children):
                loose = child.type == "paragraph" and not child.hidden
                lead = hang if m else (rest if n else first) + mark
                yield from self.walk(child, lead, hang, gap if n + m == 0 else loose)


def _inline(node: SyntaxTreeNode) -> Content:
    """The styled text of a node's inline children."""
    parts: list[tuple[str, str]] = []

    def visit(nodes: Sequence[SyntaxTreeNode], style: str) -> None:
        for child in nodes:
            if child.type in ("softbreak", "hardbreak"):
                parts.append(("\n", style))
            elif child.type == "code_inline":
                parts.append((child.content, f"{style} {INLINE_CODE}".strip()))
            elif child.children:
                visit(child.children, f"{style} {INLINE.get(child.type, '')}".strip())
                if child.type == "link":
                    _link_target(child, parts)
            else:
                parts.append((child.content, style))

    visit(node.children, "")
    return Content.assemble(*parts)


def _link_target(node: SyntaxTreeNode, parts: list[tuple[str, str]]) -> None:
    """Show where a link leads unless its text says so already."""
    target = str(node.attrs.get("href", ""))
    if target and target != parts[-1][0]:
        parts.append((f" ({target})", MUTED))


def _highlight(code: str, language: str) -> Content:
    """Code in the colours of its language; plain when nobody knows the language."""
    if not language:
        return Content(code)
    from textual.highlight import highlight

    return highlight(code, language=language)
