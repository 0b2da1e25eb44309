"""One machine in one row: its state, since when, the step that it waits for, and its problem. Pure."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from edge.journey.events import OFF, Milestone, Outcome, Step
from edge.journey.expectations import Awaited, StepLimits
from edge.journey.history import (
    Entry,
    Last,
    detail_of,
    is_from_elsewhere,
    message_of,
    milestone,
    outcome_of,
    step_of,
)
from edge.journey.recorder import Journey
from edge.machines import Machine
from edge.page.words import KIND_WORDS, KINDS_AT, RANKS, STATES, RowKind

_KINDS: Final = tuple(RowKind)
_LOOKED_AT: Final = 100
_ALL: Final = 500  # events of one machine that the journey keeps
_MOMENT: Final = 0.001
_ACTIONS: Final = frozenset({Milestone.ACTION_BEGUN, Milestone.ACTION_ENDED})
NO_LONGER_REGISTERED: Final = "no longer registered"
_GET_ON: Final = (RowKind.BOOTING, RowKind.WORKING)
MAX_NAME: Final = 64  # characters of an OSIE's name or a model in a row
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


class Traits(NamedTuple):
    """Facts of a boot beside its last event: its OSIE, its model, and its action `number` of `of` (0: none).

    They are read from the journey again only when `kind` (of `Awaited`) or `since` (of the milestone) has changed.
    """

    kind: str = ""
    since: float = 0.0
    osie: str = ""
    model: str = ""
    number: int = 0
    of: int = 0


NO_TRAITS: Final = Traits()
Packed = tuple[Any, ...]
"""A row as it is kept: a plain tuple of texts and numbers, which the garbage collector passes by."""


class Row(NamedTuple):
    """A row. Times are in seconds since the epoch, or 0. See `Named` and `Traits` for the fields of the same name.

    `power` is the state of the power as its BMC reported it last: on, off, unknown; empty without a BMC.

    `rank` is that of its kind. The step that the machine waits for (`awaited`) is due at `until`; `usual` is its
    longest duration in the last boots of such machines (seconds; 0: not known).
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
    number: int = 0
    of: int = 0
    osie: str = ""
    model: str = ""
    power: str = ""

    @property
    def kind(self) -> RowKind:
        """The kind of the row."""
        return _KINDS[self.rank]

    @property
    def text(self) -> str:
        """The text that is searched, in lower case."""
        kind = KIND_WORDS[self.kind]
        words = self.name, self.mac, self.ip, self.state, self.message, self.wrong, self.reason, kind
        return "\n".join((*words, self.osie, self.model, "power off" if self.power == OFF else "")).lower()


def named(mac: str, machine: Machine | None) -> Named:
    """Return the names of a machine; `machine` is None if no Hardware has the MAC."""
    if machine is None:
        return Named(mac, "~" + mac, "", "")
    return Named(mac, natural(machine.name), f"{machine.namespace}/{machine.name}", machine.ip or machine.ipv6 or "")


def row(
    name: Named,
    last: Last | None,
    awaited: Awaited | None,
    limits: StepLimits,
    *,
    claimed: bool = False,
    traits: Traits = NO_TRAITS,
    power: str = "",
) -> Row:
    """Return the row of a machine. `last` is its last sign of life. `claimed`: several Hardware have its MAC."""
    if last is None:
        silent = Row(RANKS[RowKind.SILENT], 0, 0.0, 0.0, *name, KIND_WORDS[RowKind.SILENT], power=power)
        if awaited is None or awaited.finding is None or awaited.finding.outcome is Outcome.INFO:
            return silent
        found = awaited.finding  # its Workflow failed before it was switched on
        return silent._replace(rank=RANKS[RowKind.TROUBLE], wrong=found.message, reason=found.rule, warning=True)
    entry, registered = last.entry, bool(name.name) or claimed
    reached, since = reached_by(last, awaited)
    awaits, until, usual = "", 0.0, 0.0
    if reached is not None and awaited is not None and awaited.at is reached and awaited.deadline:
        awaits, until, usual = awaited.next, awaited.due, limits.usual(reached, awaited.kind) or 0.0
    finding = awaited.finding if awaited is not None else None
    warning = finding is not None and finding.outcome is not Outcome.INFO
    wrong, reason = (finding.message, finding.rule) if finding is not None else ("", "")
    state, kind = _state(reached, entry, traits)
    if not registered and step_of(entry) is Step.SEEN:
        state, kind = KIND_WORDS[RowKind.UNREGISTERED], RowKind.UNREGISTERED
    elif not registered and (
        (awaited is not None and last.time <= awaited.gone) or (reached is not None and not is_from_elsewhere(entry))
    ):
        # Its Hardware was deleted after its last event: nothing is expected of it any more.
        state, kind = NO_LONGER_REGISTERED, RowKind.UNREGISTERED
        awaits, until, usual, wrong, reason, warning = "", 0.0, 0.0, "", "", False
    elif warning:
        kind = RowKind.TROUBLE
    elif finding is None and outcome_of(entry) is Outcome.FAILED:
        # There is no diagnosis yet, but so much is known.
        kind, warning = RowKind.TROUBLE, True
        wrong, reason = message_of(entry), f"{step_of(entry).value.capitalize()}Failed"
    elif reached is None and not name.name:
        kind = RowKind.UNREGISTERED
    elif awaited is not None and awaited.at is reached and not awaited.deadline and kind in _GET_ON:
        kind = RowKind.IDLE  # so it was when an earlier run saw it last
    return Row(
        RANKS[kind], int(reached or 0), since, last.time, *name, state, message_of(entry), last.first_seen,
        awaits, until, wrong, reason, warning, usual, traits.number, traits.of, traits.osie, traits.model,
        power,
    )  # fmt: skip


def due_at(last: Last, awaited: Awaited | None) -> float:
    """Return when the next step of a machine is due, in seconds since the epoch; 0: it waits for nothing."""
    if awaited is None or not awaited.deadline or awaited.at is None:
        return 0.0
    return awaited.due if reached_by(last, awaited)[0] is awaited.at else 0.0


def traits(journey: Journey, mac: str, last: Last | None, awaited: Awaited | None, known: Traits | None) -> Traits:
    """Return the traits of a machine. `known` are those of the last look (None: there was none)."""
    if last is None:
        return NO_TRAITS
    kind = awaited.kind if awaited is not None else ""
    reached, since = reached_by(last, awaited)
    if known is not None and known.since == since and known.kind == kind:
        return known
    osie, model, number, of = known[2:] if known is not None else ("", "", 0, 0)
    if known is None or known.kind != kind:
        osie, model = _osie_and_model(journey, mac)
    if known is None or known.since != since:
        number, of = _action(journey, mac, since) if reached in _ACTIONS else (0, 0)
    return Traits(kind, since, osie, model, number, of)


def _osie_and_model(journey: Journey, mac: str) -> tuple[str, str]:
    """Return the OSIE and the model that the events of a machine name last; empty: they name none."""
    found: dict[str, str] = {}
    for _, entry in reversed(journey.after(mac, 0.0, _ALL)):
        for name, value in detail_of(entry):
            if name in ("osie", "model") and value:
                found.setdefault(name, str(value)[:MAX_NAME])
        if len(found) == 2:
            break
    return found.get("osie", "").rpartition("/")[2], found.get("model", "")


def _action(journey: Journey, mac: str, since: float) -> tuple[int, int]:
    """Return which of how many actions began or ended at that time; zeros: the events do not say."""
    for _, entry in journey.after(mac, since - _MOMENT, _ALL):
        detail = dict(detail_of(entry))
        if step_of(entry) is Step.ACTION and "number" in detail:
            number, of = detail["number"], detail.get("of", 0)
            return (number, of) if isinstance(number, int) and isinstance(of, int) else (0, 0)
    return 0, 0


def as_it_was(journey: Journey, mac: str) -> Awaited | None:
    """Return the progress that an earlier run of this edge saw, if this run has no event of the machine."""
    last = journey.last_entry(mac)
    if last is None or last.time >= journey.began:
        return None
    for time, entry in reversed(journey.after(mac, 0.0, _LOOKED_AT)):
        if (reached := milestone(entry)) is not None:
            return Awaited(at=reached, since=time)
    return None


def natural(name: str) -> str:
    """Return a key that sorts names as people do: node-9 before node-10."""
    return _DIGITS.sub(lambda found: found[0][:20].zfill(20), name.lower())


def reached_by(last: Last, awaited: Awaited | None) -> tuple[Milestone | None, float]:
    """Return the last milestone and its time: those of the last sweep, unless the last event is further."""
    reached = milestone(last.entry)
    at, since = (awaited.at, awaited.since) if awaited is not None else (None, 0.0)
    if reached is not None and reached is not at and (at is None or reached > at or reached in _TAKES_TURNS):
        return reached, last.time
    return at, since or last.time


def _state(reached: Milestone | None, entry: Entry, traits: Traits) -> tuple[str, RowKind]:
    if reached is None:
        return "heard, not served", RowKind.IDLE
    state, detail = STATES[reached], dict(detail_of(entry))
    if reached is Milestone.WORKFLOW_ENDED and detail.get("state"):
        state = f"Workflow {str(detail['state']).lower()}"
    elif reached in _ACTIONS:
        state = _action_state(reached, str(detail.get("action", "")), traits)
    return state, KINDS_AT[reached]


def _action_state(reached: Milestone, name: str, traits: Traits) -> str:
    """Return the state of a machine at an action: `action 2 of 3: write-disk`, as far as that is known."""
    where = f"action {traits.number} of {traits.of}" if traits.of else "action"
    if reached is Milestone.ACTION_ENDED:
        return f"{where} ended"
    if not name:
        return where if traits.of else STATES[reached]
    return f"{where}: {name}" if traits.of else f"{where} {name}"
