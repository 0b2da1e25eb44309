"""Discovery: how clients learn what is served. Pure functions from the registry to documents.

Both forms: the classic one (`/api`, `/apis`, `/apis/<group>`, `/apis/<group>/<version>`) and the aggregated one
(apidiscovery.k8s.io/v2), in which kubectl gets everything with two requests.
"""

from __future__ import annotations

from typing import Any

from tink.apiserver.registry import VERBS, Registry, Resource

Raw = dict[str, Any]

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

VERSION: Raw = {
    "major": "1",
    "minor": "32",
    "gitVersion": "v1.32.0+tinkedge",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "linux/amd64",
}
"""`/version`: the Kubernetes version whose behaviour this server follows; kubectl compares its own with it."""


def core_versions() -> Raw:
    """`/api`."""
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def group(name: str, versions: list[str]) -> Raw:
    """`/apis/<group>`; versions in the order of preference."""
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"kind": "APIGroup", "apiVersion": "v1", "name": name, "versions": listed, "preferredVersion": listed[0]}


def groups(registry: Registry) -> Raw:
    """`/apis`."""
    listed = [group(name, list(versions)) for name, versions in registry.groups().items() if name]
    for item in listed:
        del item["kind"], item["apiVersion"]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}


def resource_list(group_version: str, resources: list[Resource]) -> Raw:
    """`/api/v1` and `/apis/<group>/<version>`."""
    listed: list[Raw] = []
    for resource in resources:
        item: Raw = {
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": list(VERBS),
        }
        if resource.short_names:
            item["shortNames"] = list(resource.short_names)
        if resource.categories:
            item["categories"] = list(resource.categories)
        listed.append(item)
        if resource.status:
            listed.append(
                {
                    "name": f"{resource.plural}/status",
                    "singularName": "",
                    "namespaced": resource.namespaced,
                    "kind": resource.kind,
                    "verbs": ["get", "patch", "update"],
                }
            )
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": listed}


def aggregated(registry: Registry, *, core: bool) -> Raw:
    """`/api` (core) or `/apis` for clients that accept the aggregated form."""
    items = []
    for name, versions in registry.groups().items():
        if (not name) != core:
            continue
        items.append(
            {
                "metadata": {"name": name, "creationTimestamp": None} if name else {"creationTimestamp": None},
                "versions": [
                    {
                        "version": version,
                        "resources": [_aggregated(resource) for resource in resources],
                        "freshness": "Current",
                    }
                    for version, resources in versions.items()
                ],
            }
        )
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    }


def _aggregated(resource: Resource) -> Raw:
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    item: Raw = {
        "resource": resource.plural,
        "responseKind": kind,
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": list(VERBS),
    }
    if resource.short_names:
        item["shortNames"] = list(resource.short_names)
    if resource.categories:
        item["categories"] = list(resource.categories)
    if resource.status:
        verbs = ["get", "patch", "update"]
        item["subresources"] = [{"subresource": "status", "responseKind": kind, "verbs": verbs}]
    return item
