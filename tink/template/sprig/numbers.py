"""Sprig's conversions, and its arithmetic: on int64 that wraps around, on decimals, on floats, and on durations."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import partial
from typing import Any, Final

from tink.golang import fmt, strconv
from tink.golang.durations import SECOND, parse_duration
from tink.golang.strconv import from_bytes
from tink.golang.values import NIL, CallError, Struct, Uint8, Value, kind
from tink.template.signatures import ANY, FLOAT, INT, STRING, Function, Functions, ParameterType, table

Spend = Callable[[int], None]
"""Takes steps from the budget of the running template. Ends the template if none are left."""

NIL_POINTER: Final = "runtime error: invalid memory address or nil pointer dereference"


def bounded(size: int) -> None:
    """Raise CallError for a result that would be too large, before it is made."""
    if size > fmt.MAX_CHARACTERS:
        raise CallError(f"the result is larger than {fmt.MAX_CHARACTERS}")


def text_of(value: Value) -> str:
    """Return any value as text."""
    return "<nil>" if value is None else fmt.text_of(value)


def texts_of(value: Value) -> list[str]:
    """Return a list's elements as text, without nils. Any other value counts as a list of one."""
    if value is None:
        return []
    if type(value) is list:
        return [text_of(item) for item in value if item is not None]
    return [text_of(value)]


def joined(separator: str, parts: list[str]) -> str:
    """Return the parts as one text."""
    bounded(sum(map(len, parts)) + len(separator) * len(parts))
    return separator.join(parts)


def wrap64(value: int) -> int:
    """Return a result wrapped around to an int64."""
    return (value + 2**63) % 2**64 - 2**63


def to_int(value: Value) -> int:
    """Return the value as an int64; 0 if it is no number."""
    if type(value) in (int, Uint8, bool):
        return wrap64(int(value))
    if type(value) is float:
        # Go's result for a number that does not fit is the processor's ("implementation-dependent").
        return int(value) if math.isfinite(value) and -(2.0**63) <= value < 2.0**63 else strconv.INT64_MIN
    if type(value) is str:
        number = strconv.parse_integer(re.sub(r"\.0+$", "", value))
        return number if number is not None and strconv.INT64_MIN <= number <= strconv.INT64_MAX else 0
    return 0


def to_float(value: Value) -> float:
    """Return the value as a float64; 0 if it is no number."""
    if type(value) in (int, Uint8, bool, float):
        return float(value)
    if type(value) is str:
        return strconv.parse_float(value) or 0.0
    return 0.0


def sequence(complaint: str, value: Value) -> list[Value]:
    """Return the value if it is a list. Raises CallError with the complaint and the kind of the value."""
    if type(value) is list:
        return value
    found = kind(value)
    raise CallError(NIL_POINTER if found == NIL else f"{complaint} {found}")


def deep_equal(spend: Spend, one: Value, other: Value, depth: int = 0) -> bool:
    """Return the result of Go's reflect.DeepEqual, with types. Values may share parts, or contain themselves."""
    spend(1)
    if type(one) is not type(other):
        return False
    if type(one) is list:
        not_too_deep(depth)
        return one is other or (
            len(one) == len(other)
            and all(deep_equal(spend, item, its, depth + 1) for item, its in zip(one, other, strict=True))
        )
    if type(one) is dict:
        not_too_deep(depth)
        return one is other or (
            len(one) == len(other)
            and all(key in other and deep_equal(spend, one[key], other[key], depth + 1) for key in one)
        )
    if type(one) is Struct:
        return one.type_name == other.type_name and deep_equal(spend, one.fields, other.fields, depth + 1)
    return bool(one == other)


def deep_copy(spend: Spend, value: Value, depth: int = 0) -> Value:
    """Return a copy that shares no list or map with the value."""
    spend(1)
    if type(value) is list:
        not_too_deep(depth)
        return [deep_copy(spend, item, depth + 1) for item in value]
    if type(value) is dict:
        not_too_deep(depth)
        return {key: deep_copy(spend, item, depth + 1) for key, item in value.items()}
    if type(value) is Struct:
        members = {name: deep_copy(spend, item, depth + 1) for name, item in value.members.items()}
        return Struct(value.type_name, {name: members[name] for name in value.fields}, members, value.text)
    return value


def not_too_deep(depth: int) -> None:
    """Raise CallError for a value that is nested too deep."""
    if depth > fmt.MAX_DEPTH:
        raise CallError(f"the value is nested deeper than {fmt.MAX_DEPTH}")


def by_bytes(change: Callable[[bytes], bytes], text: str) -> str:
    """Apply a function to the bytes of a string, as Go does."""
    return from_bytes(change(strconv.to_bytes(text)))


def on_text(name: str, call: Callable[..., Any], *before: ParameterType) -> Function:
    """Return a function whose last parameter is its text."""
    return Function(name, call, (*before, STRING))


def aliases(function: Function, *names: str) -> tuple[Function, ...]:
    """Return the function under more names."""
    return function, *(replace(function, name=name) for name in names)


_STEPS: Final = (("y", 365 * 24 * 3600), ("mo", 30 * 24 * 3600), ("d", 24 * 3600), ("h", 3600), ("m", 60), ("s", 1))


def _seconds(value: Value) -> str:
    """Return a number of seconds as Go shows a duration: 1h0m5s."""
    count = value if type(value) is int else 0
    if type(value) is str and re.fullmatch("[+-]?[0-9]{1,30}", value):
        count = max(strconv.INT64_MIN, min(strconv.INT64_MAX, int(value)))
    nanoseconds = wrap64(count * SECOND)
    sign = "-" if nanoseconds < 0 else ""
    whole, rest = divmod(abs(nanoseconds), SECOND)
    minutes, seconds = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    shown = f"{seconds}" + (f".{rest:09d}".rstrip("0") if rest else "")
    if hours:
        return f"{sign}{hours}h{minutes}m{shown}s"
    return f"{sign}{minutes}m{shown}s" if minutes else f"{sign}{shown}s"


def _rounded(value: Value) -> str:
    """Return a duration rounded to the largest unit of which it has more than one: 2h10m -> 2h."""
    duration = value if type(value) is int else (parse_duration(value) or 0) if type(value) is str else 0
    for unit, seconds in _STEPS:
        if abs(duration) > seconds * SECOND:
            return f"{abs(duration) // (seconds * SECOND)}{unit}"
    return "0s"


DURATIONS: Final[Functions] = table(Function("duration", _seconds, (ANY,)), Function("durationRound", _rounded, (ANY,)))


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
    """Return the digits of a value, read as an octal number."""
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
    """Return the numbers of `seq end`, `seq start end` or `seq start step end` as text, both ends included."""
    if not 1 <= len(bounds) <= 3:
        return ""
    start, end = bounds[0] if len(bounds) > 1 else 1, bounds[-1]
    direction = -1 if end < start else 1
    step = bounds[1] if len(bounds) == 3 else direction
    if direction < 0 < step:
        return ""
    return " ".join(map(str, _until_step(start, end + direction, step)))


def _by_sign(number: float) -> tuple[float, float]:
    """Return a sort key with the order of Go's math.Max and math.Min: 0 is larger than -0."""
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
