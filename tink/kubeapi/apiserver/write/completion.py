"""A draft on its way to an object that may be stored: unknown fields go, defaults come, what is wrong is found.

Pure; the object changes in place. What Kubernetes reads into Go types is read first (`schema.structs`), then the
compiled schema walks over it, then the resource completes what no schema can say.
"""

from __future__ import annotations

from collections import Counter
from functools import cache, partial

import orjson

from tink.kubeapi.apiserver import errors
from tink.kubeapi.apiserver.errors import StatusError
from tink.kubeapi.apiserver.requests import Body
from tink.kubeapi.apiserver.resources import Resource
from tink.kubeapi.schema import (
    FieldError,
    Outcome,
    Raw,
    TooMuchAddedError,
    complete_by_schema,
    deep_copy,
    field_errors,
    meta,
    read_metadata,
    structs,
)


@cache
def struct_of(resource: Resource) -> structs.Struct:
    """Give the type of a built-in resource."""
    return structs.struct(resource.openapi)


def read(resource: Resource, new: Raw) -> list[str]:
    """Read what Kubernetes reads into Go types, in place; give the paths of unknown fields. Raises StatusError."""
    try:
        if resource.rules.typed:
            made, unknown = struct_of(resource).read(new)
            new.clear()
            new.update(made)
            new.setdefault("metadata", {})
            return unknown
        return read_metadata(new)
    except structs.MistypedError as error:
        raise cannot_be_handled(resource, str(error)) from error


def complete(resource: Resource, new: Raw, *, applied: bool = False) -> Outcome:
    """Prune, complete and check an object.

    Nulls that may not be are dropped; in what was `applied` they are wrong, as it is a merged object and no body.
    Raises StatusError (400) when what Kubernetes reads into Go types has other types.
    """
    try:
        reading, keeps_nulls = partial(read, resource), applied and resource.custom
        found = complete_by_schema(resource.compiled, new, reading, keeps_nulls=keeps_nulls)
    except TooMuchAddedError as error:
        raise errors.too_much_added(resource.group, resource.plural, new, error) from error
    if resource.rules.typed and found.errors:  # types and formats are Go's business there
        found.errors = [error for error in found.errors if error.reason != "FieldValueTypeInvalid"]
    if not found.errors:
        resource.rules.complete(new)
    return found


def is_in(error: FieldError, part: str) -> bool:
    """Whether an error is about a top-level field, or about something in it."""
    return error.field == part or error.field.startswith((f"{part}.", f"{part}["))


def finalizer_warnings(resource: Resource, new: Raw, old: Raw | None) -> list[str]:
    """Warn of finalizers that a custom resource gets, and that are taken, but better were called otherwise."""
    if not resource.custom:
        return []
    had = set() if old is None else set(old["metadata"].get("finalizers") or ())
    added = [item for item in new["metadata"].get("finalizers") or () if item not in had]
    return meta.warn_finalizers({"finalizers": added}) if added else []


def dedup_owners(fields: Raw) -> list[str]:
    """Drop owner references that stand twice, in place; give the warning that says so."""
    owners = fields.get("ownerReferences")
    if not owners or len(owners) < 2:
        return []
    marks = [orjson.dumps(owner, option=orjson.OPT_SORT_KEYS) for owner in owners]
    seen = dict(zip(reversed(marks), reversed(owners), strict=True))
    if len(seen) == len(owners):
        return []
    fields["ownerReferences"] = [seen[mark] for mark in dict.fromkeys(marks)]
    counts = Counter(marks)
    return [
        ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may "
        "reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: "
        + ", ".join(sorted({str(owner.get("uid", "")) for mark, owner in seen.items() if counts[mark] > 1}))
    ]


def cannot_be_handled(resource: Resource, why: str) -> StatusError:
    """Refuse a body that is no object of this kind."""
    return errors.bad_request(
        f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: {why}'
    )


def unread_fields(resource: Resource, body: Body, validation: str, *, patched: bool = False) -> list[str]:
    """As `unknown_fields`, of a body that is refused before anybody has looked at its fields. Raises StatusError.

    Kubernetes reads a body first; here that is the dear part, and comes late.
    """
    obj = deep_copy(body.value)
    if not isinstance(obj, dict) or (obj.get("apiVersion"), obj.get("kind")) != (resource.api_version, resource.kind):
        return []
    obj["metadata"] = obj.get("metadata") or {}
    submitted = orjson.dumps(obj) if patched else b""
    try:
        found = complete(resource, obj)
    except StatusError:
        return []
    return unknown_fields(resource, found, body.duplicates, validation, submitted)


def unknown_fields(
    resource: Resource, found: Outcome, duplicates: tuple[str, ...], validation: str, submitted: bytes = b""
) -> list[str]:
    """Treat unknown and duplicate fields as `fieldValidation` says: refuse (StatusError), warn, or nothing.

    `submitted` is the object that a patch led to, as text; empty when the client sent the object itself.
    """
    wrong = [*duplicates, *(f'unknown field "{at}"' for at in found.unknown)]
    if not wrong or validation == "Ignore":
        return []
    if validation == "Warn":
        return wrong
    if duplicates and duplicates[0].startswith("line "):  # YAML: its decoder gives them in one message
        listed = "\n  ".join(duplicates)
        wrong = [f"yaml: unmarshal errors:\n  {listed}", *wrong[len(duplicates) :]]
    why = f"strict decoding error: {', '.join(wrong)}"
    if submitted:
        raise errors.invalid("", "", "", [field_errors.invalid("patch", submitted.decode(), why)])
    raise cannot_be_handled(resource, why)
