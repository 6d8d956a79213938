"""Small chat templates that write calls as known families do, each with what it makes of them."""

from __future__ import annotations

from typing import Any

from flarechat.protocol import Message, Tool, ToolCall

WEATHER = Tool(
    name="weather",
    description="Tell the weather",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
        },
        "required": ["city"],
    },
)
NOW = Tool(name="now", description="Tell the time")
TOOLS = (WEATHER, NOW)

_START = "{%- for m in messages %}{{ '<|im_start|>' }}"
_END = "{{ '<|im_end|>\n' }}{%- endfor %}{{ '<|im_start|>assistant\n' }}"
_ROLES = (
    "{%- if m.role == 'tool' %}{{ 'user\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{%- else %}{{ m.role + '\n' }}{%- if m.content %}{{ m.content + sep }}{%- endif %}{%- endif %}"
)
_TOLD = (
    "{%- if tools %}{{ '<|im_start|>system\n<tools>' }}{%- for tool in tools %}"
    "{{ '\n' }}{{ tool | tojson }}{%- endfor %}{{ '\n</tools><|im_end|>\n' }}{%- endif %}"
    "{%- set sep = '' %}"
)
HERMES_TEMPLATE = (
    _TOLD + _START + _ROLES + "{%- for call in m.tool_calls %}"
    "{{ '\n' if m.content or not loop.first }}"
    '{{ \'<tool_call>\n{"name": "\' ~ call.function.name ~ \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}{{ '}\n</tool_call>' }}{%- endfor %}" + _END
)
TAG_TEMPLATE = (
    _TOLD + _START + _ROLES + "{%- for call in m.tool_calls %}"
    "{{ '\n' if m.content or not loop.first }}"
    "{{ '<tool_call>\n<function=' + call.function.name + '>\n' }}"
    "{%- for key, value in call.function.arguments | items %}{{ '<parameter=' + key + '>\n' }}"
    "{{ value if value is string else value | tojson }}{{ '\n</parameter>\n' }}{%- endfor %}"
    "{{ '</function>\n</tool_call>' }}{%- endfor %}" + _END
)
LLAMA_TEMPLATE = (
    "{%- if tools %}{{ tools | tojson(indent=4) }}{%- endif %}"
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{%- if 'tool_calls' in m %}{%- if m.tool_calls | length > 1 %}{{ raise_exception('one') }}"
    "{%- endif %}{%- set call = m.tool_calls[0].function %}"
    '{{ \'{"name": "\' + call.name + \'", "parameters": \' }}{{ call.arguments | tojson }}'
    "{{ '}' }}{%- elif m.role == 'tool' %}{{ m.content | tojson }}"
    "{%- else %}{{ m.content | trim }}{%- endif %}" + _END
)
# It writes calls, but neither in a form that is known nor with what they gave.
ODD_TEMPLATE = (
    "{%- for tool in tools or [] %}{{ tool.function.description }}{%- endfor %}"
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{%- for call in m.tool_calls %}{{ '[' + call.function.name + ']' }}{%- endfor %}" + _END
)


def call(name: str, arguments: dict[str, Any], text: str = "", number: int = 1) -> ToolCall:
    return ToolCall(id=f"r-{number}", name=name, arguments=arguments, text=text)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def result(text: str, number: int = 1) -> Message:
    return Message(role="tool", content=text, call=f"r-{number}")


def answer(content: str, *calls: ToolCall, **others: Any) -> Message:
    return Message(role="assistant", content=content, calls=calls, **others)
