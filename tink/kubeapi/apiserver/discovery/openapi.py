"""OpenAPI documents: the source of `kubectl explain`, and of kubectl's checks before it sends.

    resource_schemas   schemas for clients, made from the registry's schemas and `types.yaml` (Kubernetes' own types)
    paths              the operations of a resource, in OpenAPI 3
    swagger_path_item  the same in OpenAPI 2
    OpenAPI            the documents: version 3, version 2, and version 2 as protobuf (`gnostic`)

kubectl looks for three things: types with `x-kubernetes-group-version-kind`, whether the PATCH of a path accepts
`fieldValidation` (then the server validates), and whether it accepts strategic merge patches. The registry's schemas
are never changed. Schemas in `types.yaml` refer to other types by `{"$ref": "<name>"}`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import yaml

from tink.kubeapi.apiserver import media
from tink.kubeapi.apiserver.discovery import gnostic
from tink.kubeapi.apiserver.discovery.groups import served_groups, subresources, verbs
from tink.kubeapi.apiserver.resources.registry import Registry, Resource
from tink.kubeapi.schema.shapes import Raw
from tink.limits import shrink_to_fit

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
"""Packages of Kubernetes' own types by group. The package of any other group is its name backwards."""


@cache
def _types() -> Raw:
    data: Raw = yaml.load(Path(__file__).with_name("types.yaml").read_bytes(), Loader=yaml.CSafeLoader)
    return data


@cache
def descriptions() -> Mapping[str, Mapping[str, Any]]:
    """Return type -> field -> its text, or its type and its text. The key "" holds the text of the type."""
    return {f"{package}.{kind}": text for package, kinds in _types()["texts"].items() for kind, text in kinds.items()}


def _schemas(part: str) -> Mapping[str, Raw]:
    """Return schemas of `types.yaml`: those of metadata, options, Status and Scale (`common`; k8s.io/apimachinery,
    meta/v1), or the types below openAPIV3Schema of a definition (`definitions`), which `schema.definition` checks."""
    found: Mapping[str, Raw] = _types()["schemas"][part]
    return found


_PRESERVE = "x-kubernetes-preserve-unknown-fields"
_EMBEDDED = "x-kubernetes-embedded-resource"
_INT_OR_STRING = "x-kubernetes-int-or-string"
_INT_OR_STRING_TYPES = [{"type": "integer"}, {"type": "string"}]
_LISTS = ("allOf", "anyOf", "oneOf")
_EMBEDDED_HEAD: Raw = {
    "apiVersion": {"type": "string", "description": "Group and version of the embedded object."},
    "kind": {"type": "string", "description": "Kind of the embedded object."},
}
_NOT_IN_2 = frozenset((*_LISTS, "not", "nullable", "default"))
"""Keywords that OpenAPI 2 lacks. kubectl mistakes a default there for a value that it must send."""


def schema_name(resource: Resource) -> str:
    """Return Kubernetes' name of a type: `org.tinkerbell.v1alpha2.Hardware`, `io.k8s.api.core.v1.Secret`."""
    package = PACKAGES.get(resource.group) or ".".join(reversed(resource.group.split(".")))
    return f"{package}.{resource.version}.{resource.kind}"


def resource_schemas(resource: Resource, *, version: int, custom: bool) -> dict[str, Raw]:
    """Return the types of a resource by name, for OpenAPI 2 or 3: its objects, their parts, and its lists.

    Clients get more than the server needs: apiVersion, kind and metadata as types of their own. In version 2 they get
    less: kubectl before 1.27 fails on keywords that Kubernetes' own conversion also omits
    (k8s.io/apiextensions-apiserver, pkg/controller/openapi). `custom`: a CustomResourceDefinition describes the
    resource.
    """
    name = schema_name(resource)
    kind = {"group": resource.group, "kind": resource.kind, "version": resource.version}
    extensions: Raw = {"x-kubernetes-group-version-kind": [kind]}
    if custom and (selectable := [field for field in resource.rules.selectable if not field.startswith("metadata.")]):
        extensions["x-kubernetes-selectable-fields"] = [{"fieldPath": field} for field in selectable]
    found: dict[str, Raw] = {}
    if custom:
        if version == 2 and resource.openapi.get(_PRESERVE):
            # With a list of properties, old clients would refuse all others.
            found[name] = {"type": "object"} | extensions
        else:
            made = _final(resource.openapi, version, foreign=True)
            properties = {**(made.get("properties") or {}), **_head(version)}
            found[name] = {**made, "type": "object", "properties": properties} | extensions
    else:
        for part, schema in _parts(name, resource.openapi).items():
            found[part] = _final(schema, version)
        root = found[name]
        found[name] = {**root, "properties": {**root["properties"], **_head(version)}, **extensions}
    if resource.list_kind:
        found[f"{name.removesuffix(resource.kind)}{resource.list_kind}"] = _list(resource, name, version, extensions)
    return found


def shared_schemas(version: int, names: set[str] | None = None) -> dict[str, Raw]:
    """Return the types that all documents share; with `names`, only these types and those they refer to."""
    known = _schemas("common")
    if names is None:
        return {name: _final(schema, version) for name, schema in known.items()}
    found: dict[str, Raw] = {}
    waiting = [name for name in names if name in known]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = _final(known[name], version)
            waiting += [other for other in _references(known[name]) if other in known]
    return dict(sorted(found.items()))


def _references(schema: Any) -> set[str]:
    if isinstance(schema, dict):
        own = {schema["$ref"]} if isinstance(schema.get("$ref"), str) else set()
        return own.union(*(_references(child) for child in schema.values()))
    return set()


def _head(version: int) -> Raw:
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": _final(METADATA, version)}


def _list(resource: Resource, name: str, version: int, extensions: Raw) -> Raw:
    properties: Raw = {
        "items": {"type": "array", "description": f"The {resource.plural}.", "items": {"$ref": name}},
        "metadata": {"$ref": LIST_META, "description": "Version of the list, and how to go on with it."},
    }
    kind = {"group": resource.group, "kind": resource.list_kind, "version": resource.version}
    made: Raw = {
        "type": "object",
        "description": f"{resource.list_kind} is a list of {resource.kind}",
        "required": ["items"],
        "properties": {key: _final(schema, version) for key, schema in properties.items()},
    }
    made["properties"] |= {"apiVersion": API_VERSION, "kind": KIND}
    return {**made, **extensions, "x-kubernetes-group-version-kind": [kind]}


# --- built-in types ---


def _parts(name: str, schema: Mapping[str, Any]) -> dict[str, Raw]:
    """Split a built-in type into the types that clients know, with a text for each field."""
    if name in (definitions := _schemas("definitions")):
        return dict(definitions)
    texts = descriptions().get(name, {})
    own: Raw = {**schema, "properties": {}}
    if description := texts.get(""):
        own["description"] = description
    found: dict[str, Raw] = {name: own}
    for key, part in (schema.get("properties") or {}).items():
        text = texts.get(key, "")
        if isinstance(text, str):
            own["properties"][key] = {**part, "description": text} if text else part
            continue
        inner = text[0] if "." in text[0] else f"{name.rpartition('.')[0]}.{text[0]}"
        if part.get("type") == "array":
            own["properties"][key] = {**part, "description": text[1], "items": {"$ref": inner}}
            part = part["items"]
        else:
            own["properties"][key] = {"$ref": inner, "description": text[1]}
        found |= _parts(inner, part)
    return found


# --- the form of a schema in both versions ---


def _final(schema: Mapping[str, Any], version: int, *, foreign: bool = False) -> Raw:
    """Return a schema in the form of OpenAPI 2 or 3. References in `foreign` schemas lead nowhere and are omitted."""
    out: Raw = {}
    for key, value in schema.items():
        if key == "properties" and isinstance(value, dict):
            out[key] = {name: _final(part, version, foreign=foreign) for name, part in value.items()}
        elif key in ("items", "additionalProperties", "not") and isinstance(value, dict):
            out[key] = _final(value, version, foreign=foreign)
        elif key in _LISTS and isinstance(value, list):
            out[key] = [_final(part, version, foreign=foreign) for part in value]
        elif key != "$ref" and (key != "uniqueItems" or value):
            out[key] = value
    if version == 2:
        _narrow(out, schema)
    elif schema.get(_INT_OR_STRING) and "anyOf" not in out and "allOf" not in out:
        out["anyOf"] = _INT_OR_STRING_TYPES
    if schema.get(_EMBEDDED) and not (version == 2 and schema.get(_PRESERVE)):
        # The field holds a whole object.
        required = set(out.get("required") or ())
        out["properties"] = {**(out.get("properties") or {}), **_EMBEDDED_HEAD, "metadata": _final(METADATA, version)}
        added = [name for name in ("kind", "apiVersion") if name not in required]
        out["required"] = sorted([*(out.get("required") or []), *added], key=lambda name: name == "apiVersion")
    if not foreign and "$ref" in schema:
        if version == 2:
            return {**out, "$ref": f"#/definitions/{schema['$ref']}"}
        reference = {"$ref": f"#/components/schemas/{schema['$ref']}"}
        return {**out, "allOf": [reference]} if out else reference
    return out


def _narrow(out: Raw, schema: Mapping[str, Any]) -> None:
    """Remove keywords that OpenAPI 2 lacks, in place. A field with too little left may hold anything."""
    for key in _NOT_IN_2 & out.keys():
        del out[key]
    nullable, preserve = schema.get("nullable"), schema.get(_PRESERVE)
    if nullable or preserve:
        out.pop("items", None)
        out.pop("properties", None)
    if nullable or (preserve and out.get("type") == "object") or (out.get("type") == "array" and "items" not in out):
        out.pop("type", None)
    values = schema.get("additionalProperties")
    if isinstance(values, dict) and values.get("nullable"):
        out.pop("required", None)
    if required := out.get("required"):
        parts = schema.get("properties") or {}
        left = [name for name in required if not (name in out.get("properties", {}) and parts[name].get("nullable"))]
        out["required"] = left
        if not left:
            del out["required"]


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
    *("allowWatchBookmarks", "continue", "fieldSelector", "labelSelector", "limit", "resourceVersion"),
    *("resourceVersionMatch", "sendInitialEvents", "timeoutSeconds", "watch"),
)
_WRITE = ("dryRun", "fieldManager", "fieldValidation")
_DELETE = (
    *("dryRun", "gracePeriodSeconds", "ignoreStoreReadErrorWithClusterBreakingPotential", "orphanDependents"),
    "propagationPolicy",
)
_RESPONSE_TEXTS = {200: "OK", 201: "Created", 202: "Accepted", 401: "Unauthorized"}


@dataclass(frozen=True, slots=True)
class _Verb:
    """One operation: HTTP method, Kubernetes' name, beginning of the id, options, codes, body."""

    method: str
    action: str
    name: str
    query: tuple[str, ...] = ()
    codes: tuple[int, ...] = (200,)
    body: str = ""


def group_name(group: str) -> str:
    """Return a group as part of an operation id: Coordination for `coordination.k8s.io`, TinkerbellOrg for
    `tinkerbell.org`."""
    parts = (group.removesuffix(".k8s.io") or "core").split(".")
    return "".join(part[:1].upper() + part[1:] for part in parts)


def paths(resource: Resource) -> dict[str, Raw]:
    """Return the path items of a resource, with the operation ids of a real server. Sources: k8s.io/apiserver,
    pkg/endpoints/installer.go; k8s.io/apiextensions-apiserver, pkg/controller/openapi."""
    base = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    collection = (
        f"{base}/namespaces/{{namespace}}/{resource.plural}" if resource.namespaced else f"{base}/{resource.plural}"
    )
    able = verbs(resource)
    on_one = _on_one(resource)
    made = {collection: _item(resource, collection, [verb for verb in _on_many(resource) if verb.action in able])}
    if "get" in able:
        single = f"{collection}/{{name}}"
        made[single] = _item(resource, single, on_one)
        for name, _, allowed in subresources(resource):
            # A PUT has the verb update.
            actions = [{"update": "put"}.get(verb, verb) for verb in allowed]
            listed = [verb for verb in on_one if verb.action in actions]
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
    """Return the operations of one path. Options that all of them have stand once, beside them."""
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
    group = group_name(resource.group)
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
    version = resource.version[:1].upper() + resource.version[1:]
    collection = "Collection" if verb.action == "deletecollection" else ""
    inside = "Namespaced" if "{namespace}" in path else ""
    everywhere = "ForAllNamespaces" if resource.namespaced and not inside else ""
    below = subresource[:1].upper() + subresource[1:]
    made: Raw = {
        "tags": [f"{group[0].lower()}{group[1:]}_{resource.version}"],
        "description": _description(resource, verb, subresource),
        "operationId": f"{verb.name}{group}{version}{collection}{inside}{resource.kind}{below}{everywhere}",
    }
    if own := _parameters(set(verb.query) - shared):
        made["parameters"] = own
    if body:
        content = [media.JSON, media.YAML] if resource.custom else ["*/*"]
        if verb.method == "patch":
            content = [
                media.APPLY_PATCH,
                media.JSON_PATCH,
                media.MERGE_PATCH,
                *([media.STRATEGIC_PATCH] if resource.rules.strategic else []),
            ]
        made["requestBody"] = {"content": _content(body, content)}
        if body != DELETE_OPTIONS:
            made["requestBody"]["required"] = True
    answers = [media.JSON, media.YAML]
    if not resource.custom:
        answers = sorted((media.JSON, media.YAML, media.PROTOBUF, *(media.STREAMS if verb.action == "list" else ())))
    made["responses"] = {
        str(code): {
            "description": _RESPONSE_TEXTS[code],
            **({"content": _content(answer, answers)} if code != 401 else {}),
        }
        for code in (*verb.codes, 401)
    }
    made["x-kubernetes-action"] = "post" if verb.action == "create" else verb.action
    made["x-kubernetes-group-version-kind"] = kind
    return made


def _content(name: str, media: Iterable[str]) -> Raw:
    return {kind: {"schema": {"$ref": f"{_V3}{name}"}} for kind in media}


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


_V3 = "#/components/schemas/"
_V2 = "#/definitions/"
_SWAGGER_METHODS = ("get", "put", "post", "delete", "patch")


def swagger_path_item(item: Raw) -> Raw:
    """Convert a path item to OpenAPI 2 (Swagger): bodies are parameters, and operations have media types."""
    made: Raw = {method: _swagger_operation(item[method]) for method in _SWAGGER_METHODS if method in item}
    made["parameters"] = [_swagger_parameter(parameter) for parameter in item["parameters"]]
    return made


def _swagger_operation(operation: Raw) -> Raw:
    body = operation.get("requestBody")
    answers: dict[str, Raw] = operation["responses"]
    content = answers["200"]["content"]
    parameters = [_swagger_parameter(parameter) for parameter in operation.get("parameters", [])]
    if body:
        required = {"required": True} if body.get("required") else {}
        given = {"name": "body", "in": "body", **required, "schema": _refer_2(body["content"])}
        parameters.insert(0, given)
    made: Raw = {
        "description": operation["description"],
        "consumes": sorted(body["content"]) if body else ["*/*"],
        "produces": sorted(content),
        "schemes": ["https"],
        "tags": operation["tags"],
        "operationId": operation["operationId"],
    }
    if parameters:
        made["parameters"] = parameters
    made["responses"] = {
        code: {
            "description": answer["description"],
            **({"schema": _refer_2(answer["content"])} if "content" in answer else {}),
        }
        for code, answer in answers.items()
    }
    return made | {key: value for key, value in operation.items() if key.startswith("x-")}


def _refer_2(content: dict[str, Any]) -> Raw:
    return {"$ref": next(iter(content.values()))["schema"]["$ref"].replace(_V3, _V2)}


def _swagger_parameter(parameter: Raw) -> Raw:
    kept = {key: value for key, value in parameter.items() if key != "schema"}
    return {**parameter["schema"], **kept}


KUBERNETES = "1.36"
_SECURITY: Raw = {
    "BearerToken": {
        "type": "apiKey",
        "description": "The token of the kubeconfig: Bearer <token>",
        "name": "authorization",
        "in": "header",
    }
}
_HEAD_2: Raw = {
    "swagger": "2.0",
    "info": {"title": "Kubernetes", "version": KUBERNETES},
    "securityDefinitions": _SECURITY,
    "security": [{"BearerToken": []}],
}


@dataclass(frozen=True, slots=True)
class Text:
    """A document as text, and its tag (RFC 9110 section 8.8.3): the SHA-512 of its JSON, as in Kubernetes."""

    body: bytes
    tag: str


_EncodedParts = tuple[dict[str, bytes], dict[str, bytes]]


@dataclass(slots=True)
class _GroupDocuments:
    """The cached parts of a group and version: its document of version 3, and its parts of version 2 by name."""

    resources: Sequence[Resource]
    document: Text | None = None
    parts: dict[bool, _EncodedParts] = field(default_factory=dict)
    """Path items and definitions, as JSON text (False) and as protobuf (True)."""


class OpenAPI:
    """The documents of a registry, built on demand and cached as text.

    There is one document of version 3 for each group and version, and one of version 2 for everything, joined from the
    pieces of the groups. When the registry changes, only the pieces of changed groups are rebuilt.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._revision = -1
        self._pieces: dict[str, _GroupDocuments] = {}
        self._whole: dict[str, Text] = {}  # the documents about all groups

    def index(self) -> Text:
        """Return `/openapi/v3`: the URLs of the documents. Their hashes let kubectl cache them on disk."""
        pieces = self._current()
        if "index" not in self._whole:
            listed = {path: {"serverRelativeURL": url(path, self._three(piece).tag)} for path, piece in pieces.items()}
            self._whole["index"] = _tagged(shrink_to_fit(orjson.dumps({"paths": listed})))
        return self._whole["index"]

    def three(self, path: str) -> Text | None:
        """Return `/openapi/v3/<path>`, e.g. `apis/tinkerbell.org/v1alpha2`; None for other groups and versions."""
        piece = self._current().get(path)
        return None if piece is None else self._three(piece)

    def two(self) -> Text:
        """Return `/openapi/v2` as JSON."""
        pieces = self._current()
        if "json" not in self._whole:
            items, definitions = _joined(pieces.values(), binary=False)
            head = orjson.dumps(_HEAD_2)[:-1]
            body = b"".join((head, b',"paths":', _object(items), b',"definitions":', _object(definitions), b"}"))
            self._whole["json"] = _tagged(body)
        return self._whole["json"]

    def two_binary(self) -> Text:
        """Return `/openapi/v2` as protobuf, with the tag of the JSON, as in Kubernetes: Vary distinguishes the two."""
        pieces = self._current()
        if "binary" not in self._whole:
            items, definitions = _joined(pieces.values(), binary=True)
            body = gnostic.document(_HEAD_2, sorted(items.items()), sorted(definitions.items()))
            self._whole["binary"] = Text(body, self.two().tag)
        return self._whole["binary"]

    def _three(self, piece: _GroupDocuments) -> Text:
        if piece.document is None:
            piece.document = _tagged(shrink_to_fit(orjson.dumps(document(piece.resources))))
        return piece.document

    def _current(self) -> dict[str, _GroupDocuments]:
        """Return the pieces of all served groups. The pieces of unchanged groups are reused."""
        if self._revision != self._registry.revision:
            pieces: dict[str, _GroupDocuments] = {}
            for group, versions in served_groups(self._registry).items():
                for version, resources in versions.items():
                    path = f"apis/{group}/{version}" if group else f"api/{version}"
                    old = self._pieces.get(path)
                    # Resources are compared by identity.
                    pieces[path] = old if old is not None and old.resources == resources else _GroupDocuments(resources)
            self._pieces = dict(sorted(pieces.items()))
            self._whole = {}
            self._revision = self._registry.revision
        return self._pieces


def url(path: str, tag: str) -> str:
    """Return the URL of a document of version 3 that clients may cache without limit."""
    return f"/openapi/v3/{path}?hash={tag}"


def document(resources: Sequence[Resource]) -> Raw:
    """Return the document of version 3 of one group and version."""
    custom = any(resource.custom for resource in resources)
    items: Raw = {}
    schemas: Raw = {}
    for resource in resources:
        items |= paths(resource)
        schemas |= resource_schemas(resource, version=3, custom=resource.custom)
    shared = {OBJECT_META, LIST_META, *_named_in(items)}
    title = {"title": "Kubernetes CRD Swagger", "version": "v0.1.0"}
    made: Raw = {
        "openapi": "3.0.0",
        "info": title if custom else {"title": "Kubernetes", "version": KUBERNETES},
        "paths": dict(sorted(items.items())),
        "components": {"schemas": dict(sorted({**shared_schemas(3, shared), **schemas}.items()))},
    }
    if not custom:
        made["components"]["securitySchemes"] = _SECURITY
    return made


def _named_in(items: Raw) -> set[str]:
    found: set[str] = set()
    for item in items.values():
        for operation in item.values():
            if isinstance(operation, dict):
                bodies = [operation.get("requestBody", {}), *operation["responses"].values()]
                for content in (body.get("content", {}) for body in bodies):
                    found.update(one["schema"]["$ref"].rpartition("/")[2] for one in content.values())
    return found


def _joined(pieces: Iterable[_GroupDocuments], *, binary: bool) -> _EncodedParts:
    write = gnostic.schema if binary else orjson.dumps
    items, definitions = dict[str, bytes](), {name: write(one) for name, one in shared_schemas(2).items()}
    for piece in pieces:
        if binary not in piece.parts:
            piece.parts[binary] = _encoded_parts(piece.resources, binary=binary)
        items |= piece.parts[binary][0]
        definitions |= piece.parts[binary][1]
    return items, definitions


def _encoded_parts(resources: Sequence[Resource], *, binary: bool) -> _EncodedParts:
    items: dict[str, bytes] = {}
    definitions: dict[str, bytes] = {}
    for resource in resources:
        for path, item in paths(resource).items():
            two = swagger_path_item(item)
            items[path] = gnostic.path_item(two) if binary else shrink_to_fit(orjson.dumps(two))
        for name, schema in resource_schemas(resource, version=2, custom=resource.custom).items():
            definitions[name] = gnostic.schema(schema) if binary else shrink_to_fit(orjson.dumps(schema))
    return items, definitions


def _object(members: dict[str, bytes]) -> bytes:
    """Return a JSON object whose values are JSON already."""
    return b"{" + b",".join(orjson.dumps(name) + b":" + value for name, value in sorted(members.items())) + b"}"


def _tagged(body: bytes) -> Text:
    return Text(body, hashlib.sha512(body).hexdigest().upper())
