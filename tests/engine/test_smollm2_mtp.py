"""The default model with the draft head that ships for it: same text, same distribution."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import pytest
import torch
from torch import Tensor

from flarechat.engine.contracts import Drafter, Target
from flarechat.engine.engine import Engine
from flarechat.engine.executors.eager import EagerExecutor
from flarechat.engine.frame import LaneRecord, read
from flarechat.engine.plan import LawShape, Plan, extent_for
from flarechat.engine.proposal import Proposal
from flarechat.engine.sampling import target_law
from flarechat.engine.slot import SCRATCH_ROWS, Lanes
from flarechat.protocol import MAX_DRAFT_TOKENS, Message, Ready, Round, Sampling, Speculation
from tests.engine.conftest import Desk
from tests.engine.statistics import chi_square_p
from tests.engine.tiny import PACKED_HALF, STORED_TILES

pytestmark = [pytest.mark.network, pytest.mark.slow]

PROMPT = (
    "Tell a story that begins with: The old lighthouse keeper climbed the winding stairs every "
    "evening to light the great lamp."
)
LANES = 4


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def drafting(smollm2: Path, cache: Path) -> Desk:
    """An engine as it boots without flags, but for its context and lanes."""
    return Desk(smollm2, cache, context=512, lanes=LANES)


@pytest.fixture(scope="module")
def plain(smollm2: Path, cache: Path) -> Desk:
    """The same without its head."""
    return Desk(smollm2, cache, context=512, mtp=False)


@pytest.fixture(scope="module", params=[PACKED_HALF, STORED_TILES])
def pair(smollm2: Path, cache: Path, request: pytest.FixtureRequest) -> tuple[Desk, Desk]:
    """One with its head and one without, in either dtype of a CPU. No prefix is kept: a first round
    that is recalled drafts nothing."""
    boot = {"context": 512, "dtype": request.param, "prefix_cache": 0}
    with_head, without = (Desk(smollm2, cache, mtp=mtp, **boot) for mtp in (True, False))
    return with_head, without


def test_the_head_that_ships_is_found_without_flags(drafting: Desk, plain: Desk) -> None:
    told, without = (
        next(event for event in desk.events if isinstance(event, Ready))
        for desk in (drafting, plain)
    )

    assert told.model.mtp is not None and without.model.mtp is None
    assert "smollm2-135m-mtp.safetensors" == told.model.mtp.file
    assert not any("MTP" in notice for notice in (*told.notices, *without.notices))


def tokens(rounds: list[Round]) -> list[int]:
    return list(chain.from_iterable(played.tokens for played in rounds))


@pytest.mark.parametrize(
    "sampling",
    [Sampling(temperature=0), Sampling(temperature=0.7, top_k=40, top_p=0.95, seed=11)],
    ids=["greedy", "seeded"],
)
def test_every_width_says_what_the_model_says_without_a_head(
    pair: tuple[Desk, Desk], sampling: Sampling
) -> None:
    drafting, plain = pair
    fields = {"sampling": sampling, "max_tokens": 28}
    off = Speculation(history_drafts=False)
    expected, alone = plain.ask(PROMPT, speculation=off, **fields)
    fixed = [
        Speculation(draft_tokens=width, adaptive=False, history_drafts=False)
        for width in range(1, MAX_DRAFT_TOKENS + 1)
    ]
    both = [Speculation(adaptive=False), Speculation()]
    sources = set()
    for how in (replace(off, mtp=False), *fixed, *both):
        finished, rounds = drafting.ask(PROMPT, speculation=how, **fields)
        sources |= {source for played in rounds for source in played.draft_sources}

        assert expected.text == finished.text, how
        assert tokens(alone) == tokens(rounds), how
        assert (finished.speculation.accepted > 4) == how.mtp, how
    assert 28 == len(tokens(alone))
    assert {"mtp", "history"} <= sources


class Memoised:
    """A target whose passes are played once for each row of inputs; the slots hold one prompt."""

    repair_ms = 0.0

    def __init__(self, target: Target) -> None:
        self.target = target
        self.known: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    def verify(self, lanes: Lanes, inputs: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        rows = [tuple(row) for row in inputs.tolist()]
        for lane, row in enumerate(rows):
            if row not in self.known:
                own = Lanes(lanes.pool, [lanes.slots[lane]])
                hidden, logits = self.target.verify(own, inputs[lane : lane + 1], plan)
                self.known[row] = hidden[0].clone(), logits[0].clone()
        known = [self.known[row] for row in rows]
        return torch.stack([hidden for hidden, _ in known]), torch.stack([row for _, row in known])

    def keep(self, lanes: Lanes, emitted: Tensor) -> None:
        self.target.keep(lanes, emitted)


@dataclass(frozen=True)
class Misreporting:
    """A drafter that says something else of its drafts' law than what drew them."""

    drafter: Drafter
    change: Callable[[Proposal], Proposal]

    def propose(self, lanes: Lanes, plan: Plan) -> Proposal:
        return self.change(self.drafter.propose(lanes, plan))

    def __getattr__(self, name: str) -> object:
        return getattr(self.drafter, name)


class Table:
    """One prompt in every slot, whose next round is played again and again."""

    def __init__(self, engine: Engine, sampling: Sampling) -> None:
        self.engine, self.pool = engine, engine.pool
        messages = (Message(role="user", content="Tell me a short story about the sea."),)
        prompt = engine.language.encode_chat(messages)
        rows = self.pool.context + SCRATCH_ROWS
        self.law = LawShape.of([sampling], self.pool.vocabulary)
        extent = extent_for(len(prompt) + 1, rows)
        self.plan = Plan(1, extent, self.law, "ratio", drafting="mtp")
        self.lanes = Lanes(self.pool, range(LANES))
        self.target = Memoised(engine.executor.target)  # type: ignore[attr-defined]
        for slot in range(LANES):
            self.pool.open(
                slot, prompt, sampling=sampling, seed=0, match=False, budget=9,
                eos=engine.language.eos,
            )  # fmt: skip
            engine.residents.forget(slot)
            engine.drafter.open(slot, "", prompt, restored=0, history=False, mtp=True)
            engine.executor.prefill(
                Lanes(self.pool, [slot]), torch.tensor([prompt[:-1]]), Plan(len(prompt) - 2, extent)
            )
            self.pool.start(slot)
            engine.drafter.stage(slot, 1)
        self.start = {name: value.clone() for name, value in self.pool.tensors().items()}

    def play(self, drafter: Drafter, rounds: int) -> Iterator[LaneRecord]:
        """So many rounds with seeds of their own, each from the same place."""
        executor = EagerExecutor(self.target, drafter)  # type: ignore[arg-type]
        for first in range(0, rounds, LANES):
            for name, value in self.pool.tensors().items():
                value.copy_(self.start[name])
            self.pool.seed.copy_(torch.arange(first, first + LANES))
            yield from read(executor.play(self.lanes, self.plan))
        for slot in range(LANES):
            self.pool.release(slot)

    def first(self, records: list[LaneRecord]) -> Tensor:
        """How often each token of the vocabulary came first."""
        tokens = torch.tensor([record.tokens[0] for record in records])
        return torch.bincount(tokens, minlength=self.pool.vocabulary)

    def expected(self) -> Tensor:
        """float32 [V]: the target's own law of the first token."""
        _, logits = next(iter(self.target.known.values()))
        for name, value in self.pool.tensors().items():
            value.copy_(self.start[name])
        law = target_law(logits[None, :1], Lanes(self.pool, [0]), logits.new_zeros(1, 0), self.law)
        whole = torch.zeros(self.pool.vocabulary)
        return whole.index_add(0, law.candidates()[0, 0], law.probs[0, 0])


FILTERED = Sampling(temperature=1, top_k=20, top_p=0.95)
WHOLE = Sampling(temperature=1)


@pytest.mark.parametrize(
    ("sampling", "count"),
    [(FILTERED, 20_000), (WHOLE, 6_000)],
    ids=["top-k and top-p", "whole vocabulary"],
)
def test_by_ratio_the_first_tokens_of_many_rounds_have_the_models_law(
    drafting: Desk, sampling: Sampling, count: int
) -> None:
    table = Table(drafting.engine, sampling)
    records = list(table.play(drafting.engine.drafter, count))
    accepted = sum(record.accepted for record in records)

    assert count == sum(record.offered for record in records)
    assert 0.5 * count < accepted < 0.9 * count
    assert chi_square_p(table.first(records), count * table.expected()) > 0.01


def shifted(proposal: Proposal) -> Proposal:
    assert proposal.probs is not None
    return replace(proposal, probs=proposal.probs.roll(1, dims=-1))


def flatter(proposal: Proposal) -> Proposal:
    assert proposal.probs is not None
    probs = proposal.probs.sqrt()
    return replace(proposal, probs=probs / probs.sum(-1, keepdim=True))


@pytest.mark.parametrize(
    ("sampling", "change"), [(FILTERED, shifted), (FILTERED, flatter), (WHOLE, flatter)]
)
def test_a_drafter_that_misreports_its_law_does_not_pass_that_test(
    drafting: Desk, sampling: Sampling, change: Callable[[Proposal], Proposal]
) -> None:
    count, table = 2_000, Table(drafting.engine, sampling)
    records = list(table.play(Misreporting(drafting.engine.drafter, change), count))  # type: ignore[arg-type]

    assert chi_square_p(table.first(records), count * table.expected()) < 1e-6
