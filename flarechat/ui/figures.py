"""The figures of the answers asked for last: a meter each, its context, and whether it has a lane.

Owns nothing of the conversation: it is told which answers were asked for and what is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flarechat.chat import Turn
from flarechat.protocol import Finished, RequestEvent, Round, Started
from flarechat.ui.meter import Meter


class Figures:
    """Follows the requests of one chat. `before` is the context in use before they were asked."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.forget()

    def forget(self, before: int = 0) -> None:
        """Begin anew, as for another conversation."""
        self._before = before
        self._meters: dict[str, Meter] = {}
        self._contexts: dict[str, int] = {}
        self._started: set[str] = set()
        self._idle = Meter(self._clock)

    def begin(self, answers: Sequence[Turn], shown: Turn | None) -> None:
        """These answers were asked for; what was shown until now gives what was known."""
        plain = self.meter(shown).plain
        self.forget(self.used(shown))
        self._meters = {turn.id: Meter(self._clock, plain) for turn in answers}

    def note(self, event: RequestEvent) -> None:
        """Take in one event of a request."""
        request = event.request
        if request in self._meters:
            self._meters[request].note(event)
        if isinstance(event, Started):
            self._started.add(request)
            self._contexts[request] = event.prompt_tokens
        elif isinstance(event, Round):
            self._contexts[request] = event.context + event.emitted
        elif isinstance(event, Finished) and event.usage.prompt_tokens:
            self._contexts[request] = event.usage.context

    def has_lane(self, turn: Turn) -> bool:
        """Whether the engine has begun with an answer."""
        return turn.id in self._started

    def meter(self, shown: Turn | None) -> Meter:
        """The meter of the answer shown; an idle one where there is none."""
        return self._meters.get(shown.id, self._idle) if shown else self._idle

    def used(self, shown: Turn | None) -> int:
        """Tokens of the context in use with the answer shown, as far as known."""
        return self._contexts.get(shown.id, self._before) if shown else self._before
