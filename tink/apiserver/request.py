"""A request, read: which resource, and the object or patch in the body. The options are in `options`.

Pure: from the parts of an HTTP request to values, or to a `StatusError`. Paths are those of the Kubernetes API
(`/api/v1/...`, `/apis/<group>/<version>/...`); bodies are JSON or YAML of bounded size and depth.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import orjson

from tink.api.yaml import YamlError, documents
from tink.apiserver import errors, protobuf

MAX_DEPTH = 100
"""Deepest nesting of a body."""
MAX_BODY = 3 << 20
"""Largest body, in bytes (Kubernetes: 3 MiB)."""
JSON = "application/json"
YAML = "application/yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True)
class Target:
    """What a path names. `namespace` is "" when the path has none; `name` and `subresource` may be "" too."""

    group: str
    version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def parse_path(raw_path: str) -> Target | None:
    """Read the path of a resource; None when it is not one."""
    steps = [unquote(step) for step in raw_path.strip("/").split("/")]
    if any(not step or "/" in step or "\0" in step for step in steps):
        return None
    match steps:
        case ["api", "v1", *rest]:
            group, version = "", "v1"
        case ["apis", group, version, *rest]:
            pass
        case _:
            return None
    namespace = ""
    # /api/v1/namespaces/x is the namespace itself, /api/v1/namespaces/x/secrets is in it.
    if len(rest) > 2 and rest[0] == "namespaces" and not (not group and rest[2] in ("status", "finalize")):
        namespace, rest = rest[1], rest[2:]
    if not 1 <= len(rest) <= 3:
        return None
    return Target(group, version, rest[0], namespace, *rest[1:])


def media_type(header: str) -> str:
    """Give the media type of a Content-Type, without its parameters."""
    return header.partition(";")[0].strip().lower()


@dataclass(frozen=True, slots=True)
class Body:
    """An object or patch out of a body, and the keys that it gives twice."""

    value: Any
    duplicates: tuple[str, ...] = ()


def decode(content_type: str, raw: bytes, *, strict: bool) -> Body:
    """Read JSON, YAML or, for built-in resources, protobuf.

    Raises StatusError: 415 for other types, 400 for what cannot be read. With `strict`, JSON keys that stand twice are
    found; YAML with such keys is refused in any case.
    """
    kind = media_type(content_type)
    if kind == YAML:
        try:
            # Through JSON: what aliases share becomes separate, and what JSON cannot hold is refused.
            return Body(orjson.loads(orjson.dumps(next(documents(raw), None))))
        except (YamlError, TypeError, RecursionError) as error:
            raise errors.bad_request(f"error converting YAML to JSON: {error}") from error
    if kind == PROTOBUF:
        try:
            return Body(protobuf.decode(raw))
        except protobuf.ProtobufError as error:
            raise errors.bad_request(f"the protobuf body cannot be read: {error}") from error
    if kind not in ("", JSON):
        raise errors.unsupported_media_type(kind, (JSON, YAML, PROTOBUF))
    return decode_json(raw, strict=strict)


def decode_json(raw: bytes, *, strict: bool = False) -> Body:
    """Read JSON. Raises StatusError (400)."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise errors.bad_request(f"couldn't get version/kind; json parse error: {error}") from error
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise errors.bad_request(f"json: exceeded max depth of {MAX_DEPTH}")
    return Body(value, _duplicates(raw) if strict else ())


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, dict | list)
        ]
        if depth > MAX_DEPTH:
            break
    return depth


def _duplicates(raw: bytes) -> tuple[str, ...]:
    """Find keys that stand twice in an object, with the standard library's parser, which shows them."""
    found: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, value in items:
            if key in made and len(found) < 100:
                found.append(key)
            made[key] = value
        return made

    json.loads(raw, object_pairs_hook=pairs)
    return tuple(found)
