"""The words of a random checkpoint: a byte-level tokenizer, a chat template with thinking and
tools, and the recommended sampling.

Owns which id each token has. Imports no torch.
"""

from __future__ import annotations

import json
from typing import Any

from flarechat.engine.text.tokenizer import added_token, bpe

_CONTROL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
    "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>",
    "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
_MARKS = (
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>",
    "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>",
    "<think>", "</think>",
)  # fmt: skip
_LETTERS = "etaoinshrdlucmfwypvbgkqjxz"

TEMPLATE = """\
{%- set thinks = enable_thinking is not defined or enable_thinking %}
{%- set first = messages[0] if messages and messages[0].role == 'system' else none %}
{%- if first or tools %}
    {{- '<|im_start|>system\\n' }}
    {{- first.content if first else '' }}
    {%- if tools %}
        {{- '\\n\\n' if first and first.content else '' }}
        {{- '# Tools\\n\\nThese functions can be called:\\n<tools>' }}
        {%- for tool in tools %}
            {{- '\\n' }}{{ tool | tojson }}
        {%- endfor %}
        {{- '\\n</tools>\\n\\nA call is a JSON object with its name and arguments:\\n' }}
        {{- '<tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call>' }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in (messages[1:] if first else messages) %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {{- message.content.split('</think>')[-1].lstrip('\\n') if message.content else '' }}
        {%- for call in (message.tool_calls or []) %}
            {%- set called = call.function or call %}
            {{- '\\n' if message.content or not loop.first else '' }}
            {{- '<tool_call>\\n' }}
            {{- {'name': called.name, 'arguments': called.arguments} | tojson }}
            {{- '\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content }}
        {{- '\\n</tool_response><|im_end|>\\n' }}
    {%- elif message.role in ('user', 'system') %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- else %}
        {{- raise_exception('There is no role ' + message.role + '.') }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n<think>\\n' }}
    {{- '' if thinks else '\\n</think>\\n\\n' }}
{%- endif %}
"""


class Vocabulary:
    """Ids: the 256 bytes, then words up to `first_control`, then the control tokens and marks."""

    def __init__(self, first_control: int) -> None:
        self.first_control = first_control
        self.control = {token: first_control + n for n, token in enumerate((*_CONTROL, *_MARKS))}

    def tokenizer_json(self) -> str:
        """A tokenizer.json. Its merges are none: text becomes bytes, and the words between are
        only ever said."""
        from tokenizers.pre_tokenizers import ByteLevel

        names = sorted(ByteLevel.alphabet())
        names += [f"Ġ{_word(n)}" for n in range(self.first_control - len(names))]
        vocabulary = {name: number for number, name in enumerate(names)}
        added = [
            added_token(number, token, special=token in _CONTROL)
            for token, number in self.control.items()
        ]
        return json.dumps(bpe(vocabulary, [], added, "qwen2"), ensure_ascii=False)

    def tokenizer_config(self, context: int) -> dict[str, Any]:
        """tokenizer_config.json."""
        return {
            "add_bos_token": False,
            "bos_token": None,
            "eos_token": "<|im_end|>",
            "model_max_length": context,
            "pad_token": "<|endoftext|>",
            "tokenizer_class": "Qwen2Tokenizer",
        }

    def generation_config(self) -> dict[str, Any]:
        """generation_config.json: what ends an answer, and the recommended sampling."""
        return {
            "bos_token_id": self.control["<|endoftext|>"],
            "do_sample": True,
            "eos_token_id": [self.control["<|im_end|>"], self.control["<|endoftext|>"]],
            "pad_token_id": self.control["<|endoftext|>"],
            "temperature": 1.0,
            "top_k": 20,
            "top_p": 0.95,
        }


def _word(number: int) -> str:
    """The word of a number: its digits to the base of the letters, at least two of them."""
    letters = ""
    while number or len(letters) < 2:
        number, digit = divmod(number, len(_LETTERS))
        letters += _LETTERS[digit]
    return letters
