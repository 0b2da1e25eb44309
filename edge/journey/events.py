"""What happened to a machine, one step at a time: the typed events of a boot.

Every part of the stack that meets a machine (DHCP, TFTP, scripts, kernels, the agent, actions, metadata) records a
`JourneyEvent` through a `Recorder`. `edge.journey.recorder` keeps them; logs, metrics, `tinkedge watch`, the admin
HTTP API and the lab's live view are all made of this one stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from edge.journey.steps import COLOURS, Milestone, Outcome, Step, Value, milestone
from tink.printable import printable

__all__ = [
    "COLOURS",
    "KINDS",
    "MAX_DETAIL",
    "MAX_MESSAGE",
    "JourneyEvent",
    "Note",
    "NoteTaker",
    "Notice",
    "Outcome",
    "Recorder",
    "Step",
    "Value",
    "one_line",
]

MAX_MESSAGE: Final = 500
"""Characters of a message that are kept. Longer ones are cut: they were made of something a stranger sent."""

MAX_DETAIL: Final = 4000
"""Characters of one detail that are kept; a Hardware manifest to copy fits."""


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


@dataclass(frozen=True, slots=True)
class Note:
    """A step as it is kept: an event without its machine and its time.

    Where the same happens again and again (DHCP), a note is prepared once and handed to a `NoteTaker` each time, which
    costs next to nothing. Preparing it is what makes it fit to be kept and shown: the message becomes one printable
    line of at most MAX_MESSAGE characters, and no text of the detail is longer than MAX_DETAIL.
    """

    step: Step
    outcome: Outcome
    message: str
    detail: Mapping[str, Value] = field(default_factory=dict)
    kept_bytes: int = field(default=32, kw_only=True, compare=False, repr=False)
    """What one occurrence takes of the journey's memory; a prepared note itself is the memory of who prepared it."""
    kind: int = field(init=False, compare=False, repr=False)
    """The number of this step and outcome, see KINDS."""
    size_bytes: float = field(init=False, compare=False, repr=False)
    """Bytes that were sent to the machine, if the detail says so."""
    milestone: Milestone | None = field(init=False, compare=False, repr=False)
    """How far a boot has come by this, if it says so."""

    def __post_init__(self) -> None:
        set_field = object.__setattr__  # the dataclass is frozen
        set_field(self, "message", one_line(self.message))
        if any(isinstance(value, str) and len(value) > MAX_DETAIL for value in self.detail.values()):
            cut = {name: value[:MAX_DETAIL] if isinstance(value, str) else value for name, value in self.detail.items()}
            set_field(self, "detail", cut)
        set_field(self, "kind", _KIND[self.step, self.outcome])
        set_field(self, "milestone", milestone(self.step, self.outcome, self.detail))
        size = self.detail.get("size_bytes", 0)
        set_field(self, "size_bytes", float(size) if isinstance(size, int | float) else 0.0)


KINDS: Final = tuple((step, outcome) for step in Step for outcome in Outcome)
_KIND: Final = {kind: number for number, kind in enumerate(KINDS)}


def one_line(message: str) -> str:
    """`message` without line breaks and control characters, which would forge log lines or move a terminal's cursor."""
    if len(message) <= MAX_MESSAGE and message.isprintable():
        return message
    line = printable(message[: MAX_MESSAGE + 1], " ")
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 1] + "…"


@dataclass(frozen=True, slots=True)
class Notice:
    """What happened to the edge itself, and to no machine: for those who follow the journey live.

    `time` is in seconds since the epoch; `message` is one line for an operator; `detail` as in `JourneyEvent`.
    """

    time: float
    outcome: Outcome
    message: str
    detail: Mapping[str, Value] = field(default_factory=dict)


class Recorder(Protocol):
    """What a server calls when something happened to a machine. Never raises, never blocks."""

    def __call__(self, mac: str, step: Step, outcome: Outcome, message: str, **detail: Value) -> None: ...


NoteTaker = Callable[[str, Note], None]
"""`take(mac, note)`: records a prepared step of the machine. Never raises, never blocks."""
