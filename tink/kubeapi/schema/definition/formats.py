"""Formats that schemas name and Kubernetes does not know: they have no effect, and the writer is told.

Source: k8s.io/apiextensions-apiserver, pkg/apiserver/validation/formats.go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_OF_STRINGS = frozenset(
    (
        "bsonobjectid", "uri", "email", "hostname", "ipv4", "ipv6", "cidr", "mac", "uuid", "uuid3", "uuid4", "uuid5",
        "isbn", "isbn10", "isbn13", "creditcard", "ssn", "hexcolor", "rgbcolor", "byte", "password", "date", "duration",
        "datetime", "k8sshortname", "k8slongname",
    )
)  # fmt: skip
"""Without dashes: Kubernetes takes them out of names before it looks."""
_OF_NUMBERS = {"integer": ("int32", "int64"), "number": ("float", "double")}


def warnings(definition: Mapping[str, Any]) -> list[str]:
    """Name each format of a definition that is not known, as often as it stands there (alike versions count once)."""
    found: list[str] = []
    seen: list[Any] = []
    for version in (definition.get("spec") or {}).get("versions") or ():
        schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
        if schema not in seen:
            seen.append(schema)
            found += [f'unrecognized format "{name}"' for name in _unknown(schema)]
    return found


def _unknown(schema: Mapping[str, Any]) -> Iterator[str]:
    name, kind = schema.get("format", ""), schema.get("type", "")
    if name and not _known(name, kind):
        yield name
    items = schema.get("items")
    for child in items if isinstance(items, list) else [items] if items else []:
        yield from _unknown(child)
    for key in ("allOf", "anyOf", "oneOf"):
        for child in schema.get(key) or ():
            yield from _unknown(child)
    if schema.get("not"):
        yield from _unknown(schema["not"])
    for child in (schema.get("properties") or {}).values():
        yield from _unknown(child)
    if isinstance(schema.get("additionalProperties"), Mapping):
        yield from _unknown(schema["additionalProperties"])


def _known(name: str, kind: str) -> bool:
    if kind in ("", "string"):
        return name.replace("-", "") in _OF_STRINGS
    return name in _OF_NUMBERS.get(kind, ())
