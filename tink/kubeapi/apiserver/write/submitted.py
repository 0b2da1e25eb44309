"""What a client hands in, on its way to a draft: is it an object of the resource, and the one that is meant?

Bodies, apply configurations and what patches lead to. Pure; what is wrong raises the StatusError that Kubernetes
answers with.
"""

from __future__ import annotations

from typing import Any

import orjson

from tink.kubeapi.apiserver import errors, patch
from tink.kubeapi.apiserver.errors import StatusError
from tink.kubeapi.apiserver.requests import JSON_PATCH, MERGE_PATCH, Target
from tink.kubeapi.apiserver.resources import Resource
from tink.kubeapi.apiserver.store import Stored
from tink.kubeapi.apiserver.write.completion import read, struct_of
from tink.kubeapi.schema import Raw, deep_copy, field_errors, meta, structs

_HARMLESS = {"name", "generateName", "namespace", "resourceVersion", "labels", "annotations"}


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str | dict)


def applied_of(resource: Resource, value: Any) -> Raw:
    """Check that an apply configuration is one for the resource that the path names. Raises StatusError (400).

    Whether it is for the object that the path names is checked when it has been merged (`check_applied`).
    """
    head = value if isinstance(value, dict) else {}
    kind, version = head.get("kind") or "", head.get("apiVersion") or ""
    if (kind, version) != (resource.kind, resource.api_version):
        group = version if not version or "/" in str(version) else f"/{version}"
        raise errors.bad_request(f"invalid object type: {group or '/'}, Kind={kind}")
    return _object(resource, value)


def check_applied(resource: Resource, target: Target, fields: Raw) -> None:
    """Check that what was applied has the name and the namespace on the URL. Raises StatusError (400)."""
    check_namespace(resource, target.namespace, fields)
    check_name(fields, target.name)


def object_of(resource: Resource, namespace: str, value: Any) -> Raw:
    """Check that a body is an object of the resource that the path names. Raises StatusError (400, 422)."""
    made = _object(resource, value)
    check_namespace(resource, namespace, made["metadata"])
    return made


def check_namespace(resource: Resource, namespace: str, fields: Raw) -> None:
    """Check that an object is for the namespace on the URL. Raises StatusError (400)."""
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
    if not isinstance(fields, dict) or not fields.keys() <= _HARMLESS or not all(map(_is_text, fields.values())):
        read(resource, {**value})  # for what it refuses: some of these fields are not looked at again
    return value


def _other_kind(resource: Resource, kind: Any, api_version: Any, value: Raw) -> StatusError:
    """Refuse an object of another kind or version than the path names."""
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


def check_uid(resource: Resource, name: str, uid: str, before: Raw) -> None:
    """Check that an object is the one with this uid, if there is one. Raises StatusError (409)."""
    if uid not in (before["uid"], ""):
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {before['uid']}"
        raise errors.conflict(resource.group, resource.plural, name, why)


def check_current(resource: Resource, stored: Stored, fields: Raw, before: Raw) -> None:
    """Check that an object is still the one that the writer means. Raises StatusError (409, 422)."""
    check_uid(resource, stored.name, fields.get("uid", ""), before)
    if fields.get("resourceVersion", before["resourceVersion"]) not in (before["resourceVersion"], ""):
        raise errors.conflict(resource.group, resource.plural, stored.name)
    if wrong := meta.check_immutable(fields, before):
        raise errors.invalid(resource.group, resource.kind, stored.name, wrong)


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
    """Check that what a patch of `old` led to still is the same object. Raises StatusError (400, 422)."""
    fields, before = new["metadata"], old["metadata"]
    check_name(fields, before["name"])
    if not wanted_version(fields) and not resource.rules.unconditional:
        wrong = [field_errors.invalid("metadata.resourceVersion", 0, "must be specified for an update")]
        raise errors.invalid(resource.group, resource.plural, before["name"], wrong)
    if wrong := meta.check_immutable(fields, before):
        raise errors.invalid(resource.group, resource.kind, before["name"], wrong)
    check_namespace(resource, before.get("namespace", ""), fields)


def _text(obj: Any) -> str:
    return orjson.dumps(obj, option=orjson.OPT_SORT_KEYS).decode()


def _invalid_patch(obj: Any, why: str) -> StatusError:
    """Refuse what a patch leads to."""
    return errors.invalid("", "", "", [field_errors.invalid("patch", _text(obj), why)])
