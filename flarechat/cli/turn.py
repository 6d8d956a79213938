"""One turn played to its end for `flarechat run`: load, send, show, save, and what came of it.

Owns the order of these and the exit code. Knows neither flags nor where the prompt came from.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from flarechat.asking import CALLED
from flarechat.chat import Conversation, Turn
from flarechat.cli.printer import Printer, stats_line
from flarechat.cli.signals import Interrupts
from flarechat.config import Settings
from flarechat.errors import EXIT_OK, ConstraintError, EngineError, StorageError, UsageError
from flarechat.protocol import Constraint, EngineDoor, Event, Failed, Finished, Ready
from flarechat.textsafe import strip_controls
from flarechat.thread import Thread, last_message
from flarechat.tools.toolbox import Toolbox

POLL_S = 0.1
STOP_PATIENCE_S = 5.0
_STILL_THINKING = (
    "flarechat: The model was still thinking when it was cut off; allow more with --max-tokens, "
    "or none with --no-thinking."
)
_REMEDIES = {
    "length": "Allow more with --max-tokens.",
    "context": "The context is full: raise --ctx, or begin another session.",
}


@dataclass(frozen=True, slots=True)
class Asking:
    """What to ask: `text`, so many `ways`, or by `verb` something of the last exchange (a flag of
    `flarechat run`), and what the answers are to satisfy."""

    text: str
    ways: int = 1
    verb: str = ""
    constraint: Constraint | None = None

    def check(self, settings: Settings) -> None:
        """Refuse what the session has no place for, before a model is loaded for it. Of a fan that
        was left open, the first answer is gone on with."""
        if not self.verb or settings.session is None:
            return
        thread = Thread.saved(settings, settings.session)
        if thread.fan:
            thread.pick(0)
        if self.verb == "--continue-answer":
            if not thread.unanswered:
                thread.cut_off()
        else:
            last_message(thread.turns, "edit" if self.verb == "--edit" else "answer again")

    def of(self, conversation: Conversation, lanes: int | None) -> list[Turn]:
        """Ask a conversation; the turns of the answers."""
        conversation.constraint = self.constraint
        if self.verb == "--regenerate":
            return [conversation.regenerate()]
        if self.verb == "--continue-answer":
            return [conversation.continue_answer()]
        if self.verb == "--edit":
            return [conversation.edit(last_message(conversation.turns, "edit"), self.text)]
        if self.ways == 1:
            return [conversation.send(self.text)]
        return conversation.fan_out(self.text, self.ways, lanes=lanes)


@dataclass(frozen=True, slots=True)
class Leave:
    """The tools that the model may call, and the names of those that run; the others are refused.
    One that is answered by hand ends the turn."""

    toolbox: Toolbox = field(default_factory=Toolbox)
    allowed: frozenset[str] = frozenset()

    def check(self) -> None:
        """Refuse a name that is no tool's."""
        names = [tool.name for tool in self.toolbox.tools]
        for name in sorted(self.allowed.difference(names)):
            known = f"Use all, or {', '.join(names)}." if names else "Give --tools as well."
            raise UsageError(f"--yes {name} names no tool.", known)


_NO_TOOLS = Leave()


def answer(
    engine: EngineDoor,
    settings: Settings,
    asking: Asking,
    printer: Printer,
    interrupts: Interrupts,
    *,
    stats: bool,
    leave: Leave = _NO_TOOLS,
) -> int:
    """Play the turn in its session; returns the exit code."""
    name = settings.session
    conversation = (
        Conversation.open(engine, settings, name)
        if name is not None
        else Conversation.new(engine, settings, saves=False)
    )
    conversation.toolbox, conversation.allowed = leave.toolbox, set(leave.allowed)
    try:
        try:
            interrupts.quietly()
            ended = _play(engine, conversation, asking, printer, interrupts)
        finally:
            printer.end()
    finally:
        conversation.close()
        for notice in conversation.notices:
            print(f"flarechat: {strip_controls(notice)}", file=sys.stderr)
    cut = [f for f in ended if f.reason in ("length", "context") and f.constraint is None]
    if any(f.thinking and not f.text for f in cut):
        print(_STILL_THINKING, file=sys.stderr)
    if stats:
        for number, finished in enumerate(ended, start=1):
            which = f"answer {number}: " if asking.ways > 1 else ""
            print(f"{which}{stats_line(finished)}", file=sys.stderr)
        if conversation.rounds:
            print(f"executor: {conversation.rounds}", file=sys.stderr)
        if conversation.memory:
            print(f"memory: {conversation.memory}", file=sys.stderr)
    if interrupts.caught:
        return interrupts.exit_code
    if failed := [f for f in ended if f.error or f.reason == "error"]:
        error = failed[0].error
        raise error.exception() if error else EngineError("The answer failed.")
    if broken := [f for f in ended if f.constraint and not f.constraint.satisfied]:
        raise _unsatisfied(broken[0])
    if conversation.unsaved:
        raise StorageError("The answer was not saved.", "Free some space and ask again.")
    return EXIT_OK


def _unsatisfied(finished: Finished) -> ConstraintError:
    """What to say of an answer that is not what was asked for, as far as it came."""
    result = finished.constraint
    assert result is not None, "only what was held to something can fail it"
    remedy = _REMEDIES.get(finished.reason, "")
    if finished.stop is not None:
        remedy = f"It met --stop {finished.stop!r}; leave that out."
    elif finished.thinking and not finished.text and remedy:
        remedy = f"{remedy[:-1]}, or none of thinking with --no-thinking."
    return ConstraintError(result.error or "The answer does not satisfy the constraint.", remedy)


def _play(
    engine: EngineDoor,
    conversation: Conversation,
    asking: Asking,
    printer: Printer,
    interrupts: Interrupts,
) -> list[Finished]:
    """Load, send, show what comes. The first interrupt stops the turn, which then ends itself.

    The conversation goes on with the first of several answers.
    """
    engine.start()
    lanes: int | None = None
    while not conversation.bound:
        interrupts.check()
        events = engine.wait(POLL_S)
        lanes = next((e.lanes for e in events if isinstance(e, Ready)), lanes)
        _take(events, conversation, printer)
    turns = _asked(conversation, asking, lanes)
    printer.asked([turn.id for turn in turns])
    give_up = float("inf")
    while conversation.busy:
        if interrupts.caught and give_up == float("inf"):
            conversation.stop()
            give_up = time.monotonic() + STOP_PATIENCE_S
        if time.monotonic() > give_up:
            interrupts.check()
        if conversation.live:
            _take(engine.wait(POLL_S), conversation, printer)
        else:
            conversation.wait_for_tool(POLL_S)
            _decide(conversation, printer)
        turns += _show_results(conversation.tend(), conversation, printer)
    if conversation.fan:
        conversation.pick(0)
    return [turn.finished for turn in turns if turn.finished]


def _decide(conversation: Conversation, printer: Printer) -> None:
    """Refuse the call that waits, as nobody can be asked; one that is answered by hand ends the
    turn, with those behind it."""
    call = conversation.waiting
    if call is not None and conversation.by_hand:
        for waiting in conversation.unsettled:
            printer.left(waiting)
        conversation.end_calls()
    elif call is not None:
        conversation.refuse()
        conversation.notices.append(f"{call.name} was not run; --yes {call.name} allows it.")


def _show_results(
    added: Sequence[Turn], conversation: Conversation, printer: Printer
) -> list[Turn]:
    """Show the results among the turns that were added; returns the others, which are answers."""
    for result in added:
        if result.role == "tool":
            made = (turn for turn in reversed(conversation.turns) if turn.calls)
            printer.result(result, next(made))
    return [turn for turn in added if turn.role != "tool"]


def _asked(conversation: Conversation, asking: Asking, lanes: int | None) -> list[Turn]:
    """Ask for the answers. Of a fan that was left open in the chat, the first is gone on with."""
    if conversation.fan:
        count = len(conversation.fan)
        conversation.pick(0)
        conversation.notices.append(f"None of {count} answers was picked; it went on with the 1st.")
    return asking.of(conversation, lanes)


def _take(events: list[Event], conversation: Conversation, printer: Printer) -> None:
    """Show every event. An engine that died ended the answers it was on, which are shown too."""
    for event in events:
        lives = conversation.lives
        touched = conversation.apply(event)
        if isinstance(event, Finished) and touched and touched.reason == CALLED:
            event = replace(event, reason=CALLED)
        printer.show(event)
        if isinstance(event, Failed):
            for turn in lives:
                if turn.finished is not None:
                    printer.show(turn.finished)
            raise event.error.exception()
