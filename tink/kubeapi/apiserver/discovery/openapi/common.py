"""The types that every document needs, and what `kubectl explain` says of Kubernetes' own: `types.yaml`, read late.

Schemas in this package name other types by `{"$ref": "<name>"}`; `publish` turns that into what each version of OpenAPI
wants.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tink.kubeapi.schema import Raw

META = "io.k8s.apimachinery.pkg.apis.meta.v1"
OBJECT_META, LIST_META, STATUS = f"{META}.ObjectMeta", f"{META}.ListMeta", f"{META}.Status"
PATCH, DELETE_OPTIONS = f"{META}.Patch", f"{META}.DeleteOptions"
SCALE = "io.k8s.api.autoscaling.v1.Scale"

API_VERSION: Raw = {
    "type": "string",
    "description": "Group and version of the schema of this object, e.g. tinkerbell.org/v1alpha2.",
}
KIND: Raw = {"type": "string", "description": "Kind of this object, in CamelCase. It can't be changed."}
METADATA: Raw = {"$ref": OBJECT_META, "description": "Name, labels and what else all objects have."}

PACKAGES: Mapping[str, str] = {
    "": "io.k8s.api.core",
    "coordination.k8s.io": "io.k8s.api.coordination",
    "events.k8s.io": "io.k8s.api.events",
    "admissionregistration.k8s.io": "io.k8s.api.admissionregistration",
    "authorization.k8s.io": "io.k8s.api.authorization",
    "authentication.k8s.io": "io.k8s.api.authentication",
    "apiextensions.k8s.io": "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions",
}
"""Where Kubernetes' own groups have their types; other groups: their name backwards."""


@cache
def _types() -> Raw:
    data: Raw = yaml.load(Path(__file__).with_name("types.yaml").read_bytes(), Loader=yaml.CSafeLoader)
    return data


@cache
def texts() -> Mapping[str, Mapping[str, Any]]:
    """Give type -> field -> its text, or its type and its text; under "" the text of the type."""
    return {f"{package}.{kind}": said for package, kinds in _types()["texts"].items() for kind, said in kinds.items()}


def common() -> Mapping[str, Raw]:
    """Give the schemas of metadata, options, Status and Scale (k8s.io/apimachinery, meta/v1)."""
    found: Mapping[str, Raw] = _types()["schemas"]["common"]
    return found


def definitions() -> Mapping[str, Raw]:
    """Return the types below openAPIV3Schema of a definition, which `schema.definition` checks."""
    found: Mapping[str, Raw] = _types()["schemas"]["definitions"]
    return found
