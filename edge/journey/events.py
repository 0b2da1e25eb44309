"""What happened to a machine, one step at a time: the typed events of a boot.

Every part of the stack that meets a machine (DHCP, TFTP, scripts, kernels, the agent, actions, metadata) records a
`JourneyEvent` through a `Recorder`. `edge.journey.recorder` keeps them; logs, metrics, `tinkedge watch`, the admin
HTTP API and the lab's live view are all made of this one stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

Value = str | int | float


class Step(StrEnum):
    """Which part of the journey, in the order of a boot."""

    SEEN = "seen"  # an unregistered machine was heard
    DHCP = "dhcp"
    TFTP = "tftp"
    BINARY = "binary"  # a boot program over HTTP
    SCRIPT = "script"
    KERNEL = "kernel"
    INITRD = "initrd"
    AGENT = "agent"
    WORKFLOW = "workflow"
    ACTION = "action"
    METADATA = "metadata"


class Outcome(StrEnum):
    """How the step went."""

    OK = "ok"
    INFO = "info"  # neither success nor failure: a probe, a progress report
    REFUSED = "refused"  # policy said no; the message says why
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class JourneyEvent:
    """One step of one machine.

    `time` is in seconds since the epoch; `mac` is lower case with colons; `message` is one line for an operator;
    `detail` has the facts behind it (bytes, seconds, addresses) under snake_case names with their unit
    (`size_bytes`, `duration_seconds`).
    """

    time: float
    mac: str
    step: Step
    outcome: Outcome
    message: str
    detail: Mapping[str, Value] = field(default_factory=dict)


class Note(NamedTuple):
    """What is the same each time: a step prepared beforehand, so that noting it costs next to nothing (DHCP)."""

    step: Step
    outcome: Outcome
    message: str
    detail: Mapping[str, Value] = {}


class Recorder(Protocol):
    """What a server calls when something happened to a machine. Never raises, never blocks."""

    def __call__(self, mac: str, step: Step, outcome: Outcome, message: str, **detail: Value) -> None: ...


NoteTaker = Callable[[str, Note], None]
"""`take(mac, note)`: records a prepared step of the machine. Never raises, never blocks."""
