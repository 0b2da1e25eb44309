"""The verbs on single objects: create, update, patch, apply, get, delete, with the rules of Kubernetes.

A verb determines the new state of an object, and hands it to the `pipeline` as a draft. The store refuses it if the
object has changed in between (optimistic concurrency). A patch without a resourceVersion is then retried on the new
state; anything else is a conflict for the client.

A delete removes an object, or marks it until its finalizers are gone (k8s.io/apiserver, pkg/registry/rest:
BeforeDelete; pkg/registry/generic/registry/store.go).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import orjson

from tink.kubeapi.apiserver import conversion, errors, media
from tink.kubeapi.apiserver.admission.review import Attributes
from tink.kubeapi.apiserver.options import DeleteOptions, Target, WriteOptions
from tink.kubeapi.apiserver.resources import definitions
from tink.kubeapi.apiserver.resources.registry import Resource
from tink.kubeapi.apiserver.store.objects import Key, MismatchError, StoredObject
from tink.kubeapi.apiserver.write import submission
from tink.kubeapi.apiserver.write.pipeline import (
    Draft,
    Pipeline,
    Update,
    VerbResult,
    WriteRequest,
    key_of,
    served_text,
)
from tink.kubeapi.schema import field_errors, meta
from tink.kubeapi.schema.shapes import Raw, deep_copy
from tink.offload import offload

ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"

MAX_ATTEMPTS = 5  # Maximum number of attempts while the object keeps changing (Kubernetes: MaxRetryWhenPatchConflicts)
MAX_NAME_ATTEMPTS = 8
"""Maximum number of names made from generateName (k8s.io/apiserver: maxNameGenerationCreateAttempts)."""


class Verbs:
    """Verbs on single objects."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._store = pipeline.objects

    async def get(self, resource: Resource, target: Target) -> VerbResult:
        """Read an object. Raises StatusError (404)."""
        return VerbResult(await served_text(resource, await self._stored(resource, target)))

    async def _stored(self, resource: Resource, target: Target) -> StoredObject:
        stored = await self._store.get(key_of(resource, target))
        if stored is None:
            raise errors.not_found(resource.group, resource.plural, target.name)
        return stored

    # --- create and update ---

    async def create(self, resource: Resource, target: Target, body: media.Body, options: WriteOptions) -> VerbResult:
        """Create an object. Raises StatusError."""
        request = WriteRequest(resource, target, body, options)
        return await self._with_field_warnings(request, body, self._create_named(request))

    async def _create_named(self, request: WriteRequest) -> VerbResult:
        new = submission.read_object(request.resource, request.target.namespace, request.body.value)
        fields = new["metadata"]
        if request.target.name:
            # kube-apiserver creates the object that the body names, whatever the path is. Rights and logs refer to the
            # path.
            submission.check_name(fields, request.target.name)
        if (fields.pop("resourceVersion", None) or "").strip("0").isdigit():
            raise errors.bad_request("resourceVersion should not be set on objects to be created")
        if fields.get("name") or not fields.get("generateName"):
            return await self._create(request, new)
        for attempt in range(MAX_NAME_ATTEMPTS):
            try:
                return await self._create(request, await _copy(new, request.body))
            except errors.StatusError as error:
                if error.reason != "AlreadyExists" or attempt == MAX_NAME_ATTEMPTS - 1:
                    raise
        raise AssertionError("the loop returns or raises")

    async def update(self, resource: Resource, target: Target, body: media.Body, options: WriteOptions) -> VerbResult:
        """Replace an object, or its status. Raises StatusError."""
        request = WriteRequest(resource, target, body, options)
        return await self._with_field_warnings(request, body, self._update(request))

    async def _update(self, request: WriteRequest) -> VerbResult:
        resource, target, body = request.resource, request.target, request.body
        new = submission.read_object(resource, target.namespace, body.value)
        submission.check_name(new["metadata"], target.name)
        version = submission.expected_version(new["metadata"])

        async def attempt() -> VerbResult:
            stored = await self._store.get(key_of(resource, target))
            if stored is None and resource.rules.creates and not target.subresource:
                return await self._create(request, await _copy(new, body))
            if stored is None:
                raise request.not_found()
            old: Raw = orjson.loads(await served_text(resource, stored))
            submission.check_uid(resource, target.name, new["metadata"].get("uid") or "", old["metadata"])
            if not version and not resource.rules.unconditional:
                wrong = field_errors.invalid("metadata.resourceVersion", 0, "must be specified for an update")
                raise errors.invalid(resource.group, resource.plural, target.name, [wrong])
            replacement = await _copy(new, body)
            if resource.conversion is not None:
                resource.conversion.restore(replacement, old)
            return await self._replace(request, old, stored, replacement)

        return await self._until_current(resource, target, attempt)

    @staticmethod
    async def _with_field_warnings(
        request: WriteRequest, body: media.Body, write: Coroutine[Any, Any, VerbResult], *, patched: bool = False
    ) -> VerbResult:
        """Run a write. If it is refused, add the errors about the body's fields as warnings. Raises StatusError.
        `patched`: the body is the result of a patch."""
        try:
            return await write
        except errors.StatusError as error:
            resource, validation = request.resource, request.options.validation
            if error.warnings is None and validation != "Ignore":
                size = body.size * resource.rules.cost
                error.warnings = await offload(
                    size, submission.unread_fields, resource, body, validation, patched=patched
                )
            raise

    async def _create(self, request: WriteRequest, new: Raw, *, applied: bool = False) -> VerbResult:
        """Store a new object; one with only a generateName gets a name. Raises StatusError."""
        resource = request.resource
        if resource.terminating:
            why = "create not allowed while custom resource definition is terminating"
            raise errors.forbidden(resource.group, resource.plural, new["metadata"].get("name", ""), why)
        if resource.namespaced:
            await self._check_namespace(resource, request.target.namespace, new["metadata"].get("name", ""))
        return await self._pipeline.write(Draft(request=request, new=new, size=request.body.size, applied=applied))

    async def _replace(
        self,
        request: WriteRequest,
        old: Raw,
        stored: StoredObject,
        new: Raw,
        *,
        patched: bool = False,
        applied: bool = False,
    ) -> VerbResult:
        """Replace the state of a stored object. Raises StatusError; MismatchError if it has changed since."""
        resource = request.resource
        submission.check_current(resource, stored, new["metadata"], old["metadata"])
        size, text = request.body.size + len(stored.body), orjson.dumps(new) if patched else b""
        if patched and resource.key != definitions.KEY:
            await offload(size, _check_growth, request, stored.body, text)
        return await self._pipeline.write(
            Update(request=request, new=new, old=old, stored=stored, size=size, submitted=text, applied=applied)
        )

    async def _check_namespace(self, resource: Resource, namespace: str, name: str) -> None:
        """Refuse to create in a namespace that does not exist, or that is being deleted. Raises StatusError."""
        stored = await self._store.get(Key("/namespaces", "", namespace))
        if stored is None:
            raise errors.not_found("", "namespaces", namespace)
        if b'"deletionTimestamp"' in stored.body and "deletionTimestamp" in orjson.loads(stored.body)["metadata"]:
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise errors.forbidden(resource.group, resource.plural, name, why)

    # --- patch and apply ---

    @staticmethod
    def check_patch_type(resource: Resource, kind: str) -> None:
        """Check that a resource accepts patches of a media type. Raises StatusError (415)."""
        accepted = (
            media.JSON_PATCH,
            media.MERGE_PATCH,
            *((media.STRATEGIC_PATCH,) if resource.rules.strategic else ()),
            media.APPLY_PATCH,
        )
        if kind not in accepted:
            raise errors.unsupported_media_type(accepted)

    async def patch(
        self, resource: Resource, target: Target, kind: str, body: media.Body, options: WriteOptions
    ) -> VerbResult:
        """Change an object, or its status, by a patch of media type `kind`. Raises StatusError."""
        request = WriteRequest(resource, target, body, options)

        async def attempt() -> VerbResult:
            if kind == media.APPLY_PATCH:
                return await self._apply(request)
            stored = await self._stored(resource, target)
            old: Raw = orjson.loads(await served_text(resource, stored))
            size = body.size + len(stored.body)
            new = await offload(size, submission.apply_patch, resource, old, kind, body.value)

            async def put() -> VerbResult:
                submission.check_patched(resource, old, new)
                if resource.conversion is not None:  # `annotations: null` of a client that does not know our annotation
                    resource.conversion.restore(new, old)
                return await self._replace(request, old, stored, new, patched=True)

            made = media.Body(new, body.duplicates, size)
            return await self._with_field_warnings(request, made, put(), patched=True)

        return await self._until_current(resource, target, attempt)

    async def _apply(self, request: WriteRequest) -> VerbResult:
        """Server-side apply. Raises StatusError; MismatchError if the object has changed since it was read."""
        resource, target, body, options = request.resource, request.target, request.body, request.options
        config = submission.read_applied(resource, await _copy(body.value, body))
        fields = config["metadata"]
        stored = await self._store.get(key_of(resource, target))
        how = (config, options.manager, target.subresource, self._pipeline.timestamp())
        if stored is None:
            if target.subresource:
                raise request.not_found()
            if fields.get("uid"):
                why = f"the provided object specified uid {fields['uid']}, and no existing object was found"
                raise errors.conflict(resource.group, resource.plural, target.name, f"uid mismatch: {why}")
            new = await offload(body.size, resource.fields.apply, None, *how, force=options.force)
            _check_place(request, new["metadata"])
            return await self._create(request, new, applied=True)
        old: Raw = orjson.loads(await served_text(resource, stored))
        size = conversion.tracking_size(resource, old, body.size + len(stored.body))
        new = await offload(size, resource.fields.apply, old, *how, force=options.force)
        if wrong := meta.check_immutable(fields, old["metadata"]):
            raise errors.invalid(resource.group, resource.kind, target.name, wrong)
        _check_place(request, new["metadata"])
        return await self._replace(request, old, stored, new, patched=True, applied=True)

    # --- delete ---

    async def delete(
        self, resource: Resource, target: Target, options: DeleteOptions, *, of_many: bool = False
    ) -> VerbResult:
        """Delete an object, alone or as one of many, or mark it if it has finalizers. Raises StatusError."""

        async def attempt() -> VerbResult:
            stored = await self._stored(resource, target)
            return await self.delete_stored(resource, target, stored, options, of_many=of_many)

        return await self._until_current(resource, target, attempt)

    async def delete_stored(
        self, resource: Resource, target: Target, stored: StoredObject, options: DeleteOptions, *, of_many: bool = False
    ) -> VerbResult:
        """Delete an object as it was read. Raises StatusError; MismatchError if it has changed since."""
        body = await served_text(resource, stored)
        old: Raw = orjson.loads(body)
        fields = old["metadata"]
        _check_preconditions(resource, target, fields, options)
        if why := resource.rules.may_delete(stored.name):
            raise errors.forbidden(resource.group, resource.plural, stored.name, why)
        name = "" if of_many else stored.name  # Kubernetes gives webhooks no name for an object of many.
        attributes = Attributes(
            *("DELETE", resource, stored.namespace, name, "", None, old, options.object(), options.dry_run),
            caller=options.caller,
        )
        with errors.attach_warnings(attributes.warnings):
            await self._pipeline.admission.mutate(attributes)
            try:
                await self._pipeline.admission.validate(attributes)
            finally:
                attributes.release()  # A deletion makes no claims.
        finalizers = finalizers_after(fields, options.policy)
        key = Key(resource.key, stored.namespace, stored.name)
        if finalizers or resource.rules.holds(old):
            if "deletionTimestamp" in fields and finalizers == (fields.get("finalizers") or []):
                return VerbResult(body, 200, attributes.warnings)
            new = deep_copy(old)
            marked = new["metadata"]
            if "deletionTimestamp" not in marked:
                marked |= {"deletionTimestamp": self._pipeline.timestamp(), "deletionGracePeriodSeconds": 0}
                if "generation" in marked:
                    marked["generation"] += 1
            if finalizers:
                marked["finalizers"] = finalizers
            resource.rules.prepare(new, old, self._pipeline.now())
            written = await self._pipeline.put(resource, key, new, stored.version, dry_run=options.dry_run)
            return VerbResult(written, 200, attributes.warnings)
        if not options.dry_run:
            await self._pipeline.remove(resource, key, old, stored.version)
        details = errors.details(resource.group, resource.plural, stored.name, uid=fields.get("uid"))
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
        return VerbResult(orjson.dumps(status), 200, attributes.warnings)

    @staticmethod
    async def _until_current(
        resource: Resource, target: Target, attempt: Callable[[], Coroutine[Any, Any, VerbResult]]
    ) -> VerbResult:
        """Retry on the newest state until no other writer interferes. Raises StatusError (409)."""
        for _ in range(MAX_ATTEMPTS):
            try:
                return await attempt()
            except MismatchError:
                continue  # the new state decides whether this is a conflict
        raise errors.conflict(resource.group, resource.plural, target.name)


def finalizers_after(meta: Mapping[str, Any], policy: str) -> list[str]:
    """Return the finalizers of an object after its deletion by `policy` ("": as they are).

    Background deletes the dependents after their owner, Foreground deletes the owner after the dependents that block
    it, Orphan keeps the dependents without the reference. The last two are finalizers, which the garbage collector
    processes (Kubernetes documentation, "Garbage Collection"; k8s.io/apiserver, pkg/registry/generic/registry).
    """
    have: list[str] = meta.get("finalizers") or []
    if not policy:
        return have
    added = {"Orphan": [ORPHAN], "Foreground": [FOREGROUND]}.get(policy, [])
    return [item for item in have if item not in (ORPHAN, FOREGROUND)] + added


def _check_preconditions(resource: Resource, target: Target, fields: Raw, options: DeleteOptions) -> None:
    """Refuse to delete another object than the client means (k8s.io/apiserver, rest.BeforeDelete)."""
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


def _check_place(request: WriteRequest, fields: Raw) -> None:
    submission.check_namespace(request.resource, request.target.namespace, fields)
    submission.check_name(fields, request.target.name)


def _check_growth(request: WriteRequest, old: bytes, new: bytes) -> None:
    """Reject a patch that makes an object exceed the limit of values. An object from before the limit can be reduced.
    Raises StatusError (413)."""
    if media.values_in(new, media.MAX_GROWN_VALUES) > media.MAX_GROWN_VALUES and media.values_in(
        new, len(new)
    ) > media.values_in(old, len(old)):
        why = f"it would have more than {media.MAX_GROWN_VALUES} values, managedFields included"
        raise errors.too_large_object(request.resource.group, request.resource.plural, request.target.name, why)


async def _copy(value: Any, body: media.Body) -> Any:
    """Copy a value of a body for an attempt that may be repeated."""
    return await offload(body.size, deep_copy, value)
