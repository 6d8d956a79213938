"""From a conversation to the token ids a model expects. Owns the chat template.

Knows no sessions and no sampling. Some templates add a default system prompt of their own when the
conversation has none (SmolLM2's does); a system message takes its place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from flarechat.engine.text.answers import Located, begun_tokens, located_answers, spelt
from flarechat.engine.text.callforms import HERMES
from flarechat.engine.text.calls import ToolForm
from flarechat.engine.text.literals import Literals
from flarechat.engine.text.tokenizer import Tokenizer
from flarechat.engine.text.toolturns import (
    WORDS,
    as_spoken,
    as_text,
    fields,
    in_words,
    known_form,
)
from flarechat.errors import TemplateError
from flarechat.protocol import Message, Tool, ToolCall

if TYPE_CHECKING:
    from flarechat.engine.text.sandbox import Program


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
                "messages": fields(messages),
                "bos_token": self.bos,
                "eos_token": self.eos,
                "add_generation_prompt": add_generation_prompt,
                "tools": list(tools) if tools else None,
                "documents": None,
            }
        )

    @property
    def knows_tools(self) -> bool:
        """Whether it shows definitions, calls and results in a form that is known."""
        return self._known_form is not None

    @property
    def form(self) -> ToolForm:
        """How the model writes calls: as its template does, or else as it is told to."""
        return self._known_form or HERMES

    @cached_property
    def _known_form(self) -> ToolForm | None:
        return known_form(self.render)

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
    thinking: bool = True, model: str = "", tools: Sequence[Tool] = (),
) -> list[int]:  # fmt: skip
    """The prompt's ids. Control tokens come from the template only, never from a message or from
    the definition of one of the `tools`.

    A message that spells a control token ("<|im_end|>") keeps those characters as plain text, and
    so do definitions, results and arguments that spell a mark of calls. A chat without such
    literals, and without tokens, is encoded in one go, with the ids any other implementation gives
    it.

    An answer that `model` (a fingerprint) generated as certain tokens is these tokens, as far as
    they say it, so that a prompt begins with the prompt and the answer before it, calls and all. An
    answer that comes last is left open: the model goes on behind it.
    """
    own = [m if m.model == model else replace(m, tokens=()) for m in messages]
    begun = own.pop() if own and own[-1].role == "assistant" else None
    said = [as_spoken(tokenizer, message) for message in own]
    spoken = [n for n, message in enumerate(said) if message is not own[n]]
    ids = _encoded(template, tokenizer, said, tools, spoken, thinking=thinking)
    if ids is None:
        ids = _encoded(template, tokenizer, own, tools, (), thinking=thinking)
    if not ids:
        raise TemplateError(
            "The model's chat template makes an empty prompt of the conversation.",
            "Give another model with --model, or report the template to whoever made the model.",
        )
    if begun is None:
        return ids
    begun = as_spoken(tokenizer, begun)
    begun = as_text(begun, template.form) if begun.calls else begun
    return [*ids, *begun_tokens(tokenizer, ids, begun)]


def _encoded(
    template: ChatTemplate, tokenizer: Tokenizer, messages: Sequence[Message],
    tools: Sequence[Tool], spoken: Sequence[int], *, thinking: bool,
) -> list[int] | None:  # fmt: skip
    """The ids; None if the template says an answer that is to be as `spoken` in any other way."""
    told = bool(tools) or any(m.calls or m.role == "tool" for m in messages)
    definitions = [tool.definition for tool in tools]
    texts = (definitions, *((m.content, *map(_parts, m.calls)) for m in messages))
    literals = Literals(tokenizer, texts, WORDS if told else ())
    definitions = [literals.hide(definition, guarded=True) for definition in definitions]
    shown = [_hidden(literals, message) for message in messages]
    answers = [shown[place] for place in spoken]
    if told and not template.knows_tools:
        shown, definitions, answers = in_words(shown, definitions), [], []
    render = partial(template.render, thinking=thinking, tools=definitions)
    text = render(shown)
    located = located_answers(render, shown, text, literals.spare)
    if any(all(answer is not message for *_, message in located) for answer in answers):
        return None
    return _encode_pieces(tokenizer, text, located, literals)


def _encode_pieces(
    tokenizer: Tokenizer, text: str, answers: Sequence[Located], literals: Literals
) -> list[int]:
    """The ids of a rendered chat: of an answer its tokens, and what is between encoded."""
    ids: list[int] = []
    at = 0
    for start, end, message in answers:
        ids += literals.encode(text[at:start])
        before = message.content[: message.content.index(text[start:end])]
        said = literals.shown(text[start:end])
        ids += spelt(tokenizer, message.tokens, literals.shown(before), said)
        at = end
    return ids + literals.encode(text[at:])


def _hidden(literals: Literals, message: Message) -> Message:
    """A message with stand-ins for its literals."""
    calls = tuple(
        replace(call, name=literals.hide(call.name, guarded=True),
                arguments=literals.hide(call.arguments, guarded=True))
        for call in message.calls
    )  # fmt: skip
    content = literals.hide(message.content, guarded=message.role == "tool")
    return replace(message, content=content, calls=calls)


def _parts(call: ToolCall) -> tuple[Any, ...]:
    return call.name, call.arguments
