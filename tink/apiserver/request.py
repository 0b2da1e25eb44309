"""A request, read: which resource, which verb, which options, and the object in the body.

Pure: from the parts of an HTTP request to values, or to a `StatusError`. Paths are those of the Kubernetes API
(`/api/v1/...`, `/apis/<group>/<version>/...`); bodies are JSON or YAML of bounded size and depth.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
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


def parse_bool(value: str, name: str) -> bool:
    """Read a boolean of a query, in all the forms of Go's strconv.ParseBool."""
    if value in ("1", "t", "T", "true", "TRUE", "True"):
        return True
    if value in ("", "0", "f", "F", "false", "FALSE", "False"):
        return False
    raise errors.bad_request(f"{name}: Invalid value: {errors.quote(value)}: must be a boolean")


def parse_number(value: str, name: str) -> int:
    """Read a number that is not negative; absent is 0."""
    if not value:
        return 0
    if not re.fullmatch(r"[0-9]{1,18}", value):
        raise errors.bad_request(f"{name}: Invalid value: {errors.quote(value)}: must be a number, 0 or more")
    return int(value)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How a write is to be done: only tried (dry run), and what to do about fields that the schema does not know."""

    dry_run: bool = False
    validation: str = "Warn"

    @staticmethod
    def of(query: Mapping[str, str]) -> WriteOptions:
        """Read the query of a create, update or patch."""
        return WriteOptions(parse_dry_run(query.get("dryRun", "")), _validation(query.get("fieldValidation", "")))


def parse_dry_run(value: str) -> bool:
    """Read `dryRun`: absent or All."""
    if value not in ("", "All"):
        raise errors.invalid("meta.k8s.io", "UpdateOptions", "", [errors.unsupported("dryRun", value, ["All"])])
    return value == "All"


def _validation(value: str) -> str:
    if value not in ("", "Ignore", "Warn", "Strict"):
        wrong = errors.unsupported("fieldValidation", value, ["", "Ignore", "Strict", "Warn"])
        raise errors.invalid("meta.k8s.io", "UpdateOptions", "", [wrong])
    return value or "Warn"


@dataclass(frozen=True, slots=True)
class ListOptions:
    """What to list or watch. Versions are as the client gave them: "" any, "0" any that is at hand."""

    labels: str = ""
    fields: str = ""
    limit: int = 0
    continues: str = ""
    version: str = ""
    version_match: str = ""
    watch: bool = False
    bookmarks: bool = False
    initial_events: bool = False
    timeout_s: int = 0

    @staticmethod
    def of(query: Mapping[str, str]) -> ListOptions:
        """Read the query of a list or watch."""
        version = query.get("resourceVersion", "")
        parse_number(version, "resourceVersion")
        return ListOptions(
            query.get("labelSelector", ""),
            query.get("fieldSelector", ""),
            parse_number(query.get("limit", ""), "limit"),
            query.get("continue", ""),
            version,
            query.get("resourceVersionMatch", ""),
            parse_bool(query.get("watch", ""), "watch"),
            parse_bool(query.get("allowWatchBookmarks", ""), "allowWatchBookmarks"),
            parse_bool(query.get("sendInitialEvents", ""), "sendInitialEvents"),
            parse_number(query.get("timeoutSeconds", ""), "timeoutSeconds"),
        )


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """How a delete is to be done: only if the object still is the one that the client means; or only tried."""

    dry_run: bool = False
    uid: str = ""
    version: str = ""

    @staticmethod
    def of(query: Mapping[str, str], body: Any) -> DeleteOptions:
        """Read the query and the body of a delete. Both may name the same options; the body wins, as in Kubernetes."""
        body = body if body is not None else {}
        if not isinstance(body, dict) or body.get("kind", "DeleteOptions") != "DeleteOptions":
            raise errors.bad_request("the body of a delete must be DeleteOptions")
        policy = body.get("propagationPolicy") or query.get("propagationPolicy", "")
        if policy not in ("", "Background", "Foreground", "Orphan"):
            wrong = errors.unsupported("propagationPolicy", policy, ["Background", "Foreground", "Orphan"])
            raise errors.invalid("meta.k8s.io", "DeleteOptions", "", [wrong])
        dry_run = body.get("dryRun") or query.get("dryRun", "")
        if isinstance(dry_run, list):
            dry_run = dry_run[0] if len(dry_run) == 1 else "".join(map(str, dry_run))
        wanted = body.get("preconditions") or {}
        if not isinstance(wanted, dict):
            raise errors.bad_request("preconditions must be an object")
        return DeleteOptions(
            parse_dry_run(str(dry_run)),
            str(wanted.get("uid") or ""),
            str(wanted.get("resourceVersion") or ""),
        )


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
