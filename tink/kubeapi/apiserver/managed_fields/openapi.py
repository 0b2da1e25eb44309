"""From the schema of whole objects to the types of `types`.

The rules are those of k8s.io/kube-openapi, pkg/schemaconv: `x-kubernetes-list-type`, `x-kubernetes-list-map-keys` and
`x-kubernetes-map-type` say how values are merged; below `x-kubernetes-preserve-unknown-fields` unknown fields are
allowed in every struct; what has no type is whatever the value is. Metadata are the same for all resources.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tink.kubeapi.apiserver.managed_fields.lists import List
from tink.kubeapi.apiserver.managed_fields.types import Atomic, Items, Map, Scalar, Type, Untyped
from tink.kubeapi.schema import meta

_NUMERIC, _TEXT, _TRUTH, _ANY = Scalar("numeric"), Scalar("string"), Scalar("boolean"), Scalar("any scalar")
_DEDUCED = Untyped()


def compile_root(schema: Mapping[str, Any]) -> Map:
    """Make the type of whole objects from `tink.kubeapi.schema.structural.root_schema`."""
    properties = dict(schema.get("properties") or {}) | {"metadata": {}}
    kind = _map({**schema, "properties": properties}, preserve=bool(schema.get(_PRESERVE)))
    return Map({**kind.fields, "apiVersion": _TEXT, "kind": _TEXT, "metadata": METADATA}, kind.element)


_PRESERVE = "x-kubernetes-preserve-unknown-fields"


def _compile(schema: Mapping[str, Any], *, preserve: bool) -> Type:
    preserve = preserve or bool(schema.get(_PRESERVE))
    kind = schema.get("type", "")
    if schema.get("x-kubernetes-int-or-string"):
        kind = ""
    match kind:
        case "integer" | "number":
            return _NUMERIC
        case "boolean":
            return _TRUTH
        case "string":
            return _TEXT if schema.get("format", "") in ("", "byte") else _ANY
        case "array":
            return _list(schema, preserve=preserve)
        case "object":
            found = _map(schema, preserve=preserve)
            return Atomic(found) if schema.get("x-kubernetes-map-type") == "atomic" else found
    if not schema.get("properties") and not schema.get("additionalProperties"):
        return _DEDUCED
    return Untyped(_map(schema, preserve=preserve))


def _map(schema: Mapping[str, Any], *, preserve: bool) -> Map:
    properties = dict(schema.get("properties") or {})
    fields = {name: _compile(child, preserve=preserve) for name, child in properties.items()}
    if schema.get("x-kubernetes-embedded-resource"):
        fields |= {"apiVersion": _TEXT, "kind": _TEXT, "metadata": METADATA}
    extra = schema.get("additionalProperties")
    element: Type | None = None
    if isinstance(extra, Mapping):
        element = _compile(extra, preserve=preserve)
    elif extra or (extra is None and (preserve or not fields)):
        element = _DEDUCED
    return Map(fields, element)


def _list(schema: Mapping[str, Any], *, preserve: bool) -> Type:
    items = schema.get("items") or {}
    element = _compile(items, preserve=preserve) if items else _DEDUCED
    kind = schema.get("x-kubernetes-list-type", "atomic")
    if kind == "set":
        return List((), element, {})
    if kind == "map":
        keys = schema.get("x-kubernetes-list-map-keys") or ()
        properties = items.get("properties") or {}
        defaults = {key: properties[key]["default"] for key in keys if "default" in (properties.get(key) or {})}
        return List(keys, element, defaults)
    return Atomic(Items(element))


def _metadata() -> Map:
    properties = dict(meta.META_SCHEMA["properties"])
    owners = dict(properties["ownerReferences"])
    # An owner is replaced as a whole (k8s.io/apimachinery, meta/v1: OwnerReference is structType=atomic).
    owners["items"] = {**owners["items"], "x-kubernetes-map-type": "atomic"}
    return _map({**meta.META_SCHEMA, "properties": {**properties, "ownerReferences": owners}}, preserve=False)


METADATA = _metadata()
"""The type of `metadata`."""
