"""The token inspector: where every token of an answer came from, and all that is known of one.

Owns what is said of a token. Asks the board for texts, which the engine has, and reads turns.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from flarechat.chat import Turn
from flarechat.protocol import TokenLogprob
from flarechat.sessions.provenance import COPIES
from flarechat.ui.format import Glyphs, count
from flarechat.ui.played import RoundOf, round_at
from flarechat.ui.widgets.lines import Line
from flarechat.ui.widgets.tokens import STYLES, TokenGrid, escaped

if TYPE_CHECKING:
    from flarechat.ui.bridge import Bridge
    from flarechat.ui.widgets.panels import Namer

NAMES = {
    "m": "MTP", "h": "history", "c": "context", "g": "grammar",
    "-": "correction", "+": "own", "?": "not known",
}  # fmt: skip
MEANINGS = {
    "m": "drafted by the MTP head",
    "h": "copied from {origin}",
    "c": "copied from this chat's own text",
    "g": "given by the grammar",
    "-": "the model's own, in place of a draft it refused",
    "+": "the model's own, behind the drafts it kept",
    "?": "not known: taken up from text",
}
LOOK_S = 0.25


class TokensScreen(Screen[None]):
    """The tokens of one answer; grows with it while it is written."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,i,q,enter", "close", "Back", id="tokens.close", show=False),
    ]

    def __init__(
        self, bridge: Bridge, turn: Turn, number: int, marks: Glyphs, origin: Namer
    ) -> None:
        """`number` is the turn's in the chat, `origin` says where a copy came from."""
        super().__init__()
        self._bridge, self._turn, self._number = bridge, turn, number
        self._marks, self._origin = marks, origin
        self._rounds: list[RoundOf] = []
        self._shown: tuple[int, int, bool] | None = None

    def compose(self) -> ComposeResult:
        marks = self._marks
        yield Line(marks, "tokens-head")
        yield Static("", id="legend", markup=False)
        yield TokenGrid(marks)
        yield Static("", id="token", markup=False)
        yield Line(marks, "tokens-keys")

    def on_mount(self) -> None:
        self.query_one("#tokens-keys", Line).say(
            " esc back  arrows move  n N next source  g G first, last"
        )
        self.query_one(TokenGrid).focus()
        self.look()
        self.set_interval(LOOK_S, self.look)

    @property
    def spelled(self) -> bool:
        """Whether the loaded model is the one whose tokens these are."""
        model = self._bridge.model
        return model is not None and self._turn.model_fingerprint in ("", model.fingerprint)

    def look(self) -> None:
        """Show what came since the last look: tokens, and what they say."""
        turn, board = self._turn, self._bridge.board
        if self.spelled:
            board.spell(turn.tokens)
        now = (len(turn.tokens), len(board.texts), self.spelled)
        if now == self._shown:
            return
        self._shown = now
        self._rounds = self._bridge.played.rounds(turn)
        known = board.texts if self.spelled else {}
        self.query_one(TokenGrid).show([known.get(id_) for id_ in turn.tokens], turn.sources)
        rounds = len(self._rounds)
        self.query_one("#tokens-head", Line).say(
            f" Tokens of #{self._number}: {len(turn.tokens)} in {rounds} rounds"
            + ("" if self.spelled else ", of a model that is not loaded: numbers only")
        )
        self.query_one("#legend", Static).update(self._legend())
        self._tell()

    def on_token_grid_moved(self) -> None:
        self._tell()

    def _legend(self) -> Content:
        """How many tokens came from where, each in its colour."""
        counts, line = Counter(self._turn.sources), Content(" ")
        for letter, name in NAMES.items():
            if counts[letter]:
                said = f"{letter} {name} {count(counts[letter])}"
                line += Content.styled(said, STYLES[letter]) + Content("  ")
        return line

    def _tell(self) -> None:
        """Say what is known of the token under the cursor."""
        grid = self.query_one(TokenGrid)
        self.query_one("#token", Static).update("\n".join(self._facts(grid.cursor)))

    def _facts(self, at: int) -> list[str]:
        turn = self._turn
        if at >= len(turn.tokens):
            return ["No token yet."]
        id_ = turn.tokens[at]
        text = self._bridge.board.texts.get(id_) if self.spelled else None
        said = f'"{escaped(text)}"' if text is not None else "text not known"
        where = round_at(self._rounds, at)
        played = self._rounds[where]
        return [
            f"token {at + 1} of {len(turn.tokens)}   id {id_}   {said}",
            f"source {turn.sources[at]} {self._source(at)}",
            f"round {where + 1} of {len(self._rounds)}, its token {at - played.first + 1} of "
            f"{played.emitted}: {_kept(played)}",
            _chance(played.logprobs, at - played.first),
        ]

    def _source(self, at: int) -> str:
        """Where a token came from, in words."""
        letter = self._turn.sources[at]
        run = next((r for r in self._turn.copied if r[0] <= at < r[0] + r[1]), None)
        origin = self._origin(run[2]) if run and run[2] else "what was written before"
        said = MEANINGS[letter].format(origin=origin)
        if run and letter in COPIES:
            said += f", {at - run[0] + 1} of {run[1]} in a row"
        return said

    def action_close(self) -> None:
        self.dismiss(None)


def _kept(played: RoundOf) -> str:
    if played.offered is None:
        return "how many drafts it had was not saved"
    return f"{played.accepted} of {played.offered} drafts accepted"


def _chance(logprobs: tuple[TokenLogprob, ...], at: int) -> str:
    """The probability of a token and of the likeliest in its place."""
    if at >= len(logprobs):
        return "probability not asked for (--logprobs N)"
    told = logprobs[at]
    top = "  ".join(f'"{escaped(one.token)}" {math.exp(one.logprob):.1%}' for one in told.top)
    return f"probability {math.exp(told.logprob):.1%} (log {told.logprob:.3f})   {top}".rstrip()
