"""A random checkpoint on disk, read by transformers alone: tokens, template and model agree.

Nothing of the engine's loader is used on the other side: tensors come from the files by name.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig
from transformers.models.qwen4_exp.modeling_qwen4_exp import (
    Qwen4ExpForCausalLM,
    Qwen4ExpTextQSAIndexer,
)

from flarechat.engine.boot import language_of
from flarechat.engine.weights.checkpoint import open_safetensors
from flarechat.models.folder import weight_files
from flarechat.protocol import Message, Sampling, Speculation
from tests.engine.conftest import Desk
from tests.engine.qwen38 import random, tiny

CHAT = (
    Message(role="system", content="Be brief."),
    Message(role="user", content="Grüße! 2 + 2?\n"),
    Message(role="assistant", content="<think>\nsum\n</think>\n\n4."),
    Message(role="user", content="And 3 + 3?"),
)
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"a": 1}}}]


def tensors(form: str) -> dict[str, Tensor]:
    """What lies in the files, the shards of the table put together in numeric order."""
    found = {}
    for path in weight_files(random.folder(form)):
        file = open_safetensors(path)
        found |= {name: file.get_tensor(name) for name in file.keys()}
    base = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding."
    shards = [found.pop(f"{base}shard_{number}.weight") for number in range(16)]
    return found | {f"{base}weight": torch.cat(shards)}


@functools.cache
def reference() -> Qwen4ExpForCausalLM:
    """transformers' model with the BF16 checkpoint's weights, in float32."""
    config = json.loads((random.folder() / "config.json").read_text())["text_config"]
    model = Qwen4ExpForCausalLM(Qwen4ExpTextConfig(**config)).eval().float()
    named = {
        name.replace("model.language_model.", "model."): tensor
        for name, tensor in tensors("bf16").items()
        if not name.startswith("mtp.")
    }
    model.load_state_dict(named, strict=True)
    for module in model.modules():
        if isinstance(module, Qwen4ExpTextQSAIndexer):
            module.__class__ = tiny.Indexer
    return model.requires_grad_(False)


@functools.cache
def tokenizer() -> PreTrainedTokenizerFast:
    folder = random.folder()
    return PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        chat_template=(folder / "chat_template.jinja").read_text(),
    )


def rendered(messages: list[dict[str, Any]], **fields: Any) -> str:
    text = tokenizer().apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, **fields
    )
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("thinking", [True, False])
def test_a_conversation_becomes_the_same_tokens(thinking: bool) -> None:
    plain = [{"role": message.role, "content": message.content} for message in CHAT]
    text = rendered(plain, **({} if thinking else {"enable_thinking": False}))
    wanted = tokenizer()(text, add_special_tokens=False)["input_ids"]

    assert wanted == language_of(random.checkpoint()).encode_chat(CHAT, thinking)


def test_calls_of_tools_and_what_they_gave_are_part_of_the_conversation() -> None:
    text = rendered(
        [
            {"role": "user", "content": "1 + 2?"},
            {"role": "assistant", "content": "", "tool_calls": [
                {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]},
            {"role": "tool", "content": "3"},
        ],
        tools=TOOLS,
    )  # fmt: skip

    assert (
        "<|im_start|>assistant\n<tool_call>\n"
        '{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n"
    ) == text[text.rindex("<|im_start|>assistant\n<tool_call>") :]


def test_the_engine_answers_a_checkpoint_as_transformers_does() -> None:
    made = Desk(random.folder(), random.folder().parent / "cache", dtype="float32", context=512)
    encode = made.engine.language.encode_chat
    prompt = encode((Message(role="user", content="abcdefg"),), True)
    wanted = tiny.greedy(reference(), prompt, 40)
    ends = made.engine.language.eos
    stop = next((n + 1 for n, token in enumerate(wanted) if token in ends), len(wanted))

    for draft_tokens in (0, 5):
        speculation = Speculation(draft_tokens=draft_tokens, adaptive=False)
        _, rounds = made.ask("abcdefg", max_tokens=40, sampling=Sampling(temperature=0),
                             speculation=speculation)  # fmt: skip
        assert wanted[:stop] == [token for played in rounds for token in played.tokens]
