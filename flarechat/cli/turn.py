"""One turn played to its end for `flarechat run`: load, send, show, save, and what came of it.

Owns the order of these and the exit code. Knows neither flags nor where the prompt came from.
"""

from __future__ import annotations

import sys
import time

from flarechat.chat import Conversation
from flarechat.cli.printer import Printer, stats_line
from flarechat.cli.signals import Interrupts
from flarechat.config import Settings
from flarechat.errors import EXIT_OK, EngineError, StorageError
from flarechat.protocol import EngineDoor, Event, Failed, Finished
from flarechat.textsafe import strip_controls

POLL_S = 0.1
STOP_PATIENCE_S = 5.0
_STILL_THINKING = (
    "flarechat: The model was still thinking when it was cut off; allow more with --max-tokens, "
    "or none with --no-thinking."
)


def answer(
    engine: EngineDoor,
    settings: Settings,
    text: str,
    printer: Printer,
    interrupts: Interrupts,
    *,
    stats: bool,
) -> int:
    """Play the turn in its session; returns the exit code."""
    name = settings.session
    conversation = (
        Conversation.open(engine, settings, name)
        if name is not None
        else Conversation.new(engine, settings, saves=False)
    )
    try:
        try:
            interrupts.quietly()
            finished = _play(engine, conversation, text, printer, interrupts)
        finally:
            printer.end()
    finally:
        conversation.close()
        for notice in conversation.notices:
            print(f"flarechat: {strip_controls(notice)}", file=sys.stderr)
    if finished.thinking and not finished.text and finished.reason in ("length", "context"):
        print(_STILL_THINKING, file=sys.stderr)
    if stats:
        print(stats_line(finished), file=sys.stderr)
        if conversation.memory:
            print(f"memory: {conversation.memory}", file=sys.stderr)
    if interrupts.caught:
        return interrupts.exit_code
    if finished.reason == "error":
        raise finished.error.exception() if finished.error else EngineError("The answer failed.")
    if conversation.unsaved:
        raise StorageError("The answer was not saved.", "Free some space and ask again.")
    return EXIT_OK


def _play(
    engine: EngineDoor,
    conversation: Conversation,
    text: str,
    printer: Printer,
    interrupts: Interrupts,
) -> Finished:
    """Load, send, show what comes. The first interrupt stops the turn, which then ends itself."""
    engine.start()
    while not conversation.bound:
        interrupts.check()
        _take(engine.wait(POLL_S), conversation, printer)
    turn = conversation.send(text)
    give_up = float("inf")
    while turn.finished is None:
        if interrupts.caught and give_up == float("inf"):
            conversation.stop()
            give_up = time.monotonic() + STOP_PATIENCE_S
        if time.monotonic() > give_up:
            interrupts.check()
        _take(engine.wait(POLL_S), conversation, printer)
        conversation.checkpoint()
    return turn.finished


def _take(events: list[Event], conversation: Conversation, printer: Printer) -> None:
    """Show every event. An engine that died ended the turn it was on, which is shown too."""
    for event in events:
        turn = conversation.apply(event)
        printer.show(event)
        if isinstance(event, Failed):
            if turn is not None and turn.finished is not None:
                printer.show(turn.finished)
            raise event.error.exception()
