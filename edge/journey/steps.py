"""The words for what happens to a machine: the step, how it went, and which milestone of a boot that is."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import Final

Value = str | int | float


class Step(StrEnum):
    """Which part of the journey, in the order of a boot."""

    SEEN = "seen"  # an unregistered machine was heard
    MEDIUM = "medium"  # the image of a CD or USB stick that it is to start from
    DHCP = "dhcp"
    TFTP = "tftp"
    BINARY = "binary"  # a boot program over HTTP
    SCRIPT = "script"
    KERNEL = "kernel"
    INITRD = "initrd"
    BOOT = "boot"  # signs of life: iPXE is about to start the kernel, the OSIE has come up
    AGENT = "agent"
    WORKFLOW = "workflow"
    ACTION = "action"
    METADATA = "metadata"
    LOG = "log"  # what the machine logs over the network


class Outcome(StrEnum):
    """How the step went."""

    OK = "ok"
    INFO = "info"  # neither success nor failure: a beginning, a probe, a progress report
    WARNING = "warning"  # what was to come did not: see `edge.journey.expectations`
    REFUSED = "refused"  # policy said no; the message says why
    FAILED = "failed"


COLOURS: Final[Mapping[Outcome, str | None]] = {
    Outcome.OK: "green",
    Outcome.INFO: None,
    Outcome.WARNING: "yellow",
    Outcome.REFUSED: "yellow",
    Outcome.FAILED: "red",
}
"""In which a terminal shows it, by the names that click has for them."""


class Milestone(IntEnum):
    """How far a boot has come, in the order of a boot. Which one comes next is known, so its absence says something."""

    OFFERED = 1  # an address, to the firmware
    LEASED = 2
    PROGRAM_BEGUN = 3  # a boot program, by TFTP
    PROGRAM_SENT = 4
    IPXE_OFFERED = 5
    IPXE_LEASED = 6
    SCRIPT_SENT = 7
    KERNEL_BEGUN = 8
    KERNEL_SENT = 9
    INITRD_BEGUN = 10
    INITRD_SENT = 11
    KERNEL_STARTED = 12
    OS_OFFERED = 13
    OS_LEASED = 14
    OSIE_UP = 15
    AGENT_CONNECTED = 16
    WORKFLOW_RUNNING = 17
    ACTION_BEGUN = 18
    ACTION_ENDED = 19
    WORKFLOW_ENDED = 20
    METADATA_READ = 21


STAGES: Final = frozenset({Milestone.SCRIPT_SENT, Milestone.KERNEL_STARTED, Milestone.WORKFLOW_ENDED})
"""By these a boot is known to be another one than the last, or to have ended."""

BEGUN = "begun"
"""`phase` in the detail of a step that has begun, and of which another event will tell the end."""
PROGRESS = "progress"
"""`phase` of a report in between."""
STARTING = "starting"
"""`phase` of iPXE's last word before it starts the kernel."""
NOT_STARTED = "failed"
"""`phase` of iPXE's word that the kernel did not start."""
UP = "up"
"""`phase` of the OSIE's first word."""

_DHCP = {
    ("PXE ROM", "offer"): Milestone.OFFERED,
    ("PXE ROM", "ack"): Milestone.LEASED,
    ("HTTP Boot ROM", "offer"): Milestone.OFFERED,
    ("HTTP Boot ROM", "ack"): Milestone.LEASED,
    ("U-Boot", "offer"): Milestone.OFFERED,
    ("U-Boot", "ack"): Milestone.LEASED,
    ("iPXE", "offer"): Milestone.IPXE_OFFERED,
    ("iPXE", "ack"): Milestone.IPXE_LEASED,
    ("operating system", "offer"): Milestone.OS_OFFERED,
    ("operating system", "ack"): Milestone.OS_LEASED,
    # DHCPv6; of the firmware's own network stack, beside its boot programs, there is nothing to be told.
    ("PXE ROM", "advertise"): Milestone.OFFERED,
    ("PXE ROM", "reply"): Milestone.LEASED,
    ("HTTP Boot ROM", "advertise"): Milestone.OFFERED,
    ("HTTP Boot ROM", "reply"): Milestone.LEASED,
    ("U-Boot", "advertise"): Milestone.OFFERED,
    ("U-Boot", "reply"): Milestone.LEASED,
    ("iPXE", "advertise"): Milestone.IPXE_OFFERED,
    ("iPXE", "reply"): Milestone.IPXE_LEASED,
    ("operating system", "advertise"): Milestone.OS_OFFERED,
    ("operating system", "reply"): Milestone.OS_LEASED,
}
_DONE = {
    Step.TFTP: Milestone.PROGRAM_SENT,
    Step.BINARY: Milestone.PROGRAM_SENT,
    Step.SCRIPT: Milestone.SCRIPT_SENT,
    Step.KERNEL: Milestone.KERNEL_SENT,
    Step.INITRD: Milestone.INITRD_SENT,
    Step.AGENT: Milestone.AGENT_CONNECTED,
    Step.ACTION: Milestone.ACTION_ENDED,
    Step.METADATA: Milestone.METADATA_READ,
}
_BEGUN = {
    Step.TFTP: Milestone.PROGRAM_BEGUN,
    Step.KERNEL: Milestone.KERNEL_BEGUN,
    Step.INITRD: Milestone.INITRD_BEGUN,
}
_ENDS = {"Succeeded", "Failed", "Canceled"}


def is_uki(detail: Mapping[str, Value]) -> bool:
    """Whether an event is about an OSIE that is one program: kernel and initrd at once."""
    return "uki" in detail or str(detail.get("name", "")).startswith("UKI of ")


def milestone(step: Step, outcome: Outcome, detail: Mapping[str, Value]) -> Milestone | None:
    """Which milestone the event with these facts is; None: none, or one that was missed."""
    if step is Step.DHCP:
        if outcome in (Outcome.REFUSED, Outcome.FAILED):
            return None
        return _DHCP.get((str(detail.get("stage", "")), str(detail.get("dhcp", ""))))
    if step is Step.WORKFLOW:
        state = detail.get("state")
        if state in _ENDS:
            return Milestone.WORKFLOW_ENDED
        return Milestone.WORKFLOW_RUNNING if state == "Running" else None
    if step in (Step.BINARY, Step.TFTP) and is_uki(detail) and outcome in (Outcome.OK, Outcome.INFO):
        begun = detail.get("phase") == BEGUN
        return Milestone.INITRD_BEGUN if begun else Milestone.INITRD_SENT if outcome is Outcome.OK else None
    if step is Step.ACTION and detail.get("state") == "Running":
        return Milestone.ACTION_BEGUN
    if outcome is Outcome.OK or (step is Step.ACTION and outcome is Outcome.FAILED):
        return _DONE.get(step)
    if outcome is not Outcome.INFO:
        return None
    match detail.get("phase"):
        case "begun":
            return _BEGUN.get(step)
        case "starting":
            return Milestone.KERNEL_STARTED
        case "up":
            return Milestone.OSIE_UP
    return None
