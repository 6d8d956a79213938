"""The chat screen: header, transcript, panels, prompt, and the timer that moves them.

Owns the layout by size and the keys of the chat. Asks the bridge for everything that is not on
the screen.
"""

from __future__ import annotations

import os
import time
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.screen import Screen

from flarechat.errors import FlarechatError, UsageError
from flarechat.textsafe import strip_controls
from flarechat.ui import clipboard, editor, messages, slash
from flarechat.ui.bridge import Beat, Bridge, Pace
from flarechat.ui.dashboard import Dashboard
from flarechat.ui.desk import Desk
from flarechat.ui.format import Glyphs
from flarechat.ui.widgets.lines import Header, KeyBar, Line
from flarechat.ui.widgets.panels import CompactPanel, all_panels
from flarechat.ui.widgets.prompt import Prompt
from flarechat.ui.widgets.transcript import Transcript

QUIT_WINDOW = 2.0


class ChatScreen(Screen[None]):
    """Chat first; telemetry beside or below it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "escape", "Stop, or back to the prompt", id="chat.stop"),
        Binding("ctrl+c", "interrupt", "Copy, stop, clear, quit", id="chat.interrupt",
                priority=True),
        Binding("ctrl+n", "new_chat", "New chat", id="chat.new"),
        Binding("ctrl+o", "sessions", "Sessions", id="chat.sessions"),
        Binding("ctrl+t", "density", "Telemetry off, compact, full", id="chat.telemetry"),
        Binding("ctrl+g,f4", "editor", "Prompt in $EDITOR", id="chat.editor"),
        Binding("ctrl+r", "history", "Search prompt history", id="chat.history"),
        Binding("f1", "keys", "Keys", id="chat.keys"),
        Binding("f2", "settings", "Settings", id="chat.settings"),
        Binding("shift+tab,ctrl+up", "turn_mode", "Turn mode", id="chat.turns", priority=True),
        Binding("ctrl+end", "follow", "Follow the answer", id="chat.follow"),
    ]  # fmt: skip

    def __init__(self, bridge: Bridge, marks: Glyphs, interval: float) -> None:
        super().__init__()
        self.bridge, self.marks = bridge, marks
        self.desk = Desk(self)
        self.dashboard = Dashboard(self, bridge, marks)
        self.pace = Pace(interval)
        self._interrupted_at = float("-inf")

    def compose(self) -> ComposeResult:
        yield Header(self.marks, "header")
        with Horizontal(id="body"):
            yield Transcript(self.marks)
            with VerticalScroll(id="side", can_focus=False):
                yield from all_panels(self.marks, self.name_origin)
        yield CompactPanel(self.marks)
        yield Line(self.marks, "hint")
        yield Prompt()
        yield Line(self.marks, "last")
        yield KeyBar(self.marks, "keys")

    async def on_mount(self) -> None:
        self.prompt.focus()
        await self.show_conversation()
        self.dashboard.refresh()
        self.set_timer(self.pace.interval, self.tick)

    @property
    def prompt(self) -> Prompt:
        return self.query_one(Prompt)

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)

    # Time

    def tick(self) -> None:
        """Beat, then come back after a while that depends on what the beat cost."""
        began = time.perf_counter()
        self.beat()
        self.set_timer(self.pace.after(time.perf_counter() - began), self.tick)

    def beat(self) -> None:
        """Take in what the engine said and draw what changed."""
        self.show_beat(self.bridge.pump())
        self.dashboard.refresh()

    def show_beat(self, beat: Beat) -> None:
        """Draw one pump's changes."""
        transcript = self.transcript
        for turn in beat.added:
            transcript.add(turn)
        for turn in beat.touched:
            transcript.touch(turn)
        for remark in beat.remarks:
            transcript.note(remark, warning=True)
        if beat.returned:
            self.prompt.put_back(beat.returned)
        if beat.added or beat.returned:
            transcript.show_queue(self.bridge.queue)

    # Size

    def on_resize(self, event: events.Resize) -> None:
        self.dashboard.fit(event.size.width, event.size.height)

    def name_origin(self, origin: str) -> str:
        """Where a copy came from, in words."""
        for number, turn in enumerate(self.bridge.conversation.turns, start=1):
            if turn.id == origin:
                return f"turn #{number}"
        return "another chat"

    # Messages from widgets

    def on_prompt_submitted(self, message: messages.PromptSubmitted) -> None:
        try:
            parsed = slash.parse(message.text)
        except UsageError as error:
            self.prompt.put_back(message.text)
            self.tell(error)
            return
        if isinstance(parsed, str):
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

    def on_prompt_wanted(self) -> None:
        self.prompt.focus()

    def on_follow_asked(self) -> None:
        self.action_follow()

    def on_quit_asked(self) -> None:
        self.app.exit()

    def remark(self, text: str) -> None:
        """Say one passing sentence."""
        self.notify(strip_controls(text), markup=False, timeout=4)

    def tell(self, error: FlarechatError) -> None:
        """Say what went wrong, where it stays readable."""
        self.transcript.note(f"Error: {error}", warning=True)

    def copy(self, text: str, what: str) -> None:
        """Put a text on the clipboard and say so."""
        self.app.copy_to_clipboard(text)
        if not os.environ.get("SSH_CONNECTION"):
            self.run_worker(lambda: clipboard.copy(text), thread=True, exit_on_error=False)
        self.remark(f"Copied {what}, {len(text)} characters.")

    async def show_conversation(self) -> None:
        """Draw the conversation of the bridge from its start."""
        conversation = self.bridge.conversation
        await self.transcript.show(conversation.turns)
        self.transcript.show_queue(self.bridge.queue)
        for turn in conversation.turns:
            if turn.role == "user":
                self.prompt.remember(turn.text)
        self.dashboard.hurry()

    # Keys

    def action_escape(self) -> None:
        if self.bridge.conversation.live is not None or self.bridge.queue:
            self.show_beat(self.bridge.stop())
            self.dashboard.hurry()
        elif not self.prompt.has_focus:
            self.prompt.focus()
        else:
            self.clear_selection()

    def action_interrupt(self) -> None:
        selected = self.get_selected_text() or self.prompt.selected_text
        now = self.bridge.clock()
        if selected:
            self.copy(selected, "selection")
            self.clear_selection()
        elif self.bridge.conversation.live is not None:
            self.action_escape()
        elif self.prompt.text:
            self.prompt.empty()
        elif now - self._interrupted_at < QUIT_WINDOW:
            self.app.exit()
        else:
            self._interrupted_at = now
            self.remark("Press ctrl+c again to quit.")

    async def action_new_chat(self) -> None:
        waiting = self.bridge.new()
        await self.show_conversation()
        self.show_beat(Beat(returned=waiting))

    async def resume(self, name: str) -> None:
        """Open a saved conversation; when that fails, say why and go on."""
        try:
            waiting = self.bridge.resume(name)
        except FlarechatError as error:
            self.tell(error)
            return
        await self.show_conversation()
        self.show_beat(Beat(returned=waiting))

    def action_sessions(self) -> None:
        from flarechat.ui.screens.sessions import SessionsScreen

        current = self.bridge.conversation.name

        async def opened(name: str | None) -> None:
            if name and name != current:
                await self.resume(name)

        self.app.push_screen(SessionsScreen(current), opened)

    def action_density(self) -> None:
        density = self.dashboard.next_density()
        if density == "full" and not self.dashboard.wide:
            from flarechat.ui.screens.telemetry import TelemetryScreen

            self.app.push_screen(TelemetryScreen(self), self._telemetry_left)
        else:
            self.dashboard.choose(density)

    def _telemetry_left(self, density: str | None) -> None:
        self.dashboard.choose(density or "compact")

    def action_editor(self) -> None:
        try:
            text = editor.edit(self.app, self.prompt.whole)
        except FlarechatError as error:
            self.tell(error)
            return
        self.prompt.put(text)

    def action_history(self) -> None:
        from flarechat.ui.screens.history import HistoryScreen

        def chosen(text: str | None) -> None:
            if text is not None:
                self.prompt.put(text)

        self.app.push_screen(HistoryScreen(self.prompt.past), chosen)

    def action_keys(self) -> None:
        from flarechat.ui.screens.keys import KeysScreen

        self.app.push_screen(KeysScreen())

    def action_settings(self) -> None:
        from flarechat.ui.screens.settings import SettingsScreen

        bridge = self.bridge
        recommended = bridge.model.recommended if bridge.model else None
        self.app.push_screen(SettingsScreen(bridge.settings, recommended), self.desk.adopt)

    def action_turn_mode(self) -> None:
        if self.bridge.conversation.turns:
            self.transcript.focus()

    def action_follow(self) -> None:
        self.transcript.follow()

    def action_page(self, step: int) -> None:
        if step < 0:
            self.transcript.scroll_page_up(animate=False)
        else:
            self.transcript.scroll_page_down(animate=False)
