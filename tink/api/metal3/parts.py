"""What both versions of BareMetalHost have in common; each version adds to it what is its own.

As lenient as the baremetal-operator's own definitions, no more and no less: every host that is stored on a cluster of
Metal3's must be taken here as it is. Where the operator says more (a MAC address that can't be changed, hints that
exclude a root volume), that is its webhook's affair. Optional fields have no default, so that the API writes none.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints

from tink.api.v1alpha2 import Model, ObjectMeta

MAC_PATTERN = "[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}"
"""Not anchored, in either case: as it is in the baremetal-operator's definition."""

AnchoredMAC = Annotated[str, StringConstraints(pattern=f"^{MAC_PATTERN}$")]
BootMode = Literal["UEFI", "UEFISecureBoot", "legacy"]


class Metal3Resource(Model):
    """Any object of Metal3's."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()


class SecretReference(Model):
    """A Secret, in any namespace."""

    model_config = ConfigDict(json_schema_extra={"x-kubernetes-map-type": "atomic"})

    name: str | None = Field(default=None, description="Name of the Secret.")
    namespace: str | None = Field(default=None, description="Namespace of the Secret.")


class ObjectReference(Model):
    """An object of any kind."""

    model_config = ConfigDict(json_schema_extra={"x-kubernetes-map-type": "atomic"})

    api_version: str | None = Field(default=None, description="API version of the referent.")
    field_path: str | None = Field(
        default=None, description="Path of a part of the referent, e.g. spec.containers[2], if not all of it is meant."
    )
    kind: str | None = Field(default=None, description="Kind of the referent.")
    name: str | None = Field(default=None, description="Name of the referent.")
    namespace: str | None = Field(default=None, description="Namespace of the referent.")
    resource_version: str | None = Field(default=None, description="The resourceVersion that is meant, if any.")
    uid: str | None = Field(default=None, description="UID of the referent.")


class Taint(Model):
    """A taint of a node."""

    effect: str = Field(default=..., description="What happens to pods that do not tolerate the taint.")
    key: str = Field(default=..., description="The key of the taint.")
    time_added: str | None = Field(
        default=None, json_schema_extra={"format": "date-time"}, description="When the taint was added."
    )
    value: str | None = Field(default=None, description="The value of the taint.")


class BMCDetails(Model):
    """How to reach a host's management controller."""

    address: str = Field(default=..., description="URL of the controller. Its scheme says which driver to use.")
    credentials_name: str = Field(
        default=..., description="Name of the Secret with the credentials, in its keys username and password."
    )
    disable_certificate_verification: bool | None = Field(
        default=None,
        description="Trusts the controller whatever certificate it has: for self-signed ones, at the risk of talking "
        "to somebody in between.",
    )


class DeviceHints(Model):
    """How to choose a disk. All given hints must hold."""

    hctl: str | None = Field(default=None, description="SCSI address of the disk, e.g. 0:0:0:0; matched exactly.")
    serial_number: str | None = Field(default=None, description="Serial number of the disk; matched exactly.")
    min_size_gigabytes: int | None = Field(default=None, ge=0, description="Least size of the disk, in gigabytes.")
    wwn: str | None = Field(default=None, description="World wide name of the disk; matched exactly.")
    wwn_with_extension: str | None = Field(
        default=None, description="World wide name with the vendor's extension appended; matched exactly."
    )
    wwn_vendor_extension: str | None = Field(
        default=None, description="The vendor's extension of the world wide name; matched exactly."
    )
    rotational: bool | None = Field(
        default=None, description="Whether the disk has spinning platters: true for only such, false for only others."
    )


class HardwareRAIDVolume(Model):
    """A logical disk that the RAID controller makes."""

    size_gibibytes: int | None = Field(
        default=None, ge=0, description="Size of the logical disk, in GiB. Without it, or with 0: as large as can be."
    )
    level: Literal["0", "1", "2", "5", "6", "1+0", "5+0", "6+0"] = Field(
        default=..., description="RAID level. Not every driver knows all of them."
    )
    name: str | None = Field(
        default=None, max_length=64, description="Name of the volume, unique in the host. Without it one is made."
    )
    rotational: bool | None = Field(
        default=None, description="Takes only rotating disks (true) or only solid-state ones (false). Default: any."
    )
    number_of_physical_disks: int | None = Field(
        default=None, ge=1, description="How many disks to use. Default: as few as the RAID level needs."
    )
    controller: str | None = Field(default=None, description="Name of the RAID controller to use.")
    physical_disks: list[str] | None = Field(
        default=None, description="Names of the disks to use, in the way of the RAID controller."
    )


class SoftwareVolume(Model):
    """A logical disk that the operating system makes, but for its disks."""

    root_volume: bool = Field(
        default=False, description="Whether the operating system is installed on this volume. For one volume at most."
    )
    size_gibibytes: int | None = Field(
        default=None, ge=0, description="Size of the logical disk, in GiB. Without it, or with 0: as large as can be."
    )
    level: Literal["0", "1", "1+0"] = Field(default=..., description="RAID level.")


class HardwareRAID(Model):
    """RAID of a host, but for its software part."""

    hardware_raid_volumes: list[HardwareRAIDVolume] | None = Field(
        default=None,
        alias="hardwareRAIDVolumes",
        json_schema_extra={"nullable": True},
        description="Logical disks of hardware RAID; without root device hints the first is the root disk. An empty "
        "list removes all of them.",
    )


SOFTWARE_VOLUMES_DESCRIPTION = (
    "Logical disks of software RAID, one or two; not together with hardwareRAIDVolumes. The first must be of level 1, "
    "so that the host still boots when a disk fails. Software RAID is always removed when the host is deprovisioned."
)


class FirmwareConfig(Model):
    """Firmware settings. Deprecated: no driver knows them; use HostFirmwareSettings."""

    virtualization_enabled: bool | None = Field(default=None, description="Virtualization by the platform.")
    simultaneous_multithreading_enabled: bool | None = Field(
        default=None, description="Several logical processors for each core."
    )
    sriov_enabled: bool | None = Field(default=None, description="SR-IOV: virtual instances of PCI Express devices.")


class ImageSource(Model):
    """An operating system image, but for its checksum's type."""

    url: str = Field(default=..., description="Where the image is.")
    checksum: str | None = Field(
        default=None,
        description="The checksum of the image, or a URL of it. Required unless the format is live-iso or the image is "
        "an OCI one (oci://).",
    )
    format: Literal["raw", "qcow2", "vdi", "vmdk", "live-iso"] | None = Field(
        default=None, description="Format of the image. A live-iso is booted, not written to a disk."
    )
    oci_auth_secret_name: str | None = Field(
        default=None,
        description="Name of the Secret with the credentials of an OCI image's registry, of the type "
        "kubernetes.io/dockerconfigjson or dockercfg, in the host's namespace.",
    )


class CustomDeploy(Model):
    """A deploy procedure of the site's own."""

    method: str = Field(default=..., description="Name of the procedure, as the deploy ramdisk knows it.")


class SwitchPort(Model):
    """A port of a network switch."""

    switch_id: AnchoredMAC = Field(
        default=..., alias="switchID", description="The switch, by the MAC address of its management."
    )
    port_id: str = Field(default=..., alias="portID", description="The port, by its name in the switch's management.")


class HostNetworkAttachmentRef(Model):
    """A HostNetworkAttachment."""

    name: str | None = Field(default=None, max_length=253, description="Name of the HostNetworkAttachment.")
    namespace: str | None = Field(
        default=None, max_length=63, description="Namespace of the HostNetworkAttachment. Default: that of the host."
    )


class HostNetworkInterface(Model):
    """To which network one interface of a host is attached. The interface is named by its name or its MAC address."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9._-]+$")] | None = Field(
        default=None, description="Name of the interface, as found by inspection. Not together with macAddress."
    )
    mac_address: AnchoredMAC | None = Field(
        default=None, description="MAC address of the interface, as found by inspection. Not together with name."
    )
    host_network_attachment: HostNetworkAttachmentRef | None = Field(
        default=None, description="The HostNetworkAttachment of this interface."
    )
    switch_port: SwitchPort | None = Field(
        default=None,
        description="The switch port that the interface is plugged into. Overrides what inspection learned by LLDP.",
    )


class HostSpec(Model):
    """The desired state of a host, as far as the versions agree."""

    taints: list[Taint] | None = Field(default=None, description="Deprecated: has never had an effect.")
    bmc: BMCDetails | None = Field(default=None, description="How to reach the host's management controller.")
    firmware: FirmwareConfig | None = Field(
        default=None, description="Firmware settings. Deprecated: has no effect; use HostFirmwareSettings."
    )
    boot_mode: BootMode | None = Field(
        default=None,
        description="How the firmware boots. Default: UEFI. UEFISecureBoot turns secure boot on after provisioning.",
    )
    boot_mac_address: Annotated[str, StringConstraints(pattern=MAC_PATTERN)] | None = Field(
        default=None,
        alias="bootMACAddress",
        description="MAC address of the interface that the host netboots from; never that of its management "
        "controller.",
    )
    consumer_ref: ObjectReference | None = Field(
        default=None, description="What uses the host, e.g. a Machine of Cluster API. A host with it is in use."
    )
    user_data: SecretReference | None = Field(
        default=None, description="The Secret with the user-data for the first boot (cloud-init, Ignition)."
    )
    preprovisioning_network_data_name: str | None = Field(
        default=None,
        description="Name of the Secret, in the host's namespace, with the network configuration of the deploy "
        "ramdisk. Also that of the installed system, unless networkData is given.",
    )
    network_data: SecretReference | None = Field(
        default=None, description="The Secret with the network configuration for the first boot."
    )
    meta_data: SecretReference | None = Field(
        default=None, description="The Secret with metadata for the first boot, besides what is generated."
    )
    description: str | None = Field(default=None, description="Text for people: what host this is.")
    externally_provisioned: bool | None = Field(
        default=None,
        description="Something else has installed the host: only its power is looked after. Can be turned on when the "
        "host is created, or while it is available.",
    )
    automated_cleaning_mode: Literal["metadata", "disabled"] = Field(
        default="metadata", description="What is erased before and after provisioning: disks' metadata, or nothing."
    )
    custom_deploy: CustomDeploy | None = Field(
        default=None,
        description="A deploy procedure of the site's own ramdisk, instead of an image. Setting it starts "
        "provisioning.",
    )
    architecture: str | None = Field(
        default=None, description="CPU architecture, e.g. x86_64 or aarch64. Default: what inspection finds."
    )
    disable_power_off: bool | None = Field(
        default=None, description="Never turns the host off: reboots it where it would be turned off and on."
    )
    inspection_mode: Literal["disabled", "agent", "fast"] | None = Field(
        default=None,
        description="How the hardware is inspected: not at all, by the agent of a ramdisk, or fast, by asking the "
        "management controller only.",
    )
    network_interfaces: list[HostNetworkInterface] | None = Field(
        default=None, description="To which networks the host's interfaces are attached, for configuring switches."
    )
