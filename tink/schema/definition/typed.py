"""Definitions as Kubernetes' own types: what is read, what is unknown, what has the wrong type.

A definition is no free-form object in Kubernetes. So unknown fields are dropped, nulls mean "not given", and a value of
the wrong type is a bad request. `SCHEMA` is the schema of definitions themselves (k8s.io/apiextensions-apiserver,
apiextensions/v1), apart from that of their schemas, which contain themselves.
"""

from __future__ import annotations

from typing import Any

from tink.schema.structs import (
    ANY,
    BOOL,
    INT64,
    NUMBER,
    STRING,
    MistypedError,
    Reading,
    Type,
    list_of,
    map_of,
    mistyped,
    struct_of,
    type_of,
)
from tink.schema.values import Raw

MAX_DEPTH = 64
"""Deepest nesting of a schema. Deeper than any schema in use, and far from the limits of recursion."""

_TEXT: Raw = {"type": "string"}
_TEXTS: Raw = {"type": "array", "items": _TEXT, "x-kubernetes-list-type": "atomic"}
_ANY: Raw = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_NAMES: Raw = {
    "type": "object",
    "properties": {
        "categories": _TEXTS,
        "kind": _TEXT,
        "listKind": _TEXT,
        "plural": _TEXT,
        "shortNames": _TEXTS,
        "singular": _TEXT,
    },
}
_CONDITION: Raw = {
    "type": "object",
    "required": ["type", "status"],
    "properties": {
        "type": _TEXT,
        "status": _TEXT,
        "lastTransitionTime": {"type": "string", "format": "date-time"},
        "reason": _TEXT,
        "message": _TEXT,
        "observedGeneration": {"type": "integer", "format": "int64"},
    },
}
_VERSION: Raw = {
    "type": "object",
    "required": ["name", "served", "storage"],
    "properties": {
        "name": _TEXT,
        "served": {"type": "boolean"},
        "storage": {"type": "boolean"},
        "deprecated": {"type": "boolean"},
        "deprecationWarning": _TEXT,
        "schema": {"type": "object", "properties": {"openAPIV3Schema": _ANY}},
        "subresources": {
            "type": "object",
            "properties": {
                "status": {"type": "object", "properties": {}},
                "scale": {
                    "type": "object",
                    "required": ["specReplicasPath", "statusReplicasPath"],
                    "properties": {
                        "specReplicasPath": _TEXT,
                        "statusReplicasPath": _TEXT,
                        "labelSelectorPath": _TEXT,
                    },
                },
            },
        },
        "selectableFields": {
            "type": "array",
            "items": {"type": "object", "required": ["jsonPath"], "properties": {"jsonPath": _TEXT}},
            "x-kubernetes-list-type": "atomic",
        },
        "additionalPrinterColumns": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "type", "jsonPath"],
                "properties": {
                    "name": _TEXT,
                    "type": _TEXT,
                    "jsonPath": _TEXT,
                    "description": _TEXT,
                    "format": _TEXT,
                    "priority": {"type": "integer", "format": "int32"},
                },
            },
        },
    },
}
_WEBHOOK: Raw = {
    "type": "object",
    "required": ["conversionReviewVersions"],
    "properties": {
        "clientConfig": {
            "type": "object",
            "properties": {
                "url": _TEXT,
                "caBundle": {"type": "string", "format": "byte"},
                "service": {
                    "type": "object",
                    "required": ["namespace", "name"],
                    "properties": {
                        "namespace": _TEXT,
                        "name": _TEXT,
                        "path": _TEXT,
                        "port": {"type": "integer", "format": "int32"},
                    },
                },
            },
        },
        "conversionReviewVersions": _TEXTS,
    },
}
SCHEMA: Raw = {
    "type": "object",
    "description": "CustomResourceDefinition represents a resource that should be exposed on the API server.",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["group", "names", "scope", "versions"],
            "properties": {
                "group": _TEXT,
                "names": {**_NAMES, "required": ["kind", "plural"]},
                "scope": _TEXT,
                "versions": {
                    "type": "array",
                    "items": _VERSION,
                    "x-kubernetes-list-type": "atomic",
                },
                "conversion": {
                    "type": "object",
                    "required": ["strategy"],
                    "properties": {"strategy": _TEXT, "webhook": _WEBHOOK},
                },
                "preserveUnknownFields": {"type": "boolean"},
            },
        },
        "status": {
            "type": "object",
            "properties": {
                "acceptedNames": _NAMES,
                "conditions": {
                    "type": "array",
                    "items": _CONDITION,
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["type"],
                },
                "storedVersions": _TEXTS,
                "observedGeneration": {"type": "integer", "format": "int64"},
            },
        },
    },
}
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
_RULE = ("rule", "message", "messageExpression", "reason", "fieldPath")
_KEYWORDS = struct_of(
    {
        **dict.fromkeys(("id", "$schema", "$ref", "description", "type", "format", "title", "pattern"), STRING),
        **dict.fromkeys(("x-kubernetes-list-type", "x-kubernetes-map-type"), STRING),
        **dict.fromkeys(("required", "x-kubernetes-list-map-keys"), list_of(STRING)),
        **dict.fromkeys(("maximum", "minimum", "multipleOf"), NUMBER),
        **dict.fromkeys(("maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"), INT64),
        **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum", "uniqueItems", "nullable"), BOOL),
        **dict.fromkeys(("x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"), BOOL),
        "x-kubernetes-int-or-string": BOOL,
        "x-kubernetes-validations": list_of(struct_of(dict.fromkeys(_RULE, STRING) | {"optionalOldSelf": BOOL})),
        **dict.fromkeys(("default", "example"), ANY),
        "enum": list_of(ANY),
        **dict.fromkeys(("allOf", "oneOf", "anyOf"), list_of(_SCHEMA)),
        "not": _SCHEMA,
        **dict.fromkeys(("properties", "patternProperties", "definitions"), map_of(_SCHEMA)),
        **dict.fromkeys(("additionalProperties", "additionalItems"), _EITHER),
        "items": Type(_read_items, dict),
        "dependencies": map_of(ANY),
        "externalDocs": struct_of({"description": STRING, "url": STRING}),
    }
)
_PARTS = {name: type_of(schema) for name, schema in SCHEMA["properties"].items()}
