"""The one way of a write, whether it creates or updates: what Kubernetes' generic registry does with a strategy.

    prepare     only what the client may say             strategy
    default     schema: prune, fill in, find errors      completion
    manage      who owns which field                     managed_fields
    mutate      what this program adds to new objects,   admission
                webhooks; what they made of it is
                prepared and defaulted again
    validate    schema, metadata, rules, CEL             here
    complete    identity, generation                     strategy
    admit       plugin and webhooks, the last word       admission
    store       version of storage, optimistic lock      strategy, persistence

`verbs` finds out what the new state is to be and hands it over as a `Draft`. The order is that of k8s.io/apiserver
(pkg/endpoints/handlers, pkg/registry/generic/registry/store.go).
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
from tink.kubeapi.apiserver.requests import Target, WriteOptions
from tink.kubeapi.apiserver.resources import Resource
from tink.kubeapi.apiserver.store import Key, MismatchError, Store, Stored, Write
from tink.kubeapi.apiserver.write.submission import complete, dedup_owners, finalizer_warnings, is_in, unknown_fields
from tink.kubeapi.schema import FieldError, Outcome, Raw, meta, ratcheted
from tink.offload import offload

MAX_STORED_BYTES = 6 << 20
"""Bytes of an object as it is stored: twice what can be sent. (etcd, where Kubernetes stores them, takes 1.5 MiB.)"""

ORIGIN: Final[ContextVar[object]] = ContextVar("origin", default=None)
"""The origin of the request that the running task handles; None for writes of the server itself.

Each write passes it to the store, and the store passes it to the audit log when the change is on the disk. So no path
of a write can omit it.
"""


class Persistence:
    """The store, for one object at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def find(self, key: Key) -> Stored | None:
        """Give an object as it is stored, or None."""
        return await self._store.get(key)

    async def get(self, resource: Resource, target: Target) -> Stored:
        """Give an object as it is stored. Raises StatusError (404)."""
        stored = await self._store.get(key_of(resource, target))
        if stored is None:
            raise errors.not_found(resource.group, resource.plural, target.name)
        return stored

    async def put(self, resource: Resource, key: Key, new: Raw, expected: int, *, dry_run: bool) -> bytes:
        """Store an object that has the version `expected` now, 0 when it must not exist.

        Gives it as text in the version of the request. Raises MismatchError, StatusError.
        """
        converted = await conversion.as_stored(resource, new)
        if dry_run:
            current = await self._store.get(key)
            if (current.version if current else 0) != expected:
                raise MismatchError(current.version if current else 0)
            body = conversion.text(converted, converted["apiVersion"])
            return await self._answer(resource, Stored(key.namespace, key.name, expected, body), new, converted)
        # From here to the store without awaiting: versions go to the store in the order in which they are given out.
        version = self._store.next_version()
        body = conversion.with_version(converted, version)
        if len(body) > MAX_STORED_BYTES:  # step by step, perhaps
            why = f"it would be stored with {len(body)} bytes, managedFields included; the limit is {MAX_STORED_BYTES}"
            raise errors.too_large_object(resource.group, resource.plural, key.name, why)
        await self._store.write(Write(key, version, body, expected, origin=ORIGIN.get()))
        return await self._answer(resource, Stored(key.namespace, key.name, version, body), new, converted)

    @staticmethod
    async def _answer(resource: Resource, stored: Stored, new: Raw, converted: Raw) -> bytes:
        """What was converted is answered as it will be read: with the defaults of the version in which it is stored."""
        return stored.body if converted is new else await served(resource, stored)

    async def remove(self, resource: Resource, key: Key, last: Raw, expected: int) -> None:
        """Remove an object; `last` is what watches see of it. Raises MismatchError, StatusError."""
        converted = await conversion.as_stored(resource, last)
        version = self._store.next_version()
        body = conversion.with_version(converted, version)
        await self._store.write(Write(key, version, body, expected, delete=True, origin=ORIGIN.get()))


def key_of(resource: Resource, target: Target) -> Key:
    """Give the key under which the object that a path names is stored."""
    return Key(resource.key, target.namespace, target.name)


async def served(resource: Resource, stored: Stored) -> bytes:
    """Give a stored object in the version of the request. Raises StatusError."""
    return (await conversion.as_served(resource, [stored]))[0]


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


AdmitCreate = Callable[[Raw], None]
"""Adds to an object that is created, in place, what it is to have from its first moment, such as a finalizer: an
admission plugin, in Kubernetes' word (StorageObjectInUseProtection is one). What it adds is managed by nobody."""


def add_nothing(_: Raw) -> None:
    """Leave new objects as they are."""


class Pipeline:
    """Takes drafts to the store. `now` gives the time in UTC; `admit_create` sees new objects before the webhooks."""

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
        """Give the time as metadata have it."""
        return meta.timestamp(self._now())

    async def write(self, draft: Draft) -> Result:
        """Store a new object, or a new state of one. Raises StatusError; MismatchError when it has changed since."""
        with errors.warned(draft.warnings):
            return await self._write(draft)

    async def _write(self, draft: Draft) -> Result:
        resource, options, subresource = draft.resource, draft.options, draft.target.subresource
        size = draft.size * resource.rules.dear
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
        if (changed := await self._mutated(attributes, draft.new)) is not None:
            draft.new = draft.prepare(changed)
            found = await offload(size, complete, resource, draft.new)
        generate_name(draft.new)  # mutating webhooks see none
        if resource.status and subresource != "status":
            # Not this writer's. An older schema may have let in what today's refuses; he cannot mend it.
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
            attributes.settled()
            raise
        if not attributes.releases:
            return await self._store(draft, size)
        # If the client disconnects now, the request ends and the commit does not. The reservations last until the
        # commit.
        storing = asyncio.create_task(self._store(draft, size))
        self._storing.add(storing)
        storing.add_done_callback(lambda _: attributes.settled())
        storing.add_done_callback(self._storing.discard)
        return await asyncio.shield(storing)

    async def _store(self, draft: Draft, size: int) -> Result:
        if draft.old is None and _status_has_default(draft.resource):
            # Kubernetes has it when the object is read; here an object is stored as it is read. (In another version
            # than this it gets that one's: `conversion.as_stored`.)
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

    async def _mutated(self, attributes: Attributes, given: Raw) -> Raw | None:
        """Ask mutating admission; give the object that it made of ours, if it made one. Raises StatusError."""
        before = given["metadata"].get("managedFields")
        await self._admission.mutate(attributes)
        if attributes.object is None or attributes.object is given:
            return None
        # What webhooks change is managed by nobody, and they must not break the records of the others.
        attributes.warnings += managed_fields.valid_or_before(attributes.object, before)
        return attributes.object

    def _validate(self, draft: Draft, found: Outcome) -> None:
        """Refuse an object that schema, metadata, rules or CEL find wrong. Raises StatusError (422)."""
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
    """Whether an object that is stored in this version has a status that nobody has written."""
    here = resource.custom and resource.status and resource.version == resource.stored_version
    properties = resource.openapi.get("properties") if here else None
    return bool(properties and "default" in (properties.get("status") or {}))
