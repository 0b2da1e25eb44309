"""What both versions of BareMetalHost have in common; each version adds to it what is its own.

As lenient as the baremetal-operator's own definitions, no more and no less: every host that is stored on a cluster of
Metal3's must be taken here as it is. Where the operator says more (a MAC address that can't be changed, hints that
exclude a root volume), that is its webhook's affair. Optional fields have no default, so that the API writes none.
"""

from __future__ import annotations

from typing import Annotated, Generic, Literal, TypeVar

from pydantic import ConfigDict, Field, StringConstraints

from tink.api.v1alpha2 import TIME, Model, ObjectMeta, optional

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

    name: str | None = optional("Name of the Secret.")
    namespace: str | None = optional("Namespace of the Secret.")


class ObjectReference(Model):
    """An object of any kind."""

    model_config = ConfigDict(json_schema_extra={"x-kubernetes-map-type": "atomic"})

    api_version: str | None = optional("API version of the referent.")
    field_path: str | None = optional(
        "Path of a part of the referent, e.g. spec.containers[2], if not all of it is meant."
    )
    kind: str | None = optional("Kind of the referent.")
    name: str | None = optional("Name of the referent.")
    namespace: str | None = optional("Namespace of the referent.")
    resource_version: str | None = optional("The resourceVersion that is meant, if any.")
    uid: str | None = optional("UID of the referent.")


class Taint(Model):
    """A taint of a node."""

    effect: str = Field(description="What happens to pods that do not tolerate the taint.")
    key: str = Field(description="The key of the taint.")
    time_added: str | None = optional("When the taint was added.", extra=TIME)
    value: str | None = optional("The value of the taint.")


class BMCDetails(Model):
    """How to reach a host's management controller."""

    address: str = Field(description="URL of the controller. Its scheme says which driver to use.")
    credentials_name: str = Field(
        description="Name of the Secret with the credentials, in its keys username and password."
    )
    disable_certificate_verification: bool | None = optional(
        "Trusts the controller whatever certificate it has: for self-signed ones, at the risk of talking "
        "to somebody in between."
    )


class DeviceHints(Model):
    """How to choose a disk. All given hints must hold."""

    hctl: str | None = optional("SCSI address of the disk, e.g. 0:0:0:0; matched exactly.")
    serial_number: str | None = optional("Serial number of the disk; matched exactly.")
    min_size_gigabytes: int | None = optional("Least size of the disk, in gigabytes.", ge=0)
    wwn: str | None = optional("World wide name of the disk; matched exactly.")
    wwn_with_extension: str | None = optional("World wide name with the vendor's extension appended; matched exactly.")
    wwn_vendor_extension: str | None = optional("The vendor's extension of the world wide name; matched exactly.")
    rotational: bool | None = optional(
        "Whether the disk has spinning platters: true for only such, false for only others."
    )


Hints = TypeVar("Hints", bound=DeviceHints)
"""The hints of a version."""


class HardwareRAIDVolume(Model):
    """A logical disk that the RAID controller makes."""

    size_gibibytes: int | None = optional(
        "Size of the logical disk, in GiB. Without it, or with 0: as large as can be.", ge=0
    )
    level: Literal["0", "1", "2", "5", "6", "1+0", "5+0", "6+0"] = Field(
        description="RAID level. Not every driver knows all of them."
    )
    name: str | None = optional("Name of the volume, unique in the host. Without it one is made.", max_length=64)
    rotational: bool | None = optional(
        "Takes only rotating disks (true) or only solid-state ones (false). Default: any."
    )
    number_of_physical_disks: int | None = optional(
        "How many disks to use. Default: as few as the RAID level needs.", ge=1
    )
    controller: str | None = optional("Name of the RAID controller to use.")
    physical_disks: list[str] | None = optional("Names of the disks to use, in the way of the RAID controller.")


class SoftwareRAIDVolume(Model, Generic[Hints]):
    """A logical disk that the operating system makes."""

    # What a generic model of pydantic's says of itself, the models made of it do not say.
    model_config = ConfigDict(json_schema_extra={"description": __doc__})

    root_volume: bool = Field(
        default=False, description="Whether the operating system is installed on this volume. For one volume at most."
    )
    size_gibibytes: int | None = optional(
        "Size of the logical disk, in GiB. Without it, or with 0: as large as can be.", ge=0
    )
    level: Literal["0", "1", "1+0"] = Field(description="RAID level.")
    physical_disks: list[Hints] | None = optional("Which disks to use, by hints for each.", min_length=2)


class RAIDConfig(Model, Generic[Hints]):
    """RAID of a host: by hardware or by software, not both."""

    hardware_raid_volumes: list[HardwareRAIDVolume] | None = optional(
        "Logical disks of hardware RAID; without root device hints the first is the root disk. An empty "
        "list removes all of them.",
        alias="hardwareRAIDVolumes",
        extra={"nullable": True},
    )
    software_raid_volumes: list[SoftwareRAIDVolume[Hints]] | None = optional(
        "Logical disks of software RAID, one or two; not together with hardwareRAIDVolumes. The first must be of level "
        "1, so that the host still boots when a disk fails. Software RAID is always removed when the host is "
        "deprovisioned.",
        alias="softwareRAIDVolumes",
        max_length=2,
        extra={"nullable": True},
    )


class FirmwareConfig(Model):
    """Firmware settings. Deprecated: no driver knows them; use HostFirmwareSettings."""

    virtualization_enabled: bool | None = optional("Virtualization by the platform.")
    simultaneous_multithreading_enabled: bool | None = optional("Several logical processors for each core.")
    sriov_enabled: bool | None = optional("SR-IOV: virtual instances of PCI Express devices.")


class ImageSource(Model):
    """An operating system image, but for its checksum's type."""

    url: str = Field(description="Where the image is.")
    checksum: str | None = optional(
        "The checksum of the image, or a URL of it. Required unless the format is live-iso or the image is "
        "an OCI one (oci://)."
    )
    format: Literal["raw", "qcow2", "vdi", "vmdk", "live-iso"] | None = optional(
        "Format of the image. A live-iso is booted, not written to a disk."
    )
    oci_auth_secret_name: str | None = optional(
        "Name of the Secret with the credentials of an OCI image's registry, of the type "
        "kubernetes.io/dockerconfigjson or dockercfg, in the host's namespace."
    )


Image = TypeVar("Image", bound=ImageSource)
"""The image of a version."""


class CustomDeploy(Model):
    """A deploy procedure of the site's own."""

    method: str = Field(description="Name of the procedure, as the deploy ramdisk knows it.")


class SwitchPort(Model):
    """A port of a network switch."""

    switch_id: AnchoredMAC = Field(alias="switchID", description="The switch, by the MAC address of its management.")
    port_id: str = Field(alias="portID", description="The port, by its name in the switch's management.")


class HostNetworkAttachmentRef(Model):
    """A HostNetworkAttachment."""

    name: str | None = optional("Name of the HostNetworkAttachment.", max_length=253)
    namespace: str | None = optional(
        "Namespace of the HostNetworkAttachment. Default: that of the host.", max_length=63
    )


class HostNetworkInterface(Model):
    """To which network one interface of a host is attached. The interface is named by its name or its MAC address."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9._-]+$")] | None = optional(
        "Name of the interface, as found by inspection. Not together with macAddress."
    )
    mac_address: AnchoredMAC | None = optional(
        "MAC address of the interface, as found by inspection. Not together with name."
    )
    host_network_attachment: HostNetworkAttachmentRef | None = optional("The HostNetworkAttachment of this interface.")
    switch_port: SwitchPort | None = optional(
        "The switch port that the interface is plugged into. Overrides what inspection learned by LLDP."
    )


class HostSpec(Model, Generic[Hints, Image]):
    """The desired state of a host, as far as the versions agree."""

    taints: list[Taint] | None = optional("Deprecated: has never had an effect.")
    bmc: BMCDetails | None = optional("How to reach the host's management controller.")
    firmware: FirmwareConfig | None = optional(
        "Firmware settings. Deprecated: has no effect; use HostFirmwareSettings."
    )
    boot_mode: BootMode | None = optional(
        "How the firmware boots. Default: UEFI. UEFISecureBoot turns secure boot on after provisioning."
    )
    boot_mac_address: Annotated[str, StringConstraints(pattern=MAC_PATTERN)] | None = optional(
        "MAC address of the interface that the host netboots from; never that of its management controller.",
        alias="bootMACAddress",
    )
    consumer_ref: ObjectReference | None = optional(
        "What uses the host, e.g. a Machine of Cluster API. A host with it is in use."
    )
    user_data: SecretReference | None = optional(
        "The Secret with the user-data for the first boot (cloud-init, Ignition)."
    )
    preprovisioning_network_data_name: str | None = optional(
        "Name of the Secret, in the host's namespace, with the network configuration of the deploy "
        "ramdisk. Also that of the installed system, unless networkData is given."
    )
    network_data: SecretReference | None = optional("The Secret with the network configuration for the first boot.")
    meta_data: SecretReference | None = optional(
        "The Secret with metadata for the first boot, besides what is generated."
    )
    description: str | None = optional("Text for people: what host this is.")
    externally_provisioned: bool | None = optional(
        "Something else has installed the host: only its power is looked after. Can be turned on when the "
        "host is created, or while it is available."
    )
    automated_cleaning_mode: Literal["metadata", "disabled"] = Field(
        default="metadata", description="What is erased before and after provisioning: disks' metadata, or nothing."
    )
    custom_deploy: CustomDeploy | None = optional(
        "A deploy procedure of the site's own ramdisk, instead of an image. Setting it starts provisioning."
    )
    architecture: str | None = optional("CPU architecture, e.g. x86_64 or aarch64. Default: what inspection finds.")
    disable_power_off: bool | None = optional(
        "Never turns the host off: reboots it where it would be turned off and on."
    )
    inspection_mode: Literal["disabled", "agent", "fast"] | None = optional(
        "How the hardware is inspected: not at all, by the agent of a ramdisk, or fast, by asking the "
        "management controller only."
    )
    network_interfaces: list[HostNetworkInterface] | None = optional(
        "To which networks the host's interfaces are attached, for configuring switches."
    )
    raid: RAIDConfig[Hints] | None = optional(
        "RAID to be made before the host is provisioned. Without it RAID stays as it is."
    )
    image: Image | None = optional("The image to install. Setting it starts provisioning, removing it deprovisioning.")
