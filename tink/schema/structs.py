"""Objects that Kubernetes reads into Go types: the metadata of everything, and the whole of its built-in resources.

A value of a wrong type makes such a body no object at all (400), whatever else is right; a null is the same as nothing,
and in a map or list the same as the empty value of its type. So says Go's decoder (encoding/json, sigs.k8s.io/json),
with words that users find in forums, which is why they are the same here. The types come from the schemas of our
built-in resources; their names follow Kubernetes' own rule (`EventSeries` is the `series` of an Event), with the few
exceptions that are listed. Pure: a new value comes out, what went in stays.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from tink.golang import json_kind
from tink.schema import meta
from tink.schema.values import Raw


class MistypedError(ValueError):
    """A value that does not fit its Go type; the message is Go's."""


@dataclass(frozen=True, slots=True)
class _At:
    """Where a value stands: the Go type that it is in, and the path of names to it."""

    struct: str
    path: str

    def refuse(self, value: Any, wanted: str) -> MistypedError:
        """Say that the value does not fit."""
        where = f"Go struct field {self.struct}.{self.path}" if self.path else "Go value"
        return MistypedError(f"json: cannot unmarshal {json_kind(value)} into {where} of type {wanted}")


Read = Callable[[Any, _At, str, list[str]], Any]
"""Reads a value: at, its own path for unknown fields, and the list of these."""


@dataclass(frozen=True, slots=True)
class _Type:
    """A Go type: its name, how it is read, and what a null in a map or list of it means."""

    name: str
    read: Read
    zero: Callable[[], Any]


def _scalar(name: str, holds: Callable[[Any], bool], zero: Any) -> _Type:
    def read(value: Any, at: _At, _: str, __: list[str]) -> Any:
        if not holds(value):
            if isinstance(value, int | float) and not isinstance(value, bool) and name.startswith("int"):
                raise MistypedError(str(at.refuse(value, name)).replace("number", f"number {value}", 1))
            raise at.refuse(value, name)
        return value

    return _Type(name, read, lambda: zero)


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_int(bits: int) -> Callable[[Any], bool]:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


_STRING = _scalar("string", _is_string, "")
_UID = _scalar("types.UID", _is_string, "")
_BOOL = _scalar("bool", _is_bool, False)
_INT32 = _scalar("int32", _is_int(32), 0)
_INT64 = _scalar("int64", _is_int(64), 0)
_ANY = _Type("interface {}", lambda value, *_: value, lambda: None)


def _read_bytes(value: Any, at: _At, _: str, __: list[str]) -> str:
    if not isinstance(value, str):
        raise at.refuse(value, "[]uint8")
    try:
        base64.b64decode(value.encode("ascii"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise MistypedError(f"illegal base64 data at input byte {_first_bad(value)}") from error
    return value


def _first_bad(text: str) -> int:
    """Say where base64 text stops making sense, in bytes."""
    for index, letter in enumerate(text):
        if not (letter.isascii() and (letter.isalnum() or letter in "+/")):
            return index
    return len(text) // 4 * 4


_BYTES = _Type("[]uint8", _read_bytes, lambda: "")

# --- times ---

_CLOCK: tuple[tuple[str, str, int, int], ...] = (
    ("2006", r"\d{4}", 0, 9999),
    ("-", "-", 0, 0),
    ("01", r"\d{2}", 1, 12),
    ("-", "-", 0, 0),
    ("02", r"\d{2}", 1, 31),
    ("T", "T", 0, 0),
    ("15", r"\d{1,2}", 0, 23),
    (":", ":", 0, 0),
    ("04", r"\d{2}", 0, 59),
    (":", ":", 0, 0),
    ("05", r"\d{2}", 0, 59),
)
_NAMES = {"01": "month", "02": "day", "15": "hour", "04": "minute", "05": "second"}
_ZONE = re.compile(r"Z|[+-]\d\d:\d\d")


_LONGEST_TIME = 64
"""Longer texts are no times that anybody writes twice, and are not kept."""


def _parse_time(text: str, layout: str, fraction: str) -> datetime:
    """Read a time as Go's time.Parse does. Raises MistypedError with its words."""

    def cannot(rest: str, element: str) -> MistypedError:
        return MistypedError(f'parsing time "{text}" as "{layout}": cannot parse "{rest}" as "{element}"')

    at = 0
    for element, pattern, low, high in _CLOCK:
        found = re.compile(pattern).match(text, at)
        if found is None:
            raise cannot(text[at:], element)
        if high and not low <= int(found[0]) <= high:
            raise MistypedError(f'parsing time "{text}": {_NAMES.get(element, "year")} out of range')
        at = found.end()
    part = re.compile(fraction).match(text, at)
    if part is None:
        raise cannot(text[at:], ".000000")
    zone = _ZONE.match(text, part.end())
    if zone is None:
        raise cannot(text[part.end() :], "Z07:00")
    if zone.end() != len(text):
        raise MistypedError(f'parsing time "{text}": extra text: "{text[zone.end() :]}"')
    try:
        return datetime.fromisoformat(f"{text[: part.end()].replace(',', '.')[:26]}{zone[0]}").astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise MistypedError(f'parsing time "{text}": day out of range') from error


def _time(layout: str, fraction: str, written: str) -> Read:
    def rewritten(text: str) -> str:
        return _parse_time(text, layout, fraction).strftime(written)

    # An object is written again and again with the times that it had before.
    remembered = lru_cache(4096)(rewritten)

    def read(value: Any, *_: object) -> str:
        if not isinstance(value, str):
            raise MistypedError(f"json: cannot unmarshal {json_kind(value)} into Go value of type string")
        return remembered(value) if len(value) <= _LONGEST_TIME else rewritten(value)

    return read


_TIME = _Type("v1.Time", _time("2006-01-02T15:04:05Z07:00", r"([.,]\d+)?", "%Y-%m-%dT%H:%M:%SZ"), lambda: None)
_MICRO_TIME = _Type(
    "v1.MicroTime", _time("2006-01-02T15:04:05.000000Z07:00", r"\.\d{6}", "%Y-%m-%dT%H:%M:%S.%fZ"), lambda: None
)

# --- lists, maps, structs ---


def _list(item: _Type) -> _Type:
    name = f"[]{item.name}"

    def read(value: Any, at: _At, own: str, unknown: list[str]) -> list[Any]:
        if not isinstance(value, list):
            raise at.refuse(value, name)
        return [
            item.zero() if one is None else item.read(one, at, f"{own}[{index}]", unknown)
            for index, one in enumerate(value)
        ]

    return _Type(name, read, list)


def _map(item: _Type) -> _Type:
    name = f"map[string]{item.name}"

    def read(value: Any, at: _At, own: str, unknown: list[str]) -> Raw:
        if not isinstance(value, dict):
            raise at.refuse(value, name)
        return {
            key: item.zero() if one is None else item.read(one, at, f"{own}.{key}", unknown)
            for key, one in value.items()
        }

    return _Type(name, read, dict)


def _struct(package: str, name: str, fields: Mapping[str, _Type]) -> _Type:
    go_name = f"{package}.{name}"

    def read(value: Any, at: _At, own: str, unknown: list[str]) -> Raw:
        if not isinstance(value, dict):
            raise at.refuse(value, go_name)
        prefix, dot = (f"{at.path}.", f"{own}.") if at.path else ("", f"{own}." if own else "")
        made: Raw = {}
        for key, one in value.items():
            field = fields.get(key)
            if field is None:
                unknown.append(f"{dot}{key}")
            elif one is not None:
                made[key] = field.read(one, _At(name, f"{prefix}{key}"), f"{dot}{key}", unknown)
        return made

    return _Type(go_name, read, dict)


_REFERENCES = {"involvedObject", "related"}
_SINGULAR = {"conditions": "Condition"}


def _type_of(schema: Mapping[str, Any], owner: str, field: str, package: str) -> _Type:
    """Give the Go type of a field of one of Kubernetes' own types, from its schema."""
    if field == "metadata":
        return _OBJECT_META
    match schema.get("type"), schema.get("format", ""):
        case "string", "date-time":
            return _MICRO_TIME if field in MICRO_TIMES else _TIME
        case "string", "byte":
            return _BYTES
        case "string", _:
            return _UID if field == "uid" else _STRING
        case "boolean", _:
            return _BOOL
        case "integer", form:
            return _INT32 if form == "int32" else _INT64
        case "array", _:
            name = _SINGULAR.get(field, field)
            return _list(_type_of(schema.get("items") or {}, owner, name, package))
        case "object", _ if "properties" in schema:
            name = "ObjectReference" if field in _REFERENCES else f"{owner}{field[:1].upper()}{field[1:]}"
            return _struct_of(schema, name, package)
        case "object", _ if isinstance(schema.get("additionalProperties"), Mapping):
            return _map(_type_of(schema["additionalProperties"], owner, field, package))
    return _ANY


MICRO_TIMES = ("eventTime", "lastObservedTime", "acquireTime", "renewTime")
"""Times that are kept to the microsecond (metav1.MicroTime)."""


def _struct_of(schema: Mapping[str, Any], name: str, package: str) -> _Type:
    owner = name.removesuffix("Reference")
    fields = {key: _type_of(child, owner, key, package) for key, child in (schema.get("properties") or {}).items()}
    return _struct(package, name, fields)


_META = {
    key: _type_of(child, "", "", "v1")
    for key, child in meta.META_SCHEMA["properties"].items()
    if key not in ("uid", "ownerReferences", "managedFields")
}
_OWNER = _struct(
    "v1",
    "OwnerReference",
    {
        key: _UID if key == "uid" else _type_of(child, "", "", "v1")
        for key, child in meta.OWNER_SCHEMA["properties"].items()
    },
)
_ENTRY = _struct(
    "v1",
    "ManagedFieldsEntry",
    {
        **dict.fromkeys(("apiVersion", "fieldsType", "manager", "subresource"), _STRING),
        "operation": _scalar("v1.ManagedFieldsOperationType", _is_string, ""),
        "time": _TIME,
        "fieldsV1": _ANY,
    },
)
_OBJECT_META = _struct(
    "v1", "ObjectMeta", _META | {"uid": _UID, "ownerReferences": _list(_OWNER), "managedFields": _list(_ENTRY)}
)


class Struct:
    """A Go type as a whole, to read bodies with."""

    def __init__(self, kind: _Type, name: str) -> None:
        self._type = kind
        self._name = name

    def read(self, value: Any) -> tuple[Raw, list[str]]:
        """Give the value as the type holds it, and the paths of unknown fields. Raises MistypedError."""
        unknown: list[str] = []
        return self._type.read(value, _At(self._name, ""), "", unknown), unknown


METADATA = Struct(_OBJECT_META, "ObjectMeta")
"""The metadata of custom resources, which are read apart from the rest."""


def struct(kind: str, openapi: Mapping[str, Any], package: str = "v1") -> Struct:
    """Give the Go type of a built-in resource from the schema of its objects."""
    fields = {**(openapi.get("properties") or {}), "apiVersion": {"type": "string"}, "kind": {"type": "string"}}
    return Struct(_struct_of({"properties": fields | {"metadata": {}}}, kind, package), kind)
