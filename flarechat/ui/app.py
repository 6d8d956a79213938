"""The terminal application: the chat screen, what stands above it, and how it ends.

Owns start and end: theme, signals, sizes too small to draw, crash reports, the exit code. Imports
no torch; the engine is a process behind protocol.EngineDoor.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterable
from functools import partial
from typing import ClassVar

from textual import events
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen

from flarechat import paths
from flarechat.config import Settings
from flarechat.errors import EXIT_USAGE, FlarechatError, UsageError, print_error
from flarechat.protocol import EngineDoor
from flarechat.textsafe import strip_controls
from flarechat.ui import terminal, themes
from flarechat.ui.board import Board, Clock
from flarechat.ui.bridge import Bridge
from flarechat.ui.format import Glyphs, glyphs
from flarechat.ui.screens.chat import ChatScreen
from flarechat.ui.screens.small import TooSmallScreen, too_small

INTERVAL, SLOW_INTERVAL = 0.1, 0.25


class FlarechatApp(App[None]):
    """One window of chats over one engine door."""

    CSS_PATH = "app.tcss"
    TITLE = "flarechat"
    ENABLE_COMMAND_PALETTE = True
    COMMAND_PALETTE_BINDING = "ctrl+p"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+q", "quit", "Quit", id="app.quit", show=False, priority=True),
    ]

    def __init__(
        self,
        settings: Settings,
        engine: EngineDoor,
        *,
        resume: str | None = None,
        continue_last: bool = False,
        clock: Clock = time.monotonic,
        marks: Glyphs | None = None,
        interval: float | None = None,
    ) -> None:
        super().__init__()
        self.board = Board(engine, settings, clock)
        self._first = Bridge(engine, settings, clock, self.board)
        self._chat: ChatScreen | None = None
        self.marks = marks or glyphs()
        slow_link = bool(os.environ.get("SSH_CONNECTION"))
        self._interval = interval or (SLOW_INTERVAL if slow_link else INTERVAL)
        self._resume, self._continue_last = resume, continue_last
        self.problem: FlarechatError | None = None

    def get_default_screen(self) -> Screen[None]:
        self._chat = ChatScreen(self._first, self.marks, self._interval)
        return self._chat

    @property
    def chat(self) -> ChatScreen:
        """The chat screen, whatever stands above it."""
        assert self._chat is not None, "the screen is made when the application runs"
        return self._chat

    @property
    def bridge(self) -> Bridge:
        """The chat that is shown."""
        return self._chat.bridge if self._chat else self._first

    def on_mount(self) -> None:
        self.set_class(self.marks.ascii, "-ascii")
        try:
            self.theme = themes.choose(self.bridge.settings.theme)
        except FlarechatError as error:
            self.chat.call_after_refresh(self.chat.tell, error)
        self._watch_signals()
        self.call_after_refresh(self._begin)

    async def _begin(self) -> None:
        """After the first paint: open the conversation that was asked for, and what its answers are
        held to; start the engine.

        Without these there is no chat: another one is not what was asked for.
        """
        chat, settings = self.chat, self.bridge.settings
        try:
            if self._resume:
                self.bridge.resume(self._resume)
            elif self._continue_last:
                self.bridge.latest()
            elif settings.session:
                self.bridge.open(settings.session)
            await chat.desk.begin(settings)
        except FlarechatError as error:
            self.problem = error
            self.exit(return_code=error.exit_code)
            return
        await chat.show_conversation()
        chat.tabs.current.focus()
        self.bridge.start()
        gc.freeze()
        gc.enable()

    # Size

    def on_resize(self, event: events.Resize) -> None:
        small = too_small(event.size.width, event.size.height)
        shown = isinstance(self.screen, TooSmallScreen)
        if small and not shown:
            self.push_screen(TooSmallScreen())
        elif shown and not small:
            self.pop_screen()

    # Commands

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        if not isinstance(screen, ChatScreen):
            return
        yield SystemCommand("New chat", "In a tab of its own", screen.action_new_chat)
        yield SystemCommand("Next tab", "Show the next chat", partial(screen.action_step_tab, 1))
        yield SystemCommand("Close tab", "Stop its answer; the chat is saved", screen.close_tab)
        yield SystemCommand("Sessions", "Open or delete a saved chat", screen.action_sessions)
        yield SystemCommand("Branches", "Every branch of this chat", screen.action_tree)
        yield SystemCommand("Settings", "Sampling, speculation, theme", screen.action_settings)
        yield SystemCommand("Constraint", "What answers satisfy; tools", screen.action_constraint)
        yield SystemCommand("Telemetry", "Off, compact, full", screen.action_density)
        yield SystemCommand("Stop", "Stop the answer under way", screen.action_escape)
        yield SystemCommand("Search prompts", "Find an earlier prompt", screen.action_history)
        yield SystemCommand("Keys", "Every key and every word", screen.action_keys)
        yield SystemCommand("Quit", "Leave; the chat is saved", self.action_quit)

    # The end

    async def action_quit(self) -> None:
        self.exit()

    def on_unmount(self) -> None:
        if self.board.error and self.board.model is None:
            self.problem = self.board.error.exception()
        for chat in self.board.chats:
            chat.conversation.close()

    def _watch_signals(self) -> None:
        """Leave in order on SIGTERM and SIGHUP; the turn under way is saved on the way out."""
        if self.is_headless:
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._leave_on, number)

    def _leave_on(self, number: int) -> None:
        self.exit(return_code=128 + number)

    def _handle_exception(self, error: Exception) -> None:
        """Leave with one sentence; the traceback goes to a file. Tests still see the exception."""
        if not self.is_headless:
            if self.problem is None:
                self.problem = FlarechatError(
                    f"The chat failed: {type(error).__name__}: {error}.", write_report(error)
                )
            self.exit(return_code=self.problem.exit_code)
            return
        super()._handle_exception(error)


def write_report(error: Exception) -> str:
    """Write a crash report; returns the sentence that says where it is."""
    try:
        path = paths.logs_dir() / f"crash-{time.strftime('%Y%m%d-%H%M%S')}.txt"
        path.write_text("".join(traceback.format_exception(error)), "utf-8")
    except (FlarechatError, OSError):
        return "No report could be written. `flarechat --continue` goes on with the chat."
    return f"The report is in {path}. `flarechat --continue` goes on with the chat."


def run_app(settings: Settings, *, resume: str | None, continue_last: bool) -> int:
    """Run the chat until the user leaves; returns the exit code."""
    if not terminal.interactive():
        print_error(
            UsageError("The chat needs a terminal.", "Use `flarechat run` in pipes and scripts.")
        )
        return EXIT_USAGE
    return terminal.supervise(lambda: _start(settings, resume, continue_last))


def _start(settings: Settings, resume: str | None, continue_last: bool) -> int:
    """The life of the chat's process."""
    from flarechat.launch import open_engine
    from flarechat.ui.opening import LateEngine

    engine = LateEngine(partial(open_engine, settings))
    engine.open_ahead()
    return live(settings, engine, resume=resume, continue_last=continue_last)


def live(settings: Settings, engine: EngineDoor, *, resume: str | None, continue_last: bool) -> int:
    """Run one chat over an engine, end both, and say what went wrong; returns the exit code."""
    app = FlarechatApp(settings, engine, resume=resume, continue_last=continue_last)
    try:
        app.run()
    finally:
        conversations = [chat.conversation for chat in app.board.chats]
        for conversation in conversations:
            conversation.close()
        engine.close()
    for notice in (notice for conversation in conversations for notice in conversation.notices):
        print(f"flarechat: {strip_controls(notice)}", file=sys.stderr)
    if app.problem:
        print_error(app.problem, sys.stderr)
        return app.problem.exit_code
    lost = app.board.unsaved or any(conversation.unsaved for conversation in conversations)
    return app.return_code or int(lost)
