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
    store       storage version, optimistic lock         Draft, Pipeline.put

`verbs` hands a write over as a `Draft`. The order is that of k8s.io/apiserver (pkg/endpoints/handlers,
pkg/registry/generic/registry/store.go; pkg/registry/rest: BeforeCreate, BeforeUpdate).
"""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import orjson

from tink.kubeapi.apiserver import conversion, errors
from tink.kubeapi.apiserver.admission.review import Attributes
from tink.kubeapi.apiserver.admission.webhooks import Webhooks
from tink.kubeapi.apiserver.managed_fields import field_manager
from tink.kubeapi.apiserver.managed_fields.types import same
from tink.kubeapi.apiserver.media import Body
from tink.kubeapi.apiserver.options import Target, WriteOptions
from tink.kubeapi.apiserver.resources.registry import Resource
from tink.kubeapi.apiserver.store.object_store import ObjectStore
from tink.kubeapi.apiserver.store.objects import Key, MismatchError, StoredObject, Write
from tink.kubeapi.apiserver.write.submission import complete, dedup_owners, finalizer_warnings, is_in, unknown_fields
from tink.kubeapi.schema import meta
from tink.kubeapi.schema.field_errors import FieldError, WalkResult
from tink.kubeapi.schema.rules import ratcheted
from tink.kubeapi.schema.shapes import Raw
from tink.offload import offload

MAX_STORED_BYTES = 6 << 20
"""Maximum size of a stored object in bytes: twice that of a body. (etcd, where Kubernetes stores them, takes 1.5
MiB.)"""

ORIGIN: Final[ContextVar[object]] = ContextVar("origin", default=None)
"""The origin of the request that the running task handles; None for writes of the server itself.

Each write passes it to the store, and the store passes it to the audit log when the change is on the disk. So no path
of a write can omit it.
"""


def key_of(resource: Resource, target: Target) -> Key:
    """Return the key of the object that a path names."""
    return Key(resource.key, target.namespace, target.name)


async def served_text(resource: Resource, stored: StoredObject) -> bytes:
    """Return a stored object as text in the version of the request. Raises StatusError."""
    return (await conversion.as_served(resource, [stored]))[0]


_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Letters of generated names: no vowels, so no words (k8s.io/apimachinery, pkg/util/rand)."""


@dataclass(frozen=True, slots=True)
class VerbResult:
    """The object after a verb, as JSON text in the version of the request; `code` is the HTTP status."""

    body: bytes
    code: int = 200
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """A create, update or patch: the resource, the object that the path names, the body and the options."""

    resource: Resource
    target: Target
    body: Body
    options: WriteOptions

    def not_found(self) -> errors.StatusError:
        """Return the refusal: the object does not exist."""
        return errors.not_found(self.resource.group, self.resource.plural, self.target.name)


@dataclass(slots=True, kw_only=True)
class Draft:
    """One attempt of a write: `new` is the state to store, `old` the stored one, both in the version of the request.

    A draft of this class creates an object; `Update` changes one. `submitted` is the result of a patch, as text.
    `applied`: the managed fields are complete already. `size` is in bytes of JSON and estimates the duration of the
    steps.
    """

    request: WriteRequest
    new: Raw
    old: Raw | None = None
    size: int
    submitted: bytes = b""
    applied: bool = False
    warnings: list[str] = field(default_factory=list)

    @property
    def key(self) -> Key:
        """The place of the object; its name is "" until it has one."""
        resource = self.request.resource
        namespace = self.request.target.namespace if resource.namespaced else ""
        return Key(resource.key, namespace, self.new["metadata"].get("name") or "")

    def prepare(self, new: Raw) -> Raw:
        """Return the object with the client's changes only: without the fields that only the server sets."""
        fields = new["metadata"]
        for name in (*meta.OWNED, "selfLink"):
            fields.pop(name, None)
        if self.request.resource.namespaced:
            fields["namespace"] = self.request.target.namespace
        return new

    def check_metadata(self) -> list[FieldError]:
        """Return errors of the metadata."""
        return meta.check(self.new["metadata"], self.request.resource.rules.name)

    def complete(self, now: str) -> None:
        """Add the values that the server sets on a valid object; `now` is a timestamp."""
        fields = self.new["metadata"]
        fields |= {"uid": str(uuid.uuid4()), "creationTimestamp": now}
        if self.request.resource.rules.generation:
            fields["generation"] = 1

    async def store(self, pipeline: Pipeline) -> VerbResult:
        """Store the object. Raises StatusError; MismatchError if it has changed since it was read."""
        resource, key = self.request.resource, self.key
        try:
            made = await pipeline.put(resource, key, self.new, 0, dry_run=self.request.options.dry_run)
        except MismatchError as error:
            if self.applied:  # it was created meanwhile: apply to the present object
                raise
            there = errors.already_exists(resource.group, resource.plural, key.name)
            stored = await pipeline.objects.get(key)
            if stored is not None and "deletionTimestamp" in orjson.loads(stored.body)["metadata"]:
                there.message = f"object is being deleted: {there.message}"
            raise there from error
        return VerbResult(made, 201, self.warnings)


@dataclass(slots=True, kw_only=True)
class Update(Draft):
    """Another state of an existing object."""

    old: Raw
    stored: StoredObject

    @property
    def key(self) -> Key:
        """The place of the object, which does not change."""
        return Key(self.request.resource.key, self.stored.namespace, self.stored.name)

    def prepare(self, new: Raw) -> Raw:
        """Restore the fields that the subresource does not change, and those that only the server sets."""
        resource = self.request.resource
        new = resource.rules.limit(new, self.old, self.request.target.subresource, resource.status)
        fields, before = new["metadata"], self.old["metadata"]
        meta.keep_owned(fields, before)
        fields["resourceVersion"] = before["resourceVersion"]
        return new

    def check_metadata(self) -> list[FieldError]:
        """Return errors of the metadata. The name of an existing object is not checked."""
        fields = self.new["metadata"]
        return meta.check(fields, lambda _: None) + meta.check_update(fields, self.old["metadata"])

    def complete(self, _now: str) -> None:
        """Raise `metadata.generation` if the desired state has changed."""
        resource = self.request.resource
        if not resource.rules.generation:
            return
        # Metadata, and a status with a subresource, do not count (k8s.io/apiextensions-apiserver,
        # pkg/registry/customresource/strategy.go, PrepareForUpdate).
        apart = ("metadata", "status") if resource.status else ("metadata",)
        new, old = ({key: obj[key] for key in obj if key not in apart} for obj in (self.new, self.old))
        if not same(new, old):
            self.new["metadata"]["generation"] = self.old["metadata"].get("generation", 0) + 1

    async def store(self, pipeline: Pipeline) -> VerbResult:
        """Store the change, if there is one. Delete the object if its last finalizer is gone."""
        resource, new, stored, dry_run = self.request.resource, self.new, self.stored, self.request.options.dry_run
        field_manager.keep_times(new, self.old)
        held = new["metadata"].get("finalizers") or resource.rules.holds(new)
        if "deletionTimestamp" in self.old["metadata"] and not held:
            made = conversion.text(new, resource.api_version)
            if not dry_run:
                await pipeline.remove(resource, self.key, new, stored.version)
        elif new == self.old and same(new, self.old) and conversion.is_current(resource, stored):
            made = conversion.text(self.old, resource.api_version)  # without a change there is no write and no event
        else:
            made = await pipeline.put(resource, self.key, new, stored.version, dry_run=dry_run)
        return VerbResult(made, 200, self.warnings)


Admit = Callable[[Raw, Raw | None], None]
"""Function that adds to the new state of each object, in place, such as a finalizer (Kubernetes: an admission plugin
such as StorageObjectInUseProtection). The second argument is the stored object, None for a new one. The added fields
have no owner."""


def add_nothing(_new: Raw, _old: Raw | None) -> None:
    """Leave objects unchanged."""


@dataclass(eq=False)
class Pipeline:
    """Brings drafts to the store `objects`, in their storage version and of limited size.

    `now` returns the time in UTC; `admit` sees each write before the webhooks do.
    """

    objects: ObjectStore
    now: Callable[[], datetime]
    admission: Webhooks
    admit: Admit
    _storing: set[asyncio.Task[VerbResult]] = field(default_factory=set)

    async def put(self, resource: Resource, key: Key, new: Raw, expected: int, *, dry_run: bool) -> bytes:
        """Store an object whose present version is `expected`, 0 if it must not exist. Return it as text in the version
        of the request. Raises MismatchError, StatusError."""
        converted = await conversion.as_stored(resource, new)
        if dry_run:
            current = await self.objects.get(key)
            if (current.version if current else 0) != expected:
                raise MismatchError(current.version if current else 0)
            version, body = expected, conversion.text(converted, converted["apiVersion"])
        else:
            # No await from here to the store: versions must reach the store in the order of their assignment.
            version = self.objects.next_version()
            body = conversion.with_version(converted, version)
            if (size := len(body)) > MAX_STORED_BYTES:  # several patches can add up to this
                why = f"it would be stored with {size} bytes, managedFields included; the limit is {MAX_STORED_BYTES}"
                raise errors.too_large_object(resource.group, resource.plural, key.name, why)
            await self.objects.write(Write(key, version, body, expected, origin=ORIGIN.get()))
        if converted is new:
            return body
        # A converted object is answered as it will be read, with its defaults.
        return await served_text(resource, StoredObject(key.namespace, key.name, version, body))

    async def remove(self, resource: Resource, key: Key, last: Raw, expected: int) -> None:
        """Delete an object; watches receive `last`. Raises MismatchError, StatusError."""
        converted = await conversion.as_stored(resource, last)
        version = self.objects.next_version()
        body = conversion.with_version(converted, version)
        await self.objects.write(Write(key, version, body, expected, delete=True, origin=ORIGIN.get()))

    def timestamp(self) -> str:
        """Return the present time in the form of metadata."""
        return meta.timestamp(self.now())

    async def write(self, draft: Draft) -> VerbResult:
        """Store a new object, or a new state of one. Raises StatusError; MismatchError if it has changed since it
        was read."""
        with errors.attach_warnings(draft.warnings):
            return await self._write(draft)

    async def _write(self, draft: Draft) -> VerbResult:
        request = draft.request
        resource, options, subresource = request.resource, request.options, request.target.subresource
        size = draft.size * resource.rules.cost
        draft.new = draft.prepare(draft.new)
        part = subresource if subresource == "status" and resource.custom else ""
        found = await offload(size, complete, resource, draft.new, applied=draft.applied, part=part)
        draft.warnings += unknown_fields(resource, found, request.body.duplicates, options.validation, draft.submitted)
        draft.warnings += dedup_owners(draft.new["metadata"])
        if not draft.applied:
            now = self.timestamp()
            cost = conversion.tracking_size(resource, draft.old, size)
            await offload(cost, resource.fields.update, draft.old, draft.new, options.manager, subresource, now)
        self.admit(draft.new, draft.old)
        attributes = _attributes(draft)
        given, owners = draft.new, draft.new["metadata"].get("managedFields")
        await self.admission.mutate(attributes)
        if attributes.object is not None and attributes.object is not given:
            # A webhook's changes have no owner, and a webhook must not damage the list of owners.
            attributes.warnings += field_manager.valid_or_before(attributes.object, owners)
            draft.new = draft.prepare(attributes.object)
            found = await offload(size, complete, resource, draft.new, part=part)
        fields = draft.new["metadata"]
        if not fields.get("name") and (prefix := fields.get("generateName")):
            # After the mutating webhooks, which see no generated name.
            fields["name"] = prefix[:58] + "".join(secrets.choice(_LETTERS) for _ in range(5))
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
            await self.admission.validate(attributes)
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

    async def _store(self, draft: Draft, size: int) -> VerbResult:
        if draft.old is None and _status_has_default(draft.request.resource):
            # Kubernetes adds the default when the object is read; here an object is stored as it is read. (In another
            # version it gets that version's default: `conversion.as_stored`.)
            await offload(size, complete, draft.request.resource, draft.new)
        return await draft.store(self)

    def _validate(self, draft: Draft, found: WalkResult) -> None:
        """Refuse an object with errors in schema, metadata, rules or CEL. Raises StatusError (422)."""
        resource, new, old = draft.request.resource, draft.new, draft.old
        wrong = list(found.errors)
        if wrong and old is not None and resource.custom:
            wrong = ratcheted(wrong, new, old, resource.openapi)
        wrong += draft.check_metadata()
        if resource.rules.qualifies and not resource.custom:
            wrong += meta.check_core_finalizers(new["metadata"])
        if not wrong:
            resource.rules.prepare(new, old, self.now())
            wrong += resource.rules.check(new, old)
        if resource.validations is not None:
            wrong += resource.validations.check_after(wrong, new, old)
        if wrong:
            raise errors.invalid(resource.kind_group, resource.kind, new["metadata"].get("name", ""), wrong)


def _attributes(draft: Draft) -> Attributes:
    request, key = draft.request, draft.key
    return Attributes(
        "CREATE" if draft.old is None else "UPDATE",
        *(request.resource, key.namespace, key.name, request.target.subresource, draft.new, draft.old),
        *(request.options.object(), request.options.dry_run, draft.warnings),
        caller=request.options.caller,
    )


def _status_has_default(resource: Resource) -> bool:
    """Return True if an object stored in this version has a status by default."""
    here = resource.custom and resource.status and resource.version == resource.stored_version
    properties = resource.openapi.get("properties") if here else None
    return bool(properties and "default" in (properties.get("status") or {}))
