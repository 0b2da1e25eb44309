"""BareMetalHost v1beta1: with clearer names, and without hardware profiles and hardware details. What is its own."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tink.api.metal3.observed import HostStatus
from tink.api.metal3.parts import DeviceHints, HostSpec, ImageSource, Metal3Resource
from tink.api.v1alpha2 import optional


class RootDeviceHints(DeviceHints):
    """How to choose the disk that the operating system is installed on. All given hints must hold."""

    device_path: str | None = optional(
        "Linux path of the disk, e.g. /dev/vda or a link in /dev/disk/by-path; matched exactly."
    )
    model_contains: str | None = optional("A part of the disk's model.")
    vendor_contains: str | None = optional("A part of the name of the disk's vendor.")


class Image(ImageSource):
    """An operating system image."""

    checksum_type: Literal["md5", "sha256", "sha512", "auto"] = Field(
        default="auto",
        description="Type of the checksum; auto: as the checksum looks. md5 is deprecated and will be gone in v1.",
    )


class BareMetalHostSpec(HostSpec[RootDeviceHints, Image]):
    """The desired state of a host."""

    powered_on: bool = Field(
        description="Whether the host shall be on. In a stable state it is turned on or off accordingly."
    )
    root_device_hints: RootDeviceHints | None = optional(
        "How to choose the disk that the image is written to. Default: the smallest one that is large enough."
    )


class BareMetalHostStatus(HostStatus[RootDeviceHints, Image]):
    """The observed state of a host."""


class BareMetalHost(Metal3Resource):
    """A physical machine that is managed through its management controller."""

    kind: str = "BareMetalHost"
    spec: BareMetalHostSpec | None = optional("The desired state of the host.")
    status: BareMetalHostStatus | None = optional("The observed state of the host.")
