"""The default model under a constraint: the masked law of its tokens whoever drafts, the same text
at every width, and answers that other validators take."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from flarechat.engine.executors.eager import EagerExecutor
from flarechat.engine.frame import read
from flarechat.engine.grammar import GrammarJudge, compile_constraint
from flarechat.engine.plan import LawShape, Plan, extent_for
from flarechat.engine.slot import SCRATCH_ROWS, Lanes
from flarechat.protocol import Constraint, Message, Sampling, Speculation
from tests.engine.conftest import Desk
from tests.engine.grammar.schemas import CASES, Case
from tests.engine.statistics import chi_square_p
from tests.engine.test_sampling import expected_law
from tests.engine.test_smollm2_mtp import Memoised

pytestmark = [pytest.mark.network, pytest.mark.slow]

LANES, COUNT = 4, 600
WORDS = ("happy", "hopeful", "sad", "calm", "angry", "tired", "excited", "content")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"mood": {"enum": list(WORDS)}, "strength": {"enum": [1, 2, 3]}},
    "required": ["mood", "strength"],
    "additionalProperties": False,
}
MOOD = Constraint(kind="json-schema", text=json.dumps(SCHEMA))
OPENING = '{"mood": "'
ASKED = 'How do you feel today? Answer as JSON, as in {"mood": "calm", "strength": 2}.'
LAW = Sampling(temperature=2.2, top_k=60)


@pytest.fixture(scope="module")
def desk(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """An engine as it boots without flags, but for its context and lanes, that keeps no prefix."""
    cache = tmp_path_factory.mktemp("cache")
    return Desk(smollm2, cache, context=512, lanes=LANES, prefix_cache=0)


class Spot:
    """The same place of one answer in every slot, where a round is played again and again."""

    def __init__(self, desk: Desk, source: str, acceptance: str) -> None:
        engine = self.engine = desk.engine
        language, pool = engine.language, engine.pool
        self.prompt = language.encode_chat((Message(role="user", content=ASKED),))
        grammar = compile_constraint(MOOD, engine.grammars.vocabulary)
        self.judge = GrammarJudge(grammar, self.prompt)
        forced = self.judge.forced(7)
        assert OPENING == language.tokenizer.decode(forced)
        if source != "grammar":
            self.judge.begin(forced)
            self.prompt, forced = [*self.prompt, *forced], []
        self.free, self.lanes = len(forced), Lanes(pool, range(LANES))
        self.target = Memoised(engine.executor.target)  # type: ignore[attr-defined]
        extent = extent_for(len(self.prompt) + 8, pool.context + SCRATCH_ROWS)
        for slot in range(LANES):
            pool.open(
                slot, self.prompt, sampling=LAW, seed=0, match=acceptance == "match", budget=30,
                eos=language.eos,
            )  # fmt: skip
            engine.residents.forget(slot)
            history = source == "context"
            engine.drafter.open(slot, "", self.prompt, restored=0, history=history, mtp=not history)
            own, inputs = Lanes(pool, [slot]), torch.tensor([self.prompt[:-1]])
            engine.executor.prefill(own, inputs, Plan(len(self.prompt) - 2, extent))
            pool.start(slot)
            offer = engine.drafter.stage(slot, 7, forced=forced, legal=self.judge.legal)
        assert source in ("mtp", offer.source) or offer.forced == self.free
        drafts, drafting = {
            "mtp": (1, "mtp"), "context": (offer.count, "copies"),
            "grammar": (self.free + 1, "both"),
        }[source]  # fmt: skip
        self.plan = Plan(drafts, extent, LawShape.of([LAW], pool.vocabulary), acceptance,
                         drafting=drafting, judged=True)  # fmt: skip
        self.start = {name: value.clone() for name, value in pool.tensors().items()}

    def play(self, count: int) -> Iterator[list[int]]:
        """What stands of so many rounds, each by a seed of its own."""
        executor = EagerExecutor(self.target, self.engine.drafter)  # type: ignore[arg-type]
        self.redrawn = 0
        for first in range(0, count, LANES):
            self.restore()
            self.engine.pool.seed.copy_(torch.arange(first, first + LANES) * 7919 + 3)
            for slot, record in enumerate(read(executor.play(self.lanes, self.plan))):
                verdict = self.judge.judge(record.tokens)
                kept = list(record.tokens[: verdict.kept])
                if verdict.legal is not None:
                    kept.append(executor.redraw(slot, verdict.kept, verdict.legal))
                    self.redrawn += 1
                yield kept
        for slot in range(LANES):
            self.engine.pool.release(slot)

    def restore(self) -> None:
        for name, value in self.engine.pool.tensors().items():
            value.copy_(self.start[name])

    def expected(self, said: tuple[int, ...]) -> torch.Tensor:
        """The law behind `said` by transformers' processors, over tokens whose bytes go on in one
        of the texts that the schema has."""
        row = next(known for known in self.target.known if known[1 : 1 + len(said)] == said)
        logits = self.target.known[row][1][len(said)].float()
        law = expected_law(logits, LAW, self.prompt, list(said), len(logits)).double()
        tokenizer = self.engine.language.tokenizer
        before = OPENING if self.free == 0 else ""
        texts = {f'{OPENING}{word}", "strength": 1}}' for word in WORDS}
        begun = (before + tokenizer.decode(list(said))).encode()
        rests = [text.encode()[len(begun) :] for text in texts if text.encode().startswith(begun)]
        legal = [
            bool(said) and any(rest.startswith(said) for rest in rests)
            for said in map(tokenizer.token_bytes, range(len(law)))
        ]
        law *= torch.tensor(legal)
        assert law.sum() > 0
        return law / law.sum()


@pytest.mark.parametrize("acceptance", ["ratio", "match"])
@pytest.mark.parametrize("source", ["mtp", "context", "grammar"])
def test_the_first_tokens_have_the_masked_law(desk: Desk, source: str, acceptance: str) -> None:
    spot = Spot(desk, source, acceptance)
    answers = list(spot.play(COUNT))
    said = Counter(tuple(answer[: spot.free]) for answer in answers)
    ((opening, count),) = said.items()
    first = torch.tensor([answer[spot.free] for answer in answers])
    expected = spot.expected(opening)

    assert COUNT == count
    assert spot.redrawn > COUNT // 20
    assert (expected > 0.02).sum() > 3
    counts = torch.bincount(first, minlength=len(expected))
    assert chi_square_p(counts, COUNT * expected) > 1e-3
    warmer = expected**0.7 / (expected**0.7).sum()
    assert chi_square_p(counts, COUNT * warmer) < 1e-3


def test_by_match_the_text_is_the_same_at_every_width(desk: Desk) -> None:
    note = {"type": "string", "maxLength": 12}
    schema = {**SCHEMA, "properties": {**SCHEMA["properties"], "note": note}}
    free = Constraint(kind="json-schema", text=json.dumps(schema))
    law = Sampling(temperature=1.4, top_k=60, seed=5)
    fixed = [
        Speculation(draft_tokens=draft_tokens, adaptive=False, history_drafts=False)
        for draft_tokens in (0, 1, 2, 3, 5, 7)
    ]
    texts, sources, redrawn = set(), set(), 0
    for how in (*fixed, Speculation(adaptive=False), Speculation()):
        finished, rounds = desk.ask(
            ASKED, sampling=law, max_tokens=32, constraint=free, speculation=how
        )
        texts.add((finished.text, *(token for played in rounds for token in played.tokens)))
        sources |= {source for played in rounds for source in played.sources}
        redrawn += sum(played.redrawn and played.emitted > 1 for played in rounds)

    assert 1 == len(texts)
    assert redrawn > 6
    assert {"grammar", "mtp", "history"} <= sources
    assert texts.pop()[0].startswith(OPENING)


BOUNDED = ("person", "nested", "unicode", "uuid or null", "date-time", "tuple", "one of two",
           "merged", "closed by pattern", "other scripts")  # fmt: skip


def test_answers_of_lanes_at_once_are_taken_by_other_validators(desk: Desk) -> None:
    cases: dict[str, Case] = {case.name: case for case in CASES if case.name in BOUNDED}
    requests = [
        desk.request(
            f"Answer: {name}.", constraint=case.constraint, max_tokens=64,
            sampling=Sampling(temperature=1.2, seed=number),
            speculation=Speculation(acceptance=("ratio", "match")[number % 2]),
        )
        for number, (name, case) in enumerate(cases.items())
    ]  # fmt: skip
    for request in requests:
        desk.engine.submit(request)
    desk.run()
    ended = [desk.finished(request.id) for request in requests]
    told = [finished.constraint.satisfied for finished in ended if finished.constraint]

    assert len(BOUNDED) == len(told)
    assert sum(told) > len(told) // 2
    for case, finished, whole in zip(cases.values(), ended, told, strict=True):
        assert not whole or case.holds(finished.text), (case.name, finished.text)
        assert whole or finished.reason == "length"
