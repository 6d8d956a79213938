"""The switchboard between one engine and the chats of a window.

Owns the engine's door, what the engine said of itself, and which requests hold a lane; hands every
event to the chat that asked. Knows no conversation's content and no widget.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from flarechat.config import Settings
from flarechat.protocol import (
    EngineDoor,
    ErrorInfo,
    Event,
    Failed,
    Finished,
    Loading,
    ModelInfo,
    Ready,
    Started,
)

if TYPE_CHECKING:
    from flarechat.ui.bridge import Bridge

Clock = Callable[[], float]
SPELLED_AT_ONCE = 1000


class Board:
    """One engine and the chats over it. `lanes` is None until the engine is ready; `unsaved` says
    that a chat was closed of which the disk refused a part. `texts` are what tokens of the loaded
    model say, as far as it was asked.
    """

    def __init__(
        self, engine: EngineDoor, settings: Settings, clock: Clock = time.monotonic
    ) -> None:
        self.engine, self.clock = engine, clock
        self.model: ModelInfo | None = None
        self.error: ErrorInfo | None = None
        self.ready = False
        self.lanes: int | None = None
        self.loading = Loading(stage="starting")
        self.notices: tuple[str, ...] = ()
        self.mtp_wanted = settings.mtp
        self.chats: list[Bridge] = []
        self.unsaved = False
        self.texts: dict[int, str] = {}
        self._spelling: set[int] = set()
        self._playing: set[str] = set()
        self._news: list[str] = []

    @property
    def busy(self) -> bool:
        """Whether any chat waits for an answer."""
        return any(chat.busy for chat in self.chats)

    @property
    def full(self) -> bool:
        """Whether a request that came now would have to wait for a lane."""
        return self.lanes is not None and len(self._playing) >= self.lanes

    def start(self) -> None:
        """Start the engine, or start it again; every chat ends what the one before was asked."""
        self.error, self.ready = None, False
        self.loading = Loading(stage="starting")
        self._playing.clear()
        self._spelling.clear()
        self.texts.clear()
        for chat in self.chats:
            chat.interrupt()
        self.engine.start()

    def drain(self) -> None:
        """Put what the engine said since the last call into the chats' boxes."""
        self.texts.update(self.engine.spelled())
        events = self.engine.drain()
        if not events:
            return
        owners = {turn.id: chat for chat in self.chats for turn in chat.conversation.lives}
        for event in events:
            self._note(event)
            if isinstance(event, Loading | Ready | Failed):
                for chat in self.chats:
                    chat.box.append(event)
            elif event.request in owners:
                owners[event.request].box.append(event)

    def spell(self, tokens: Iterable[int]) -> None:
        """Ask what these tokens say, each once; some time later `texts` has them."""
        if not self.ready:
            return
        wanted = [token for token in dict.fromkeys(tokens) if token not in self._spelling]
        self._spelling.update(wanted)
        for first in range(0, len(wanted), SPELLED_AT_ONCE):
            self.engine.spell(tuple(wanted[first : first + SPELLED_AT_ONCE]))

    def take_news(self) -> list[str]:
        """Sentences about the engine that concern no single chat, for whoever asks first."""
        news, self._news = self._news, []
        return news

    def _note(self, event: Event) -> None:
        if isinstance(event, Loading):
            self.loading = event
        elif isinstance(event, Ready):
            self.model, self.error, self.lanes = event.model, None, event.lanes
            self.ready = True
            self._news += [notice for notice in event.notices if notice not in self.notices]
            self.notices = event.notices
        elif isinstance(event, Failed):
            self.error, self.ready = event.error, False
            self._playing.clear()
            if not self.busy:
                self._news.append(f"Error: {event.error.exception()}")
        elif isinstance(event, Started):
            self._playing.add(event.request)
        elif isinstance(event, Finished):
            self._playing.discard(event.request)
