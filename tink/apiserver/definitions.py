"""CustomResourceDefinitions: checked and completed when they are written, and turned into what is served.

A definition that is stored is served at once, in every version that it lists as served; there is no moment between
(Kubernetes needs a controller and a few seconds for that). The conditions say so: NamesAccepted and Established.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from tink.apiserver import errors, meta, schema, structural
from tink.apiserver.errors import FieldError
from tink.apiserver.jsonpath import JSONPathError
from tink.apiserver.registry import CUSTOM, NAME_FIELD, Raw, Resource, Rules, root_schema
from tink.apiserver.table import AGE, NAME, Column, printer_column

GROUP = "apiextensions.k8s.io"
PLURAL = "customresourcedefinitions"
KEY = f"{GROUP}/{PLURAL}"
FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
"""Keeps a definition until all its objects are gone (`lifecycle`)."""

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
        "subresources": {"type": "object", "properties": {"status": _ANY, "scale": _ANY}},
        "selectableFields": {"type": "array", "items": _ANY},
        "additionalPrinterColumns": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "type", "jsonPath"],
                "properties": {
                    "name": _TEXT,
                    "type": {"type": "string", "enum": ["integer", "number", "string", "boolean", "date"]},
                    "jsonPath": _TEXT,
                    "description": _TEXT,
                    "format": _TEXT,
                    "priority": {"type": "integer", "format": "int32"},
                },
            },
        },
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
                "scope": {"type": "string", "enum": ["Cluster", "Namespaced"]},
                "versions": {
                    "type": "array",
                    "minItems": 1,
                    "items": _VERSION,
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                },
                "conversion": {
                    "type": "object",
                    "properties": {"strategy": {"type": "string", "enum": ["None"]}, "webhook": _ANY},
                },
                "preserveUnknownFields": {"type": "boolean", "enum": [False]},
            },
        },
        "status": {
            "type": "object",
            "properties": {
                "acceptedNames": _NAMES,
                "conditions": {"type": "array", "items": _ANY},
                "storedVersions": _TEXTS,
            },
        },
    },
}

Taken = Callable[[Raw], list[str]]
"""Says why the names of a definition cannot be accepted: what else has them."""


def definition_resource(taken: Taken) -> Resource:
    """Give the resource of CustomResourceDefinitions themselves."""

    def prepare(new: Raw, old: Raw | None, now: datetime) -> None:
        _complete(new, old, now, taken)

    return Resource(
        GROUP,
        "v1",
        PLURAL,
        "CustomResourceDefinition",
        SCHEMA,
        schema.compile_schema(root_schema(SCHEMA)),
        singular="customresourcedefinition",
        list_kind="CustomResourceDefinitionList",
        namespaced=False,
        short_names=("crd", "crds"),
        categories=("api-extensions",),
        columns=(
            NAME,
            Column("Created At", lambda obj, _: obj["metadata"].get("creationTimestamp"), AGE.description, "date"),
        ),
        rules=Rules(generation=True, prepare=prepare, check=_check, warn=_warn, selectable=NAME_FIELD),
    )


def _complete(new: Raw, old: Raw | None, now: datetime, taken: Taken) -> None:
    """Fill in what a definition leaves out, and its status. Only called for definitions that fit the schema."""
    spec = new["spec"]
    names = spec["names"]
    names.setdefault("singular", names["kind"].lower())
    names.setdefault("listKind", names["kind"] + "List")
    spec.setdefault("conversion", {"strategy": "None"})
    spec["conversion"].setdefault("strategy", "None")
    meta_fields = new["metadata"]
    if "deletionTimestamp" not in meta_fields and FINALIZER not in meta_fields.setdefault("finalizers", []):
        meta_fields["finalizers"].append(FINALIZER)
    conflicts = taken(new)
    stored = [version["name"] for version in spec["versions"] if version["storage"]]
    kept = [name for name in (old or {}).get("status", {}).get("storedVersions", []) if name not in stored]
    before = {item["type"]: item for item in (old or {}).get("status", {}).get("conditions", [])}
    conditions = [
        _condition("NamesAccepted", not conflicts, "NoConflicts", "; ".join(conflicts) or "no conflicts found"),
        _condition("Established", not conflicts, "InitialNamesAccepted", "the initial names have been accepted"),
    ]
    if "deletionTimestamp" in meta_fields:
        why = "CustomResource deletion is in progress"
        conditions.append(_condition("Terminating", True, "InstanceDeletionInProgress", why))
    for item in conditions:
        same = before.get(item["type"])
        item["lastTransitionTime"] = (
            same["lastTransitionTime"]
            if same is not None and same["status"] == item["status"]
            else now.strftime("%Y-%m-%dT%H:%M:%SZ")
        )
    new["status"] = {
        "acceptedNames": names if not conflicts else (old or {}).get("status", {}).get("acceptedNames", {}),
        "conditions": conditions,
        "storedVersions": kept + stored,
    }


def _condition(kind: str, holds: bool, reason: str, message: str) -> Raw:
    if not holds:
        reason = "NamesConflict" if kind == "NamesAccepted" else "NotAccepted"
        message = message if kind == "NamesAccepted" else "not all names are accepted"
    return {"type": kind, "status": "True" if holds else "False", "reason": reason, "message": message}


def established(definition: Raw) -> bool:
    """Whether what a definition describes is to be served."""
    return any(
        item.get("type") == "Established" and item.get("status") == "True"
        for item in definition.get("status", {}).get("conditions", [])
    )


def _check(new: Raw, old: Raw | None) -> list[FieldError]:
    spec = new["spec"]
    names = spec["names"]
    found: list[FieldError] = []
    if wrong := meta.subdomain(spec["group"]):
        found.append(errors.invalid_value("spec.group", spec["group"], wrong))
    elif "." not in spec["group"]:
        found.append(errors.invalid_value("spec.group", spec["group"], "should be a domain with at least one dot"))
    for key in ("plural", "singular"):
        if wrong := meta.label(names[key]):
            found.append(errors.invalid_value(f"spec.names.{key}", names[key], wrong))
    for key in ("kind", "listKind"):
        if wrong := meta.label(names[key].lower()):
            found.append(
                errors.invalid_value(
                    f"spec.names.{key}", names[key], f"may have mixed case, but should otherwise match: {wrong}"
                )
            )
    for key in ("shortNames", "categories"):
        for index, name in enumerate(names.get(key) or []):
            if wrong := meta.label(name):
                found.append(errors.invalid_value(f"spec.names.{key}[{index}]", name, wrong))
    if names["kind"] == names["listKind"]:
        found.append(
            errors.invalid_value("spec.names.listKind", names["listKind"], "kind and listKind may not be the same")
        )
    expected = f"{names['plural']}.{spec['group']}"
    if new["metadata"].get("name") != expected:
        found.append(
            errors.invalid_value(
                "metadata.name", new["metadata"].get("name", ""), 'must be spec.names.plural+"."+spec.group'
            )
        )
    storing = [version for version in spec["versions"] if version["storage"]]
    if len(storing) != 1:
        found.append(
            errors.invalid_value(
                "spec.versions", len(storing), "must have exactly one version marked as storage version"
            )
        )
    for index, version in enumerate(spec["versions"]):
        found += _check_version(version, f"spec.versions[{index}]")
    if old is not None:
        for path in (("group",), ("scope",), ("names", "plural"), ("names", "kind")):
            ours, theirs = spec, old["spec"]
            for step in path:
                ours, theirs = ours[step], theirs[step]
            if ours != theirs:
                found.append(errors.invalid_value(f"spec.{'.'.join(path)}", ours, "field is immutable"))
    return found


def _warn(new: Raw) -> list[str]:
    """Say which rules of a definition have no effect here."""
    return [
        f"spec.versions[{index}].schema.openAPIV3Schema: x-kubernetes-validations are not enforced by this API server"
        for index, version in enumerate(new["spec"]["versions"])
        if structural.has_rules(version["schema"]["openAPIV3Schema"])
    ]


def _check_version(version: Raw, at: str) -> list[FieldError]:
    found: list[FieldError] = []
    if wrong := meta.label(version["name"]):
        found.append(errors.invalid_value(f"{at}.name", version["name"], wrong))
    openapi = (version.get("schema") or {}).get("openAPIV3Schema")
    if openapi is None:
        found.append(errors.required(f"{at}.schema.openAPIV3Schema", "schemas are required"))
    else:
        found += structural.check(openapi, f"{at}.schema.openAPIV3Schema")
    for index, column in enumerate(version.get("additionalPrinterColumns") or []):
        try:
            printer_column(column)
        except JSONPathError as error:
            path = f"{at}.additionalPrinterColumns[{index}].jsonPath"
            found.append(errors.invalid_value(path, column["jsonPath"], str(error)))
    return found


def resources(definition: Raw) -> list[Resource]:
    """Compile what a stored definition describes: one resource for each version that is served."""
    spec = definition["spec"]
    names = spec["names"]
    stored = next(version["name"] for version in spec["versions"] if version["storage"])
    namespaced = spec["scope"] == "Namespaced"
    made = []
    for version in spec["versions"]:
        if not version["served"]:
            continue
        openapi = version["schema"]["openAPIV3Schema"]
        columns = [printer_column(column) for column in version.get("additionalPrinterColumns") or []] or [AGE]
        api_version = f"{spec['group']}/{version['name']}"
        warning = f"{api_version} {names['kind']} is deprecated"
        made.append(
            Resource(
                spec["group"],
                version["name"],
                names["plural"],
                names["kind"],
                openapi,
                schema.compile_schema(root_schema(openapi)),
                singular=names["singular"],
                list_kind=names["listKind"],
                namespaced=namespaced,
                short_names=names.get("shortNames") or (),
                categories=names.get("categories") or (),
                columns=(NAME, *columns),
                status="status" in (version.get("subresources") or {}),
                stored_version=stored,
                rules=CUSTOM if namespaced else Rules(**{**vars(CUSTOM), "selectable": NAME_FIELD}),
                warning=version.get("deprecationWarning", warning) if version.get("deprecated") else "",
            )
        )
    return made


def taken_names(definition: Raw, others: list[Resource]) -> list[str]:
    """Say which names of a definition another resource of its group has."""
    spec = definition["spec"]
    names = spec["names"]
    mine = {names["plural"], names["singular"], *(names.get("shortNames") or [])}
    conflicts = []
    for other in others:
        if other.group != spec["group"] or other.plural == names["plural"]:
            continue
        for name in sorted(mine & {other.plural, other.singular, *other.short_names}):
            conflicts.append(f'"{name}" is already in use by {other.crd_name}')
        if names["kind"] == other.kind:
            conflicts.append(f'"{names["kind"]}" is already in use by {other.crd_name}')
    return conflicts
