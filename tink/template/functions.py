"""Go's built-in template functions, the five that Tinkerbell adds, and `toYaml` and `fromYaml`.

Sources: Go, text/template, funcs.go; for YAML, Tinkerbell's controller (sigs.k8s.io/yaml, go-yaml v2).

`FUNCTIONS` is everything that a template can call: these functions and those of `sprig`. If both define a name, the
definition here wins: `contains`, `hasPrefix` and `hasSuffix` take the text first, as Go's strings package does and as
the Tinkerbell renderer always has.
"""

from __future__ import annotations

import io
import ipaddress
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from functools import cmp_to_key
from typing import Any, Final
from urllib.parse import quote_plus

import yaml

from tink.api.yaml import YamlError, plain_scalar, read
from tink.golang import fmt, values
from tink.golang.strconv import byte_length, format_float, from_bytes, to_bytes
from tink.golang.values import CallError, Struct, Uint8, Value, type_name
from tink.template.errors import shortened
from tink.template.signatures import ANY, INT, STRING, Function, Functions, table
from tink.template.sprig import SPRIG

_DATE: Final = re.compile(
    r"(\d{4})-(\d{1,2})-(\d{1,2})"
    r"([Tt ](\d{1,2}):(\d{1,2}):(\d{1,2})([.,]\d{1,9})?(?P<zone>Z|[-+]\d\d:\d\d)?)?"
)
_BASE_60: Final = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
_MAX_UINT64: Final = 2**64


def to_yaml(value: Value) -> str:
    """Write a value as YAML in block style, keys in order, without the last line break.

    Raises CallError for a value that JSON does not have.
    """
    events, stream = _events(json.loads(SPRIG["toJson"].call(value))), io.StringIO()
    yaml.emit(events, stream, yaml.CSafeDumper, width=80, allow_unicode=True, line_break="\n")
    return stream.getvalue().removesuffix("\n").removesuffix("\n...")


def _events(value: Any) -> Iterator[yaml.Event]:
    yield yaml.StreamStartEvent()
    yield yaml.DocumentStartEvent(explicit=False)
    yield from _value_events(value)
    yield yaml.DocumentEndEvent(explicit=False)
    yield yaml.StreamEndEvent()


def _value_events(value: Any) -> Iterator[yaml.Event]:
    if isinstance(value, dict):
        yield yaml.MappingStartEvent(None, None, implicit=True, flow_style=False)
        for key in sorted(value, key=cmp_to_key(_compare)):
            yield _scalar(key)
            yield from _value_events(value[key])
        yield yaml.MappingEndEvent()
    elif isinstance(value, list):
        yield yaml.SequenceStartEvent(None, None, implicit=True, flow_style=False)
        for item in value:
            yield from _value_events(item)
        yield yaml.SequenceEndEvent()
    else:
        yield _scalar(value)


def _scalar(value: Any) -> yaml.ScalarEvent:
    style: str | None = None
    if value is None or isinstance(value, bool):
        text = json.dumps(value)
    elif isinstance(value, str):
        text = value
        style = "|" if "\n" in value else None if _is_plain(value) else '"'
    elif isinstance(value, float) or not -_MAX_UINT64 / 2 <= value < _MAX_UINT64:
        text = format_float(float(value), "g")
    else:
        text = str(value)
    return yaml.ScalarEvent(None, None, (True, True), text, style=style)


def _is_plain(text: str) -> bool:
    """Return whether go-yaml reads the text as a string if it stands without quotes (encode.go, stringv)."""
    try:
        if not isinstance(plain_scalar(text) if text else None, str):
            return False
    except ValueError:
        return False
    return not _BASE_60.fullmatch(text) and not _is_date(text)


def _is_date(text: str) -> bool:
    found = _DATE.fullmatch(text)
    if found is None:
        return False
    year, month, day = (int(each) for each in found.groups()[:3])
    hour, minute, second = (int(each or 0) for each in found.groups()[4:7])
    if found[4] is not None and (found[4][0] == " ") == bool(found["zone"]):
        return False
    try:
        date(max(year, 4) if year else 4, month, day)  # Go has a year 0, which is a leap year
    except ValueError:
        return False
    return hour < 24 and minute < 60 and second < 60


def _compare(one: str, other: str) -> int:
    """Return the order of two keys: letters last, numbers by value (go-yaml v2, sorter.go)."""
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a == b:
            continue
        if a.isalpha() or b.isalpha():
            return -1 if (a < b if a.isalpha() and b.isalpha() else b.isalpha()) else 1
        leading = ""
        if "0" in (a, b):
            before = re.search(r"[0-9]*$", one[:at])
            leading = "1" if before is not None and before[0].strip("0") else ""
        digits = [re.match(r"[0-9]*", text[at:]) for text in (one, other)]
        lengths = [len(each[0]) if each else 0 for each in digits]
        numbers = [int(f"{leading}{each[0]}" or 0) if each else 0 for each in digits]
        first, second = (numbers[0], lengths[0], a), (numbers[1], lengths[1], b)
        return -1 if first < second else 1
    return len(one) - len(other)


def from_yaml(text: str) -> Value:
    """Return the value of the first document, with numbers as in `fromJson`. Raises CallError."""
    if not text:
        raise CallError("fromYaml: empty YAML input")
    try:
        value = next(read(text, []), None)
    except YamlError as error:
        where = f"line {error.line}: " if error.line else ""
        raise CallError(f"fromYaml: {where}{error}") from None
    return SPRIG["mustFromJson"].call(json.dumps(value))


YAML: Final[Functions] = table(Function("toYaml", to_yaml, (ANY,)), Function("fromYaml", from_yaml, (STRING,)))


_BASIC: Final = {values.BOOL, values.INT, values.UINT, values.FLOAT, values.COMPLEX, values.STRING}


# --- logic ------------------------------------------------------------------------------------------------------


def _and_or(*_arguments: Value) -> Value:
    """Raise CallError: never called. The compiler translates `and` and `or`, which may skip arguments."""
    raise CallError("and, or are no plain functions")


# --- comparison -------------------------------------------------------------------------------------------------


def _comparable_kind(value: Value) -> str:
    """Return the kind of a value for comparisons. Signed and unsigned integers compare by value."""
    kind = values.kind(value)
    return values.INT if kind == values.UINT else kind


def _equal(one: Value, other: Value) -> bool:
    first, second = _comparable_kind(one), _comparable_kind(other)
    if first in _BASIC or second in _BASIC:
        if first == second:
            return bool(one == other)
        if one is None or other is None:
            return False
        raise CallError(f"incompatible types for comparison: {type_name(one)} and {type_name(other)}")
    if one is None or other is None:
        return one is other
    if first != second:
        raise CallError(
            f"non-comparable types {_shown('%s', one)}: {type_name(one)}, {type_name(other)}: {_shown('%v', other)}"
        )
    if type(one) is Struct and type(other) is Struct:
        return (
            one.type_name == other.type_name
            and list(one.fields) == list(other.fields)
            and all(map(_equal, one.fields.values(), other.fields.values()))
        )
    raise CallError(f"non-comparable type {_shown('%s', other)}: {type_name(other)}")


def _shown(directive: str, value: Value) -> str:
    return shortened(fmt.sprintf(directive, [value]))


def _eq(one: Value, *others: Value) -> bool:
    if not others:
        raise CallError("missing argument for comparison")
    return any(_equal(one, other) for other in others)


def _ordered(one: Value, other: Value) -> str:
    """Check that two values have an order, and return their kind."""
    first, second = _comparable_kind(one), _comparable_kind(other)
    if first not in _BASIC or second not in _BASIC:
        raise CallError("invalid type for comparison")
    if first != second:
        raise CallError(f"incompatible types for comparison: {type_name(one)} and {type_name(other)}")
    if first in (values.BOOL, values.COMPLEX):
        raise CallError("invalid type for comparison")
    return first


def _less(one: Value, other: Value) -> bool:
    if _ordered(one, other) == values.STRING and not (one.isascii() and other.isascii()):
        return to_bytes(one) < to_bytes(other)
    return bool(one < other)


def _le(one: Value, other: Value) -> bool:
    return _less(one, other) or bool(one == other)


# --- parts of values --------------------------------------------------------------------------------------------


def _index_number(index: Value, size: int) -> int:
    if index is None:
        raise CallError("cannot index slice/array with nil")
    if type(index) not in (int, Uint8):
        raise CallError(f"cannot index slice/array with type {type_name(index)}")
    if not 0 <= index <= size:
        raise CallError(f"index out of range: {index}")
    return int(index)


def _index(item: Value, *indexes: Value) -> Value:
    if item is None:
        raise CallError("index of untyped nil")
    for index in indexes:
        if type(item) is dict:
            if index is None:
                raise CallError("value is nil; should be of type string")
            if type(index) is not str:
                raise CallError(f"value has type {type_name(index)}; should be string")
            item = item.get(index)
        elif type(item) is list:
            number = _index_number(index, len(item))
            if number == len(item):
                raise CallError("reflect: slice index out of range")
            item = item[number]
        elif type(item) is str:
            raw = to_bytes(item)
            number = _index_number(index, len(raw))
            if number == len(raw):
                raise CallError("reflect: string index out of range")
            item = Uint8(raw[number])
        elif item is None:
            raise CallError("index of nil pointer")
        else:
            raise CallError(f"can't index item of type {type_name(item)}")
    return item


def _slice(item: Value, *indexes: Value) -> Value:
    if item is None:
        raise CallError("slice of untyped nil")
    if len(indexes) > 3:
        raise CallError(f"too many slice indexes: {len(indexes)}")
    if type(item) is str:
        if len(indexes) == 3:
            raise CallError("cannot 3-index slice a string")
    elif type(item) is not list:
        raise CallError(f"can't slice item of type {type_name(item)}")
    sequence = to_bytes(item) if type(item) is str else item
    bounds = [0, len(sequence), len(sequence)]
    for place, index in enumerate(indexes):
        bounds[place] = _index_number(index, len(sequence))
    if bounds[0] > bounds[1]:
        raise CallError(f"invalid slice index: {bounds[0]} > {bounds[1]}")
    if bounds[1] > bounds[2]:
        raise CallError(f"invalid slice index: {bounds[1]} > {bounds[2]}")
    part = sequence[bounds[0] : bounds[1]]
    return from_bytes(part) if isinstance(part, bytes) else part


def _len(item: Value) -> int:
    if type(item) is str:
        return byte_length(item)
    if type(item) in (dict, list):
        return len(item)
    if item is None:
        raise CallError("len of nil pointer")
    raise CallError(f"len of type {type_name(item)}")


def _call(function: Value, *_arguments: Value) -> Value:
    """Raise Go's error for `call`: values are data, never functions."""
    if function is None:
        raise CallError("call of nil")
    raise CallError(f"non-function {_reflected(function)} of type {type_name(function)}")


def _reflected(value: Value) -> str:
    """Return the name that Go's reflection gives a value."""
    return shortened(value) if type(value) is str else f"<{type_name(value)} Value>"


# --- text -------------------------------------------------------------------------------------------------------


def _escapable(arguments: tuple[Value, ...]) -> str:
    """Return the text that html, js and urlquery escape. nil is shown as in printed values."""
    return fmt.sprint(["<no value>" if value is None else value for value in arguments])


_HTML: Final = str.maketrans({"\0": "\ufffd", '"': "&#34;", "'": "&#39;", "&": "&amp;", "<": "&lt;", ">": "&gt;"})
_JS_SPECIAL: Final = re.compile("[\\\\'\"<>&=\0-\x1f\x80-\U0010ffff]")
_JS: Final = {"\\": "\\\\", "'": "\\'", '"': '\\"'}


def _js_escape(match: re.Match[str]) -> str:
    char = match[0]
    if char in _JS:
        return _JS[char]
    if ord(char) >= 0x80 and char.isprintable():
        return char
    # A byte that is no UTF-8 is U+FFFD, which is printable.
    return "\ufffd" if 0xD800 <= ord(char) <= 0xDFFF else f"\\u{ord(char):04X}"


# --- Tinkerbell -------------------------------------------------------------------------------------------------


_LETTERED: Final = ("/dev/sd", "/dev/vd", "/dev/xvd", "/dev/hd")
_DIGITS: Final = tuple("0123456789")


def format_partition(device: str, partition: int) -> str:
    """Return the path of a partition, as Linux and udev name it.

    `/dev/sda` 1 -> `/dev/sda1`, `/dev/nvme0n1` 1 -> `/dev/nvme0n1p1`, `/dev/disk/by-id/x` 1 ->
    `/dev/disk/by-id/x-part1`. The kernel inserts a p if the disk's name ends with a digit (nvme, mmcblk, loop, md,
    nbd).
    """
    if device.startswith("/dev/disk/"):
        return f"{device}-part{partition}"
    if device.startswith(_LETTERED):
        return f"{device}{partition}"
    if device.startswith("/dev/nvme") or device[-1:] in _DIGITS:
        return f"{device}p{partition}"
    return f"{device}{partition}"


def netmask_to_prefix_length(netmask: str) -> str:
    """Return the prefix length of a netmask: `255.255.255.0` -> `24`; 0 if its ones are not all before its zeros, as in
    Go.

    Raises CallError if the text is no IPv4 address.
    """
    try:
        bits = int(ipaddress.IPv4Address(netmask))
    except ValueError:
        raise CallError(f"invalid netmask format: {shortened(netmask)}") from None
    ones = bits.bit_count()
    return str(ones if bits == (1 << 32) - (1 << (32 - ones)) else 0)


_OWN: Final = table(
    Function("and", _and_or, (ANY,), ANY),
    Function("or", _and_or, (ANY,), ANY),
    Function("not", lambda value: not value, (ANY,)),
    Function("eq", _eq, (ANY,), ANY),
    Function("ne", lambda one, other: not _equal(one, other), (ANY, ANY)),
    Function("lt", lambda one, other: _less(one, other), (ANY, ANY)),
    Function("le", _le, (ANY, ANY)),
    Function("gt", lambda one, other: not _le(one, other), (ANY, ANY)),
    Function("ge", lambda one, other: not _less(one, other), (ANY, ANY)),
    Function("len", _len, (ANY,)),
    Function("index", _index, (ANY,), ANY),
    Function("slice", _slice, (ANY,), ANY),
    Function("call", _call, (ANY,), ANY),
    Function("print", lambda *arguments: fmt.sprint(arguments), (), ANY),
    Function("printf", lambda template, *arguments: fmt.sprintf(template, arguments), (STRING,), ANY),
    Function("println", lambda *arguments: fmt.sprintln(arguments), (), ANY),
    Function("html", lambda *arguments: _escapable(arguments).translate(_HTML), (), ANY),
    Function("js", lambda *arguments: _JS_SPECIAL.sub(_js_escape, _escapable(arguments)), (), ANY),
    Function("urlquery", lambda *arguments: quote_plus(to_bytes(_escapable(arguments))), (), ANY),
    Function("contains", lambda text, part: part in text, (STRING, STRING)),
    Function("hasPrefix", lambda text, prefix: text.startswith(prefix), (STRING, STRING)),
    Function("hasSuffix", lambda text, suffix: text.endswith(suffix), (STRING, STRING)),
    Function("formatPartition", format_partition, (STRING, INT)),
    Function("netmaskToPrefixLength", netmask_to_prefix_length, (STRING,)),
)

FUNCTIONS: Final[Functions] = {**SPRIG, **YAML, **_OWN}
"""Every function that a template can call."""


# --- Tinkerbell's v1alpha1 --------------------------------------------------------------------------------------------


def _format_partition_v1alpha1(device: str, partition: int) -> str:
    """Return the path of a partition as Tinkerbell writes it: the last character of the disk's name alone decides."""
    if device.startswith("/dev/disk/"):
        return f"{device}-part{partition}"
    return f"{device}p{partition}" if device.endswith(_DIGITS) else f"{device}{partition}"


def _netmask_to_prefix_length_v1alpha1(netmask: str) -> str:
    """Return the prefix length of a netmask, which Go's net.ParseIP also takes as an IPv4-mapped IPv6 address."""
    try:
        address = ipaddress.ip_address(netmask)
    except ValueError:
        raise CallError(f"invalid netmask format: {shortened(netmask)}") from None
    mapped = address if isinstance(address, ipaddress.IPv4Address) else address.ipv4_mapped
    if mapped is None:
        raise CallError(f"netmask must be IPv4: {shortened(netmask)}")
    return netmask_to_prefix_length(str(mapped))


V1ALPHA1_FUNCTIONS: Final[Functions] = {
    **FUNCTIONS,
    **table(
        Function("contains", lambda part, text: part in text, (STRING, STRING)),
        Function("hasPrefix", lambda prefix, text: text.startswith(prefix), (STRING, STRING)),
        Function("hasSuffix", lambda suffix, text: text.endswith(suffix), (STRING, STRING)),
        replace(SPRIG["mustSlice"], name="slice"),
        Function("formatPartition", _format_partition_v1alpha1, (STRING, INT)),
        Function("netmaskToPrefixLength", _netmask_to_prefix_length_v1alpha1, (STRING,)),
        Function("netmaskToCIDR", _netmask_to_prefix_length_v1alpha1, (STRING,)),
    ),
}
"""Every function that a Template of v1alpha1 can call: Sprig's, also where Go or v1alpha2 have the name, and
Tinkerbell's (tink/controller/internal/workflow/template_funcs.go). `netmaskToCIDR` is EKS Anywhere's.
"""
