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
"""On a Hardware: the hints that `storageDevices` was chosen by, as JSON."""
DESCRIPTION_ANNOTATION = "kubernetes.io/description"

_CLUSTER_API = "infrastructure.cluster.x-k8s.io"
_LONGEST_LABEL = 63
_LONGEST_TOLD = 1000
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def label_of(namespace: str, name: str) -> str:
    """The value of HOST_LABEL: `NAMESPACE.NAME`, shortened with a digest if it is too long for a label."""
    value = f"{namespace}.{name}"
    if len(value) <= _LONGEST_LABEL:
        return value
    return f"{value[:50]}-{hashlib.sha256(value.encode()).hexdigest()[:12]}"


def is_consumed_by_cluster_api(host: Raw) -> bool:
    """Whether Cluster API's provider of Metal3 has taken the host for one of its machines."""
    consumer = as_mapping(as_mapping(host.get("spec")).get("consumerRef"))
    version = consumer.get("apiVersion")
    return consumer.get("kind") == "Metal3Machine" or (
        isinstance(version, str) and version.partition("/")[0] == _CLUSTER_API
    )


def bounded(text: str) -> str:
    """A text that is shown to people, cut where it gets too long for an annotation or an Event. It quotes what anybody
    wrote, so it is one line, and nothing that a terminal obeys is in it."""
    text = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text[: _LONGEST_TOLD + 1])
    return text if len(text) <= _LONGEST_TOLD else text[: _LONGEST_TOLD - 1] + "…"


PAUSED = "baremetalhost.metal3.io/paused"
DETACHED = "baremetalhost.metal3.io/detached"
SAVED_STATUS = "baremetalhost.metal3.io/status"
"""The status of a host that was moved from another cluster; the operator takes it over."""

_POWER = {V1ALPHA1: "online", V1BETA1: "poweredOn"}
_FREE = ("available", "ready")
"""Nothing is installed, and nothing is being done. `ready` is the older name."""
_UNMANAGED = ("", "unmanaged")
"""No operator has looked at the host, or it has no management controller to ask: nobody knows what runs on it."""
_HARMLESS_OPERATION = ("", "OK", "discovered", "error", "delayed")
_IN_USE = {
    "provisioned": "it runs what Metal3 has installed",
    "externally provisioned": "it runs what somebody else has installed",
    "deleting": "Metal3 is giving it up",
    "powering off before delete": "Metal3 is giving it up",
}
_REGISTRATION_ERROR = "provisioned registration error"
_LONGEST_WORD = 60


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason against netbooting a host, and the field that gives it."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def refusals(host: Raw, *, unmanaged: bool = False) -> list[Refusal]:
    """Everything that speaks against netbooting a BareMetalHost of either version; empty if it may netboot.

    `unmanaged` says that hosts without a state belong to whoever asks: no baremetal-operator looks after them. Then
    they may netboot unless they ask Metal3 for an installation, which may have happened long ago.
    """
    return [*_of_metadata(host), *_of_spec(host), *_of_status(host), *_of_state(host, unmanaged)]


def _of_metadata(host: Raw) -> list[Refusal]:
    metadata = host.get("metadata")
    if not isinstance(metadata, dict):
        return [_odd("metadata", metadata, "an object")]
    found = []
    if metadata.get("deletionTimestamp") is not None:
        found.append(Refusal("metadata.deletionTimestamp", "the host is being deleted"))
    annotations = metadata.get("annotations")
    if annotations is not None and not isinstance(annotations, dict):
        return [*found, _odd("metadata.annotations", annotations, "an object")]
    # Their presence counts, whatever they say: so it does for the operator.
    for name, what in ((PAUSED, "paused: Metal3 must not touch it"), (DETACHED, "detached: Metal3 has let it go")):
        if name in (annotations or {}):
            found.append(Refusal(join("metadata.annotations", name), f"the host is {what}"))
    return found


def _of_spec(host: Raw) -> list[Refusal]:
    spec = host.get("spec")
    if not isinstance(spec, dict):
        return [_odd("spec", spec, "an object")]
    found = []
    wanted = _POWER.get(_text(host.get("apiVersion")))
    if wanted is None:
        found.append(Refusal("apiVersion", f"must be {V1ALPHA1} or {V1BETA1}"))
    for name in _POWER.values():
        if (name in spec or name == wanted) and spec.get(name) is not True:
            off = spec.get(name) is False
            why = "the host is to be powered off" if off else f"must be true or false, is {type_name(spec.get(name))}"
            found.append(Refusal(f"spec.{name}", why))
    external = spec.get("externallyProvisioned")
    if external is not None and external is not False:
        found.append(Refusal("spec.externallyProvisioned", "it runs what somebody else has installed"))
    consumer = spec.get("consumerRef")
    if not _is_blank(consumer):
        found.append(Refusal("spec.consumerRef", f"the host is in use by {consumer_name(consumer)}"))
    return found


def _of_status(host: Raw) -> list[Refusal]:
    status = host.get("status")
    if status is None:
        return []
    if not isinstance(status, dict):
        return [_odd("status", status, "an object")]
    found = []
    operation = status.get("operationalStatus")
    if operation is not None and operation not in _HARMLESS_OPERATION:
        found.append(Refusal("status.operationalStatus", f"is {_short(operation)}"))
    if status.get("errorType") == _REGISTRATION_ERROR:
        found.append(
            Refusal("status.errorType", "it runs what Metal3 has installed, and Metal3 has lost touch with it")
        )
    provisioning = status.get("provisioning")
    if provisioning is None:
        return found
    if not isinstance(provisioning, dict):
        return [*found, _odd("status.provisioning", provisioning, "an object")]
    # Absent ones are written as empty ones.
    for name, key in (("image", "url"), ("customDeploy", "method")):
        value = provisioning.get(name)
        if not _is_blank({key: value.get(key)} if isinstance(value, dict) else value):
            found.append(Refusal(f"status.provisioning.{name}", "it runs what Metal3 has installed"))
    return found


def _of_state(host: Raw, unmanaged: bool) -> list[Refusal]:
    path = "status.provisioning.state"
    state = provisioning_state(host)
    if state in _FREE:
        return []
    if not isinstance(state, str):
        return [_odd(path, state, "a string")]
    if state not in _UNMANAGED:
        why = _IN_USE.get(state, "only hosts that are available netboot")
        return [Refusal(path, f"is {_short(state)}: {why}")]
    if not unmanaged:
        unmanaged_says = ", the host is unmanaged" if state else ""
        return [Refusal(path, f"nothing says that the machine is free: Metal3 has given no state{unmanaged_says}")]
    return _of_unmanaged(host)


def _of_unmanaged(host: Raw) -> list[Refusal]:
    """What a host without a state says about an installation that it had, or is to get."""
    spec, metadata = as_mapping(host.get("spec")), as_mapping(host.get("metadata"))
    found = [
        Refusal(f"spec.{name}", "without a state, nothing says that Metal3 has not installed it: take it out if so")
        for name in ("image", "customDeploy")
        if not _is_blank(spec.get(name))
    ]
    if SAVED_STATUS in as_mapping(metadata.get("annotations")):
        path = join("metadata.annotations", SAVED_STATUS)
        found.append(Refusal(path, "the host's state stands here, and Metal3 has not taken it over yet"))
    return found


def _is_blank(value: Any) -> bool:
    """Whether an object of texts is absent, or has none but empty ones. What is no text is none of these."""
    return value is None or (isinstance(value, dict) and all(each in (None, "") for each in value.values()))


def provisioning_state(host: Raw) -> Any:
    """What Metal3 says of the host; empty if it says nothing."""
    state = as_mapping(as_mapping(host.get("status")).get("provisioning")).get("state")
    return "" if state is None else state


def consumer_name(consumer: Any) -> str:
    """Who uses a host, for people."""
    if not isinstance(consumer, dict):
        return "somebody"
    words = (consumer.get("kind"), consumer.get("name"))
    return _short(" ".join(word for word in words if isinstance(word, str) and word) or "somebody")


def _odd(path: str, value: Any, wanted: str) -> Refusal:
    return Refusal(path, f"must be {wanted}, is {type_name(value)}: nothing is known of the machine")


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else type_name(value)
    return text if len(text) <= _LONGEST_WORD else text[:_LONGEST_WORD] + "…"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
