"""The vocabulary that the application and the engine process speak: requests down, events up.

Owns the dataclasses and their JSON form, one object a line. Knows no tensor, no widget and no
file. `flarechat run --json` prints these very objects, so a field name here is public.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from flarechat.errors import KINDS, FlarechatError, SettingsError

SCHEMA = 1
MAX_DRAFT_TOKENS = 7
MAX_LANES = 4
ACCEPTANCES = ("auto", "ratio", "match")
DRAFT_SOURCES = ("mtp", "history", "context", "grammar")
TAIL_SOURCES = ("correction", "bonus")
FINISH_REASONS = ("stop", "length", "context", "cancelled", "error")


def _require(name: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    """Refuse a number outside its range, naming the flag, the value and the range."""
    fits = math.isfinite(value) and (low < value if open_low else low <= value) and value <= high
    if not fits:
        bracket = "(" if open_low else "["
        raise SettingsError(
            f"--{name} {_figure(value)} is out of range.",
            f"Give a value in {bracket}{_figure(low)}, {_figure(high)}].",
        )


def _figure(value: float) -> str:
    """A whole number with all its digits, any other one short."""
    return str(value) if isinstance(value, int) else f"{value:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The law an answer is drawn from. Temperature 0 means argmax; top_k 0 means off."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        _require("temperature", self.temperature, 0.0, 100.0)
        _require("top-k", self.top_k, 0, 2**31 - 1)
        _require("top-p", self.top_p, 0.0, 1.0, open_low=True)
        _require("min-p", self.min_p, 0.0, 1.0)
        _require("repetition-penalty", self.repetition_penalty, 0.0, 10.0, open_low=True)
        _require("presence-penalty", self.presence_penalty, -2.0, 2.0)
        _require("frequency-penalty", self.frequency_penalty, -2.0, 2.0)
        if self.seed is not None:
            _require("seed", self.seed, 0, 2**63 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How a request may draft. `draft_tokens` is K, the most drafts one round may offer."""

    draft_tokens: int = MAX_DRAFT_TOKENS
    adaptive: bool = True
    history_drafts: bool = True
    mtp: bool = True
    acceptance: str = "auto"

    def __post_init__(self) -> None:
        _require("mtp-draft-tokens", self.draft_tokens, 0, MAX_DRAFT_TOKENS)
        if self.acceptance not in ACCEPTANCES:
            raise SettingsError(
                f"--acceptance {self.acceptance} is unknown.", f"Use {', '.join(ACCEPTANCES)}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation: role is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One turn to answer. `id` names it in every event and in the history ring's origins.

    `controller` is the controller state an earlier turn finished with, or None.
    """

    id: str
    messages: tuple[Message, ...]
    sampling: Sampling = Sampling()
    speculation: Speculation = Speculation()
    max_tokens: int = 1024
    stop: tuple[str, ...] = ()
    logprobs: int = 0
    controller: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        _require("max-tokens", self.max_tokens, 1, 2**31 - 1)
        _require("logprobs", self.logprobs, 0, 20)
        if any(not text for text in self.stop):
            raise SettingsError("--stop was given an empty string.", "Give at least one character.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """What the engine process needs to start. `model` is a path: a GGUF file or a folder.

    `context` None means the model's own length; `dtype` is auto, float32, float16, bfloat16 or
    packed-float16 (fp16 weights, float32 arithmetic, CPU only).
    """

    model: str
    cache: str
    context: int | None = None
    lanes: int = 1
    device: str = "auto"
    dtype: str = "auto"
    threads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Command: answer this request."""

    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Command: stop this request; what was emitted stays."""

    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shutdown:
    """Command: finish nothing more, leave."""


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
class ModelInfo:
    """The loaded model, for headers, panels and session files."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """Start-up work under way: `done` of `total` units of `stage`."""

    stage: str
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The engine takes requests."""

    model: ModelInfo
    lanes: int
    load_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The engine cannot go on; the process ends after this."""

    error: ErrorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A request got a slot. `restored_tokens` of the prompt were still in its caches."""

    request: str
    prompt_tokens: int
    restored_tokens: int
    context: int
    max_tokens: int
    acceptance: str
    sampling: Sampling
    speculation: Speculation


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
    tokens given to the user: emitted = accepted + 1 - clipped. `source` is where the drafts came
    from ("none" without drafts); `draft_sources` has one entry an offered draft, `sources` one
    an emitted token (a draft source, "correction" or "bonus"). `ms` is the whole round's time,
    `context` the tokens consumed before it, `match_length` the key that found a copy (8, 4 or 0)
    and `origin` the request id it was copied from.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """Text to append. `channel` is answer, thinking or tool."""

    request: str
    text: str
    channel: str = "answer"


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
class SourceTotals:
    """Drafts of one source over a request, and tokens emitted from it."""

    offered: int = 0
    accepted: int = 0
    emitted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthTotals:
    """Drafts at one depth (1 is the first of a round)."""

    depth: int
    offered: int
    accepted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryTotals:
    """Look-ups of the copy indexes: how many, and how many hit by key length."""

    lookups: int = 0
    hits8: int = 0
    hits4: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationSummary:
    """Totals of a request's rounds.

    emitted = accepted + rounds - clipped; `mean_acceptance_length` is emitted / rounds, the
    bonus included; `draft_acceptance_rate` is accepted / offered, 0 without offers;
    `acceptance_histogram[a]` counts rounds that accepted a drafts; `by_depth` and `by_source`
    add up to the totals; `cost_ms_by_width` is the median whole-round time of each width.
    """

    rounds: int = 0
    offered: int = 0
    accepted: int = 0
    emitted: int = 0
    clipped: int = 0
    mean_acceptance_length: float = 0.0
    draft_acceptance_rate: float = 0.0
    acceptance_histogram: tuple[int, ...] = ()
    by_depth: tuple[DepthTotals, ...] = ()
    by_source: dict[str, SourceTotals] = field(default_factory=dict)
    cost_ms_by_width: dict[str, float] = field(default_factory=dict)
    history: HistoryTotals = HistoryTotals()
    context: HistoryTotals = HistoryTotals()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A request ended. `text` is the whole answer; text, tokens and state end at one token."""

    request: str
    reason: str
    text: str
    usage: Usage
    timings: Timings
    speculation: SpeculationSummary
    stop: str | None = None
    error: ErrorInfo | None = None
    controller: dict[str, Any] | None = None

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


Command = Submit | Cancel | Shutdown
RequestEvent = Started | Progress | Round | Delta | Finished
Event = Loading | Ready | Failed | RequestEvent


class EngineDoor(Protocol):
    """What the application may ask of an engine, real or scripted. No call blocks but `wait`."""

    def start(self) -> None:
        """Begin loading; events tell how it goes."""

    def submit(self, request: Request) -> None:
        """Queue a request."""

    def cancel(self, request: str) -> None:
        """Ask a request to stop within one round."""

    def drain(self) -> list[Event]:
        """Return the events that came since the last call."""

    def wait(self, timeout: float | None = None) -> list[Event]:
        """Block until at least one event is there or `timeout` seconds passed; drain."""

    def close(self) -> None:
        """End the engine; safe to call twice."""


_NAMES: dict[str, type] = {
    cls.__name__.lower(): cls
    for cls in (
        Boot, Submit, Cancel, Shutdown, Loading, Ready, Failed, Started, Progress, Round, Delta,
        Finished,
    )
}  # fmt: skip


def to_dict(message: Any) -> dict[str, Any]:
    """The JSON form of a command or an event: its fields behind its name."""
    return {"event": type(message).__name__.lower(), **dataclasses.asdict(message)}


def encode(message: Any) -> str:
    """One line of JSON, without the line break."""
    return json.dumps(to_dict(message), ensure_ascii=True, separators=(",", ":"))


def decode(line: str) -> Any:
    """The command or event of one line; unknown fields are ignored, an unknown name refused."""
    data = json.loads(line)
    name = data.pop("event", None)
    if name not in _NAMES:
        raise FlarechatError(f"The engine channel carried an unknown message {name!r}.")
    return from_dict(_NAMES[name], data)


def from_dict(cls: Any, data: Any) -> Any:
    """Build `cls` (a dataclass, tuple, dict or union of them) from plain JSON data."""
    origin, args = typing.get_origin(cls), typing.get_args(cls)
    if origin in (types.UnionType, typing.Union):
        return None if data is None else from_dict(_not_none(args), data)
    if origin is tuple:
        return tuple(from_dict(args[0], item) for item in data)
    if origin is dict:
        return {key: from_dict(args[1], value) for key, value in data.items()}
    if dataclasses.is_dataclass(cls):
        hints = _hints(cls)
        kept = {k: from_dict(hints[k], v) for k, v in data.items() if k in hints}
        return typing.cast(Any, cls)(**kept)
    return data


def _not_none(args: Iterable[Any]) -> Any:
    return next(arg for arg in args if arg is not type(None))


_HINTS: dict[Any, dict[str, Any]] = {}


def _hints(cls: Any) -> dict[str, Any]:
    """Resolved field types of a dataclass, looked up once."""
    if cls not in _HINTS:
        _HINTS[cls] = typing.get_type_hints(cls)
    return _HINTS[cls]
