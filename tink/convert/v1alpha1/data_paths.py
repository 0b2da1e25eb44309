"""Where the data of v1alpha1's templates is in v1alpha2's: tables, read by `tink.convert.v1alpha1.expressions`.

v1alpha1 gave a template (tinkerbell/tinkerbell, tink/controller/internal/workflow/reconciler.go): the keys of the
Workflow's hardwareMap at the top; `.Hardware` with Disks, Interfaces, UserData, VendorData and Metadata, its own
selection by Go's names; `.hardware`, the whole Hardware by JSON names; `.references`, other objects. What v1alpha2
gives is in `tink.template.context`.

A `Shape` is a part of the old data that has another form today. What has no Shape is the same in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tink.api.annotations import INSTANCE_ID_ANNOTATION

FIRST_MAC = "(keys {root}.Hardware.NetworkInterfaces | sortAlpha | first)"
"""The key of "the first" interface: a map has no order but its keys'. `{root}`: "$" where dot is not the root."""


@dataclass(frozen=True, slots=True)
class Step:
    """What becomes of a field's name on the way through the data."""

    name: str = ""
    """What stands there now, perhaps with dots; empty: the name goes."""
    to: Shape | None = None
    instead: str = ""
    """An expression that stands for the whole way up to this name."""
    notice: str = ""
    """What to tell the user."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A part of the old data."""

    steps: Mapping[str, Step] = field(default_factory=dict)
    gone: str = ""
    """Why names that are not among the steps have no place today; empty: they are what they were."""
    whole: str = ""
    """Why it can't be used but by its fields; empty: it can."""
    element: Shape | None = None
    """What `range` over it gives."""
    indexed: Shape | None = None
    """What `index` with 0 gives; then it is a list of old that is a map today."""


_NO_PLACE = "v1alpha2's Hardware has no place for it: give it as one of the Workflow's templateParams, as .Params.NAME"
_WHOLE = "it has another form in v1alpha2: name the fields that you need"
LOWEST = (
    "v1alpha2 knows interfaces by their MAC addresses: instead of the first one, it is that with the lowest address"
)
_NO_METADATA = f"it was metadata of the instance, and {_NO_PLACE}"

_HOSTNAME = Step(
    instead=f"(index {{root}}.Hardware.NetworkInterfaces {FIRST_MAC}).DHCP.Hostname",
    notice=f"the metadata's hostname is the DHCP's of an interface; {LOWEST}",
)
_ID = Step(instead=f'(index {{root}}.hardware.metadata.annotations "{INSTANCE_ID_ANNOTATION}")')
_MAC = Step(instead=FIRST_MAC, notice=LOWEST)

_INSTANCE = Shape({"ID": _ID, "Hostname": _HOSTNAME, "id": _ID, "hostname": _HOSTNAME}, _NO_METADATA, _WHOLE)
_METADATA = Shape({"Instance": Step(to=_INSTANCE), "instance": Step(to=_INSTANCE)}, _NO_METADATA, _WHOLE)


def _interface(*, first: bool, go: bool) -> Shape:
    """An interface: the first one, or each of a range, which does not know its MAC address; by Go's or JSON's names."""
    if go:
        address = {"Address": Step("IP"), "Netmask": Step("Netmask"), "Gateway": Step("Gateway")}
        dhcp = {
            "Hostname": Step("Hostname"),
            "LeaseTime": Step("LeaseTimeSeconds"),
            "NameServers": Step("Nameservers"),
            "TimeServers": Step("Timeservers"),
            "VLANID": Step("VLANID"),
        }
        names = ("DHCP", "IP", "MAC", "DisableDHCP", "DisableDHCP")
    else:
        address = {"address": Step("ip"), "netmask": Step("netmask"), "gateway": Step("gateway")}
        dhcp = {
            "hostname": Step("hostname"),
            "lease_time": Step("leaseTimeSeconds"),
            "name_servers": Step("nameservers"),
            "time_servers": Step("timeservers"),
            "vlan_id": Step("vlanId"),
        }
        names = ("dhcp", "ip", "mac", "disableDHCP", "disableDhcp")
    dhcp[names[1]] = Step(to=Shape(address, _NO_PLACE, _WHOLE))
    if first:
        dhcp[names[2]] = _MAC
    steps = {names[0]: Step(names[0], Shape(dhcp, _NO_PLACE, _WHOLE)), names[3]: Step(names[4])}
    return Shape(steps, _NO_PLACE, _WHOLE)


def _interfaces(*, go: bool) -> Shape:
    return Shape(
        whole="it was a list, and is a map by MAC address in v1alpha2",
        element=_interface(first=False, go=go),
        indexed=_interface(first=True, go=go),
    )


_DISK = Shape({"device": Step()}, _NO_PLACE)
_DISKS = Shape(element=_DISK)

_LEGACY = Shape(
    {
        "Interfaces": Step("NetworkInterfaces", _interfaces(go=True)),
        "UserData": Step("Instance.Userdata"),
        "VendorData": Step("Instance.Vendordata"),
        "Metadata": Step(to=_METADATA),
    },
    whole=_WHOLE,
)
_SPEC_STEPS = {
    "disks": Step("storageDevices", _DISKS),
    "interfaces": Step("networkInterfaces", _interfaces(go=False)),
    "userData": Step("instance.userdata"),
    "vendorData": Step("instance.vendordata"),
}
_SPEC = Shape({**_SPEC_STEPS, "bmcRef": Step("bmcRef"), "metadata": Step(to=_METADATA)}, _NO_PLACE, _WHOLE)
# Proposal 0028 reads as if .hardware were the spec; what was built has the whole object there.
_OBJECT = Shape(
    {
        **_SPEC_STEPS,
        "metadata": Step("metadata", Shape({"instance": Step(to=_INSTANCE)})),
        "spec": Step("spec", _SPEC),
    },
    whole=_WHOLE,
)

ROOT = Shape(
    {"Hardware": Step("Hardware", _LEGACY), "hardware": Step("hardware", _OBJECT)},
    whole=_WHOLE,
)
"""All of it; names that are not here are keys of the hardwareMap."""
GONE_ROOTS = {"references": "v1alpha2's templates see no other object than the Hardware"}
PARAMS = "Params"
