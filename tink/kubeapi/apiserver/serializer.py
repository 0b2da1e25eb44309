"""Objects as bytes: JSON, YAML, and Kubernetes' protobuf. Pure.

    load_json                      JSON as Go's decoder reads it
    dump_yaml                      as `kubectl get -o yaml` shows it
    load_protobuf, dump_protobuf   the envelope in which clients write built-in types
                                   (k8s.io/apimachinery, pkg/runtime/serializer/protobuf)

`messages.txt` has one line for each protobuf message, in a notation close to the `generated.proto` files of k8s.io/api
and k8s.io/apimachinery: `<number> <field> <type>`, where the type is a message or one of

    string int bool bytes     as in protobuf; bytes are base64 in JSON
    time micro                seconds and nanoseconds; RFC 3339 text with no or six decimals in JSON
    map bytesmap listmap      string to string, to bytes, to a list of strings
    json                      bytes that hold JSON

followed by `*` if it is repeated, `?` if an empty value differs from none (a pointer in Go), and `+` if the fields of
the message are inlined in JSON. Unknown fields are ignored, as protobuf demands.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import yaml

from tink.errors import TinkedgeError

_SURROGATES = re.compile("[\ud800-\udfff]")


class BodyError(TinkedgeError, ValueError):
    """A body cannot be read as JSON, YAML or protobuf, or not be written as protobuf. The message says why."""


def load_json(raw: bytes) -> Any:
    """Parse JSON. Raises BodyError. If orjson refuses a text, the standard library parses it once more, because Go's
    decoder accepts some of it: bytes that are no UTF-8 and halves of surrogate pairs become U+FFFD."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        refused = error
        if raw.isascii() and b"\\u" not in raw:
            raise BodyError(str(error)) from error
    try:
        # orjson then still refuses infinite numbers and too deep nesting.
        return orjson.loads(json.dumps(_replace_surrogates(json.loads(raw.decode("utf-8", "replace")))))
    except (ValueError, RecursionError):
        raise BodyError(str(refused)) from refused


def _replace_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATES.sub("�", value)
    if isinstance(value, dict):
        return {_replace_surrogates(key): _replace_surrogates(item) for key, item in value.items()}
    return [_replace_surrogates(item) for item in value] if isinstance(value, list) else value


def duplicate_fields(raw: bytes, most: int = 100) -> list[str]:
    """Return the paths of duplicate fields in the order of the text: `spec.actions[0].name`. `raw` is JSON."""
    seen_twice = False

    def pairs(items: list[tuple[str, Any]]) -> list[tuple[str, Any]] | dict[str, Any]:
        nonlocal seen_twice
        made = dict(items)
        if len(made) == len(items):
            return made
        seen_twice = True
        return _Pairs(items)

    value = json.loads(raw.decode("utf-8", "replace"), object_pairs_hook=pairs)
    return list(islice(_twice(value, ""), most)) if seen_twice else []


class _Pairs(list[tuple[str, Any]]):
    """An object with duplicate fields."""


def _twice(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict | _Pairs):
        seen: set[str] = set()
        for key, item in value.items() if isinstance(value, dict) else value:
            at = f"{path}.{key}" if path else key
            if key in seen:
                yield at
            seen.add(key)
            yield from _twice(item, at)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _twice(item, f"{path}[{index}]")


class _Dumper(yaml.CSafeDumper):
    """Writes every list and map in full, without aliases for equal ones."""

    def ignore_aliases(self, _data: object, /) -> bool:
        """Return True: no value is shared."""
        return True


def dump_yaml(body: bytes) -> bytes:
    """Return JSON as YAML with sorted keys, as `kubectl get -o yaml` shows it."""
    return yaml.dump(orjson.loads(body), Dumper=_Dumper, default_flow_style=False, allow_unicode=True, encoding="utf-8")


def dump_yaml_list(head: bytes) -> tuple[bytes, bytes]:
    """Return the YAML before and after the items of a list, whose items `dump_yaml_item` writes. `head` is the list
    without items, as JSON. A long list can so be written while it is read."""
    made = orjson.loads(head)
    made.pop("items", None)
    before = {key: made.pop(key) for key in sorted(made) if key < "items"}
    return dump_yaml(orjson.dumps(before)) + b"items:", dump_yaml(orjson.dumps(made))


def dump_yaml_item(body: bytes, *, first: bool) -> bytes:
    """Return one item of a list as YAML."""
    return (b"\n" if first else b"") + dump_yaml(b"[" + body + b"]")


MAX_ENVELOPE = 16  # Maximum nesting of messages

_MESSAGES_TEXT = Path(__file__).with_name("messages.txt").read_text(encoding="ascii")
_GROUPS = {
    "v1": ("Namespace", "ConfigMap", "Secret", "Event", "Status"),
    "coordination.k8s.io/v1": ("Lease",),
    "admissionregistration.k8s.io/v1": ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"),
    "authorization.k8s.io/v1": (
        "SelfSubjectAccessReview",
        "SubjectAccessReview",
        "LocalSubjectAccessReview",
        "SelfSubjectRulesReview",
    ),
    "authentication.k8s.io/v1": ("SelfSubjectReview", "TokenReview"),
}
SCALARS = frozenset(("string", "int", "bool", "bytes", "time", "micro", "map", "bytesmap", "listmap", "json", "raw"))


@dataclass(frozen=True, slots=True)
class MessageField:
    """A field of a message: its name in JSON and its type (one of SCALARS, or a message)."""

    number: int
    name: str
    type: str
    repeated: bool = False
    pointer: bool = False
    inline: bool = False


def _parse_field(text: str) -> MessageField:
    number, name, kind = text.split()
    return MessageField(
        int(number), name, kind.rstrip("*?+"), kind.endswith("*"), kind.endswith("?"), kind.endswith("+")
    )


MESSAGES = {
    name: tuple(map(_parse_field, fields.split(",")))
    for name, _, fields in (line.partition(": ") for line in _MESSAGES_TEXT.replace("\n  ", " ").splitlines() if line)
}
"""Message -> its fields."""
BY_NUMBER = {name: {field.number: field for field in fields} for name, fields in MESSAGES.items()}
"""Message -> number -> field."""
KINDS = {(version, kind): kind for version, kinds in _GROUPS.items() for kind in kinds} | {
    ("events.k8s.io/v1", "Event"): "NewEvent"
}
"""apiVersion and kind -> message. DeleteOptions exist in every group and version."""


MAGIC = b"k8s\x00"
MAX_FIELDS = 500_000
"""Maximum number of fields in a body: parsed fields need many times their size."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SIGN = 1 << 63
_WORD = (1 << 64) - 1


def message_of(api_version: str, kind: str) -> str | None:
    """Return the message of a kind, or of a list of it (`<message>List`); None if it is unknown."""
    if kind == "DeleteOptions":
        return kind
    found = KINDS.get((api_version, kind))
    if found is None and kind.endswith("List") and (item := KINDS.get((api_version, kind[:-4]))):
        return f"{item}List"
    return found


# --- reading ---


def load_protobuf(raw: bytes) -> dict[str, Any]:
    """Parse an enveloped object. Raises BodyError."""
    if not raw.startswith(MAGIC):
        raise BodyError("it does not begin with the mark of Kubernetes' protobuf")
    left = [MAX_FIELDS]
    envelope = _message(raw[len(MAGIC) :], "Unknown", 0, left)
    head = envelope.get("typeMeta") or {}
    api_version, kind = head.get("apiVersion", ""), head.get("kind", "")
    message = message_of(api_version, kind)
    if message is None or message not in MESSAGES:
        raise BodyError(f"{api_version} {kind} is not read as protobuf here; send it as application/json")
    return {"apiVersion": api_version, "kind": kind, **_message(envelope.get("raw", b""), message, 0, left)}


def _message(raw: bytes, name: str, depth: int, left: list[int]) -> dict[str, Any]:
    if depth > MAX_ENVELOPE:
        raise BodyError("it is nested too deep")
    fields = BY_NUMBER[name]
    out: dict[str, Any] = {}
    for number, value in _read(raw):
        left[0] -= 1
        if left[0] < 0:
            raise BodyError(f"it has more than {MAX_FIELDS} fields")
        field = fields.get(number)
        if field is None:
            continue
        made = _value(field, value, depth, left)
        if field.inline:
            out.update(made)
        elif field.type in ("map", "bytesmap", "listmap"):
            out.setdefault(field.name, {}).update(made)
        elif field.repeated:
            out.setdefault(field.name, []).append(made)
        elif field.pointer or (made is not None and made not in ("", 0, False)):
            # Go writes empty values of fields without a pointer; JSON omits them.
            out[field.name] = made
    return out


def _value(field: MessageField, value: bytes | int, depth: int, left: list[int]) -> Any:
    if field.type in ("int", "bool"):
        if not isinstance(value, int):
            raise BodyError(f"{field.name} has the wrong wire type")
        return bool(value) if field.type == "bool" else value - (1 << 64) if value >= _SIGN else value
    if not isinstance(value, bytes):
        raise BodyError(f"{field.name} has the wrong wire type")
    match field.type:
        case "string":
            return _text(value)
        case "raw":
            return value
        case "bytes":
            return base64.b64encode(value).decode()
        case "time" | "micro":
            return _time(value, field.type, left)
        case "json":
            try:
                return orjson.loads(value)
            except orjson.JSONDecodeError as error:
                raise BodyError(f"a field that must hold JSON does not: {error}") from error
        case "map" | "bytesmap" | "listmap":
            entry = _message(value, "MapEntry", depth + 1, left)
            held = entry.get("value", b"")
            if field.type == "listmap":
                held = _message(held, "Texts", depth + 2, left).get("items", [])
            else:
                held = base64.b64encode(held).decode() if field.type == "bytesmap" else _text(held)
            return {entry.get("key", ""): held}
    return _message(value, field.type, depth + 1, left)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise BodyError("a text is not UTF-8") from error


def _time(value: bytes, kind: str, left: list[int]) -> str | None:
    """Parse a time; None if it has no fields."""
    parts = _message(value, "Time", MAX_ENVELOPE, left)
    if not parts:
        return None
    try:
        at = _EPOCH + timedelta(seconds=parts.get("seconds", 0), microseconds=parts.get("nanos", 0) // 1000)
    except OverflowError as error:
        raise BodyError("a time is out of range") from error
    return at.replace(tzinfo=None).isoformat(timespec="microseconds" if kind == "micro" else "seconds") + "Z"


def _read(raw: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield the field numbers and values of a message (protobuf.dev, "Encoding")."""
    at, end = 0, len(raw)
    while at < end:
        tag, at = (raw[at], at + 1) if raw[at] < 0x80 else _varint(raw, at)
        number, wire = tag >> 3, tag & 7
        if wire == 2:
            size, at = (raw[at], at + 1) if at < end and raw[at] < 0x80 else _varint(raw, at)
        elif wire == 0:
            value, at = _varint(raw, at)
            yield number, value
            continue
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise BodyError(f"wire type {wire} is not in use")
        if at + size > end:
            raise BodyError("it ends in the middle of a field")
        yield number, raw[at : at + size]
        at += size


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(raw):
            raise BodyError("it ends in the middle of a number")
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _WORD, at
    raise BodyError("a number is too long")


# --- writing ---


def dump_protobuf(obj: Mapping[str, Any]) -> bytes:
    """Return an object, a list of a built-in kind or a Status in the envelope. Raises BodyError for other kinds,
    and for values that do not fit (which no stored object has)."""
    api_version, kind = obj.get("apiVersion", ""), obj.get("kind", "")
    message = message_of(api_version, kind)
    if message is None:
        raise BodyError(f"{api_version} {kind} is not written as protobuf here")
    head = delimited(1, _write({"apiVersion": api_version, "kind": kind}, "TypeMeta"))
    try:
        if message in MESSAGES:
            body = _write(obj, message)
        else:
            items = [delimited(2, _write(item, message.removesuffix("List"))) for item in obj.get("items") or []]
            body = b"".join((delimited(1, _write(obj.get("metadata") or {}, "ListMeta")), *items))
    except (TypeError, ValueError, AttributeError) as error:
        raise BodyError(f"{kind} does not fit its message: {error}") from error
    return b"".join((MAGIC, head, delimited(2, body), delimited(3, b""), delimited(4, b"")))


def _write(obj: Mapping[str, Any], name: str) -> bytes:
    out: list[bytes] = []
    for field in MESSAGES[name]:
        if field.inline:
            out.append(delimited(field.number, _write(obj, field.type)))
            continue
        value = obj.get(field.name)
        if value is None:
            continue
        if field.type in ("map", "bytesmap", "listmap"):
            out += [delimited(field.number, _pair(field.type, key, one)) for key, one in sorted(value.items())]
        else:
            out += [_field(field, one) for one in (value if field.repeated else (value,))]
    return b"".join(out)


def _field(field: MessageField, value: Any) -> bytes:
    if field.type in ("int", "bool"):
        return varint(field.number << 3) + varint(int(value))
    if field.type not in SCALARS:
        return delimited(field.number, _write(value, field.type))
    match field.type:
        case "string":
            return delimited(field.number, value.encode())
        case "bytes":
            return delimited(field.number, _unbased(value))
        case "json":
            return delimited(field.number, orjson.dumps(value))
    since = datetime.fromisoformat(value) - _EPOCH
    seconds, nanos = since.days * 86400 + since.seconds, since.microseconds * 1000
    return delimited(field.number, _write({"seconds": seconds, "nanos": nanos}, "Time"))


def _pair(kind: str, key: str, value: Any) -> bytes:
    if kind == "listmap":
        made = _write({"items": value}, "Texts")
    else:
        made = _unbased(value) if kind == "bytesmap" else value.encode()
    return delimited(1, key.encode()) + delimited(2, made)


def _unbased(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise BodyError("bytes are not base64") from error


def delimited(number: int, value: bytes) -> bytes:
    """Return a field of bytes, a text or a message."""
    return b"".join((varint(number << 3 | 2), varint(len(value)), value))


def varint(value: int) -> bytes:
    """Return a number of 64 bits."""
    value &= _WORD
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
