"""The calculator: what Python says, bounds, and nothing but arithmetic."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarechat.tools.calculator import CalculationError, calculate

LEAVES = st.one_of(
    st.integers(0, 10**12).map(str),
    st.floats(0, 1e6).map(lambda value: repr(value)),
    st.sampled_from(["pi", "e"]),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner).map(" ".join),
        inner.map("({})".format),
        inner.map("-{}".format),
        st.tuples(inner, st.integers(0, 3).map(str)).map("**".join),
        inner.map("abs({})".format),
        st.tuples(inner, inner).map(lambda pair: f"max({pair[0]}, {pair[1]})"),
    ),
    max_leaves=8,
)
NAMES = {"pi": math.pi, "e": math.e, "abs": abs, "max": max}


@settings(max_examples=300, deadline=None)
@given(TREES)
def test_it_computes_what_python_computes(expression: str) -> None:
    try:
        got = calculate(expression)
    except CalculationError as error:
        refused = str(error)
    else:
        refused = ""
    try:
        expected = str(eval(expression, {"__builtins__": {}}, NAMES))
    except (ZeroDivisionError, OverflowError) as error:
        expected = type(error).__name__

    if refused:
        assert expected in ("ZeroDivisionError", "OverflowError") or "too large" in refused
    else:
        assert expected == got


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2+3*4", "14"),
        ("-2**2", "-4"),
        ("2**3**2", "512"),
        ("2**-1", "0.5"),
        ("7 // -2", "-4"),
        ("10**30 + 1", "1" + "0" * 29 + "1"),
        ("1e3", "1000.0"),
        (".5 + 5.", "5.5"),
        ("sqrt(16)", "4.0"),
        ("log(8, 2)", "3.0"),
        ("round(2.567, 1)", "2.6"),
        ("round(2.5)", "2"),
        ("min(3)", "3"),
        ("min(3, 1, 2)", "1"),
        ("exp(0) + cos(0) + sin(0) + tan(0)", "2.0"),
    ],
)
def test_it_has_these_values(expression: str, value: str) -> None:
    assert value == calculate(expression)


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        ("", "ends too early"),
        ("1 +", "ends too early"),
        ("(1", "ends too early"),
        ("1)", "no place for '\\)'"),
        ("2pi", "no place for 'pi'"),
        ("2 ^ 3", "no place for '\\^'"),
        ("1/0", "division by zero"),
        ("1 % 0", "division by zero"),
        ("sqrt(-1)", "sqrt has no value at -1"),
        ("(-8)**0.5", "negative number"),
        ("9**9**9", "too large"),
        ("2**4097", "too large"),
        ("10.0**400", "too large"),
        ("1e999", "too large"),
        ("2**4000 * 2**4000", "too large"),
        ("2**4000 / 0.5", "too large"),
        ("factorial(5)", "'factorial' is not known"),
        ("__import__('os')", "'__import__' is not known"),
        ("abs.__class__", "'\\.'"),
        ("sqrt(1, 2)", "sqrt takes 1 numbers, not 2"),
        ("round(1.5, 0.5)", "whole number of digits"),
        ("round(5, -99999999)", "4096 digits"),
        ("(" * 50 + "1" + ")" * 50, "nested deeper"),
        ("-" * 500 + "1", "nested deeper"),
        ("1" * 1001, "longer than 1000"),
        ("1 \u00d7 2", "no place for '×'"),
    ],
)
def test_what_has_no_value_is_a_sentence(expression: str, sentence: str) -> None:
    began = time.monotonic()

    with pytest.raises(CalculationError, match=sentence):
        calculate(expression)

    assert time.monotonic() - began < 1


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="0123456789+-*/%(),. episqrtloground_^!", max_size=40))
def test_any_text_has_a_value_or_a_sentence(text: str) -> None:
    try:
        assert math.isfinite(float(calculate(text)))
    except CalculationError as error:
        assert str(error).endswith(".")
    except OverflowError:
        assert text
