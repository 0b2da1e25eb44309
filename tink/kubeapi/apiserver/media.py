"""Content of requests and answers: bodies as JSON, YAML or protobuf of bounded size, and the Accept header. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

import orjson

from tink.api.yaml import YamlError, document_and_repeated
from tink.golang import json_kind
from tink.kubeapi.apiserver import errors
from tink.kubeapi.apiserver.errors import StatusError
from tink.kubeapi.apiserver.serializer import BodyError, duplicate_fields, load_json, load_protobuf

JSON = "application/json"
YAML = "application/yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


MAX_DEPTH = 100  # Maximum nesting of a body
MAX_BODY = 3 << 20  # Maximum size of a body, in bytes (Kubernetes: 3 MiB)
MAX_VALUES = 20_000
"""Maximum number of values in a body, except for definitions.

Parsing is one call that holds the interpreter's lock: 5 ms for 20,000 keys and texts in a body of MAX_BODY, 12 ms for
50,000, 110 ms for a million lists. (Kubernetes has no such limit.)
"""
MAX_GROWN_VALUES = 3 * MAX_VALUES
"""Maximum number of values of an object after patches, including managedFields: each write parses the stored object."""
MAX_SHOWN = 1024  # Maximum number of characters that the refusal of a body without a kind repeats


def media_type(header: str) -> str:
    """Return the media type of a Content-Type, without its parameters."""
    return header.partition(";")[0].strip().lower()


@dataclass(frozen=True, slots=True)
class Body:
    """A parsed object or patch, and errors about duplicate fields.

    `size` is in bytes; for YAML it is the size of the equivalent JSON.
    """

    value: Any
    duplicates: tuple[str, ...] = ()
    size: int = 0


_OUTSIDE = re.compile(rb'[,\[{"]')
_INSIDE = re.compile(rb'["\\]')


def decode(
    content_type: str, raw: bytes, *, strict: bool, kind: str = "", custom: bool = False, values: int = MAX_VALUES
) -> Body:
    """Parse JSON, YAML or, for built-in resources, protobuf.

    `kind` is the expected kind, for messages; objects of `custom` resources must contain their kind. With `strict`,
    duplicate keys are reported. `values` is the maximum number of values. Raises StatusError: 415 for other types, 413
    for too many values, 400 for an unreadable body.
    """
    media = media_type(content_type)
    if any(not all(pair.partition("=")[::2]) for pair in content_type.split(";")[1:] if pair.strip()):
        media = "?"  # invalid parameters
    if media not in ("", JSON, YAML, PROTOBUF) or (custom and media == PROTOBUF):
        raise errors.unsupported_media_type((JSON, YAML, PROTOBUF))
    try:
        if media == PROTOBUF:
            return Body(load_protobuf(raw), size=len(raw))
        body = _decode_yaml(raw, values) if media == YAML else _decode_json(raw, values, strict=strict)
        _check_head(body.value, raw, custom)
    except BodyError as error:
        if not kind:
            raise errors.bad_request(str(error)) from error
        why = f"the object provided is unrecognized (must be of type {kind}): {error}"
        raise errors.bad_request(why) from error
    return body


def _check_head(value: Any, raw: bytes, custom: bool) -> None:
    """Check apiVersion and kind, which Kubernetes reads first. Raises BodyError."""
    if value is not None and not isinstance(value, dict):
        raise BodyError(not_an_object(value))
    head = value or {}
    for name in ("apiVersion", "kind"):
        if not isinstance(found := head.get(name) or "", str):
            raise BodyError(f"{name}: must be a string, not {json_kind(found)}")
    version = head.get("apiVersion") or ""
    if version.count("/") > 1:
        raise BodyError(f"unexpected GroupVersion string: {version}")
    if custom and not head.get("kind"):
        raise BodyError(f"Object 'Kind' is missing in '{raw.decode('utf-8', 'replace')[:MAX_SHOWN]}'")


def not_an_object(value: Any) -> str:
    """Return the error for JSON that should be an object and is not."""
    return f"it must be an object, not {json_kind(value)}"


def _decode_yaml(raw: bytes, values: int) -> Body:
    try:
        value, repeated = document_and_repeated(raw)
        # Through JSON: shared aliases become separate values, and values outside JSON are refused.
        text = orjson.dumps(value)
        _check_values(text, values)
        body = orjson.loads(text)
    except (YamlError, TypeError, RecursionError) as error:
        where = f"line {error.line}: " if isinstance(error, YamlError) and error.line else ""
        raise BodyError(f"yaml: {where}{error}") from error
    twice = tuple(f'line {line}: key "{key}" already set in map' for key, line in repeated[:100])
    return Body(body, twice, len(text))


def _check_values(raw: bytes, most: int) -> None:
    """Refuse a body with so many values that parsing would take too long. Raises StatusError (413)."""
    if values_in(raw, most) > most:
        raise errors.too_large(f"more than {most} values; write several objects instead of one")


def values_in(raw: bytes, most: int) -> int:
    """Count the values of a JSON text. The count ends at `most` + 1."""
    if (at_most := sum(map(raw.count, (b",", b"[", b"{")))) <= most:
        return at_most
    # Strings may contain most of these characters. This count runs in Python, which other threads can interrupt.
    count = at = 0
    while found := _OUTSIDE.search(raw, at):
        at = found.end()
        if found[0] == b'"':
            while (inside := _INSIDE.search(raw, at)) and inside[0] != b'"':
                at = inside.end() + 1
            at = inside.end() if inside else len(raw)
            continue
        count += 1
        if count > most:
            break
    return count


def _decode_json(raw: bytes, values: int, *, strict: bool) -> Body:
    _check_values(raw, values)
    value = load_json(raw)
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise BodyError(f"json: exceeded max depth of {MAX_DEPTH}")
    duplicates: list[str] = []
    if strict:
        try:
            usual = orjson.dumps(value) == raw  # the usual output of programs, which has no duplicates
        except orjson.JSONEncodeError:
            usual = False
        duplicates = [] if usual else duplicate_fields(raw)
    return Body(value, tuple(f'duplicate field "{path}"' for path in duplicates), len(raw))


def decode_patch(kind: str, raw: bytes, *, strict: bool = False, values: int = MAX_VALUES) -> Body:
    """Parse a patch of media type `kind`: JSON, or YAML for an apply. Raises StatusError (400, 413)."""
    try:
        return _decode_yaml(raw, values) if kind == APPLY_PATCH else _decode_json(raw, values, strict=strict)
    except BodyError as error:
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


SERVED = (JSON, YAML, PROTOBUF)
STREAMS = (f"{JSON};stream=watch", f"{PROTOBUF};stream=watch")
MAX_CLAUSES = 32
"""Maximum number of clauses that are read in a header."""
META_GROUP = "meta.k8s.io"


class Form(Enum):
    """The form of an answer."""

    OBJECT = "object"
    TABLE = "Table"
    PARTIAL = "PartialObjectMetadata"


@dataclass(frozen=True, slots=True)
class Clause:
    """One alternative of an Accept header: `media` in lower case, e.g. `application/json` or `*/*`, and its
    parameters."""

    media: str
    quality: float
    parameters: Mapping[str, str]

    def matches(self, media: str) -> bool:
        """Return True if the clause includes this media type."""
        return self.media in (media, "*/*") or (self.media.endswith("/*") and media.startswith(self.media[:-1]))


@dataclass(frozen=True, slots=True)
class Accepted:
    """The negotiated answer: media type, form, and for tables and metadata the version of meta.k8s.io."""

    media: str = JSON
    form: Form = Form.OBJECT
    version: str = "v1"
    pretty: bool = False


def clauses(header: str) -> list[Clause]:
    """Parse an Accept header (RFC 9110 section 12.5.1), best clause first. Like k8s.io/apiserver, skip invalid
    clauses."""
    found: list[Clause] = []
    for part in header.split(",", MAX_CLAUSES)[:MAX_CLAUSES]:
        media, *parameters = part.split(";")
        kind, slash, subtype = (piece.strip(" ") for piece in media.partition("/"))
        if kind == "*" and not subtype:
            subtype = "*"
        if not subtype or "/" in subtype or (not slash and kind != "*"):
            continue
        named = {key.strip(" "): value.strip(" ") for key, _, value in (p.partition("=") for p in parameters) if value}
        quality = 0.0
        with suppress(ValueError):
            quality = float(named.pop("q", "1"))
        found.append(Clause(f"{kind}/{subtype}".lower(), quality, named))
    # As in Kubernetes, named types go before `*`, whatever their quality.
    return sorted(found, key=lambda one: (one.media.startswith("*/"), one.media.endswith("/*"), -one.quality))


@lru_cache(256)  # clients have few headers, and send them with each request
def negotiate(header: str, *, protobuf: bool = False, many: bool = False, watch: bool = False) -> Accepted:
    """Choose the media type and form of an answer with objects.

    kubectl asks for `application/json;as=Table;v=v1;g=meta.k8s.io` before plain JSON, and most clients of built-in
    types for protobuf before JSON. Clauses are taken in the order of k8s.io/apiserver
    (pkg/endpoints/handlers/negotiation); JSON goes before protobuf where both are accepted, because the store holds
    JSON. `protobuf`: the objects can be written as protobuf; `many`: a list; `watch`: a watch. Raises StatusError (406)
    if the client accepts none of our forms.
    """
    if not header:
        return Accepted()
    wanted = clauses(header)
    for offers in ((JSON,) if watch else (JSON, YAML), (PROTOBUF,) if protobuf and not watch else ()):
        for clause in wanted:
            for media in offers:
                made = _accepted(clause, media, many) if clause.matches(media) else None
                if made is not None:
                    return made
    raise errors.not_acceptable(STREAMS if watch else SERVED)


def _accepted(clause: Clause, media: str, many: bool) -> Accepted | None:
    """Return the answer that a clause asks for; None if it is not available."""
    parameters = clause.parameters
    pretty = parameters.get("pretty") == "1"
    if parameters.get("stream", "watch") != "watch" or parameters.get("sv", "v1") != "v1":
        return None
    kind, group, version = parameters.get("as", ""), parameters.get("g", ""), parameters.get("v", "")
    if not (kind or group or version):
        return Accepted(media, pretty=pretty)
    if group != META_GROUP or version not in ("v1", "v1beta1") or media == PROTOBUF:
        return None
    if kind == "Table":
        return Accepted(media, Form.TABLE, version, pretty)
    if kind in ("PartialObjectMetadata", "PartialObjectMetadataList"):
        if kind.endswith("List") != many:
            is_not = "is a list" if many else "is not a list"
            raise StatusError(406, "NotAcceptable", f"you requested {kind}, but the requested object {is_not}")
        return Accepted(media, Form.PARTIAL, version, pretty)
    return None


@lru_cache(64)
def discovery_form(header: str) -> tuple[str, str]:
    """Return the media type of discovery, and the version of apidiscovery.k8s.io ("": the classic form). Raises
    StatusError (406)."""
    for clause in clauses(header) if header else (Clause(JSON, 1, {}),):
        for media in (JSON, YAML):
            if not clause.matches(media):
                continue
            wanted = (clause.parameters.get("g", ""), clause.parameters.get("v", ""), clause.parameters.get("as", ""))
            if wanted == ("", "", ""):
                return media, ""
            if wanted in _AGGREGATED:
                return media, wanted[1]
    raise errors.not_acceptable(SERVED)


_AGGREGATED = [("apidiscovery.k8s.io", version, "APIGroupDiscoveryList") for version in ("v2", "v2beta1")]


def wants_gzip(header: str) -> bool:
    """Return True if the client accepts compressed answers: `gzip` is in Accept-Encoding (as in k8s.io/apiserver)."""
    return any(part.strip() == "gzip" for part in header.split(",", MAX_CLAUSES))
