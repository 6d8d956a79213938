"""The calculator: arithmetic as text to a number, by a parser of its own.

Whole numbers are exact. Nothing is looked up, called or evaluated but what stands in the tables
here, and numbers, powers and nesting have bounds, so every expression ends at once.

    sum       product (("+" | "-") product)*
    product   sign (("*" | "/" | "//" | "%") sign)*
    sign      ("+" | "-") sign | power
    power     atom ("**" sign)?
    atom      number | constant | function "(" sum ("," sum)* ")" | "(" sum ")"
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable

from flarechat.tools.results import ToolError

MAX_LENGTH = 1000
MAX_BITS = 4096
MAX_DEPTH = 40

Number = int | float

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign>\*\*|//|[-+*/%(),])|(?P<other>\S))",
    re.ASCII,
)
_CONSTANTS = {"pi": math.pi, "e": math.e}
_SUMS = {"+": operator.add, "-": operator.sub}
_PRODUCTS = {
    "*": operator.mul, "/": operator.truediv, "//": operator.floordiv, "%": operator.mod,
}  # fmt: skip
# function → what it does, the fewest and the most arguments
_FUNCTIONS: dict[str, tuple[Callable[..., Number], int, int]] = {
    "sqrt": (math.sqrt, 1, 1),
    "sin": (math.sin, 1, 1),
    "cos": (math.cos, 1, 1),
    "tan": (math.tan, 1, 1),
    "log": (math.log, 1, 2),
    "exp": (math.exp, 1, 1),
    "abs": (abs, 1, 1),
    "round": (round, 1, 2),
    "min": (lambda *values: min(values), 1, 100),
    "max": (lambda *values: max(values), 1, 100),
}


class CalculationError(ToolError):
    """The expression is none, or has no value; the message is a sentence."""


def calculate(expression: str) -> str:
    """The value of an expression, as text. Raises CalculationError."""
    if len(expression) > MAX_LENGTH:
        raise CalculationError(f"The expression is longer than {MAX_LENGTH} characters.")
    return str(_Parser(expression).value())


class _Parser:
    """One expression and the place in it that was read up to."""

    def __init__(self, text: str) -> None:
        self._tokens = [
            (str(found.lastgroup), str(found[found.lastgroup]))
            for found in _TOKEN.finditer(text)
            if found.lastgroup
        ]
        self._at, self._depth = 0, 0

    def value(self) -> Number:
        value = self._sum()
        if self._at < len(self._tokens):
            raise CalculationError(f"There is no place for {self._next!r} in the expression.")
        return value

    @property
    def _next(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _take(self) -> tuple[str, str]:
        if self._at == len(self._tokens):
            raise CalculationError("The expression ends too early.")
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, sign: str) -> None:
        kind, found = self._take()
        if (kind, found) != ("sign", sign):
            raise CalculationError(f"There is {found!r} where {sign!r} was expected.")

    def _sum(self) -> Number:
        value = self._product()
        while self._next in _SUMS:
            sign = self._take()[1]
            value = _applied(_SUMS[sign], value, self._product())
        return value

    def _product(self) -> Number:
        value = self._sign()
        while self._next in _PRODUCTS:
            sign = self._take()[1]
            value = _applied(_PRODUCTS[sign], value, self._sign())
        return value

    def _sign(self) -> Number:
        if self._next not in _SUMS:
            return self._power()
        negative = self._take()[1] == "-"
        value = self._deeper(self._sign)
        return -value if negative else value

    def _power(self) -> Number:
        base = self._atom()
        if self._next != "**":
            return base
        self._take()
        return _applied(_raised, base, self._deeper(self._sign))

    def _atom(self) -> Number:
        kind, found = self._take()
        if kind == "number":
            return _number(found)
        if found == "(":
            value = self._deeper(self._sum)
            self._expect(")")
            return value
        if found in _CONSTANTS:
            return _CONSTANTS[found]
        if found in _FUNCTIONS:
            return self._called(found)
        if kind == "name":
            known = ", ".join((*_FUNCTIONS, *_CONSTANTS))
            raise CalculationError(f"{found!r} is not known here; there are {known}.")
        raise CalculationError(f"There is no place for {found!r} in the expression.")

    def _called(self, name: str) -> Number:
        function, fewest, most = _FUNCTIONS[name]
        self._expect("(")
        values = [self._deeper(self._sum)]
        while self._next == ",":
            self._take()
            values.append(self._deeper(self._sum))
        self._expect(")")
        if not fewest <= len(values) <= most:
            wanted = str(fewest) if fewest == most else f"{fewest} to {most}"
            raise CalculationError(f"{name} takes {wanted} numbers, not {len(values)}.")
        if name == "round" and len(values) == 2 and not isinstance(values[1], int):
            raise CalculationError("round takes a whole number of digits.")
        if name == "round" and abs(values[-1]) > MAX_BITS and len(values) == 2:
            raise CalculationError(f"round takes {MAX_BITS} digits at most.")
        return _applied(function, *values)

    def _deeper(self, part: Callable[[], Number]) -> Number:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise CalculationError(f"The expression is nested deeper than {MAX_DEPTH} levels.")
        value = part()
        self._depth -= 1
        return value


def _number(text: str) -> Number:
    if not text.isdigit():
        return _checked(float(text))
    return _checked(int(text))


def _raised(base: Number, exponent: Number) -> Number:
    """A power, refused before it is computed where it would be a huge whole number."""
    if isinstance(base, int) and isinstance(exponent, int) and exponent > 0:
        if base.bit_length() > 1 and (base.bit_length() - 1) * exponent > MAX_BITS:
            raise CalculationError(f"A whole number of more than {MAX_BITS} bits is too large.")
    elif base < 0 and exponent != int(exponent):
        raise CalculationError("A power of a negative number has no value here.")
    return operator.pow(base, exponent)  # type: ignore[no-any-return]


def _applied(function: Callable[..., Number], *values: Number) -> Number:
    try:
        return _checked(function(*values))
    except ZeroDivisionError:
        raise CalculationError("A division by zero has no value.") from None
    except OverflowError:
        raise CalculationError("The number is too large.") from None
    except ValueError:
        shown = ", ".join(map(str, values))
        name = getattr(function, "__name__", "It")
        raise CalculationError(f"{name} has no value at {shown}.") from None


def _checked(value: Number) -> Number:
    if isinstance(value, float) and not math.isfinite(value):
        raise CalculationError("The number is too large.")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise CalculationError(f"A whole number of more than {MAX_BITS} bits is too large.")
    return value
