"""The most used part of Sprig's hermetic functions (Masterminds/sprig v3), with its argument order: subject last.

Hermetic means that the result depends on the arguments alone: no time, no randomness, no environment, no network.
Kept as in Sprig: conversions that fail give zero, numbers from `fromJson` are floats, `regexMatch` with a bad pattern
is false. Not kept: `b64dec` of what is no Base64 is an error here; Sprig returns the error's text as the result, which
would end up on somebody's disk. `keys` and `values` are in the order of the keys (Go's order is random).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import posixpath
import re
from collections.abc import Callable
from typing import Any, Final

from tink.template import fmt, strconv
from tink.template.errors import CallError
from tink.template.signatures import ANY, BOOL, INT, MAP, STRING, Function, Functions, Type, table
from tink.template.strconv import from_bytes, to_bytes
from tink.template.values import Struct, Uint8, Value, kind, type_name

_GO_SPACE: Final = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004"
    "\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)


def _bounded(size: int) -> None:
    if size > fmt.LARGEST:
        raise CallError(f"the result is larger than {fmt.LARGEST}")


def _strval(value: Value) -> str:
    """Any value as text."""
    return "<nil>" if value is None else fmt.text_of(value)


def _strings(value: Value) -> list[str]:
    """A list's elements as text, without nils; anything else is a list of one."""
    if value is None:
        return []
    if type(value) is list:
        return [_strval(item) for item in value if item is not None]
    return [_strval(value)]


def _wrap64(value: int) -> int:
    """What is left of a result in an int64."""
    return (value + 2**63) % 2**64 - 2**63


def _to_int(value: Value) -> int:
    """Sprig's toInt64: zero for what is no number."""
    if type(value) in (int, Uint8, bool):
        return _wrap64(int(value))
    if type(value) is float:
        return _wrap64(int(value)) if math.isfinite(value) else strconv.INT64_MIN
    if type(value) is str:
        text = re.sub(r"\.0*$", "", value) if value.count(".") == 1 else value
        number = strconv.parse_integer(text)
        return number if number is not None and strconv.INT64_MIN <= number <= strconv.INT64_MAX else 0
    return 0


def _to_float(value: Value) -> float:
    if type(value) in (int, Uint8, bool, float):
        return float(value)
    if type(value) is str:
        return strconv.parse_float(value) or 0.0
    return 0.0


# --- defaults ---------------------------------------------------------------------------------------------------


def _default(fallback: Value, *given: Value) -> Value:
    return given[0] if given and given[0] else fallback


def _coalesce(*candidates: Value) -> Value:
    return next((value for value in candidates if value), None)


def _ternary(yes: Value, no: Value, condition: bool) -> Value:
    return yes if condition else no


def _fail(message: str) -> Value:
    raise CallError(message)


# --- text -------------------------------------------------------------------------------------------------------


def _by_rune(convert: Callable[[str], str]) -> Callable[[str], str]:
    """Go changes case rune by rune: what would become two runes stays."""

    def change(text: str) -> str:
        if text.isascii():
            return convert(text)
        return "".join(new if len(new := convert(char)) == 1 else char for char in text)

    return change


def _trunc(length: int, text: str) -> str:
    raw = to_bytes(text)
    if length < 0:
        return from_bytes(raw[length:]) if len(raw) + length > 0 else text
    return from_bytes(raw[:length])


def _substr(start: int, end: int, text: str) -> str:
    raw = to_bytes(text)
    if start < 0:
        return from_bytes(raw[: _within(end, len(raw))])
    if end < 0 or end > len(raw):
        return from_bytes(raw[_within(start, len(raw)) :])
    if start > end:
        raise CallError(f"slice bounds out of range [{start}:{end}]")
    return from_bytes(raw[start:end])


def _within(bound: int, length: int) -> int:
    if not 0 <= bound <= length:
        raise CallError(f"slice bounds out of range [{bound}:{length}]")
    return bound


def _repeat(count: int, text: str) -> str:
    if count < 0:
        raise CallError("strings: negative Repeat count")
    _bounded(count * len(text))
    return text * count


def _replace(old: str, new: str, text: str) -> str:
    _bounded(len(text) + (text.count(old) + 1) * len(new))
    return text.replace(old, new)


def _indent(spaces: int, text: str) -> str:
    if spaces < 0:
        raise CallError("strings: negative Repeat count")
    _bounded(len(text) + (text.count("\n") + 1) * spaces)
    pad = " " * spaces
    return pad + text.replace("\n", "\n" + pad)


def _quote(*arguments: Value) -> str:
    return _joined(" ", [strconv.quote(_strval(value)) for value in arguments if value is not None])


def _squote(*arguments: Value) -> str:
    return _joined(" ", [f"'{_strval(value)}'" for value in arguments if value is not None])


def _cat(*arguments: Value) -> str:
    return _joined(" ", [_strval(value) for value in arguments if value is not None])


def _joined(separator: str, parts: list[str]) -> str:
    _bounded(sum(map(len, parts)) + len(separator) * len(parts))
    return separator.join(parts)


def _split_list(separator: str, text: str) -> list[Value]:
    return list(text.split(separator)) if separator else list(text)


def _split(separator: str, text: str) -> dict[str, Value]:
    return {f"_{index}": part for index, part in enumerate(_split_list(separator, text))}


def _nospace(text: str) -> str:
    return "".join(char for char in text if char not in _GO_SPACE)


def _base(path: str) -> str:
    if not path:
        return "."
    return posixpath.basename(path.rstrip("/")) or "/"


# --- encodings --------------------------------------------------------------------------------------------------


def _b64dec(text: str) -> str:
    try:
        return from_bytes(base64.b64decode(to_bytes(re.sub("[\r\n]", "", text)), validate=True))
    except binascii.Error as error:
        raise CallError(f"illegal base64 data: {error}") from None


_JSON_ESCAPES: Final = re.compile('["\\\\<>&\0-\x1f\u2028\u2029\ud800-\udfff]')
_JSON_SHORT: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _json_escape(match: re.Match[str]) -> str:
    char = match[0]
    if char in _JSON_SHORT:
        return _JSON_SHORT[char]
    return "\\ufffd" if 0xD800 <= ord(char) <= 0xDFFF else f"\\u{ord(char):04x}"


def _json_float(value: float) -> str:
    if not math.isfinite(value):
        raise CallError(f"json: unsupported value: {strconv.format_float(value, 'g')}")
    if value != 0 and not 1e-6 <= abs(value) < 1e21:
        text = strconv.format_float(value, "e")
        return text[:-2] + text[-1] if text[-4:-1] == "e-0" else text
    return strconv.format_float(value, "f")


def _json(value: Value, room: fmt.Room, depth: int) -> str:
    """Go's json.Marshal: keys in order, and <, >, & escaped."""
    if depth > fmt.DEEPEST:
        raise CallError(f"the value is nested deeper than {fmt.DEEPEST}")
    room.take(2)
    if value is None:
        return "null"
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is str:
        room.take(len(value))
        return '"' + _JSON_ESCAPES.sub(_json_escape, value) + '"'
    if type(value) is float:
        return _json_float(value)
    if type(value) is list:
        return "[" + ",".join([_json(item, room, depth + 1) for item in value]) + "]"
    if type(value) in (dict, Struct):
        members = value if type(value) is dict else value.fields
        names = sorted(members) if type(value) is dict else members
        parts = [f"{_json(name, room, depth)}:{_json(members[name], room, depth + 1)}" for name in names]
        return "{" + ",".join(parts) + "}"
    if type(value) in (int, Uint8):
        return str(int(value))
    raise CallError(f"json: unsupported type: {type(value).__name__}")


def _to_json(value: Value) -> str:
    return _json(value, fmt.Room(), 0)


def _from_json(text: str) -> Value:
    def number(digits: str) -> float:
        value = float(digits)
        if not math.isfinite(value):
            raise ValueError(digits)
        return value

    def reject(name: str) -> Value:
        raise ValueError(name)

    try:
        return json.loads(text, parse_int=number, parse_float=number, parse_constant=reject)
    except (ValueError, RecursionError):
        return None


def _sha256(text: str) -> str:
    return hashlib.sha256(to_bytes(text)).hexdigest()


# --- lists and maps ---------------------------------------------------------------------------------------------


def _sequence(name: str, value: Value) -> list[Value]:
    if type(value) is not list:
        raise CallError(f"Cannot find {name} on type {type_name(value)}")
    return value


def _first(value: Value) -> Value:
    items = _sequence("first", value)
    return items[0] if items else None


def _last(value: Value) -> Value:
    items = _sequence("last", value)
    return items[-1] if items else None


def _rest(value: Value) -> Value:
    return _sequence("rest", value)[1:]


def _initial(value: Value) -> Value:
    return _sequence("initial", value)[:-1]


def _append(value: Value, item: Value) -> Value:
    return [*_sequence("append", value), item]


def _prepend(value: Value, item: Value) -> Value:
    return [item, *_sequence("prepend", value)]


def _concat(*lists: Value) -> Value:
    sequences = [_sequence("concat", value) for value in lists]
    _bounded(sum(map(len, sequences)))
    return [item for items in sequences for item in items]


def _has(needle: Value, haystack: Value) -> bool:
    if haystack is None:
        return False
    return any(type(item) is type(needle) and item == needle for item in _sequence("has", haystack))


def _reverse(value: Value) -> Value:
    return _sequence("reverse", value)[::-1]


def _sort_alpha(value: Value) -> Value:
    return sorted(_strings(value))


def _until(count: int) -> Value:
    _bounded(abs(count))
    return list(range(count)) if count >= 0 else list(range(0, count, -1))


def _dict(*arguments: Value) -> Value:
    pairs = [*arguments, ""] if len(arguments) % 2 else arguments
    return {_strval(pairs[index]): pairs[index + 1] for index in range(0, len(pairs), 2)}


def _get(mapping: dict[str, Value], key: str) -> Value:
    return mapping.get(key, "")


def _keys(*mappings: dict[str, Value]) -> Value:
    return [key for mapping in mappings for key in sorted(mapping)]


def _values(mapping: dict[str, Value]) -> Value:
    return [mapping[key] for key in sorted(mapping)]


# --- arithmetic -------------------------------------------------------------------------------------------------


def _div(one: Value, other: Value) -> int:
    dividend, divisor = _to_int(one), _to_int(other)
    if divisor == 0:
        raise CallError("runtime error: integer divide by zero")
    quotient = abs(dividend) // abs(divisor)
    return _wrap64(quotient if (dividend < 0) == (divisor < 0) else -quotient)


def _mod(one: Value, other: Value) -> int:
    return _wrap64(_to_int(one) - _to_int(other) * _div(one, other))


def _atoi(text: str) -> int:
    if not re.fullmatch("[+-]?[0-9]{1,100}", text):
        return 0
    return max(strconv.INT64_MIN, min(strconv.INT64_MAX, int(text)))


def _text(name: str, call: Callable[..., Any], *before: Type) -> Function:
    """A function whose last parameter is the text it works on."""
    return Function(name, call, (*before, STRING))


SPRIG: Final[Functions] = table(
    Function("default", _default, (ANY,), ANY),
    Function("empty", lambda value: not value, (ANY,)),
    Function("coalesce", _coalesce, (), ANY),
    Function("ternary", _ternary, (ANY, ANY, BOOL)),
    Function("fail", _fail, (STRING,)),
    Function("kindOf", kind, (ANY,)),
    Function("kindIs", lambda wanted, value: kind(value) == wanted, (STRING, ANY)),
    _text("upper", _by_rune(str.upper)),
    _text("lower", _by_rune(str.lower)),
    _text("trim", lambda text: text.strip(_GO_SPACE)),
    _text("trimAll", lambda cut, text: text.strip(cut) if cut else text, STRING),
    _text("trimPrefix", lambda prefix, text: text.removeprefix(prefix), STRING),
    _text("trimSuffix", lambda suffix, text: text.removesuffix(suffix), STRING),
    _text("nospace", _nospace),
    _text("replace", _replace, STRING, STRING),
    _text("repeat", _repeat, INT),
    _text("trunc", _trunc, INT),
    _text("substr", _substr, INT, INT),
    _text("indent", _indent, INT),
    _text("nindent", lambda spaces, text: "\n" + _indent(spaces, text), INT),
    Function("quote", _quote, (), ANY),
    Function("squote", _squote, (), ANY),
    Function("cat", _cat, (), ANY),
    Function("toString", _strval, (ANY,)),
    Function("join", lambda separator, value: _joined(separator, _strings(value)), (STRING, ANY)),
    _text("split", _split, STRING),
    _text("splitList", _split_list, STRING),
    _text("base", _base),
    _text("b64enc", lambda text: base64.b64encode(to_bytes(text)).decode()),
    _text("b64dec", _b64dec),
    _text("sha256sum", _sha256),
    Function("toJson", _to_json, (ANY,)),
    _text("fromJson", _from_json),
    Function("list", lambda *items: list(items), (), ANY),
    Function("first", _first, (ANY,)),
    Function("last", _last, (ANY,)),
    Function("rest", _rest, (ANY,)),
    Function("initial", _initial, (ANY,)),
    Function("append", _append, (ANY, ANY)),
    Function("prepend", _prepend, (ANY, ANY)),
    Function("concat", _concat, (), ANY),
    Function("has", _has, (ANY, ANY)),
    Function("reverse", _reverse, (ANY,)),
    Function("sortAlpha", _sort_alpha, (ANY,)),
    Function("until", _until, (INT,)),
    Function("dict", _dict, (), ANY),
    Function("get", _get, (MAP, STRING)),
    Function("hasKey", lambda mapping, key: key in mapping, (MAP, STRING)),
    Function("keys", _keys, (), MAP),
    Function("values", _values, (MAP,)),
    Function("add", lambda *numbers: _wrap64(sum(map(_to_int, numbers))), (), ANY),
    Function("add1", lambda number: _wrap64(_to_int(number) + 1), (ANY,)),
    Function("sub", lambda one, other: _wrap64(_to_int(one) - _to_int(other)), (ANY, ANY)),
    Function("mul", lambda one, *more: _wrap64(math.prod(map(_to_int, more), start=_to_int(one))), (ANY,), ANY),
    Function("div", _div, (ANY, ANY)),
    Function("mod", _mod, (ANY, ANY)),
    Function("max", lambda one, *more: max(map(_to_int, (one, *more))), (ANY,), ANY),
    Function("min", lambda one, *more: min(map(_to_int, (one, *more))), (ANY,), ANY),
    Function("int", _to_int, (ANY,)),
    Function("int64", _to_int, (ANY,)),
    Function("float64", _to_float, (ANY,)),
    Function("atoi", _atoi, (STRING,)),
)
