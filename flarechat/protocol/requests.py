"""Requests: what the application asks of the engine, with the limits of every field.

A value out of range is refused where it is made, by the name of its flag.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from flarechat.errors import SettingsError
from flarechat.protocol.constraints import Constraint
from flarechat.protocol.tools import Tool, ToolCall, require_tools

MAX_DRAFT_TOKENS = 7
MAX_LANES = 4
SPECULATIVE_TOKENS = 128
EXECUTORS = ("auto", "eager", "graph")
ACCEPTANCES = ("auto", "ratio", "match")
PACKED = "packed-float16"
STORED = "as-stored"
DTYPES = ("auto", "float32", "float16", "bfloat16", PACKED, STORED)


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
        _require("repetition-penalty", self.repetition_penalty, 0.01, 10.0)
        _require("presence-penalty", self.presence_penalty, -2.0, 2.0)
        _require("frequency-penalty", self.frequency_penalty, -2.0, 2.0)
        if self.seed is not None:
            _require("seed", self.seed, 0, 2**63 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How a request may draft. `draft_tokens` is K, the most drafts one round may offer; 0 turns
    every way of drafting off."""

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

    @property
    def copies(self) -> bool:
        """Whether text may be copied, from the request's own and from history."""
        return self.history_drafts and self.draft_tokens > 0

    @property
    def learned(self) -> bool:
        """Whether an MTP head may draft, where the model has one."""
        return self.mtp and self.draft_tokens > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation: role is system, user, assistant or tool.

    `tokens` are those that `content` was generated as, by the model with the fingerprint `model`. A
    prompt has these very tokens where they say what it says, and the text encoded anew elsewhere.
    Behind `content` an assistant may have made `calls`, which are among its tokens; a tool's
    message is the result of the one with the id `call`.
    """

    role: str
    content: str
    tokens: tuple[int, ...] = ()
    model: str = ""
    calls: tuple[ToolCall, ...] = ()
    call: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One turn to answer. `id` names it in every event and in the history ring's origins.

    Where the last message is the assistant's, the model goes on inside it, as if it had not been
    cut off: its tokens count as generated, and events tell the whole answer or what is new.
    `controller` is the controller state an earlier turn finished with, or None. Without `thinking`
    the template is told that the model is not to think. Of a `private` one nothing is written to
    disk by the engine. Which of `tools` may be called `tool_choice` says: auto leaves it to the
    model, none shows it none, required has it call one at least, and a name has it call that one.
    A `constraint` holds for the answer, not for the thinking before it.
    """

    id: str
    messages: tuple[Message, ...]
    sampling: Sampling = Sampling()
    speculation: Speculation = Speculation()
    max_tokens: int = 1024
    stop: tuple[str, ...] = ()
    logprobs: int = 0
    controller: dict[str, Any] | None = None
    thinking: bool = True
    private: bool = False
    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        require_tools(self.tools, self.tool_choice)
        _require("max-tokens", self.max_tokens, 1, 2**31 - 1)
        _require("logprobs", self.logprobs, 0, 20)
        if any(not text for text in self.stop):
            raise SettingsError("--stop was given an empty string.", "Give at least one character.")

    @property
    def offered(self) -> tuple[Tool, ...]:
        """The tools that the model is told of."""
        return () if self.tool_choice == "none" else self.tools


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """What the engine process needs to start. `model` is a path: a GGUF file or a folder.

    `context` None means the model's own length; `dtype` is auto, float32, float16, bfloat16,
    packed-float16 (fp16 weights, float32 arithmetic, CPU only) or as-stored (weights as their file
    has them, int8 activations, fp16 cache, by the CPU's kernels). Without `mtp` no draft head is
    loaded; `mtp_file` is a path to try before those that lie beside the model or ship with it.
    `executor` is auto, eager or graph; no round verifies more than `speculative_token_capacity`
    tokens, all lanes together. `prefix_cache` are the most MiB that snapshots of prefixes take, on
    the device; None means a part of what is free, 0 keeps none. `prefix_cache_disk` are the most
    MiB that they take in the cache folder, where they outlive the process; 0 writes none.
    """

    model: str
    cache: str
    context: int | None = None
    lanes: int = 1
    device: str = "auto"
    dtype: str = "auto"
    threads: int | None = None
    mtp: bool = True
    mtp_file: str | None = None
    executor: str = "auto"
    speculative_token_capacity: int = SPECULATIVE_TOKENS
    prefix_cache: int | None = None
    prefix_cache_disk: int = 0


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


Command = Submit | Cancel | Shutdown
