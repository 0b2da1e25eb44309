"""The body of a request, read: an object or a patch, as JSON, YAML or protobuf of bounded size and depth.

Pure: from bytes to values, or to a `StatusError`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import orjson

from tink.api.yaml import YamlError, document_and_repeated
from tink.golang import json_kind
from tink.kubeapi.apiserver import errors
from tink.kubeapi.apiserver.requests.media_types import APPLY_PATCH, JSON, PROTOBUF, YAML
from tink.kubeapi.apiserver.serializer import JsonError, ProtobufError, duplicate_fields, load_json, load_protobuf

MAX_DEPTH = 100
"""Deepest nesting of a body."""
MAX_BODY = 3 << 20
"""Largest body, in bytes (Kubernetes: 3 MiB)."""
MAX_VALUES = 20_000
"""Maximum number of values in a body, except for definitions.

Parsing is one call that holds the interpreter's lock: 5 ms for 20,000 keys and texts in a body of MAX_BODY, 12 ms for
50,000, 110 ms for a million lists. (Kubernetes has no such limit.)
"""
MAX_GROWN_VALUES = 3 * MAX_VALUES
"""Maximum number of values of an object after patches, including managedFields: each write parses the stored object."""
MAX_SHOWN = 1024
"""How much of a body without a kind is repeated in the answer, in characters."""


def media_type(header: str) -> str:
    """Give the media type of a Content-Type, without its parameters."""
    return header.partition(";")[0].strip().lower()


@dataclass(frozen=True, slots=True)
class Body:
    """An object or patch out of a body, and what a strict reader says of fields that stand in it twice.

    `size` is in bytes, and of YAML that of the JSON that it means.
    """

    value: Any
    duplicates: tuple[str, ...] = ()
    size: int = 0


_OUTSIDE = re.compile(rb'[,\[{"]')
_INSIDE = re.compile(rb'["\\]')


class UnreadableError(ValueError):
    """A body that cannot be read; the message says why."""


def decode(
    content_type: str, raw: bytes, *, strict: bool, kind: str = "", custom: bool = False, values: int = MAX_VALUES
) -> Body:
    """Parse JSON, YAML or, for built-in resources, protobuf.

    `kind` is the expected kind, for messages; objects of `custom` resources must contain their kind. With `strict`,
    duplicate keys are found. `values` is the maximum number of values. Raises StatusError: 415 for other types, 413 for
    too many values, 400 for an unreadable body.
    """
    media = media_type(content_type)
    if any(not all(pair.partition("=")[::2]) for pair in content_type.split(";")[1:] if pair.strip()):
        media = "?"  # parameters that make no sense
    if media not in ("", JSON, YAML, PROTOBUF) or (custom and media == PROTOBUF):
        raise errors.unsupported_media_type((JSON, YAML, PROTOBUF))
    try:
        if media == PROTOBUF:
            return Body(load_protobuf(raw), size=len(raw))
        body = _decode_yaml(raw, values) if media == YAML else _decode_json(raw, values, strict=strict)
        _check_head(body.value, raw, custom)
    except (UnreadableError, JsonError, ProtobufError) as error:
        if not kind:
            raise errors.bad_request(str(error)) from error
        why = f"the object provided is unrecognized (must be of type {kind}): {error}"
        raise errors.bad_request(why) from error
    return body


def _check_head(value: Any, raw: bytes, custom: bool) -> None:
    """Check what Kubernetes reads first: apiVersion and kind. Raises UnreadableError."""
    if value is not None and not isinstance(value, dict):
        raise UnreadableError(not_an_object(value))
    head = value or {}
    for name in ("apiVersion", "kind"):
        if not isinstance(found := head.get(name) or "", str):
            raise UnreadableError(f"{name}: must be a string, not {json_kind(found)}")
    version = head.get("apiVersion") or ""
    if version.count("/") > 1:
        raise UnreadableError(f"unexpected GroupVersion string: {version}")
    if custom and not head.get("kind"):
        raise UnreadableError(f"Object 'Kind' is missing in '{raw.decode('utf-8', 'replace')[:MAX_SHOWN]}'")


def not_an_object(value: Any) -> str:
    """Say that JSON which should be an object is not."""
    return f"it must be an object, not {json_kind(value)}"


def _decode_yaml(raw: bytes, values: int) -> Body:
    try:
        value, repeated = document_and_repeated(raw)
        # Through JSON: what aliases share becomes separate, and what JSON cannot hold is refused.
        text = orjson.dumps(value)
        _check_values(text, values)
        body = orjson.loads(text)
    except (YamlError, TypeError, RecursionError) as error:
        where = f"line {error.line}: " if isinstance(error, YamlError) and error.line else ""
        raise UnreadableError(f"yaml: {where}{error}") from error
    twice = tuple(f'line {line}: key "{key}" already set in map' for key, line in repeated[:100])
    return Body(body, twice, len(text))


def _check_values(raw: bytes, most: int) -> None:
    """Reject JSON with too many values before it is parsed. Raises StatusError (413)."""
    if values_in(raw, most) > most:
        raise errors.too_many_values(most)


def values_in(raw: bytes, most: int) -> int:
    """Count the values of a JSON text. The count ends at `most` + 1."""
    if (at_most := sum(map(raw.count, (b",", b"[", b"{")))) <= most:
        return at_most
    # Strings may contain most of these characters. This count runs in Python, which other threads can interrupt.
    count = at = 0
    while found := _OUTSIDE.search(raw, at):
        at = found.end()
        if found[0] == b'"':
            at = _end_of_text(raw, at)
            continue
        count += 1
        if count > most:
            break
    return count


def _end_of_text(raw: bytes, at: int) -> int:
    while found := _INSIDE.search(raw, at):
        if found[0] == b'"':
            return found.end()
        at = found.end() + 1
    return len(raw)


def _decode_json(raw: bytes, values: int, *, strict: bool) -> Body:
    _check_values(raw, values)
    value = load_json(raw)
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise UnreadableError(f"json: exceeded max depth of {MAX_DEPTH}")
    return Body(value, _repeated(raw, value) if strict else (), len(raw))


def _repeated(raw: bytes, value: Any) -> tuple[str, ...]:
    """Say which fields stand twice in a text; `value` is what it was read as."""
    try:
        if orjson.dumps(value) == raw:
            return ()  # as programs write it: what stood twice would not be there twice
    except orjson.JSONEncodeError:
        pass
    return tuple(f'duplicate field "{path}"' for path in duplicate_fields(raw))


def decode_patch(kind: str, raw: bytes, *, strict: bool = False, values: int = MAX_VALUES) -> Body:
    """Parse a patch of media type `kind`: JSON, or YAML for an apply. Raises StatusError (400, 413)."""
    try:
        return _decode_yaml(raw, values) if kind == APPLY_PATCH else _decode_json(raw, values, strict=strict)
    except (JsonError, UnreadableError) as error:
        raise errors.bad_request(f"error decoding patch: {error}") from error


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [
            child
            for item in level
            for child in (item.values() if type(item) is dict else item)
            if type(child) is dict or type(child) is list
        ]
        if depth > MAX_DEPTH:
            break
    return depth
