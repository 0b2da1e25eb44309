"""The words for the state of a machine, and the kinds of rows."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from edge.journey.events import POWERING_ON, WAITING_FOR_DISCOVER, Milestone


class RowKind(StrEnum):
    """The kinds of rows, the most urgent first. The values are in URLs."""

    TROUBLE = "trouble"
    BOOTING = "booting"
    WORKING = "working"
    UNREGISTERED = "unregistered"
    IDLE = "idle"
    DONE = "done"
    SILENT = "silent"


KIND_WORDS: Final = {
    RowKind.TROUBLE: "in trouble",
    RowKind.BOOTING: "booting",
    RowKind.WORKING: "installing",
    RowKind.UNREGISTERED: "not registered",
    RowKind.IDLE: "waiting",
    RowKind.DONE: "done",
    RowKind.SILENT: "never seen",
}
RANKS: Final = {kind: rank for rank, kind in enumerate(RowKind)}

STATES: Final = {
    Milestone.OFFERED: "was offered an address",
    Milestone.LEASED: "has an address",
    Milestone.PROGRAM_BEGUN: "loads its boot program",
    Milestone.PROGRAM_SENT: "has its boot program",
    Milestone.IPXE_OFFERED: "iPXE was offered an address",
    Milestone.IPXE_LEASED: "iPXE has an address",
    Milestone.SCRIPT_SENT: "iPXE has its script",
    Milestone.KERNEL_BEGUN: "loads the kernel",
    Milestone.KERNEL_SENT: "has the kernel",
    Milestone.INITRD_BEGUN: "loads the initrd",
    Milestone.INITRD_SENT: "has kernel and initrd",
    Milestone.KERNEL_STARTED: "starts the kernel",
    Milestone.OS_OFFERED: "Linux was offered an address",
    Milestone.OS_LEASED: "Linux has an address",
    Milestone.OSIE_UP: "the OSIE is up",
    Milestone.AGENT_CONNECTED: "agent connected",
    Milestone.WORKFLOW_RUNNING: "Workflow runs",
    Milestone.ACTION_BEGUN: "action runs",
    Milestone.ACTION_ENDED: "action ended",
    Milestone.WORKFLOW_ENDED: "Workflow ended",
    Milestone.METADATA_READ: "installed system is up",
}
"""The state of a machine that has reached the milestone."""

AFTER: Final = {
    Milestone.OFFERED: "takes the address",
    Milestone.LEASED: "asks for its boot program",
    Milestone.PROGRAM_BEGUN: "loads the boot program",
    Milestone.PROGRAM_SENT: "starts the boot program",
    Milestone.IPXE_OFFERED: "iPXE takes the address",
    Milestone.IPXE_LEASED: "iPXE asks for its script",
    Milestone.SCRIPT_SENT: "iPXE reads the script",
    Milestone.KERNEL_BEGUN: "loads the kernel",
    Milestone.KERNEL_SENT: "asks for the initrd",
    Milestone.INITRD_BEGUN: "loads the initrd",
    Milestone.INITRD_SENT: "starts the kernel",
    Milestone.KERNEL_STARTED: "kernel boots",
    Milestone.OS_OFFERED: "Linux takes the address",
    Milestone.OS_LEASED: "system comes up",
    Milestone.OSIE_UP: "agent starts",
    Milestone.AGENT_CONNECTED: "gets its Workflow",
    Milestone.WORKFLOW_RUNNING: "begins the first action",
    Milestone.ACTION_BEGUN: "action",
    Milestone.ACTION_ENDED: "between actions",
    Milestone.WORKFLOW_ENDED: "restarts from its disk",
    Milestone.METADATA_READ: "cloud-init runs",
}
"""The step that a machine is at between this milestone and the next. Traces have these words as span names."""


POWER_STEPS: Final = {
    "PoweringOff": "is switched off",
    "InsertingMedium": "gets its boot medium",
    "OverrideSet": "gets its boot device",
    POWERING_ON: "is switched on",
    "RunningActions": "its BMC runs actions",
    "StepOverdue": "its BMC takes too long",
    WAITING_FOR_DISCOVER: "firmware starts",
}
"""The step of a machine that BMC control boots, by its reason.

The reasons are `edge.journey.events.SWITCHING_REASONS`, and that of a step that goes on for too long.
"""


class Phase(StrEnum):
    """The phase of a boot that a step belongs to: its colour, and its word in the legend."""

    POWER = "power"
    ADDRESS = "address"
    LOADING = "loading"
    STARTING = "starting"
    INSTALLING = "installing"
    SYSTEM = "system"


PHASE_WORDS: Final = {
    Phase.POWER: "power",
    Phase.ADDRESS: "address",
    Phase.LOADING: "loads files",
    Phase.STARTING: "starts programs",
    Phase.INSTALLING: "Workflow",
    Phase.SYSTEM: "installed system",
}
_LOADING = {
    Milestone.PROGRAM_BEGUN,
    Milestone.IPXE_LEASED,
    Milestone.LEASED,
    Milestone.SCRIPT_SENT,
    Milestone.KERNEL_BEGUN,
    Milestone.KERNEL_SENT,
    Milestone.INITRD_BEGUN,
}
_ADDRESS = {Milestone.OFFERED, Milestone.IPXE_OFFERED, Milestone.OS_OFFERED}


def phase(reached: Milestone) -> Phase:
    """Return the phase of the time after a milestone."""
    if reached in _ADDRESS:
        return Phase.ADDRESS
    if reached in _LOADING:
        return Phase.LOADING
    if reached >= Milestone.WORKFLOW_ENDED:
        return Phase.SYSTEM
    return Phase.INSTALLING if reached >= Milestone.AGENT_CONNECTED else Phase.STARTING


def _kind_at(reached: Milestone) -> RowKind:
    if reached >= Milestone.WORKFLOW_ENDED:
        return RowKind.DONE
    if reached >= Milestone.WORKFLOW_RUNNING:
        return RowKind.WORKING
    return RowKind.IDLE if reached is Milestone.AGENT_CONNECTED else RowKind.BOOTING


KINDS_AT: Final = {reached: _kind_at(reached) for reached in Milestone}
"""The kind of a machine without a problem, by its last milestone."""
