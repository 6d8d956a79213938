"""One answer that was asked for: what the engine is given, and how its events become a turn.

Owns a turn under way with its totals, a request and its messages, and the seeds of several answers
to one message. Knows no file and no conversation; chat puts answers and turns in order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from flarechat.config import Settings
from flarechat.errors import UsageError
from flarechat.protocol import (
    MAX_LANES,
    Called,
    Constraint,
    Delta,
    ErrorInfo,
    Finished,
    Message,
    ModelInfo,
    Request,
    RequestEvent,
    Round,
    Sampling,
    Started,
    Timings,
    Tool,
    ToolCall,
    Usage,
)
from flarechat.sessions.provenance import UNKNOWN, add_round
from flarechat.sessions.toolturns import sound
from flarechat.sessions.turns import Turn
from flarechat.telemetry import RoundTotals, summed
from flarechat.textsafe import well_formed

FEWEST, MOST = 2, MAX_LANES
CALLED = "tool_calls"
_SEEDS = 2**63
_UNRUN = "Error: this call was not run."


class Asked:
    """One answer under way: its turn, its rounds' totals and whether the engine was asked.

    `number` says which answer to its message it is, from 1, where that decides its seed. An answer
    that goes on `continues`, from `before`, how it had ended.
    """

    def __init__(self, turn: Turn, number: int = 0, *, continues: bool = False) -> None:
        self.turn, self.totals, self.submitted = turn, RoundTotals(), False
        self.number, self.continues = number or turn.answer, continues
        self.before = turn.finished if continues else None
        self._said = turn.text, turn.thinking

    def law(self, recommended: Sampling, settings: Settings, model: str) -> Sampling:
        """The law to ask for: of an answer that goes on the one it was begun by, if by this model
        (a fingerprint)."""
        turn = self.turn
        if self.continues and turn.sampling and turn.model_fingerprint == model:
            return turn.sampling
        return law_of(settings.sampling(recommended), self.number)

    def request(
        self, turns: Sequence[Turn], system: str | None, settings: Settings, model: ModelInfo,
        controller: dict[str, Any] | None, *, private: bool = False, tools: tuple[Tool, ...] = (),
        constraint: Constraint | None = None,
    ) -> Request:  # fmt: skip
        """What the engine is asked, behind these turns; the turn notes its law and its model.

        A choice of tools that has the model call one holds until it has called.
        """
        turn, law = self.turn, self.law(model.recommended, settings, model.fingerprint)
        speculation = settings.speculation()
        request = Request(
            id=turn.id,
            messages=(*messages_of(turns, system), *([_message(turn)] if self._begun else ())),
            sampling=self._seeded(law) if speculation.acceptance == "match" else law,
            speculation=speculation,
            max_tokens=settings.max_tokens,
            stop=settings.stop,
            logprobs=settings.logprobs,
            thinking=settings.thinking,
            controller=controller,
            private=private,
            tools=tools,
            tool_choice=_choice(turns, settings.tool_choice) if tools else "auto",
            constraint=constraint,
        )
        turn.sampling, turn.model_fingerprint = law, model.fingerprint
        return request

    def _seeded(self, law: Sampling) -> Sampling:
        """A law to go on by with the seed that was drawn for the beginning, if it is that one's."""
        if self.continues and law.seed is None and law == self.turn.sampling:
            return dataclasses.replace(law, seed=self.turn.seed)
        return law

    @property
    def _begun(self) -> bool:
        """Whether the answer has a beginning to go on from."""
        return self.continues and bool(self.turn.text or self.turn.tokens)

    def take(self, event: RequestEvent) -> None:
        """Take in one event of this answer but its end."""
        if isinstance(event, Started):
            self._start(event)
        if isinstance(event, Round):
            self.totals.add(event)
            add_round(self.turn, event)
        if isinstance(event, Called) and event.call:
            self.turn.calls += (sound(event.call),)
        if isinstance(event, Delta) and event.channel == "answer":
            self.turn.text += event.text
        elif isinstance(event, Delta) and event.channel == "thinking":
            self.turn.thinking += event.text

    def _start(self, event: Started) -> None:
        """Learn by which seed and from where the answer is drawn, and what of it stands."""
        turn = self.turn
        turn.seed = event.sampling.seed
        if tuple(turn.tokens) != event.continued:
            turn.tokens, turn.copied = list(event.continued), []
            turn.sources = UNKNOWN * len(turn.tokens)
        turn.draw = event.prompt_tokens - len(turn.tokens)
        if event.continued:
            turn.text = turn.text[: event.said]
            turn.thinking = turn.thinking[: event.thought or None]

    def end(self, finished: Finished) -> None:
        """The answer ended. One that went on has its figures joined, and is left as it was by a
        failure: what it had said is not lost with it. One that ended by itself behind calls ended
        for them.
        """
        if finished.reason == "stop" and self.turn.calls:
            finished = dataclasses.replace(finished, reason=CALLED)
        if not self.continues:
            self.turn.finish(finished)
            return
        text, thinking = self._said
        failed = finished.reason == "error"
        if finished.text or (finished.usage.prompt_tokens and not failed):
            text, thinking = finished.text, finished.thinking or thinking
        joined = dataclasses.replace(finished, text=text, thinking=thinking)
        before = self.before
        if failed and text:
            reason = before.reason if before and before.reason != "error" else "cancelled"
            joined = dataclasses.replace(joined, reason=reason)
        self.turn.finish(added(before, joined) if before else joined)

    def ending(self, reason: str, error: ErrorInfo | None = None) -> Finished:
        """The finish record of an answer that the engine could not end itself."""
        totals = self.totals
        usage = Usage(
            prompt_tokens=0, restored_tokens=0, completion_tokens=totals.emitted, context=0
        )
        return Finished(
            request=self.turn.id,
            reason=reason,
            text=self.turn.text,
            usage=usage,
            timings=Timings(
                prefill_ms=0.0,
                decode_ms=totals.decode_ms,
                first_token_ms=0.0,
                tokens_per_second=totals.tokens_per_second(),
            ),
            speculation=totals.summary(),
            error=error,
            thinking=self.turn.thinking,
        )


def added(first: Finished, then: Finished) -> Finished:
    """How an answer ended that went on: as it ended `then`, with the figures of both."""
    usage, timings = first.usage, first.timings
    decode_ms = timings.decode_ms + then.timings.decode_ms
    tokens = usage.completion_tokens + then.usage.completion_tokens
    speculation = summed(first.speculation, then.speculation)
    return dataclasses.replace(
        then,
        usage=dataclasses.replace(
            usage, completion_tokens=tokens, context=max(usage.context, then.usage.context)
        ),
        timings=Timings(
            prefill_ms=round(timings.prefill_ms + then.timings.prefill_ms, 3),
            decode_ms=round(decode_ms, 3),
            first_token_ms=timings.first_token_ms or then.timings.first_token_ms,
            tokens_per_second=round(1e3 * speculation.emitted / decode_ms, 3) if decode_ms else 0,
        ),
        speculation=speculation,
        controller=then.controller or first.controller,
        snapshot=then.snapshot or first.snapshot,
    )


def messages_of(turns: Sequence[Turn], system: str | None) -> tuple[Message, ...]:
    """What the model is given: no empty turn, neighbours of one role as one message, and nothing
    of what it thought. A call without a result is told as not run.

    A message whose answer failed is left out with it: it is sent again, or never fits.
    """
    messages = [Message(role="system", content=well_formed(system))] if system else []
    calls: dict[str, ToolCall] = {}
    for turn, reply in zip(turns, [*turns[1:], None], strict=True):
        if turn.role == "tool":
            if calls.pop(turn.call, None):
                messages.append(_message(turn))
            continue
        unsaid = reply is not None and reply.status == "error" and turn.role == "user"
        if turn.status == "error" or unsaid or not (turn.text.strip() or turn.calls):
            continue
        messages += map(_unrun, calls)
        message = _message(turn)
        if messages and messages[-1].role == turn.role:
            text = f"{messages.pop().content}\n\n{message.content}"
            message = Message(role=turn.role, content=text, calls=turn.calls)
        messages.append(message)
        calls = {call.id: call for call in turn.calls}
    return (*messages, *map(_unrun, calls))


def _unrun(call: str) -> Message:
    return Message(role="tool", content=_UNRUN, call=call)


def _choice(turns: Sequence[Turn], wanted: str) -> str:
    """The choice of tools behind these turns: one that has the model call is met by a call."""
    return "auto" if wanted != "none" and turns and turns[-1].role == "tool" else wanted


def _message(turn: Turn) -> Message:
    """A turn as the model is given it, with the tokens it was generated as."""
    return Message(
        role=turn.role,
        content=well_formed(turn.text),
        tokens=tuple(turn.tokens),
        model=turn.model_fingerprint if turn.tokens else "",
        calls=turn.calls,
        call=turn.call,
    )


def law_of(sampling: Sampling, answer: int) -> Sampling:
    """The law of answer number `answer` to one message: a seed that was given counts up from
    answer 1; without one the engine draws a seed for each.
    """
    if sampling.seed is None or answer < 2:
        return sampling
    return dataclasses.replace(sampling, seed=(sampling.seed + answer - 1) % _SEEDS)


def check_ways(ways: int, lanes: int | None, temperature: float | None) -> None:
    """Refuse a fan that is no fan, that has more answers than lanes, or whose answers would all
    be the same. None stands for what is not known yet.
    """
    if not FEWEST <= ways <= MOST:
        raise UsageError(f"A fan has {FEWEST} to {MOST} answers, not {ways}.", "Give 2, 3 or 4.")
    if lanes is not None and ways > lanes:
        at_once = "one answer" if lanes == 1 else f"{lanes} answers"
        raise UsageError(
            f"The engine gives {at_once} at a time; a fan of {ways} needs {ways}.",
            f"Start flarechat with --concurrency {2 if ways == 2 else 4}.",
        )
    if temperature == 0:
        raise UsageError(
            f"At temperature 0 all {ways} answers would be the same.", "Raise the temperature."
        )
