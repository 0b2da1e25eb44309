"""What can be asked of a resource: the paths of a document, its operations and their parameters.

The same operations, under the same ids, that a real server publishes for a resource of that kind
(k8s.io/apiserver, pkg/endpoints/installer.go; k8s.io/apiextensions-apiserver, pkg/controller/openapi). kubectl reads
from them whether the server validates (`fieldValidation`), knows dry runs (`dryRun`) and takes strategic merge patches;
generators of clients read everything. Written for OpenAPI 3; `swagger` makes version 2 of it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tink.kubeapi.apiserver.discovery.groups import subresources, verbs
from tink.kubeapi.apiserver.discovery.openapi.common import DELETE_OPTIONS, PATCH, SCALE, STATUS
from tink.kubeapi.apiserver.discovery.openapi.publish import schema_name
from tink.kubeapi.apiserver.requests import JSON, JSON_PATCH, MERGE_PATCH, PROTOBUF, STRATEGIC_PATCH, STREAMS, YAML
from tink.kubeapi.apiserver.resources import Resource
from tink.kubeapi.schema import Raw

APPLY_PATCH = "application/apply-patch+yaml"

_QUERY: Mapping[str, tuple[str, str]] = {
    "allowWatchBookmarks": ("boolean", "Send events of type BOOKMARK on a watch."),
    "continue": ("string", "Token out of the part of the list before."),
    "dryRun": ("string", "All: everything is checked, nothing is stored."),
    "fieldManager": ("string", "Name under which the managed fields are noted. Required for apply."),
    "fieldSelector": ("string", "Only objects with these fields, e.g. metadata.name=x."),
    "fieldValidation": ("string", "Unknown and duplicate fields: Ignore, Warn (default) or Strict, which refuses."),
    "force": ("boolean", "For apply: take over fields that others manage."),
    "gracePeriodSeconds": ("integer", "Seconds that the object has to end."),
    "ignoreStoreReadErrorWithClusterBreakingPotential": ("boolean", "Delete objects that can't be read, unsafely."),
    "labelSelector": ("string", "Only objects with these labels."),
    "limit": ("integer", "Most objects in the answer; the rest comes by the token in metadata.continue."),
    "name": ("string", "Name of the object."),
    "namespace": ("string", "Namespace of the object."),
    "orphanDependents": ("boolean", "Old form of propagationPolicy."),
    "pretty": ("string", "true: the answer is indented."),
    "propagationPolicy": ("string", "What becomes of the dependents: Orphan, Background or Foreground."),
    "resourceVersion": ("string", "Version to read, list or watch from."),
    "resourceVersionMatch": ("string", "How resourceVersion is meant: Exact or NotOlderThan."),
    "sendInitialEvents": ("boolean", "Begin a watch with the objects that there are."),
    "timeoutSeconds": ("integer", "Seconds that the list or watch may last."),
    "watch": ("boolean", "Send changes as they come, instead of a list."),
}
_LIST = (
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
    "watch",
)
_WRITE = ("dryRun", "fieldManager", "fieldValidation")
_DELETE = (
    "dryRun",
    "gracePeriodSeconds",
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "orphanDependents",
    "propagationPolicy",
)
_SAID = {200: "OK", 201: "Created", 202: "Accepted", 401: "Unauthorized"}


@dataclass(frozen=True, slots=True)
class _Verb:
    """One operation: HTTP method, what Kubernetes calls it, how its id begins, options, codes, body."""

    method: str
    action: str
    name: str
    query: tuple[str, ...] = ()
    codes: tuple[int, ...] = (200,)
    body: str = ""


def group_name(group: str) -> str:
    """Write a group into an operation id: `coordination.k8s.io` is Coordination, `tinkerbell.org` TinkerbellOrg."""
    parts = (group.removesuffix(".k8s.io") or "core").split(".")
    return "".join(part[:1].upper() + part[1:] for part in parts)


def root(resource: Resource) -> str:
    """Give the path of a group and version."""
    return f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"


def paths(resource: Resource) -> dict[str, Raw]:
    """Give the path items of a resource."""
    base = root(resource)
    collection = (
        f"{base}/namespaces/{{namespace}}/{resource.plural}" if resource.namespaced else f"{base}/{resource.plural}"
    )
    able = verbs(resource)
    made = {collection: _item(resource, collection, [verb for verb in _on_many(resource) if verb.action in able])}
    if "get" in able:
        single = f"{collection}/{{name}}"
        made[single] = _item(resource, single, _on_one(resource))
        for name, _, allowed in subresources(resource):
            # A replacement is an update, whatever the verb is called.
            actions = [{"update": "put"}.get(verb, verb) for verb in allowed]
            listed = [verb for verb in _on_one(resource) if verb.action in actions]
            made[f"{single}/{name}"] = _item(resource, f"{single}/{name}", listed, name)
        if resource.namespaced:
            everywhere = _Verb("get", "list", "list", _LIST)
            made[f"{base}/{resource.plural}"] = _item(resource, f"{base}/{resource.plural}", [everywhere])
    return made


def _on_many(resource: Resource) -> Sequence[_Verb]:
    custom = resource.custom
    many = _LIST if custom else tuple(sorted({*_LIST, *_DELETE} - {"allowWatchBookmarks", "watch"}))
    body = "" if custom else DELETE_OPTIONS
    return (
        _Verb("get", "list", "list", _LIST),
        _Verb("post", "create", "create", _WRITE, (200, 201, 202), schema_name(resource)),
        _Verb("delete", "deletecollection", "delete", many, body=body),
    )


def _on_one(resource: Resource) -> Sequence[_Verb]:
    custom = resource.custom
    return (
        _Verb("get", "get", "read", ("resourceVersion",) if custom else ()),
        _Verb("put", "put", "replace", _WRITE, (200, 201), schema_name(resource)),
        _Verb("delete", "delete", "delete", _DELETE, (200, 202), DELETE_OPTIONS),
        _Verb("patch", "patch", "patch", (*_WRITE, "force"), (200,) if custom else (200, 201), PATCH),
    )


def _item(resource: Resource, path: str, listed: Sequence[_Verb], subresource: str = "") -> Raw:
    """Give the operations under one path; options that all of them have stand once, beside them."""
    shared = set.intersection(*(set(verb.query) for verb in listed))
    placed = [name for name in ("name", "namespace") if f"{{{name}}}" in path]
    item: Raw = {verb.method: _operation(resource, verb, path, subresource, shared) for verb in listed}
    item["parameters"] = _parameters({*shared, *placed, "pretty"}, placed)
    return item


def _parameters(names: Iterable[str], placed: Sequence[str] = ()) -> list[Raw]:
    return [
        {
            "name": name,
            "in": "path" if name in placed else "query",
            "description": _QUERY[name][1],
            **({"required": True} if name in placed else {}),
            "schema": {"type": _QUERY[name][0], "uniqueItems": True},
        }
        for name in sorted(names)
    ]


def _operation(resource: Resource, verb: _Verb, path: str, subresource: str, shared: set[str]) -> Raw:
    kind: Raw = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    name = schema_name(resource)
    body, answer = verb.body, name
    if subresource == "scale":
        answer, body = SCALE, SCALE if verb.method == "put" else body
        if not resource.custom:
            kind = {"group": "autoscaling", "version": "v1", "kind": "Scale"}
    elif verb.action in ("delete", "deletecollection"):
        answer = STATUS
    elif verb.action == "list":
        answer = f"{name.removesuffix(resource.kind)}{resource.list_kind}"
    made: Raw = {
        "tags": [_tag(resource)],
        "description": _description(resource, verb, subresource),
        "operationId": _id(resource, verb, path, subresource),
    }
    if own := _parameters(set(verb.query) - shared):
        made["parameters"] = own
    if body:
        made["requestBody"] = {"content": _content(body, _taken(resource, verb))}
        if body != DELETE_OPTIONS:
            made["requestBody"]["required"] = True
    made["responses"] = {
        str(code): {
            "description": _SAID[code],
            **({"content": _content(answer, _given(resource, verb))} if code != 401 else {}),
        }
        for code in (*verb.codes, 401)
    }
    made["x-kubernetes-action"] = "post" if verb.action == "create" else verb.action
    made["x-kubernetes-group-version-kind"] = kind
    return made


def _content(name: str, media: Iterable[str]) -> Raw:
    schema = {"$ref": f"#/components/schemas/{name}"}
    return {kind: {"schema": schema} for kind in media}


def _taken(resource: Resource, verb: _Verb) -> list[str]:
    """Say in which media types a body is taken."""
    if verb.method == "patch":
        return [APPLY_PATCH, JSON_PATCH, MERGE_PATCH, *([STRATEGIC_PATCH] if resource.rules.strategic else [])]
    return [JSON, YAML] if resource.custom else ["*/*"]


def _given(resource: Resource, verb: _Verb) -> list[str]:
    """Say in which media types an answer is given."""
    if resource.custom:
        return [JSON, YAML]
    return sorted((JSON, YAML, PROTOBUF, *(STREAMS if verb.action == "list" else ())))


def _tag(resource: Resource) -> str:
    name = group_name(resource.group)
    return f"{name[0].lower()}{name[1:]}_{resource.version}"


def _id(resource: Resource, verb: _Verb, path: str, subresource: str) -> str:
    version = resource.version[:1].upper() + resource.version[1:]
    collection = "Collection" if verb.action == "deletecollection" else ""
    inside = "Namespaced" if "{namespace}" in path else ""
    everywhere = "ForAllNamespaces" if resource.namespaced and not inside else ""
    below = subresource[:1].upper() + subresource[1:]
    return f"{verb.name}{group_name(resource.group)}{version}{collection}{inside}{resource.kind}{below}{everywhere}"


def _description(resource: Resource, verb: _Verb, subresource: str) -> str:
    below = f"{subresource} of " if subresource else ""
    article = "an" if resource.kind[:1] in "AEIOU" else "a"
    match verb.action:
        case "list":
            return f"list {'' if resource.custom else 'or watch '}objects of kind {resource.kind}"
        case "deletecollection":
            return f"delete collection of {resource.kind}"
        case "create" | "delete":
            return f"{verb.action} {article} {resource.kind}"
        case "patch":
            return f"partially update {below}the specified {resource.kind}"
    return f"{verb.name} {below}the specified {resource.kind}"
