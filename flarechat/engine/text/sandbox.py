"""Runs a chat template that came with a model, as code nobody vouches for.

Owns the bounds: what a template may touch (jinja2's immutable sandbox), how many steps it may
take, how long, and how much text it may make. Loops, calls, joins and multiplications are counted
as they happen, so an endless or exploding template ends in a TemplateError. Knows no chats.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any, NoReturn, cast

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.exceptions import TemplateError as JinjaError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from flarechat.errors import TemplateError

MAX_STEPS = 200_000
MAX_SECONDS = 2.0  # of processor time
MAX_CHARACTERS = 16_000_000
_MAX_BITS = 4096
_MAX_INDENT = 16
_HINT = "Give another model with --model, or report the template to whoever made the model."

# One call of these makes a text of any length out of a number.
_PADDING_METHODS = frozenset(
    {"center", "ljust", "rjust", "zfill", "expandtabs", "format", "format_map", "translate"}
)
_PADDING_FILTERS = ("center", "format", "indent", "wordwrap", "batch", "slice", "xmlattr", "urlize")


class Program:
    """A compiled template; `render` runs it with fresh bounds."""

    def __init__(self, source: str) -> None:
        self._environment = _Environment()
        try:
            tree = _Instrument().visit(self._environment.parse(source))
            code = self._environment.compile(tree)
        except (JinjaError, RecursionError, ValueError) as error:
            raise _refused(error) from error
        self._template = self._environment.template_class.from_code(
            self._environment, code, self._environment.make_globals(None)
        )

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text the template makes of the variables."""
        self._environment.begin()
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.generate(**variables):
                self._environment.step()
                size += len(piece)
                self._environment.require_length(size)
                pieces.append(piece)
        except TemplateError:
            raise
        except Exception as error:  # a template can raise whatever Python can
            raise _refused(error) from error
        return "".join(pieces)


def _refused(error: Exception) -> TemplateError:
    if isinstance(error, SecurityError):
        return TemplateError(f"The model's chat template does something forbidden: {error}", _HINT)
    if isinstance(error, TemplateSyntaxError):
        where = f"line {error.lineno}: {error.message}"
        return TemplateError(f"The model's chat template cannot be read, {where}", _HINT)
    reason = str(error) or type(error).__name__
    return TemplateError(f"The model's chat template refused the conversation: {reason}", _HINT)


class _Instrument(NodeTransformer):
    """Sends every loop and every `~` of a template through the environment's counters."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        if node.recursive:
            raise SecurityError("a recursive loop.")
        self.generic_visit(node)
        node.iter = _call("counted", [cast(nodes.Expr, node.iter)])
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        self.generic_visit(node)
        return _call("joined", node.nodes)


def _call(name: str, arguments: list[nodes.Expr]) -> nodes.Call:
    function = nodes.EnvironmentAttribute(name)
    return nodes.Call(function, arguments, [], None, None)


class _Generation(Extension):
    """`{% generation %}` marks the model's own text for training; here it is just its body."""

    tags = {"generation"}  # noqa: RUF012 - the attribute jinja2 reads

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """jinja2's sandbox with counters; settings and helpers are those chat templates expect."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=self.measured,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        self.begin()
        for name in _PADDING_FILTERS:
            del self.filters[name]
        self.filters |= {
            "tojson": self._tojson,
            "replace": self._replace,
            "join": self._join,
            "string": self.joined,
        }
        for name in ("lipsum", "cycler", "joiner"):
            del self.globals[name]
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}

    def begin(self) -> None:
        """Fresh counters."""
        self._steps = 0
        self._deadline = time.thread_time() + MAX_SECONDS

    def step(self) -> None:
        """Count one loop turn, call or piece of output."""
        self._steps += 1
        if self._steps > MAX_STEPS or time.thread_time() > self._deadline:
            raise TemplateError("The model's chat template does not come to an end.", _HINT)

    def require_length(self, size: int) -> None:
        """Refuse a text or list of more than the allowed length."""
        if size > MAX_CHARACTERS:
            raise TemplateError(
                f"The model's chat template makes more than {MAX_CHARACTERS:,} characters.", _HINT
            )

    def counted(self, items: Iterable[Any]) -> Iterator[Any]:
        """The items, each a step."""
        for item in items:
            self.step()
            yield item

    def measured(self, value: Any) -> Any:
        """The value itself; everything nested in it is counted before it becomes text."""
        pending, size = [value], 0
        while pending:
            part = pending.pop()
            if isinstance(part, str):
                size += len(part)
                self.require_length(size)
            elif isinstance(part, (list, tuple, dict)):
                self.step()
                pending += part
                pending += part.values() if isinstance(part, dict) else ()
        return value

    def joined(self, *parts: Any) -> str:
        """The operator `~`."""
        texts = [str(self.measured(part)) for part in parts]
        self.require_length(sum(map(len, texts)))
        return "".join(texts)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.step()
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(owner, str) and name in ("replace", "join"):
            obj = partial(self._replace if name == "replace" else self._join_method, owner)
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.step()
        if operator == "*":
            self.require_length(_product_length(left, right))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            self.require_length(MAX_CHARACTERS * (left.bit_length() * right > _MAX_BITS) + 1)
        elif operator == "%" and isinstance(left, (str, bytes)):
            raise SecurityError("text formatted with %.")
        result = super().call_binop(context, operator, left, right)
        self.require_length(len(result) if isinstance(result, (str, list, tuple)) else 0)
        return result

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, (str, bytes)) and attr in _PADDING_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """Leave `format` and `format_map` to `is_safe_attribute`, which forbids them."""

    def _tojson(self, value: Any, indent: int | None = None, **options: Any) -> str:
        """JSON without HTML escapes, as chat templates expect it."""
        allowed: dict[str, Callable[[Any], Any]] = {
            "ensure_ascii": bool, "sort_keys": bool, "separators": tuple
        }  # fmt: skip
        kept = {name: kind(options[name]) for name, kind in allowed.items() if options.get(name)}
        depth = min(indent, _MAX_INDENT) if isinstance(indent, int) else None
        return json.dumps(self.measured(value), **{"ensure_ascii": False, **kept}, indent=depth)

    def _replace(self, value: Any, old: str, new: str, count: int | None = None) -> str:
        text, old, new = str(value), str(old), str(new)
        self.require_length(len(text) + text.count(old) * len(new))
        return text.replace(old, new, -1 if count is None else count)

    def _join(self, items: Iterable[Any], d: str = "", attribute: Any = None) -> str:
        if attribute is not None:
            items = [self.getitem(item, attribute) for item in items]
        return self._join_method(str(d), items)

    def _join_method(self, between: str, items: Iterable[Any]) -> str:
        texts = [str(self.measured(item)) for item in self.counted(items)]
        self.require_length(sum(map(len, texts)) + len(between) * len(texts))
        return between.join(texts)


def _product_length(left: Any, right: Any) -> int:
    """The length of left * right when one is a sequence; huge numbers count as too long."""
    for sequence, times in ((left, right), (right, left)):
        if isinstance(sequence, (str, bytes, list, tuple)) and isinstance(times, int):
            return len(sequence) * max(0, times)
    if isinstance(left, int) and isinstance(right, int):
        return MAX_CHARACTERS * (left.bit_length() + right.bit_length() > _MAX_BITS) + 1
    return 0


def _raise_exception(message: Any) -> NoReturn:
    raise JinjaError(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form[:200])
