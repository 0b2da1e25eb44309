"""The typed events of a boot: `JourneyEvent` with its step, its outcome, and its milestone.

Every part of the stack that meets a machine (DHCP, TFTP, scripts, kernels, the agent, actions, metadata) records a
`JourneyEvent` through a `Recorder`. `edge.journey.recorder` stores them. Logs, metrics, `tinkedge watch`, the admin
HTTP API and the lab's live view are all views of this stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final, Protocol

from tink.printable import printable

Value = str | int | float


class Step(StrEnum):
    """A part of the journey, in the order of a boot."""

    SEEN = "seen"  # a packet of an unregistered machine
    POWER = "power"  # BMC control: what it does for a Workflow, and changes of the power that the BMC reports
    MEDIUM = "medium"  # the image of a CD or USB stick for the machine
    DHCP = "dhcp"
    TFTP = "tftp"
    BINARY = "binary"  # a boot program over HTTP
    SCRIPT = "script"
    KERNEL = "kernel"
    INITRD = "initrd"
    BOOT = "boot"  # reports that iPXE is about to start the kernel, or that the OSIE is up
    AGENT = "agent"
    DISCOVERY = "discovery"  # the machine has introduced itself, was approved, or differs from the expected one
    WORKFLOW = "workflow"
    ACTION = "action"
    METADATA = "metadata"
    LOG = "log"  # log lines of the machine (syslog)


class Outcome(StrEnum):
    """How the step went."""

    OK = "ok"
    INFO = "info"  # neither success nor failure: a start, a probe, a progress report
    WARNING = "warning"  # an expected step is missing: see `edge.journey.expectations`
    REFUSED = "refused"  # denied by policy; the message has the reason
    FAILED = "failed"


COLOURS: Final[Mapping[Outcome, str | None]] = {
    Outcome.OK: "green",
    Outcome.INFO: None,
    Outcome.WARNING: "yellow",
    Outcome.REFUSED: "yellow",
    Outcome.FAILED: "red",
}
"""The colour of an outcome in a terminal, by click's names."""


class Milestone(IntEnum):
    """A milestone of a boot, in order. The next one is known, so its absence is a sign of a problem."""

    OFFERED = 1  # an address was offered to the firmware
    LEASED = 2
    PROGRAM_BEGUN = 3  # the transfer of a boot program by TFTP
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
"""Milestones that separate one boot from the next, or end it."""

BEGUN = "begun"
"""`phase` in the detail of a step that has begun; another event reports its end."""
PROGRESS = "progress"
"""`phase` of a progress report."""
STARTING = "starting"
"""`phase` of iPXE's last report, before it starts the kernel."""
NOT_STARTED = "failed"
"""`phase` of iPXE's report that the kernel did not start."""
UP = "up"
"""`phase` of the OSIE's first report."""
POWERING_ON = "PoweringOn"
"""`reason` of a step of `Step.POWER` between off and on: the BMC has reported that the machine is off."""
WAITING_FOR_DISCOVER: Final = "WaitingForDiscover"
"""`reason` of a step of `Step.POWER` from power-on to the first DHCP packet."""
SWITCHING_REASONS: Final = frozenset(
    {"PoweringOff", "InsertingMedium", "OverrideSet", POWERING_ON, "RunningActions", WAITING_FOR_DISCOVER}
)
"""Values of `reason` of a step of `Step.POWER` while BMC control boots the machine (`tink.bmc.boot.BootReason`)."""
REPORTED_BY_API: Final = frozenset({Step.POWER, Step.DISCOVERY})
"""Steps that other components have stored in the API: they are no sign of life of the machine."""
OFF = "off"
"""`power` of a step of `Step.POWER`: the BMC reports that the machine is off."""

_ROM = (Milestone.OFFERED, Milestone.LEASED)
_DHCP = {
    (stage, message): reached
    for stage, (offered, leased) in {
        "PXE ROM": _ROM,
        "HTTP Boot ROM": _ROM,
        "U-Boot": _ROM,
        "iPXE": (Milestone.IPXE_OFFERED, Milestone.IPXE_LEASED),
        "operating system": (Milestone.OS_OFFERED, Milestone.OS_LEASED),
        # The firmware's own network stack, beside its boot programs, has no milestones.
    }.items()
    for message, reached in {"offer": offered, "ack": leased, "advertise": offered, "reply": leased}.items()
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
_BEGUN = {Step.TFTP: Milestone.PROGRAM_BEGUN, Step.KERNEL: Milestone.KERNEL_BEGUN, Step.INITRD: Milestone.INITRD_BEGUN}
_ENDS = {"Succeeded", "Failed", "Canceled"}


def shows_power_off(step: Step, detail: Mapping[str, Value]) -> bool:
    """Return True if a machine was off when an event with these facts was recorded: its next packet begins a boot."""
    return step is Step.POWER and (detail.get("reason") == POWERING_ON or detail.get("power") == OFF)


def is_uki(detail: Mapping[str, Value]) -> bool:
    """Return True if an event is about a unified kernel image (UKI), which has kernel and initrd in one file."""
    return "uki" in detail or str(detail.get("name", "")).startswith("UKI of ")


def milestone(step: Step, outcome: Outcome, detail: Mapping[str, Value]) -> Milestone | None:
    """Return the milestone that an event with these facts reaches, or None."""
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


MAX_MESSAGE: Final = 500
"""Maximum characters of a message. Longer ones are cut, because they may contain a client's input."""

MAX_DETAIL: Final = 4000
"""Maximum characters of one detail; a Hardware manifest fits."""


@dataclass(frozen=True, slots=True)
class JourneyEvent:
    """One step of one machine.

    `time` is in seconds since the epoch; `mac` is lower case with colons; `message` is one line for an operator.
    `detail` has the facts (bytes, seconds, addresses) under snake_case names with their unit (`size_bytes`,
    `duration_seconds`).
    """

    time: float
    mac: str
    step: Step
    outcome: Outcome
    message: str
    detail: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Note:
    """The stored form of a step: an event without its machine and its time.

    For a frequent event (DHCP) a note is prepared once and passed to a `NoteTaker` each time, at almost no cost. The
    constructor makes the message one printable line of at most MAX_MESSAGE characters, and cuts texts in the detail to
    MAX_DETAIL.
    """

    step: Step
    outcome: Outcome
    message: str
    detail: Mapping[str, Value] = field(default_factory=dict)
    kept_bytes: int = field(default=32, kw_only=True, compare=False, repr=False)
    """Memory that the journey counts for one occurrence; a prepared note itself is in its maker's memory."""
    kind: int = field(init=False, compare=False, repr=False)
    """The index of the step and outcome in KINDS."""
    size_bytes: float = field(init=False, compare=False, repr=False)
    """Bytes sent to the machine, from the detail, or 0."""
    milestone: Milestone | None = field(init=False, compare=False, repr=False)
    """The milestone that the step reaches, or None."""
    is_stage: bool = field(init=False, compare=False, repr=False)
    """True for a milestone of STAGES, which separate one boot from the next."""

    def __post_init__(self) -> None:
        set_field = object.__setattr__  # the dataclass is frozen
        set_field(self, "message", one_line(self.message))
        if any(isinstance(value, str) and len(value) > MAX_DETAIL for value in self.detail.values()):
            cut = {name: value[:MAX_DETAIL] if isinstance(value, str) else value for name, value in self.detail.items()}
            set_field(self, "detail", cut)
        set_field(self, "kind", _KIND[self.step, self.outcome])
        set_field(self, "milestone", milestone(self.step, self.outcome, self.detail))
        set_field(self, "is_stage", self.milestone in STAGES)
        size = self.detail.get("size_bytes", 0)
        set_field(self, "size_bytes", float(size) if isinstance(size, int | float) else 0.0)


KINDS: Final = tuple((step, outcome) for step in Step for outcome in Outcome)
_KIND: Final = {kind: number for number, kind in enumerate(KINDS)}


def one_line(message: str) -> str:
    """Return `message` without control characters, which could forge log lines or control a terminal."""
    if len(message) <= MAX_MESSAGE and message.isprintable():
        return message
    line = printable(message[: MAX_MESSAGE + 1], " ")
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 1] + "…"


@dataclass(frozen=True, slots=True)
class Notice:
    """An event of the edge itself, which concerns no machine, for live readers of the journey.

    `time` is in seconds since the epoch; `message` is one line for an operator; `detail` as in `JourneyEvent`.
    """

    time: float
    outcome: Outcome
    message: str
    detail: Mapping[str, Value] = field(default_factory=dict)


class Recorder(Protocol):
    """A function that servers call to record an event of a machine. Never raises, never blocks."""

    def __call__(self, mac: str, step: Step, outcome: Outcome, message: str, **detail: Value) -> None: ...


NoteTaker = Callable[[str, Note], None]
"""`take(mac, note)` records a prepared step of the machine. Never raises, never blocks."""
