"""The chats open in the window: opening, closing, going from one to another.

Owns the panes, which of them is shown, and the beat of those that are not. The chat screen asks it
for the present pane.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from flarechat.errors import UsageError
from flarechat.sessions import names, store
from flarechat.ui.beat import Beat
from flarechat.ui.board import Board
from flarechat.ui.bridge import Bridge
from flarechat.ui.format import Glyphs
from flarechat.ui.panes import Pane
from flarechat.ui.widgets.tabbar import TabBar

if TYPE_CHECKING:
    from flarechat.ui.screens.chat import ChatScreen

MOST = 9


class Tabs:
    """All panes of one chat screen; one is shown."""

    def __init__(self, screen: ChatScreen, bridge: Bridge, marks: Glyphs) -> None:
        self._screen, self._marks = screen, marks
        self.panes = [Pane(bridge, marks)]
        self.at = 0

    @property
    def board(self) -> Board:
        """The engine of all of them."""
        return self.current.bridge.board

    @property
    def current(self) -> Pane:
        """The pane that is shown."""
        return self.panes[self.at]

    def name_origin(self, origin: str) -> str:
        """Where a copy came from, in words: a turn of the chat shown, or of another tab's."""
        for pane in (self.current, *self.panes):
            for number, turn in enumerate(pane.bridge.conversation.turns, start=1):
                if turn.id == origin:
                    place = "" if pane is self.current else f" of {pane.bridge.title}"
                    return f"turn #{number}{place}"
        return "another chat"

    # Time

    def beat(self) -> None:
        """Take in what the engine said to every chat; draw what changed in the one shown."""
        self.board.drain()
        for pane in (self.current, *(pane for pane in self.panes if pane is not self.current)):
            beat = pane.bridge.take()
            if pane is self.current:
                beat.remarks[:0] = self.board.take_news()
                pane.draw(beat)
            else:
                pane.keep(beat)
        self.refresh()

    def refresh(self) -> None:
        """Bring the row of tabs up to date, and the layout to whether there is a fan to see."""
        self._screen.set_class(self.current.fan.display, "-choosing")
        bar = self._screen.query_one(TabBar)
        if len(self.panes) > 1 or bar.display:
            bar.show([pane.state for pane in self.panes], self.at)

    # Opening

    async def new(self) -> None:
        """Begin another chat in a tab of its own; where nothing was said yet, in this one."""
        if self.current.untouched:
            await self._screen.clear()
        else:
            await self._open(lambda bridge: "")

    async def resume(self, name: str) -> None:
        """Go to the tab of a saved chat, or open it: in this tab while it is empty, else in
        another.
        """
        path = store.find(name)
        wanted = path.name.removesuffix(names.SUFFIX)
        for number, pane in enumerate(self.panes):
            if pane.bridge.conversation.name == wanted:
                await self.go(number)
                return
        if self.current.untouched:
            self.current.bridge.resume(wanted)
            await self._drawn()
        else:
            await self._open(lambda bridge: bridge.resume(wanted))

    async def _open(self, begin: Callable[[Bridge], str]) -> None:
        if len(self.panes) >= MOST:
            raise UsageError(f"{MOST} tabs are open.", "Close one first: /tab close.")
        board, settings = self.board, self.current.bridge.settings
        bridge = Bridge(board.engine, settings, board.clock, board)
        try:
            begin(bridge)
            bridge.take_over(self.current.bridge)
        except BaseException:
            bridge.close()
            raise
        pane = Pane(bridge, self._marks)
        for text in self.current.prompt.past:
            pane.prompt.remember(text)
        self.panes.append(pane)
        await self._screen.mount_pane(pane)
        await pane.show_conversation()
        await self.go(len(self.panes) - 1)

    # Going

    async def go(self, number: int) -> None:
        """Show a tab, from 0."""
        if not 0 <= number < len(self.panes):
            raise UsageError(f"There is no tab {number + 1}.", f"Tabs are 1 to {len(self.panes)}.")
        self.at = number
        for pane in self.panes:
            pane.box.display = pane.prompt.display = pane is self.current
        await self._drawn(anew=False)

    async def step(self, by: int) -> None:
        """Show the tab so many further on, round and round."""
        if len(self.panes) == 1:
            self._screen.remark("There is one tab; ctrl+n opens another.")
            return
        await self.go((self.at + by) % len(self.panes))

    async def _drawn(self, *, anew: bool = True) -> None:
        pane = self.current
        if anew:
            await pane.show_conversation()
        pane.unread = False
        pane.draw(Beat())
        pane.fan.fit()
        pane.focus()
        self.refresh()
        self._screen.dashboard.hurry()
        self._screen.dashboard.refresh()

    # Closing

    async def close(self) -> None:
        """Close the present tab: its answer is stopped, the chat is saved."""
        if len(self.panes) == 1:
            raise UsageError("This is the only tab.", "ctrl+q leaves.")
        pane = self.current
        if pane.bridge.queue:
            raise UsageError(
                "Messages wait to be sent in this tab.", "Press esc to take them back."
            )
        pane.bridge.close()
        self.board.unsaved |= pane.bridge.conversation.unsaved
        del self.panes[self.at]
        await pane.box.remove()
        await pane.prompt.remove()
        await self.go(min(self.at, len(self.panes) - 1))
        self.current.draw(Beat(remarks=pane.bridge.conversation.notices))

    def adopt_theme(self, theme: str) -> None:
        """Make a theme the one of every chat: it is the window's."""
        for pane in self.panes:
            pane.bridge.settings = dataclasses.replace(pane.bridge.settings, theme=theme)
