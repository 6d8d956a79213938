"""From a conversation to the token ids a model expects. Owns the chat template.

Knows no sessions and no sampling. Some templates add a default system prompt of their own when the
conversation has none (SmolLM2's does); a system message takes its place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from flarechat.engine.text.answers import Located, begun_tokens, located_answers, spelt
from flarechat.engine.text.tokenizer import Tokenizer
from flarechat.errors import TemplateError
from flarechat.protocol import Message

if TYPE_CHECKING:
    from flarechat.engine.text.sandbox import Program

_PRIVATE_USE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))


class ChatTemplate:
    """A jinja2 template from a model, run in a bounded sandbox."""

    def __init__(self, source: str, bos: str = "", eos: str = "") -> None:
        self.source, self.bos, self.eos = source, bos, eos
        self.digest = hashlib.sha256(source.encode()).hexdigest()

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True,
        thinking: bool = True, tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:  # fmt: skip
        """The text of the conversation, open for the model's next turn.

        `tools` are function descriptions, as JSON objects. Only a template that knows
        `enable_thinking` heeds `thinking`; thinking is left to the template's own default.
        """
        return self._program.render(
            ({} if thinking else {"enable_thinking": False})
            | {
                "messages": [{"role": m.role, "content": m.content} for m in messages],
                "bos_token": self.bos,
                "eos_token": self.eos,
                "add_generation_prompt": add_generation_prompt,
                "tools": list(tools) if tools else None,
                "documents": None,
            }
        )

    @cached_property
    def _program(self) -> Program:
        from flarechat.engine.text.sandbox import Program

        if not self.source.strip():
            raise TemplateError(
                "The model carries no chat template, so it cannot hold a conversation.",
                "Give an instruction-tuned model with --model.",
            )
        return Program(self.source)


def encode_chat(
    template: ChatTemplate, tokenizer: Tokenizer, messages: Sequence[Message], *,
    thinking: bool = True, model: str = "",
) -> list[int]:  # fmt: skip
    """The prompt's ids. Control tokens come from the template only, never from a message.

    A message that spells a control token ("<|im_end|>") keeps those characters as plain text.
    The template sees one private-use character in place of each such literal; after rendering,
    the text is cut at the template's own control tokens, the literals are put back and the parts
    between are encoded without control tokens. A chat without such literals, and without tokens, is
    encoded in one go, with the ids any other implementation gives it.

    An answer that `model` (a fingerprint) generated as certain tokens is these tokens, as far as
    they say it, so that a prompt begins with the prompt and the answer before it. An answer that
    comes last is left open: the model goes on behind it.
    """
    own = [m if m.model == model else replace(m, tokens=()) for m in messages]
    begun = own.pop() if own and own[-1].role == "assistant" else None
    contents = [message.content for message in own]
    spare = _unused(frozenset("".join(contents)))
    marks = dict(zip(_literals(tokenizer, contents), spare, strict=False))
    shown = [replace(m, content=_translated(tokenizer, m.content, marks)) for m in own]
    text = template.render(shown, thinking=thinking)
    answers = located_answers(template, shown, text, spare, thinking=thinking)
    back = {ord(mark): literal for literal, mark in marks.items()}
    ids = _encode_pieces(tokenizer, text, answers, back)
    if not ids:
        raise TemplateError(
            "The model's chat template makes an empty prompt of the conversation.",
            "Give another model with --model, or report the template to whoever made the model.",
        )
    return ids if begun is None else [*ids, *begun_tokens(tokenizer, ids, begun)]


def _encode_pieces(
    tokenizer: Tokenizer, text: str, answers: Sequence[Located], back: Mapping[int, str]
) -> list[int]:
    """The ids of a rendered chat: of an answer its tokens; of what is between, where literals are
    to be put `back`, the control tokens and plain text."""
    ids: list[int] = []
    at = 0
    for start, end, message in answers:
        ids += _encode_between(tokenizer, text[at:start], back)
        before = message.content[: message.content.index(text[start:end])]
        said = text[start:end].translate(back)
        ids += spelt(tokenizer, message.tokens, before.translate(back), said)
        at = end
    return ids + _encode_between(tokenizer, text[at:], back)


def _encode_between(tokenizer: Tokenizer, text: str, back: Mapping[int, str]) -> list[int]:
    if not back:
        return tokenizer.encode(text)
    ids: list[int] = []
    for piece, control in tokenizer.split_control(text):
        ids += tokenizer.encode_plain(piece.translate(back)) if control is None else [control]
    return ids


def _literals(tokenizer: Tokenizer, contents: Sequence[str]) -> list[str]:
    """The control tokens that the contents spell, each once."""
    pieces = (piece for content in contents for piece in tokenizer.split_control(content))
    return list(dict.fromkeys(piece for piece, control in pieces if control is not None))


def _unused(used: frozenset[str]) -> Iterator[str]:
    return (chr(code) for block in _PRIVATE_USE for code in block if chr(code) not in used)


def _translated(tokenizer: Tokenizer, content: str, marks: dict[str, str]) -> str:
    return "".join(
        piece if control is None else marks[piece]
        for piece, control in tokenizer.split_control(content)
    )
