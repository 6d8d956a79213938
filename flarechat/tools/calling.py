"""The calls of one answer, dealt with in their order: asked about, run one at a time, told.

Owns which call waits for the user, which runs, and the limits of a turn. `poll` never waits: a
program runs in a thread of its own. Knows no conversation.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterable, Sequence

from flarechat.protocol import ToolCall
from flarechat.tools.results import DONE, FAILED, REFUSED, STOPPED, UNRUN, Result
from flarechat.tools.toolbox import Toolbox

MAX_CALLS = 8
MAX_REPEATS = 2
_STOP_PATIENCE_S = 1.0

Key = tuple[str, str]


def key_of(call: ToolCall) -> Key:
    """What two calls have in common that ask for the very same."""
    return call.name, json.dumps(call.arguments, sort_keys=True)


class Calling:
    """One answer's calls. `allowed` are the tools that are run without asking, a set that the owner
    may add to; `before` are the calls that were run in this turn already.
    """

    def __init__(
        self,
        toolbox: Toolbox,
        calls: Sequence[ToolCall],
        allowed: set[str],
        before: Iterable[ToolCall] = (),
    ) -> None:
        self._toolbox, self._calls, self._allowed = toolbox, tuple(calls), allowed
        self._runs = Counter(map(key_of, before))
        self._at = 0
        self._leave: str = ""
        self._running: _Running | None = None

    @property
    def done(self) -> bool:
        """Whether every call has its result."""
        return self._at == len(self._calls)

    @property
    def current(self) -> ToolCall | None:
        """The call that is dealt with: it waits for the user, or runs."""
        return None if self.done else self._calls[self._at]

    @property
    def unsettled(self) -> tuple[ToolCall, ...]:
        """The current call and those behind it."""
        return self._calls[self._at :]

    @property
    def running(self) -> bool:
        """Whether the current call runs."""
        return self._running is not None

    @property
    def waiting(self) -> ToolCall | None:
        """The call that the user is asked about: whether it may run, or what its result is."""
        call = self.current
        if call is None or self._running or self._leave or self._unfit(call):
            return None
        return call if self.by_hand or call.name not in self._allowed else None

    @property
    def by_hand(self) -> bool:
        """Whether the current call is one of which the user gives the result."""
        definition = self._toolbox.find(self.current.name) if self.current else None
        return definition is not None and definition.by_hand

    def allow(self, *, always: bool = False) -> None:
        """Let the waiting call run; `always`, also every later one of its tool."""
        call = self._waiting()
        assert not self.by_hand, "a call that is answered by hand is not run"
        if always:
            self._allowed.add(call.name)
        self._leave = call.id

    def refuse(self) -> Result:
        """Do not run the waiting call; its result says so."""
        return self._ended(self._waiting(), REFUSED, "Error: the user did not allow this call.")

    def answer(self, text: str) -> Result:
        """The user's result of the waiting call."""
        return self._ended(self._waiting(), DONE, text)

    def poll(self) -> list[Result]:
        """Go on as far as possible; the results that there are since the last time, in order."""
        results = []
        while call := self.current:
            if self._running:
                result = self._running.result
                if result is None:
                    break
                self._running, self._leave = None, ""
                self._at += 1
                results.append(result)
            elif why := self._unfit(call):
                results.append(self._ended(call, *why))
            elif self.waiting:
                break
            else:
                self._runs[key_of(call)] += 1
                self._running = _Running(self._toolbox, call)
        return results

    def wait(self, seconds: float) -> None:
        """Wait until the running call has ended, so long at most."""
        if self._running:
            self._running.ended.wait(seconds)

    def stop(self) -> Result | None:
        """End the running call and deal with no other; the result of the one that ran."""
        call, running = self.current, self._running
        self._at, self._running = len(self._calls), None
        if call is None or running is None:
            return None
        running.stop.set()
        running.ended.wait(_STOP_PATIENCE_S)
        return running.result or Result.of(call, STOPPED, "Error: the user stopped it.")

    def _waiting(self) -> ToolCall:
        call = self.waiting
        assert call is not None, "no call waits for the user"
        return call

    def _unfit(self, call: ToolCall) -> tuple[str, str] | None:
        """The outcome and the sentence of a call that is not to be run."""
        if self._toolbox.find(call.name) is None:
            return FAILED, f"Error: there is no tool {call.name}."
        if self._at >= MAX_CALLS:
            return UNRUN, f"Error: not run, as an answer may call {MAX_CALLS} times at most."
        if self._runs[key_of(call)] > MAX_REPEATS:
            times = MAX_REPEATS + 1
            return UNRUN, f"Error: not run, as this very call was made {times} times already."
        return None

    def _ended(self, call: ToolCall, outcome: str, text: str) -> Result:
        self._at, self._leave = self._at + 1, ""
        return Result.of(call, outcome, text)


class _Running:
    """One call in a thread. `result` is None until it has ended."""

    def __init__(self, toolbox: Toolbox, call: ToolCall) -> None:
        self.result: Result | None = None
        self.stop, self.ended = threading.Event(), threading.Event()
        self._toolbox, self._call = toolbox, call
        threading.Thread(target=self._run, name=f"tool {call.name}", daemon=True).start()

    def _run(self) -> None:
        try:
            self.result = self._toolbox.run(self._call, self.stop)
        except Exception as error:
            text = f"Error: {self._call.name} failed: {type(error).__name__}."
            self.result = Result.of(self._call, FAILED, text)
        finally:
            self.ended.set()
