"""The command line over a scripted engine: in this process, or as a program of its own.

As a program: `python -m tests.cli.scripted SCENARIO ARGUMENT...`. A scenario is an answer, or a
moment at which the engine stands still so that a signal can meet it there.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from flarechat import launch
from flarechat.__main__ import main
from flarechat.config import Settings
from flarechat.errors import FlarechatError
from flarechat.protocol import Delta, ErrorInfo, Event, Failed, Finished, Loading, Progress, Request
from tests.fakes import Play, ScriptedEngine, words

ANSWER = (Play(("Hello",)), Play((" there", ", you"), width=3, source="history"), Play((".",)))


class Paced(ScriptedEngine):
    """Takes its time, as an engine does, and says on stderr how far it is."""

    pace = 0.005

    def wait(self, timeout: float | None = None) -> list[Event]:
        time.sleep(self.pace)
        events = self.drain()
        for event in events:
            self.tell(type(event).__name__.lower())
        return events

    def tell(self, word: str) -> None:
        print(word, file=sys.stderr, flush=True)

    def close(self) -> None:
        if not self.closed:
            self.tell("closed")
        super().close()


class StillLoading(Paced):
    """Never gets ready."""

    def start(self) -> None:
        pass

    def drain(self) -> list[Event]:
        return [Loading(stage="weights", done=1, total=2)]


class StillPrefilling(Paced):
    """Reads the prompt until it is cancelled."""

    def drain(self) -> list[Event]:
        if self.requests and not self.cancelled:
            return [Progress(request=self.requests[0].id, done=1, total=9)]
        return super().drain()


class Endless(Paced):
    """Goes on talking until it is cancelled."""

    def submit(self, request: Request) -> None:
        self.answers = [words("word " * 20_000)] if not self.requests else self.answers
        super().submit(request)


class Deaf(Endless):
    """Goes on talking even then."""

    def cancel(self, request: str) -> None:
        self.tell("ignored")


class Failing(Paced):
    """Ends its answer with an error after some text."""

    def drain(self) -> list[Event]:
        return [self.failed(event) for event in super().drain()]

    def failed(self, event: Event) -> Event:
        if isinstance(event, Finished):
            error = ErrorInfo(kind="EngineError", message="The engine lost its way.")
            return Finished(**{**_fields(event), "reason": "error", "error": error})
        return event


class Dying(Paced):
    """Dies after the first words of an answer, and says nothing more."""

    dead = False

    def drain(self) -> list[Event]:
        events = [] if self.dead else super().drain()
        if any(isinstance(event, Delta) for event in events):
            self.dead = True
            events.append(Failed(error=ErrorInfo(kind="EngineError", message="It died.")))
        return events


class TooLong(Paced):
    """Refuses the prompt."""

    def drain(self) -> list[Event]:
        events = super().drain()
        error = ErrorInfo(kind="PromptTooLongError", message="The prompt has 9 tokens too many.")
        return [
            Finished(**{**_fields(event), "reason": "error", "error": error, "text": ""})
            if isinstance(event, Finished)
            else event
            for event in events
            if not isinstance(event, Delta)
        ]


def _fields(event: Finished) -> dict[str, object]:
    return {name: getattr(event, name) for name in event.__dataclass_fields__}


SCENARIOS: dict[str, Callable[[], ScriptedEngine]] = {
    "answer": lambda: Paced([ANSWER]),
    "loading": StillLoading,
    "prefill": StillPrefilling,
    "endless": lambda: Endless(lanes=4),
    "deaf": lambda: Deaf(),
    "failing": Failing,
    "dying": Dying,
    "too-long": TooLong,
    "controls": lambda: Paced([words("\x1b[31mred\x9b1m \x07bell\ttab\rback")]),
}


def install(make: Callable[[], ScriptedEngine]) -> list[ScriptedEngine]:
    """Let every launch give a scripted engine; returns the list they are put in."""
    made: list[ScriptedEngine] = []

    def engine_of(settings: Settings, progress: launch.Progress) -> ScriptedEngine:
        made.append(make())
        made[-1].settings = settings
        return made[-1]

    launch.engine_of = engine_of
    return made


def refuse(error: FlarechatError) -> Callable[[], ScriptedEngine]:
    """An engine that says at once why it cannot start."""
    return lambda: ScriptedEngine(failure=error)


if __name__ == "__main__":
    # The tests' folder is the first entry of the path, and must not stand for anything.
    sys.path[:] = [entry for entry in sys.path if Path(entry).name != "cli"]
    install(SCENARIOS[sys.argv[1]])
    sys.exit(main(sys.argv[2:]))
