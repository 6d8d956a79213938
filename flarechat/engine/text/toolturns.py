"""Tools in a conversation as a chat template is given them.

Owns which form of calls a template knows, found by having it write one, and what takes the place
of tools where it knows none: words in the system prompt, calls as text, results as a user's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from flarechat.engine.text.answers import saying
from flarechat.engine.text.callforms import FORMS, HERMES
from flarechat.engine.text.calls import ToolForm, instructions
from flarechat.engine.text.thinking import CLOSE, OPEN
from flarechat.engine.text.tokenizer import Tokenizer
from flarechat.errors import TemplateError
from flarechat.protocol import Message, Tool, ToolCall

# What stands around calls, results and definitions; no text of others may be these as tokens.
WORDS = (
    "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<tools>", "</tools>",
    OPEN, CLOSE,
)  # fmt: skip
_PROBE = Tool(
    name="probe_tool", description="probe description",
    parameters={"type": "object", "properties": {"probe_key": {"type": "string"}}},
)  # fmt: skip


def known_form(render: Callable[..., str]) -> ToolForm | None:
    """The form in which a template writes calls; None if it does not show tools, a call and its
    result, or writes calls in another form.
    """
    call = ToolCall(id="probe", name=_PROBE.name, arguments={"probe_key": "probe value"})
    chat = [
        Message(role="user", content="probe question"),
        Message(role="assistant", content="", calls=(call,)),
        Message(role="tool", content="probe result", call=call.id),
    ]
    try:
        text = render(chat, tools=[_PROBE.definition])
    except TemplateError:
        return None
    if _PROBE.description not in text or "probe result" not in text:
        return None
    return next((f for f in FORMS if f.write(call.name, call.arguments) in text), None)


def fields(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as templates know them."""
    names = {call.id: call.name for message in messages for call in message.calls}
    return [_fields(message, names) for message in messages]


def _fields(message: Message, names: Mapping[str, str]) -> dict[str, Any]:
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.calls:
        made["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.calls
        ]
    if message.role == "tool":
        made |= {"tool_call_id": message.call, "name": names.get(message.call, "")}
    return made


def as_spoken(tokenizer: Tokenizer, message: Message) -> Message:
    """An answer with calls as one text, the very text that its tokens say, if they say its content
    and then these calls; otherwise the message as it is.
    """
    said = tokenizer.decode(saying(tokenizer, message.tokens)) if message.calls else ""
    for text in (said, said.partition(CLOSE)[2]):
        if text and _says(text, message):
            return replace(message, content=text.strip(), calls=())
    return message


def _says(text: str, message: Message) -> bool:
    rest = text
    for part in (message.content, *(call.text or "\0" for call in message.calls)):
        rest = rest.lstrip()
        if not rest.startswith(part.strip()):
            return False
        rest = rest[len(part.strip()) :]
    return not rest.strip()


def as_text(message: Message, form: ToolForm) -> Message:
    """An answer with its calls written behind its content."""
    calls = [form.write(call.name, call.arguments) for call in message.calls]
    content = "\n".join(filter(None, (message.content, *calls)))
    return replace(message, content=content, calls=(), tokens=message.tokens if not calls else ())


def in_words(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], form: ToolForm = HERMES
) -> list[Message]:
    """The conversation for a template that knows no tools."""
    return [*_opening(messages, tools, form), *_others(messages, form)]


def _opening(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], form: ToolForm
) -> Iterator[Message]:
    """The system prompt, with the definitions if there are any."""
    system = messages[0].content if messages and messages[0].role == "system" else None
    told = instructions(tools, form) if tools else None
    if system is not None or told is not None:
        yield Message(role="system", content="\n\n".join(filter(None, (system, told))))


def _others(messages: Sequence[Message], form: ToolForm) -> Iterator[Message]:
    behind = messages[1:] if messages and messages[0].role == "system" else messages
    for role, group in groupby(behind, key=lambda message: message.role):
        if role == "tool":
            said = (f"<tool_response>\n{m.content}\n</tool_response>" for m in group)
            yield Message(role="user", content="\n".join(said))
        else:
            yield from (as_text(m, form) if m.calls else m for m in group)
