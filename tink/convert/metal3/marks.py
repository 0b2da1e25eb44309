"""Labels and annotations of a Hardware that was made of a host, and what its host says of who uses it.

The controller of `tink.metal3` reads them to know its own objects, and people to know why a machine does not netboot.
"""

from __future__ import annotations

import hashlib
import re

from tink.api.v1alpha2 import Raw, as_mapping

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
