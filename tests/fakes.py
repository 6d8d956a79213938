"""ScriptedEngine: an engine door that plays written answers, for tests without torch.

It owns a script (one answer a request) and a clock nobody waits for: every `drain` plays
`rounds_per_drain` more rounds of the requests under way, as many as there are lanes, interleaved,
so a test decides how far a turn got.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flarechat.config import Settings
from flarechat.errors import FlarechatError
from flarechat.protocol import (
    Called,
    ConstraintResult,
    Delta,
    ErrorInfo,
    Event,
    Failed,
    Finished,
    Loading,
    MemoryInfo,
    ModelInfo,
    MtpInfo,
    Progress,
    Ready,
    Request,
    Round,
    Sampling,
    Started,
    Timings,
    ToolCall,
    Usage,
)
from flarechat.telemetry import RoundTotals

MODEL = ModelInfo(
    name="scripted-1m",
    recipe="llama",
    fingerprint="f" * 64,
    template_digest="0" * 16,
    parameters=1_000_000,
    vocabulary=256,
    context=2048,
    layers=2,
    dtype="float32",
    device="cpu",
    device_fingerprint="scripted-cpu",
    recommended=Sampling(temperature=0.2, top_p=0.9, top_k=50, repetition_penalty=1.05),
    mtp=MtpInfo(
        file="scripted-mtp.safetensors", draft_vocabulary=128, layers=1, parameters=100_000
    ),
    memory=MemoryInfo(priced={"weights": 4_000_000, "caches": 500}, allocated=4_000_500),
)
BARE = dataclasses.replace(MODEL, mtp=None)


@dataclass(frozen=True)
class Play:
    """One scripted round: the pieces of text it emits, its width and its drafts' source. Of two
    sources joined by "+", the first drafts one token and the second the rest. What it says goes to
    `channel`; `call` is complete with it. `forced`, `removed` and `redrawn` are a grammar's.
    """

    pieces: tuple[str, ...]
    width: int = 1
    source: str = "none"
    ms: float = 10.0
    channel: str = "answer"
    call: ToolCall | None = None
    forced: int = 0
    removed: int = 0
    redrawn: bool = False

    def round(self, request: str, index: int, context: int, lanes: int = 1) -> Round:
        """The Round event of this play: all but its last piece were accepted drafts."""
        offered, emitted = self.width - 1, len(self.pieces)
        accepted = emitted - 1
        tail = "bonus" if accepted == offered else "correction"
        first, _, rest = self.source.partition("+")
        drafts = ((first,) + (rest or first,) * (offered - 1))[:offered]
        return Round(
            request=request,
            index=index,
            width=self.width,
            source=self.source if offered else "none",
            offered=offered,
            accepted=accepted,
            emitted=emitted,
            clipped=0,
            draft_sources=drafts,
            sources=(*drafts[:accepted], tail),
            ms=self.ms,
            context=context,
            reason="scripted",
            tokens=tuple(range(context, context + emitted)),
            lanes=lanes,
            match_length=8 if first in ("history", "context") else 0,
            origin="turn-0" if first == "history" else "",
            forced=self.forced,
            removed=self.removed,
            redrawn=self.redrawn,
        )


def words(text: str) -> tuple[Play, ...]:
    """A width-one play a word, spaces kept."""
    return tuple(Play((piece,)) for piece in text.replace(" ", "\x00 ").split("\x00") if piece)


def calls(*made: tuple[str, str, dict[str, object]]) -> tuple[Play, ...]:
    """A width-one play a call (id, name, arguments)."""
    found = [ToolCall(id=own, name=name, arguments=given) for own, name, given in made]
    return tuple(Play((f"<{call.name}>",), channel="tool", call=call) for call in found)


class ScriptedEngine:
    """Implements protocol.EngineDoor from a list of answers; repeats the last one."""

    def __init__(
        self,
        answers: Sequence[Iterable[Play]] = (),
        *,
        rounds_per_drain: int = 1,
        loading: int = 0,
        failure: FlarechatError | None = None,
        reason: str = "stop",
        prompt_tokens: int = 12,
        restored: tuple[int, str] = (0, ""),
        model: ModelInfo = MODEL,
        lanes: int = 1,
        notices: tuple[str, ...] = (),
        constraint: ConstraintResult | None = None,
    ) -> None:
        self.constraint = constraint
        self.model, self.notices, self.lanes = model, notices, lanes
        self.answers = [tuple(answer) for answer in answers] or [words("Hello there.")]
        self.rounds_per_drain = rounds_per_drain
        self.failure, self.reason, self.prompt_tokens = failure, reason, prompt_tokens
        self.settings: Settings | None = None
        self.requests: list[Request] = []
        self.cancelled: list[str] = []
        self.asked_texts: list[tuple[int, ...]] = []
        self.texts: dict[int, str] = {}
        self._texts: dict[int, str] = {}
        self.closed = False
        self._events: deque[Event] = deque()
        self._loading = loading
        self._live: deque[_Turn] = deque()
        self.restored = restored

    def start(self) -> None:
        self._events.extend(
            Loading(stage="weights", done=n, total=self._loading) for n in range(self._loading)
        )
        if self.failure:
            self._events.append(Failed(error=ErrorInfo.of(self.failure)))
        else:
            ready = Ready(model=self.model, lanes=self.lanes, load_ms=5.0, notices=self.notices)
            self._events.append(ready)

    def submit(self, request: Request) -> None:
        script = self.answers[min(len(self.requests), len(self.answers) - 1)]
        self.requests.append(request)
        turn = _Turn(request, deque(script), self.reason, self.prompt_tokens)
        turn.restored = self.restored
        turn.constraint = self.constraint
        self._live.append(turn)

    def cancel(self, request: str) -> None:
        self.cancelled.append(request)
        for turn in self._live:
            if turn.request.id == request:
                turn.reason, turn.plays = "cancelled", deque()

    def spell(self, tokens: tuple[int, ...]) -> None:
        self.asked_texts.append(tokens)
        self._texts.update({token: self.texts.get(token, f" t{token}") for token in tokens})

    def spelled(self) -> dict[int, str]:
        texts, self._texts = self._texts, {}
        return texts

    def drain(self) -> list[Event]:
        events = list(self._events)
        self._events.clear()
        for _ in range(self.rounds_per_drain):
            playing = list(self._live)[: self.lanes]
            for turn in playing:
                events.extend(turn.step(len(playing)))
                if turn.done:
                    self._live.remove(turn)
        return events

    def wait(self, timeout: float | None = None) -> list[Event]:
        return self.drain()

    def close(self) -> None:
        self.closed = True


class _Turn:
    """One request being played."""

    def __init__(
        self, request: Request, plays: deque[Play], reason: str, prompt_tokens: int
    ) -> None:
        self.request, self.plays, self.reason = request, plays, reason
        last = request.messages[-1] if request.messages else None
        begun = last if last is not None and last.role == "assistant" else None
        self.continued = begun.tokens if begun else ()
        self.prompt_tokens = prompt_tokens + len(self.continued)
        self.totals = RoundTotals()
        self.said = {"answer": begun.content if begun else "", "thinking": "", "tool": ""}
        self.started, self.done = False, False
        self.restored = (0, "")
        self.constraint: ConstraintResult | None = None

    def step(self, lanes: int = 1) -> list[Event]:
        if not self.started:
            self.started = True
            return self._open()
        if not self.plays:
            self.done = True
            return [self._close()]
        play = self.plays.popleft()
        context = self.prompt_tokens + self.totals.emitted
        played = play.round(self.request.id, self.totals.rounds, context, lanes)
        self.totals.add(played)
        text = "".join(play.pieces)
        self.said[play.channel] += text
        delta = Delta(request=self.request.id, text=text, channel=play.channel)
        called = Called(request=self.request.id, call=play.call, text=text)
        return [played, delta, *([called] if play.call else [])]

    def _open(self) -> list[Event]:
        request = self.request
        started = Started(
            request=request.id,
            prompt_tokens=self.prompt_tokens,
            restored_tokens=self.restored[0],
            restored_from=self.restored[1],
            context=MODEL.context,
            max_tokens=request.max_tokens,
            acceptance="match" if request.sampling.seed is not None else "ratio",
            sampling=request.sampling,
            speculation=request.speculation,
            continued=self.continued,
            said=len(self.said["answer"]),
        )
        done = Progress(request=request.id, done=self.prompt_tokens, total=self.prompt_tokens)
        return [started, done]

    def _close(self) -> Finished:
        totals = self.totals
        return Finished(
            request=self.request.id,
            reason=self.reason,
            text=self.said["answer"],
            thinking=self.said["thinking"],
            usage=Usage(
                prompt_tokens=self.prompt_tokens,
                restored_tokens=self.restored[0],
                completion_tokens=totals.emitted,
                context=self.prompt_tokens + totals.emitted,
            ),
            timings=Timings(
                prefill_ms=20.0,
                decode_ms=totals.decode_ms,
                first_token_ms=30.0,
                tokens_per_second=totals.tokens_per_second(),
            ),
            speculation=totals.summary(),
            controller={"scripted": True},
            constraint=self.constraint if self.request.constraint else None,
        )
