"""transformers' generate() with the very weights the engine has: the peer everyone can run.

Owns the conversion and the ways of generating: plain, a static cache with torch.compile, and prompt
lookup. The clock starts when the first token's logits are there, so prefill is in no rate; all
answers have the same length.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.h200.desk import Desks, Setup
from benchmarks.h200.record import Box, Run
from benchmarks.h200.sizes import Sizes
from benchmarks.h200.texts import LAWS, QUESTIONS, SEED, behind, edits
from flarechat.engine.boot import language_of
from flarechat.engine.engine import Language
from flarechat.engine.recipes import SUPPORTED
from flarechat.engine.weights import load_checkpoint
from flarechat.protocol import MAX_DRAFT_TOKENS, Message

# Each way's settings, and the seconds it may take at most.
WAYS: dict[str, tuple[dict[str, Any], float]] = {
    "plain": ({}, 45.0),
    "prompt lookup": ({"prompt_lookup_num_tokens": MAX_DRAFT_TOKENS}, 35.0),
    "static cache, compiled": ({"cache_implementation": "static"}, 80.0),
}
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class FirstToken:
    """A logits processor that changes nothing and notes when the first logits were there."""

    def __init__(self, cuda: bool) -> None:
        self.cuda = cuda
        self.at = 0.0

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if not self.at:
            if self.cuda:
                torch.cuda.synchronize()
            self.at = time.perf_counter()
        return scores


def load(setup: Setup) -> tuple[Any, Language]:
    """transformers' llama with the checkpoint's tensors, and the checkpoint's own words."""
    from transformers import LlamaConfig, LlamaForCausalLM

    checkpoint = load_checkpoint(
        Path(setup.model), Path(setup.cache), lambda *told: None, supported=SUPPORTED
    )
    settings: dict[str, Any] = {**checkpoint.config, "attn_implementation": "sdpa"}
    model: Any = LlamaForCausalLM(LlamaConfig(**settings))
    model = model.to(_DTYPES.get(setup.dtype, torch.float32))
    missing, surplus = model.load_state_dict(dict(checkpoint.tensors), strict=False)
    if set(missing) - {"lm_head.weight"} or surplus:
        raise ValueError(f"the weights do not fit: missing {missing}, surplus {surplus}")
    model.tie_weights()
    return model.eval().to(setup.device), language_of(checkpoint)


def generate(model: Any, ids: torch.Tensor, tokens: int, cuda: bool, way: dict[str, Any]) -> float:
    """Tokens a second of one answer of exactly `tokens` tokens, after the first one's logits."""
    from transformers import LogitsProcessorList

    law, first = LAWS["ratio"], FirstToken(cuda)
    with torch.inference_mode():
        told = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=law.temperature,
            top_k=law.top_k, top_p=law.top_p, max_new_tokens=tokens, min_new_tokens=tokens,
            pad_token_id=0, logits_processor=LogitsProcessorList([first]), **way,
        )  # fmt: skip
    if cuda:
        torch.cuda.synchronize()
    made = told.shape[1] - ids.shape[1] - 1
    return float(made / (time.perf_counter() - first.at))


@contextmanager
def no_longer_than(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the main thread when the time is over."""

    def stop(number: int, frame: Any) -> None:
        raise TimeoutError(f"not done within {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.1))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def measure(run: Run, desks: Desks, sizes: Sizes, executor: str, box: Box) -> dict[str, Any]:
    """The section; `executor` plays no part in it."""
    setup = desks.setup
    model, language = load(setup)
    failures: dict[str, str] = {}
    for way, (settings, most) in WAYS.items():
        own = Box(min(most, box.left))
        try:
            # What waits inside a compilation cannot look at the box.
            with no_longer_than(own.left + 10):
                _play(run, model, language, setup, sizes, way, settings, own)
        except Exception as failure:
            failures[way] = (str(failure).splitlines() or [type(failure).__name__])[0]
        box.cut = box.cut or own.cut
    del model
    if setup.cuda:
        torch.cuda.empty_cache()
    return {"failures": failures}


def _play(
    run: Run, model: Any, language: Language, setup: Setup, sizes: Sizes, way: str,
    settings: dict[str, Any], box: Box,
) -> None:  # fmt: skip
    """Every context once before any is repeated; the first answer at each is not counted where
    its shapes have to be compiled."""
    compiled, prompts = "cache_implementation" in settings, _prompts(language, sizes)
    for repeat in range(sizes.peer_repeats):
        for context, asked in prompts.items():
            for number, prompt in enumerate(asked):
                if box.over:
                    return
                messages = (Message(role="user", content=prompt),)
                ids = torch.tensor([language.encode_chat(messages, True)], device=setup.device)
                if not repeat and (compiled or (not number and context == next(iter(prompts)))):
                    warm = sizes.peer_tokens if compiled else min(sizes.peer_tokens, 16)
                    generate(model, ids, warm, setup.cuda, settings)
                rate = generate(model, ids, sizes.peer_tokens, setup.cuda, settings)
                run.table("transformers").add(
                    way=way, context=context, prompt=number, repeat=repeat,
                    prompt_tokens=ids.shape[1], tokens=sizes.peer_tokens, rate=rate,
                )  # fmt: skip


def _prompts(language: Language, sizes: Sizes) -> dict[str, list[str]]:
    """A question at each context, and an edit."""
    encode = language.tokenizer.encode
    return {
        context: [behind(QUESTIONS[0], tokens, lambda text: len(encode(text)), SEED)]
        for context, tokens in sizes.contexts.items()
    } | {"edit": edits()[:1]}
