"""From the schema that objects are checked by to the schema that clients read, for both versions of OpenAPI.

Clients get more than the server needs (apiVersion, kind and metadata as types of their own, the kinds that a type
stands for) and, in version 2, less: kubectl before 1.27 stumbles over what Kubernetes' own conversion leaves out too
(k8s.io/apiextensions-apiserver, pkg/controller/openapi). Pure; the schemas of the registry are never changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tink.kubeapi.apiserver.discovery.openapi import common
from tink.kubeapi.apiserver.discovery.openapi.common import API_VERSION, KIND, LIST_META, METADATA, PACKAGES
from tink.kubeapi.apiserver.resources import Resource
from tink.kubeapi.schema import Raw

_PRESERVE = "x-kubernetes-preserve-unknown-fields"
_EMBEDDED = "x-kubernetes-embedded-resource"
_INT_OR_STRING = "x-kubernetes-int-or-string"
_INT_OR_STRING_TYPES = [{"type": "integer"}, {"type": "string"}]
_LISTS = ("allOf", "anyOf", "oneOf")
_NOT_IN_2 = frozenset((*_LISTS, "not", "nullable", "default"))
"""Keywords that version 2 does not have; kubectl takes a default there for a value that it must send."""


def schema_name(resource: Resource) -> str:
    """Name a type as Kubernetes does: `org.tinkerbell.v1alpha2.Hardware`, `io.k8s.api.core.v1.Secret`."""
    package = PACKAGES.get(resource.group) or ".".join(reversed(resource.group.split(".")))
    return f"{package}.{resource.version}.{resource.kind}"


def schemas(resource: Resource, *, version: int, custom: bool) -> dict[str, Raw]:
    """Give the types of a resource by name, for OpenAPI 2 or 3: its objects, their parts, and its lists.

    `custom`: a CustomResourceDefinition describes it.
    """
    name = schema_name(resource)
    kind = {"group": resource.group, "kind": resource.kind, "version": resource.version}
    extensions: Raw = {"x-kubernetes-group-version-kind": [kind]}
    if custom and (selectable := [field for field in resource.rules.selectable if not field.startswith("metadata.")]):
        extensions["x-kubernetes-selectable-fields"] = [{"fieldPath": field} for field in selectable]
    found: dict[str, Raw] = {}
    if custom:
        found[name] = _custom(resource.openapi, version) | extensions
    else:
        for part, schema in _parts(name, resource.openapi).items():
            found[part] = _final(schema, version)
        root = found[name]
        found[name] = {**root, "properties": {**root["properties"], **_head(version)}, **extensions}
    if resource.list_kind:
        found[f"{name.removesuffix(resource.kind)}{resource.list_kind}"] = _list(resource, name, version, extensions)
    return found


def shared(version: int, names: set[str] | None = None) -> dict[str, Raw]:
    """Give the types that all documents share; with `names`, only those and what they refer to."""
    known = common.common()
    if names is None:
        return {name: _final(schema, version) for name, schema in known.items()}
    found: dict[str, Raw] = {}
    waiting = [name for name in names if name in known]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = _final(known[name], version)
            waiting += [other for other in _references(known[name]) if other in known]
    return dict(sorted(found.items()))


def _references(schema: Any) -> set[str]:
    """Name the types that a schema of ours refers to."""
    if isinstance(schema, dict):
        own = {schema["$ref"]} if isinstance(schema.get("$ref"), str) else set()
        return own.union(*(_references(child) for child in schema.values()))
    return set()


def _head(version: int) -> Raw:
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": _final(METADATA, version)}


def _list(resource: Resource, name: str, version: int, extensions: Raw) -> Raw:
    properties: Raw = {
        "items": {"type": "array", "description": f"The {resource.plural}.", "items": {"$ref": name}},
        "metadata": {"$ref": LIST_META, "description": "Version of the list, and how to go on with it."},
    }
    kind = {"group": resource.group, "kind": resource.list_kind, "version": resource.version}
    made: Raw = {
        "type": "object",
        "description": f"{resource.list_kind} is a list of {resource.kind}",
        "required": ["items"],
        "properties": {key: _final(schema, version) for key, schema in properties.items()},
    }
    made["properties"] |= {"apiVersion": API_VERSION, "kind": KIND}
    return {**made, **extensions, "x-kubernetes-group-version-kind": [kind]}


# --- built-in types ---


def _parts(name: str, schema: Mapping[str, Any]) -> dict[str, Raw]:
    """Take a built-in type apart into the types that clients know, with a text for each field."""
    if name in (definitions := common.definitions()):
        return dict(definitions)
    texts = common.texts().get(name, {})
    own: Raw = {**schema, "properties": {}}
    if description := texts.get(""):
        own["description"] = description
    found: dict[str, Raw] = {name: own}
    for field, part in (schema.get("properties") or {}).items():
        said = texts.get(field, "")
        if isinstance(said, str):
            own["properties"][field] = {**part, "description": said} if said else part
            continue
        inner = said[0] if "." in said[0] else f"{name.rpartition('.')[0]}.{said[0]}"
        if part.get("type") == "array":
            own["properties"][field] = {**part, "description": said[1], "items": {"$ref": inner}}
            part = part["items"]
        else:
            own["properties"][field] = {"$ref": inner, "description": said[1]}
        found |= _parts(inner, part)
    return found


# --- custom types ---


def _custom(openapi: Raw, version: int) -> Raw:
    """Publish the schema of a CustomResourceDefinition."""
    if version == 2 and openapi.get(_PRESERVE):
        # Any properties at all would let old clients refuse those that are not listed.
        return {"type": "object"}
    made = _final(openapi, version, foreign=True)
    return {**made, "type": "object", "properties": {**(made.get("properties") or {}), **_head(version)}}


def _final(schema: Mapping[str, Any], version: int, *, foreign: bool = False) -> Raw:
    """Write a schema as OpenAPI 2 or 3 wants it. References in `foreign` schemas lead nowhere and are left out."""
    out: Raw = {}
    for key, value in schema.items():
        if key == "properties" and isinstance(value, dict):
            out[key] = {name: _final(part, version, foreign=foreign) for name, part in value.items()}
        elif key in ("items", "additionalProperties", "not") and isinstance(value, dict):
            out[key] = _final(value, version, foreign=foreign)
        elif key in _LISTS and isinstance(value, list):
            out[key] = [_final(part, version, foreign=foreign) for part in value]
        elif key != "$ref" and (key != "uniqueItems" or value):
            out[key] = value
    if version == 2:
        _narrow(out, schema)
    elif schema.get(_INT_OR_STRING) and "anyOf" not in out and "allOf" not in out:
        out["anyOf"] = _INT_OR_STRING_TYPES
    if schema.get(_EMBEDDED) and not (version == 2 and schema.get(_PRESERVE)):
        _embed(out, version)
    if not foreign and "$ref" in schema:
        return _refer(out, schema["$ref"], version)
    return out


def _refer(described: Raw, name: str, version: int) -> Raw:
    if version == 2:
        return {**described, "$ref": f"#/definitions/{name}"}
    reference = {"$ref": f"#/components/schemas/{name}"}
    return {**described, "allOf": [reference]} if described else reference


def _narrow(out: Raw, schema: Mapping[str, Any]) -> None:
    """Leave out, in place, what version 2 cannot say; a field of which too little is left may hold anything."""
    for key in _NOT_IN_2 & out.keys():
        del out[key]
    nullable, preserve = schema.get("nullable"), schema.get(_PRESERVE)
    if nullable or preserve:
        out.pop("items", None)
        out.pop("properties", None)
    if nullable or (preserve and out.get("type") == "object") or (out.get("type") == "array" and "items" not in out):
        out.pop("type", None)
    values = schema.get("additionalProperties")
    if isinstance(values, dict) and values.get("nullable"):
        out.pop("required", None)
    if required := out.get("required"):
        parts = schema.get("properties") or {}
        left = [name for name in required if not (name in out.get("properties", {}) and parts[name].get("nullable"))]
        out["required"] = left
        if not left:
            del out["required"]


def _embed(out: Raw, version: int) -> None:
    """Give a field that holds a whole object the head of one, in place."""
    head = {
        "apiVersion": {"type": "string", "description": "Group and version of the embedded object."},
        "kind": {"type": "string", "description": "Kind of the embedded object."},
        "metadata": _final(METADATA, version),
    }
    out["properties"] = {**(out.get("properties") or {}), **head}
    out["required"] = [*(out.get("required") or []), *({"kind", "apiVersion"} - set(out.get("required") or []))]
    out["required"].sort(key=lambda name: name == "apiVersion")
