"""HardwareData v1alpha1: what inspection found in a host, under the host's name.

It has this one version: v1beta1 of BareMetalHost takes the hardware details out of the host because they are here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from tink.api.metal3.parts import MAC_PATTERN, Metal3Resource
from tink.api.v1alpha2 import Model


class SystemVendor(Model):
    """Who made a host."""

    manufacturer: str | None = Field(default=None, description="Who made the host.")
    product_name: str | None = Field(default=None, description="What its maker calls it.")
    serial_number: str | None = Field(default=None, description="Its serial number.")


class BIOS(Model):
    """A host's BIOS."""

    date: str | None = Field(default=None, description="When it was built or released.")
    vendor: str | None = Field(default=None, description="Who made it.")
    version: str | None = Field(default=None, description="Its version.")


class Firmware(Model):
    """A host's firmware."""

    bios: BIOS | None = Field(default=None, description="The BIOS.")


class VLAN(Model):
    """A VLAN that an interface is in."""

    id: int | None = Field(
        default=None, ge=0, le=4094, json_schema_extra={"format": "int32"}, description="802.1Q ID of the VLAN."
    )
    name: str | None = Field(default=None, description="Name of the VLAN.")


class LLDP(Model):
    """What the switch says about itself by LLDP."""

    switch_id: str | None = Field(default=None, alias="switchID", description="The switch's chassis ID.")
    port_id: str | None = Field(default=None, alias="portID", description="The switch's port ID.")
    switch_system_name: str | None = Field(default=None, description="The switch's system name.")


class NIC(Model):
    """A network interface of a host, with one of its addresses."""

    name: str | None = Field(default=None, description="Name of the interface, e.g. en0.")
    model: str | None = Field(default=None, description="Vendor and product ID, e.g. 0x8086 0x1572.")
    mac: Annotated[str, StringConstraints(pattern=MAC_PATTERN)] | None = Field(
        default=None, description="MAC address of the interface."
    )
    ip: str | None = Field(
        default=None,
        description="Its IPv4 or IPv6 address, if it has one. An interface with both stands here twice.",
    )
    speed_gbps: int | None = Field(default=None, description="Its speed, in gigabits per second.")
    vlans: list[VLAN] | None = Field(default=None, description="The VLANs that it is in.")
    vlan_id: int | None = Field(
        default=None, ge=0, le=4094, json_schema_extra={"format": "int32"}, description="ID of its untagged VLAN."
    )
    pxe: bool | None = Field(default=None, description="Whether the host netbooted from it.")
    lldp: LLDP | None = Field(default=None, description="What the switch says about itself by LLDP.")
    pci_address: str | None = Field(default=None, description="Its address on the PCI bus.")


class Storage(Model):
    """A disk of a host."""

    name: str | None = Field(
        default=None, description="Linux path of the disk: one that is the same after a reboot, if there is one."
    )
    alternate_names: list[str] | None = Field(
        default=None, description="Other Linux paths of the disk, e.g. /dev/sda. May differ after a reboot."
    )
    rotational: bool | None = Field(default=None, description="Whether the disk has spinning platters. Prefer type.")
    type: Literal["HDD", "SSD", "NVME"] | None = Field(default=None, description="Kind of disk: HDD, SSD or NVME.")
    size_bytes: int | None = Field(default=None, description="Size of the disk, in bytes.")
    vendor: str | None = Field(default=None, description="Who made the disk.")
    model: str | None = Field(default=None, description="What its maker calls it.")
    serial_number: str | None = Field(default=None, description="Its serial number.")
    wwn: str | None = Field(default=None, description="Its world wide name.")
    wwn_vendor_extension: str | None = Field(default=None, description="The vendor's extension of the name.")
    wwn_with_extension: str | None = Field(default=None, description="The world wide name with the extension.")
    hctl: str | None = Field(default=None, description="Its SCSI address.")


class CPU(Model):
    """The processors of a host."""

    arch: str | None = Field(default=None, description="Architecture, e.g. x86_64.")
    model: str | None = Field(default=None, description="What their maker calls them.")
    clock_megahertz: float | None = Field(
        default=None, json_schema_extra={"format": "double"}, description="Clock speed, in MHz."
    )
    flags: list[str] | None = Field(default=None, description="Features, as Linux calls them.")
    count: int | None = Field(default=None, description="Number of logical processors.")


class HardwareDetails(Model):
    """What inspection found in a host."""

    system_vendor: SystemVendor | None = Field(default=None, description="Who made the host.")
    firmware: Firmware | None = Field(default=None, description="The host's firmware.")
    ram_mebibytes: int | None = Field(default=None, description="Amount of memory, in MiB.")
    nics: list[NIC] | None = Field(default=None, description="Network interfaces.")
    storage: list[Storage] | None = Field(default=None, description="Disks.")
    cpu: CPU | None = Field(default=None, description="Processors.")
    hostname: str | None = Field(default=None, description="The host's name when it was inspected.")


class HardwareDataSpec(Model):
    """What is known of a host's hardware."""

    hardware: HardwareDetails | None = Field(default=None, description="What inspection found in the host.")


class HardwareData(Metal3Resource):
    """What inspection found in the BareMetalHost of the same name."""

    kind: str = "HardwareData"
    spec: HardwareDataSpec | None = Field(default=None, description="What is known of the host's hardware.")
