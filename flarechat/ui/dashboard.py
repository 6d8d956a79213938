"""Keeps header, panels and status lines at the bridge's figures.

Owns how often they are looked at and the layout by size. Draws nothing itself: each line and panel
redraws only when its own figures changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flarechat.textsafe import strip_controls
from flarechat.ui.bridge import Bridge
from flarechat.ui.format import Glyphs, seconds
from flarechat.ui.widgets.lines import Header, HeaderState, Line, last_turn_text
from flarechat.ui.widgets.panels import Panel
from flarechat.ui.widgets.prompt import Prompt
from flarechat.ui.widgets.side import Side
from flarechat.ui.wishes import CALLING

if TYPE_CHECKING:
    from flarechat.ui.screens.chat import ChatScreen

DENSITIES = ("off", "compact", "full")
WIDE = (110, 30)
FOLD = (60, 18)
INTERVAL = 0.24
PROMPT_HINTS = "enter send  ctrl+j newline  / commands"


def roomy(width: int, height: int) -> bool:
    """Whether panels fit beside the chat in this size."""
    return width >= WIDE[0] and height >= WIDE[1]


class Dashboard:
    """The figures of one chat screen and where they are shown."""

    def __init__(self, screen: ChatScreen, marks: Glyphs) -> None:
        self._screen, self._marks = screen, marks
        self._chosen = ""
        self._looked_at = float("-inf")

    @property
    def _bridge(self) -> Bridge:
        return self._screen.bridge

    def hurry(self) -> None:
        """Look again at the next refresh, whenever the last one was."""
        self._looked_at = float("-inf")

    def refresh(self) -> None:
        """Show what changed; panels and header only every INTERVAL."""
        self._show_hint()
        now = self._bridge.clock()
        if now - self._looked_at < INTERVAL:
            return
        self._looked_at = now
        view = self._bridge.view()
        for panel in self._screen.query(Panel):
            panel.show(view)
        self._screen.query_one(Side).fit()
        self._screen.query_one(Header).show(self._header(view.now))
        self._screen.query_one("#last", Line).say(self._last_turn())

    def _header(self, speed: float) -> HeaderState:
        bridge = self._bridge
        return HeaderState(
            model=bridge.model.name if bridge.model else Path(bridge.settings.model).name,
            session=bridge.conversation.name or "new chat",
            mode=f"fan {len(bridge.conversation.fan)}" if bridge.conversation.fan else "chat",
            used=bridge.used,
            context=bridge.model.context if bridge.model else 0,
            state=bridge.state,
            detail=self._detail(),
            speed=speed if bridge.state == "GEN" else 0.0,
            off=bridge.off,
            held=bridge.held,
            folded=self._screen.has_class("-tiny"),
        )

    def _detail(self) -> str:
        bridge, loading = self._bridge, self._bridge.loading
        share = f"{100 * loading.done / loading.total:.0f}%" if loading.total else ""
        if bridge.state == "LOADING":
            return f"{loading.stage} {share}".rstrip()
        if bridge.state == "PREFILL":
            return f"{share} {seconds(bridge.elapsed)}".lstrip()
        if bridge.state == "WAITING":
            return f"for a free lane {seconds(bridge.elapsed)}"
        if bridge.state in CALLING:
            call = bridge.conversation.waiting or bridge.conversation.running
            return strip_controls(call.name) if call else ""
        return seconds(bridge.elapsed) if bridge.state == "GEN" else ""

    def _last_turn(self) -> str:
        last, conversation = self._bridge.last, self._bridge.conversation
        if last is None:
            return "not saved: the disk refuses" if conversation.unsaved else ""
        width = self._screen.size.width
        turns = [*conversation.turns, *conversation.fan[:1]]
        if conversation.fan:
            turns[-1] = conversation.fan[conversation.marked]
        shown = (n for n, turn in enumerate(turns, start=1) if turn.finished is last)
        number = next(shown, len(turns))
        return last_turn_text(number, last, not conversation.unsaved, width)

    def _show_hint(self) -> None:
        transcript = self._screen.transcript
        unseen = transcript.unseen_lines()
        hint = "" if transcript.following else f"{self._marks.down} {unseen} new  End = follow"
        line = self._screen.query_one("#hint", Line)
        if hint != line.text:
            transcript.border_subtitle = hint
            line.say(hint)
            line.set_class(bool(hint), "-shown")

    # Layout by size

    @property
    def wide(self) -> bool:
        """Whether there is room for panels beside the chat."""
        return self._screen.has_class("-wide")

    @property
    def density(self) -> str:
        """The density in force: full needs room, else it is a screen of its own."""
        if not self._chosen:
            return "full" if self.wide else "compact"
        return "compact" if self._chosen == "full" and not self.wide else self._chosen

    def choose(self, density: str) -> None:
        """The user asked for a density."""
        self._chosen = density
        self.fit(*self._screen.size)

    def next_density(self) -> str:
        """The density after the present one."""
        return DENSITIES[(DENSITIES.index(self.density) + 1) % len(DENSITIES)]

    def fit(self, width: int, height: int) -> None:
        """Choose the layout for a size."""
        screen = self._screen
        screen.set_class(roomy(width, height), "-wide")
        screen.set_class(width < FOLD[0] or height < FOLD[1], "-tiny")
        density = self.density
        for name in DENSITIES:
            screen.set_class(name == density, f"-{name}")
        for prompt in screen.query(Prompt):
            prompt.border_subtitle = PROMPT_HINTS if width >= FOLD[0] else ""
        self.hurry()
