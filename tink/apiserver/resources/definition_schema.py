"""The schema of CustomResourceDefinitions themselves (k8s.io/apiextensions-apiserver, apiextensions/v1)."""

from __future__ import annotations

from tink.schema import Raw

_TEXT: Raw = {"type": "string"}
_TEXTS: Raw = {"type": "array", "items": _TEXT, "x-kubernetes-list-type": "atomic"}
ANY: Raw = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
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
        "schema": {"type": "object", "properties": {"openAPIV3Schema": ANY}},
        "subresources": {
            "type": "object",
            "properties": {
                "status": ANY,
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
