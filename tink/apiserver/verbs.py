"""What can be done with objects: create, update, patch, delete, get. The rules of Kubernetes, apart from HTTP.

A write goes: current state -> new state -> schema and rules -> text -> store. The store refuses when the object has
changed in between (optimistic concurrency); a patch that does not name a resourceVersion is then tried again on the new
state, anything else is a conflict for the client. Lists and watches are in `lists`.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import orjson

from tink.apiserver import errors, meta, patch, schema
from tink.apiserver.errors import FieldError, StatusError
from tink.apiserver.registry import Raw, Resource
from tink.apiserver.request import (
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    Body,
    DeleteOptions,
    Target,
    WriteOptions,
)
from tink.apiserver.storage import Key, MismatchError, Store, Stored, Write

ATTEMPTS = 5
"""How often a patch is tried when the object keeps changing (Kubernetes: MaxRetryWhenPatchConflicts)."""

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
"""Letters of generated names: no vowels, so no words (k8s.io/apimachinery, pkg/util/rand)."""


@dataclass(frozen=True, slots=True)
class Result:
    """An object as it is after a verb, as JSON text in the version of the request; `code` is the HTTP status."""

    body: bytes
    code: int = 200
    warnings: list[str] = field(default_factory=list)


class Verbs:
    """Verbs on single objects. `now` gives the time in UTC."""

    def __init__(self, store: Store, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now

    async def get(self, resource: Resource, target: Target) -> Result:
        """Read an object. Raises StatusError (404)."""
        return Result(as_version(resource, (await self._stored(resource, target)).body))

    async def create(self, resource: Resource, target: Target, body: Body, options: WriteOptions) -> Result:
        """Create an object. Raises StatusError."""
        new = _object_of(resource, target, body.value)
        fields = new["metadata"]
        if fields.get("resourceVersion"):
            raise errors.bad_request("resourceVersion should not be set on objects to be created")
        generated = not fields.get("name") and bool(fields.get("generateName"))
        await self._may_create(resource, target)
        for attempt in range(ATTEMPTS):
            if generated:
                fields["name"] = fields["generateName"][:58] + "".join(secrets.choice(_SUFFIX) for _ in range(5))
            warnings = self._admit_new(resource, target, new, body, options)
            key = Key(resource.key, target.namespace, fields["name"])
            try:
                return Result(await self._put(resource, key, new, 0, options), 201, warnings)
            except MismatchError as error:
                if not generated or attempt == ATTEMPTS - 1:
                    raise errors.already_exists(resource.group, resource.plural, key.name) from error
        raise errors.already_exists(resource.group, resource.plural, fields["name"])

    async def update(self, resource: Resource, target: Target, body: Body, options: WriteOptions) -> Result:
        """Replace an object, or its status. Raises StatusError."""
        new = _object_of(resource, target, body.value)
        if new["metadata"].setdefault("name", target.name) != target.name:
            raise errors.bad_request(
                f"the name of the object ({new['metadata']['name']}) does not match the name on the URL ({target.name})"
            )
        wanted = new["metadata"].get("resourceVersion")
        if not wanted and not resource.rules.unconditional:
            wrong = errors.invalid_value("metadata.resourceVersion", 0, "must be specified for an update")
            raise errors.invalid(resource.group, resource.kind, target.name, [wrong])
        for _ in range(ATTEMPTS):
            stored = await self._stored(resource, target)
            try:
                return await self._replace(resource, target, stored, patch.copy(new), body.duplicates, options)
            except MismatchError:
                continue  # changed since it was read: the new state decides whether this is a conflict
        raise errors.conflict(resource.group, resource.plural, target.name)

    async def patch(self, resource: Resource, target: Target, kind: str, body: Body, options: WriteOptions) -> Result:
        """Change an object, or its status, by a patch of media type `kind`. Raises StatusError."""
        accepted = (JSON_PATCH, MERGE_PATCH, *((STRATEGIC_PATCH,) if resource.rules.strategic else ()))
        if kind not in accepted:
            raise errors.unsupported_media_type(kind, accepted)
        for _ in range(ATTEMPTS):
            stored = await self._stored(resource, target)
            new = _patched(resource, orjson.loads(as_version(resource, stored.body)), kind, body.value)
            try:
                return await self._replace(resource, target, stored, new, body.duplicates, options, patched=True)
            except MismatchError:
                continue
        raise errors.conflict(resource.group, resource.plural, target.name)

    async def delete(self, resource: Resource, target: Target, options: DeleteOptions) -> Result:
        """Delete an object, or mark it when it has finalizers. Raises StatusError."""
        for _ in range(ATTEMPTS):
            stored = await self._stored(resource, target)
            try:
                return await self.delete_stored(resource, target, stored, options)
            except MismatchError:
                continue
        raise errors.conflict(resource.group, resource.plural, target.name)

    async def delete_stored(self, resource: Resource, target: Target, stored: Stored, options: DeleteOptions) -> Result:
        """Delete an object as it was read. Raises StatusError; MismatchError when it has changed since."""
        old: Raw = orjson.loads(stored.body)
        fields = old["metadata"]
        self._preconditions(resource, target, fields, options)
        key = Key(resource.key, stored.namespace, stored.name)
        if fields.get("finalizers") or resource.rules.held:
            if "deletionTimestamp" in fields:
                return Result(as_version(resource, stored.body))
            new = patch.copy(old)
            new["metadata"] |= {"deletionTimestamp": self._timestamp(), "deletionGracePeriodSeconds": 0}
            if "generation" in fields:
                new["metadata"]["generation"] += 1
            resource.rules.prepare(new, old, self._now())
            return Result(await self._put(resource, key, new, stored.version, WriteOptions(options.dry_run)))
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
        return Result(orjson.dumps(status))

    async def release(self, resource: Resource, stored: Stored) -> None:
        """Remove an object that waited to be deleted. Raises MismatchError when it has changed since."""
        key = Key(resource.key, stored.namespace, stored.name)
        await self._remove(resource, key, orjson.loads(stored.body), stored.version)

    # --- what the verbs share ---

    async def _stored(self, resource: Resource, target: Target) -> Stored:
        stored = await self._store.get(Key(resource.key, target.namespace, target.name))
        if stored is None:
            raise errors.not_found(resource.group, resource.plural, target.name)
        return stored

    def _timestamp(self) -> str:
        return self._now().strftime("%Y-%m-%dT%H:%M:%SZ")

    async def _may_create(self, resource: Resource, target: Target) -> None:
        """Refuse to create in a namespace that does not exist, or that is being deleted."""
        if not resource.namespaced:
            return
        namespace = await self._store.get(Key("/namespaces", "", target.namespace))
        if namespace is None:
            raise errors.not_found("", "namespaces", target.namespace)
        if "deletionTimestamp" in orjson.loads(namespace.body)["metadata"]:
            why = f"unable to create new content in namespace {target.namespace} because it is being terminated"
            raise errors.forbidden(resource.group, resource.plural, target.name, why)

    def _admit_new(self, resource: Resource, target: Target, new: Raw, body: Body, options: WriteOptions) -> list[str]:
        """Complete and check a new object, in place. Gives warnings. Raises StatusError."""
        fields = new["metadata"]
        for name in (*meta.OWNED, "selfLink", "managedFields"):
            fields.pop(name, None)
        if resource.namespaced:
            fields["namespace"] = target.namespace
        if resource.status:
            new.pop("status", None)
        walk = _walk(resource, new)
        warnings = _unknown_fields(resource, walk, body.duplicates, options)
        self._finish(resource, new, None, walk)
        warnings += resource.rules.warn(new)
        fields = new["metadata"]
        fields |= {"uid": str(uuid.uuid4()), "creationTimestamp": self._timestamp()}
        if resource.rules.generation:
            fields["generation"] = 1
        return warnings

    async def _replace(
        self,
        resource: Resource,
        target: Target,
        stored: Stored,
        new: Raw,
        duplicates: tuple[str, ...],
        options: WriteOptions,
        *,
        patched: bool = False,
    ) -> Result:
        """Put `new` in the place of `stored`. Raises StatusError; MismatchError when it has changed since."""
        old: Raw = orjson.loads(as_version(resource, stored.body))
        fields, before = new["metadata"], old["metadata"]
        if fields.get("resourceVersion", before["resourceVersion"]) not in (before["resourceVersion"], ""):
            raise errors.conflict(resource.group, resource.plural, target.name)
        if fields.get("uid", before["uid"]) not in (before["uid"], ""):
            why = f"Precondition failed: UID in precondition: {fields['uid']}, UID in object meta: {before['uid']}"
            raise errors.conflict(resource.group, resource.plural, target.name, why)
        submitted = orjson.dumps(new) if patched else b""
        if target.subresource == "status":
            new = {**old, "status": new["status"]} if "status" in new else {k: old[k] for k in old if k != "status"}
            new["metadata"] = dict(before)
        elif resource.status:
            new.pop("status", None)
            if "status" in old:
                new["status"] = old["status"]
        meta.keep_owned(new["metadata"], before)
        new["metadata"]["resourceVersion"] = before["resourceVersion"]
        walk = _walk(resource, new)
        warnings = _unknown_fields(resource, walk, duplicates, options, submitted)
        if target.subresource != "status" and resource.status:
            # An older schema may have let in a status that today's refuses; the writer of the spec cannot mend it.
            walk.errors = [error for error in walk.errors if not _in(error, "status")]
        self._finish(resource, new, old, walk)
        warnings += resource.rules.warn(new)
        if resource.rules.generation and _desired(new) != _desired(old):
            new["metadata"]["generation"] = before.get("generation", 0) + 1
        key = Key(resource.key, stored.namespace, stored.name)
        if "deletionTimestamp" in before and not new["metadata"].get("finalizers") and not resource.rules.held:
            if not options.dry_run:
                await self._remove(resource, key, new, stored.version)
            return Result(_text(resource, new), 200, warnings)
        if new == old:  # nothing changes: no write, no event
            return Result(as_version(resource, stored.body), 200, warnings)
        return Result(await self._put(resource, key, new, stored.version, options), 200, warnings)

    def _finish(self, resource: Resource, new: Raw, old: Raw | None, walk: schema.Walk) -> None:
        """Run the rules of the resource over an object that fits the schema. Raises StatusError (422)."""
        found: list[FieldError] = list(walk.errors)
        if not found:
            if old is None:
                found += meta.check(new["metadata"], resource.rules.name)
            else:
                found += meta.check(new["metadata"], _any_name) + meta.check_update(new["metadata"], old["metadata"])
        if not found:
            resource.rules.prepare(new, old, self._now())
            found += resource.rules.check(new, old)
        if found:
            raise errors.invalid(resource.group, resource.kind, new["metadata"].get("name", ""), found)

    def _preconditions(self, resource: Resource, target: Target, fields: Raw, options: DeleteOptions) -> None:
        for what, wanted, actual in (
            ("UID", options.uid, fields.get("uid")),
            ("ResourceVersion", options.version, fields.get("resourceVersion")),
        ):
            if wanted and wanted != actual:
                why = f"Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {actual}"
                raise errors.conflict(resource.group, resource.plural, target.name, why)

    async def _put(self, resource: Resource, key: Key, new: Raw, expected: int, options: WriteOptions) -> bytes:
        """Store an object and give it as text. Raises MismatchError."""
        if options.dry_run:
            current = await self._store.get(key)
            if (current.version if current else 0) != expected:
                raise MismatchError(current.version if current else 0)
            return _text(resource, new)
        version = self._store.next_version()
        new["metadata"]["resourceVersion"] = str(version)
        await self._store.write(Write(key, version, _stored_text(resource, new), expected))
        return _text(resource, new)

    async def _remove(self, resource: Resource, key: Key, last: Raw, expected: int) -> None:
        """Remove an object; `last` is what watches see of it. Raises MismatchError."""
        version = self._store.next_version()
        last["metadata"]["resourceVersion"] = str(version)
        await self._store.write(Write(key, version, _stored_text(resource, last), expected, delete=True))


def _any_name(_: str) -> None:
    """The name of an object that exists is what it is."""


def _in(error: FieldError, part: str) -> bool:
    return error.field == part or error.field.startswith((f"{part}.", f"{part}["))


def _desired(obj: Raw) -> Raw:
    return {key: value for key, value in obj.items() if key not in ("metadata", "status")}


def _object_of(resource: Resource, target: Target, value: Any) -> Raw:
    """Check that a body is an object of the resource that the path names. Raises StatusError (400)."""
    if not isinstance(value, dict):
        raise errors.bad_request("couldn't get version/kind; the body must be an object")
    kind, api_version = value.setdefault("kind", resource.kind), value.setdefault("apiVersion", resource.api_version)
    if kind != resource.kind or api_version != resource.api_version:
        raise errors.bad_request(
            f"the API version in the data ({api_version}, Kind={kind}) does not match the expected API version "
            f"({resource.api_version}, Kind={resource.kind})"
        )
    if not isinstance(value.setdefault("metadata", {}), dict):
        raise errors.bad_request("metadata must be an object")
    for name in ("name", "generateName", "namespace", "resourceVersion", "uid"):
        if not isinstance(value["metadata"].get(name) or "", str):
            raise _cannot_be_handled(resource, f"metadata.{name} must be of type string")
    namespace = value["metadata"].get("namespace") or target.namespace
    if namespace != target.namespace and resource.namespaced:
        raise errors.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    return value


def _patched(resource: Resource, old: Raw, kind: str, change: Any) -> Raw:
    """Apply a patch. Raises StatusError (400, 422)."""
    try:
        if kind == JSON_PATCH:
            new = patch.apply_operations(old, change)
        elif not isinstance(change, dict):
            raise errors.bad_request("a merge patch must be an object")
        elif kind == MERGE_PATCH:
            new = patch.copy(patch.merge(old, change))
        else:
            new = patch.copy(patch.merge_strategic(old, change))
    except patch.PatchError as error:
        if error.unprocessable:
            raise StatusError(
                422, "Invalid", f"the server rejected our request due to an error in our request: {error}"
            ) from error
        raise errors.bad_request(str(error)) from error
    if not isinstance(new, dict) or not isinstance(new.get("metadata"), dict):
        raise errors.bad_request("the patch leaves no object with metadata")
    for name in ("apiVersion", "kind"):
        if new.get(name) != old[name]:
            raise errors.bad_request(f"a patch must not change {name}")
    for name in ("name", "namespace"):
        if new["metadata"].get(name) != old["metadata"].get(name):
            wrong = errors.invalid_value(f"metadata.{name}", new["metadata"].get(name), "field is immutable")
            raise errors.invalid(resource.group, resource.kind, old["metadata"]["name"], [wrong])
    return new


def _walk(resource: Resource, new: Raw) -> schema.Walk:
    """Prune, complete and check an object. Raises StatusError (400) when its metadata have the wrong types."""
    # Metadata first, so that their errors are found whatever else is wrong (a walk stops noting after many errors).
    ordered = {"metadata": new["metadata"], **new}
    new.clear()
    new.update(ordered)
    walk = schema.Walk()
    resource.node(new, None, walk)
    wrong = [error for error in walk.errors if _in(error, "metadata")]
    if wrong:
        raise _cannot_be_handled(resource, str(wrong[0]))
    # Kubernetes never writes empty metadata fields.
    new["metadata"] = {key: value for key, value in new["metadata"].items() if value not in ("", [], {})}
    return walk


def _cannot_be_handled(resource: Resource, why: str) -> StatusError:
    return errors.bad_request(
        f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: {why}'
    )


def _unknown_fields(
    resource: Resource, walk: schema.Walk, duplicates: tuple[str, ...], options: WriteOptions, submitted: bytes = b""
) -> list[str]:
    """Treat unknown and duplicate fields as fieldValidation says: refuse (StatusError), warn, or nothing."""
    wrong = [f'duplicate field "{name}"' for name in duplicates] + [f'unknown field "{at}"' for at in walk.unknown]
    if not wrong or options.validation == "Ignore":
        return [resource.warning] if resource.warning else []
    if options.validation == "Warn":
        return [*([resource.warning] if resource.warning else []), *wrong]
    why = f"strict decoding error: {', '.join(wrong)}"
    if submitted:
        raise errors.invalid("", "", "", [errors.invalid_value("patch", submitted.decode(), why)])
    raise _cannot_be_handled(resource, why)


def _ordered(obj: Raw, api_version: str) -> Raw:
    head = {"apiVersion": api_version, "kind": obj["kind"], "metadata": meta.ordered(obj["metadata"])}
    return head | {key: value for key, value in obj.items() if key not in head}


def _text(resource: Resource, obj: Raw) -> bytes:
    return orjson.dumps(_ordered(obj, resource.api_version))


def _stored_text(resource: Resource, obj: Raw) -> bytes:
    return orjson.dumps(_ordered(obj, resource.stored_api_version))


def as_version(resource: Resource, body: bytes) -> bytes:
    """Give a stored object in the version of the request (conversion strategy None: only apiVersion differs)."""
    head = b'{"apiVersion":"' + resource.api_version.encode() + b'"'
    if body.startswith(head):
        return body
    return b"".join((head, body[body.index(b',"kind"') :]))
