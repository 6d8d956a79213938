"""How a round is put to FlashInfer, whose samplers stand here in plain numbers on the CPU."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from flarechat.engine.kernels import chain, flashinfer_chain, sampler
from flarechat.engine.kernels.filter import Chain
from flarechat.engine.proposal import Proposal
from flarechat.engine.sampling import TargetLaw
from flarechat.errors import SettingsError
from tests.engine.requests import generator, lanes_of, law_of, near
from tests.engine.test_chain import chain as plain_chain
from tests.engine.test_rng import philox

V, LANES = 90, 40
CPU = torch.device("cpu")


def drawn(seed: Tensor, offset: Tensor, count: int) -> list[np.float32]:
    """Draws of one row, as cuRAND numbers them."""
    assert (1,) == tuple(seed.shape) == tuple(offset.shape)
    key, first, unit = int(seed) % 2**64, int(offset), np.float32(2**-32)
    words = [philox(key, at // 4)[at % 4] for at in range(first, first + count)]
    return [np.float32(word) * unit + unit / 2 for word in words]


class Module(ModuleType):
    """The two samplers, for one row a call, strict about what they are given."""

    empty = False

    def chain_speculative_sampling(
        self, q: Tensor, drafts: Tensor, p: Tensor, accepted: Tensor, emitted: Tensor, *,
        seed: Tensor, offset: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        assert (torch.float32, torch.int32, torch.float32) == (q.dtype, drafts.dtype, p.dtype)
        assert q.is_contiguous() and p.is_contiguous() and q.shape[-1] % 4 == 0
        count = drafts.shape[1]
        assert (1, count, p.shape[-1]) == tuple(q.shape) and (1, count + 1) == tuple(p.shape[:2])
        said = plain_chain(q[0].numpy(), drafts[0].tolist(), p[0].numpy(),
                           drawn(seed, offset, count + 2))  # fmt: skip
        emitted += len(said) - 1
        accepted += count
        if self.empty:
            said[-1] = -1
        out = torch.tensor([said + [-1] * (count + 1 - len(said))], dtype=torch.int32)
        return out, accepted, emitted

    def sampling_from_probs(self, probs: Tensor, *, seed: Tensor, offset: Tensor) -> Tensor:
        assert torch.float32 == probs.dtype and 1 == len(probs)
        u, held = drawn(seed, offset, 1)[0], probs[0].numpy()
        past = np.flatnonzero((np.cumsum(held, dtype=np.float32) > u) & (held > 0))
        token = past[0] if len(past) else np.flatnonzero(held)[-1]
        return torch.tensor([token], dtype=torch.int32)


@pytest.fixture(autouse=True)
def samplers(monkeypatch: pytest.MonkeyPatch) -> Module:
    package, module = ModuleType("flashinfer"), Module("flashinfer.sampling")
    package.sampling = module  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flashinfer", package)
    monkeypatch.setitem(sys.modules, "flashinfer.sampling", module)
    sampler.by_flashinfer.cache_clear()
    return module


@pytest.mark.parametrize("acceptance", ["ratio", "match", "mixed"])
@pytest.mark.parametrize("points", [True, False])
@pytest.mark.parametrize("drafts", [0, 1, 4, 7])
def test_it_decides_as_our_own_kernel_does(drafts: int, points: bool, acceptance: str) -> None:
    lanes, law = lanes_of(LANES, V, seed=drafts), law_of(LANES, drafts + 1, 64, V, seed=drafts)
    proposal = near(law, drafts, seed=30 + drafts)
    if points:
        proposal = replace(proposal, probs=None, ids=None)
    sure = torch.arange(LANES) % 4 if drafts == 4 else None
    proposal = replace(proposal, sure=sure)
    tokens, accepted = flashinfer_chain.accept(law, proposal, lanes, acceptance)
    own_tokens, own_accepted = chain.accept(law, proposal, lanes, acceptance)
    counted = torch.arange(drafts + 1) <= own_accepted[:, None]

    assert torch.equal(own_accepted, accepted)
    assert torch.equal(own_tokens[counted], tokens[counted])


def test_where_it_draws_no_token_the_likeliest_is_taken(samplers: Module) -> None:
    samplers.empty = True
    lanes, law = lanes_of(LANES, V, seed=1), law_of(LANES, 3, 64, V, seed=2)
    assert law.ids is not None
    tokens, accepted = flashinfer_chain.accept(law, near(law, 2, seed=3), lanes, "ratio")
    last = tokens.gather(1, accepted[:, None])

    assert torch.equal(law.ids[..., 0].gather(1, accepted[:, None]), last)


@pytest.mark.parametrize("staged", [True, False])
@pytest.mark.parametrize("acceptance", ["ratio", "match", "mixed"])
def test_it_draws_the_drafts_that_our_own_kernel_draws(acceptance: str, staged: bool) -> None:
    lanes = lanes_of(8, V, seed=4)
    depth = torch.full((lanes.pool.slots,), 2)
    copied = Proposal(torch.full((8, 2), 3), torch.arange(8) % 3) if staged else None
    own = Chain(lanes, depth, copied, 2, acceptance)
    theirs = flashinfer_chain.FlashInferChain(lanes, depth, copied, 2, acceptance)
    for step in range(2):
        logits = 2 * torch.randn(8, 1, V, generator=generator(step))
        expected = own.draw(step, logits, True, None)
        assert torch.equal(expected, theirs.draw(step, logits, True, None))
    assert torch.equal(own.tokens, theirs.tokens)


def wanted(monkeypatch: pytest.MonkeyPatch, choice: str, works: bool) -> None:
    monkeypatch.setenv(sampler.VARIABLE, choice)
    monkeypatch.setattr(sampler, "find_spec", lambda name: object())
    monkeypatch.setattr(flashinfer_chain, "works", lambda device: works)
    sampler.by_flashinfer.cache_clear()


@pytest.mark.parametrize(
    ("choice", "works", "chosen"),
    [
        ("own", True, False),
        ("flashinfer", True, True),
        ("auto", True, True),
        ("auto", False, False),
    ],
)
def test_the_variable_says_who_samples(
    choice: str, works: bool, chosen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted(monkeypatch, choice, works)
    assert chosen == sampler.by_flashinfer(CPU)
    lanes, law = lanes_of(2, V, seed=1), law_of(2, 2, 64, V, seed=2)
    asked: list[str] = []
    for module in (chain, flashinfer_chain):
        told = lambda *args, name=module.__name__: asked.append(name)  # noqa: E731
        monkeypatch.setattr(module, "accept", told)
    sampler.accept(law, near(law, 1, seed=3), lanes, "ratio")
    made = sampler.drafts(lanes, torch.zeros(4).long(), None, 1, "ratio")

    assert [flashinfer_chain.__name__ if chosen else chain.__name__] == asked
    assert chosen == isinstance(made, flashinfer_chain.FlashInferChain)


@pytest.mark.parametrize(("choice", "said"), [("flashinfer", "does not work"), ("best", "not one")])
def test_what_cannot_be_had_is_a_sentence(
    choice: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted(monkeypatch, choice, works=False)
    with pytest.raises(SettingsError, match=said):
        sampler.by_flashinfer(CPU)


def test_a_trial_that_fails_is_an_answer(samplers: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **options: object) -> Tensor:
        raise RuntimeError("ninja is missing")

    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    flashinfer_chain.works.cache_clear()
    assert flashinfer_chain.works(CPU)
    monkeypatch.setattr(samplers, "sampling_from_probs", broken, raising=False)
    flashinfer_chain.works.cache_clear()
    assert not flashinfer_chain.works(CPU)


def test_a_law_of_one_candidate_fits_too() -> None:
    lanes = lanes_of(3, V, seed=9)
    sure = TargetLaw(torch.ones(3, 2, 1), torch.tensor([[[5], [6]]] * 3))
    proposal = Proposal(torch.full((3, 1), 5), torch.ones(3).long())
    tokens, accepted = flashinfer_chain.accept(sure, proposal, lanes, "ratio")

    assert [[5, 6]] * 3 == tokens.tolist()
    assert [1, 1, 1] == accepted.tolist()
