"""Random tiny checkpoints of every format, booted and asked as the engine process does it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import torch

from flarechat.engine.make_random.geometry import FORMATS
from flarechat.errors import SettingsError
from flarechat.models import inspection
from flarechat.models.store import StoredModel
from flarechat.protocol import PACKED, Delta, Finished, Ready, Sampling, Speculation
from tests.engine.conftest import Desk
from tests.engine.qwen38 import random

DRAFTS = Speculation(draft_tokens=3, adaptive=False, history_drafts=False)
LAW = Sampling(temperature=1.0, top_k=20, top_p=0.95, seed=5)
QUESTION = "abcdefghij, and again abcdefghij: what comes after abc?"


@cache
def desk(form: str = "bf16", place: str = "inside", **boot: object) -> Desk:
    """The engine on one of the checkpoints."""
    return fresh_desk(form, place, **boot)


def fresh_desk(form: str = "bf16", place: str = "inside", **boot: object) -> Desk:
    """An engine of its own."""
    settings = {"dtype": "float32", "context": 512, **boot}
    return Desk(random.folder(form, place), random.folder(form, place).parent / "cache", **settings)


@cache
def plain(form: str, temperature: float) -> tuple[str, str, int]:
    """What the model says without any drafting: thinking, answer, tokens."""
    law = Sampling(temperature=temperature, top_k=20, top_p=0.95, seed=5)
    off = Speculation(draft_tokens=0)
    return said(desk(form), sampling=law, speculation=off)


def said(made: Desk, **fields: object) -> tuple[str, str, int]:
    finished, _ = made.ask(QUESTION, max_tokens=48, **fields)
    return finished.thinking, finished.text, finished.usage.completion_tokens


@pytest.fixture(params=random.PLACES, ids="-".join)
def place(request: pytest.FixtureRequest) -> tuple[str, str]:
    found: tuple[str, str] = request.param
    return found


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_format_answers_the_same_with_its_head_as_without(
    place: tuple[str, str], temperature: float
) -> None:
    made = desk(*place)
    law = Sampling(temperature=temperature, top_k=20, top_p=0.95, seed=5)
    for speculation in (DRAFTS, Speculation()):
        finished, rounds = made.ask(QUESTION, max_tokens=48, sampling=law, speculation=speculation)
        told = finished.thinking, finished.text, finished.usage.completion_tokens
        assert plain(place[0], temperature) == told
        if speculation is DRAFTS:
            assert any("mtp" in played.draft_sources for played in rounds)
    without = desk(*place, mtp=False)
    finished, rounds = without.ask(QUESTION, max_tokens=48, sampling=law)

    assert plain(place[0], temperature) == (finished.thinking, finished.text,
                                            finished.usage.completion_tokens)  # fmt: skip
    assert not any("mtp" in played.draft_sources for played in rounds)


def test_what_is_said_of_the_model(place: tuple[str, str]) -> None:
    form, mtp = place
    (ready,) = [event for event in desk(form, mtp).events if isinstance(event, Ready)]
    model = ready.model

    assert () == ready.notices
    assert ("qwen4_exp", 4, 320, 512) == (
        model.recipe,
        model.layers,
        model.vocabulary,
        model.context,
    )
    assert Sampling(temperature=1.0, top_k=20, top_p=0.95) == model.recommended
    assert 493_119 == model.parameters
    assert model.mtp is not None
    assert (320, 1, 127_712) == (model.mtp.draft_vocabulary, model.mtp.layers, model.mtp.parameters)
    file = "qwen38-mtp.safetensors" if mtp == "sidecar" else f"{form}-{mtp}"
    assert file == model.mtp.file


def test_the_formats_of_one_seed_differ_only_by_their_rounding() -> None:
    answers = {form: plain(form, 1.0) for form in FORMATS}

    assert 3 < len({told[:2] for told in answers.values()})  # none is decoded as another
    shared = [common(answers["bf16"], answers[form]) for form in FORMATS[1:]]
    assert any(length > 0 for length in shared)


def common(left: tuple[str, str, int], right: tuple[str, str, int]) -> int:
    pairs = zip("".join(left[:2]), "".join(right[:2]), strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), 48)


def test_drafts_of_the_head_are_accepted_now_and_then() -> None:
    made, accepted = desk(), 0
    for seed in range(4):
        law = Sampling(temperature=1.0, top_k=20, top_p=0.95, seed=seed)
        finished, _ = made.ask(QUESTION, max_tokens=48, sampling=law, speculation=DRAFTS)
        accepted += finished.speculation.by_source["mtp"].accepted

    assert accepted > 8


@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "float16"])
@pytest.mark.parametrize("form", ["bf16", "fp4-local"])
def test_other_dtypes_answer_too(form: str, dtype: str) -> None:
    made = desk(form, dtype=dtype)
    (ready,) = [event for event in made.events if isinstance(event, Ready)]
    finished, _ = made.ask(QUESTION, max_tokens=24, sampling=LAW)

    assert ("float32" if dtype == "auto" else dtype) == ready.model.dtype
    assert finished.reason in ("length", "stop")
    assert 0 < finished.usage.completion_tokens <= 24


def test_weights_of_this_family_are_not_packed_by_us() -> None:
    with pytest.raises(SettingsError) as told:
        fresh_desk(dtype=PACKED)

    assert "--dtype packed-float16 is not available" in told.value.message


def test_lanes_answer_side_by_side_as_they_do_alone() -> None:
    alone, both = desk("nvfp4"), fresh_desk("nvfp4", lanes=2)
    texts = ("abcdefg", "What is a number, and why is it called one?")
    laws = [Sampling(temperature=1.0, top_k=20, seed=seed) for seed in (3, 4)]
    wanted = [
        alone.ask(text, max_tokens=32, sampling=law, speculation=DRAFTS)[0]
        for text, law in zip(texts, laws, strict=True)
    ]
    requests = [
        both.request(text, max_tokens=32, sampling=law, speculation=DRAFTS)
        for text, law in zip(texts, laws, strict=True)
    ]
    for request in requests:
        both.engine.submit(request)
    both.run()

    for one, request in zip(wanted, requests, strict=True):
        got = both.finished(request.id)
        assert (one.text, one.thinking, one.reason) == (got.text, got.thinking, got.reason)


def test_a_second_question_in_a_used_slot_is_answered_as_in_a_fresh_one() -> None:
    used, fresh = fresh_desk("fp8"), fresh_desk("fp8")
    used.ask("Something else entirely, and long enough to leave traces.", max_tokens=40,
             sampling=LAW, speculation=DRAFTS)  # fmt: skip
    used.ask(QUESTION, max_tokens=8, sampling=LAW, speculation=DRAFTS)

    again = said(used, sampling=LAW, speculation=DRAFTS)
    assert said(fresh, sampling=LAW, speculation=DRAFTS) == again


def test_thinking_has_its_channel_and_comes_before_the_answer() -> None:
    made = desk()
    found: list[tuple[list[Delta], Finished]] = []
    for seed in range(6):
        law = Sampling(temperature=1.0, top_k=40, seed=seed)
        request = made.request("Hello", max_tokens=90, sampling=law)
        finished, _ = made.answer(request)
        deltas = [event for event in made.of(request.id) if isinstance(event, Delta)]
        assert finished.text == _of(deltas, "answer")
        assert finished.thinking == _of(deltas, "thinking")
        assert finished.thinking == finished.thinking.strip()
        found.append((deltas, finished))
    channels = [tuple(dict.fromkeys(delta.channel for delta in deltas)) for deltas, _ in found]

    assert ("thinking", "answer") in channels
    assert set(channels) <= {("thinking",), ("thinking", "answer"), ("answer",), ()}
    off = made.request("Hello", max_tokens=60, sampling=LAW, thinking=False)
    finished, _ = made.answer(off)
    assert ("", True) == (finished.thinking, finished.text != "")


def _of(deltas: list[Delta], channel: str) -> str:
    return "".join(delta.text for delta in deltas if delta.channel == channel)


def test_inspecting_says_how_values_are_stored_and_where_the_head_is() -> None:
    local = inspection.inspect(str(random.folder("fp4-local")))
    beside = inspection.inspect(str(random.folder("fp8", "sidecar")))

    assert ("qwen4_exp", 4, 320, 2048) == (local.architecture, local.layers, local.vocabulary,
                                           local.context)  # fmt: skip
    assert ["NVFP4", "BF16", "MXFP8", "I64"] == list(local.stored)
    assert 620_831 == local.parameters == sum(local.stored.values())
    assert "8 a layer, 2 of them a token" == local.experts
    assert "inside the checkpoint" == local.mtp
    assert 620_831 - 127_712 == beside.parameters
    assert {"FP8 blocks", "FP8", "BF16", "I64"} == set(beside.stored)
    assert beside.mtp.endswith("qwen38-mtp.safetensors (drafts all tokens)")
    kept = StoredModel(name="x", path=random.folder("nvfp4"), bytes=1, kind="safetensors",
                       source="hub")  # fmt: skip
    assert "inside" == inspection.head_of(kept)


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield
