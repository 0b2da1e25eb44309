"""Definitions as Kubernetes' own types: what is read, what is unknown, what has the wrong type.

A definition is no free-form object in Kubernetes. So unknown fields are dropped, nulls mean "not given", and a value of
the wrong type is a bad request. `SCHEMA` is the schema of definitions themselves (k8s.io/apiextensions-apiserver,
apiextensions/v1), apart from that of their schemas, which contain themselves.
"""

from __future__ import annotations

from typing import Any

from tink.kubeapi.schema import shapes
from tink.kubeapi.schema.shapes import (
    BYTES,
    FLAG,
    INT32,
    INT64,
    TEXT,
    TIME,
    array,
    atomic,
    keyed,
    mapping,
    same,
    struct,
    texts,
)
from tink.kubeapi.schema.structs import MistypedError, Reading, Type, list_of, map_of, mistyped, struct_of, type_of
from tink.kubeapi.schema.values import Raw

MAX_DEPTH = 64
"""Deepest nesting of a schema. Deeper than any schema in use, and far from the limits of recursion."""

_NAMES = texts("kind", "listKind", "plural", "singular") | same(atomic(TEXT), "categories", "shortNames")
_CONDITION = struct(
    {**texts("type", "status", "reason", "message"), "lastTransitionTime": TIME, "observedGeneration": INT64},
    "type",
    "status",
)
_SCALE = struct(
    texts("specReplicasPath", "statusReplicasPath", "labelSelectorPath"), "specReplicasPath", "statusReplicasPath"
)
_COLUMN = struct(
    {**texts("name", "type", "jsonPath", "description", "format"), "priority": INT32}, "name", "type", "jsonPath"
)
_VERSION = struct(
    {
        **texts("name", "deprecationWarning"),
        **same(FLAG, "served", "storage", "deprecated"),
        "schema": struct({"openAPIV3Schema": shapes.ANY}),
        "subresources": struct({"status": struct({}), "scale": _SCALE}),
        "selectableFields": atomic(struct(texts("jsonPath"), "jsonPath")),
        "additionalPrinterColumns": array(_COLUMN),
    },
    "name",
    "served",
    "storage",
)
_SERVICE = struct({**texts("namespace", "name", "path"), "port": INT32}, "namespace", "name")
_WEBHOOK = struct(
    {
        "clientConfig": struct({"url": TEXT, "caBundle": BYTES, "service": _SERVICE}),
        "conversionReviewVersions": atomic(TEXT),
    },
    "conversionReviewVersions",
)
_SPEC = struct(
    {
        **texts("group", "scope"),
        "names": struct(_NAMES, "kind", "plural"),
        "versions": atomic(_VERSION),
        "conversion": struct({"strategy": TEXT, "webhook": _WEBHOOK}, "strategy"),
        "preserveUnknownFields": FLAG,
    },
    "group",
    "names",
    "scope",
    "versions",
)
_STATUS = struct(
    {
        "acceptedNames": struct(_NAMES),
        "conditions": keyed(_CONDITION, "type"),
        "storedVersions": atomic(TEXT),
        "observedGeneration": INT64,
    }
)
SCHEMA = struct({"spec": _SPEC, "status": _STATUS}, "spec")
"""The schema of definitions."""


def read(definition: Raw) -> list[str]:
    """Bring spec and status of a definition into the form of their types, in place; give the paths of unknown fields.

    Raises MistypedError for a value of the wrong type.
    """
    reading = Reading()
    for name, kind in _PARTS.items():
        if definition.get(name) is None:
            definition.pop(name, None)
        else:
            definition[name] = kind.read(definition[name], name, reading)
    for index, version in enumerate((definition.get("spec") or {}).get("versions") or ()):
        holder = version.get("schema") or {}
        if "openAPIV3Schema" in holder:
            at = f"spec.versions[{index}].schema.openAPIV3Schema"
            holder["openAPIV3Schema"] = _read_schema(holder["openAPIV3Schema"], at, reading)
    return reading.unknown


def _read_schema(value: Any, path: str, reading: Reading) -> Any:
    if reading.depth > MAX_DEPTH:
        raise MistypedError(f"{path}: schemas may be nested at most {MAX_DEPTH} deep")
    reading.depth += 1
    try:
        return _KEYWORDS.read(value, path, reading)
    finally:
        reading.depth -= 1


def _read_silently(value: Any, path: str, reading: Reading) -> Any:
    """Read a schema of which Kubernetes does not tell unknown fields: no definition is to be refused for one here."""
    reading.silent += 1
    try:
        return _read_schema(value, path, reading)
    finally:
        reading.silent -= 1


def _read_either(value: Any, path: str, reading: Reading) -> Any:
    if isinstance(value, bool):
        return value
    if not isinstance(value, dict):
        raise mistyped(path, "a schema or a boolean", value)
    return _read_silently(value, path, reading)


def _read_items(value: Any, path: str, reading: Reading) -> Any:
    if isinstance(value, list):
        return [_read_silently(item, path, reading) for item in value if isinstance(item, dict)]
    return _read_silently(value, path, reading) if isinstance(value, dict) else {}


_SCHEMA, _EITHER = Type(_read_schema, dict), Type(_read_either, dict)
_RULE = struct({**texts("rule", "message", "messageExpression", "reason", "fieldPath"), "optionalOldSelf": FLAG})
_PLAIN = {
    **texts("id", "$schema", "$ref", "description", "type", "format", "title", "pattern"),
    **texts("x-kubernetes-list-type", "x-kubernetes-map-type"),
    **same(array(TEXT), "required", "x-kubernetes-list-map-keys"),
    **same({"type": "number"}, "maximum", "minimum", "multipleOf"),
    **same(INT64, "maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"),
    **same(FLAG, "exclusiveMaximum", "exclusiveMinimum", "uniqueItems", "nullable", "x-kubernetes-int-or-string"),
    **same(FLAG, "x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"),
    "x-kubernetes-validations": array(_RULE),
    **same({}, "default", "example"),
    "enum": array({}),
    "dependencies": mapping({}),
    "externalDocs": struct(texts("description", "url")),
}
_KEYWORDS = struct_of(
    {name: type_of(schema) for name, schema in _PLAIN.items()}
    | dict.fromkeys(("allOf", "oneOf", "anyOf"), list_of(_SCHEMA))
    | dict.fromkeys(("properties", "patternProperties", "definitions"), map_of(_SCHEMA))
    | dict.fromkeys(("additionalProperties", "additionalItems"), _EITHER)
    | {"not": _SCHEMA, "items": Type(_read_items, dict)}
)
_PARTS = {name: type_of(schema) for name, schema in SCHEMA["properties"].items()}
