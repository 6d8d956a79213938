"""Language: how text becomes tokens and back, and what a request's prompt is.

Owns the prompt of a request, and how much of it is the answer that goes on. Knows no tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from flarechat.engine.residents import common_prefix
from flarechat.engine.text.callforms import HERMES
from flarechat.engine.text.calls import ToolForm
from flarechat.engine.text.tokenizer import Tokenizer
from flarechat.errors import PromptTooLongError
from flarechat.protocol import Message, Request

# What nobody says first: texts whose first tokens have nothing in common.
_ELSE = ("0", "~")


@dataclass(frozen=True, slots=True)
class Language:
    """Tokenizer, chat encoder, terminal tokens, and the form in which the model calls tools.

    The encoder takes messages, whether the model may think, and the tools it is told of, if any.
    """

    tokenizer: Tokenizer
    encode_chat: Callable[..., list[int]]
    eos: tuple[int, ...]
    form: Callable[[], ToolForm] = lambda: HERMES

    def prompt(self, request: Request, room: int) -> tuple[list[int], int]:
        """The tokens of a request's prompt, and how many at its end are the answer that the request
        goes on with. Raises PromptTooLongError for more than there is `room` for."""
        prompt = self._encode(request, request.messages)
        if len(prompt) > room:
            raise PromptTooLongError(
                f"The conversation has {len(prompt)} tokens; the context holds {room} and an "
                "answer.",
                "Start a new chat, shorten the message, or raise --ctx if the model allows it.",
            )
        if not request.messages or request.messages[-1].role != "assistant":
            return prompt, 0
        return prompt, len(prompt) - len(self._encode(request, request.messages[:-1]))

    def opening(self, request: Request, prompt: Sequence[int]) -> int:
        """How many tokens of its prompt every chat with the same system prompt begins with: no more
        than two begin with whose users say something else. 0 where that cannot be told."""
        said = takewhile(lambda message: message.role == "system", request.messages)
        above = tuple(said)
        try:
            others = [
                self._encode(request, (*above, Message(role="user", content=text)))
                for text in _ELSE
            ]
        except Exception:
            return 0
        return min(common_prefix(prompt, other) for other in others)

    def _encode(self, request: Request, messages: Sequence[Message]) -> list[int]:
        tools = (request.offered,) if request.offered else ()
        return self.encode_chat(messages, request.thinking, *tools)
