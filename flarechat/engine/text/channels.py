"""Tells what a model thinks, answers and calls apart, in text as it comes.

Thinking comes before the answer, once; what comes after the answer has begun is answer, whatever
marks of thinking are in it. Calls of tools stand anywhere in the answer, between the marks of the
model's own format. In thinking the marks of a call mean nothing, in a call those of thinking.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from flarechat.engine.text.finder import Finder
from flarechat.engine.text.thinking import CLOSE, OPEN, ends_in_thinking, thinks
from flarechat.engine.text.tokenizer import Tokenizer

ANSWER, THINKING, TOOL = "answer", "thinking", "tool"

Piece = tuple[str, str]


class Marks(NamedTuple):
    """The texts that a part of what a model says begins and ends with.

    Without `closing` the part goes on to the end of the text. One that is `first` begins nowhere
    but where nothing of the answer was said before it.
    """

    opening: str
    closing: str = ""
    first: bool = False


_THOUGHT = Marks(OPEN, CLOSE, first=True)


class ChannelRouter:
    """Sends every piece of text to its channel: pairs (channel, text), each text final.

    Pushes and `flush` add up to the same text of each channel however the text was cut. The marks
    of thinking are said to nobody, nor is the blank space around it. A call goes out as it is with
    its marks, so channel "tool" is all `calls` and what is `unclosed`. Of the blank space around
    calls the answer has that of one side, and none at its ends. `begun` is whether the text begins
    inside thinking, as after a prompt that ends with its mark. Its cost is linear in the text.
    """

    def __init__(
        self, thinking: Marks | None = None, tool: Marks | None = None, *, begun: bool = False
    ) -> None:
        self._marks = {THINKING: thinking, TOOL: tool}
        anywhere = [tool.opening] if tool is not None and not tool.first else []
        self._finders = {
            ANSWER: Finder(anywhere),
            THINKING: Finder([thinking.closing] if thinking is not None else []),
            TOOL: Finder([tool.closing] if tool is not None and tool.closing else []),
        }
        self._said = {
            THINKING: _Said(inside=False),
            ANSWER: _Said(inside=True, holds=tool is not None),
        }
        self._lead = None if begun else self._leading(THINKING, TOOL)
        self._call: list[str] = []
        self.channel = THINKING if begun else ANSWER
        self.calls: list[str] = []

    @property
    def unclosed(self) -> str | None:
        """The call that was opened and not closed, as far as it was said."""
        return "".join(self._call) if self.channel == TOOL else None

    def push(self, text: str) -> list[Piece]:
        """What is certain now."""
        pieces: list[Piece] = []
        at = 0
        while at < len(text):
            if self._lead is None:
                said, mark, at = self._finders[self.channel].find(text, at)
                pieces += self._say(said)
            elif (decided := self._lead.push(text[at:])) is not None:
                (mark, text), at, self._lead = decided, 0, None
            else:
                break
            pieces += self._turn(mark) if mark else []
        return _joined(pieces)

    def flush(self) -> list[Piece]:
        """The text has ended: what was held back is text, unless it is blank space around marks."""
        pieces: list[Piece] = []
        if self._lead is not None:
            held, self._lead = self._lead.flush(), None
            pieces += self.push(held)
        pieces += self._say(self._finders[self.channel].flush())
        if self.channel == ANSWER:
            pieces.append((ANSWER, self._said[ANSWER].flush()))
        tool = self._marks[TOOL]
        if self.channel == TOOL and tool is not None and not tool.closing:
            self._close()
        return _joined(pieces)

    def _say(self, text: str) -> list[Piece]:
        """The text on the channel that is open."""
        if self.channel != TOOL:
            return [(self.channel, self._said[self.channel].push(text))]
        self._call.append(text)
        return [(TOOL, text)]

    def _turn(self, mark: str) -> list[Piece]:
        """Go over to the channel behind a mark."""
        thinking, tool = self._marks[THINKING], self._marks[TOOL]
        if self.channel == THINKING:
            self.channel, self._lead = ANSWER, self._leading(TOOL)
            self._said[ANSWER].part()
        elif self.channel == TOOL:
            said = self._say(mark)
            self._close()
            return said
        elif thinking is not None and mark == thinking.opening:
            self.channel = THINKING
        elif tool is not None:
            self._said[ANSWER].part()
            self.channel = TOOL
            return self._say(mark)
        return []

    def _close(self) -> None:
        self.calls.append("".join(self._call))
        self._call.clear()
        self.channel = ANSWER

    def _leading(self, *channels: str) -> _Lead | None:
        """What looks for those of the marks that stand first."""
        marks = [self._marks[channel] for channel in channels]
        openings = [mark.opening for mark in marks if mark is not None and mark.first]
        return _Lead(openings) if openings else None


class _Lead:
    """Nothing but blank space was said: one of the openings may come."""

    def __init__(self, openings: Sequence[str]) -> None:
        self._openings = sorted(openings, key=len)
        self._blank: list[str] = []
        self._begun = ""

    def push(self, text: str) -> tuple[str | None, str] | None:
        """The opening and the text behind it, or None and all the text; None while it is open."""
        body = text if self._begun else text.lstrip()
        self._blank.append(text[: len(text) - len(body)])
        self._begun += body
        for opening in self._openings:
            if self._begun.startswith(opening):
                return opening, self._begun[len(opening) :]
        if any(opening.startswith(self._begun) for opening in self._openings):
            return None
        return None, self.flush()

    def flush(self) -> str:
        return "".join((*self._blank, self._begun))


class _Said:
    """What one channel says, in parts: blank space at their ends is not said, or said once between
    two of them. `inside` is whether the text begins inside of one, so that the blank space there
    is the text's own. One that `holds` none back is never followed by another part.
    """

    def __init__(self, *, inside: bool, holds: bool = True) -> None:
        self._inside, self._holds = inside, holds
        self._blank: list[str] = []
        self._gap = ""
        self._any = False

    def push(self, text: str) -> str:
        """What is certain to be said."""
        if not text:
            return ""
        if text.isspace() and (self._holds or not self._inside):
            self._blank.append(text)
            return ""
        end = len(text.rstrip()) if self._holds else len(text)
        whole = "".join((*self._blank, text[:end]))
        self._blank = [text[end:]]
        if not self._inside:
            body = whole.lstrip()
            gap = self._gap or whole[: len(whole) - len(body)]
            whole = gap + body if self._any else body
        self._inside, self._any, self._gap = True, True, ""
        return whole

    def part(self) -> None:
        """Something else comes between."""
        self._gap = self._gap or "".join(self._blank)
        self._blank, self._inside = [], False

    def flush(self) -> str:
        """The text has ended."""
        return "".join(self._blank) if self._inside else ""


def router_for(
    tokenizer: Tokenizer, prompt: Sequence[int], tool: Marks | None = None
) -> ChannelRouter | None:
    """The router of an answer to this prompt, with the marks of calls if tools may be called; None
    for a model that says no marks.
    """
    thinking = _THOUGHT if thinks(tokenizer) else None
    if thinking is None and tool is None:
        return None
    return ChannelRouter(thinking, tool, begun=ends_in_thinking(tokenizer, prompt))


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Neighbours of one channel as one, and none that is empty."""
    spoken = [piece for piece in pieces if piece[1]]
    return [
        (channel, "".join(text for _, text in group))
        for channel, group in groupby(spoken, key=lambda piece: piece[0])
    ]
