"""Metadata: what every object has, whatever its kind (Kubernetes API conventions, "Metadata").

Names, labels, annotations, owners and finalizers are checked here with Kubernetes' rules and words
(k8s.io/apimachinery, pkg/api/validation); who may change what on update is here too. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tink.apiserver import errors
from tink.apiserver.errors import FieldError

Raw = dict[str, Any]

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DNS_LABEL = re.compile(_LABEL)
DNS_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")

_SUBDOMAIN_WORDS = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL_WORDS = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_QUALIFIED_WORDS = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_VALUE_WORDS = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)

MAX_ANNOTATIONS = 256 << 10
"""All annotations of an object together, in bytes."""

NameRule = Callable[[str], str | None]
"""Says what is wrong with a name, or None."""


def subdomain(name: str) -> str | None:
    """Names of most objects: RFC 1123 subdomains."""
    if len(name) > 253:
        return "must be no more than 253 bytes"
    return None if DNS_SUBDOMAIN.fullmatch(name) else _SUBDOMAIN_WORDS


def label(name: str) -> str | None:
    """Names of namespaces: RFC 1123 labels."""
    if len(name) > 63:
        return "must be no more than 63 bytes"
    return None if DNS_LABEL.fullmatch(name) else _LABEL_WORDS


def qualified(name: str) -> str | None:
    """Keys of labels and annotations, and finalizers: an optional DNS prefix and a name."""
    prefix, slash, last = name.rpartition("/")
    if slash and subdomain(prefix):
        return f"prefix part {subdomain(prefix)}"
    if not last:
        return "name part must be non-empty"
    if len(last) > 63:
        return "name part must be no more than 63 bytes"
    return None if _QUALIFIED.fullmatch(last) else _QUALIFIED_WORDS


def check(meta: Mapping[str, Any], rule: NameRule) -> list[FieldError]:
    """Find what is wrong with the metadata of an object that is about to be stored."""
    found: list[FieldError] = []
    name = meta.get("name", "")
    if not name:
        found.append(errors.required("metadata.name", "name or generateName is required"))
    elif wrong := rule(name):
        found.append(errors.invalid_value("metadata.name", name, wrong))
    for key, value in (meta.get("labels") or {}).items():
        if wrong := qualified(key):
            found.append(errors.invalid_value("metadata.labels", key, wrong))
        if len(value) > 63:
            found.append(errors.invalid_value("metadata.labels", value, "must be no more than 63 bytes"))
        elif not _LABEL_VALUE.fullmatch(value):
            found.append(errors.invalid_value("metadata.labels", value, _VALUE_WORDS))
    size = 0
    for key, value in (meta.get("annotations") or {}).items():
        size += len(key) + len(value)
        if wrong := qualified(key.lower()):
            found.append(errors.invalid_value("metadata.annotations", key, wrong))
    if size > MAX_ANNOTATIONS:
        found.append(errors.too_long("metadata.annotations", MAX_ANNOTATIONS))
    for finalizer in meta.get("finalizers") or []:
        if wrong := qualified(finalizer):
            found.append(errors.invalid_value("metadata.finalizers", finalizer, wrong))
    return found + _check_owners(meta.get("ownerReferences") or [])


def _check_owners(owners: list[Raw]) -> list[FieldError]:
    found: list[FieldError] = []
    for index, owner in enumerate(owners):
        at = f"metadata.ownerReferences[{index}]"
        found += [
            errors.invalid_value(f"{at}.{key}", owner.get(key, ""), f"{key} must not be empty")
            for key in ("apiVersion", "kind", "name", "uid")
            if not owner.get(key)
        ]
    if sum(bool(owner.get("controller")) for owner in owners) > 1:
        found.append(
            errors.invalid_value(
                "metadata.ownerReferences", len(owners), "Only one reference can have Controller set to true"
            )
        )
    return found


OWNED = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds", "namespace")
"""Fields that only the server sets: an update keeps what they were."""


def keep_owned(new: Raw, old: Raw) -> None:
    """Give `new` the fields of `old` that no client may change."""
    for key in OWNED:
        if key in old:
            new[key] = old[key]
        else:
            new.pop(key, None)
    new.pop("selfLink", None)
    if new.get("generateName") is None and "generateName" in old:
        new["generateName"] = old["generateName"]


def check_update(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[FieldError]:
    """Find forbidden changes: no finalizer may be added to an object that is being deleted."""
    if "deletionTimestamp" not in old:
        return []
    added = [item for item in new.get("finalizers") or [] if item not in (old.get("finalizers") or [])]
    if not added:
        return []
    listed = ", ".join(errors.quote(item) for item in added)
    return [
        errors.forbidden_value(
            "metadata.finalizers",
            f"no new finalizers can be added if the object is being deleted, found new finalizers []string{{{listed}}}",
        )
    ]


def ordered(meta: Raw) -> Raw:
    """Put the fields in the order in which a reader looks for them."""
    first = ("name", "generateName", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp")
    return {key: meta[key] for key in first if key in meta} | {k: v for k, v in sorted(meta.items()) if k not in first}


_STRING: Raw = {"type": "string"}
_STRINGS: Raw = {"type": "object", "additionalProperties": _STRING}
_TIME: Raw = {"type": "string", "format": "date-time"}

OWNER_SCHEMA: Raw = {
    "type": "object",
    "description": "OwnerReference contains enough information to let you identify an owning object.",
    "properties": {
        "apiVersion": _STRING,
        "blockOwnerDeletion": {"type": "boolean"},
        "controller": {"type": "boolean"},
        "kind": _STRING,
        "name": _STRING,
        "uid": _STRING,
    },
}


def _described(schema: Raw, text: str) -> Raw:
    return {"description": text, **schema}


META_SCHEMA: Raw = {
    "type": "object",
    "description": "ObjectMeta is metadata that all persisted resources must have, which includes all objects users "
    "must create.",
    "properties": {
        "annotations": _described(_STRINGS, "Unstructured key value map that may be set by external tools."),
        "creationTimestamp": _described(_TIME, "When the server created this object, in UTC. Read-only."),
        "deletionGracePeriodSeconds": {"type": "integer", "format": "int64", "description": "Read-only."},
        "deletionTimestamp": _described(
            _TIME, "When this object was asked to be deleted; it goes when its finalizers are gone. Read-only."
        ),
        "finalizers": {
            "type": "array",
            "items": _STRING,
            "x-kubernetes-list-type": "set",
            "description": "Must be empty before the object is deleted from the registry.",
        },
        "generateName": _described(_STRING, "Prefix of a unique name that the server makes when no name is given."),
        "generation": {
            "type": "integer",
            "format": "int64",
            "description": "Counts the changes of the desired state. Read-only.",
        },
        "labels": _described(_STRINGS, "Map of keys and values to organize and select objects."),
        "managedFields": {
            "type": "array",
            "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "description": "Which workflow manages which fields of this object.",
        },
        "name": _described(_STRING, "Unique within a namespace. Cannot be updated."),
        "namespace": _described(_STRING, "The space within which the name must be unique. Cannot be updated."),
        "ownerReferences": {
            "type": "array",
            "items": OWNER_SCHEMA,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["uid"],
            "description": "Objects that this object depends on.",
        },
        "resourceVersion": _described(_STRING, "Opaque value that changes with every change of the object. Read-only."),
        "selfLink": _described(_STRING, "Deprecated and not set."),
        "uid": _described(_STRING, "Unique in time and space; set by the server on creation. Read-only."),
    },
}
