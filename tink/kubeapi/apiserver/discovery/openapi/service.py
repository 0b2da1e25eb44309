"""The OpenAPI documents of all that is served: made when somebody asks, kept until what they describe changes.

One document of version 3 for each group and version, and one of version 2 for everything, as JSON and as protobuf,
put together from the pieces of the groups. When the registry changes, only the pieces of the groups that changed are
made again. What is kept is text, not trees: about the size of the schemas, three times.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import orjson

from tink.kubeapi.apiserver.discovery.groups import served
from tink.kubeapi.apiserver.discovery.openapi import gnostic, publish, swagger
from tink.kubeapi.apiserver.discovery.openapi.common import LIST_META, OBJECT_META
from tink.kubeapi.apiserver.discovery.openapi.paths import paths
from tink.kubeapi.apiserver.resources import Registry, Resource
from tink.kubeapi.schema import Raw
from tink.shrink import shrink_to_fit

KUBERNETES = "1.36"
_SECURITY: Raw = {
    "BearerToken": {
        "type": "apiKey",
        "description": "The token of the kubeconfig: Bearer <token>",
        "name": "authorization",
        "in": "header",
    }
}
_HEAD_2: Raw = {
    "swagger": "2.0",
    "info": {"title": "Kubernetes", "version": KUBERNETES},
    "securityDefinitions": _SECURITY,
    "security": [{"BearerToken": []}],
}


@dataclass(frozen=True, slots=True)
class Text:
    """A document as text, and its tag (RFC 9110 section 8.8.3): the SHA-512 of its JSON, as Kubernetes does it."""

    body: bytes
    tag: str


_Parts = tuple[dict[str, bytes], dict[str, bytes]]


@dataclass(slots=True)
class _Piece:
    """What is kept of a group and version: its document of version 3, and by name the parts for version 2."""

    resources: Sequence[Resource]
    document: Text | None = None
    parts: dict[bool, _Parts] = field(default_factory=dict)
    """Path items and definitions, as text and (True) as protobuf."""


@dataclass(slots=True)
class _Whole:
    """The document of version 2."""

    json: Text | None = None
    binary: Text | None = None
    index: Text | None = None


class OpenAPI:
    """The documents of a registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._revision = -1
        self._pieces: dict[str, _Piece] = {}
        self._whole = _Whole()

    def index(self) -> Text:
        """`/openapi/v3`: where the documents are; the hash lets kubectl keep them on its disk."""
        pieces = self._current()
        if self._whole.index is None:
            listed = {path: {"serverRelativeURL": url(path, self._three(piece).tag)} for path, piece in pieces.items()}
            self._whole.index = _tagged(shrink_to_fit(orjson.dumps({"paths": listed})))
        return self._whole.index

    def three(self, path: str) -> Text | None:
        """`/openapi/v3/<path>`, e.g. `apis/tinkerbell.org/v1alpha2`; None when there is no such group and version."""
        piece = self._current().get(path)
        return None if piece is None else self._three(piece)

    def two(self) -> Text:
        """`/openapi/v2` as JSON."""
        pieces = self._current()
        if self._whole.json is None:
            items, definitions = _joined(pieces.values(), binary=False)
            head = orjson.dumps(_HEAD_2)[:-1]
            body = b"".join((head, b',"paths":', _object(items), b',"definitions":', _object(definitions), b"}"))
            self._whole.json = _tagged(body)
        return self._whole.json

    def two_binary(self) -> Text:
        """`/openapi/v2` as protobuf (`gnostic`), with the tag of the JSON, as in Kubernetes: Vary tells them apart."""
        pieces = self._current()
        if self._whole.binary is None:
            items, definitions = _joined(pieces.values(), binary=True)
            body = gnostic.document(_HEAD_2, sorted(items.items()), sorted(definitions.items()))
            self._whole.binary = Text(body, self.two().tag)
        return self._whole.binary

    def _three(self, piece: _Piece) -> Text:
        if piece.document is None:
            piece.document = _tagged(shrink_to_fit(orjson.dumps(document(piece.resources))))
        return piece.document

    def _current(self) -> dict[str, _Piece]:
        """Give the pieces of what is served now; those of groups that did not change are the same as before."""
        if self._revision != self._registry.revision:
            pieces: dict[str, _Piece] = {}
            for group, versions in served(self._registry).items():
                for version, resources in versions.items():
                    path = f"apis/{group}/{version}" if group else f"api/{version}"
                    old = self._pieces.get(path)
                    # Resources are equal only when they are the same.
                    pieces[path] = old if old is not None and old.resources == resources else _Piece(resources)
            self._pieces = dict(sorted(pieces.items()))
            self._whole = _Whole()
            self._revision = self._registry.revision
        return self._pieces


def url(path: str, tag: str) -> str:
    """Give the URL of a document of version 3 that may be kept for ever."""
    return f"/openapi/v3/{path}?hash={tag}"


def document(resources: Sequence[Resource]) -> Raw:
    """Give the document of version 3 of one group and version."""
    custom = any(resource.custom for resource in resources)
    items: Raw = {}
    schemas: Raw = {}
    for resource in resources:
        items |= paths(resource)
        schemas |= publish.schemas(resource, version=3, custom=resource.custom)
    shared = {OBJECT_META, LIST_META, *_named_in(items)}
    title = {"title": "Kubernetes CRD Swagger", "version": "v0.1.0"}
    made: Raw = {
        "openapi": "3.0.0",
        "info": title if custom else {"title": "Kubernetes", "version": KUBERNETES},
        "paths": dict(sorted(items.items())),
        "components": {"schemas": dict(sorted({**publish.shared(3, shared), **schemas}.items()))},
    }
    if not custom:
        made["components"]["securitySchemes"] = _SECURITY
    return made


def _named_in(items: Raw) -> set[str]:
    """Name the types that operations take and give."""
    found: set[str] = set()
    for item in items.values():
        for operation in item.values():
            if isinstance(operation, dict):
                bodies = [operation.get("requestBody", {}), *operation["responses"].values()]
                for content in (body.get("content", {}) for body in bodies):
                    found.update(one["schema"]["$ref"].rpartition("/")[2] for one in content.values())
    return found


def _joined(pieces: Iterable[_Piece], *, binary: bool) -> _Parts:
    """Give the path items and definitions of all that is served, in version 2."""
    write = gnostic.schema if binary else orjson.dumps
    items, definitions = dict[str, bytes](), {name: write(one) for name, one in publish.shared(2).items()}
    for piece in pieces:
        if binary not in piece.parts:
            piece.parts[binary] = _parts(piece.resources, binary=binary)
        items |= piece.parts[binary][0]
        definitions |= piece.parts[binary][1]
    return items, definitions


def _parts(resources: Sequence[Resource], *, binary: bool) -> _Parts:
    """Give the path items and definitions of version 2, each as text or as protobuf."""
    items: dict[str, bytes] = {}
    definitions: dict[str, bytes] = {}
    for resource in resources:
        for path, item in paths(resource).items():
            two = swagger.path_item(item)
            items[path] = gnostic.path_item(two) if binary else shrink_to_fit(orjson.dumps(two))
        for name, schema in publish.schemas(resource, version=2, custom=resource.custom).items():
            definitions[name] = gnostic.schema(schema) if binary else shrink_to_fit(orjson.dumps(schema))
    return items, definitions


def _object(members: dict[str, bytes]) -> bytes:
    """Write a JSON object whose values are JSON already."""
    return b"{" + b",".join(orjson.dumps(name) + b":" + value for name, value in sorted(members.items())) + b"}"


def _tagged(body: bytes) -> Text:
    return Text(body, hashlib.sha512(body).hexdigest().upper())
