"""The body of a request, read: an object or a patch, as JSON, YAML or protobuf of bounded size and depth.

Pure: from bytes to values, or to a `StatusError`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
import yaml

from tink.api.yaml import YamlError, document_and_repeated
from tink.apiserver import errors
from tink.apiserver.requests.media_types import APPLY_PATCH, JSON, PROTOBUF, STRATEGIC_PATCH, YAML
from tink.apiserver.serializer import JsonError, ProtobufError, duplicate_fields, load_json, load_protobuf
from tink.golang import json_kind

MAX_DEPTH = 100
"""Deepest nesting of a body."""
MAX_BODY = 3 << 20
"""Largest body, in bytes (Kubernetes: 3 MiB)."""
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


class UnreadableError(ValueError):
    """A body that cannot be read; the message is Kubernetes'."""


def decode(content_type: str, raw: bytes, *, strict: bool, kind: str = "", custom: bool = False) -> Body:
    """Read JSON, YAML or, for built-in resources, protobuf.

    `kind` is what the body must be, for messages; objects of `custom` resources must say their kind. With `strict`,
    keys that stand twice are found.
    Raises StatusError: 415 for other types, 400 for what cannot be read.
    """
    media = media_type(content_type)
    if any(not all(pair.partition("=")[::2]) for pair in content_type.split(";")[1:] if pair.strip()):
        media = "?"  # parameters that make no sense
    if media not in ("", JSON, YAML, PROTOBUF) or (custom and media == PROTOBUF):
        raise errors.unsupported_media_type((JSON, YAML, PROTOBUF))
    try:
        if media == PROTOBUF:
            return Body(_decode_protobuf(raw), size=len(raw))
        body = _decode_yaml(raw) if media == YAML else _decode_json(raw, strict=strict)
        _check_head(body.value, raw, custom)
    except UnreadableError as error:
        if not kind:
            raise errors.bad_request(str(error)) from error
        why = f"the object provided is unrecognized (must be of type {kind}): {error} ({_summary(raw)})"
        raise errors.bad_request(why) from error
    return body


def _summary(raw: bytes) -> str:
    """Show the beginning of a body that could not be read (k8s.io/apiserver, pkg/endpoints/handlers)."""
    if not raw:
        return "<empty>"
    more = " ..." if len(raw) > 30 else ""
    return (raw[:30].decode("utf-8", "replace") if raw[:1] == b"{" else raw[:30].hex()) + more


def _check_head(value: Any, raw: bytes, custom: bool) -> None:
    """Check what Kubernetes reads first: apiVersion and kind. Raises UnreadableError."""
    if value is not None and not isinstance(value, dict):
        raise UnreadableError(not_an_object(value))
    head = value or {}
    for name in ("apiVersion", "kind"):
        if not isinstance(found := head.get(name) or "", str):
            why = f"json: cannot unmarshal {json_kind(found)} into Go struct field .{name} of type string"
            raise UnreadableError(f"couldn't get version/kind; json parse error: {why}")
    version = head.get("apiVersion") or ""
    if version.count("/") > 1:
        raise UnreadableError(f"unexpected GroupVersion string: {version}")
    if custom and not head.get("kind"):
        raise UnreadableError(f"Object 'Kind' is missing in '{raw.decode('utf-8', 'replace')[:MAX_SHOWN]}'")


def not_an_object(value: Any) -> str:
    """Say that JSON which should be an object is not."""
    return f"couldn't get version/kind; json parse error: json: cannot unmarshal {json_kind(value)} into Go value"


def _decode_protobuf(raw: bytes) -> Any:
    if not raw:
        raise UnreadableError("empty data")
    if not raw.startswith(b"k8s\0"):
        why = "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"
        raise UnreadableError(why)
    if len(raw) == 4:
        raise UnreadableError("empty body")
    try:
        return load_protobuf(raw)
    except ProtobufError as error:
        raise UnreadableError(str(error)) from error


def _decode_yaml(raw: bytes) -> Body:
    try:
        value, repeated = document_and_repeated(raw)
        # Through JSON: what aliases share becomes separate, and what JSON cannot hold is refused.
        text = orjson.dumps(value)
        body = orjson.loads(text)
    except (YamlError, TypeError, RecursionError) as error:
        raise UnreadableError(_yaml_words(error)) from error
    twice = tuple(f'line {line}: key "{key}" already set in map' for key, line in repeated[:100])
    return Body(body, twice, len(text))


def _yaml_words(error: Exception) -> str:
    """Say what is wrong with YAML as sigs.k8s.io/yaml does, whose parser is the same as ours."""
    cause = error.__cause__
    if not isinstance(cause, yaml.MarkedYAMLError):
        line = error.line if isinstance(error, YamlError) else 0
        return f"yaml: line {line}: {error}" if line else f"yaml: {error}"
    scans = isinstance(cause, yaml.scanner.ScannerError)
    mark = cause.context_mark if cause.context_mark and cause.context_mark.line else cause.problem_mark
    line = mark.line if mark else 0
    where = f"line {line + scans}: " if line else ""
    return f"yaml: {where}{cause.problem}"


def _decode_json(raw: bytes, *, strict: bool) -> Body:
    try:
        value = load_json(raw)
    except JsonError as error:
        raise UnreadableError(f"couldn't get version/kind; json parse error: {error}") from error
    _check_depth(raw, value)
    return Body(value, _repeated(raw, value) if strict else (), len(raw))


def _repeated(raw: bytes, value: Any) -> tuple[str, ...]:
    """Say which fields stand twice in a text; `value` is what it was read as."""
    try:
        if orjson.dumps(value) == raw:
            return ()  # as programs write it: what stood twice would not be there twice
    except orjson.JSONEncodeError:
        pass
    return tuple(f'duplicate field "{path}"' for path in duplicate_fields(raw))


def _check_depth(raw: bytes, value: Any) -> None:
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise UnreadableError(f"json: exceeded max depth of {MAX_DEPTH}")


def decode_patch(kind: str, raw: bytes, *, strict: bool = False) -> Body:
    """Read a patch of media type `kind`: JSON, or YAML for an apply. Raises StatusError (400)."""
    try:
        if kind == APPLY_PATCH:
            return _decode_yaml(raw)
        value = load_json(raw)
        _check_depth(raw, value)
    except (JsonError, UnreadableError) as error:
        prefix = {
            APPLY_PATCH: "error decoding YAML: error converting YAML to JSON: ",
            STRATEGIC_PATCH: "",
        }.get(kind, "error decoding patch: ")
        raise errors.bad_request(f"{prefix}{error}") from error
    return Body(value, _repeated(raw, value) if strict else (), len(raw))


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
