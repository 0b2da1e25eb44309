"""BareMetalHost v1alpha1: the version that is stored, and that the baremetal-operator uses. What v1beta1 changed."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tink.api.metal3.hardwaredata import HardwareDetails
from tink.api.metal3.observed import HostStatus
from tink.api.metal3.parts import DeviceHints, HostSpec, ImageSource, Metal3Resource
from tink.api.v1alpha2 import optional


class RootDeviceHints(DeviceHints):
    """How to choose the disk that the operating system is installed on. All given hints must hold."""

    device_name: str | None = optional(
        "Linux path of the disk, e.g. /dev/vda or a link in /dev/disk/by-path; matched exactly."
    )
    model: str | None = optional("A part of the disk's model.")
    vendor: str | None = optional("A part of the name of the disk's vendor.")


class Image(ImageSource):
    """An operating system image."""

    checksum_type: Literal["md5", "sha256", "sha512", "auto"] | None = optional(
        "Type of the checksum; auto: as the checksum looks. Default: md5. In doubt, say auto."
    )


class BareMetalHostSpec(HostSpec[RootDeviceHints, Image]):
    """The desired state of a host."""

    online: bool = Field(
        description="Whether the host shall be on. In a stable state it is turned on or off accordingly."
    )
    hardware_profile: str | None = optional(
        "Name of a hardware profile. Deprecated: say architecture and rootDeviceHints instead, and empty here."
    )
    root_device_hints: RootDeviceHints | None = optional(
        "How to choose the disk that the image is written to. Default: what the hardware profile says."
    )


class BareMetalHostStatus(HostStatus[RootDeviceHints, Image]):
    """The observed state of a host."""

    hardware_profile: str | None = optional("The hardware profile that the host was found to have. Deprecated.")
    hardware: HardwareDetails | None = optional(
        "What inspection found in the host. Deprecated: it is in HardwareData too."
    )


class BareMetalHost(Metal3Resource):
    """A physical machine that is managed through its management controller."""

    kind: str = "BareMetalHost"
    spec: BareMetalHostSpec | None = optional("The desired state of the host.")
    status: BareMetalHostStatus | None = optional("The observed state of the host.")
