"""Weights as stored: the same file in float32 as reference, every width to the bit, state included,
and which models are run so."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from flarechat.engine import dtypes
from flarechat.engine.kernels import cpu
from flarechat.engine.kernels.cpu.library import Library
from flarechat.engine.plan import LawShape, Plan
from flarechat.engine.recipes import recipe_for
from flarechat.engine.recipes.llama import Model, ModelArgs, load
from flarechat.engine.slot import Lanes, SlotPool
from flarechat.engine.weights import Checkpoint, load_checkpoint
from flarechat.errors import SettingsError
from flarechat.protocol import PACKED, STORED, Ready, Sampling, Speculation
from tests.engine.conftest import Desk
from tests.engine.tiny import CPU, STORED_TILES, reference, target
from tests.models import tiny

stored = pytest.mark.skipif(cpu.library() is None, reason=f"the CPU kernels are {cpu.reason()}")
CONTEXT = 96
TOKENS = torch.randint(0, 40, (64,), generator=torch.Generator().manual_seed(5)).tolist()


def opened(path: Path, cache: Path) -> Checkpoint:
    return load_checkpoint(path, cache, lambda *_: None, supported=("llama",))


def built(checkpoint: Checkpoint, dtype: str, slots: int = 1) -> Model:
    return load(
        checkpoint.config, checkpoint.tensors, slots=slots, context=CONTEXT, dtype=dtype, device=CPU
    )


class Player:
    """A model whose slots are given tokens, some at a time."""

    def __init__(self, model: Model, slots: int = 1) -> None:
        self.model, self.pool = model, SlotPool(slots, CONTEXT, model.vocabulary, CPU)
        for slot in range(slots):
            self.pool.open(slot, TOKENS, sampling=Sampling(), seed=0, match=True, budget=1, eos=())
            self.pool.start(slot)

    @torch.inference_mode()
    def play(self, slots: tuple[int, ...], inputs: list[list[int]]) -> Tensor:
        """Logits [B, W, V] of the next rows of these slots."""
        width = len(inputs[0])
        plan = Plan(width - 1, CONTEXT, LawShape(1))
        found = self.model.verify(Lanes(self.pool, slots), torch.tensor(inputs), plan)[1]
        self.pool.consumed[list(slots)] += width
        return found

    def logits(self, width: int) -> Tensor:
        """Of all TOKENS [N, V], `width` rows at a time."""
        pieces = [TOKENS[at : at + width] for at in range(0, len(TOKENS), width)]
        return torch.cat([self.play((0,), [piece])[0] for piece in pieces])

    def cached(self, slot: int = 0) -> list[Tensor]:
        """The keys and values of the tokens."""
        rows = int(self.pool.consumed[slot])
        return [t[slot, :, :rows].clone() for t in self.model.kv.tensors().values()]


def equal(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@stored
@pytest.mark.parametrize(
    ("kind", "bound"), [("Q4_0", 0.15), ("Q4_1", 0.15), ("Q8_0", 0.15), ("BF16", 5e-3)]
)
def test_logits_are_those_of_the_decoded_file_but_for_roundings(
    tmp_path: Path, kind: str, bound: float
) -> None:
    """An int8 activation is off by 0.6 % of its group's root mean square, nine products deep that
    is 2 %, and with bfloat16 weights only the cache is rounded, by 2^-12. Attention as sharp as
    that of these random weights makes several times as much of both; weights in wrong places give
    logits that are off by more than all of their size."""
    checkpoint = opened(tiny.write(tmp_path / "tiny.gguf", kind=kind).path, tmp_path)
    exact, ours = (
        Player(built(checkpoint, dtype)).logits(len(TOKENS)) for dtype in ("float32", STORED)
    )
    off = (exact - ours).norm() / (exact - exact.mean(-1, keepdim=True)).norm()

    assert 0 < float(off) < bound


@stored
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "BF16"])
def test_every_width_leaves_the_same_logits_and_the_same_state_to_the_bit(
    tmp_path: Path, kind: str
) -> None:
    checkpoint = opened(tiny.write(tmp_path / "tiny.gguf", kind=kind).path, tmp_path)
    alone = Player(built(checkpoint, STORED))
    expected = alone.logits(1)
    for width in (2, 3, 4, 5, 6, 7, 8, 31, 64):
        player = Player(built(checkpoint, STORED))

        assert torch.equal(expected, player.logits(width)), width
        assert equal(alone.cached(), player.cached()), width


@stored
def test_lanes_played_together_say_what_each_says_alone(tmp_path: Path) -> None:
    checkpoint = opened(tiny.write(tmp_path / "tiny.gguf").path, tmp_path)
    ahead, texts = (5, 0, 17), [TOKENS[at : at + 4] for at in (0, 9, 30)]
    together = Player(built(checkpoint, STORED, 3), 3)
    for slot, count in enumerate(ahead):
        if count:
            together.play((slot,), [TOKENS[:count]])
    found = together.play((2, 0, 1), [texts[2], texts[0], texts[1]])
    for row, slot in enumerate((2, 0, 1)):
        alone = Player(built(checkpoint, STORED))
        if ahead[slot]:
            alone.play((0,), [TOKENS[: ahead[slot]]])

        assert torch.equal(alone.play((0,), [texts[slot]])[0], found[row])
        assert equal(alone.cached(), together.cached(slot))


@stored
def test_a_seeds_text_is_one_at_every_width_and_with_other_answers_beside_it(
    desk: Callable[..., Desk],
) -> None:
    said = set()
    for lanes in (1, 4):
        made = desk(dtype=STORED, lanes=lanes)
        fields = {"sampling": Sampling(temperature=0.8, top_k=30, seed=4), "max_tokens": 24}
        for draft_tokens in range(8):
            how = Speculation(draft_tokens=draft_tokens, adaptive=False)
            requests = [made.request("hello in the", speculation=how, **fields)]
            requests += [made.request(f"a {n}", max_tokens=9) for n in range(lanes - 1)]
            for request in requests:
                made.engine.submit(request)
            made.run()
            said.add(made.finished(requests[0].id).text)

    assert 1 == len(said)


@stored
def test_a_tied_head_is_the_table_itself_and_nothing_is_held_twice() -> None:
    model = target(reference(), dtype=STORED)

    assert model.head.weight.data is model.embedding.weight.data  # type: ignore[union-attr]
    assert {torch.float16} == {t.dtype for t in model.kv.tensors().values()}


# Which models are run so.


def folder(path: Path, dtype: torch.dtype, **odd: torch.dtype) -> Path:
    """A model folder with these weights; `odd` gives one of another dtype, by its part."""
    path.mkdir()
    of = reference()
    (path / "config.json").write_text(json.dumps(of.config.to_dict() | {"model_type": "llama"}))
    save_file(
        {
            name: tensor.to(next((d for part, d in odd.items() if part in name), dtype)).clone()
            for name, tensor in of.state_dict().items()
            if name != "lm_head.weight"
        },
        path / "model.safetensors",
    )
    return path


def chosen(tensors: Any, config: dict[str, Any], asked: str = "auto") -> tuple[str, list[str]]:
    notices: list[str] = []
    args = ModelArgs.from_config(config)
    how = dtypes.choose(asked, CPU, recipe_for("llama"), args, tensors, notices.append)
    return how, notices


def of_folder(path: Path) -> tuple[Any, dict[str, Any]]:
    from flarechat.engine.weights.folder import read_config, read_tensors

    return read_tensors(path), read_config(path)


@stored
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "BF16", "Q5_1", "F16", "F32"])
def test_auto_keeps_what_the_kernels_read_and_rounds_no_other_to_it(
    tmp_path: Path, kind: str
) -> None:
    checkpoint = opened(tiny.write(tmp_path / "tiny.gguf", kind=kind).path, tmp_path)
    how, notices = chosen(checkpoint.tensors, checkpoint.config)

    assert (how == STORED) == (kind in ("Q4_0", "Q4_1", "Q8_0", "BF16"))
    assert [] == notices


@stored
def test_a_folder_is_run_so_if_all_its_matrices_are_bfloat16(tmp_path: Path) -> None:
    whole = of_folder(folder(tmp_path / "whole", torch.bfloat16))
    mixed = of_folder(folder(tmp_path / "mixed", torch.bfloat16, up_proj=torch.float32))
    norms = of_folder(folder(tmp_path / "norms", torch.bfloat16, norm=torch.float32))

    kept = [chosen(*each)[0] == STORED for each in (whole, mixed, norms)]
    assert [True, False, True] == kept
    with pytest.raises(SettingsError, match=r"not available for this model") as caught:
        chosen(*mixed, STORED)
    assert "layers.0.mlp.up_proj.weight in numbers" in caught.value.hint
    tensors, config = whole
    model = load(config, tensors, slots=1, context=CONTEXT, dtype=STORED, device=CPU)
    exact = load(config, tensors, slots=1, context=CONTEXT, dtype="float32", device=CPU)
    torch.testing.assert_close(
        Player(model).logits(64), Player(exact).logits(64), atol=5e-2, rtol=1e-2
    )


def test_without_the_kernels_auto_is_as_before_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = opened(tiny.write(tmp_path / "tiny.gguf").path, tmp_path)
    other = opened(tiny.write(tmp_path / "other.gguf", kind="F32").path, tmp_path)
    monkeypatch.setattr(cpu, "library", lambda: None)
    monkeypatch.setattr(cpu, "reason", lambda: "not built")
    how, notices = chosen(checkpoint.tensors, checkpoint.config)

    assert how in (PACKED, "float32")
    assert ["Answers are slower than they could be: the CPU kernels are not built."] == notices
    assert [] == chosen(other.tensors, other.config)[1]
    with pytest.raises(SettingsError, match="--dtype as-stored is not available here") as caught:
        dtypes.require(STORED, CPU)
    assert "not built" in caught.value.hint


def test_what_cannot_be_run_so_is_refused_in_a_sentence() -> None:
    with pytest.raises(SettingsError, match="as-stored is not available on cuda"):
        dtypes.require(STORED, torch.device("cuda"))
    with pytest.raises(SettingsError, match="--dtype float8 is unknown") as caught:
        dtypes.require("float8", CPU)
    assert "as-stored" in caught.value.hint
    with pytest.raises(SettingsError, match="not available for this family"):
        dtypes.choose(STORED, CPU, recipe_for("qwen4_exp"), None, {}, lambda _: None)


@stored
def test_heads_wider_than_the_kernels_take_run_otherwise(tmp_path: Path) -> None:
    checkpoint = opened(tiny.write(tmp_path / "tiny.gguf", kind="Q8_0").path, tmp_path)
    recipe = recipe_for("llama")
    args = replace(recipe.ModelArgs.from_config(checkpoint.config), head_dim=258)
    heard = list[str]()

    assert STORED != dtypes.choose("auto", CPU, recipe, args, checkpoint.tensors, heard.append)
    assert not heard
    with pytest.raises(SettingsError, match="not available for this model") as caught:
        dtypes.choose(STORED, CPU, recipe, args, checkpoint.tensors, heard.append)
    assert "Its heads have 258 dimensions, the CPU's kernels take 256" in caught.value.hint


@stored
def test_a_processor_for_which_the_kernels_are_slow_runs_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = opened(tiny.write(tmp_path / "tiny.gguf", kind="Q8_0").path, tmp_path)
    monkeypatch.setattr(Library, "pays", False)
    how, notices = chosen(checkpoint.tensors, checkpoint.config)

    assert how in (PACKED, "float32")
    assert ["Answers are slower than they could be: the CPU kernels are slow without AVX2."] == (
        notices
    )


@pytest.mark.parametrize("dtype", [STORED_TILES])
def test_the_engine_tells_the_dtype_it_runs_in(desk: Callable[..., Desk], dtype: str) -> None:
    made = desk(dtype="auto")
    ready = next(event for event in made.events if isinstance(event, Ready))

    assert (dtype, ()) == (ready.model.dtype, ready.notices)


@pytest.mark.network
@pytest.mark.slow
@stored
def test_the_default_models_law_is_near_that_of_its_decoded_file(
    smollm2: Path, tmp_path: Path
) -> None:
    from benchmarks.cpu_accuracy import Runner, compared, parts, Text  # noqa: I001

    checkpoint = opened(smollm2, tmp_path)
    text = Path(__file__).read_text()
    tokens = language(checkpoint).encode(text)[:160]
    exact, ours = (Runner(checkpoint, dtype).logits(tokens) for dtype in ("float32", STORED))
    row = compared(STORED, "prompt", [parts(Text(tokens, 160), exact, ours)["prompt"]])

    assert row.kl_mean < 0.015
    assert row.argmax > 0.93


def language(checkpoint: Checkpoint) -> Any:
    from flarechat.engine.text.tokenizer import Tokenizer

    return Tokenizer(checkpoint.tokenizer_json)
