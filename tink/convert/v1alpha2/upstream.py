"""tinkerbell/tinkerbell's own v1alpha2 (api/v1alpha2/tinkerbell): how its objects are known."""

from __future__ import annotations

from collections.abc import Iterator

from tink.api.v1alpha2 import Raw, as_mapping
from tink.convert.fields import join, says_nothing

UPSTREAM_KINDS = ("Policy", "Task")
"""Kinds that tinkerbell/tinkerbell's v1alpha2 has and today's has not."""
UPSTREAM = (
    "tinkerbell/tinkerbell has another schema under the same apiVersion, and this is of that one: convert the v1alpha1 "
    "object, or write its fields anew"
)

_FIELDS = {
    "Hardware": ("agentID", "arch", "attributes", "auto", "bmc", "references"),
    "Workflow": ("disabled", "globals", "references", "tasks", "timeoutSeconds", "vars"),
}
_OF_INSTANCE = ("lookupID", "metadata", "networkConfig", "osie", "sshKeys", "vars")
_OF_INTERFACE = ("ipam", "isoboot", "netboot")
_OF_DHCP = ("ipv4", "ipv6", "v4", "v6")


def upstream_fields(obj: Raw) -> Iterator[str]:
    """The paths of fields that only tinkerbell/tinkerbell's v1alpha2 has, or has in this form."""
    spec = as_mapping(obj.get("spec"))
    for key in _FIELDS.get(obj["kind"], ()):
        if not says_nothing(spec.get(key)):
            yield f"spec.{key}"
    if obj["kind"] != "Hardware":
        return
    for key in _OF_INSTANCE:
        if key in as_mapping(spec.get("instance")):
            yield f"spec.instance.{key}"
    for mac, interface in as_mapping(spec.get("networkInterfaces")).items():
        at = join("spec.networkInterfaces", mac)
        for key in _OF_INTERFACE:
            if key in as_mapping(interface):
                yield f"{at}.{key}"
        for key in _OF_DHCP:
            if key in as_mapping(as_mapping(interface).get("dhcp")):
                yield f"{at}.dhcp.{key}"
    devices = spec.get("storageDevices")
    for index, device in enumerate(devices if isinstance(devices, list) else ()):
        if isinstance(device, dict):
            yield f"spec.storageDevices[{index}]"
