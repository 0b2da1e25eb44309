"""What the controller of Metal3's hosts writes to a Hardware, and which Hardware is its own. Pure.

Two field managers write, so that one can't undo the other. `MANAGER` applies what a conversion made, and yields to
everybody: a field that somebody else wants otherwise is a conflict, and stays. `SAFETY_MANAGER` applies one thing, that
no interface netboots, and yields to nobody. While its fields are there, nothing that `MANAGER` applies can make a
machine netboot; it takes them back when the host is free again.
"""

from __future__ import annotations

from typing import Any

from tink.api.v1alpha2 import API_VERSION, Raw
from tink.convert.metal3 import HOST_LABEL, SECURED_ANNOTATION, label_of

MANAGER = "tinkedge-metal3"
SAFETY_MANAGER = "tinkedge-metal3-safety"


def is_ours(hardware: Raw) -> bool:
    """Whether a Hardware was made from the host of its name."""
    metadata = hardware["metadata"]
    labels = metadata.get("labels") or {}
    return bool(labels.get(HOST_LABEL) == label_of(metadata.get("namespace", ""), metadata["name"]))


def is_secured(hardware: Raw) -> bool:
    """Whether SAFETY_MANAGER's fields are there."""
    return SECURED_ANNOTATION in (hardware["metadata"].get("annotations") or {})


def netboots(hardware: Raw) -> bool:
    """Whether any interface of a Hardware may netboot."""
    return any(
        not (isinstance(each, dict) and each.get("disableNetboot") is True) for each in _interfaces(hardware).values()
    )


def secured(hardware: Raw) -> Raw:
    """What SAFETY_MANAGER applies: no interface of `hardware` netboots."""
    body = released(hardware)
    body["metadata"]["annotations"] = {SECURED_ANNOTATION: "true"}
    body["spec"] = {"networkInterfaces": {mac: {"disableNetboot": True} for mac in _interfaces(hardware)}}
    return body


def released(hardware: Raw) -> Raw:
    """What SAFETY_MANAGER applies to take its fields back."""
    metadata = {key: hardware["metadata"][key] for key in ("name", "namespace", "uid")}
    return {"apiVersion": API_VERSION, "kind": "Hardware", "metadata": metadata}


def _interfaces(hardware: Raw) -> dict[str, Any]:
    spec = hardware.get("spec") or {}
    return spec.get("networkInterfaces") or {}
