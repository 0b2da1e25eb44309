"""The words of a run: where a machine is, what a server is asked, and how a machine ended."""

from __future__ import annotations

from enum import StrEnum


class Step(StrEnum):
    """Where a machine is. Of those in `MEASURED` it is known how long they took."""

    OFF = "off"
    FIRMWARE = "firmware"
    FIRMWARE_DHCP = "firmware-dhcp"
    BOOT_PROGRAM = "boot-program"
    LOADER = "loader"
    IPXE_DHCP = "ipxe-dhcp"
    SCRIPT = "script"
    KERNEL = "kernel"
    INITRD = "initrd"
    STARTING = "starting"
    OSIE_DHCP = "osie-dhcp"
    OSIE = "osie"
    AGENT = "agent"
    WORKFLOW = "workflow"
    ACTIONS = "actions"
    REBOOT = "reboot"
    DISK_BOOT = "disk-boot"
    SYSTEM = "system"
    SYSTEM_DHCP = "system-dhcp"
    CLOUD_INIT = "cloud-init"
    DONE = "done"
    FAILED = "failed"


MEASURED = (
    Step.FIRMWARE_DHCP, Step.BOOT_PROGRAM, Step.IPXE_DHCP, Step.SCRIPT, Step.KERNEL, Step.INITRD, Step.OSIE_DHCP,
    Step.AGENT, Step.WORKFLOW, Step.ACTIONS, Step.DISK_BOOT, Step.SYSTEM_DHCP, Step.CLOUD_INIT,
)  # fmt: skip
"""Those whose time is the server's, or has a part of it; the rest is drawn from the profile."""


class Question(StrEnum):
    """What a server is asked, from the moment that it is sent last to the whole answer."""

    DHCP_OFFER = "dhcp-offer"
    DHCP_ACK = "dhcp-ack"
    TFTP = "tftp-first-answer"
    SCRIPT_GET = "script-get"
    METADATA_GET = "metadata-get"
    EVENT = "event"


class Whole(StrEnum):
    """From power-on (of the first time) until something is reached."""

    PROVISIONED = "provisioned"
    """The Workflow has Succeeded."""
    INSTALLED = "installed"
    """The installed system's cloud-init has its data."""
