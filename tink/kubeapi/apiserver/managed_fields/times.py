"""The list of owners after a write has gone through admission and rules: no write for a time alone, nothing invalid."""

from __future__ import annotations

from tink.kubeapi.apiserver.managed_fields import entries
from tink.kubeapi.apiserver.managed_fields.fields import FieldsError
from tink.kubeapi.schema import Raw

_INVALID = (
    ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating "
    "admission controller; please fix your requests: {}"
)


def keep_times(new: Raw, old: Raw) -> None:
    """Put back the times of the old list when they are all that an update changes, so that it changes nothing.

    To be called on every update, just before the objects are compared (k8s.io/apiserver, pkg/endpoints/handlers,
    fieldmanager.IgnoreManagedFieldsTimestampsTransformer).
    """
    after, before = new["metadata"].get("managedFields"), old["metadata"].get("managedFields")
    if not after or not before or len(after) != len(before) or after == before:
        return
    if any({**one, "time": ""} != {**other, "time": ""} for one, other in zip(after, before, strict=True)):
        return
    if {**new, "metadata": None} != {**old, "metadata": None}:
        return
    if {**new["metadata"], "managedFields": None} == {**old["metadata"], "managedFields": None}:
        new["metadata"]["managedFields"] = before


def valid_or_before(new: Raw, before: list[Raw] | None) -> list[str]:
    """Check the list after a mutating admission, and bring it into its normal form.

    `before` is the list as it was before. When the list is wrong now, it is put back, and the warning that says so is
    returned (k8s.io/apiserver, fieldmanager.NewManagedFieldsValidatingAdmissionController).
    """
    metadata = new["metadata"]
    listed = metadata.pop("managedFields", None)
    found, warnings = before, list[str]()
    if listed != before:
        try:
            found = entries.write(entries.parse(listed)) if listed else None
        except FieldsError as error:
            warnings.append(_INVALID.format(error))
    if found:
        metadata["managedFields"] = found
    return warnings
