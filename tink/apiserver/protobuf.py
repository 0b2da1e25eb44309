"""Kubernetes' protobuf for the built-in resources: what `kubectl create namespace` sends, and nothing else can read.

kubectl speaks JSON about resources that it learns from discovery, but writes those that it was compiled with in
Kubernetes' own protobuf envelope (k8s.io/apimachinery, pkg/runtime/serializer/protobuf). Only requests are read;
answers are JSON, which every client takes. The tables hold the field numbers of `generated.proto` of
k8s.io/apimachinery and k8s.io/api; unknown fields are passed over, as protobuf demands. Pure.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

MAGIC = b"k8s\x00"
MAX_DEPTH = 16


class ProtobufError(ValueError):
    """The body is not what the envelope says, or of a kind that is not known here."""


@dataclass(frozen=True, slots=True)
class _Field:
    """A field: its JSON name and type; `message` describes nested messages, and the values of maps."""

    name: str
    type: str = "string"
    repeated: bool = False
    message: dict[int, _Field] | None = None


def _texts(*names: str) -> dict[int, _Field]:
    return {number: _Field(name) for number, name in enumerate(names, 1)}


_OWNER = {
    1: _Field("kind"),
    3: _Field("name"),
    4: _Field("uid"),
    5: _Field("apiVersion"),
    6: _Field("controller", "bool"),
    7: _Field("blockOwnerDeletion", "bool"),
}
_META = {
    **_texts("name", "generateName", "namespace", "selfLink", "uid", "resourceVersion"),
    7: _Field("generation", "int"),
    8: _Field("creationTimestamp", "time"),
    9: _Field("deletionTimestamp", "time"),
    10: _Field("deletionGracePeriodSeconds", "int"),
    11: _Field("labels", "map"),
    12: _Field("annotations", "map"),
    13: _Field("ownerReferences", "message", repeated=True, message=_OWNER),
    14: _Field("finalizers", repeated=True),
}
_METADATA = _Field("metadata", "message", message=_META)
_REFERENCE = _texts("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")

_KINDS: dict[tuple[str, str], dict[int, _Field]] = {
    ("v1", "Namespace"): {
        1: _METADATA,
        2: _Field("spec", "message", message={1: _Field("finalizers", repeated=True)}),
        3: _Field("status", "message", message={1: _Field("phase")}),
    },
    ("v1", "ConfigMap"): {
        1: _METADATA,
        2: _Field("data", "map"),
        3: _Field("binaryData", "bytes-map"),
        4: _Field("immutable", "bool"),
    },
    ("v1", "Secret"): {
        1: _METADATA,
        2: _Field("data", "bytes-map"),
        3: _Field("type"),
        4: _Field("stringData", "map"),
        5: _Field("immutable", "bool"),
    },
    ("v1", "Event"): {
        1: _METADATA,
        2: _Field("involvedObject", "message", message=_REFERENCE),
        3: _Field("reason"),
        4: _Field("message"),
        5: _Field("source", "message", message=_texts("component", "host")),
        6: _Field("firstTimestamp", "time"),
        7: _Field("lastTimestamp", "time"),
        8: _Field("count", "int"),
        9: _Field("type"),
        10: _Field("eventTime", "time"),
        11: _Field("series", "message", message={1: _Field("count", "int"), 2: _Field("lastObservedTime", "time")}),
        12: _Field("action"),
        13: _Field("related", "message", message=_REFERENCE),
        14: _Field("reportingComponent"),
        15: _Field("reportingInstance"),
    },
    ("coordination.k8s.io/v1", "Lease"): {
        1: _METADATA,
        2: _Field(
            "spec",
            "message",
            message={
                1: _Field("holderIdentity"),
                2: _Field("leaseDurationSeconds", "int"),
                3: _Field("acquireTime", "time"),
                4: _Field("renewTime", "time"),
                5: _Field("leaseTransitions", "int"),
                6: _Field("strategy"),
                7: _Field("preferredHolder"),
            },
        ),
    },
}
_DELETE_OPTIONS = {
    1: _Field("gracePeriodSeconds", "int"),
    2: _Field("preconditions", "message", message=_texts("uid", "resourceVersion")),
    3: _Field("orphanDependents", "bool"),
    4: _Field("propagationPolicy"),
    5: _Field("dryRun", repeated=True),
}
_ENVELOPE = {1: _Field("typeMeta", "message", message=_texts("apiVersion", "kind")), 2: _Field("raw", "raw")}


def decode(raw: bytes) -> dict[str, Any]:
    """Read an enveloped object. Raises ProtobufError."""
    if not raw.startswith(MAGIC):
        raise ProtobufError("it does not begin with the mark of Kubernetes' protobuf")
    envelope = _message(raw[len(MAGIC) :], _ENVELOPE, 0)
    head = envelope.get("typeMeta") or {}
    api_version, kind = head.get("apiVersion", ""), head.get("kind", "")
    fields = _DELETE_OPTIONS if kind == "DeleteOptions" else _KINDS.get((api_version, kind))
    if fields is None:
        raise ProtobufError(f"{api_version} {kind} is not read as protobuf here; send it as application/json")
    return {"apiVersion": api_version, "kind": kind, **_message(envelope.get("raw", b""), fields, 0)}


def _message(raw: bytes, fields: dict[int, _Field], depth: int) -> dict[str, Any]:
    if depth > MAX_DEPTH:
        raise ProtobufError("it is nested too deep")
    out: dict[str, Any] = {}
    for number, value in _read(raw):
        field = fields.get(number)
        if field is None:
            continue
        made = _value(field, value, depth)
        if field.type in ("map", "bytes-map"):
            out.setdefault(field.name, {}).update(made)
        elif field.repeated:
            out.setdefault(field.name, []).append(made)
        elif made not in ("", None):  # Go writes empty texts and times of required fields; in JSON they are absent
            out[field.name] = made
    return out


def _value(field: _Field, value: bytes | int, depth: int) -> Any:
    if field.type in ("int", "bool"):
        if not isinstance(value, int):
            raise ProtobufError(f"{field.name} has the wrong wire type")
        return bool(value) if field.type == "bool" else value - (1 << 64) if value >= 1 << 63 else value
    if not isinstance(value, bytes):
        raise ProtobufError(f"{field.name} has the wrong wire type")
    match field.type:
        case "raw":
            return value
        case "time":
            return _time(value)
        case "map" | "bytes-map":
            entry = _message(value, {1: _Field("key"), 2: _Field("value", "raw")}, depth + 1)
            content = entry.get("value", b"")
            text = base64.b64encode(content).decode() if field.type == "bytes-map" else _text(content)
            return {entry.get("key", ""): text}
        case "message":
            return _message(value, field.message or {}, depth + 1)
    return _text(value)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise ProtobufError("a text is not UTF-8") from error


def _time(value: bytes) -> str | None:
    """Read Time and MicroTime: seconds since 1970 and nanoseconds. No fields: no time."""
    parts = _message(value, {1: _Field("seconds", "int"), 2: _Field("nanos", "int")}, MAX_DEPTH)
    if "seconds" not in parts:
        return None
    try:
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
            seconds=parts["seconds"], microseconds=parts.get("nanos", 0) // 1000
        )
    except OverflowError as error:
        raise ProtobufError("a time is out of range") from error
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if at.microsecond else "%Y-%m-%dT%H:%M:%SZ")


def _read(raw: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Take a message apart into field numbers and values (protobuf.dev, "Encoding")."""
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(raw, at)
            yield number, value
            continue
        if wire == 2:
            size, at = _varint(raw, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ProtobufError(f"wire type {wire} is not in use")
        if at + size > len(raw):
            raise ProtobufError("it ends in the middle of a field")
        yield number, raw[at : at + size]
        at += size


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(raw):
            raise ProtobufError("it ends in the middle of a number")
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & ((1 << 64) - 1), at
    raise ProtobufError("a number is too long")
