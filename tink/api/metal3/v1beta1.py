"""BareMetalHost v1beta1: with clearer names, and without hardware profiles and hardware details. What is its own."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

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

    device_path: str | None = Field(
        default=None,
        description="Linux path of the disk, e.g. /dev/vda or a link in /dev/disk/by-path; matched exactly.",
    )
    model_contains: str | None = Field(default=None, description="A part of the disk's model.")
    vendor_contains: str | None = Field(default=None, description="A part of the name of the disk's vendor.")


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

    checksum_type: Literal["md5", "sha256", "sha512", "auto"] = Field(
        default="auto",
        description="Type of the checksum; auto: as the checksum looks. md5 is deprecated and will be gone in v1.",
    )


class BareMetalHostSpec(HostSpec):
    """The desired state of a host."""

    powered_on: bool = Field(
        default=..., description="Whether the host shall be on. In a stable state it is turned on or off accordingly."
    )
    raid: RAIDConfig | None = Field(
        default=None, description="RAID to be made before the host is provisioned. Without it RAID stays as it is."
    )
    root_device_hints: RootDeviceHints | None = Field(
        default=None,
        description="How to choose the disk that the image is written to. Default: the smallest one that is large "
        "enough.",
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
