"""What of an object's metadata goes with it: its name, labels and annotations; not what an API server wrote there."""

from __future__ import annotations

from typing import Any

from tink.api.v1alpha2 import Raw
from tink.convert.fields import Fields
from tink.convert.findings import Findings

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

_OF_THE_SERVER = (
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generateName",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
)


def carried(top: Fields, findings: Findings) -> Raw:
    """The metadata of the result. `top` is the object; its `metadata` is read wholly.

    Owners and finalizers stay behind: they name objects by uid and controllers that do not know the new version.
    """
    metadata = top.fields("metadata")
    result: Raw = {"name": metadata.text("name")}
    namespace = metadata.text("namespace")
    if namespace:
        result["namespace"] = namespace
    labels = _texts(metadata, "labels", findings)
    annotations = _texts(metadata, "annotations", findings)
    # What kubectl applied last is an object of the old version; it would be compared with the new one.
    annotations.pop(LAST_APPLIED, None)
    if labels:
        result["labels"] = labels
    if annotations:
        result["annotations"] = annotations
    metadata.ignore(*_OF_THE_SERVER)
    metadata.drop("ownerReferences", "owners are named by a uid, which another API server does not have")
    metadata.drop("finalizers", "their controllers do not know the new object: it could not be deleted")
    metadata.rest("Kubernetes has no such field of metadata")
    return result


def _texts(metadata: Fields, key: str, findings: Findings) -> dict[str, str]:
    found: dict[str, str] = {}
    for path, name, value in metadata.mapping(key):
        if isinstance(value, str):
            found[name] = value
        elif value is not None:
            text = _as_text(value)
            if text is None:
                findings.dropped(path, "must be a string")
            else:
                findings.changed(path, f"must be a string: is now {text!r}")
                found[name] = text
    return found


def _as_text(value: Any) -> str | None:
    """A boolean or a number as JSON writes it: what somebody meant who forgot the quotes."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else None
