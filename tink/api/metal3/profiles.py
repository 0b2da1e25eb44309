"""Hardware profiles: names for the place of a host's root disk, which v1alpha1 has and v1beta1 has not.

The table, and the order in which a profile is determined, are the baremetal-operator's (profile.go, and
getHardwareProfileName and updateRootDeviceHints of its host controller). A host without a profile has a default one.
"""

from __future__ import annotations

from tink.api.v1alpha2 import Raw, as_mapping

EMPTY = "empty"
"""The profile without hints. Every host of v1beta1 has it."""

_UNKNOWN = "unknown"
_LIBVIRT = "libvirt"

_HINTS: dict[str, dict[str, str]] = {
    _UNKNOWN: {"deviceName": "/dev/sda"},
    _LIBVIRT: {"deviceName": "/dev/vda"},
    "dell": {"hctl": "0:0:0:0"},
    "dell-raid": {"hctl": "0:2:0:0"},
    "openstack": {"deviceName": "/dev/vdb"},
    EMPTY: {},
}


def effective_profile(host: Raw) -> str:
    """Return the profile of a v1alpha1 host: the one in its status, else the one in its spec, else a guess.

    The name may be unknown.
    """
    spec = as_mapping(host.get("spec"))
    for part in (as_mapping(host.get("status")), spec):
        name = part.get("hardwareProfile")
        if isinstance(name, str) and name:
            return name
    address = as_mapping(spec.get("bmc")).get("address")
    return _LIBVIRT if isinstance(address, str) and address.startswith("libvirt") else _UNKNOWN


def profile_hints(host: Raw) -> Raw | None:
    """Return the v1alpha1 root device hints of the profile of a host without hints; None if it has none.

    Also None if a software RAID volume is the root device: the baremetal-operator refuses both together.
    """
    if has_root_volume(host):
        return None
    return dict(_HINTS.get(effective_profile(host), {})) or None


def has_root_volume(host: Raw) -> bool:
    """Return True if a software RAID volume of a host, of either version, is its root device."""
    volumes = as_mapping(as_mapping(host.get("spec")).get("raid")).get("softwareRAIDVolumes")
    return isinstance(volumes, list) and any(as_mapping(volume).get("rootVolume") is True for volume in volumes)
