"""The chat screen: header, tabs, transcript, panels, prompt, and the timer that moves them.

Owns the layout by size and the keys of the chat. Asks the bridge of the chat shown for everything
that is not on the screen.
"""

from __future__ import annotations

import os
import time
from collections.abc import Coroutine
from typing import Any, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical

from flarechat.errors import FlarechatError, UsageError
from flarechat.textsafe import strip_controls
from flarechat.ui import clipboard, messages, slash
from flarechat.ui.beat import Beat, Pace
from flarechat.ui.bridge import Bridge
from flarechat.ui.dashboard import Dashboard
from flarechat.ui.desk import Desk
from flarechat.ui.format import Glyphs
from flarechat.ui.panes import Pane
from flarechat.ui.screens.asking import Asking
from flarechat.ui.tabs import Tabs
from flarechat.ui.verbs import Verbs
from flarechat.ui.widgets.lines import Header, KeyBar, Line
from flarechat.ui.widgets.panels import CompactPanel
from flarechat.ui.widgets.side import Side
from flarechat.ui.widgets.tabbar import TabBar
from flarechat.ui.widgets.transcript import Transcript

QUIT_WINDOW = 2.0


class ChatScreen(Asking):
    """Chat first; telemetry beside or below it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "escape", "Stop, or back to the prompt", id="chat.stop"),
        Binding("ctrl+c", "interrupt", "Copy, stop, clear, quit", id="chat.interrupt",
                priority=True),
        Binding("ctrl+n", "new_chat", "New chat", id="chat.new"),
        Binding("f7,ctrl+pageup", "step_tab(-1)", "Tab before", id="tab.before", priority=True),
        Binding("f9,ctrl+pagedown", "step_tab(1)", "Next tab", id="tab.next", priority=True),
        Binding("ctrl+o", "sessions", "Sessions", id="chat.sessions"),
        Binding("ctrl+t", "density", "Telemetry off, compact, full", id="chat.telemetry"),
        Binding("ctrl+g,f4", "editor", "Prompt in $EDITOR", id="chat.editor"),
        Binding("ctrl+r", "history", "Search prompt history", id="chat.history"),
        Binding("f1", "keys", "Keys", id="chat.keys"),
        Binding("f2", "settings", "Settings", id="chat.settings"),
        Binding("f8", "constraint", "Constraint and tools", id="chat.constraint"),
        Binding("shift+tab,ctrl+up", "turn_mode", "Turn mode", id="chat.turns", priority=True),
        Binding("ctrl+end", "follow", "Follow the answer", id="chat.follow"),
    ]  # fmt: skip

    def __init__(self, bridge: Bridge, marks: Glyphs, interval: float) -> None:
        super().__init__()
        self.marks = marks
        self.tabs = Tabs(self, bridge, marks)
        self.desk, self.verbs = Desk(self), Verbs(self)
        self.dashboard = Dashboard(self, marks)
        self.pace = Pace(interval)
        self._interrupted_at = float("-inf")

    def compose(self) -> ComposeResult:
        yield Header(self.marks, "header")
        yield TabBar(self.marks, "tabs")
        with Horizontal(id="body"):
            yield self.tabs.current.box
            yield Side(self.marks, self.tabs.name_origin)
        yield CompactPanel(self.marks)
        yield Line(self.marks, "hint")
        with Vertical(id="prompts"):
            yield self.tabs.current.prompt
        yield Line(self.marks, "last")
        yield KeyBar(self.marks, "keys")

    async def on_mount(self) -> None:
        self.query_one(TabBar).display = False
        self.prompt.focus()
        await self.show_conversation()
        self.dashboard.refresh()
        self.set_timer(self.pace.interval, self.tick)

    async def mount_pane(self, pane: Pane) -> None:
        """Put a new chat's widgets behind those of the others, hidden."""
        pane.box.display = pane.prompt.display = False
        await self.query_one("#body").mount(pane.box, before="#side")
        await self.query_one("#prompts").mount(pane.prompt)
        self.dashboard.fit(*self.size)

    @property
    def bridge(self) -> Bridge:
        """The chat that is shown."""
        return self.tabs.current.bridge

    @property
    def transcript(self) -> Transcript:
        """The transcript of the chat shown."""
        return self.tabs.current.transcript

    # Time

    def tick(self) -> None:
        """Beat, then come back after a while that depends on what the beat cost."""
        began = time.perf_counter()
        self.beat()
        self.set_timer(self.pace.after(time.perf_counter() - began), self.tick)

    def beat(self) -> None:
        """Take in what the engine said and draw what changed."""
        self.tabs.beat()
        self.attend()
        self.dashboard.refresh()

    # Size

    def on_resize(self, event: events.Resize) -> None:
        self.dashboard.fit(event.size.width, event.size.height)
        self.tabs.current.fan.fit()

    # Messages from widgets

    def on_prompt_submitted(self, message: messages.PromptSubmitted) -> None:
        try:
            parsed = slash.parse(message.text)
        except UsageError as error:
            self.prompt.put_back(message.text)
            self.tell(error)
            return
        if isinstance(parsed, str) and self.tabs.current.editing:
            self.run_worker(self.verbs.say_instead(parsed), group="commands")
        elif isinstance(parsed, str):
            self.send(parsed)
        else:
            self.run_worker(self.desk.run(parsed), group="commands")

    def send(self, text: str) -> None:
        """Send or queue one message; on failure its text goes back into the prompt."""
        try:
            added = self.bridge.send(text)
        except FlarechatError as error:
            self.prompt.put_back(text)
            self.tell(error)
            return
        self.transcript.follow()
        self.show_beat(Beat(added=added))
        self.transcript.show_queue(self.bridge.queue)
        self.dashboard.hurry()

    def on_copy_asked(self, message: messages.CopyAsked) -> None:
        self.copy(message.text, message.what)

    def on_remarked(self, message: messages.Remarked) -> None:
        self.remark(message.text)

    def on_prompt_wanted(self, message: messages.PromptWanted) -> None:
        self.prompt.focus()
        if message.typed:
            self.prompt.insert(message.typed)

    def on_follow_asked(self) -> None:
        self.action_follow()

    async def on_leave_asked(self) -> None:
        if len(self.tabs.panes) > 1:
            await self.close_tab()
        else:
            self.app.exit()

    def on_answer_marked(self, message: messages.AnswerMarked) -> None:
        self.action_mark_answer(message.number)

    def on_answer_picked(self, message: messages.AnswerPicked) -> None:
        self.action_pick_answer(message.number)

    async def on_branch_asked(self, message: messages.BranchAsked) -> None:
        try:
            await self.verbs.step(message.turn, message.step)
        except FlarechatError as error:
            self.tell(error)

    async def on_verb_asked(self, message: messages.VerbAsked) -> None:
        await self.verbs.run(message.verb, message.turn)

    def on_turn_mode_changed(self, message: messages.TurnModeChanged) -> None:
        self.query_one(KeyBar).show(turns=message.entered)

    def remark(self, text: str) -> None:
        """Say one passing sentence."""
        self.notify(strip_controls(text), markup=False, timeout=4)

    def copy(self, text: str, what: str) -> None:
        """Put a text on the clipboard and say so."""
        self.app.copy_to_clipboard(text)
        if not os.environ.get("SSH_CONNECTION"):
            self.run_worker(lambda: clipboard.copy(text), thread=True, exit_on_error=False)
        self.remark(f"Copied {what}, {len(text)} characters.")

    async def show_conversation(self) -> None:
        """Draw the conversation shown from its start."""
        await self.tabs.current.show_conversation()
        self.dashboard.hurry()

    # Keys

    def action_escape(self) -> None:
        if self.bridge.busy or self.bridge.queue:
            self.show_beat(self.bridge.stop())
            self.dashboard.hurry()
        elif not self.prompt.has_focus:
            self.prompt.focus()
        elif self.tabs.current.editing:
            self.tabs.current.leave_edit()
        else:
            self.clear_selection()

    async def action_verb(self, verb: str) -> None:
        if turn := self.transcript.selected:
            await self.verbs.run(verb, turn)

    def action_interrupt(self) -> None:
        selected = self.get_selected_text() or self.prompt.selected_text
        now = self.bridge.clock()
        if selected:
            self.copy(selected, "selection")
            self.clear_selection()
        elif self.bridge.busy:
            self.action_escape()
        elif self.prompt.text:
            self.prompt.empty()
        elif now - self._interrupted_at < QUIT_WINDOW:
            self.app.exit()
        else:
            self._interrupted_at = now
            self.remark("Press ctrl+c again to quit.")

    async def action_new_chat(self) -> None:
        await self._tabbed(self.tabs.new())

    async def clear(self) -> None:
        """Start over in a new chat in the place of the present one, which stays saved."""
        waiting = self.bridge.new()
        await self.show_conversation()
        self.show_beat(Beat(returned=waiting))

    async def action_tab(self, number: int) -> None:
        await self._tabbed(self.tabs.go(number))

    async def action_step_tab(self, by: int) -> None:
        await self._tabbed(self.tabs.step(by))

    async def close_tab(self) -> None:
        """Close the tab shown."""
        await self._tabbed(self.tabs.close())

    async def _tabbed(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except FlarechatError as error:
            self.tell(error)

    def action_mark_answer(self, number: int) -> None:
        pane = self.tabs.current
        if number < len(pane.bridge.conversation.fan):
            pane.bridge.conversation.marked = number
            pane.fan.mark(number)
            self.dashboard.hurry()
            self.dashboard.refresh()

    def action_pick_answer(self, number: int) -> None:
        try:
            self.bridge.pick(number)
        except FlarechatError as error:
            self.tell(error)
            return
        self.picked()

    def picked(self) -> None:
        """An answer was picked: it stands in the transcript now."""
        self.transcript.follow()
        self.show_beat(Beat(touched=[self.bridge.conversation.turns[-1]]))
        self.tabs.current.focus()
        self.dashboard.hurry()

    def action_density(self) -> None:
        density = self.dashboard.next_density()
        if density == "full" and not self.dashboard.wide:
            from flarechat.ui.screens.telemetry import TelemetryScreen

            self.app.push_screen(TelemetryScreen(self), self._telemetry_left)
        else:
            self.dashboard.choose(density)

    def _telemetry_left(self, density: str | None) -> None:
        self.dashboard.choose(density or "compact")

    def action_turn_mode(self) -> None:
        pane = self.tabs.current
        if pane.question.waits and not pane.question.has_it:
            pane.question.take_focus()
        elif pane.fan.display and not pane.fan.has_focus:
            pane.fan.focus()
        elif self.bridge.conversation.turns:
            self.transcript.focus()

    def action_follow(self) -> None:
        self.transcript.follow()

    def action_page(self, step: int) -> None:
        if step < 0:
            self.transcript.scroll_page_up(animate=False)
        else:
            self.transcript.scroll_page_down(animate=False)
