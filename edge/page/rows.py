"""One machine in one row: where it is, since when, what is awaited of it, and what is wrong. Pure."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from edge.journey.expectations import Awaited, Limits
from edge.journey.history import Entry, Last, event, message_of, milestone, outcome_of, step_of
from edge.journey.recorder import Journey
from edge.journey.steps import Milestone, Outcome, Step
from edge.machines import Machine
from edge.page.words import KIND_WORDS, KINDS_AT, RANKS, STATES, Kind

_KINDS: Final = tuple(Kind)
_LOOKED_AT: Final = 100
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


class Named(NamedTuple):
    """A machine's names, which its Hardware has. `order` sorts names as people do; `name` is NAMESPACE/NAME."""

    mac: str
    order: str
    name: str
    ip: str


Packed = tuple[Any, ...]
"""A row as it is kept: a plain tuple of texts and numbers, which the garbage collector passes by."""


class Row(NamedTuple):
    """As it is shown; times are in seconds since the epoch, 0: never.

    `rank` is that of its kind, `order` and `name` as in `Named`; `until` is when what is `awaited` is due, and `usual`
    how long that took such machines at most in their last boots (seconds; 0: not known).
    """

    rank: int
    reached: int
    since: float
    heard: float
    mac: str
    order: str
    name: str
    ip: str
    state: str
    message: str = ""
    first: float = 0.0
    awaited: str = ""
    until: float = 0.0
    wrong: str = ""
    reason: str = ""
    warning: bool = False
    usual: float = 0.0

    @property
    def kind(self) -> Kind:
        """How it is doing."""
        return _KINDS[self.rank]

    @property
    def text(self) -> str:
        """What is searched, in lower case."""
        kind = KIND_WORDS[self.kind]
        words = self.name, self.mac, self.ip, self.state, self.message, self.wrong, self.reason, kind
        return "\n".join(words).lower()


def named(mac: str, machine: Machine | None) -> Named:
    """`machine` None: no Hardware has the MAC."""
    if machine is None:
        return Named(mac, "~" + mac, "", "")
    return Named(mac, natural(machine.name), f"{machine.namespace}/{machine.name}", machine.ip or machine.ipv6 or "")


def row(name: Named, last: Last | None, awaited: Awaited | None, limits: Limits, *, claimed: bool = False) -> Row:
    """`last` is its last sign of life, None: nothing was heard of it. `claimed`: several Hardware have its MAC."""
    if last is None:
        silent = Row(RANKS[Kind.SILENT], 0, 0.0, 0.0, *name, KIND_WORDS[Kind.SILENT])
        if awaited is None or awaited.finding is None or awaited.finding.outcome is Outcome.INFO:
            return silent
        found = awaited.finding  # its Workflow failed before it was switched on
        return silent._replace(rank=RANKS[Kind.TROUBLE], wrong=found.message, reason=found.rule, warning=True)
    entry = last.entry
    reached, since = _reached(last, awaited)
    awaits, until, usual = "", 0.0, 0.0
    if reached is not None and awaited is not None and awaited.at is reached and awaited.deadline:
        after = limits.after(reached, awaited.kind)
        if after is not None:
            awaits, until = awaited.next, awaited.due or since + after
            usual = limits.usual(reached, awaited.kind) or 0.0
    finding = awaited.finding if awaited is not None else None
    warning = finding is not None and finding.outcome is not Outcome.INFO
    wrong, reason = (finding.message, finding.rule) if finding is not None else ("", "")
    state, kind = _state(reached, entry)
    if not name.name and not claimed and step_of(entry) is Step.SEEN:
        state, kind = KIND_WORDS[Kind.UNREGISTERED], Kind.UNREGISTERED
    elif not name.name and not claimed and awaited is not None and last.time <= awaited.gone:
        state, kind = "no longer registered", Kind.UNREGISTERED
    elif warning:
        kind = Kind.TROUBLE
    elif finding is None and outcome_of(entry) is Outcome.FAILED:
        # Nobody has looked into it yet, but so much is known.
        kind, warning = Kind.TROUBLE, True
        wrong, reason = message_of(entry), f"{step_of(entry).value.capitalize()}Failed"
    elif reached is None and not name.name:
        kind = Kind.UNREGISTERED
    elif awaited is not None and not awaited.deadline and kind in (Kind.BOOTING, Kind.WORKING):
        kind = Kind.IDLE  # so it was when an earlier run saw it last
    return Row(
        RANKS[kind],
        int(reached or 0),
        since,
        last.time,
        *name,
        state,
        message_of(entry),
        last.first_seen,
        awaits,
        until,
        wrong,
        reason,
        warning,
        usual,
    )


def as_it_was(journey: Journey, mac: str) -> Awaited | None:
    """How far a machine had come that this run has not heard of: what an earlier one saw. Nothing is awaited of it."""
    last = journey.last_entry(mac)
    if last is None or last.time >= journey.began:
        return None
    for time, entry in reversed(journey.after(mac, 0.0, _LOOKED_AT)):
        if (reached := milestone(entry)) is not None:
            return Awaited(at=reached, since=time)
    return None


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


def _state(reached: Milestone | None, entry: Entry) -> tuple[str, Kind]:
    if reached is None:
        return "heard, not served", Kind.IDLE
    state = STATES[reached]
    if reached is Milestone.ACTION_BEGUN or reached is Milestone.WORKFLOW_ENDED:
        detail = event("", 0.0, entry).detail
        if reached is Milestone.ACTION_BEGUN:
            state = f"action {detail['action']}" if detail.get("action") else state
        elif detail.get("state"):
            state = f"Workflow {str(detail['state']).lower()}"
    return state, KINDS_AT[reached]
