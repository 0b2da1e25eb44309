"""BareMetalHost v1alpha1: the version that is stored, and that the baremetal-operator uses. What v1beta1 changed."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tink.api.metal3.hardwaredata import HardwareDetails
from tink.api.metal3.observed import HostStatus, Provisioning
from tink.api.metal3.parts import (
    SOFTWARE_VOLUMES_DESCRIPTION,
    DeviceHints,
    HardwareRAID,
    HostSpec,
    ImageSource,
    Metal3Resource,
    SoftwareVolume,
)


class RootDeviceHints(DeviceHints):
    """How to choose the disk that the operating system is installed on. All given hints must hold."""

    device_name: str | None = Field(
        default=None,
        description="Linux path of the disk, e.g. /dev/vda or a link in /dev/disk/by-path; matched exactly.",
    )
    model: str | None = Field(default=None, description="A part of the disk's model.")
    vendor: str | None = Field(default=None, description="A part of the name of the disk's vendor.")


class SoftwareRAIDVolume(SoftwareVolume):
    """A logical disk that the operating system makes."""

    physical_disks: list[RootDeviceHints] | None = Field(
        default=None, min_length=2, description="Which disks to use, by hints for each."
    )


class RAIDConfig(HardwareRAID):
    """RAID of a host: by hardware or by software, not both."""

    software_raid_volumes: list[SoftwareRAIDVolume] | None = Field(
        default=None,
        alias="softwareRAIDVolumes",
        max_length=2,
        json_schema_extra={"nullable": True},
        description=SOFTWARE_VOLUMES_DESCRIPTION,
    )


class Image(ImageSource):
    """An operating system image."""

    checksum_type: Literal["md5", "sha256", "sha512", "auto"] | None = Field(
        default=None, description="Type of the checksum; auto: as the checksum looks. Default: md5. In doubt, say auto."
    )


class BareMetalHostSpec(HostSpec):
    """The desired state of a host."""

    online: bool = Field(
        default=..., description="Whether the host shall be on. In a stable state it is turned on or off accordingly."
    )
    raid: RAIDConfig | None = Field(
        default=None, description="RAID to be made before the host is provisioned. Without it RAID stays as it is."
    )
    hardware_profile: str | None = Field(
        default=None,
        description="Name of a hardware profile. Deprecated: say architecture and rootDeviceHints instead, and empty "
        "here.",
    )
    root_device_hints: RootDeviceHints | None = Field(
        default=None,
        description="How to choose the disk that the image is written to. Default: what the hardware profile says.",
    )
    image: Image | None = Field(
        default=None, description="The image to install. Setting it starts provisioning, removing it deprovisioning."
    )


class ProvisionStatus(Provisioning):
    """What the provisioner is doing with a host."""

    image: Image | None = Field(default=None, description="The image that was last provisioned successfully.")
    root_device_hints: RootDeviceHints | None = Field(
        default=None, description="The root device hints that the host was provisioned with."
    )
    raid: RAIDConfig | None = Field(default=None, description="The RAID configuration that is in effect.")


class BareMetalHostStatus(HostStatus):
    """The observed state of a host."""

    hardware_profile: str | None = Field(
        default=None, description="The hardware profile that the host was found to have. Deprecated."
    )
    hardware: HardwareDetails | None = Field(
        default=None, description="What inspection found in the host. Deprecated: it is in HardwareData too."
    )
    provisioning: ProvisionStatus = Field(default=..., description="What the provisioner knows of the host.")
    last_attempted_image: Image | None = Field(
        default=None,
        description="The image of the last attempt at provisioning. With another one failures are counted anew.",
    )


class BareMetalHost(Metal3Resource):
    """A physical machine that is managed through its management controller."""

    kind: str = "BareMetalHost"
    spec: BareMetalHostSpec | None = Field(default=None, description="The desired state of the host.")
    status: BareMetalHostStatus | None = Field(default=None, description="The observed state of the host.")
