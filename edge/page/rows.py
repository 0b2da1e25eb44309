"""One machine in one row: where it is, since when, what is awaited of it, and what is wrong. Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from edge.journey.expectations import Awaited, Limits
from edge.journey.history import Last, event, milestone
from edge.journey.steps import Milestone, Outcome, Step
from edge.machines import Machine
from edge.page.words import KIND_WORDS, RANKS, STATES, Kind, kind_at

_DIGITS: Final = re.compile(r"\d+")
_TAKES_TURNS: Final = frozenset(
    {
        Milestone.PROGRAM_BEGUN,
        Milestone.PROGRAM_SENT,
        Milestone.KERNEL_BEGUN,
        Milestone.KERNEL_SENT,
        Milestone.INITRD_BEGUN,
        Milestone.INITRD_SENT,
        Milestone.WORKFLOW_RUNNING,
        Milestone.ACTION_BEGUN,
        Milestone.ACTION_ENDED,
    }
)


class Row(NamedTuple):
    """As it is shown; times are in seconds since the epoch, 0: never.

    `order` sorts names as people do; `name` is NAMESPACE/NAME; `until` is when what is `awaited` is due.
    """

    mac: str
    order: str
    name: str
    ip: str
    kind: Kind
    state: str
    message: str
    since: float
    heard: float
    first: float
    awaited: str
    until: float
    wrong: str
    reason: str
    warning: bool
    reached: int

    @property
    def rank(self) -> int:
        """Who needs somebody comes first."""
        return RANKS[self.kind]

    @property
    def text(self) -> str:
        """What is searched, in lower case."""
        words = self.name, self.mac, self.ip, self.state, self.message, self.wrong, self.reason, KIND_WORDS[self.kind]
        return "\n".join(words).lower()


def row(
    mac: str, machine: Machine | None, last: Last | None, awaited: Awaited | None, limits: Limits, *, claimed: bool
) -> Row:
    """`machine` None: no Hardware has the MAC, or (`claimed`) several have. `last` None: nothing was heard of it."""
    name = f"{machine.namespace}/{machine.name}" if machine is not None else ""
    ip = (machine.ip or "") if machine is not None else ""
    order = natural(machine.name if machine is not None else "~" + mac)
    if last is None:
        state = KIND_WORDS[Kind.SILENT]
        return Row(mac, order, name, ip, Kind.SILENT, state, "", 0.0, 0.0, 0.0, "", 0.0, "", "", False, 0)
    shown = event(mac, last.time, last.entry)
    reached, since = _reached(last, awaited)
    awaits, until = "", 0.0
    if reached is not None and awaited is not None and awaited.at is reached:
        after = limits.after(reached, awaited.kind)
        if after is not None:
            awaits, until = awaited.next, since + after
    finding = awaited.finding if awaited is not None else None
    warning = finding is not None and finding.outcome is not Outcome.INFO
    state, kind = _state(reached, str(shown.detail.get("action", "")), str(shown.detail.get("state", "")))
    if machine is None and not claimed and shown.step is Step.SEEN:
        state, kind = KIND_WORDS[Kind.UNREGISTERED], Kind.UNREGISTERED
    elif warning:
        kind = Kind.TROUBLE
    elif reached is None and machine is None:
        kind = Kind.UNREGISTERED
    return Row(
        mac,
        order,
        name,
        ip,
        kind,
        state,
        shown.message,
        since,
        last.time,
        last.first_seen,
        awaits,
        until,
        finding.message if finding is not None else "",
        finding.rule if finding is not None else "",
        warning,
        int(reached or 0),
    )


def natural(name: str) -> str:
    """`name` so that node-9 comes before node-10."""
    return _DIGITS.sub(lambda found: found[0][:20].zfill(20), name.lower())


def _reached(last: Last, awaited: Awaited | None) -> tuple[Milestone | None, float]:
    """How far it is, and since when: as it was swept last, unless its last event is known to be further."""
    reached = milestone(last.entry)
    at, since = (awaited.at, awaited.since) if awaited is not None else (None, 0.0)
    if reached is not None and reached is not at and (at is None or reached > at or reached in _TAKES_TURNS):
        return reached, last.time
    return at, since or last.time


def _state(reached: Milestone | None, action: str, said: str) -> tuple[str, Kind]:
    if reached is None:
        return "heard, not served", Kind.IDLE
    state = STATES[reached]
    if reached is Milestone.ACTION_BEGUN and action:
        state = f"action {action}"
    elif reached is Milestone.WORKFLOW_ENDED and said:
        state = f"Workflow {said.lower()}"
    return state, kind_at(reached)
