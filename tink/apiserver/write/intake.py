"""What a client hands in, on its way to an object that may be stored: body, patch, schema walk, unknown fields.

The steps that `verbs` takes one after the other, each pure. The object changes in place from step to step; a step that
finds something wrong raises the StatusError that Kubernetes answers with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import orjson

from tink.apiserver import errors
from tink.apiserver.errors import StatusError
from tink.apiserver.http.request import JSON_PATCH, MERGE_PATCH
from tink.apiserver.resources.registry import Resource
from tink.apiserver.store.storage import Stored
from tink.apiserver.write import patch
from tink.schema import field_errors, meta, structs
from tink.schema.checker import complete, read_metadata
from tink.schema.field_errors import FieldError
from tink.schema.outcome import MAX_ADDED, Outcome, TooMuchAddedError
from tink.schema.values import Raw, deep_copy

_HARMLESS = {"name", "generateName", "namespace", "resourceVersion", "labels", "annotations"}

_SAYS_WHICH = {"name", "namespace", "uid", "resourceVersion"}
"""Metadata that only say which object is meant: they are compared with what it has, and never change it."""
_NOTHING: Raw = {}


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str | dict)


def applied_of(resource: Resource, namespace: str, value: Any) -> Raw:
    """Check that an apply configuration is one for the resource that the path names. Raises StatusError (400)."""
    head = value if isinstance(value, dict) else {}
    kind, version = head.get("kind") or "", head.get("apiVersion") or ""
    if (kind, version) != (resource.kind, resource.api_version):
        group = version if not version or "/" in str(version) else f"/{version}"
        raise errors.bad_request(f"invalid object type: {group or '/'}, Kind={kind}")
    return object_of(resource, namespace, value)


def object_of(resource: Resource, namespace: str, value: Any) -> Raw:
    """Check that a body is an object of the resource that the path names. Raises StatusError (400, 422)."""
    value = {} if value is None else value
    if not isinstance(value, dict):
        raise errors.bad_request("couldn't get version/kind; the body must be an object")
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
    if not isinstance(fields, dict) or not fields.keys() <= _HARMLESS or not all(map(_is_text, fields.values())):
        _read(resource, {**value})  # for what it refuses: some of these fields are not looked at again
    own = fields.get("namespace") or namespace
    if own != namespace and resource.namespaced:
        raise errors.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    return value


def _other_kind(resource: Resource, kind: Any, api_version: Any, value: Raw) -> StatusError:
    """Refuse an object of another kind or version than the path names."""
    version = str(api_version)
    if not resource.custom:
        if version == resource.api_version:
            why = f"converting ({version.rpartition('/')[2]}.{kind}) to (core.{resource.kind}): unknown conversion"
        else:
            why = f'no kind "{kind}" is registered for version "{version}" in scheme "pkg/runtime/scheme.go:111"'
        version = version.rpartition("/")[2]
        return errors.bad_request(f'{kind} in version "{version}" cannot be handled as a {resource.kind}: {why}')
    if version != resource.api_version:
        given = "" if "apiVersion" not in value else version
        return errors.bad_request(
            f"the API version in the data ({given}) does not match the expected API version ({resource.api_version})"
        )
    return _immutable_head(value, "kind", kind, resource.kind)


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


def wanted_version(fields: Raw) -> int:
    """Give the resourceVersion that an update is meant for; 0 when it does not say. Raises StatusError (400)."""
    version = fields.get("resourceVersion") or ""
    if version and not (version.isascii() and version.isdigit() and len(version) <= 20):
        # Kubernetes answers 500 here; it is the client's mistake all the same.
        raise errors.bad_request(f"strconv.ParseUint: parsing {field_errors.quote(version)}: invalid syntax")
    if version.strip("0") == "":
        fields.pop("resourceVersion", None)
        return 0
    return int(version)


def check_current(resource: Resource, stored: Stored, fields: Raw, before: Raw) -> None:
    """Check that an object is still the one that the writer means. Raises StatusError (409, 422)."""
    if fields.get("uid", before["uid"]) not in (before["uid"], ""):
        where = "/".join(part for part in (resource.group, resource.plural, stored.namespace, stored.name) if part)
        why = (
            f"StorageError: invalid object, Code: 4, Key: /registry/{where}, ResourceVersion: 0, AdditionalErrorMsg: "
            f"Precondition failed: UID in precondition: {fields['uid']}, UID in object meta: {before['uid']}"
        )
        raise errors.conflict(resource.group, resource.plural, stored.name, why)
    if fields.get("resourceVersion", before["resourceVersion"]) not in (before["resourceVersion"], ""):
        raise errors.conflict(resource.group, resource.plural, stored.name)
    if wrong := meta.check_immutable(fields, before):
        raise errors.invalid(resource.group, resource.kind, stored.name, wrong)


def keeps_metadata(resource: Resource, kind: str, change: Any) -> bool:
    """Whether a patch of media type `kind` leaves the metadata of a custom resource as they were read before."""
    if kind != MERGE_PATCH or resource.rules.typed or not isinstance(change, dict):
        return False
    fields = change.get("metadata", _NOTHING)
    return (
        isinstance(fields, dict)
        and fields.keys() <= _SAYS_WHICH
        and all(isinstance(value, str) for value in fields.values())
    )


def patched(resource: Resource, old: Raw, kind: str, change: Any) -> Raw:
    """Apply a patch of media type `kind` to a copy of `old`. Raises StatusError (400, 422)."""
    try:
        if kind == JSON_PATCH:
            new = patch.apply_operations(old, change)
        elif kind == MERGE_PATCH:
            new = deep_copy(patch.merge_object(old, change))
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
    elif (kinds := (new.get("kind") or resource.kind, new.get("apiVersion") or resource.api_version)) != (
        resource.kind,
        resource.api_version,
    ):
        why = f"converting ({kinds[1].rpartition('/')[2]}.{kinds[0]}) to (core.{resource.kind}): unknown conversion"
        raise _invalid_patch(new, why)
    fields, before = new.setdefault("metadata", {}), old["metadata"]
    if fields is None:
        fields = new["metadata"] = {}
    try:
        if resource.rules.typed:
            _struct(resource).read(new)
        elif not keeps_metadata(resource, kind, change):
            structs.METADATA.read(fields)
    except structs.MistypedError as error:
        raise _invalid_patch(new, str(error)) from error
    check_name(fields, before["name"])
    if not wanted_version(fields) and not resource.rules.unconditional:
        wrong = [field_errors.invalid("metadata.resourceVersion", 0, "must be specified for an update")]
        raise errors.invalid(resource.group, resource.plural, before["name"], wrong)
    if wrong := meta.check_immutable(fields, before):
        raise errors.invalid(resource.group, resource.kind, before["name"], wrong)
    if fields.get("namespace") not in (None, "", before.get("namespace")):
        raise errors.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    return new


def _text(obj: Any) -> str:
    return orjson.dumps(obj, option=orjson.OPT_SORT_KEYS).decode()


def _invalid_patch(obj: Any, why: str) -> StatusError:
    """Refuse what a patch leads to."""
    return errors.invalid("", "", "", [field_errors.invalid("patch", _text(obj), why)])


@cache
def _struct(resource: Resource) -> structs.Struct:
    return structs.struct(resource.kind, resource.openapi)


def _read(resource: Resource, new: Raw) -> list[str]:
    """Read what Kubernetes reads into Go types, in place; give the paths of unknown fields. Raises StatusError."""
    try:
        if resource.rules.typed:
            made, unknown = _struct(resource).read(new)
            new.clear()
            new.update(made)
            new.setdefault("metadata", {})
            return unknown
        return read_metadata(new)
    except structs.MistypedError as error:
        raise cannot_be_handled(resource, str(error)) from error


def walk(resource: Resource, new: Raw, *, known: bool = False) -> Outcome:
    """Prune, complete and check an object; `known`: its metadata are those of the stored one.

    Raises StatusError (400) when what Kubernetes reads into Go types has other types.
    """
    try:
        found = complete(resource.node, new, _read_nothing if known else partial(_read, resource))
    except TooMuchAddedError as error:
        raise too_much_added(resource.group, resource.plural, new, error) from error
    if resource.rules.typed and found.errors:  # types and formats are Go's business there
        found.errors = [error for error in found.errors if error.reason != "FieldValueTypeInvalid"]
    if not found.errors:
        resource.rules.complete(new)
    return found


def _read_nothing(_: Raw) -> list[str]:
    return []


def too_much_added(group: str, plural: str, obj: Raw, error: TooMuchAddedError) -> StatusError:
    """Refuse an object that defaults would make large: the definition's, not the client's, fault perhaps."""
    fields = obj.get("metadata")
    name = str(fields.get("name") or fields.get("generateName") or "") if isinstance(fields, dict) else ""
    why = f"the defaults of {error} and of what stands before it add more than {MAX_ADDED} bytes"
    return errors.too_large_object(group, plural, name, why)


def is_in(error: FieldError, part: str) -> bool:
    """Whether an error is about a top-level field, or about something in it."""
    return error.field == part or error.field.startswith((f"{part}.", f"{part}["))


def metadata_warnings(resource: Resource, fields: Raw) -> list[str]:
    """Warn of metadata that are taken, but better were different; owners that stand twice are dropped, in place."""
    return dedup_owners(fields) + (meta.warn_finalizers(fields) if resource.custom else [])


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


def desired(obj: Mapping[str, Any]) -> Raw:
    """Give what `generation` counts the changes of: everything but metadata and status."""
    return {key: value for key, value in obj.items() if key not in ("metadata", "status")}


def finish_metadata(new: Raw, old: Raw) -> None:
    """Give an updated object the fields that only the server sets."""
    meta.keep_owned(new["metadata"], old["metadata"])
    new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
