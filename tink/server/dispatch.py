"""Which command an agent gets next: a pure function of its machine's Workflows and of what it was told already.

One Workflow at a time, in the order of their creation. A Workflow that has been claimed (Scheduled) is sent again to
an agent that came back on a new stream, because nobody knows whether the first command arrived; an agent that runs it
already ignores that. One that is Running is not sent again: an agent keeps executing through a broken stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tink.api.v1alpha2 import Raw, WorkflowState
from tink.server.workflows import uid_of
from tink.workflow.machine import TIMEOUT_REASONS
from tink.workflow.status import ConditionType, actions_of, condition, deleted, name_of, outdated, state_of, status_of


@dataclass(frozen=True, slots=True)
class Claim:
    """Make this Pending Workflow Scheduled, then send it."""

    workflow: Raw


@dataclass(frozen=True, slots=True)
class Start:
    """Send this Workflow, which is Scheduled."""

    workflow: Raw


@dataclass(frozen=True, slots=True)
class Stop:
    """Tell the agent to stop the Workflow with this uid, called `name` (namespace/name)."""

    uid: str
    name: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before something changes, or `until` (seconds since the epoch; None: no such time)."""

    until: float | None = None


Move = Claim | Start | Stop | Wait


@dataclass(slots=True)
class Told:
    """What one agent knows, as far as its stream tells: `started` are the uids of the Workflows that it was sent or
    that it ran when it came, `stopped` those that it was told to stop. `orphans` (uid to name) are Workflows that
    vanished while it ran them, because somebody took their finalizer away."""

    started: set[str] = field(default_factory=set)
    stopped: set[str] = field(default_factory=set)
    orphans: dict[str, str] = field(default_factory=dict)

    def forget(self, workflow: Raw) -> None:
        """The Workflow is gone from the API."""
        uid = uid_of(workflow)
        if uid in self.started and uid not in self.stopped and not ended(workflow):
            self.orphans[uid] = name_of(workflow)
        self.started.discard(uid)
        self.stopped.discard(uid)


@dataclass(slots=True)
class _Rejection:
    count: int
    until: float


class Rejections:
    """Which Workflows are not offered again yet: the delay doubles with each rejection, up to `longest` (seconds)."""

    def __init__(self, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._rejections: dict[str, _Rejection] = {}

    def rejected(self, uid: str, now: float) -> float:
        """An agent rejected this Workflow; the delay until it is offered again, in seconds."""
        count = self._rejections[uid].count + 1 if uid in self._rejections else 1
        # The exponent is capped as well: 2.0 ** 1024 would overflow.
        delay = min(self._first * 2.0 ** min(count - 1, 64), self._longest)
        self._rejections[uid] = _Rejection(count, now + delay)
        return delay

    def until(self, uid: str) -> float:
        """When the Workflow may be offered again, in seconds since the epoch; 0: it was never rejected."""
        rejection = self._rejections.get(uid)
        return rejection.until if rejection is not None else 0.0

    def forget(self, uid: str) -> None:
        """The Workflow runs, or is gone."""
        self._rejections.pop(uid, None)


def next_move(workflows: Iterable[Raw], told: Told, rejections: Rejections, now: float) -> Move:
    """What to do for an agent whose machine has `workflows` (oldest first), at `now` (seconds since the epoch).

    Raises InvalidStatusError for a status that no component of this program wrote.
    """
    for uid, name in told.orphans.items():
        return Stop(uid, name)
    states = [(workflow, state_of(workflow)) for workflow in workflows]
    for workflow, state in states:
        if uid_of(workflow) not in told.stopped and (state is WorkflowState.CANCELLING or _abandoned(workflow, told)):
            return Stop(uid_of(workflow), name_of(workflow))
    busy = False
    for workflow, state in states:
        if state is WorkflowState.SCHEDULED and uid_of(workflow) not in told.started:
            return Start(workflow)
        busy = busy or state in (WorkflowState.SCHEDULED, WorkflowState.RUNNING, WorkflowState.CANCELLING)
    if busy:
        return Wait()
    for workflow, state in states:
        ready = state is WorkflowState.PENDING and not deleted(workflow) and not outdated(workflow)
        if ready and actions_of(status_of(workflow)):
            # The oldest, or none: a rejected Workflow is not overtaken by those created after it.
            until = rejections.until(uid_of(workflow))
            return Wait(until) if until > now else Claim(workflow)
    return Wait()


def ended(workflow: Raw) -> bool:
    """Whether the Workflow is in an end state."""
    state = state_of(workflow)
    return state is not None and state.terminal


def _abandoned(workflow: Raw, told: Told) -> bool:
    """Whether the controller ended the Workflow without the agent's word, on a stream that was told to run it."""
    reason = condition(status_of(workflow), ConditionType.SUCCEEDED).get("reason")
    return uid_of(workflow) in told.started and reason in TIMEOUT_REASONS
