"""Checks and completion of a client's input, on the way to an object that may be stored. Pure.

The first part completes an object: Kubernetes' Go types read it (`schema.structs`), the compiled schema prunes and
completes it, and the resource's rules add the rest. The second part checks that a body, an apply configuration or the
result of a patch is an object of the resource and the meant one. Errors are the StatusErrors of Kubernetes.
"""

from __future__ import annotations

from collections import Counter
from functools import cache, partial
from typing import Any

import orjson

from tink.golang import json_kind
from tink.kubeapi.apiserver import errors, patch
from tink.kubeapi.apiserver.errors import StatusError
from tink.kubeapi.apiserver.media import JSON_PATCH, MERGE_PATCH, Body
from tink.kubeapi.apiserver.resources.registry import Resource
from tink.kubeapi.apiserver.store.objects import StoredObject
from tink.kubeapi.schema import field_errors, meta, structs
from tink.kubeapi.schema.field_errors import FieldError, TooMuchAddedError, WalkResult
from tink.kubeapi.schema.shapes import Raw, deep_copy
from tink.kubeapi.schema.structs import read_metadata
from tink.kubeapi.schema.structural import complete_by_schema


@cache
def struct_of(resource: Resource) -> structs.Struct:
    """Return the Go type of a built-in resource."""
    return structs.struct(resource.openapi)


def read_types(resource: Resource, new: Raw) -> list[str]:
    """Read the parts that Kubernetes reads into Go types, in place. Return the paths of unknown fields. Raises
    StatusError."""
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


def complete(resource: Resource, new: Raw, *, applied: bool = False, part: str = "") -> WalkResult:
    """Prune, complete and check an object.

    Nulls that are not allowed are dropped. In an `applied` object they are errors, as it is a merged object and no
    body. `part`: see `WalkResult`. Raises StatusError (400) if a part that Kubernetes reads into Go types has wrong
    types.
    """
    try:
        reading, keeps_nulls = partial(read_types, resource), applied and resource.custom
        found = complete_by_schema(resource.compiled, new, reading, keeps_nulls=keeps_nulls, part=part)
    except TooMuchAddedError as error:
        raise errors.too_much_added(resource.group, resource.plural, new, error) from error
    if resource.rules.typed and found.errors:  # Go's types have checked types and formats
        found.errors = [error for error in found.errors if error.reason != "FieldValueTypeInvalid"]
    if not found.errors:
        resource.rules.complete(new)
    return found


def is_in(error: FieldError, part: str) -> bool:
    """Return True if an error is about a top-level field, or about a value in it."""
    return error.field == part or error.field.startswith((f"{part}.", f"{part}["))


def finalizer_warnings(resource: Resource, new: Raw, old: Raw | None) -> list[str]:
    """Return warnings about new finalizers of a custom resource that are allowed but badly named."""
    if not resource.custom:
        return []
    had = set() if old is None else set(old["metadata"].get("finalizers") or ())
    added = [item for item in new["metadata"].get("finalizers") or () if item not in had]
    return meta.warn_finalizers({"finalizers": added}) if added else []


def dedup_owners(fields: Raw) -> list[str]:
    """Drop duplicate owner references, in place. Return the warning about it."""
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
    """Return the refusal of a body that is no object of this kind."""
    return errors.bad_request(
        f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: {why}'
    )


def unread_fields(resource: Resource, body: Body, validation: str, *, patched: bool = False) -> list[str]:
    """Return the same as `unknown_fields` for a body that was refused before its fields were read. Raises StatusError.
    Kubernetes reads a body first; here reading is the expensive part, and comes late."""
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
    resource: Resource, found: WalkResult, duplicates: tuple[str, ...], validation: str, submitted: bytes = b""
) -> list[str]:
    """Treat unknown and duplicate fields as `fieldValidation` says: refuse (StatusError), return warnings, or ignore.
    `submitted` is the result of a patch, as text; empty if the client sent the object itself."""
    wrong = [*duplicates, *(f'unknown field "{at}"' for at in found.unknown)]
    if not wrong or validation == "Ignore":
        return []
    if validation == "Warn":
        return wrong
    if duplicates and duplicates[0].startswith("line "):  # the YAML decoder reports them in one message
        listed = "\n  ".join(duplicates)
        wrong = [f"yaml: unmarshal errors:\n  {listed}", *wrong[len(duplicates) :]]
    why = f"strict decoding error: {', '.join(wrong)}"
    if submitted:
        raise errors.invalid("", "", "", [field_errors.invalid("patch", submitted.decode(), why)])
    raise cannot_be_handled(resource, why)


_HARMLESS = {"name", "generateName", "namespace", "resourceVersion", "labels", "annotations"}


_TEXTUAL = (str, dict, type(None))


def read_applied(resource: Resource, value: Any) -> Raw:
    """Check that an apply configuration is for the resource of the path. Raises StatusError (400). `check_applied`
    checks the object's name once the configuration has been merged."""
    head = value if isinstance(value, dict) else {}
    kind, version = head.get("kind") or "", head.get("apiVersion") or ""
    if (kind, version) != (resource.kind, resource.api_version):
        group = version if not version or "/" in str(version) else f"/{version}"
        raise errors.bad_request(f"invalid object type: {group or '/'}, Kind={kind}")
    return _object(resource, value)


def read_object(resource: Resource, namespace: str, value: Any) -> Raw:
    """Check that a body is an object of the resource of the path. Raises StatusError (400, 422)."""
    made = _object(resource, value)
    check_namespace(resource, namespace, made["metadata"])
    return made


def check_namespace(resource: Resource, namespace: str, fields: Raw) -> None:
    """Check that an object is in the namespace of the URL. Raises StatusError (400)."""
    if (fields.get("namespace") or namespace) != namespace and resource.namespaced:
        raise errors.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )


def _object(resource: Resource, value: Any) -> Raw:
    value = {} if value is None else value
    if not isinstance(value, dict):
        raise errors.bad_request("the body must be an object")
    kind = value.setdefault("kind", resource.kind)
    api_version = (
        value.get("apiVersion", "") if resource.custom else value.setdefault("apiVersion", resource.api_version)
    )
    if kind != resource.kind or api_version != resource.api_version:
        if not resource.custom and kind == "" == api_version:
            value["kind"], value["apiVersion"] = resource.kind, resource.api_version
        else:
            raise _other_kind(resource, kind, api_version, value)
    fields = value.get("metadata")
    if fields is None:
        fields = value["metadata"] = {}
    plain = isinstance(fields, dict) and all(type(value) in _TEXTUAL for value in fields.values())
    if not plain or not fields.keys() <= _HARMLESS:
        read_types(resource, {**value})  # only to refuse wrong types: some of these fields are not read again
    return value


def _other_kind(resource: Resource, kind: Any, api_version: Any, value: Raw) -> StatusError:
    """Return the refusal of an object of another kind or version than the path's."""
    version = str(api_version)
    if not resource.custom and kind == resource.kind and version in getattr(resource.conversion, "versions", ()):
        return _other_version(resource, version)
    if not resource.custom:
        if version == resource.api_version:
            why = f"converting ({version.rpartition('/')[2]}.{kind}) to (core.{resource.kind}): unknown conversion"
        else:
            why = f'no kind "{kind}" is registered for version "{version}"'
        version = version.rpartition("/")[2]
        return errors.bad_request(f'{kind} in version "{version}" cannot be handled as a {resource.kind}: {why}')
    if version != resource.api_version:
        return _other_version(resource, "" if "apiVersion" not in value else version)
    return _immutable_head(value, "kind", kind, resource.kind)


def _other_version(resource: Resource, given: str) -> StatusError:
    return errors.bad_request(
        f"the API version in the data ({given}) does not match the expected API version ({resource.api_version})"
    )


def _immutable_head(value: Raw, name: str, given: Any, wanted: str) -> StatusError:
    group, slash, _ = str(value.get("apiVersion", "")).partition("/")
    fields = value.get("metadata")
    called = str(fields.get("name") or "") if isinstance(fields, dict) else ""
    wrong = field_errors.invalid(name, given, f"must be {wanted}")
    return errors.invalid(group if slash else "", str(value.get("kind", "")), called, [wrong])


def check_name(fields: Raw, name: str) -> None:
    """Check that an object has the name on the URL. Raises StatusError (400)."""
    given = fields.get("name") or ""
    if not given:
        raise errors.bad_request(
            f"the name of the object ({name} based on URL) was undeterminable: name must be provided"
        )
    if given != name:
        raise errors.bad_request(f"the name of the object ({given}) does not match the name on the URL ({name})")


def expected_version(fields: Raw) -> int:
    """Return the resourceVersion that an update expects; 0 if it names none. Raises StatusError (400)."""
    version = fields.get("resourceVersion") or ""
    if version and not (version.isascii() and version.isdigit() and len(version) <= 20):
        # Kubernetes answers 500 here, although it is the client's mistake.
        raise errors.bad_request(f"strconv.ParseUint: parsing {field_errors.quote(version)}: invalid syntax")
    if version.strip("0") == "":
        fields.pop("resourceVersion", None)
        return 0
    return int(version)


def check_uid(resource: Resource, name: str, uid: str, before: Raw) -> None:
    """Check that an object has this uid, if one is given. Raises StatusError (409)."""
    if uid not in (before["uid"], ""):
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {before['uid']}"
        raise errors.conflict(resource.group, resource.plural, name, why)


def check_current(resource: Resource, stored: StoredObject, fields: Raw, before: Raw) -> None:
    """Check that an object is still the one that the writer means. Raises StatusError (409, 422)."""
    check_uid(resource, stored.name, fields.get("uid", ""), before)
    if fields.get("resourceVersion", before["resourceVersion"]) not in (before["resourceVersion"], ""):
        raise errors.conflict(resource.group, resource.plural, stored.name)
    if wrong := meta.check_immutable(fields, before):
        raise errors.invalid(resource.group, resource.kind, stored.name, wrong)


def apply_patch(resource: Resource, old: Raw, media_type: str, change: Any) -> Raw:
    """Apply a patch to a copy of `old`. Raises StatusError (400, 422)."""
    try:
        if media_type == JSON_PATCH:
            new = patch.apply_operations(old, change)
        elif media_type == MERGE_PATCH:
            if not isinstance(change, dict):
                raise patch.PatchError(f"error decoding patch: it must be an object, not {json_kind(change)}")
            new = deep_copy(patch.merge(old, change))
        else:
            new = deep_copy(patch.merge_strategic(old, change))
    except patch.PatchError as error:
        raise error.status() from error
    if not isinstance(new, dict):
        raise _invalid_patch(new, "the patch leaves no object")
    if resource.custom:
        if not new.get("kind"):
            raise _invalid_patch(new, f"Object 'Kind' is missing in '{_text(new)}'")
        for name, wanted in (("apiVersion", resource.api_version), ("kind", resource.kind)):
            if new.get(name) != wanted:
                raise _immutable_head(new, name, new.get(name, ""), wanted)
    else:
        kind, version = new.get("kind") or resource.kind, new.get("apiVersion") or resource.api_version
        if (kind, version) != (resource.kind, resource.api_version):
            why = f"converting ({version.rpartition('/')[2]}.{kind}) to (core.{resource.kind}): unknown conversion"
            raise _invalid_patch(new, why)
    fields = new.setdefault("metadata", {})
    if fields is None:
        fields = new["metadata"] = {}
    try:
        if resource.rules.typed:
            struct_of(resource).read(new)
        else:
            structs.METADATA.read(fields, "metadata")
    except structs.MistypedError as error:
        raise _invalid_patch(new, str(error)) from error
    return new


def check_patched(resource: Resource, old: Raw, new: Raw) -> None:
    """Check that the result of a patch of `old` is still the same object. Raises StatusError (400, 422)."""
    fields, before = new["metadata"], old["metadata"]
    check_name(fields, before["name"])
    if not expected_version(fields) and not resource.rules.unconditional:
        wrong = [field_errors.invalid("metadata.resourceVersion", 0, "must be specified for an update")]
        raise errors.invalid(resource.group, resource.plural, before["name"], wrong)
    if wrong := meta.check_immutable(fields, before):
        raise errors.invalid(resource.group, resource.kind, before["name"], wrong)
    check_namespace(resource, before.get("namespace", ""), fields)


def _text(obj: Any) -> str:
    return orjson.dumps(obj, option=orjson.OPT_SORT_KEYS).decode()


def _invalid_patch(obj: Any, why: str) -> StatusError:
    return errors.invalid("", "", "", [field_errors.invalid("patch", _text(obj), why)])
