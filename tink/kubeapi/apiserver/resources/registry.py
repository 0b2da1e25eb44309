"""The registry: one `Resource` for each group, version and plural, with its rules.

It contains the built-in resources from the start, and the resources of CustomResourceDefinitions as soon as they are
stored. Discovery, OpenAPI and the verbs read it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from tink.kubeapi.apiserver.managed_fields.field_manager import BLANK, FieldManager
from tink.kubeapi.apiserver.tables import AGE, NAME, Column
from tink.kubeapi.schema import meta
from tink.kubeapi.schema.field_errors import CompiledSchema, FieldError, invalid_whole
from tink.kubeapi.schema.rules import Validations
from tink.kubeapi.schema.shapes import Raw
from tink.kubeapi.schema.structural import compile_schema, root_schema


@dataclass(frozen=True, slots=True)
class ScalePaths:
    """Paths of the wanted and actual replicas in an object, and of the selector of the scaled objects."""

    wanted: tuple[str, ...]
    actual: tuple[str, ...]
    selector: tuple[str, ...] = ()

    @staticmethod
    def of(version: Mapping[str, Any]) -> ScalePaths | None:
        """Return the paths of a version of a definition; None if it has no scale."""
        scale = (version.get("subresources") or {}).get("scale")
        if scale is None:
            return None
        names = ("specReplicasPath", "statusReplicasPath", "labelSelectorPath")
        wanted, actual, selector = (tuple((scale.get(name) or "").removeprefix(".").split(".")) for name in names)
        return ScalePaths(wanted, actual, () if selector == ("",) else selector)


_INT32_MAX = (1 << 31) - 1


def scale_check(scale: Raw) -> Callable[[Raw, Raw | None], Iterator[FieldError]]:
    """Return a check of the fields that scale reads (pkg/registry/customresource/validator.go)."""

    def check(new: Raw, _old: Raw | None) -> Iterator[FieldError]:
        for path in (scale["specReplicasPath"], scale["statusReplicasPath"]):
            value = _at(new, path, 0)
            if not isinstance(value, int) or isinstance(value, bool):
                yield invalid_whole(path, value, "must be an integer")
            elif value < 0:
                yield invalid_whole(path, value, "should be a non-negative integer")
            elif value > _INT32_MAX:
                yield invalid_whole(path, value, f"should be less than or equal to {_INT32_MAX}")
        if (path := scale.get("labelSelectorPath")) is not None:
            selector = _at(new, path, "")
            if not isinstance(selector, str):
                yield invalid_whole(path, selector, "must be a string")

    return check


def _at(obj: Any, path: str, zero: Any) -> Any:
    """Return the value at a simple path: `zero` if it is missing, or the value that is no object on the way."""
    for step in path.removeprefix(".").split("."):
        if not isinstance(obj, dict):
            return obj
        obj = obj.get(step, zero)
    return obj


VERBS = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")

NAME_FIELD: Mapping[str, tuple[str, ...]] = {"metadata.name": ("metadata", "name")}
NAMESPACED_FIELDS: Mapping[str, tuple[str, ...]] = {**NAME_FIELD, "metadata.namespace": ("metadata", "namespace")}


def keep_status_apart(new: Raw, old: Raw, subresource: str, has_status: bool) -> Raw:
    """Return the allowed change of an object: only the status through /status, everything else otherwise."""
    if subresource == "status":
        return only(("status",), new, old)
    if has_status:
        new.pop("status", None)
        if "status" in old:
            new["status"] = old["status"]
    return new


def only(parts: Iterable[str], new: Raw, old: Raw) -> Raw:
    """Return `old` with some of its top-level fields as they are in `new`."""
    merged = {key: value for key, value in old.items() if key not in parts and key != "metadata"}
    merged["metadata"] = dict(old["metadata"])
    # The owners change with every part, and a client may reset them through any part.
    if "managedFields" in new["metadata"]:
        merged["metadata"]["managedFields"] = new["metadata"]["managedFields"]
    return merged | {key: new[key] for key in parts if key in new}


@dataclass(frozen=True)
class Rules:
    """The rules of a resource's objects, beyond their schema.

    - `name`: check of names;
    - `typed`: Kubernetes reads objects into Go types, so a value of a wrong type is refused (400);
    - `creates`: an update may create;
    - `generation`: counts changes of everything but metadata, and but a status with its own subresource;
    - `unconditional`: an update needs no resourceVersion;
    - `cost`: duration of a check, relative to other objects of the same size;
    - `strategic`: strategic merge patches are accepted;
    - `qualifies`: finalizers of a built-in type need a domain;
    - `holds`: a deleted object is only marked while this is True; `controllers.Lifecycle` releases it;
    - `may_delete`: why the object of a name must stay, or None;
    - `limit`: the allowed change through a subresource ("" is none);
    - `complete`: adds values that a client may omit and a schema cannot express;
    - `prepare`: sets the values of the server (`old` is None for a create);
    - `check`: finds errors that a schema cannot express;
    - `warn`: warnings for the writer;
    - `selectable`: fields that a field selector may name.
    """

    name: meta.NameRule = meta.subdomain
    typed: bool = False
    creates: bool = False
    generation: bool = False
    unconditional: bool = True
    cost: int = 1
    strategic: bool = True
    qualifies: bool = True
    holds: Callable[[Raw], bool] = lambda _obj: False
    may_delete: Callable[[str], str | None] = lambda _name: None
    limit: Callable[[Raw, Raw, str, bool], Raw] = keep_status_apart
    complete: Callable[[Raw], None] = lambda _obj: None
    prepare: Callable[[Raw, Raw | None, datetime], None] = lambda _new, _old, _now: None
    check: Callable[[Raw, Raw | None], Iterable[FieldError]] = lambda _new, _old: ()
    warn: Callable[[Raw], list[str]] = lambda _new: []
    selectable: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: NAMESPACED_FIELDS)


CUSTOM = Rules(generation=True, unconditional=False, strategic=False)  # The rules of every custom resource


@dataclass(frozen=True, eq=False)
class Resource:
    """One resource in one version.

    - `openapi`: the schema of its objects; `compiled`: the same as a function; `validations`: its CEL rules;
    - `subresources`: those besides `status`; `scale`: the paths of the scale subresource;
    - `virtual`: requests are answered without storing an object;
    - `stored_version`: the storage version of a custom resource; "" for built-in resources;
    - `stored_group`: the group whose resource of the same name holds the objects, if it is another one;
    - `conversion`: the `Converter` between versions; None if only the apiVersion changes;
    - `defined_at`: older objects (by resourceVersion) were checked by another schema;
    - `terminating`: no object may be created, because the definition is being deleted;
    - `others`: the schemas of the other served versions, by apiVersion.
    """

    group: str
    version: str
    plural: str
    kind: str
    openapi: Raw
    compiled: CompiledSchema
    singular: str = ""
    list_kind: str = ""
    namespaced: bool = True
    short_names: Sequence[str] = ()
    categories: Sequence[str] = ()
    columns: Sequence[Column] = (NAME, AGE)
    verbs: Sequence[str] = VERBS
    status: bool = False
    subresources: Sequence[str] = ()
    virtual: bool = False
    scale: ScalePaths | None = None
    stored_version: str = ""
    stored_group: str | None = None
    rules: Rules = CUSTOM
    warning: str = ""
    validations: Validations | None = None
    conversion: Any = None
    defined_at: int = 0
    terminating: bool = False
    others: Mapping[str, Raw] = field(default_factory=dict)

    @cached_property
    def fields(self) -> FieldManager:
        """The manager of field owners, made on first use."""
        rule = self.conversion
        by_webhook = rule is not None and rule.by_webhook
        return FieldManager(
            root_schema(self.openapi),
            self.api_version,
            status=self.status,
            kind=self.kind,
            blank=None if self.custom else BLANK.get((self.group, self.kind)),
            others={name: None if by_webhook else root_schema(openapi) for name, openapi in self.others.items()},
            convert=rule.here if rule is not None else None,
        )

    @property
    def parts(self) -> Sequence[str]:
        """All subresources."""
        return ("status", *self.subresources) if self.status else self.subresources

    @property
    def key(self) -> str:
        """The name of the resource in the store: the same for all its versions and names."""
        return f"{self.kind_group}/{self.plural}"

    @property
    def kind_group(self) -> str:
        """The group of the stored kind, which refusals of objects name."""
        return self.group if self.stored_group is None else self.stored_group

    @property
    def custom(self) -> bool:
        """True if a definition describes the resource. Kubernetes treats such resources slightly differently from
        its own."""
        return bool(self.stored_version)

    @property
    def api_version(self) -> str:
        """`group/version`, or `v1` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def stored_api_version(self) -> str:
        """`group/version` of the objects in the store."""
        version = self.stored_version or self.version
        return f"{self.kind_group}/{version}" if self.kind_group else version

    @property
    def crd_name(self) -> str:
        """`plural.group`: the name of the definition, and the resource's name in messages."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


def builtin_resource(
    group: str, plural: str, kind: str, openapi: Raw, rules: Rules, compiled: CompiledSchema | None = None, **more: Any
) -> Resource:
    """Return a resource of Kubernetes in its version v1; `compiled` if it is not compiled from `openapi`."""
    compiled = compiled or compile_schema(root_schema(openapi))
    names = {"singular": kind.lower(), "list_kind": f"{kind}List"}
    return Resource(group, "v1", plural, kind, openapi, compiled, rules=rules, **(names | more))


class Registry:
    """The resources that are served now."""

    def __init__(self, resources: Iterable[Resource] = ()) -> None:
        self._resources = {(one.group, one.version, one.plural): one for one in resources}
        self._custom: dict[str, list[tuple[str, str, str]]] = {}
        self.revision = 0  # Number that grows with every change; caches of documents compare it

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        """Return a resource; None if it is not served."""
        return self._resources.get((group, version, plural))

    def all(self) -> list[Resource]:
        """Return all resources, grouped by group and version, in the order of addition."""
        return list(self._resources.values())

    def of_key(self, key: str) -> Resource | None:
        """Return any version of a resource, by its name in the store."""
        return next((resource for resource in self._resources.values() if resource.key == key), None)

    def stored(self, key: str) -> Resource:
        """Return a built-in resource, by its name in the store."""
        if (found := self.of_key(key)) is None:
            raise LookupError(f"{key} is not built in")
        return found

    def versions(self, resource: Resource) -> list[Resource]:
        """Return all served versions of a resource."""
        return [other for other in self._resources.values() if other.key == resource.key]

    def groups(self) -> dict[str, dict[str, list[Resource]]]:
        """Return group -> version -> resources; versions in the order of preference (newest and most stable first)."""
        found: dict[str, dict[str, list[Resource]]] = {}
        for resource in self._resources.values():
            found.setdefault(resource.group, {}).setdefault(resource.version, []).append(resource)
        return {
            group: {version: versions[version] for version in sorted(versions, key=priority, reverse=True)}
            for group, versions in found.items()
        }

    def install(self, name: str, resources: Iterable[Resource]) -> None:
        """Replace the resources of a definition."""
        self.remove(name)
        for resource in resources:
            where = (resource.group, resource.version, resource.plural)
            self._resources[where] = resource
            self._custom.setdefault(name, []).append(where)
        self.revision += 1

    def remove(self, name: str) -> None:
        """Remove the resources of a definition."""
        for where in self._custom.pop(name, ()):
            del self._resources[where]
        self.revision += 1


def priority(version: str) -> tuple[int, int, int]:
    """Return the sort key of a version, as in Kubernetes: v2 > v1 > v1beta2 > v1beta1 > v1alpha1 > anything else."""
    found = re.fullmatch(r"v([0-9]+)(?:(alpha|beta)([0-9]+))?", version)
    if found is None:
        return (0, 0, 0)
    stability = {None: 3, "beta": 2, "alpha": 1}[found.group(2)]
    return (stability, int(found.group(1)), int(found.group(3) or 0))
