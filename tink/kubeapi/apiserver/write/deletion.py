"""Deletes: an object goes, or is marked and stays until its finalizers are worked off.

Sources: k8s.io/apiserver, pkg/registry/rest (BeforeDelete), pkg/registry/generic/registry/store.go.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import orjson

from tink.kubeapi.apiserver import errors
from tink.kubeapi.apiserver.admission.attributes import Attributes
from tink.kubeapi.apiserver.admission.webhooks import Webhooks
from tink.kubeapi.apiserver.requests import DeleteOptions, Target
from tink.kubeapi.apiserver.resources import Resource
from tink.kubeapi.apiserver.store import Key, Stored
from tink.kubeapi.apiserver.write import propagation
from tink.kubeapi.apiserver.write.persistence import Persistence, served
from tink.kubeapi.apiserver.write.strategy import Result
from tink.kubeapi.schema import Raw, deep_copy, meta


class Deletion:
    """Deletes objects. `now` gives the time in UTC."""

    def __init__(self, persistence: Persistence, now: Callable[[], datetime], admission: Webhooks) -> None:
        self._persistence = persistence
        self._now = now
        self._admission = admission

    async def delete(
        self, resource: Resource, target: Target, stored: Stored, options: DeleteOptions, *, of_many: bool = False
    ) -> Result:
        """Delete an object as it was read. Raises StatusError; MismatchError when it has changed since."""
        body = await served(resource, stored)
        old: Raw = orjson.loads(body)
        fields = old["metadata"]
        _check_preconditions(resource, target, fields, options)
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
            caller=options.caller,
        )
        with errors.warned(attributes.warnings):
            await self._admission.mutate(attributes)
            try:
                await self._admission.validate(attributes)
            finally:
                attributes.settled()  # A deletion makes no claims.
        finalizers = propagation.finalizers(fields, options.policy)
        key = Key(resource.key, stored.namespace, stored.name)
        if finalizers or resource.rules.holds(old):
            if "deletionTimestamp" in fields and finalizers == (fields.get("finalizers") or []):
                return Result(body, 200, attributes.warnings)
            new = self._marked(deep_copy(old), finalizers)
            resource.rules.prepare(new, old, self._now())
            written = await self._persistence.put(resource, key, new, stored.version, dry_run=options.dry_run)
            return Result(written, 200, attributes.warnings)
        if not options.dry_run:
            await self._persistence.remove(resource, key, old, stored.version)
        details = {"name": stored.name, "group": resource.group, "kind": resource.plural, "uid": fields.get("uid")}
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "details": {name: value for name, value in details.items() if value},
        }
        return Result(orjson.dumps(status), 200, attributes.warnings)

    def _marked(self, new: Raw, finalizers: list[str]) -> Raw:
        """Mark an object that is to go once its finalizers are worked off, in place."""
        fields = new["metadata"]
        if "deletionTimestamp" not in fields:
            now = meta.timestamp(self._now())
            fields |= {"deletionTimestamp": now, "deletionGracePeriodSeconds": 0}
            if "generation" in fields:
                fields["generation"] += 1
        if finalizers:
            fields["finalizers"] = finalizers
        return new


def _check_preconditions(resource: Resource, target: Target, fields: Raw, options: DeleteOptions) -> None:
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
