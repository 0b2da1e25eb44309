"""Sprig's arithmetic: on int64 that wraps around, on decimals, and on floats."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import partial
from typing import Final

from tink.golang import strconv
from tink.golang.values import CallError, Value
from tink.template.signatures import ANY, FLOAT, INT, STRING, Function, Functions, table
from tink.template.sprig.conversions import aliases, bounded, text_of, to_float, to_int, wrap64


def _div(one: Value, other: Value) -> int:
    dividend, divisor = to_int(one), to_int(other)
    if divisor == 0:
        raise CallError("runtime error: integer divide by zero")
    quotient = abs(dividend) // abs(divisor)
    return wrap64(quotient if (dividend < 0) == (divisor < 0) else -quotient)


def _mul(one: Value, *more: Value) -> int:
    result = to_int(one)
    for value in more:
        result = wrap64(result * to_int(value))
    return result


def _atoi(text: str) -> int:
    if not re.fullmatch("[+-]?[0-9]{1,100}", text):
        return 0
    return max(strconv.INT64_MIN, min(strconv.INT64_MAX, int(text)))


def _to_decimal(value: Value) -> int:
    """The digits of a value, read as an octal number."""
    text = text_of(value)
    if not re.fullmatch("[+-]?[0-7]{1,100}", text):
        return 0
    number = int(text, 8)
    return number if strconv.INT64_MIN <= number <= strconv.INT64_MAX else 0


# --- decimals ---------------------------------------------------------------------------------------------------

_EXACT: Final = Context(prec=2000)
_PLACES: Final = Decimal(1).scaleb(-16)  # Sprig's decimals divide to that many places.


def _decimal(value: Value) -> Decimal:
    number = to_float(value)
    if not math.isfinite(number):
        raise CallError(f"Cannot create a Decimal from {strconv.format_float(number, 'g')}")
    return Decimal(repr(number))


def _folded(operation: Callable[[Decimal, Decimal], Decimal]) -> Callable[..., float]:
    def fold(first: Value, *more: Value) -> float:
        result = _decimal(first)
        for value in more:
            result = operation(result, _decimal(value))
        return float(result) + 0.0  # A decimal has no -0.

    return fold


def _quotient(one: Decimal, other: Decimal) -> Decimal:
    if not other:
        raise CallError("decimal division by 0")
    return _EXACT.divide(one, other).quantize(_PLACES, ROUND_HALF_UP, _EXACT)


_sum: Final = _folded(_EXACT.add)


# --- floats -----------------------------------------------------------------------------------------------------


def _whole(nearest: Callable[[float], int], value: Value) -> float:
    number = to_float(value)
    return math.copysign(float(nearest(number)), number) if math.isfinite(number) else number


def _round(value: Value, places: int, *threshold: float) -> float:
    try:
        power = math.pow(10, places)
    except OverflowError:
        power = math.inf
    digits = power * to_float(value)
    if math.isfinite(digits):
        up = math.modf(digits)[0] >= (threshold[0] if threshold else 0.5)
        digits = float(math.ceil(digits) if up else math.floor(digits))
    if power == 0:
        return math.nan if digits == 0 else math.copysign(math.inf, digits)
    return digits / power


# --- ranges -----------------------------------------------------------------------------------------------------


def _until_step(start: int, stop: int, step: int) -> list[Value]:
    if step == 0 or (step > 0) != (stop >= start):
        return []
    bounded((stop - start) // step)
    return list(range(start, stop, step))


def _seq(*bounds: int) -> str:
    """`seq end`, `seq start end`, `seq start step end`: the numbers, both ends included, as text."""
    if not 1 <= len(bounds) <= 3:
        return ""
    start, end = bounds[0] if len(bounds) > 1 else 1, bounds[-1]
    direction = -1 if end < start else 1
    step = bounds[1] if len(bounds) == 3 else direction
    if direction < 0 < step:
        return ""
    return " ".join(map(str, _until_step(start, end + direction, step)))


def _by_sign(number: float) -> tuple[float, float]:
    """Orders as Go's math.Max and math.Min do: 0 is larger than -0."""
    return number, math.copysign(1, number)


NUMBERS: Final[Functions] = table(
    Function("add", lambda *numbers: wrap64(sum(map(to_int, numbers))), (), ANY),
    Function("add1", lambda number: wrap64(to_int(number) + 1), (ANY,)),
    Function("sub", lambda one, other: wrap64(to_int(one) - to_int(other)), (ANY, ANY)),
    Function("mul", _mul, (ANY,), ANY),
    Function("div", _div, (ANY, ANY)),
    Function("mod", lambda one, other: wrap64(to_int(one) - to_int(other) * _div(one, other)), (ANY, ANY)),
    *aliases(Function("max", lambda one, *more: max(map(to_int, (one, *more))), (ANY,), ANY), "biggest"),
    Function("min", lambda one, *more: min(map(to_int, (one, *more))), (ANY,), ANY),
    Function("addf", lambda *numbers: _sum(0.0, *numbers), (), ANY),
    Function("add1f", lambda number: _sum(number, 1), (ANY,)),
    Function("subf", _folded(_EXACT.subtract), (ANY,), ANY),
    Function("mulf", _folded(_EXACT.multiply), (ANY,), ANY),
    Function("divf", _folded(_quotient), (ANY,), ANY),
    Function("maxf", lambda *numbers: max(map(to_float, numbers), key=_by_sign), (ANY,), ANY),
    Function("minf", lambda *numbers: min(map(to_float, numbers), key=_by_sign), (ANY,), ANY),
    Function("floor", partial(_whole, math.floor), (ANY,)),
    Function("ceil", partial(_whole, math.ceil), (ANY,)),
    Function("round", _round, (ANY, INT), FLOAT),
    Function("int", to_int, (ANY,)),
    Function("int64", to_int, (ANY,)),
    Function("float64", to_float, (ANY,)),
    Function("atoi", _atoi, (STRING,)),
    Function("toDecimal", _to_decimal, (ANY,)),
    Function("until", lambda count: _until_step(0, count, 1 if count >= 0 else -1), (INT,)),
    Function("untilStep", _until_step, (INT, INT, INT)),
    Function("seq", _seq, (), INT),
)
