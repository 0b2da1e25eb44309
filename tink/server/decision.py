"""Decides which command an agent gets next: a pure function of its machine's Workflows and of the commands so far.

- One Workflow at a time, in creation order (`creation_order`). A Workflow that is not prepared delays those after it
  for 10 seconds at most: of two that are created together, the second may be prepared first.
- A claimed Workflow (Scheduled) is sent again to an agent that reconnects, because the first command may be lost; an
  agent that already runs it ignores the command. A Running Workflow is not sent again: the agent continues through a
  broken stream.
- Several servers may serve one agent for a while, all but one through dead connections. Each claims for itself, so two
  Workflows may be claimed; the one that the living stream finds while its agent works is given back.
- An agent that does not report what it holds may run any Workflow that is Running or ended without the agent's report.
  Such a Workflow is stopped each time the agent connects.
- An agent that reports what it holds, and neither holds nor was sent a Running Workflow, must reconnect: either it lost
  the Workflow and this server's copy was too old to show that, or this stream is dead and the agent is connected to
  another server.
- A held Workflow (`guards.held`) is not sent and does not delay others. If a Workflow of the machine is paused, because
  it is being moved to another API, the agent gets no commands: the other API decides.
- A Workflow whose machine is to be booted first (`guards.awaits_boot`) is not sent before that. As soon as BMC control
  begins with it, no other Workflow of the machine is sent: the machine is about to be switched off. The same holds
  after the end of a custom boot until its post actions are done.
- A rejected Workflow waits for the time in its status. Workflows created after it do not overtake it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tink.api.v1alpha2 import Raw, WorkflowState
from tink.server.workflows import uid_of, version_of
from tink.workflow.guards import awaits_boot, boot_begun, has_post_actions, held, holds_up_until, paused, unconfirmed
from tink.workflow.status import (
    actions_of,
    deleted,
    dispatch_after,
    name_of,
    outdated,
    state_of,
    status_of,
)


@dataclass(frozen=True, slots=True)
class ClaimAndSend:
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
    """Command the agent to stop the Workflow with this uid, called `name` (namespace/name)."""

    uid: str
    name: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing until something changes, or `until` (Unix seconds; None: no time limit)."""

    until: float | None = None


@dataclass(frozen=True, slots=True)
class Recall:
    """End the stream, so that the agent reconnects and reports whether it runs this Workflow, which is Running."""

    workflow: Raw


Move = ClaimAndSend | Start | GiveBack | Stop | Recall | Wait


@dataclass(slots=True)
class AgentView:
    """The state of one agent as its stream sees it.

    `says`: the agent reported what it held when it connected. `started`: uids that it was sent or held when it
    connected. `given`: uids that ever were in `started`, even if their Workflow is Pending again, because the agent may
    not know that. `stopped`: uids that it was commanded to stop. `offered`: Unix time at which each uid was sent.
    `orphans` (uid to name): Workflows that were deleted while the agent ran them, because their finalizer was removed
    by hand. `unsendable` (uid to resourceVersion): Workflows that can't be expressed as a message.
    """

    says: bool = False
    started: set[str] = field(default_factory=set)
    given: set[str] = field(default_factory=set)
    stopped: set[str] = field(default_factory=set)
    offered: dict[str, float] = field(default_factory=dict)
    orphans: dict[str, str] = field(default_factory=dict)
    unsendable: dict[str, str] = field(default_factory=dict)

    def runs(self, uids: Iterable[str]) -> None:
        """Note that the agent has these Workflows, or is about to."""
        self.started.update(uids)
        self.given.update(uids)

    def sent(self, workflow: Raw, now: float) -> None:
        """Note that the agent is sent the Workflow."""
        uid = uid_of(workflow)
        self.runs([uid])
        self.stopped.discard(uid)
        self.offered[uid] = now

    def forget(self, workflow: Raw) -> None:
        """Forget a Workflow that was deleted. Raises InvalidStatusError after forgetting it."""
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
        """Return False if this version of the Workflow could not be expressed as a message."""
        return self.unsendable.get(uid_of(workflow)) != version_of(workflow)

    def set_aside(self, workflow: Raw) -> None:
        """Skip this version of the Workflow, which can't be expressed as a message."""
        self.unsendable[uid_of(workflow)] = version_of(workflow)

    def see(self, workflows: Iterable[Raw]) -> None:
        """Update the view from the states of the machine's Workflows. Raises InvalidStatusError."""
        for workflow in workflows:
            state = state_of(workflow)
            if not self.says and (state is WorkflowState.RUNNING or unconfirmed(workflow)):
                self.started.add(uid_of(workflow))
            elif state is WorkflowState.PENDING:
                # It was rejected or given back, so it must be sent again after the next claim, by any server.
                self.started.discard(uid_of(workflow))


def next_move(workflows: Iterable[Raw], view: AgentView, now: float, longest: float) -> Move:
    """Return the next move for an agent whose machine has `workflows` (oldest first), at `now` (Unix seconds).

    `longest` is the longest delay after a rejection, in seconds. Raises InvalidStatusError for an invalid status.
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
    # The agent runs a Workflow, or is about to.
    busy = any(
        state in (WorkflowState.RUNNING, WorkflowState.CANCELLING)
        or (state is WorkflowState.SCHEDULED and uid_of(workflow) in view.started)
        for workflow, state in states
    )
    for workflow, state in states:
        unsent = state is WorkflowState.SCHEDULED and uid_of(workflow) not in view.started and not held(workflow)
        if unsent and view.can_be_sent(workflow):
            return GiveBack(workflow) if busy else Start(workflow)
    if busy:
        return Wait()
    if any(boot_begun(workflow) or has_post_actions(workflow) for workflow, _ in states):
        return Wait()
    for workflow, state in states:
        if state is None and (until := holds_up_until(workflow, now)) > now:
            return Wait(until)
        if state is WorkflowState.PENDING and _ready(workflow) and view.can_be_sent(workflow):
            until = _offered_from(workflow, view, now, longest)
            return Wait(until) if until > now else ClaimAndSend(workflow)
    return Wait()


def ended(workflow: Raw) -> bool:
    """Return True if the Workflow is in a terminal state. Raises InvalidStatusError."""
    state = state_of(workflow)
    return state is not None and state.terminal


def _ready(workflow: Raw) -> bool:
    is_blocked = deleted(workflow) or outdated(workflow) or held(workflow) or awaits_boot(workflow)
    return not is_blocked and bool(actions_of(status_of(workflow)))


def _offered_from(workflow: Raw, view: AgentView, now: float, longest: float) -> float:
    """Return the Unix time from which a Pending Workflow may be offered."""
    until = dispatch_after(status_of(workflow))
    if until <= now + longest:
        return until
    # No delay is that long: a clock has jumped, or the status was edited by hand. Then the time at which this stream
    # last offered the Workflow counts; an agent that was not offered it gets it at once.
    offered = view.offered.get(uid_of(workflow))
    return offered + longest if offered is not None and offered <= now else now
