"""What creating and updating do differently on the one way of a write (`pipeline`); Kubernetes calls it a strategy.

Each is one try of a write: the object as the client wants it, and, of an update, as it is. Sources: k8s.io/apiserver,
pkg/registry/rest (BeforeCreate, BeforeUpdate), pkg/registry/customresource/strategy.go.
"""

from __future__ import annotations

import secrets
import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import orjson

from tink.kubeapi.apiserver import conversion, errors, managed_fields
from tink.kubeapi.apiserver.requests import Target, WriteOptions
from tink.kubeapi.apiserver.resources import Resource
from tink.kubeapi.apiserver.store import Key, MismatchError, Stored
from tink.kubeapi.apiserver.write.persistence import Persistence
from tink.kubeapi.schema import FieldError, Raw, meta

_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Letters of generated names: no vowels, so no words (k8s.io/apimachinery, pkg/util/rand)."""


@dataclass(frozen=True, slots=True)
class Result:
    """An object as it is after a verb, as JSON text in the version of the request; `code` is the HTTP status."""

    body: bytes
    code: int = 200
    warnings: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Draft(ABC):
    """One try of a write: `new` is what is to be stored, `old` what is, both in the version of the request.

    `duplicates` are the fields that stand twice in the body. `submitted` is the object that a patch led to, as text.
    `applied`: the managed fields are right already. `size` is in bytes of JSON: how long the steps will take.
    """

    operation: ClassVar[Literal["CREATE", "UPDATE"]]

    resource: Resource
    target: Target
    options: WriteOptions
    new: Raw
    old: Raw | None = None
    size: int
    duplicates: tuple[str, ...] = ()
    submitted: bytes = b""
    applied: bool = False
    warnings: list[str] = field(default_factory=list)

    @property
    @abstractmethod
    def key(self) -> Key:
        """Where the object is stored; its name is "" as long as it has none."""

    @abstractmethod
    def prepare(self, new: Raw) -> Raw:
        """Give what of the object is the client's to say; the rest is as it was, or gone."""

    @abstractmethod
    def check_metadata(self) -> list[FieldError]:
        """Find what is wrong with the metadata."""

    @abstractmethod
    def complete(self, now: str) -> None:
        """Give the object what the server gives it, once it is right; `now` is a timestamp."""

    @abstractmethod
    async def store(self, persistence: Persistence) -> Result:
        """Store the object. Raises StatusError; MismatchError when it is not as it was when it was read."""


@dataclass(slots=True, kw_only=True)
class Create(Draft):
    """A new object."""

    operation: ClassVar[Literal["CREATE", "UPDATE"]] = "CREATE"

    @property
    def key(self) -> Key:
        """The name is in the object."""
        resource = self.resource
        namespace = self.target.namespace if resource.namespaced else ""
        return Key(resource.key, namespace, self.new["metadata"].get("name") or "")

    def prepare(self, new: Raw) -> Raw:
        """Drop what only the server sets, and put the object into the namespace of the request."""
        fields = new["metadata"]
        for name in (*meta.OWNED, "selfLink"):
            fields.pop(name, None)
        if self.resource.namespaced:
            fields["namespace"] = self.target.namespace
        return new

    def check_metadata(self) -> list[FieldError]:
        """Find what is wrong with the name and the rest."""
        return meta.check(self.new["metadata"], self.resource.rules.name)

    def complete(self, now: str) -> None:
        """Give the object its identity."""
        fields = self.new["metadata"]
        fields |= {"uid": str(uuid.uuid4()), "creationTimestamp": now}
        if self.resource.rules.generation:
            fields["generation"] = 1

    async def store(self, persistence: Persistence) -> Result:
        """Store the object where there is none."""
        resource, key = self.resource, self.key
        try:
            made = await persistence.put(resource, key, self.new, 0, dry_run=self.options.dry_run)
        except MismatchError as error:
            if self.applied:  # it exists by now: apply to what there is
                raise
            there = errors.already_exists(resource.group, resource.plural, key.name)
            stored = await persistence.find(key)
            if stored is not None and "deletionTimestamp" in orjson.loads(stored.body)["metadata"]:
                there.message = f"object is being deleted: {there.message}"
            raise there from error
        return Result(made, 201, self.warnings)


@dataclass(slots=True, kw_only=True)
class Update(Draft):
    """Another state of an object that there is."""

    operation: ClassVar[Literal["CREATE", "UPDATE"]] = "UPDATE"

    old: Raw
    stored: Stored

    @property
    def key(self) -> Key:
        """The object stays where it is."""
        return Key(self.resource.key, self.stored.namespace, self.stored.name)

    def prepare(self, new: Raw) -> Raw:
        """Keep what the subresource does not change, and what only the server sets."""
        new = self.resource.rules.limit(new, self.old, self.target.subresource, self.resource.status)
        fields, before = new["metadata"], self.old["metadata"]
        meta.keep_owned(fields, before)
        fields["resourceVersion"] = before["resourceVersion"]
        return new

    def check_metadata(self) -> list[FieldError]:
        """Find what is wrong with the metadata; the name of an object that exists is what it is."""
        fields = self.new["metadata"]
        return meta.check(fields, _any_name) + meta.check_update(fields, self.old["metadata"])

    def complete(self, _now: str) -> None:
        """Raise `metadata.generation` if the desired state has changed."""
        if not self.resource.rules.generation:
            return
        new, old = (_desired(obj, status_apart=self.resource.status) for obj in (self.new, self.old))
        if not managed_fields.same(new, old):
            self.new["metadata"]["generation"] = self.old["metadata"].get("generation", 0) + 1

    async def store(self, persistence: Persistence) -> Result:
        """Store the change, if it is one; remove the object when this was the last that it waited for."""
        resource, new, stored, dry_run = self.resource, self.new, self.stored, self.options.dry_run
        managed_fields.keep_times(new, self.old)
        held = new["metadata"].get("finalizers") or resource.rules.holds(new)
        if "deletionTimestamp" in self.old["metadata"] and not held:
            last = conversion.text(new, resource.api_version)
            if not dry_run:
                await persistence.remove(resource, self.key, new, stored.version)
            return Result(last, 200, self.warnings)
        # When nothing changes there is no write and no event.
        if new == self.old and managed_fields.same(new, self.old) and conversion.is_current(resource, stored):
            return Result(conversion.text(self.old, resource.api_version), 200, self.warnings)
        made = await persistence.put(resource, self.key, new, stored.version, dry_run=dry_run)
        return Result(made, 200, self.warnings)


def generate_name(new: Raw) -> None:
    """Give an object that has only a generateName a name, in place."""
    fields = new["metadata"]
    if not fields.get("name") and (prefix := fields.get("generateName")):
        fields["name"] = prefix[:58] + "".join(secrets.choice(_LETTERS) for _ in range(5))


def _desired(obj: Raw, *, status_apart: bool) -> Raw:
    """Return the fields of which `metadata.generation` counts the changes: all but metadata, and but for a status that
    has a subresource of its own.

    Source: k8s.io/apiextensions-apiserver, pkg/registry/customresource/strategy.go, PrepareForUpdate.
    """
    apart = ("metadata", "status") if status_apart else ("metadata",)
    return {key: value for key, value in obj.items() if key not in apart}


def _any_name(_: str) -> None:
    """Take every name."""
