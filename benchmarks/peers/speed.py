"""Tokens a second of every peer, prompt by prompt in alternating order, and whether texts agree.

Owns the order of the section. A pass is one law and one repeat: flarechat's engines are new, answer
once without being counted, and keep what their controllers learn; every prompt is put to all peers
before the next is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.h200.record import Box, Run
from benchmarks.peers.crew import ANSWERING, FLARECHAT, OFF, TRANSFORMERS, Crew, turns
from benchmarks.peers.prompts import LAWS, Prompt, Sizes, ask_of, leading, prompts
from benchmarks.peers.wire import Told
from flarechat.bench.runner import WARM_UP, WARM_UP_TOKENS
from flarechat.engine.engine import Language

GREEDY = "greedy"
Answers = dict[tuple[int, str], Told]


def measure(run: Run, crew: Crew, language: Language, sizes: Sizes, box: Box) -> dict[str, Any]:
    """The section. Repeats go round the laws, so that a run cut short has both."""
    asked = prompts(language, sizes)
    for repeat in range(max(sizes.repeats.values())):
        for law, repeats in sizes.repeats.items():
            if repeat < repeats and not box.over:
                answers = Pass(run, crew, language, sizes, law, repeat).play(asked, box)
                if law == GREEDY and repeat == 0:
                    _agreement(run, asked, answers)
    crew.end(TRANSFORMERS)
    return {"prompts": len(asked)}


@dataclass(frozen=True, slots=True)
class Pass:
    """All prompts by one law, once."""

    run: Run
    crew: Crew
    language: Language
    sizes: Sizes
    law: str
    repeat: int

    def play(self, asked: Sequence[Prompt], box: Box) -> Answers:
        """The answers by prompt and engine. Transformers, which is slow, plays in the first repeat
        only, and few prompts."""
        self.crew.end(FLARECHAT)
        names, answers = self.crew.known(ANSWERING), Answers()
        if self.repeat:
            names = [name for name in names if name not in TRANSFORMERS]
        for name in names:
            warm = ask_of(self.language, WARM_UP, WARM_UP_TOKENS, LAWS[self.law])
            self.crew.get(name).ask(warm)
        for number, prompt in enumerate(asked):
            for name in turns(names, self.repeat + number):
                if not box.over and self._plays(name, prompt):
                    answers[number, name] = self._answer(name, number, prompt)
        return answers

    def _plays(self, name: str, prompt: Prompt) -> bool:
        if name in TRANSFORMERS:
            return prompt.slow
        return not prompt.once or (self.law == GREEDY and not self.repeat)

    def _answer(self, name: str, number: int, prompt: Prompt) -> Told:
        slow, law = name in TRANSFORMERS, LAWS[self.law]
        tokens = min(prompt.tokens, self.sizes.slow_tokens) if slow else prompt.tokens
        drawn = replace(law, seed=law.seed + number)
        told, noise = self.crew.get(name).ask(ask_of(self.language, prompt.text, tokens, drawn))
        self.run.table("speed").add(
            engine=name, law=self.law, context=prompt.context, prompt=number, repeat=self.repeat,
            tokens=len(told.tokens), rate=told.rate, decode_ms=told.decode_ms,
            first_ms=told.first_ms, restored=told.restored, load=noise.load,
            involuntary=noise.involuntary,
        )  # fmt: skip
        return told


def _agreement(run: Run, asked: Sequence[Prompt], answers: Answers) -> None:
    """How far every greedy text goes with that of plain decoding in flarechat."""
    for (number, name), told in answers.items():
        plain = answers.get((number, OFF))
        if name == OFF or plain is None:
            continue
        most = min(len(told.tokens), len(plain.tokens))
        run.table("agreement").add(
            engine=name, context=asked[number].context, prompt=number,
            leading=leading(told.tokens, plain.tokens), of=most,
        )  # fmt: skip
