"""The functions `toYaml` and `fromYaml`, as Tinkerbell's controller has them (sigs.k8s.io/yaml, go-yaml v2)."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from datetime import date
from functools import cmp_to_key
from typing import Any, Final

import yaml

from tink.api.yaml_values import plain_scalar
from tink.golang.strconv import format_float
from tink.golang.values import CallError, Value
from tink.template.signatures import ANY, STRING, Function, Functions, table
from tink.template.sprig import SPRIG

_DATE: Final = re.compile(
    r"(\d{4})-(\d{1,2})-(\d{1,2})"
    r"([Tt ](\d{1,2}):(\d{1,2}):(\d{1,2})([.,]\d{1,9})?(?P<zone>Z|[-+]\d\d:\d\d)?)?"
)
_BASE_60: Final = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
_LARGEST: Final = 2**64


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
    elif isinstance(value, float) or not -_LARGEST / 2 <= value < _LARGEST:
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
    from tink.api.yaml import YamlError, read  # with pydantic, which other templates do not need

    if not text:
        raise CallError("fromYaml: empty YAML input")
    try:
        value = next(read(text, []), None)
    except YamlError as error:
        where = f"line {error.line}: " if error.line else ""
        raise CallError(f"fromYaml: {where}{error}") from None
    return SPRIG["mustFromJson"].call(json.dumps(value))


YAML: Final[Functions] = table(Function("toYaml", to_yaml, (ANY,)), Function("fromYaml", from_yaml, (STRING,)))
