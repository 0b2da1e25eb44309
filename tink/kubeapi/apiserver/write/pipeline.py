"""The way of a write to the store, for creates and updates (Kubernetes: generic registry and strategies).

    prepare     keep only what the client may set        Draft
    default     schema: prune, complete, find errors     submission
    manage      owners of fields                         managed_fields
    mutate      additions of this program, webhooks;     admission
                the result is prepared and completed
                again
    validate    schema, metadata, rules, CEL             Pipeline
    complete    identity, generation                     Draft
    admit       plugin and validating webhooks           admission
    store       storage version, optimistic lock         Draft, Persistence

`verbs` hands a write over as a `Draft`. The order is that of k8s.io/apiserver (pkg/endpoints/handlers,
pkg/registry/generic/registry/store.go; pkg/registry/rest: BeforeCreate, BeforeUpdate).
"""

from __future__ import annotations

import asyncio
import secrets
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Final, Literal

import orjson

from tink.kubeapi.apiserver import conversion, errors, managed_fields
from tink.kubeapi.apiserver.admission.review import Attributes
from tink.kubeapi.apiserver.admission.webhooks import Webhooks
from tink.kubeapi.apiserver.options import Target, WriteOptions
from tink.kubeapi.apiserver.resources import Resource
from tink.kubeapi.apiserver.store import Key, MismatchError, Store, Stored, Write
from tink.kubeapi.apiserver.write.submission import complete, dedup_owners, finalizer_warnings, is_in, unknown_fields
from tink.kubeapi.schema import FieldError, Raw, WalkResult, meta, ratcheted
from tink.offload import offload

MAX_STORED_BYTES = 6 << 20
"""Maximum size of a stored object in bytes: twice that of a body. (etcd, where Kubernetes stores them, takes 1.5
MiB.)"""

ORIGIN: Final[ContextVar[object]] = ContextVar("origin", default=None)
"""The origin of the request that the running task handles; None for writes of the server itself.

Each write passes it to the store, and the store passes it to the audit log when the change is on the disk. So no path
of a write can omit it.
"""


class Persistence:
    """The store, for one object at a time, in its storage version and of limited size."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def find(self, key: Key) -> Stored | None:
        """Return a stored object, or None."""
        return await self._store.get(key)

    async def get(self, resource: Resource, target: Target) -> Stored:
        """Return a stored object. Raises StatusError (404)."""
        stored = await self._store.get(key_of(resource, target))
        if stored is None:
            raise errors.not_found(resource.group, resource.plural, target.name)
        return stored

    async def put(self, resource: Resource, key: Key, new: Raw, expected: int, *, dry_run: bool) -> bytes:
        """Store an object whose present version is `expected`, 0 if it must not exist.

        Return it as text in the version of the request. Raises MismatchError, StatusError.
        """
        converted = await conversion.as_stored(resource, new)
        if dry_run:
            current = await self._store.get(key)
            if (current.version if current else 0) != expected:
                raise MismatchError(current.version if current else 0)
            body = conversion.text(converted, converted["apiVersion"])
            return await self._answer(resource, Stored(key.namespace, key.name, expected, body), new, converted)
        # No await from here to the store: versions must reach the store in the order of their assignment.
        version = self._store.next_version()
        body = conversion.with_version(converted, version)
        if len(body) > MAX_STORED_BYTES:  # several patches can add up to this
            why = f"it would be stored with {len(body)} bytes, managedFields included; the limit is {MAX_STORED_BYTES}"
            raise errors.too_large_object(resource.group, resource.plural, key.name, why)
        await self._store.write(Write(key, version, body, expected, origin=ORIGIN.get()))
        return await self._answer(resource, Stored(key.namespace, key.name, version, body), new, converted)

    @staticmethod
    async def _answer(resource: Resource, stored: Stored, new: Raw, converted: Raw) -> bytes:
        """Return the text for the client. A converted object is answered as it will be read, with its defaults."""
        return stored.body if converted is new else await served_text(resource, stored)

    async def remove(self, resource: Resource, key: Key, last: Raw, expected: int) -> None:
        """Delete an object; watches receive `last`. Raises MismatchError, StatusError."""
        converted = await conversion.as_stored(resource, last)
        version = self._store.next_version()
        body = conversion.with_version(converted, version)
        await self._store.write(Write(key, version, body, expected, delete=True, origin=ORIGIN.get()))


def key_of(resource: Resource, target: Target) -> Key:
    """Return the key of the object that a path names."""
    return Key(resource.key, target.namespace, target.name)


async def served_text(resource: Resource, stored: Stored) -> bytes:
    """Return a stored object as text in the version of the request. Raises StatusError."""
    return (await conversion.as_served(resource, [stored]))[0]


_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Letters of generated names: no vowels, so no words (k8s.io/apimachinery, pkg/util/rand)."""


@dataclass(frozen=True, slots=True)
class Result:
    """The object after a verb, as JSON text in the version of the request; `code` is the HTTP status."""

    body: bytes
    code: int = 200
    warnings: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Draft(ABC):
    """One attempt of a write: `new` is the state to store, `old` the stored one, both in the version of the request.

    `duplicates` are duplicate fields of the body. `submitted` is the result of a patch, as text. `applied`: the managed
    fields are complete already. `size` is in bytes of JSON and estimates the duration of the steps.
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
        """The place of the object; its name is "" until it has one."""

    @abstractmethod
    def prepare(self, new: Raw) -> Raw:
        """Return the object with the client's changes only."""

    @abstractmethod
    def check_metadata(self) -> list[FieldError]:
        """Return errors of the metadata."""

    @abstractmethod
    def complete(self, now: str) -> None:
        """Add the values that the server sets on a valid object; `now` is a timestamp."""

    @abstractmethod
    async def store(self, persistence: Persistence) -> Result:
        """Store the object. Raises StatusError; MismatchError if it has changed since it was read."""


@dataclass(slots=True, kw_only=True)
class Create(Draft):
    """A new object."""

    operation: ClassVar[Literal["CREATE", "UPDATE"]] = "CREATE"

    @property
    def key(self) -> Key:
        """The place of the object; its name is in its metadata."""
        resource = self.resource
        namespace = self.target.namespace if resource.namespaced else ""
        return Key(resource.key, namespace, self.new["metadata"].get("name") or "")

    def prepare(self, new: Raw) -> Raw:
        """Drop fields that only the server sets, and set the namespace of the request."""
        fields = new["metadata"]
        for name in (*meta.OWNED, "selfLink"):
            fields.pop(name, None)
        if self.resource.namespaced:
            fields["namespace"] = self.target.namespace
        return new

    def check_metadata(self) -> list[FieldError]:
        """Return errors of the metadata."""
        return meta.check(self.new["metadata"], self.resource.rules.name)

    def complete(self, now: str) -> None:
        """Set uid, creation time and generation."""
        fields = self.new["metadata"]
        fields |= {"uid": str(uuid.uuid4()), "creationTimestamp": now}
        if self.resource.rules.generation:
            fields["generation"] = 1

    async def store(self, persistence: Persistence) -> Result:
        """Store the object if its name is free."""
        resource, key = self.resource, self.key
        try:
            made = await persistence.put(resource, key, self.new, 0, dry_run=self.options.dry_run)
        except MismatchError as error:
            if self.applied:  # it was created meanwhile: apply to the present object
                raise
            there = errors.already_exists(resource.group, resource.plural, key.name)
            stored = await persistence.find(key)
            if stored is not None and "deletionTimestamp" in orjson.loads(stored.body)["metadata"]:
                there.message = f"object is being deleted: {there.message}"
            raise there from error
        return Result(made, 201, self.warnings)


@dataclass(slots=True, kw_only=True)
class Update(Draft):
    """Another state of an existing object."""

    operation: ClassVar[Literal["CREATE", "UPDATE"]] = "UPDATE"

    old: Raw
    stored: Stored

    @property
    def key(self) -> Key:
        """The place of the object, which does not change."""
        return Key(self.resource.key, self.stored.namespace, self.stored.name)

    def prepare(self, new: Raw) -> Raw:
        """Restore the fields that the subresource does not change, and those that only the server sets."""
        new = self.resource.rules.limit(new, self.old, self.target.subresource, self.resource.status)
        fields, before = new["metadata"], self.old["metadata"]
        meta.keep_owned(fields, before)
        fields["resourceVersion"] = before["resourceVersion"]
        return new

    def check_metadata(self) -> list[FieldError]:
        """Return errors of the metadata. The name of an existing object is not checked."""
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
        """Store the change, if there is one. Delete the object if its last finalizer is gone."""
        resource, new, stored, dry_run = self.resource, self.new, self.stored, self.options.dry_run
        managed_fields.keep_times(new, self.old)
        held = new["metadata"].get("finalizers") or resource.rules.holds(new)
        if "deletionTimestamp" in self.old["metadata"] and not held:
            last = conversion.text(new, resource.api_version)
            if not dry_run:
                await persistence.remove(resource, self.key, new, stored.version)
            return Result(last, 200, self.warnings)
        # Without a change there is no write and no event.
        if new == self.old and managed_fields.same(new, self.old) and conversion.is_current(resource, stored):
            return Result(conversion.text(self.old, resource.api_version), 200, self.warnings)
        made = await persistence.put(resource, self.key, new, stored.version, dry_run=dry_run)
        return Result(made, 200, self.warnings)


def generate_name(new: Raw) -> None:
    """Give an object with only a generateName a name, in place."""
    fields = new["metadata"]
    if not fields.get("name") and (prefix := fields.get("generateName")):
        fields["name"] = prefix[:58] + "".join(secrets.choice(_LETTERS) for _ in range(5))


def _desired(obj: Raw, *, status_apart: bool) -> Raw:
    """Return the fields whose changes `metadata.generation` counts: all but metadata, and but a status with a
    subresource.

    Source: k8s.io/apiextensions-apiserver, pkg/registry/customresource/strategy.go, PrepareForUpdate.
    """
    apart = ("metadata", "status") if status_apart else ("metadata",)
    return {key: value for key, value in obj.items() if key not in apart}


def _any_name(_: str) -> None:
    """Accept every name."""


AdmitCreate = Callable[[Raw], None]
"""Function that adds to each new object, in place, such as a finalizer (Kubernetes: an admission plugin such as
StorageObjectInUseProtection). The added fields have no owner."""


def add_nothing(_: Raw) -> None:
    """Leave new objects unchanged."""


class Pipeline:
    """Brings drafts to the store. `now` returns the time in UTC; `admit_create` sees new objects before the
    webhooks."""

    def __init__(
        self,
        persistence: Persistence,
        now: Callable[[], datetime],
        admission: Webhooks,
        admit_create: AdmitCreate = add_nothing,
    ) -> None:
        self._persistence = persistence
        self._now = now
        self._admission = admission
        self._admit_create = admit_create
        self._storing: set[asyncio.Task[Result]] = set()

    def timestamp(self) -> str:
        """Return the present time in the form of metadata."""
        return meta.timestamp(self._now())

    async def write(self, draft: Draft) -> Result:
        """Store a new object, or a new state of one. Raises StatusError; MismatchError if it has changed since it
        was read."""
        with errors.attach_warnings(draft.warnings):
            return await self._write(draft)

    async def _write(self, draft: Draft) -> Result:
        resource, options, subresource = draft.resource, draft.options, draft.target.subresource
        size = draft.size * resource.rules.cost
        draft.new = draft.prepare(draft.new)
        found = await offload(size, complete, resource, draft.new, applied=draft.applied)
        draft.warnings += unknown_fields(resource, found, draft.duplicates, options.validation, draft.submitted)
        draft.warnings += dedup_owners(draft.new["metadata"])
        if not draft.applied:
            now = self.timestamp()
            await offload(size, resource.fields.update, draft.old, draft.new, options.manager, subresource, now)
        if draft.old is None:
            self._admit_create(draft.new)
        attributes = self._attributes(draft)
        if (changed := await self._mutate(attributes, draft.new)) is not None:
            draft.new = draft.prepare(changed)
            found = await offload(size, complete, resource, draft.new)
        generate_name(draft.new)  # after the mutating webhooks, which see no generated name
        if resource.status and subresource != "status":
            # This writer does not write the status, which an older schema may have accepted.
            found.errors = [error for error in found.errors if not is_in(error, "status")]
            if draft.old is None:
                draft.new.pop("status", None)
        await offload(size, self._validate, draft, found)
        draft.warnings += finalizer_warnings(resource, draft.new, draft.old) + resource.rules.warn(draft.new)
        draft.complete(self.timestamp())
        attributes.object = draft.new
        try:
            await self._admission.validate(attributes)
        except BaseException:
            attributes.release()
            raise
        if not attributes.releases:
            return await self._store(draft, size)
        # If the client disconnects now, the request ends, but the commit does not. The reservations last until the
        # commit.
        storing = asyncio.create_task(self._store(draft, size))
        self._storing.add(storing)
        storing.add_done_callback(lambda _: attributes.release())
        storing.add_done_callback(self._storing.discard)
        return await asyncio.shield(storing)

    async def _store(self, draft: Draft, size: int) -> Result:
        if draft.old is None and _status_has_default(draft.resource):
            # Kubernetes adds the default when the object is read; here an object is stored as it is read. (In another
            # version it gets that version's default: `conversion.as_stored`.)
            await offload(size, complete, draft.resource, draft.new)
        return await draft.store(self._persistence)

    @staticmethod
    def _attributes(draft: Draft) -> Attributes:
        key, options = draft.key, draft.options
        return Attributes(
            draft.operation,
            draft.resource,
            key.namespace,
            key.name,
            draft.target.subresource,
            draft.new,
            draft.old,
            options.object(),
            options.dry_run,
            draft.warnings,
            caller=options.caller,
        )

    async def _mutate(self, attributes: Attributes, given: Raw) -> Raw | None:
        """Call mutating admission. Return its object; None if it changed nothing. Raises StatusError."""
        before = given["metadata"].get("managedFields")
        await self._admission.mutate(attributes)
        if attributes.object is None or attributes.object is given:
            return None
        # A webhook's changes have no owner, and a webhook must not damage the list of owners.
        attributes.warnings += managed_fields.valid_or_before(attributes.object, before)
        return attributes.object

    def _validate(self, draft: Draft, found: WalkResult) -> None:
        """Refuse an object with errors in schema, metadata, rules or CEL. Raises StatusError (422)."""
        resource, new, old = draft.resource, draft.new, draft.old
        wrong = list(found.errors)
        if wrong and old is not None and resource.custom:
            wrong = ratcheted(wrong, new, old, resource.openapi)
        wrong += draft.check_metadata()
        if resource.rules.qualifies and not resource.custom:
            wrong += meta.check_core_finalizers(new["metadata"])
        if not wrong:
            resource.rules.prepare(new, old, self._now())
            wrong += resource.rules.check(new, old)
        if resource.validations is not None:
            wrong += resource.validations.check_after(wrong, new, old)
        if wrong:
            raise errors.invalid(resource.kind_group, resource.kind, new["metadata"].get("name", ""), wrong)


def _status_has_default(resource: Resource) -> bool:
    """Return True if an object stored in this version has a status by default."""
    here = resource.custom and resource.status and resource.version == resource.stored_version
    properties = resource.openapi.get("properties") if here else None
    return bool(properties and "default" in (properties.get("status") or {}))
