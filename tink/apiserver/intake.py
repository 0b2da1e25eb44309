"""What a client hands in, on its way to an object that may be stored: body, patch, schema walk, unknown fields.

The steps that `verbs` takes one after the other, each pure. The object changes in place from step to step; a step that
finds something wrong raises the StatusError that Kubernetes answers with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from tink.apiserver import errors, meta, patch, schema
from tink.apiserver.errors import FieldError, StatusError
from tink.apiserver.registry import Raw, Resource
from tink.apiserver.request import JSON_PATCH, MERGE_PATCH


def object_of(resource: Resource, namespace: str, value: Any) -> Raw:
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
            raise cannot_be_handled(resource, f"metadata.{name} must be of type string")
    own = value["metadata"].get("namespace") or namespace
    if own != namespace and resource.namespaced:
        raise errors.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    return value


def patched(resource: Resource, old: Raw, kind: str, change: Any) -> Raw:
    """Apply a patch of media type `kind` to a copy of `old`. Raises StatusError (400, 422)."""
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


def walk(resource: Resource, new: Raw) -> schema.Walk:
    """Prune, complete and check an object. Raises StatusError (400) when its metadata have the wrong types."""
    # Metadata first, so that their errors are found whatever else is wrong (a walk stops noting after many errors).
    ordered = {"metadata": new["metadata"], **new}
    new.clear()
    new.update(ordered)
    found = schema.Walk()
    resource.node(new, None, found)
    wrong = [error for error in found.errors if is_in(error, "metadata")]
    if wrong:
        raise cannot_be_handled(resource, str(wrong[0]))
    # Kubernetes never writes empty metadata fields.
    new["metadata"] = {key: value for key, value in new["metadata"].items() if value not in ("", [], {})}
    return found


def is_in(error: FieldError, part: str) -> bool:
    """Whether an error is about a top-level field, or about something in it."""
    return error.field == part or error.field.startswith((f"{part}.", f"{part}["))


def dedup_owners(fields: Raw) -> list[str]:
    """Drop owner references that stand twice, in place; give the warning that says so."""
    owners = fields.get("ownerReferences")
    if not owners or len(owners) < 2:
        return []
    seen: dict[bytes, Raw] = {}
    for owner in owners:
        seen.setdefault(orjson.dumps(owner, option=orjson.OPT_SORT_KEYS), owner)
    if len(seen) == len(owners):
        return []
    fields["ownerReferences"] = list(seen.values())
    return [
        ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may "
        "reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: "
        + ", ".join(sorted({str(owner.get("uid", "")) for owner in owners if owners.count(owner) > 1}))
    ]


def cannot_be_handled(resource: Resource, why: str) -> StatusError:
    """Refuse a body that is no object of this kind."""
    return errors.bad_request(
        f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: {why}'
    )


def unknown_fields(
    resource: Resource, found: schema.Walk, duplicates: tuple[str, ...], validation: str, submitted: bytes = b""
) -> list[str]:
    """Treat unknown and duplicate fields as `fieldValidation` says: refuse (StatusError), warn, or nothing.

    `submitted` is the object that a patch led to, as text; empty when the client sent the object itself.
    """
    deprecated = [resource.warning] if resource.warning else []
    wrong = [f'duplicate field "{name}"' for name in duplicates] + [f'unknown field "{at}"' for at in found.unknown]
    if not wrong or validation == "Ignore":
        return deprecated
    if validation == "Warn":
        return [*deprecated, *wrong]
    why = f"strict decoding error: {', '.join(wrong)}"
    if submitted:
        raise errors.invalid("", "", "", [errors.invalid_value("patch", submitted.decode(), why)])
    raise cannot_be_handled(resource, why)


def desired(obj: Mapping[str, Any]) -> Raw:
    """Give what `generation` counts the changes of: everything but metadata and status."""
    return {key: value for key, value in obj.items() if key not in ("metadata", "status")}


def finish_metadata(new: Raw, old: Raw) -> None:
    """Give an updated object the fields that only the server sets."""
    meta.keep_owned(new["metadata"], old["metadata"])
    new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
