"""The words in which schemas of Kubernetes' own types are written here: texts, structs, lists, maps (OpenAPI 3)."""

from __future__ import annotations

from typing import Any

from tink.kubeapi.schema.values import Raw

TEXT: Raw = {"type": "string"}
FLAG: Raw = {"type": "boolean"}
INT32: Raw = {"type": "integer", "format": "int32"}
INT64: Raw = {"type": "integer", "format": "int64"}
BYTES: Raw = {"type": "string", "format": "byte"}
TIME: Raw = {"type": "string", "format": "date-time"}
ANY: Raw = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def struct(properties: Raw, *required: str, **more: Any) -> Raw:
    """Give the schema of an object with these fields, some of which are `required`."""
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {}), **more}


def same(kind: Raw, *names: str) -> Raw:
    """Give fields that have the same schema."""
    return dict.fromkeys(names, kind)


def texts(*names: str) -> Raw:
    """Give fields that are texts."""
    return same(TEXT, *names)


def mapping(values: Raw) -> Raw:
    """Give the schema of a map."""
    return {"type": "object", "additionalProperties": values}


def array(items: Raw) -> Raw:
    """Give the schema of a list."""
    return {"type": "array", "items": items}


def atomic(items: Raw) -> Raw:
    """Give the schema of a list that is replaced as a whole."""
    return {**array(items), "x-kubernetes-list-type": "atomic"}


def keyed(items: Raw, *keys: str) -> Raw:
    """Give the schema of a list whose items are told apart by their `keys`."""
    return {**array(items), "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}
