"""Decide whether a machine of Metal3 may netboot; labels and annotations of the Hardware that is made from a
BareMetalHost.

An OSIE that boots on a machine ends the workload there, and its Workflow may overwrite the disk. So a host netboots
only if everything that the BareMetalHost says is known to be harmless: it is managed, it is meant to be powered on, it
has no consumer, and Metal3 says that it is available. A field of an unexpected type, an unknown state and an empty
BareMetalHost count as "in use".

The field names are those of the baremetal-operator (apis/metal3.io/v1alpha1/baremetalhost_types.go).
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

from tink.api.metal3 import V1ALPHA1, V1BETA1
from tink.api.v1alpha2 import Raw, as_mapping
from tink.convert.fields import join, type_name

HOST_LABEL = "metal3.io/baremetalhost"
"""On a Hardware: the host that it was made from, as NAMESPACE.NAME."""
REFUSED_ANNOTATION = "tinkerbell.org/metal3-no-netboot"
"""On a Hardware: why the machine does not netboot."""
SECURED_ANNOTATION = "tinkerbell.org/metal3-secured"
"""On a Hardware while the controller of Metal3's hosts keeps it from netbooting."""
HINTS_ANNOTATION = "tinkerbell.org/metal3-root-device-hints"
"""On a Hardware: the root device hints that selected `storageDevices`, as JSON."""
DESCRIPTION_ANNOTATION = "kubernetes.io/description"

_CLUSTER_API = "infrastructure.cluster.x-k8s.io"
_MAX_LABEL_CHARACTERS = 63
_MAX_TEXT_CHARACTERS = 1000
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def label_of(namespace: str, name: str) -> str:
    """Return the value of HOST_LABEL: `NAMESPACE.NAME`, shortened with a digest if it is too long for a label."""
    value = f"{namespace}.{name}"
    if len(value) <= _MAX_LABEL_CHARACTERS:
        return value
    return f"{value[:50]}-{hashlib.sha256(value.encode()).hexdigest()[:12]}"


def is_consumed_by_cluster_api(host: Raw) -> bool:
    """Return True if Cluster API's Metal3 provider uses the host for one of its machines."""
    consumer = as_mapping(as_mapping(host.get("spec")).get("consumerRef"))
    version = consumer.get("apiVersion")
    return consumer.get("kind") == "Metal3Machine" or (
        isinstance(version, str) and version.partition("/")[0] == _CLUSTER_API
    )


def bounded(text: str) -> str:
    """Return text for an annotation or an Event: at most 1000 characters, on one line, without control characters.

    The text quotes values that any user may have written.
    """
    text = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text[: _MAX_TEXT_CHARACTERS + 1])
    return text if len(text) <= _MAX_TEXT_CHARACTERS else text[: _MAX_TEXT_CHARACTERS - 1] + "…"


PAUSED = "baremetalhost.metal3.io/paused"
DETACHED = "baremetalhost.metal3.io/detached"
SAVED_STATUS = "baremetalhost.metal3.io/status"
"""The saved status of a host that was moved from another cluster. The operator restores the status from it."""

_POWER = {V1ALPHA1: "online", V1BETA1: "poweredOn"}
_FREE = ("available", "ready")
"""The states of a host with no installation and no operation in progress. `ready` is the older name."""
_UNMANAGED = ("", "unmanaged")
"""The states of a host that no operator inspected, or without a management controller: its workload is unknown."""
_HARMLESS_OPERATION = ("", "OK", "discovered", "error", "delayed")
_IN_USE = {
    "provisioned": "it runs what Metal3 has installed",
    "externally provisioned": "it runs a system that Metal3 did not install",
    "deleting": "Metal3 is giving it up",
    "powering off before delete": "Metal3 is giving it up",
}
_REGISTRATION_ERROR = "provisioned registration error"
_MAX_WORD_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class NetbootRefusal:
    """One reason against netbooting a host, and the field with that reason."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def refusals(host: Raw, *, unmanaged: bool = False) -> list[NetbootRefusal]:
    """Return all reasons against netbooting a BareMetalHost of either version; empty if it may netboot.

    `unmanaged` means that no baremetal-operator manages hosts without a state. Such hosts may then netboot, unless they
    request an installation from Metal3, which may have happened long ago.
    """
    return [
        *_metadata_refusals(host),
        *_spec_refusals(host),
        *_status_refusals(host),
        *_state_refusals(host, unmanaged),
    ]


def _metadata_refusals(host: Raw) -> list[NetbootRefusal]:
    metadata = host.get("metadata")
    if not isinstance(metadata, dict):
        return [_odd("metadata", metadata, "an object")]
    found = []
    if metadata.get("deletionTimestamp") is not None:
        found.append(NetbootRefusal("metadata.deletionTimestamp", "the host is being deleted"))
    annotations = metadata.get("annotations")
    if annotations is not None and not isinstance(annotations, dict):
        return [*found, _odd("metadata.annotations", annotations, "an object")]
    # The operator, too, only looks at the presence of these annotations, not at their values.
    for name, what in (
        (PAUSED, "paused: Metal3 must not touch it"),
        (DETACHED, "detached: Metal3 no longer manages it"),
    ):
        if name in (annotations or {}):
            found.append(NetbootRefusal(join("metadata.annotations", name), f"the host is {what}"))
    return found


def _spec_refusals(host: Raw) -> list[NetbootRefusal]:
    spec = host.get("spec")
    if not isinstance(spec, dict):
        return [_odd("spec", spec, "an object")]
    found = []
    wanted = next((name for version, name in _POWER.items() if version == host.get("apiVersion")), None)
    if wanted is None:
        found.append(NetbootRefusal("apiVersion", f"must be {V1ALPHA1} or {V1BETA1}"))
    for name in _POWER.values():
        if (name in spec or name == wanted) and spec.get(name) is not True:
            off = spec.get(name) is False
            why = "the host is to be powered off" if off else f"must be true or false, is {type_name(spec.get(name))}"
            found.append(NetbootRefusal(f"spec.{name}", why))
    external = spec.get("externallyProvisioned")
    if external is not None and external is not False:
        found.append(NetbootRefusal("spec.externallyProvisioned", "it runs a system that Metal3 did not install"))
    consumer = spec.get("consumerRef")
    if not _is_blank(consumer):
        found.append(NetbootRefusal("spec.consumerRef", f"the host is in use by {consumer_name(consumer)}"))
    return found


def _status_refusals(host: Raw) -> list[NetbootRefusal]:
    status = host.get("status")
    if status is None:
        return []
    if not isinstance(status, dict):
        return [_odd("status", status, "an object")]
    found = []
    operation = status.get("operationalStatus")
    if operation is not None and operation not in _HARMLESS_OPERATION:
        found.append(NetbootRefusal("status.operationalStatus", f"is {_short(operation)}"))
    if status.get("errorType") == _REGISTRATION_ERROR:
        found.append(
            NetbootRefusal("status.errorType", "it runs what Metal3 has installed, and Metal3 has lost touch with it")
        )
    provisioning = status.get("provisioning")
    if provisioning is None:
        return found
    if not isinstance(provisioning, dict):
        return [*found, _odd("status.provisioning", provisioning, "an object")]
    # The operator writes an absent image or deployment as an empty object.
    for name, key in (("image", "url"), ("customDeploy", "method")):
        value = provisioning.get(name)
        if not _is_blank({key: value.get(key)} if isinstance(value, dict) else value):
            found.append(NetbootRefusal(f"status.provisioning.{name}", "it runs what Metal3 has installed"))
    return found


def _state_refusals(host: Raw, unmanaged: bool) -> list[NetbootRefusal]:
    path = "status.provisioning.state"
    state = provisioning_state(host)
    if state in _FREE:
        return []
    if not isinstance(state, str):
        return [_odd(path, state, "a string")]
    if state not in _UNMANAGED:
        why = _IN_USE.get(state, "only hosts that are available netboot")
        return [NetbootRefusal(path, f"is {_short(state)}: {why}")]
    if not unmanaged:
        unmanaged_says = ", the host is unmanaged" if state else ""
        return [
            NetbootRefusal(path, f"nothing says that the machine is free: Metal3 has given no state{unmanaged_says}")
        ]
    # Reasons from the installation that a host without a state had, or requests.
    spec, metadata = as_mapping(host.get("spec")), as_mapping(host.get("metadata"))
    found = [
        NetbootRefusal(
            f"spec.{name}", "without a state, nothing says that Metal3 has not installed it: take it out if so"
        )
        for name in ("image", "customDeploy")
        if not _is_blank(spec.get(name))
    ]
    if SAVED_STATUS in as_mapping(metadata.get("annotations")):
        path = join("metadata.annotations", SAVED_STATUS)
        found.append(NetbootRefusal(path, "the host's state stands here, and Metal3 has not taken it over yet"))
    return found


def _is_blank(value: Any) -> bool:
    """Return True if an object of strings is absent or has only empty values. A non-string is not empty."""
    return value is None or (isinstance(value, dict) and all(each in (None, "") for each in value.values()))


def provisioning_state(host: Raw) -> Any:
    """Return the provisioning state of the host; empty if it has none."""
    state = as_mapping(as_mapping(host.get("status")).get("provisioning")).get("state")
    return "" if state is None else state


def consumer_name(consumer: Any) -> str:
    """Return the name of a host's consumer for messages."""
    if not isinstance(consumer, dict):
        return "an unknown consumer"
    words = (consumer.get("kind"), consumer.get("name"))
    return _short(" ".join(word for word in words if isinstance(word, str) and word) or "an unknown consumer")


def _odd(path: str, value: Any, wanted: str) -> NetbootRefusal:
    return NetbootRefusal(path, f"must be {wanted}, is {type_name(value)}: nothing is known of the machine")


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else type_name(value)
    return text if len(text) <= _MAX_WORD_CHARACTERS else text[:_MAX_WORD_CHARACTERS] + "…"
