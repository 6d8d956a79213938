"""Grammars of requests, compiled beside the engine's work.

Owns the grammar of each constraint and of each choice of tools, made once, in a thread: the request
that asks for it waits, and no other does.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Sequence
from concurrent.futures import Future, wait

from flarechat.engine.grammar.compiled import Grammar, compile_constraint
from flarechat.engine.grammar.judge import GrammarJudge
from flarechat.engine.grammar.toolcalls import compile_tools
from flarechat.engine.grammar.vocabulary import Vocabulary
from flarechat.engine.text.calls import ToolForm
from flarechat.errors import GrammarError
from flarechat.protocol import Request

_KEPT = 16


class Grammars:
    """Grammars over one vocabulary; tools are called in the form that `form` gives. Those that the
    requests in `waiting` need are kept, and as many of others as there is room for."""

    def __init__(
        self, vocabulary: Vocabulary, form: Callable[[], ToolForm], waiting: Collection[Request]
    ) -> None:
        self.vocabulary, self.form, self._waiting = vocabulary, form, waiting
        self._made: OrderedDict[Hashable, Future[Grammar | None]] = OrderedDict()

    def begin(self, request: Request) -> None:
        """Have the request's grammar made, if it has one and that was not begun before."""
        if (key := _key(request)) is None:
            return
        if key not in self._made:
            self._made[key] = future = Future[Grammar | None]()
            work = (request, future)
            threading.Thread(target=self._make, args=work, name="grammars", daemon=True).start()
            self._make_room()
        self._made.move_to_end(key)

    def ready(self, request: Request) -> bool:
        """Whether the request has what it waits for; one without a grammar waits for nothing."""
        if (key := _key(request)) is None:
            return True
        self.begin(request)
        return self._made[key].done()

    def wait(self, requests: Sequence[Request], seconds: float) -> None:
        """Until one of the requests is ready, but no longer than so many seconds."""
        keys = [key for request in requests if (key := _key(request)) in self._made]
        wait([self._made[key] for key in keys], seconds, "FIRST_COMPLETED")

    def judge(
        self, request: Request, prompt: Sequence[int], continued: Sequence[int]
    ) -> GrammarJudge | None:
        """The judge of an answer to `prompt`, behind what stands of it; None where all is legal.

        Raises the GrammarError that the grammar was refused with, or that what stands does not fit.
        """
        if (key := _key(request)) is None:
            return None
        try:
            grammar = self._made[key].result()
        except BaseException:  # told now: who asks once more has it tried once more
            del self._made[key]
            raise
        if grammar is None:
            return None
        judge = GrammarJudge(grammar, prompt, thinking=request.thinking)
        judge.begin(continued)
        return judge

    def _make_room(self) -> None:
        """Forget the grammars that were asked for longest ago and that nobody waits for."""
        over = len(self._made) - _KEPT
        if over > 0:
            wanted = set(map(_key, self._waiting))
            idle = [key for key in [*self._made][:-1] if key not in wanted]
            for key in idle[:over]:
                del self._made[key]

    def _make(self, request: Request, future: Future[Grammar | None]) -> None:
        try:
            future.set_result(self._grammar(request))
        except BaseException as fault:  # raised where it is asked for
            future.set_exception(fault)

    def _grammar(self, request: Request) -> Grammar | None:
        if request.constraint is None:
            form, tools = self.form(), request.offered
            return compile_tools(form, tools, request.tool_choice, self.vocabulary)
        if request.offered:
            raise GrammarError(
                "An answer cannot be held to a constraint and call tools as well.",
                "Leave out the constraint or the tools.",
            )
        return compile_constraint(request.constraint, self.vocabulary)


def _key(request: Request) -> Hashable:
    """What a request's grammar depends on; None for a request without one."""
    if request.constraint is None and not request.offered:
        return None
    return request.constraint, repr(request.offered), request.tool_choice
