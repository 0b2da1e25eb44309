"""OpenAPI v3: what `kubectl explain` prints and what `kubectl apply` reads before it sends.

One document for each group and version, made from the registry's schemas. kubectl looks for three things: schemas with
`x-kubernetes-group-version-kind`, whether a path's PATCH takes the query `fieldValidation` (then the server validates),
and whether it takes strategic merge patches. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import orjson

from tink.apiserver import meta
from tink.apiserver.registry import Registry, Resource
from tink.apiserver.request import JSON, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, YAML

Raw = dict[str, Any]

_META = "io.k8s.apimachinery.pkg.apis.meta.v1"


def _ref(name: str) -> Raw:
    return {"$ref": f"#/components/schemas/{name}"}


def _query(name: str, kind: str, text: str) -> Raw:
    return {"name": name, "in": "query", "description": text, "schema": {"type": kind, "uniqueItems": True}}


_DRY_RUN = _query("dryRun", "string", "All: everything is checked, nothing is stored.")
_VALIDATION = _query(
    "fieldValidation", "string", "What to do about unknown and duplicate fields: Ignore, Warn (default) or Strict."
)
_WRITE = [_DRY_RUN, _query("fieldManager", "string", "Who makes the change."), _VALIDATION]
_LIST = [
    _query("allowWatchBookmarks", "boolean", "Send bookmarks on a watch."),
    _query("continue", "string", "Token of the previous part of the list."),
    _query("fieldSelector", "string", "Restricts the list by fields."),
    _query("labelSelector", "string", "Restricts the list by labels."),
    _query("limit", "integer", "Most objects in the answer."),
    _query("resourceVersion", "string", "Version to list or watch from."),
    _query("resourceVersionMatch", "string", "How resourceVersion is applied to a list."),
    _query("sendInitialEvents", "boolean", "Begin a watch with the objects that exist."),
    _query("timeoutSeconds", "integer", "How long a list or watch may last."),
    _query("watch", "boolean", "Watch instead of list."),
]


def schema_name(resource: Resource) -> str:
    """Name a schema as Kubernetes does: `org.tinkerbell.v1alpha2.Hardware`, `io.k8s.api.core.v1.Secret`."""
    if not resource.group:
        return f"io.k8s.api.core.{resource.version}.{resource.kind}"
    if resource.group == "coordination.k8s.io":
        return f"io.k8s.api.coordination.{resource.version}.{resource.kind}"
    return ".".join([*reversed(resource.group.split(".")), resource.version, resource.kind])


def document(resources: Iterable[Resource]) -> Raw:
    """Give the document of one group and version."""
    paths: Raw = {}
    schemas: Raw = {
        f"{_META}.ObjectMeta": _object_meta(),
        f"{_META}.OwnerReference": meta.OWNER_SCHEMA,
        f"{_META}.ListMeta": {
            "type": "object",
            "description": "ListMeta describes metadata that lists have.",
            "properties": {name: {"type": "string"} for name in ("continue", "resourceVersion", "selfLink")},
        },
    }
    for resource in resources:
        kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
        name = schema_name(resource)
        schemas[name] = {**_published(resource.openapi), "x-kubernetes-group-version-kind": [kind]}
        schemas[f"{name}List"] = {
            "type": "object",
            "description": f"{resource.list_kind} is a list of {resource.kind}",
            "required": ["items"],
            "properties": {
                "apiVersion": {"type": "string"},
                "kind": {"type": "string"},
                "metadata": _ref(f"{_META}.ListMeta"),
                "items": {"type": "array", "items": _ref(name)},
            },
            "x-kubernetes-group-version-kind": [{**kind, "kind": resource.list_kind}],
        }
        paths |= _paths(resource, kind, name)
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.32.0"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _object_meta() -> Raw:
    properties: Raw = dict(meta.META_SCHEMA["properties"])
    properties["ownerReferences"] = {
        **properties["ownerReferences"],
        "items": _ref(f"{_META}.OwnerReference"),
    }
    return {**meta.META_SCHEMA, "properties": properties}


def _published(openapi: Raw) -> Raw:
    properties = dict(openapi.get("properties") or {})
    properties.setdefault("apiVersion", {"type": "string", "description": "Version of the schema of this object."})
    properties.setdefault("kind", {"type": "string", "description": "Kind of this object."})
    properties["metadata"] = {"description": "Standard object's metadata.", "allOf": [_ref(f"{_META}.ObjectMeta")]}
    return {**openapi, "properties": properties}


def _paths(resource: Resource, kind: Raw, name: str) -> Raw:
    root = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    collection = (
        f"{root}/namespaces/{{namespace}}/{resource.plural}" if resource.namespaced else f"{root}/{resource.plural}"
    )
    at = [_in_path("namespace")] if resource.namespaced else []
    patches = [JSON_PATCH, MERGE_PATCH, *([STRATEGIC_PATCH] if resource.rules.strategic else [])]

    def operation(action: str, verb: str, parameters: list[Raw], answer: str, body: list[str] | None = None) -> Raw:
        made: Raw = {
            "operationId": f"{verb}{resource.kind}",
            "tags": [resource.api_version],
            "parameters": parameters,
            "responses": {"200": {"description": "OK", "content": {JSON: {"schema": _ref(answer)}}}},
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": kind,
        }
        if body is not None:
            schema = _ref(name) if body == [JSON, YAML] else {"type": "object"}
            made["requestBody"] = {"required": True, "content": {media: {"schema": schema} for media in body}}
        return made

    objects = [JSON, YAML]
    single: Raw = {
        "parameters": [_in_path("name"), *at],
        "get": operation("get", "read", [], name),
        "put": operation("put", "replace", _WRITE, name, objects),
        "patch": operation("patch", "patch", _WRITE, name, patches),
    }
    made: Raw = {
        collection: {
            "parameters": at,
            "get": operation("list", "list", _LIST, f"{name}List"),
            "post": operation("post", "create", _WRITE, name, objects),
            "delete": operation("deletecollection", "deleteCollection", [_DRY_RUN, *_LIST[2:4]], f"{name}List"),
        },
        f"{collection}/{{name}}": {**single, "delete": operation("delete", "delete", [_DRY_RUN], name)},
    }
    if resource.namespaced:
        made[f"{root}/{resource.plural}"] = {"get": operation("list", "listAll", _LIST, f"{name}List")}
    if resource.status:
        made[f"{collection}/{{name}}/status"] = single
    return made


def _in_path(name: str) -> Raw:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "uniqueItems": True}}


class OpenAPI:
    """The documents of all groups and versions, made again when the registry changes."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._revision = -1
        self._documents: dict[str, bytes] = {}

    def index(self) -> Raw:
        """`/openapi/v3`: where the documents are; the hash lets kubectl keep them on its disk."""
        return {
            "paths": {
                path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={hashlib.sha256(text).hexdigest()}"}
                for path, text in self._current().items()
            }
        }

    def text(self, path: str) -> bytes | None:
        """`/openapi/v3/<path>`, e.g. `apis/tinkerbell.org/v1alpha2`; None when there is no such group and version."""
        return self._current().get(path)

    def _current(self) -> dict[str, bytes]:
        if self._revision != self._registry.revision:
            self._documents = {
                f"apis/{group}/{version}" if group else f"api/{version}": orjson.dumps(document(resources))
                for group, versions in self._registry.groups().items()
                for version, resources in versions.items()
            }
            self._revision = self._registry.revision
        return self._documents
