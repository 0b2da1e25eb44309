"""Definitions as Kubernetes' Go types: what is read, what is unknown, what has the wrong type, and how they are shown.

A definition is no free-form object in Kubernetes but a Go structure. So unknown fields are dropped, nulls mean "not
given", a value of the wrong type is a bad request in the words of encoding/json, and messages show whole structures
with the names of their Go fields. The tables below are those structures (k8s.io/apiextensions-apiserver,
pkg/apis/apiextensions/v1 for reading; pkg/apis/apiextensions for showing).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tink import golang
from tink.golang import json_kind, number, to_json
from tink.schema.structs import MistypedError
from tink.schema.values import Raw

MAX_DEPTH = 64
"""Deepest nesting of a schema. Deeper than any schema in use, and far from the limits of recursion."""
MAX_SHOWN = 256 << 10
"""Longest structure that is repeated in a message, in characters."""

_PREFIX = 'CustomResourceDefinition in version "v1" cannot be handled as a CustomResourceDefinition: '

_NAMES = {
    "plural": "string",
    "singular": "string",
    "shortNames": "[]string",
    "kind": "string",
    "listKind": "string",
    "categories": "[]string",
}
_JUNCTOR = "[]v1.JSONSchemaProps"
STRUCTURES: Mapping[str, Mapping[str, str]] = {
    "CustomResourceDefinition": {
        "spec": "v1.CustomResourceDefinitionSpec",
        "status": "v1.CustomResourceDefinitionStatus",
    },
    "CustomResourceDefinitionSpec": {
        "group": "string",
        "names": "v1.CustomResourceDefinitionNames",
        "scope": "v1.ResourceScope",
        "versions": "[]v1.CustomResourceDefinitionVersion",
        "conversion": "v1.CustomResourceConversion",
        "preserveUnknownFields": "bool",
    },
    "CustomResourceDefinitionNames": _NAMES,
    "CustomResourceDefinitionStatus": {
        "conditions": "[]v1.CustomResourceDefinitionCondition",
        "acceptedNames": "v1.CustomResourceDefinitionNames",
        "storedVersions": "[]string",
        "observedGeneration": "int64",
    },
    "CustomResourceDefinitionCondition": {
        "type": "v1.CustomResourceDefinitionConditionType",
        "status": "v1.ConditionStatus",
        "lastTransitionTime": "string",
        "reason": "string",
        "message": "string",
        "observedGeneration": "int64",
    },
    "CustomResourceDefinitionVersion": {
        "name": "string",
        "served": "bool",
        "storage": "bool",
        "deprecated": "bool",
        "deprecationWarning": "string",
        "schema": "v1.CustomResourceValidation",
        "subresources": "v1.CustomResourceSubresources",
        "additionalPrinterColumns": "[]v1.CustomResourceColumnDefinition",
        "selectableFields": "[]v1.SelectableField",
    },
    "CustomResourceValidation": {"openAPIV3Schema": "v1.JSONSchemaProps"},
    "CustomResourceSubresources": {
        "status": "v1.CustomResourceSubresourceStatus",
        "scale": "v1.CustomResourceSubresourceScale",
    },
    "CustomResourceSubresourceStatus": {},
    "CustomResourceSubresourceScale": {
        "specReplicasPath": "string",
        "statusReplicasPath": "string",
        "labelSelectorPath": "string",
    },
    "CustomResourceColumnDefinition": {
        "name": "string",
        "type": "string",
        "format": "string",
        "description": "string",
        "priority": "int32",
        "jsonPath": "string",
    },
    "SelectableField": {"jsonPath": "string"},
    "CustomResourceConversion": {"strategy": "v1.ConversionStrategyType", "webhook": "v1.WebhookConversion"},
    "WebhookConversion": {"clientConfig": "v1.WebhookClientConfig", "conversionReviewVersions": "[]string"},
    "WebhookClientConfig": {"url": "string", "service": "v1.ServiceReference", "caBundle": "[]uint8"},
    "ServiceReference": {"namespace": "string", "name": "string", "path": "string", "port": "int32"},
    "ExternalDocumentation": {"description": "string", "url": "string"},
    "ValidationRule": {
        "rule": "string",
        "message": "string",
        "messageExpression": "string",
        "reason": "v1.FieldValueErrorReason",
        "fieldPath": "string",
        "optionalOldSelf": "bool",
    },
    "JSONSchemaProps": {
        "id": "string",
        "$schema": "v1.JSONSchemaURL",
        "$ref": "string",
        "description": "string",
        "type": "string",
        "format": "string",
        "title": "string",
        "default": "any",
        "maximum": "float64",
        "exclusiveMaximum": "bool",
        "minimum": "float64",
        "exclusiveMinimum": "bool",
        "maxLength": "int64",
        "minLength": "int64",
        "pattern": "string",
        "maxItems": "int64",
        "minItems": "int64",
        "uniqueItems": "bool",
        "multipleOf": "float64",
        "enum": "[]any",
        "maxProperties": "int64",
        "minProperties": "int64",
        "required": "[]string",
        "items": "schemas",
        "allOf": _JUNCTOR,
        "oneOf": _JUNCTOR,
        "anyOf": _JUNCTOR,
        "not": "v1.JSONSchemaProps",
        "properties": "map[string]v1.JSONSchemaProps",
        "additionalProperties": "schema or bool",
        "patternProperties": "map[string]v1.JSONSchemaProps",
        "dependencies": "dependencies",
        "additionalItems": "schema or bool",
        "definitions": "v1.JSONSchemaDefinitions",
        "externalDocs": "v1.ExternalDocumentation",
        "example": "any",
        "nullable": "bool",
        "x-kubernetes-preserve-unknown-fields": "bool",
        "x-kubernetes-embedded-resource": "bool",
        "x-kubernetes-int-or-string": "bool",
        "x-kubernetes-list-map-keys": "[]string",
        "x-kubernetes-list-type": "string",
        "x-kubernetes-map-type": "string",
        "x-kubernetes-validations": "v1.ValidationRules",
    },
}
_TEXTS = frozenset(
    (
        "string",
        "v1.ResourceScope",
        "v1.ConversionStrategyType",
        "v1.CustomResourceDefinitionConditionType",
        "v1.ConditionStatus",
        "v1.FieldValueErrorReason",
        "v1.JSONSchemaURL",
        "[]uint8",
    )
)
_LISTS = {"v1.ValidationRules": "v1.ValidationRule"}
_BITS = {"int32": 31, "int64": 63}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the reader is: the structure and the path as encoding/json says them, and the path as a person does."""

    structure: str
    path: str
    full: str
    depth: int = 0
    silent: bool = False

    def refuse(self, value: Any, kind: str) -> MistypedError:
        """Say that a value has the wrong type."""
        where = f" Go struct field {self.structure}.{self.path}" if self.path else " Go value"
        why = f"json: cannot unmarshal {_said(value)} into{where} of type {kind}"
        return MistypedError(_PREFIX + why)

    def field(self, structure: str, name: str) -> _Place:
        """Give the place of a field."""
        path = f"{self.path}.{name}" if self.path else name
        full = f"{self.full}.{name}" if self.full else name
        return replace(self, structure=structure, path=path, full=full)

    def entry(self, step: str) -> _Place:
        """Give the place of an item or map entry: encoding/json does not say which."""
        return replace(self, full=self.full + step)

    def apart(self) -> _Place:
        """Give the place within a type that Kubernetes has a reader of its own for: it does not tell unknown fields."""
        return replace(self, silent=True)


def _said(value: Any) -> str:
    return f"number {number(value)}" if isinstance(value, float) else json_kind(value)


def read(definition: Raw, drop: Callable[[str], None]) -> None:
    """Bring spec and status of a definition into the form of their types, in place.

    `drop` is told the path of each unknown field. Raises MistypedError for a value of the wrong type.
    """
    place = _Place("", "", "")
    for name in ("spec", "status"):
        if definition.get(name) is None:
            definition.pop(name, None)
            continue
        kind = STRUCTURES["CustomResourceDefinition"][name]
        definition[name] = _read(definition[name], kind, place.field("CustomResourceDefinition", name), drop)


def _read(value: Any, kind: str, place: _Place, drop: Callable[[str], None]) -> Any:
    if kind == "any":
        return value
    if kind in _TEXTS:
        if not isinstance(value, str):
            raise place.refuse(value, kind)
        return value
    if kind == "bool":
        if not isinstance(value, bool):
            raise place.refuse(value, kind)
        return value
    if kind == "float64" or kind in _BITS:
        return _number(value, kind, place)
    if kind in ("schemas", "schema or bool", "dependencies"):
        return _own(value, kind, place, drop)
    element = _LISTS.get(kind) or (kind[2:] if kind.startswith("[]") else "")
    if element:
        if not isinstance(value, list):
            raise place.refuse(value, kind)
        zero: Any = {"string": "", "any": None}.get(element, {})
        return [
            zero if item is None else _read(item, element, place.entry(f"[{index}]"), drop)
            for index, item in enumerate(value)
        ]
    if not isinstance(value, dict):
        raise place.refuse(value, kind)
    if kind.startswith("map[") or kind == "v1.JSONSchemaDefinitions":
        return {
            name: {} if item is None else _read(item, "v1.JSONSchemaProps", place.entry(f".{name}"), drop)
            for name, item in value.items()
        }
    return _structure(value, kind.removeprefix("v1."), place, drop)


def _structure(value: Raw, structure: str, place: _Place, drop: Callable[[str], None]) -> Raw:
    if structure == "JSONSchemaProps":
        if place.depth > MAX_DEPTH:
            raise MistypedError(f"{_PREFIX}schemas may be nested at most {MAX_DEPTH} deep")
        place = replace(place, depth=place.depth + 1)
    known = STRUCTURES[structure]
    read = {}
    for name, item in value.items():
        kind = known.get(name)
        if kind is None:
            if not place.silent:
                drop(f"{place.full}.{name}" if place.full else name)
        elif item is not None:
            read[name] = _read(item, kind, place.field(structure, name), drop)
    return read


def _number(value: Any, kind: str, place: _Place) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise place.refuse(value, kind)
    number: int | float = value
    if kind in _BITS:
        limit = 1 << _BITS[kind]
        if isinstance(number, float) or not -limit <= number < limit:
            raise place.refuse(number, kind)
    return number


def _own(value: Any, kind: str, place: _Place, drop: Callable[[str], None]) -> Any:
    """Read the types that Kubernetes has readers of its own for; what these do not know, they leave out."""
    inside = place.apart()
    if kind == "schema or bool" and isinstance(value, bool):
        return value
    if kind == "dependencies":
        if not isinstance(value, dict):
            raise place.refuse(value, "v1.JSONSchemaDependencies")
        return value
    if isinstance(value, dict):
        return _structure(value, "JSONSchemaProps", inside, drop)
    if kind == "schema or bool":
        raise MistypedError(f"{_PREFIX}boolean or JSON schema expected")
    if isinstance(value, list):
        return [_structure(item, "JSONSchemaProps", inside, drop) for item in value if isinstance(item, dict)]
    return {}


# --- as messages show them ---

GO_NAMES: tuple[tuple[str, str, Any], ...] = (
    ("ID", "id", ""),
    ("Schema", "$schema", ""),
    ("Ref", "$ref", None),
    ("Description", "description", ""),
    ("Type", "type", ""),
    ("Nullable", "nullable", False),
    ("Format", "format", ""),
    ("Title", "title", ""),
    ("Default", "default", None),
    ("Maximum", "maximum", None),
    ("ExclusiveMaximum", "exclusiveMaximum", False),
    ("Minimum", "minimum", None),
    ("ExclusiveMinimum", "exclusiveMinimum", False),
    ("MaxLength", "maxLength", None),
    ("MinLength", "minLength", None),
    ("Pattern", "pattern", ""),
    ("MaxItems", "maxItems", None),
    ("MinItems", "minItems", None),
    ("UniqueItems", "uniqueItems", False),
    ("MultipleOf", "multipleOf", None),
    ("Enum", "enum", None),
    ("MaxProperties", "maxProperties", None),
    ("MinProperties", "minProperties", None),
    ("Required", "required", None),
    ("Items", "items", None),
    ("AllOf", "allOf", None),
    ("OneOf", "oneOf", None),
    ("AnyOf", "anyOf", None),
    ("Not", "not", None),
    ("Properties", "properties", None),
    ("AdditionalProperties", "additionalProperties", None),
    ("PatternProperties", "patternProperties", None),
    ("Dependencies", "dependencies", None),
    ("AdditionalItems", "additionalItems", None),
    ("Definitions", "definitions", None),
    ("ExternalDocs", "externalDocs", None),
    ("Example", "example", None),
    ("XPreserveUnknownFields", "x-kubernetes-preserve-unknown-fields", None),
    ("XEmbeddedResource", "x-kubernetes-embedded-resource", False),
    ("XIntOrString", "x-kubernetes-int-or-string", False),
    ("XListMapKeys", "x-kubernetes-list-map-keys", None),
    ("XListType", "x-kubernetes-list-type", None),
    ("XMapType", "x-kubernetes-map-type", None),
    ("XValidations", "x-kubernetes-validations", None),
)


def shown_rule(rule: Mapping[str, Any]) -> Raw:
    """Give a rule as messages show it."""
    return {
        "Rule": rule.get("rule", ""),
        "Message": rule.get("message", ""),
        "MessageExpression": rule.get("messageExpression", ""),
        "Reason": rule.get("reason"),
        "FieldPath": rule.get("fieldPath", ""),
        "OptionalOldSelf": rule.get("optionalOldSelf"),
    }


def shown_schema(schema: Mapping[str, Any]) -> Raw:
    """Give a schema as messages show it."""
    return {go: _shown_keyword(name, schema.get(name, zero)) for go, name, zero in GO_NAMES}


def _shown_keyword(name: str, value: Any) -> Any:
    if value is None:
        return None
    match name:
        case "items":
            if isinstance(value, list):
                return {"Schema": None, "JSONSchemas": [shown_schema(item) for item in value]}
            return {"Schema": shown_schema(value), "JSONSchemas": None}
        case "additionalProperties" | "additionalItems":
            if isinstance(value, bool):
                return {"Allows": value, "Schema": None}
            return {"Allows": True, "Schema": shown_schema(value)}
        case "allOf" | "anyOf" | "oneOf":
            return [shown_schema(item) for item in value]
        case "not":
            return shown_schema(value)
        case "properties" | "patternProperties" | "definitions":
            return {key: shown_schema(value[key]) for key in sorted(value)}
        case "externalDocs":
            return {"Description": value.get("description", ""), "URL": value.get("url", "")}
        case "x-kubernetes-validations":
            return [shown_rule(rule) for rule in value]
        case _:
            return value


def shown_versions(versions: list[Raw] | None) -> str:
    """Write versions as messages show them."""
    if versions is None:
        return "null"
    listed = []
    for version in versions:
        schema = version.get("schema")
        listed.append(
            {
                "Name": version.get("name", ""),
                "Served": version.get("served", False),
                "Storage": version.get("storage", False),
                "Deprecated": version.get("deprecated", False),
                "DeprecationWarning": version.get("deprecationWarning"),
                "Schema": None
                if schema is None
                else {
                    "OpenAPIV3Schema": shown_schema(schema["openAPIV3Schema"]) if "openAPIV3Schema" in schema else None
                },
                "Subresources": _shown_subresources(version.get("subresources")),
                "AdditionalPrinterColumns": [
                    {
                        "Name": column.get("name", ""),
                        "Type": column.get("type", ""),
                        "Format": column.get("format", ""),
                        "Description": column.get("description", ""),
                        "Priority": column.get("priority", 0),
                        "JSONPath": column.get("jsonPath", ""),
                    }
                    for column in version["additionalPrinterColumns"]
                ]
                if version.get("additionalPrinterColumns") is not None
                else None,
                "SelectableFields": [
                    {"JSONPath": field.get("jsonPath", "")} for field in version.get("selectableFields") or []
                ]
                or None,
            }
        )
    return cut(to_json(listed))


def _shown_subresources(found: Mapping[str, Any] | None) -> Raw | None:
    if found is None:
        return None
    scale = found.get("scale")
    return {
        "Status": found.get("status"),
        "Scale": None
        if scale is None
        else {
            "SpecReplicasPath": scale.get("specReplicasPath", ""),
            "StatusReplicasPath": scale.get("statusReplicasPath", ""),
            "LabelSelectorPath": scale.get("labelSelectorPath"),
        },
    }


def cut(text: str) -> str:
    """Cut a structure that is too long to be repeated."""
    return golang.cut(text, MAX_SHOWN)
