"""The calls of tools in one conversation: whose leave they need, what came of them, and how many
rounds of them one message is worth.

Owns the calls under way and their results as turns. Asks no engine: chat does, and asks for the
next answer once all calls have their results.
"""

from __future__ import annotations

from collections.abc import Sequence

from flarechat.asking import CALLED
from flarechat.config import Settings
from flarechat.errors import UsageError
from flarechat.protocol import ToolCall
from flarechat.sessions.names import new_id
from flarechat.sessions.turns import Turn
from flarechat.thread import Thread
from flarechat.tools.calling import Calling
from flarechat.tools.results import DONE, FAILED, STOPPED, Result
from flarechat.tools.toolbox import Toolbox


class CallingThread(Thread):
    """A thread whose model may call tools.

    `toolbox` are the tools, and `allowed` the names of those that run without asking; both may be
    changed between turns. While a call is `waiting`, the user is to `allow`, `refuse` or, where it
    is answered by hand, `answer_call` it.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.toolbox = Toolbox()
        self.allowed: set[str] = set()
        self._calling: Calling | None = None
        self._given: list[Result] = []

    @property
    def busy(self) -> bool:
        """Whether an answer or a call is under way."""
        return bool(self._live) or self._calling is not None

    @property
    def waiting(self) -> ToolCall | None:
        """The call that the user is asked about."""
        return self._calling.waiting if self._calling else None

    @property
    def running(self) -> ToolCall | None:
        """The call that runs."""
        return self._calling.current if self._calling and self._calling.running else None

    @property
    def unsettled(self) -> tuple[ToolCall, ...]:
        """The calls without a result, in their order."""
        return self._calling.unsettled if self._calling else ()

    @property
    def by_hand(self) -> bool:
        """Whether the waiting call is one whose result the user gives."""
        return self._calling is not None and self._calling.by_hand

    def allow(self, *, always: bool = False) -> None:
        """Let the waiting call run; `always`, also the later ones of its tool."""
        self._asking_leave(by_hand=False).allow(always=always)

    def refuse(self) -> None:
        """Do not run the waiting call, and tell the model so."""
        self._given.append(self._asking_leave().refuse())

    def answer_call(self, text: str) -> None:
        """Give the result of the waiting call by hand."""
        self._given.append(self._asking_leave(by_hand=True).answer(text))

    def wait_for_tool(self, seconds: float) -> None:
        """Wait until the call that runs has ended, so long at most."""
        if self._calling:
            self._calling.wait(seconds)

    def end_calls(self) -> Turn | None:
        """Deal with no further call: one that runs is stopped, which is its result, and those
        behind it have none. Returns the turn of the stopped one.
        """
        calling, self._calling = self._calling, None
        self._take_given()
        stopped = calling.stop() if calling else None
        return self._result(stopped) if stopped else None

    def _begin_calls(self, turn: Turn) -> None:
        """Deal with the calls of an answer, where it ended by itself and there are tools for it."""
        if turn.reason != CALLED or not self.toolbox.tools:
            return
        asked = self._since_message()
        rounds = sum(1 for other in asked if other.calls)
        if rounds > self.settings.tool_rounds:
            self.notices.append(
                f"The model called tools in {rounds} answers; the calls of the last are not run "
                f"(--tool-rounds {self.settings.tool_rounds})."
            )
            return
        self._calling = Calling(self.toolbox, turn.calls, self.allowed, _ran(asked))

    def _go_on_calling(self) -> tuple[list[Turn], bool]:
        """Go on with the calls as far as possible: the results that came, and whether all have
        one now."""
        added = self._take_given()
        if self._calling is None:
            return added, False
        added += map(self._result, self._calling.poll())
        if not self._calling.done:
            return added, False
        self._calling = None
        return added, True

    def _take_given(self) -> list[Turn]:
        given, self._given = self._given, []
        return [self._result(result) for result in given]

    def _result(self, result: Result) -> Turn:
        """Put a result behind the turns there are, and save it."""
        turn = Turn(
            id=new_id(),
            parent=self.turns[-1].id,
            role="tool",
            text=result.text,
            reason=result.outcome,
            call=result.call,
            name=result.name,
        )
        if self._keeper:
            self._keeper.tool(turn)
        self._tree.add(turn)
        self.turns.append(turn)
        return turn

    def _since_message(self) -> Sequence[Turn]:
        """The turns behind the last message of the user's."""
        behind: list[Turn] = []
        for turn in reversed(self.turns):
            if turn.role == "user":
                break
            behind.append(turn)
        return behind[::-1]

    def _asking_leave(self, by_hand: bool | None = None) -> Calling:
        if self._calling is None or self._calling.waiting is None:
            raise UsageError("No call of a tool waits for you.", "Ask the model for something.")
        if by_hand is not None and self._calling.by_hand != by_hand:
            name = self._calling.waiting.name
            remedy = "Give its result." if self._calling.by_hand else "Allow or refuse it."
            how = "answered by hand" if self._calling.by_hand else "run by flarechat"
            raise UsageError(f"The tool {name} is {how}.", remedy)
        return self._calling

    def _require_rest(self) -> None:
        if self._calling:
            raise UsageError("A tool is still being called.", "Stop it first.")
        super()._require_rest()


def _ran(turns: Sequence[Turn]) -> list[ToolCall]:
    """The calls in these turns that were run."""
    ran, calls = [], dict[str, ToolCall]()
    for turn in turns:
        if turn.role != "tool":
            calls = {call.id: call for call in turn.calls}
        elif turn.reason in (DONE, FAILED, STOPPED) and turn.call in calls:
            ran.append(calls[turn.call])
    return ran
