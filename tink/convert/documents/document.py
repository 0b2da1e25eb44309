"""Objects on their way: as they were read (`Document`), and as they came out of the conversion (`Converted`)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Protocol

from tink.api.v1alpha2 import Raw
from tink.convert.fields import shown, type_name
from tink.convert.findings import Comment, Finding, Kind, Source, nested

DEFAULT_NAMESPACE = "default"
MAX_DEPTH = 100
"""Levels that an object may nest."""

_COLLECTIONS = (dict, list)
_LONGEST_SHOWN = 80
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?\Z")
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")
_OF_A_NAME = "lower case letters, digits, - and . between these"


@dataclass(frozen=True, slots=True)
class Document:
    """One object as it was read, and where.

    What every object has: `apiVersion` and `kind` as strings, `metadata` with a name and perhaps a namespace, both
    strings. All else may be anything that JSON can say.
    """

    source: Source
    obj: Raw
    prefix: str = ""
    """Where the object stands in its document: `items[3]` in a List, else empty."""
    text: str | None = None
    """The document's own YAML, if it has comments."""


@dataclass(frozen=True, slots=True)
class Converted:
    """One object of the result."""

    obj: Raw
    document: Document | None = None
    """What it was made from; None for objects that several share."""
    moves: dict[str, str] = field(default_factory=dict)
    """Path in the document -> path in `obj` (`Findings.moved`)."""
    comments: list[Comment] = field(default_factory=list)
    """Those that stood inside of a field's text (`Findings.comments`)."""


class Lookup(Protocol):
    """Finds another object of the same input, as it was read: `lookup("HardwareData", "metal3", "node-1")`."""

    def __call__(self, kind: str, namespace: str, name: str) -> Raw | None: ...


def validated(document: Document) -> Document | Finding:
    """The document, or what keeps its object from being one of Kubernetes'."""
    obj = document.obj
    for key in ("apiVersion", "kind"):
        if not isinstance(obj.get(key), str) or not obj[key]:
            return error_in(document, key, f"must be a string, is {_present(obj, key)}: this is no Kubernetes object")
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict):
        return error_in(document, "metadata", f"must be an object, is {_present(obj, 'metadata')}")
    name, namespace = metadata.get("name"), metadata.get("namespace")
    if not isinstance(name, str) or not name:
        what = "put it in quotes" if isinstance(name, int | float) else "give it a name"
        return error_in(document, "metadata.name", f"must be a string, is {_present(metadata, 'name')}: {what}")
    if not _NAME.match(name):
        return error_in(
            document, "metadata.name", f"no API server takes {shown(name, _LONGEST_SHOWN)} for a name: {_OF_A_NAME}"
        )
    if not isinstance(namespace, str | None):
        return error_in(document, "metadata.namespace", f"must be a string, is {_present(metadata, 'namespace')}")
    if namespace and not _NAMESPACE.match(namespace):
        reason = f"no API server takes {shown(namespace, _LONGEST_SHOWN)} for a namespace: {_OF_A_NAME}, no points"
        return error_in(document, "metadata.namespace", reason)
    if (path := _too_deep(obj)) is not None:
        return error_in(document, path, f"nested deeper than {MAX_DEPTH} levels")
    return document


def error_in(document: Document, path: str, reason: str) -> Finding:
    """An error at a field of the document's object."""
    return Finding(Kind.ERROR, document.source, nested(document.prefix, path), reason)


def _too_deep(obj: Raw) -> str | None:
    """The field that nests deeper than anything honest does; None if there is none. JSON may nest without end."""
    level = [(key, item) for key, item in obj.items() if item and item.__class__ in _COLLECTIONS]
    for _ in range(MAX_DEPTH - 1):
        below: list[tuple[str, Any]] = []
        for key, here in level:
            items = here.values() if here.__class__ is dict else here
            below += [(key, item) for item in items if item and item.__class__ in _COLLECTIONS]
        if not below:
            return None
        level = below
    return level[0][0]


def _present(mapping: Raw, key: str) -> str:
    if key not in mapping:
        return "missing"
    return "empty" if mapping[key] == "" else type_name(mapping[key])
