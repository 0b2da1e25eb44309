"""Discovery documents: the served groups, versions and resources. Pure functions of the registry.

There are two forms: the classic one (`/api`, `/apis`, `/apis/<group>`, `/apis/<group>/<version>`) and the aggregated
one (apidiscovery.k8s.io/v2, and v2beta1 for kubectl 1.26 to 1.29), in which kubectl gets everything with two requests.
Besides the resources of the registry they list the reviews.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence

from tink.kubeapi.apiserver.resources.registry import VERBS, Registry, Resource
from tink.kubeapi.apiserver.write.reviews import REVIEWS
from tink.kubeapi.schema.shapes import Raw

VERSION: Raw = {
    "major": "1",
    "minor": "36",
    "emulationMajor": "1",
    "emulationMinor": "36",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "35",
    "gitVersion": "v1.36.3+tinkedge",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "linux/amd64",
}
"""The answer of `/version`: the Kubernetes version whose behaviour this server follows. kubectl compares it with its
own."""

_ORDER = (
    *("", "events.k8s.io", "authentication.k8s.io", "authorization.k8s.io"),
    *("admissionregistration.k8s.io", "apiextensions.k8s.io", "coordination.k8s.io"),
)
"""The order of groups on a real server; other groups follow by name. kubectl resolves short names in this order."""
_ON_STATUS = ["get", "patch", "update"]
_SCALE = {"group": "autoscaling", "version": "v1", "kind": "Scale"}


def served_groups(registry: Registry) -> dict[str, dict[str, list[Resource]]]:
    """Return group -> version -> resources and reviews, in the order of discovery."""
    found = registry.groups()
    for review in REVIEWS:
        if registry.find(review.group, review.version, review.plural) is None:
            found.setdefault(review.group, {}).setdefault(review.version, []).append(review)
    for versions in found.values():
        for listed in versions.values():
            listed.sort(key=lambda item: item.plural)
    return {
        group: found[group]
        for group in sorted(found, key=lambda one: (_ORDER.index(one) if one in _ORDER else len(_ORDER), one))
    }


def core_versions(address: str = "") -> Raw:
    """Return the document `/api`. `address` is the host:port by which the client reached this server."""
    served_at = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}] if address else []
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": served_at}


def group(name: str, versions: Sequence[str]) -> Raw:
    """Return the document `/apis/<group>`; versions in the order of preference."""
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)}


def _group(name: str, versions: Sequence[str]) -> Raw:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def groups(registry: Registry) -> Raw:
    """Return the document `/apis`."""
    found = [_group(name, list(versions)) for name, versions in served_groups(registry).items() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}


def resource_list(group_version: str, resources: Iterable[Resource]) -> Raw:
    """Return the document `/api/v1` or `/apis/<group>/<version>`."""
    listed: list[Raw] = []
    for resource in resources:
        item: Raw = {
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": verbs(resource),
            **_names(resource),
        }
        if not resource.virtual:
            item["storageVersionHash"] = storage_hash(resource)
        listed.append(item)
        for name, kind, allowed in subresources(resource):
            listed.append(
                {
                    "name": f"{resource.plural}/{name}",
                    "singularName": "",
                    "namespaced": resource.namespaced,
                    **kind,
                    "verbs": allowed,
                }
            )
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": listed}


def aggregated(registry: Registry, *, core: bool, version: str = "v2") -> Raw:
    """Return the aggregated form of `/api` (core) or `/apis`, in a version of apidiscovery.k8s.io."""
    items: list[Raw] = [
        {
            "metadata": {"name": name} if name else {},
            "versions": [
                {
                    "version": version,
                    "resources": [_aggregated(resource) for resource in resources],
                    "freshness": "Current",
                }
                for version, resources in versions.items()
            ],
        }
        for name, versions in served_groups(registry).items()
        if (not name) == core
    ]
    kind = {"kind": "APIGroupDiscoveryList", "apiVersion": f"apidiscovery.k8s.io/{version}"}
    return {**kind, "metadata": {}, "items": items}


def _aggregated(resource: Resource) -> Raw:
    item: Raw = {
        "resource": resource.plural,
        "responseKind": _response_kind(resource, {"kind": resource.kind}),
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": verbs(resource),
        **_names(resource),
    }
    if below := subresources(resource):
        item["subresources"] = [
            {"subresource": name, "responseKind": _response_kind(resource, kind), "verbs": allowed}
            for name, kind, allowed in below
        ]
    return item


def _response_kind(resource: Resource, kind: Raw) -> Raw:
    """Return the kind of answers. A real server omits group and version where they are those of a built-in type."""
    where = {"group": resource.group, "version": resource.version} if resource.custom else {"group": "", "version": ""}
    return {**where, **kind}


def verbs(resource: Resource) -> list[str]:
    """Return the verbs of a resource, in the order of a real server."""
    if resource.virtual:
        return ["create"] if resource.verbs else []
    if resource.custom:
        return list(VERBS)
    # Namespaces are deleted one by one, because each deletion includes the content.
    return sorted(verb for verb in VERBS if resource.key != "/namespaces" or verb != "deletecollection")


def subresources(resource: Resource) -> list[tuple[str, Raw, list[str]]]:
    """Return the subresources: name, kind (with group and version if they differ), verbs."""
    own = {"kind": resource.kind}
    beside: list[tuple[str, Raw, list[str]]] = [
        (name, _SCALE, _ON_STATUS) if name == "scale" else (name, own, ["update"]) for name in resource.subresources
    ]
    status: list[tuple[str, Raw, list[str]]] = [("status", own, _ON_STATUS)] if resource.status else []
    # Those of a definition are in the order of its schema, those of built-in resources by name.
    return status + beside if resource.custom else sorted(beside + status, key=lambda item: item[0])


def _names(resource: Resource) -> Raw:
    made: Raw = {}
    if resource.short_names:
        made["shortNames"] = list(resource.short_names)
    if resource.categories:
        made["categories"] = list(resource.categories)
    return made


def storage_hash(resource: Resource) -> str:
    """Return a hash of the storage version (k8s.io/apiserver, pkg/endpoints/discovery), for storage migration tools."""
    version = resource.stored_api_version
    stored = f"{version if '/' in version else f'/{version}'}/{resource.kind}"
    return base64.b64encode(hashlib.sha256(stored.encode()).digest()[:8]).decode()
