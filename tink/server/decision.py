"""Which command an agent gets next: a pure function of its machine's Workflows and of what it was told already.

One Workflow at a time, in the order of their creation (`creation_order`). One that no controller has prepared holds up
those after it for 10 seconds at most: of two that are created at once, the second may be prepared first.

A Workflow that has been claimed (Scheduled) is sent again to an agent that came back on a new stream, because nobody
knows whether the first command arrived; an agent that runs it already ignores that. One that is Running is not sent
again: an agent keeps executing through a broken stream.

Several servers may serve one agent for a while, of which all but one talk to a connection that is dead and do not know
it yet. A claim is each Workflow's own, so they may claim two; the one that the living stream finds while its agent is
at work is given back.

An agent that does not say what it holds may run whatever is Running, or has ended without its word: that is stopped
each time it comes.

An agent that says what it holds, and holds and was sent nothing of a Workflow that is Running, is asked to come again:
either it has lost the Workflow, and what this server knew when it came was too old to see that; or the agent is with
another server, and this stream is the dead one. What it says then decides.

What somebody holds (`guards.held`) is not sent, and those after it do not wait for it. Of a machine that has a
Workflow which is paused, because it is being moved to another API or was left behind by that, the agent is left alone:
what it may run is that other API's affair.

A rejected Workflow waits for the moment in its status. It is not overtaken by those that were created after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tink.api.v1alpha2 import Raw, WorkflowState
from tink.server.workflows import uid_of, version_of
from tink.workflow.guards import held, paused, unconfirmed
from tink.workflow.status import (
    actions_of,
    deleted,
    dispatch_after,
    name_of,
    outdated,
    parse_timestamp,
    state_of,
    status_of,
)

PREPARING_SECONDS = 10.0
"""Seconds for which a Workflow without rendered actions holds up the Workflows created after it."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Make this Pending Workflow Scheduled, then send it."""

    workflow: Raw


@dataclass(frozen=True, slots=True)
class Start:
    """Send this Workflow, which is Scheduled."""

    workflow: Raw


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Make this Scheduled Workflow Pending: the agent is at work on another."""

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


@dataclass(frozen=True, slots=True)
class Recall:
    """End the stream, so that the agent comes again and says whether it runs this Workflow, which is Running."""

    workflow: Raw


Move = Claim | Start | GiveBack | Stop | Recall | Wait


@dataclass(slots=True)
class AgentView:
    """What one agent knows, as far as its stream can see. `says`: it said what it held when it came. `started` are the
    uids of the Workflows that it was sent or that it held when it came, `stopped` those that it was told to stop,
    `offered` (uid to seconds since the epoch) when it was sent them. `given` are all that ever were in `started`, also
    if they are Pending again: nobody knows whether the agent has heard of that. `orphans` (uid to name) are those that
    vanished while it ran them, because somebody took their finalizer away. `unsendable` (uid to resourceVersion) are
    those that no message can be made of."""

    says: bool = False
    started: set[str] = field(default_factory=set)
    given: set[str] = field(default_factory=set)
    stopped: set[str] = field(default_factory=set)
    offered: dict[str, float] = field(default_factory=dict)
    orphans: dict[str, str] = field(default_factory=dict)
    unsendable: dict[str, str] = field(default_factory=dict)

    def runs(self, uids: Iterable[str]) -> None:
        """The agent has these, or is about to."""
        self.started.update(uids)
        self.given.update(uids)

    def sent(self, workflow: Raw, now: float) -> None:
        """The agent is sent the Workflow."""
        uid = uid_of(workflow)
        self.runs([uid])
        self.stopped.discard(uid)
        self.offered[uid] = now

    def forget(self, workflow: Raw) -> None:
        """The Workflow is gone from the API. Raises InvalidStatusError, but forgets it."""
        uid = uid_of(workflow)
        runs = (uid in self.started or uid in self.given) and uid not in self.stopped
        self.started.discard(uid)
        self.given.discard(uid)
        self.stopped.discard(uid)
        self.offered.pop(uid, None)
        self.unsendable.pop(uid, None)
        if runs and not paused(workflow) and (not ended(workflow) or unconfirmed(workflow)):
            self.orphans[uid] = name_of(workflow)

    def can_be_sent(self, workflow: Raw) -> bool:
        """Whether nobody has tried in vain to make a message of the Workflow as it is."""
        return self.unsendable.get(uid_of(workflow)) != version_of(workflow)

    def set_aside(self, workflow: Raw) -> None:
        """No message can be made of the Workflow as it is."""
        self.unsendable[uid_of(workflow)] = version_of(workflow)

    def see(self, workflows: Iterable[Raw]) -> None:
        """What the states of its machine's Workflows say about the agent. Raises InvalidStatusError."""
        for workflow in workflows:
            state = state_of(workflow)
            if not self.says and (state is WorkflowState.RUNNING or unconfirmed(workflow)):
                self.started.add(uid_of(workflow))
            elif state is WorkflowState.PENDING:
                # Rejected, or given back: whoever claims it next, it has to be sent anew.
                self.started.discard(uid_of(workflow))


def next_move(workflows: Iterable[Raw], view: AgentView, now: float, longest: float) -> Move:
    """What to do for an agent whose machine has `workflows` (oldest first), at `now` (seconds since the epoch).

    `longest` is the longest delay after a rejection, in seconds. Raises InvalidStatusError for a status that no
    component of this program wrote.
    """
    for uid, name in view.orphans.items():
        return Stop(uid, name)
    states = [(workflow, state_of(workflow)) for workflow in workflows]
    if any(paused(workflow) and not (state is not None and state.terminal) for workflow, state in states):
        return Wait()
    for workflow, state in states:
        uid = uid_of(workflow)
        if uid not in view.stopped and (
            state is WorkflowState.CANCELLING or (uid in view.started and unconfirmed(workflow))
        ):
            return Stop(uid, name_of(workflow))
    for workflow, state in states:
        if view.says and state is WorkflowState.RUNNING and uid_of(workflow) not in view.started:
            return Recall(workflow)
    busy = any(_occupies(workflow, state, view) for workflow, state in states)
    for workflow, state in states:
        unsent = state is WorkflowState.SCHEDULED and uid_of(workflow) not in view.started and not held(workflow)
        if unsent and view.can_be_sent(workflow):
            return GiveBack(workflow) if busy else Start(workflow)
    if busy:
        return Wait()
    for workflow, state in states:
        if state is None and (until := _prepared_before(workflow, now)) > now:
            return Wait(until)
        if state is WorkflowState.PENDING and _ready(workflow) and view.can_be_sent(workflow):
            until = _offered_from(workflow, view, now, longest)
            return Wait(until) if until > now else Claim(workflow)
    return Wait()


def ended(workflow: Raw) -> bool:
    """Whether the Workflow is in an end state. Raises InvalidStatusError."""
    state = state_of(workflow)
    return state is not None and state.terminal


def _occupies(workflow: Raw, state: WorkflowState | None, view: AgentView) -> bool:
    """Whether the agent is at work on the Workflow, or about to be."""
    if state is WorkflowState.SCHEDULED:
        return uid_of(workflow) in view.started
    return state in (WorkflowState.RUNNING, WorkflowState.CANCELLING)


def _ready(workflow: Raw) -> bool:
    return (
        not deleted(workflow)
        and not outdated(workflow)
        and not held(workflow)
        and bool(actions_of(status_of(workflow)))
    )


def _prepared_before(workflow: Raw, now: float) -> float:
    """Return the time until which a new Workflow holds up the Workflows created after it; 0 if it does not."""
    created = parse_timestamp(workflow["metadata"].get("creationTimestamp"))
    # The time is that of the API's clock. One that differs by more than the limit holds up nothing.
    if created is None or deleted(workflow) or held(workflow) or abs(now - created) > PREPARING_SECONDS:
        return 0.0
    return created + PREPARING_SECONDS


def _offered_from(workflow: Raw, view: AgentView, now: float, longest: float) -> float:
    """The moment from which a Pending Workflow may be offered."""
    until = dispatch_after(status_of(workflow))
    if until <= now + longest:
        return until
    # No delay is that long: a clock has jumped, or somebody wrote it by hand. What counts then is what this stream
    # remembers, and an agent that it has not offered the Workflow to is asked at once.
    offered = view.offered.get(uid_of(workflow))
    return offered + longest if offered is not None and offered <= now else now
