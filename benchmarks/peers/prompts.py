"""What the peers are asked: chat at several depths, edits, a repetition; and with which laws.

Owns the choice and the sizes of a run. The tokens are made once, by flarechat's reading of the
model file, and every peer is held to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.h200.texts import QUESTIONS, SEED, behind
from benchmarks.peers.wire import Ask, Law
from flarechat.bench.workloads import load_workloads
from flarechat.engine.engine import Language
from flarechat.protocol import Message

LAWS = {
    "greedy": Law(seed=SEED),
    "sampled": Law(temperature=0.7, top_k=50, top_p=0.95, seed=SEED),
}
DEPTHS = {"chat": 0, "1K": 1024, "4K": 4096}
DEEP = "4K"
CONTEXTS = (*DEPTHS, "edit", "repeat")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much of everything. `questions` has the number of them at each depth, `repeats` of the
    passes by law; `slow_tokens` is what transformers' answers have. Seconds are boxes, wide enough
    not to cut anything on a quiet machine."""

    questions: dict[str, int]
    repeats: dict[str, int]
    tokens: int
    slow_tokens: int
    prompt_repeats: int
    pass_contexts: tuple[int, ...]
    pass_blocks: int
    pass_repeats: int
    busy_repeats: int
    start_repeats: int
    seconds: dict[str, float]


FULL = Sizes(
    questions={"chat": 3, "1K": 2, "4K": 1}, repeats={"greedy": 3, "sampled": 1}, tokens=128,
    slow_tokens=48, prompt_repeats=5, pass_contexts=(256, 1024), pass_blocks=4, pass_repeats=12,
    busy_repeats=4, start_repeats=3,
    seconds={"speed": 660, "prompt": 120, "passes": 90, "busy": 240, "start": 90, "memory": 90},
)  # fmt: skip
QUICK = Sizes(
    questions={"chat": 1, "1K": 1}, repeats={"greedy": 1}, tokens=48, slow_tokens=16,
    prompt_repeats=1, pass_contexts=(256,), pass_blocks=1, pass_repeats=4, busy_repeats=1,
    start_repeats=1,
    seconds={"speed": 240, "prompt": 60, "passes": 60, "busy": 60, "start": 60, "memory": 60},
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt and the most tokens of its answer. `slow` peers are asked it too; one that takes
    long to read is asked `once`, greedily."""

    context: str
    text: str
    tokens: int
    slow: bool = False
    once: bool = False


def prompts(language: Language, sizes: Sizes) -> list[Prompt]:
    """All that is asked for speed, the first of every context by all peers."""
    asked = [
        Prompt(
            context=context, text=behind(question, DEPTHS[context], counter(language), SEED),
            tokens=sizes.tokens, slow=not number and context != DEEP, once=context == DEEP,
        )
        for context, questions in sizes.questions.items()
        for number, question in enumerate(QUESTIONS[:questions])
    ]  # fmt: skip
    for context in ("edit", "repeat"):
        asked += [
            Prompt(context=context, text=load.prompt, tokens=load.max_tokens, slow=not number)
            for number, load in enumerate(load_workloads(context))
        ]
    return asked


def counter(language: Language) -> Callable[[str], int]:
    """A count of a text's tokens."""
    return lambda text: len(language.tokenizer.encode(text))


def ask_of(
    language: Language, text: str, tokens: int, law: Law, *, system: str | None = None
) -> Ask:
    """A request for `text`, with the tokens it must become."""
    said = [("system", system)] if system else []
    messages = [Message(role=role, content=content) for role, content in [*said, ("user", text)]]
    return Ask(
        messages=[{"role": m.role, "content": m.content} for m in messages],
        ids=language.encode_chat(messages, True), tokens=tokens, law=law,
    )  # fmt: skip


def of_length(language: Language, tokens: int, number: int) -> Ask:
    """A prompt of `tokens` tokens at least and a few more that begins as no other `number` does, so
    that nothing of it is in a cache; two tokens are asked for."""
    system = f"{number} readers of an archive ask you."
    alone = len(ask_of(language, "", 2, LAWS["greedy"], system=system).ids)
    text = behind(QUESTIONS[0], tokens - alone, counter(language), SEED + number)
    while True:
        ask = ask_of(language, text, 2, LAWS["greedy"], system=system)
        if len(ask.ids) >= tokens:
            return ask
        text += " Please"


def leading(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two answers have in common from their beginning."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))
