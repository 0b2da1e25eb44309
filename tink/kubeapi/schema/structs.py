"""Reading JSON into Kubernetes' Go types: the metadata of all objects, and built-in resources as a whole.

A value of a wrong type makes the whole body invalid (400). A null means that the field is absent; in a map or list it
means the zero value of the type (encoding/json, sigs.k8s.io/json). The types come from the schemas of our built-in
resources. Pure: the result is a new value, the input is not changed.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from tink.errors import TinkedgeError
from tink.golang import json_kind
from tink.kubeapi.schema import meta
from tink.kubeapi.schema.shapes import Raw


class MistypedError(TinkedgeError, ValueError):
    """A value does not fit its type. The message contains the path and the expected type."""


def mistyped(path: str, wanted: str, value: Any) -> MistypedError:
    """Return the error for a value of a wrong type."""
    return MistypedError(f"{path}: must be {wanted}, not {json_kind(value)}".removeprefix(": "))


@dataclass(slots=True)
class Reading:
    """The state of reading one object: the paths of unknown fields, and the nesting."""

    unknown: list[str] = field(default_factory=list)
    depth: int = 0
    silent: int = 0
    """Greater than 0 where unknown fields are dropped without a report."""


@dataclass(frozen=True, slots=True)
class GoType:
    """A Go type: `read` reads a value (value, path, reading), `zero` returns the value for a null in a map or list."""

    read: Callable[[Any, str, Reading], Any]
    zero: Callable[[], Any]


def _scalar(words: str, holds: Callable[[Any], bool], zero: Any) -> GoType:
    def read(value: Any, path: str, _: Reading) -> Any:
        if not holds(value):
            raise mistyped(path, words, value)
        return value

    return GoType(read, lambda: zero)


def _is_int(bits: int) -> Callable[[Any], bool]:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


_STRING = _scalar("a string", lambda value: isinstance(value, str), "")
_BOOL = _scalar("a boolean", lambda value: isinstance(value, bool), False)
_INT32 = _scalar("an integer of 32 bits", _is_int(32), 0)
_INT64 = _scalar("an integer of 64 bits", _is_int(64), 0)
_NUMBER = _scalar("a number", lambda value: isinstance(value, int | float) and not isinstance(value, bool), 0)
_ANY = GoType(lambda value, *_: value, lambda: None)


def _read_bytes(value: Any, path: str, _: Reading) -> str:
    if not isinstance(value, str):
        raise mistyped(path, "a string", value)
    try:
        base64.b64decode(value.encode("ascii"), validate=True)
    except ValueError as error:
        raise MistypedError(f"{path}: is not base64") from error
    return value


_BYTES = GoType(_read_bytes, lambda: "")

# --- times ---

_RFC_3339 = re.compile(r"(\d{4}-\d\d-\d\dT)(\d{1,2})(:\d\d:\d\d)([.,]\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)
_MAX_TIME_LENGTH = 64
"""Maximum length of the text of a time."""


@lru_cache(4096)  # an object is written many times with the same times
def _rewritten(text: str, *, micro: bool) -> str:
    """Convert a time to UTC, with microseconds or without. Raises ValueError."""
    found = _RFC_3339.fullmatch(text)
    if found is None or (micro and len(found[4] or "") != len(".000000")):
        raise ValueError
    day, hour, clock, fraction, zone = found.groups(default="")
    when = datetime.fromisoformat(f"{day}{hour.zfill(2)}{clock}{fraction.replace(',', '.')[:7]}{zone}")
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")


def _time(*, micro: bool) -> GoType:
    form = "2006-01-02T15:04:05.000000Z" if micro else "2006-01-02T15:04:05Z"

    def read(value: Any, path: str, _: Reading) -> str:
        if isinstance(value, str) and len(value) <= _MAX_TIME_LENGTH:
            try:
                return _rewritten(value, micro=micro)
            except (ValueError, OverflowError):
                pass
        raise MistypedError(f"{path}: is not a time such as {form}")

    return GoType(read, lambda: None)


_TIME, _MICRO_TIME = _time(micro=False), _time(micro=True)
MICRO_TIMES = ("eventTime", "lastObservedTime", "acquireTime", "renewTime")
"""The fields with microseconds (metav1.MicroTime)."""

# --- lists, maps, structs ---


def list_of(item: GoType) -> GoType:
    """Return the type of lists of a type."""

    def read(value: Any, path: str, reading: Reading) -> list[Any]:
        if not isinstance(value, list):
            raise mistyped(path, "a list", value)
        return [
            item.zero() if one is None else item.read(one, f"{path}[{index}]", reading)
            for index, one in enumerate(value)
        ]

    return GoType(read, list)


def map_of(item: GoType) -> GoType:
    """Return the type of maps to a type."""

    def read(value: Any, path: str, reading: Reading) -> Raw:
        if not isinstance(value, dict):
            raise mistyped(path, "an object", value)
        return {
            key: item.zero() if one is None else item.read(one, f"{path}.{key}", reading) for key, one in value.items()
        }

    return GoType(read, dict)


def struct_of(fields: Mapping[str, GoType]) -> GoType:
    """Return the type of objects with these fields."""

    def read(value: Any, path: str, reading: Reading) -> Raw:
        if not isinstance(value, dict):
            raise mistyped(path, "an object", value)
        prefix = f"{path}." if path else ""
        made: Raw = {}
        for key, one in value.items():
            known = fields.get(key)
            if known is None:
                if not reading.silent:
                    reading.unknown.append(f"{prefix}{key}")
            elif one is not None:
                made[key] = known.read(one, f"{prefix}{key}", reading)
        return made

    return GoType(read, dict)


def type_of(schema: Mapping[str, Any], name: str = "") -> GoType:
    """Return the type of a field of one of Kubernetes' own types, from its schema."""
    if name == "metadata":
        return _OBJECT_META
    match schema.get("type"), schema.get("format", ""):
        case "string", "date-time":
            return _MICRO_TIME if name in MICRO_TIMES else _TIME
        case "string", "byte":
            return _BYTES
        case "string", _:
            return _STRING
        case "boolean", _:
            return _BOOL
        case "integer", form:
            return _INT32 if form == "int32" else _INT64
        case "number", _:
            return _NUMBER
        case "array", _:
            return list_of(type_of(schema.get("items") or {}))
        case "object", _ if "properties" in schema:
            return struct_of({key: type_of(child, key) for key, child in schema["properties"].items()})
        case "object", _ if isinstance(schema.get("additionalProperties"), Mapping):
            return map_of(type_of(schema["additionalProperties"]))
    return _ANY


_ENTRY = struct_of(
    {
        **dict.fromkeys(("apiVersion", "fieldsType", "manager", "operation", "subresource"), _STRING),
        "time": _TIME,
        "fieldsV1": _ANY,
    }
)
_OBJECT_META = struct_of(
    {key: type_of(child) for key, child in meta.META_SCHEMA["properties"].items()} | {"managedFields": list_of(_ENTRY)}
)


@dataclass(frozen=True, slots=True)
class Struct:
    """The type of a whole body."""

    kind: GoType

    def read(self, value: Any, path: str = "") -> tuple[Raw, list[str]]:
        """Read the value at a path. Return it as the Go type holds it, and the paths of unknown fields.

        Raises MistypedError.
        """
        reading = Reading()
        return self.kind.read(value, path, reading), reading.unknown


METADATA = Struct(_OBJECT_META)
"""The metadata of custom resources, which are read separately from the rest."""


def struct(openapi: Mapping[str, Any]) -> Struct:
    """Return the type of a built-in resource from the schema of its objects."""
    properties = {**(openapi.get("properties") or {}), "apiVersion": {"type": "string"}, "kind": {"type": "string"}}
    return Struct(type_of({"type": "object", "properties": properties | {"metadata": {}}}))


def read_metadata(new: Raw) -> list[str]:
    """Read the metadata of a custom resource in place. Return the paths of unknown fields. Raises MistypedError."""
    new["metadata"], unknown = METADATA.read(new["metadata"], "metadata")
    return unknown
