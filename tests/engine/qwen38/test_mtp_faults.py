"""Planted faults of the Qwen3.8 head, each of them reported of some implementation.

The comparison with the reference sees every one. None but the one in verification changes the text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpForCausalLM

from flarechat.engine.drafters.mtp import MtpDrafter
from flarechat.engine.layers.sparse_attention import Indexer
from flarechat.engine.recipes.qwen38.mtp import MtpHead
from flarechat.engine.state.hidden import TailState
from tests.engine.qwen38.drafting import PROMPTS, drafter_of, luck, workbench
from tests.engine.qwen38.paths import assert_equal, assert_head, path
from tests.engine.qwen38.test_mtp import assert_chain
from tests.engine.tiny import Bench

Plant = Callable[[pytest.MonkeyPatch, Bench], None]


def nothing(patch: pytest.MonkeyPatch, made: Bench) -> None:
    """No fault."""


def a_mean_for_each_stream(patch: pytest.MonkeyPatch, made: Bench) -> None:
    """The residual is normalised stream by stream."""
    patch.setattr(drafter_of(made).head.feedback.norm_hidden, "groups", 4)  # type: ignore[attr-defined]


def mixed_hidden(patch: pytest.MonkeyPatch, made: Bench) -> None:
    """The head starts from the mixed row, repeated for every stream."""
    mix = made.target.mixer.mix  # type: ignore[attr-defined]
    patch.setattr(MtpHead, "condense", lambda self, hidden: mix(hidden).repeat(1, 1, 4))


def averaged_streams(patch: pytest.MonkeyPatch, made: Bench) -> None:
    """The head starts from the mean of the streams."""

    def condense(self: MtpHead, hidden: Tensor) -> Tensor:
        return hidden.unflatten(-1, (4, -1)).mean(-2).repeat(1, 1, 4)

    patch.setattr(MtpHead, "condense", condense)


def the_targets_mixer(patch: pytest.MonkeyPatch, made: Bench) -> None:
    """Drafts are read through the target's mixer."""
    patch.setattr(drafter_of(made).head, "mixer", made.target.mixer)  # type: ignore[attr-defined]


def normalised_hidden(patch: pytest.MonkeyPatch, made: Bench) -> None:
    """The head starts from the residual behind a norm, as heads of older families do."""
    norm = made.target.mixer.norm  # type: ignore[attr-defined]
    patch.setattr(MtpHead, "condense", lambda self, hidden: norm(hidden))


def recursive_rows_stand(patch: pytest.MonkeyPatch, made: Bench) -> None:
    """Rounds leave the rows that the chain made from its own outputs."""
    absorb = MtpDrafter.absorb

    def faulty(self: Any, lanes: Any, inputs: Any, hidden: Any, emitted: Any, plan: Any) -> None:
        if lanes.prefilling:
            absorb(self, lanes, inputs, hidden, emitted, plan)
        else:
            self.hidden.store(lanes, self.head.condense(hidden), emitted, plan)

    patch.setattr(MtpDrafter, "absorb", faulty)


def no_tail_between_chunks(patch: pytest.MonkeyPatch, made: Bench) -> None:
    """Every chunk of a prompt begins without the residual of the token before it."""
    last = TailState.last

    def faulty(self: TailState, lanes: Any) -> Tensor:
        return last(self, lanes) * (not lanes.prefilling)

    patch.setattr(TailState, "last", faulty)


def tail_of_a_rejected_row(patch: pytest.MonkeyPatch, made: Bench) -> None:
    """The residual kept is that of a round's last row, accepted or not."""
    store = TailState.store

    def faulty(self: TailState, lanes: Any, hidden: Tensor, emitted: Tensor, plan: Any) -> None:
        store(self, lanes, hidden, torch.full_like(emitted, hidden.shape[1]), plan)

    patch.setattr(TailState, "store", faulty)


def positions_from_one(patch: pytest.MonkeyPatch, made: Bench) -> None:
    """Pairs stand at the position of their second token, so blocks are cut elsewhere."""
    for verb in ("forward", "write"):
        plain = getattr(MtpHead, verb)

        def faulty(self: MtpHead, *given: Any, plain: Any = plain) -> Any:
            hidden, tokens, cache, window, *rest = given
            live = (window.rows == window.positions).long()
            window.rows, window.positions = window.rows + live, window.positions + live
            return plain(self, hidden, tokens, cache, window, *rest)

        patch.setattr(MtpHead, verb, faulty)


FAULTS = (
    a_mean_for_each_stream,
    mixed_hidden,
    averaged_streams,
    the_targets_mixer,
    normalised_hidden,
    recursive_rows_stand,
    no_tail_between_chunks,
    tail_of_a_rejected_row,
    positions_from_one,
)


@pytest.mark.parametrize("plant", [nothing, *FAULTS], ids=lambda plant: plant.__name__)
def test_a_fault_of_the_head_is_seen_in_its_state_or_its_drafts_and_not_in_the_text(
    of: Qwen4ExpForCausalLM, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    along, (made, head) = path(of, PROMPTS[3], 26), workbench(of)
    plant(monkeypatch, made)
    drafter_of(made).script = luck([along] * 4, lambda slot, done: 3, more=True)
    made.open(1, along.prompt, budget=40, chunk=5)
    said = [token for width in (8, 1, 4) for token in made.play((1,), width - 1)[0].tokens]
    held = len(along.prompt) + len(said)
    drafter_of(made).script = lambda slot, done, k: []

    def compare() -> None:
        assert_head(drafter_of(made), 1, head, along, held - 1)
        assert_chain(made, head, tuple(along.tokens[:held]), depth=4)

    assert along.answer[: len(said)] == said
    if plant is nothing:
        compare()
    else:
        with pytest.raises(AssertionError):
            compare()


def test_a_chain_fed_through_the_mixer_is_seen(
    of: Qwen4ExpForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, head = workbench(of)
    made.open(1, PROMPTS[0])
    forward = MtpHead.forward

    def faulty(self: MtpHead, *given: Any) -> Tensor:
        return self.mixer.mix(forward(self, *given)).repeat(1, 1, 4)

    monkeypatch.setattr(MtpHead, "forward", faulty)
    monkeypatch.setattr(MtpHead, "logits", lambda self, output: self.head(output[..., :64]))

    with pytest.raises(AssertionError):
        assert_chain(made, head, PROMPTS[0], depth=3)
    assert_chain(made, head, PROMPTS[0], depth=1)


@pytest.mark.parametrize("shared", [False, True])
def test_a_choice_shared_by_the_rows_of_verification_is_seen_in_its_logits(
    of: Qwen4ExpForCausalLM, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    along, (made, _) = path(of, PROMPTS[3], 26), workbench(of)
    drafter_of(made).script = luck([along] * 4, lambda slot, done: 8)
    made.open(1, along.prompt)
    made.play((1,), 7)
    choose, seen = Indexer.__call__, []

    def first(self: Indexer, x: Tensor, cache: Any, layer: int, at: Any) -> Tensor | None:
        chosen = choose(self, x, cache, layer, at)
        assert chosen is not None
        anchor = (at.positions[:, :1] + 1) // self.ratio
        later = torch.arange(chosen.shape[-1]) >= anchor[..., None]
        return (chosen[:, :1] | later).expand_as(chosen)

    if shared:
        monkeypatch.setattr(Indexer, "__call__", first)
    logits = made.target.logits  # type: ignore[attr-defined]
    monkeypatch.setattr(made.target, "logits", lambda x: seen.append(logits(x)) or seen[-1])
    made.play((1,), 7)
    start = len(along.prompt) + 8
    expected = torch.stack([along.logits[n] for n in range(start, start + 8)])

    def compare() -> None:
        assert_equal({"logits": seen[0][0]}, {"logits": expected})

    if shared:
        with pytest.raises(AssertionError):
            compare()
    else:
        compare()
