"""HardwareData v1alpha1: what inspection found in a host, under the host's name.

It has this one version: v1beta1 of BareMetalHost takes the hardware details out of the host because they are here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import StringConstraints

from tink.api.metal3.parts import MAC_PATTERN, Metal3Resource
from tink.api.v1alpha2 import Model, optional


class SystemVendor(Model):
    """Who made a host."""

    manufacturer: str | None = optional("Who made the host.")
    product_name: str | None = optional("What its maker calls it.")
    serial_number: str | None = optional("Its serial number.")


class BIOS(Model):
    """A host's BIOS."""

    date: str | None = optional("When it was built or released.")
    vendor: str | None = optional("Who made it.")
    version: str | None = optional("Its version.")


class Firmware(Model):
    """A host's firmware."""

    bios: BIOS | None = optional("The BIOS.")


class VLAN(Model):
    """A VLAN that an interface is in."""

    id: int | None = optional("802.1Q ID of the VLAN.", ge=0, le=4094, extra={"format": "int32"})
    name: str | None = optional("Name of the VLAN.")


class LLDP(Model):
    """What the switch says about itself by LLDP."""

    switch_id: str | None = optional("The switch's chassis ID.", alias="switchID")
    port_id: str | None = optional("The switch's port ID.", alias="portID")
    switch_system_name: str | None = optional("The switch's system name.")


class NIC(Model):
    """A network interface of a host, with one of its addresses."""

    name: str | None = optional("Name of the interface, e.g. en0.")
    model: str | None = optional("Vendor and product ID, e.g. 0x8086 0x1572.")
    mac: Annotated[str, StringConstraints(pattern=MAC_PATTERN)] | None = optional("MAC address of the interface.")
    ip: str | None = optional("Its IPv4 or IPv6 address, if it has one. An interface with both stands here twice.")
    speed_gbps: int | None = optional("Its speed, in gigabits per second.")
    vlans: list[VLAN] | None = optional("The VLANs that it is in.")
    vlan_id: int | None = optional("ID of its untagged VLAN.", ge=0, le=4094, extra={"format": "int32"})
    pxe: bool | None = optional("Whether the host netbooted from it.")
    lldp: LLDP | None = optional("What the switch says about itself by LLDP.")
    pci_address: str | None = optional("Its address on the PCI bus.")


class Storage(Model):
    """A disk of a host."""

    name: str | None = optional("Linux path of the disk: one that is the same after a reboot, if there is one.")
    alternate_names: list[str] | None = optional(
        "Other Linux paths of the disk, e.g. /dev/sda. May differ after a reboot."
    )
    rotational: bool | None = optional("Whether the disk has spinning platters. Prefer type.")
    type: Literal["HDD", "SSD", "NVME"] | None = optional("Kind of disk: HDD, SSD or NVME.")
    size_bytes: int | None = optional("Size of the disk, in bytes.")
    vendor: str | None = optional("Who made the disk.")
    model: str | None = optional("What its maker calls it.")
    serial_number: str | None = optional("Its serial number.")
    wwn: str | None = optional("Its world wide name.")
    wwn_vendor_extension: str | None = optional("The vendor's extension of the name.")
    wwn_with_extension: str | None = optional("The world wide name with the extension.")
    hctl: str | None = optional("Its SCSI address.")


class CPU(Model):
    """The processors of a host."""

    arch: str | None = optional("Architecture, e.g. x86_64.")
    model: str | None = optional("What their maker calls them.")
    clock_megahertz: float | None = optional("Clock speed, in MHz.", extra={"format": "double"})
    flags: list[str] | None = optional("Features, as Linux calls them.")
    count: int | None = optional("Number of logical processors.")


class HardwareDetails(Model):
    """What inspection found in a host."""

    system_vendor: SystemVendor | None = optional("Who made the host.")
    firmware: Firmware | None = optional("The host's firmware.")
    ram_mebibytes: int | None = optional("Amount of memory, in MiB.")
    nics: list[NIC] | None = optional("Network interfaces.")
    storage: list[Storage] | None = optional("Disks.")
    cpu: CPU | None = optional("Processors.")
    hostname: str | None = optional("The host's name when it was inspected.")


class HardwareDataSpec(Model):
    """What is known of a host's hardware."""

    hardware: HardwareDetails | None = optional("What inspection found in the host.")


class HardwareData(Metal3Resource):
    """What inspection found in the BareMetalHost of the same name."""

    kind: str = "HardwareData"
    spec: HardwareDataSpec | None = optional("What is known of the host's hardware.")
