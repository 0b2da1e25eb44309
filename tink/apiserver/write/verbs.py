"""What can be done with objects: create, update, patch, apply, delete, get. The rules of Kubernetes, apart from HTTP.

A write goes: current state -> new state (`intake`) -> schema walk -> field managers -> mutating admission -> rules of
metadata, resource and CEL -> validating admission -> storage version (`conversion`) -> store. The store refuses when
the object has changed in between (optimistic concurrency); a patch that does not name a resourceVersion is then tried
again on the new state, anything else is a conflict for the client. Lists and watches are in `lists`.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import orjson

from tink.apiserver import errors
from tink.apiserver.http.options import DeleteOptions, WriteOptions
from tink.apiserver.http.request import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Body, Target
from tink.apiserver.resources.registry import Resource
from tink.apiserver.store.storage import Key, MismatchError, Store, Stored, Write
from tink.apiserver.write import conversion, intake, managed_fields, propagation
from tink.apiserver.write.admission.attributes import Admission, AdmitAll, Attributes
from tink.beside import beside
from tink.schema import field_errors, meta
from tink.schema.field_errors import FieldError
from tink.schema.outcome import Outcome
from tink.schema.validations import ratcheted
from tink.schema.values import Raw, deep_copy

ATTEMPTS = 5
"""How often a patch is tried when the object keeps changing (Kubernetes: MaxRetryWhenPatchConflicts)."""
MAX_STORED = 6 << 20
"""Bytes of an object as it is stored: twice what can be sent. (etcd, where Kubernetes stores them, takes 1.5 MiB.)"""
NAME_ATTEMPTS = 8
"""How often a name is made from generateName (k8s.io/apiserver: maxNameGenerationCreateAttempts)."""

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
"""Letters of generated names: no vowels, so no words (k8s.io/apimachinery, pkg/util/rand)."""


@dataclass(frozen=True, slots=True)
class Result:
    """An object as it is after a verb, as JSON text in the version of the request; `code` is the HTTP status."""

    body: bytes
    code: int = 200
    warnings: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Change:
    """One try of an update: the object before and after, both in the version of the request."""

    stored: Stored
    old: Raw
    new: Raw
    duplicates: tuple[str, ...] = ()
    patched: bool = False
    applied: bool = False
    known: bool = False
    """Whether the metadata are those of the object before, which need not be read again."""
    size: int = 0
    """Bytes of what was sent."""


class Verbs:
    """Verbs on single objects. `now` gives the time in UTC."""

    def __init__(self, store: Store, now: Callable[[], datetime], admission: Admission | None = None) -> None:
        self._store = store
        self._now = now
        self._admission = admission or AdmitAll()

    # --- the verbs ---

    async def get(self, resource: Resource, target: Target) -> Result:
        """Read an object. Raises StatusError (404)."""
        return Result(await _served(resource, await self._stored(resource, target)))

    async def create(self, resource: Resource, target: Target, body: Body, options: WriteOptions) -> Result:
        """Create an object. Raises StatusError."""
        new = intake.object_of(resource, target.namespace, body.value)
        fields = new["metadata"]
        if (fields.pop("resourceVersion", None) or "").strip("0").isdigit():
            raise errors.bad_request("resourceVersion should not be set on objects to be created")
        if fields.get("name") or not fields.get("generateName"):
            return await self._create(resource, target, new, body, options)
        for attempt in range(NAME_ATTEMPTS):
            try:
                return await self._create(resource, target, deep_copy(new), body, options)
            except errors.StatusError as error:
                if error.reason != "AlreadyExists" or attempt == NAME_ATTEMPTS - 1:
                    raise
        raise AssertionError("the loop returns or raises")

    async def update(self, resource: Resource, target: Target, body: Body, options: WriteOptions) -> Result:
        """Replace an object, or its status. Raises StatusError."""
        new = intake.object_of(resource, target.namespace, body.value)
        intake.check_name(new["metadata"], target.name)
        version = intake.wanted_version(new["metadata"])
        for _ in range(ATTEMPTS):
            if resource.rules.creates and not target.subresource and await self._is_missing(resource, target):
                return await self._create(resource, target, deep_copy(new), body, options)
            stored = await self._stored(resource, target)
            if not version and not resource.rules.unconditional:
                wrong = field_errors.invalid("metadata.resourceVersion", 0, "must be specified for an update")
                raise errors.invalid(resource.group, resource.plural, target.name, [wrong])
            old: Raw = orjson.loads(await _served(resource, stored))
            change = _Change(stored, old, deep_copy(new), body.duplicates, size=body.size)
            try:
                return await self._replace(resource, target, change, options)
            except MismatchError:
                continue  # changed since it was read: the new state decides whether this is a conflict
        raise errors.conflict(resource.group, resource.plural, target.name)

    @staticmethod
    def check_patch_type(resource: Resource, kind: str) -> None:
        """Check that patches of a media type can be applied to a resource. Raises StatusError (415)."""
        accepted = (JSON_PATCH, MERGE_PATCH, *((STRATEGIC_PATCH,) if resource.rules.strategic else ()), APPLY_PATCH)
        if kind not in accepted:
            raise errors.unsupported_media_type(accepted) if resource.custom else errors.unrouted_media_type()

    async def patch(self, resource: Resource, target: Target, kind: str, body: Body, options: WriteOptions) -> Result:
        """Change an object, or its status, by a patch of media type `kind`. Raises StatusError."""
        for _ in range(ATTEMPTS):
            try:
                if kind == APPLY_PATCH:
                    return await self._apply(resource, target, body, options)
                stored = await self._stored(resource, target)
                old: Raw = orjson.loads(await _served(resource, stored))
                size = body.size + len(stored.body)
                new = await beside(size, intake.patched, resource, old, kind, body.value)
                known = intake.keeps_metadata(resource, kind, body.value)
                change = _Change(stored, old, new, body.duplicates, patched=True, known=known, size=body.size)
                return await self._replace(resource, target, change, options)
            except MismatchError:
                continue
        raise errors.conflict(resource.group, resource.plural, target.name)

    async def delete(
        self, resource: Resource, target: Target, options: DeleteOptions, *, of_many: bool = False
    ) -> Result:
        """Delete an object, one alone or one of many, or mark it when it has finalizers. Raises StatusError."""
        for _ in range(ATTEMPTS):
            stored = await self._stored(resource, target)
            try:
                return await self.delete_stored(resource, target, stored, options, of_many=of_many)
            except MismatchError:
                continue
        raise errors.conflict(resource.group, resource.plural, target.name)

    async def delete_stored(
        self, resource: Resource, target: Target, stored: Stored, options: DeleteOptions, *, of_many: bool = False
    ) -> Result:
        """Delete an object as it was read. Raises StatusError; MismatchError when it has changed since."""
        body = await _served(resource, stored)
        old: Raw = orjson.loads(body)
        fields = old["metadata"]
        self._preconditions(resource, target, fields, options)
        if why := resource.rules.may_delete(stored.name):
            raise errors.forbidden(resource.group, resource.plural, stored.name, why)
        attributes = Attributes(
            "DELETE",
            resource,
            stored.namespace,
            "" if of_many else stored.name,  # what webhooks are told
            "",
            None,
            old,
            options.object(),
            options.dry_run,
        )
        await self._admission.mutate(attributes)
        await self._admission.validate(attributes)
        finalizers = propagation.finalizers(fields, options.policy)
        key = Key(resource.key, stored.namespace, stored.name)
        if finalizers or resource.rules.holds(old):
            if "deletionTimestamp" in fields and finalizers == (fields.get("finalizers") or []):
                return Result(body, 200, attributes.warnings)
            new = self._marked(deep_copy(old), finalizers)
            resource.rules.prepare(new, old, self._now())
            written = await self._put(resource, key, new, stored.version, dry_run=options.dry_run)
            return Result(written, 200, attributes.warnings)
        if not options.dry_run:
            await self._remove(resource, key, old, stored.version)
        details = {"name": stored.name, "group": resource.group, "kind": resource.plural, "uid": fields.get("uid")}
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "details": {name: value for name, value in details.items() if value},
        }
        return Result(orjson.dumps(status), 200, attributes.warnings)

    # --- what the verbs share ---

    async def _stored(self, resource: Resource, target: Target) -> Stored:
        stored = await self._store.get(Key(resource.key, target.namespace, target.name))
        if stored is None:
            raise errors.not_found(resource.group, resource.plural, target.name)
        return stored

    async def _is_missing(self, resource: Resource, target: Target) -> bool:
        return await self._store.get(Key(resource.key, target.namespace, target.name)) is None

    def _timestamp(self) -> str:
        return self._now().strftime("%Y-%m-%dT%H:%M:%SZ")

    def _marked(self, new: Raw, finalizers: list[str]) -> Raw:
        """Mark an object that is to go once its finalizers are worked off, in place."""
        fields = new["metadata"]
        if "deletionTimestamp" not in fields:
            fields |= {"deletionTimestamp": self._timestamp(), "deletionGracePeriodSeconds": 0}
            if "generation" in fields:
                fields["generation"] += 1
        if finalizers:
            fields["finalizers"] = finalizers
        return new

    async def _may_create(self, resource: Resource, namespace: str, name: str) -> None:
        """Refuse to create in a namespace that does not exist, or that is being deleted."""
        if not resource.namespaced:
            return
        stored = await self._store.get(Key("/namespaces", "", namespace))
        if stored is None:
            raise errors.not_found("", "namespaces", namespace)
        if b'"deletionTimestamp"' in stored.body and "deletionTimestamp" in orjson.loads(stored.body)["metadata"]:
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise errors.forbidden(resource.group, resource.plural, name, why)

    async def _create(
        self,
        resource: Resource,
        target: Target,
        new: Raw,
        body: Body,
        options: WriteOptions,
        *,
        applied: bool = False,
    ) -> Result:
        """Store a new object; one with generateName alone is given a name. Raises StatusError."""
        fields = new["metadata"]
        for name in (*meta.OWNED, "selfLink"):
            fields.pop(name, None)
        if resource.namespaced:
            fields["namespace"] = target.namespace
        name = fields.get("name", "")
        await self._may_create(resource, target.namespace, name)
        size = body.size * resource.rules.dear
        found = await beside(size, intake.walk, resource, new)
        warnings = intake.unknown_fields(resource, found, body.duplicates, options.validation)
        warnings += intake.metadata_warnings(resource, new["metadata"])
        if not applied:
            now = self._timestamp()
            await beside(size, resource.fields.update, None, new, options.manager, target.subresource, now)
        attributes = Attributes(
            "CREATE", resource, target.namespace, name, "", new, None, options.object(), options.dry_run, warnings
        )
        if (changed := await self._mutated(attributes)) is not None:
            new = changed
            found = await beside(size, intake.walk, resource, new)
        if not name and (prefix := new["metadata"].get("generateName")):  # mutating webhooks see no name
            new["metadata"]["name"] = prefix[:58] + "".join(secrets.choice(_SUFFIX) for _ in range(5))
        if resource.status:
            new.pop("status", None)
            found.errors = [error for error in found.errors if not intake.is_in(error, "status")]
        await beside(size, self._finish, resource, new, None, found, warnings)
        warnings += resource.rules.warn(new)
        new["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": self._timestamp()}
        if resource.rules.generation:
            new["metadata"]["generation"] = 1
        attributes.object = new
        await self._admission.validate(attributes)
        key = Key(resource.key, target.namespace if resource.namespaced else "", new["metadata"]["name"])
        try:
            return Result(await self._put(resource, key, new, 0, dry_run=options.dry_run), 201, warnings)
        except MismatchError as error:
            if applied:  # it exists by now: apply to what there is
                raise
            there = errors.already_exists(resource.group, resource.plural, key.name)
            stored = await self._store.get(key)
            if stored is not None and "deletionTimestamp" in orjson.loads(stored.body)["metadata"]:
                there.message = f"object is being deleted: {there.message}"
            raise there from error

    async def _apply(self, resource: Resource, target: Target, body: Body, options: WriteOptions) -> Result:
        """Server-side apply. Raises StatusError; MismatchError when the object has changed since it was read."""
        config = intake.applied_of(resource, target.namespace, deep_copy(body.value))
        fields = config["metadata"]
        fields.setdefault("name", target.name)
        intake.check_name(fields, target.name)
        stored = await self._store.get(Key(resource.key, target.namespace, target.name))
        manager, subresource, now = options.manager, target.subresource, self._timestamp()
        if stored is None:
            if subresource:
                raise errors.not_found(resource.group, resource.plural, target.name)
            if fields.get("uid"):
                why = (
                    f"uid mismatch: the provided object specified uid {fields['uid']}, and no existing object was found"
                )
                raise errors.conflict(resource.group, resource.plural, target.name, why)
            if resource.namespaced:
                fields["namespace"] = target.namespace
            new = await beside(
                body.size, resource.fields.apply, None, config, manager, subresource, now, force=options.force
            )
            return await self._create(resource, target, new, body, options, applied=True)
        old: Raw = orjson.loads(await _served(resource, stored))
        if wrong := meta.check_immutable(fields, old["metadata"]):
            raise errors.invalid(resource.group, resource.kind, target.name, wrong)
        size = body.size + len(stored.body)
        new = await beside(size, resource.fields.apply, old, config, manager, subresource, now, force=options.force)
        change = _Change(stored, old, new, body.duplicates, patched=True, applied=True, size=body.size)
        return await self._replace(resource, target, change, options)

    async def _replace(self, resource: Resource, target: Target, change: _Change, options: WriteOptions) -> Result:
        """Put a new state in the place of a stored one. Raises StatusError; MismatchError when it has changed since."""
        old, new, stored = change.old, change.new, change.stored
        fields, before = new["metadata"], old["metadata"]
        intake.check_current(resource, stored, fields, before)
        submitted = orjson.dumps(new) if change.patched else b""
        new = resource.rules.limit(new, old, target.subresource, resource.status)
        intake.finish_metadata(new, old)
        size = (change.size + len(stored.body)) * resource.rules.dear
        found = await beside(size, intake.walk, resource, new, known=change.known)
        warnings = intake.unknown_fields(resource, found, change.duplicates, options.validation, submitted)
        warnings += intake.metadata_warnings(resource, new["metadata"])
        if not change.applied:
            now = self._timestamp()
            await beside(size, resource.fields.update, old, new, options.manager, target.subresource, now)
        attributes = Attributes(
            "UPDATE",
            resource,
            stored.namespace,
            stored.name,
            target.subresource,
            new,
            old,
            options.object(),
            options.dry_run,
            warnings,
        )
        if (changed := await self._mutated(attributes)) is not None:
            new = resource.rules.limit(changed, old, target.subresource, resource.status)
            intake.finish_metadata(new, old)
            found = await beside(size, intake.walk, resource, new)
        if target.subresource != "status" and resource.status:
            # An older schema may have let in a status that today's refuses; the writer of the spec cannot mend it.
            found.errors = [error for error in found.errors if not intake.is_in(error, "status")]
        await beside(size, self._finish, resource, new, old, found, warnings)
        warnings += resource.rules.warn(new)
        if resource.rules.generation and intake.desired(new) != intake.desired(old):
            new["metadata"]["generation"] = before.get("generation", 0) + 1
        attributes.object = new
        await self._admission.validate(attributes)
        managed_fields.keep_times(new, old)
        key = Key(resource.key, stored.namespace, stored.name)
        if "deletionTimestamp" in before and not new["metadata"].get("finalizers") and not resource.rules.holds(new):
            last = conversion.text(new, resource.api_version)
            if not options.dry_run:
                await self._remove(resource, key, new, stored.version)
            return Result(last, 200, warnings)
        # When nothing changes there is no write and no event.
        if new == old and managed_fields.same(new, old) and conversion.is_current(resource, stored):
            return Result(conversion.text(old, resource.api_version), 200, warnings)
        return Result(await self._put(resource, key, new, stored.version, dry_run=options.dry_run), 200, warnings)

    def _finish(self, resource: Resource, new: Raw, old: Raw | None, found: Outcome, warnings: Sequence[str]) -> None:
        """Run the rules of the resource over an object that fits the schema. Raises StatusError (422)."""
        wrong: list[FieldError] = list(found.errors)
        if wrong and old is not None and resource.custom:
            wrong = ratcheted(wrong, new, old, resource.openapi)
        if old is None:
            wrong += meta.check(new["metadata"], resource.rules.name)
        else:
            wrong += meta.check(new["metadata"], _any_name) + meta.check_update(new["metadata"], old["metadata"])
        if not resource.custom:
            wrong += meta.check_core_finalizers(new["metadata"])
        if not wrong:
            resource.rules.prepare(new, old, self._now())
            wrong += resource.rules.check(new, old)
        if resource.validations is not None:
            wrong += resource.validations.check_after(wrong, new, old)
        if wrong:
            refused = errors.invalid(resource.group, resource.kind, new["metadata"].get("name", ""), wrong)
            refused.warnings = warnings
            raise refused

    def _preconditions(self, resource: Resource, target: Target, fields: Raw, options: DeleteOptions) -> None:
        """Refuse to delete another object than the client means. The words: k8s.io/apiserver, rest.BeforeDelete."""
        for what, wanted, actual, since in (
            ("UID", options.uid, fields.get("uid"), "deleted and then recreated"),
            ("ResourceVersion", options.version, fields.get("resourceVersion"), "modified"),
        ):
            if wanted and wanted != actual:
                why = (
                    f"the {what} in the precondition ({wanted}) does not match the {what} in record ({actual}). "
                    f"The object might have been {since}"
                )
                raise errors.conflict(resource.group, resource.kind, target.name, why)

    async def _mutated(self, attributes: Attributes) -> Raw | None:
        """Ask mutating admission; give the object that it made of ours, if it made one. Raises StatusError."""
        given = attributes.object
        before = given["metadata"].get("managedFields") if given is not None else None
        await self._admission.mutate(attributes)
        if attributes.object is None or attributes.object is given:
            return None
        # What webhooks change is managed by nobody, and they must not break the records of the others.
        attributes.warnings += managed_fields.valid_or_before(attributes.object, before)
        return attributes.object

    async def _put(self, resource: Resource, key: Key, new: Raw, expected: int, *, dry_run: bool) -> bytes:
        """Store an object and give it as text in the version of the request. Raises MismatchError, StatusError."""
        if dry_run:
            current = await self._store.get(key)
            if (current.version if current else 0) != expected:
                raise MismatchError(current.version if current else 0)
            return conversion.text(new, resource.api_version)
        converted = await conversion.as_stored(resource, new)
        # From here to the store without awaiting: versions go to the store in the order in which they are given out.
        version = self._store.next_version()
        body = conversion.with_version(converted, version)
        _check_stored(resource, key, body)
        await self._store.write(Write(key, version, body, expected))
        if converted is new:
            return body
        # What was converted is answered as it will be read: with the defaults of the version in which it is stored.
        return await _served(resource, Stored(key.namespace, key.name, version, body))

    async def _remove(self, resource: Resource, key: Key, last: Raw, expected: int) -> None:
        """Remove an object; `last` is what watches see of it. Raises MismatchError, StatusError."""
        converted = await conversion.as_stored(resource, last)
        version = self._store.next_version()
        body = conversion.with_version(converted, version)
        await self._store.write(Write(key, version, body, expected, delete=True))


def _check_stored(resource: Resource, key: Key, body: bytes) -> None:
    """Refuse an object that has become too large, be it step by step. Raises StatusError (413)."""
    if len(body) > MAX_STORED:
        why = f"it would be stored with {len(body)} bytes, managedFields included; the limit is {MAX_STORED}"
        raise errors.too_large_object(resource.group, resource.plural, key.name, why)


async def _served(resource: Resource, stored: Stored) -> bytes:
    return (await conversion.as_served(resource, [stored]))[0]


def _any_name(_: str) -> None:
    """The name of an object that exists is what it is."""
