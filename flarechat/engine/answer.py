"""Answer: the host's side of one live request.

Owns the request's tokens, text, totals and clocks, and turns a lane's record into events. Knows
no tensor. It says what its judges, a grammar and stop strings, make of a round's tokens before they
are its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flarechat.engine.accept import EXHAUSTED, STOPPED
from flarechat.engine.controller import Choice
from flarechat.engine.frame import LaneRecord
from flarechat.engine.judge import Verdict
from flarechat.engine.offer import FORCED, Offer
from flarechat.engine.text.answer_text import AnswerText
from flarechat.engine.text.calls import ToolForm, read_calls
from flarechat.engine.text.channels import ANSWER, THINKING, router_for
from flarechat.engine.text.tokenizer import Tokenizer
from flarechat.errors import ConstraintError
from flarechat.protocol import (
    ConstraintResult,
    Delta,
    ErrorInfo,
    Event,
    Finished,
    HistoryTotals,
    Request,
    Round,
    Timings,
    TokenLogprob,
    Usage,
)
from flarechat.telemetry import RoundTotals

if TYPE_CHECKING:
    from torch import Tensor

    from flarechat.engine.grammar import GrammarJudge


@dataclass(frozen=True, slots=True)
class Played:
    """A round as one lane saw it: its record as judged, its offer, the choice, ms and log-probs; of
    the first, what its pass gave for the pending token, hidden [F] and logits [V]. The last token
    may have been `redrawn`; where judging met a `failure`, the answer ends behind what stands."""

    record: LaneRecord
    offer: Offer
    choice: Choice
    ms: float
    lanes: int
    logprobs: tuple[TokenLogprob, ...] = ()
    repair_ms: float = 0.0
    heard: tuple[Tensor, Tensor] | None = None
    redrawn: bool = False
    failure: Exception | None = None


class Answer:
    """One request being answered in `slot`. `budget` is the most tokens it may emit.

    The prompt's first `opening` tokens begin other chats too; `snapshot` names the node on disk
    with the most of the answer's state. The last `begun` tokens of the prompt are the answer so
    far, of one that goes on. Its clocks run `since` it got its slot. A `grammar` has followed what
    stands of it; calls of tools are read in their `form`.
    """

    def __init__(
        self, request: Request, slot: int, prompt: Sequence[int], *, budget: int, restored: int,
        match: bool, seed: int, eos: Sequence[int], tokenizer: Tokenizer, begun: int = 0,
        since: float | None = None, grammar: GrammarJudge | None = None,
        form: ToolForm | None = None,
    ) -> None:  # fmt: skip
        self.request, self.slot, self.prompt = request, slot, tuple(prompt)
        self.budget, self.restored, self.match, self.seed = budget, restored, match, seed
        self.eos = frozenset(eos)
        asked = len(self.prompt) - begun
        self.continued, self.generated = self.prompt[asked:], list[int]()
        self.totals = RoundTotals()
        self.text = self.thinking = ""
        self.reason: str | None = None
        self.prefilled = restored
        self.opening, self.snapshot = 0, ""
        self._said = AnswerText(tokenizer, request.stop, self.eos)
        self._grammar, self._form, self._calls = grammar, form, 0
        self._router = router_for(tokenizer, prompt[:asked], form.marks if form else None)
        self._began = time.perf_counter() if since is None else since
        self._prefill_ms = self._first_token_ms = 0.0
        self._forced = self._removed = self._redrawn = 0
        self._say(self._said.hear(self.continued))

    @property
    def tokens(self) -> list[int]:
        """Prompt and answer; the last one is pending."""
        return [*self.prompt, *self.generated]

    @property
    def stop(self) -> str | None:
        """The stop string that ended the answer."""
        return self._said.stop

    @property
    def context(self) -> int:
        """Tokens consumed, as far as rounds were read: all but the pending one."""
        return len(self.prompt) + len(self.generated) - 1

    @property
    def pending(self) -> int:
        """The last token, as far as rounds were read."""
        return self.generated[-1] if self.generated else self.prompt[-1]

    @property
    def whole(self) -> bool:
        """Whether its grammar lets nothing follow what stands."""
        return self._grammar is not None and self._grammar.ended

    @property
    def judged(self) -> bool:
        """Whether each round has to be read before the next may be launched."""
        return bool(self.amendable or self.request.logprobs)

    @property
    def amendable(self) -> bool:
        """Whether its judges may have a round of it end sooner."""
        return bool(self._grammar or self.request.stop)

    @property
    def legal(self) -> Callable[[Sequence[int]], int] | None:
        """How many drafts, from the first, its judges would let stand; None where none judges."""
        return self._grammar.legal if self._grammar else None

    def forced(self, limit: int) -> Sequence[int]:
        """Up to `limit` tokens that come next for certain."""
        try:
            return self._grammar.forced(limit) if self._grammar else ()
        except ConstraintError:  # what the round says next is judged, and that is told
            return ()

    def verdict(self, tokens: Sequence[int]) -> Verdict:
        """What its grammar makes of tokens that come next; all stand without one."""
        return self._grammar.judge(tokens) if self._grammar else Verdict(len(tokens))

    def stops_at(self, tokens: Sequence[int]) -> int | None:
        """With how many of the tokens that come next a stop string is complete."""
        if not self.request.stop:
            return None
        ahead = self._said.copy()
        kept, _ = ahead.read(tokens)
        return None if ahead.stop is None else kept

    @property
    def left(self) -> int:
        """Tokens the budget still allows."""
        return self.budget - len(self.generated)

    def prefill_done(self) -> None:
        """Stop the prefill clock."""
        self._prefill_ms = 1e3 * (time.perf_counter() - self._began)

    def take(self, played: Played) -> tuple[Round, list[Event]]:
        """Keep the tokens of a round as it was judged: its event, and the text to show."""
        record = played.record
        kept, text = self._said.read(record.tokens)
        assert kept == record.emitted, "a round ends with the token that completes a stop string"
        ended = self._grammar is not None and self._grammar.kept(record.tokens)
        if self.stop is not None or ended or record.finish == STOPPED:
            self.reason = "stop"
        elif record.finish == EXHAUSTED:
            self.reason = "length" if self.budget == self.request.max_tokens else "context"
        if not self._first_token_ms:
            self._first_token_ms = 1e3 * (time.perf_counter() - self._began)
        event = self._event(played)
        self.generated.extend(record.tokens)
        self.totals.add(event)
        self._count(event)
        return event, self._say(text)

    def _event(self, played: Played) -> Round:
        record, offer, choice = played.record, played.offer, played.choice
        accepted, kept = record.accepted, record.emitted
        tail = "bonus" if accepted == record.offered else "correction"
        drafted = offer.sources(choice.drafting, choice.draft_tokens)[: record.offered]
        copied = offer.copied(choice.drafting, record.offered) > offer.forced
        sources = (*drafted[:accepted], tail)[:kept]
        return Round(
            request=self.request.id,
            index=self.totals.rounds,
            width=choice.draft_tokens + 1,
            source="+".join(dict.fromkeys(drafted)) or "none",
            offered=record.offered,
            accepted=accepted,
            emitted=kept,
            clipped=accepted + 1 - kept,
            draft_sources=drafted,
            sources=sources,
            ms=round(played.ms, 3),
            context=self.context,
            reason=choice.reason,
            tokens=record.tokens,
            lanes=played.lanes,
            match_length=offer.match_length if copied else 0,
            origin=offer.origin if copied else "",
            logprobs=played.logprobs,
            repair_ms=round(played.repair_ms, 3),
            redrawn=played.redrawn,
            forced=sources.count(FORCED),
            removed=offer.cut(choice.drafting, choice.draft_tokens),
        )

    def _count(self, event: Round) -> None:
        """What the grammar did in the round, for its result."""
        self._forced += event.forced
        self._removed += event.removed
        self._redrawn += event.redrawn

    def _say(self, text: str, *, last: bool = False) -> list[Event]:
        """The text by channel; the `last` of it lets go what the router held back."""
        pieces = [(ANSWER, text)] if text else []
        if self._router is not None:
            pieces = self._router.push(text) + (self._router.flush() if last else [])
        for channel, piece in pieces:
            if channel == THINKING:
                self.thinking += piece
            elif channel == ANSWER:
                self.text += piece
        said: list[Event] = [Delta(request=self.request.id, text=t, channel=c) for c, t in pieces]
        return said + self._called(last=last)

    def _called(self, *, last: bool) -> list[Event]:
        """Calls that are whole by now; with the `last` text also one that was cut off."""
        if self._router is None or self._form is None:
            return []
        texts = self._router.calls[self._calls :]
        if last and self._router.unclosed is not None:
            texts = [*texts, self._router.unclosed]
        events: list[Event] = []
        for text in texts:
            self._calls += 1
            offered, own = self.request.offered, self.request.id
            events += read_calls(self._form, text, offered, own, self._calls)
        return events

    def finish(
        self, history: HistoryTotals, context: HistoryTotals, controller: dict[str, object],
        error: ErrorInfo | None = None, notices: tuple[str, ...] = (),
    ) -> list[Event]:  # fmt: skip
        """The closing events: text that was held back, then the summary."""
        events = self._say(self._said.flush(), last=True)
        if self.stop is not None and self.reason not in ("cancelled", "error"):
            self.reason = "stop"
        totals, done = self.totals, len(self.generated)
        prompt = len(self.prompt)
        events.append(
            Finished(
                request=self.request.id,
                reason=self.reason or "error",
                text=self.text,
                usage=Usage(
                    prompt_tokens=prompt,
                    restored_tokens=self.restored,
                    completion_tokens=done,
                    context=prompt + done,
                ),
                timings=Timings(
                    prefill_ms=round(self._prefill_ms, 3),
                    decode_ms=round(totals.decode_ms, 3),
                    first_token_ms=round(self._first_token_ms, 3),
                    tokens_per_second=round(totals.tokens_per_second(), 3),
                ),
                speculation=totals.summary(history, context),
                stop=self.stop,
                thinking=self.thinking,
                error=error,
                controller=dict(controller),
                snapshot=self.snapshot,
                constraint=self._constraint(error),
                notices=notices,
            )
        )
        return events

    def _constraint(self, failure: ErrorInfo | None) -> ConstraintResult | None:
        """What became of the request's constraint, or of its choice of tools if it has to call."""
        request = self.request
        if self._grammar is None or (request.constraint is None and request.tool_choice == "auto"):
            return None
        result = self._grammar.result(
            forced=self._forced, removed=self._removed, redrawn=self._redrawn
        )
        if self.stop is not None and result.satisfied:
            cut = f"The stop string {self.stop!r} ended the answer and was taken out of it."
            result = replace(result, satisfied=False, error=cut)
        if failure is not None:
            result = replace(result, satisfied=False, error=failure.message)
        return result if request.constraint else replace(result, kind="tools")


Emit = Callable[[Event], None]
