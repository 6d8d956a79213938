"""Events: what the engine tells of itself and of each request. Field names here are public."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flarechat.errors import KINDS, FlarechatError
from flarechat.protocol.constraints import ConstraintResult
from flarechat.protocol.requests import Sampling, Speculation
from flarechat.protocol.tools import ToolCall
from flarechat.protocol.totals import SpeculationSummary

DRAFT_SOURCES = ("mtp", "history", "context", "grammar")
TAIL_SOURCES = ("correction", "bonus")


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInfo:
    """An error on its way between processes: `kind` is a class name of flarechat.errors."""

    kind: str
    message: str
    hint: str = ""

    @classmethod
    def of(cls, error: FlarechatError) -> ErrorInfo:
        return cls(kind=type(error).__name__, message=error.message, hint=error.hint)

    def exception(self) -> FlarechatError:
        return KINDS.get(self.kind, FlarechatError)(self.message, self.hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpInfo:
    """The learned draft head that is loaded: the name of its file, the tokens it can draft, its
    blocks and its parameters.
    """

    file: str
    draft_vocabulary: int
    layers: int
    parameters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryInfo:
    """Bytes on the device: what memory admission reckoned before the load, by part, and what is
    allocated after it; None where that cannot be seen. `snapshots` are the most bytes that
    snapshots of prefixes may take beside.
    """

    priced: dict[str, int]
    allocated: int | None = None
    snapshots: int = 0

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {size:,}" for name, size in self.priced.items())
        found = f"; allocated {self.allocated:,} B" if self.allocated is not None else ""
        kept = f"; snapshots up to {self.snapshots:,} B" if self.snapshots else ""
        return f"priced {sum(self.priced.values()):,} B ({parts}){found}{kept}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The loaded model, for headers, panels and session files; `mtp` is None without a head.

    `executor` is how rounds are run, eager or graph, and `executor_reason` says why so.
    """

    name: str
    recipe: str
    fingerprint: str
    template_digest: str
    parameters: int
    vocabulary: int
    context: int
    layers: int
    dtype: str
    device: str
    device_fingerprint: str
    recommended: Sampling
    mtp: MtpInfo | None = None
    memory: MemoryInfo | None = None
    executor: str = "eager"
    executor_reason: str = ""

    @property
    def rounds(self) -> str:
        """How rounds are run, in words."""
        why = f", as {self.executor_reason}" if self.executor_reason else ""
        return self.executor + why


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """Start-up work under way: `done` of `total` units of `stage`."""

    stage: str
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The engine takes requests. `notices` are sentences to show once, each about something that
    was left out: an MTP file that was refused, for one.
    """

    model: ModelInfo
    lanes: int
    load_ms: float
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The engine cannot go on; the process ends after this."""

    error: ErrorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A request got a slot. `restored_tokens` of the prompt need no computing: they were
    `restored_from` a slot (its own or another), from snapshots in memory or on disk; "" for none.

    `sampling` has the seed that is used. The prompt of an answer that is continued ends with its
    tokens so far, `continued`; `said` characters of its text stand, and `thought` of its thinking:
    what was let go behind them when it was cut off is said again or becomes something else.
    `notices` are sentences to show once, about snapshots on disk that could not be used or written.
    """

    request: str
    prompt_tokens: int
    restored_tokens: int
    context: int
    max_tokens: int
    acceptance: str
    sampling: Sampling
    speculation: Speculation
    continued: tuple[int, ...] = ()
    said: int = 0
    thought: int = 0
    restored_from: str = ""
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Prefill: `done` of `total` prompt tokens are in the caches."""

    request: str
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """Natural-log probability of one token under the target's unfiltered law (T = 1)."""

    id: int
    token: str
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One verified round.

    `width` rows were verified, `offered` drafts put to the target, `accepted` kept, `emitted`
    tokens given to the user: emitted = accepted + 1 - clipped. `draft_sources` has one entry an
    offered draft, `sources` one an emitted token (a draft source, "correction" or "bonus");
    `source` joins the draft sources in their order, such as "mtp" or "history+mtp", and is "none"
    without drafts. Fewer were offered than `width` has room for where a lane had fewer, or where a
    copy was to go on from one that the round before broke off. `ms` is the whole round's time,
    `context` the tokens consumed before it, `match_length` the key that found the copy among the
    drafts (8, 4 or 0; of one that goes on, the key that would find it) and `origin` the request id
    it was copied from. `repair_ms` of the `ms` went into running kept rows again, where what a
    round leaves behind was not enough to commit it.

    Under a constraint the last token was `redrawn` from the legal ones where the one that was
    drawn was illegal; `forced` of the emitted tokens were the only legal ones and offered as
    drafts, and `removed` drafts were not offered, as they are illegal.
    """

    request: str
    index: int
    width: int
    source: str
    offered: int
    accepted: int
    emitted: int
    clipped: int
    draft_sources: tuple[str, ...]
    sources: tuple[str, ...]
    ms: float
    context: int
    reason: str
    tokens: tuple[int, ...]
    lanes: int = 1
    match_length: int = 0
    origin: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    repair_ms: float = 0.0
    redrawn: bool = False
    forced: int = 0
    removed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """Text to append. `channel` is answer, thinking or tool."""

    request: str
    text: str
    channel: str = "answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """The model has written a call of a tool; JSON names this event `tool_call`.

    Where what it wrote, `text`, is no call of a tool it was offered, `call` is None and `error` a
    sentence that says why. Delta has the same text on channel tool.
    """

    request: str
    call: ToolCall | None = None
    error: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one request: the prompt's, of those the restored, and the generated."""

    prompt_tokens: int
    restored_tokens: int
    completion_tokens: int
    context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Milliseconds of one request; `tokens_per_second` counts emitted tokens over decode_ms."""

    prefill_ms: float
    decode_ms: float
    first_token_ms: float
    tokens_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A request ended. `text` is the whole answer, `thinking` what came before it on its own
    channel; text, tokens and state end at one token. Of an answer that was continued both are
    whole, and the figures are of what was added. `snapshot` is the digest of the snapshot on disk
    with the state at the answer's end, or near it where the answer was cut off, "" where none is
    kept. `constraint` tells of the request's. `notices` are as in Started.
    """

    request: str
    reason: str
    text: str
    usage: Usage
    timings: Timings
    speculation: SpeculationSummary
    stop: str | None = None
    error: ErrorInfo | None = None
    controller: dict[str, Any] | None = None
    thinking: str = ""
    snapshot: str = ""
    constraint: ConstraintResult | None = None
    notices: tuple[str, ...] = ()

    @classmethod
    def unplayed(cls, request: str, reason: str, error: ErrorInfo | None = None) -> Finished:
        """The end of a request that was never played: nothing said, nothing counted."""
        return cls(
            request=request,
            reason=reason,
            text="",
            usage=Usage(prompt_tokens=0, restored_tokens=0, completion_tokens=0, context=0),
            timings=Timings(prefill_ms=0, decode_ms=0, first_token_ms=0, tokens_per_second=0),
            speculation=SpeculationSummary(),
            error=error,
        )


RequestEvent = Started | Progress | Round | Delta | Called | Finished
Event = Loading | Ready | Failed | RequestEvent
