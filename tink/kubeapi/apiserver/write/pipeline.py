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
from collections.abc import Callable
from datetime import datetime

from tink.kubeapi.apiserver import errors, managed_fields
from tink.kubeapi.apiserver.admission.attributes import Attributes
from tink.kubeapi.apiserver.admission.webhooks import Webhooks
from tink.kubeapi.apiserver.resources import Resource
from tink.kubeapi.apiserver.write.completion import complete, dedup_owners, finalizer_warnings, is_in, unknown_fields
from tink.kubeapi.apiserver.write.persistence import Persistence
from tink.kubeapi.apiserver.write.strategy import Draft, Result, generate_name
from tink.kubeapi.schema import Outcome, Raw, meta, ratcheted
from tink.offload import offload

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
