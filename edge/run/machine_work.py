"""Journey events of Workflows (`WorkflowJourney`) and of agents (`AgentJourney`).

Workflows: an informer calls `on_change(new, old)`. The differences between the statuses become events of the Workflow's
machine (`edge.machines.inventory`). An unchanged object (a relist, a resync) causes no event. The MAC of each running
Workflow is stored, so that its end is recorded even if its Hardware has been deleted. BMC control may run in another
process, so its progress comes the same way: by `status.boot` and the conditions BootPrepared and BootCleanedUp.

A clean-up by BMC control ends minutes or an hour after its Workflow, perhaps while the edge is stopped. The edge's next
run records it if the journey has events of that Workflow, and not yet this one.

Agents: the gRPC server reports their connections and the output of actions, one event for each piece of output
(`tink.agent.output` limits their rate). Reports of an agent about actions are in the Workflow's status.

An agent may call from an address that is not its machine's: behind NAT with a token or a certificate, or from anywhere
if no authentication is configured. Then the event names the address: `(so says ADDRESS)` in the message, and `from` in
the detail, which no agent can write. A Workflow's status does not name its writer, so such a report is an event beside
that of the change.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from pydantic import ValidationError

from edge.journey.events import MAX_MESSAGE, SWITCHING_REASONS, Outcome, Recorder, Step, Value
from edge.journey.history import detail_of, message_of, step_of
from edge.journey.recorder import Journey
from edge.machines import Inventory, Machine
from tink.api.v1alpha2 import ActionState, ActionStatus, ConditionStatus, Raw, Workflow, WorkflowState
from tink.limits import Newest
from tink.mac import is_mac
from tink.server import ActivityKind, AgentActivity
from tink.workflow.guards import has_ended, is_history
from tink.workflow.status import ConditionType, status_of, unprepared

log = logging.getLogger(__name__)

_OUTCOME = {
    ActivityKind.CONNECTED: Outcome.OK,
    ActivityKind.DISCONNECTED: Outcome.INFO,
    ActivityKind.REFUSED: Outcome.REFUSED,
    ActivityKind.EVENT: Outcome.INFO,
    ActivityKind.OUTPUT: Outcome.INFO,
}


@dataclass(frozen=True)
class AgentJourney:
    """Turns activities of agents into journey events of the machine that the agent claims to run on."""

    record: Recorder
    inventory: Inventory

    def observe(self, activity: AgentActivity) -> None:
        """Record an activity; called by the gRPC server."""
        outcome = _OUTCOME.get(activity.kind)
        if outcome is None or (activity.kind is ActivityKind.EVENT and not activity.elsewhere):
            return
        machine = self._machine(activity)
        if activity.kind is ActivityKind.REFUSED:
            self._refused(machine.mac if machine is not None else activity.agent_id.lower(), activity)
        elif machine is None:
            return
        elif activity.kind is ActivityKind.OUTPUT:
            self._printed(machine, activity)
        elif activity.kind is ActivityKind.EVENT:
            detail: dict[str, Value] = {"workflow": activity.workflow, "from": activity.peer}
            self.record(machine.mac, Step.AGENT, outcome, _so_says(activity), **detail)
        else:
            self.record(machine.mac, Step.AGENT, outcome, activity.message, peer=activity.peer)

    def _refused(self, mac: str, activity: AgentActivity) -> None:
        """Record a refusal for the claimed machine, with the caller's address: it may be another machine."""
        # An unregistered machine has a journey, too. The server limits the rate of refusals, so that a client can't
        # fill the journey with made-up MACs.
        if is_mac(mac):
            peer = activity.peer
            message = activity.message if peer in activity.message else f"{activity.message} (asked by {peer})"
            self.record(mac, Step.AGENT, Outcome.REFUSED, message, **{"from": peer})

    def _printed(self, machine: Machine, activity: AgentActivity) -> None:
        """Record output: the newest line is the message, and all lines are in the detail `output`."""
        detail: dict[str, Value] = {"workflow": activity.workflow, "action": activity.action}
        detail["output"] = "\n".join(activity.lines)
        if activity.dropped:
            detail["dropped_lines"] = activity.dropped
        message = activity.message
        if activity.elsewhere:
            detail["from"] = activity.peer
            message = _so_says(activity)
        self.record(machine.mac, Step.ACTION, Outcome.INFO, message, **detail)

    def _machine(self, activity: AgentActivity) -> Machine | None:
        machine = self.inventory.by_mac(activity.agent_id.lower())
        if machine is not None and activity.hardware not in ("", f"{machine.namespace}/{machine.name}"):
            machine = None  # The agent of another Hardware uses this id.
        at_peer = self.inventory.by_ip(activity.peer)
        if machine is None and "/" in activity.hardware:
            # A refused agent has named a Hardware, and calls from the address of another one.
            namespace, name = activity.hardware.split("/", 1)
            if at_peer is None or (at_peer.namespace, at_peer.name) != (namespace, name):
                machine = next(iter(self.inventory.by_name(name, namespace)), None)
        return machine or at_peer


def _so_says(activity: AgentActivity) -> str:
    """Return the message with its sender; a long message is cut, and the sender is not."""
    sender = f" (so says {activity.peer})"
    text, room = activity.message.removesuffix(sender), MAX_MESSAGE - len(sender)
    return (text if len(text) <= room else text[: room - 1] + "…") + sender


_LOOKED_AT = 100  # number of a machine's last events that are searched for the same events of an earlier run

_REMEMBERED = 10_000  # maximum number of Workflows whose machine is stored, even after the deletion of its Hardware

_PROGRESS = SWITCHING_REASONS | {"OtherWorkflow"}
"""Reasons of the condition BootPrepared that are no problem. Others name the cause of a problem."""

_STATE_OUTCOME = {WorkflowState.SUCCEEDED: Outcome.OK, WorkflowState.FAILED: Outcome.FAILED}  # others: INFO


class _Entry(NamedTuple):
    step: Step
    outcome: Outcome
    message: str
    detail: dict[str, Value]


class WorkflowJourney:
    """Turns changes of Workflow objects into journey events."""

    def __init__(self, journey: Journey, inventory: Inventory, *, others: bool = False) -> None:
        """`others`: the API has Workflows for Hardware of other edges."""
        self._others = others
        self._journey = journey
        self._inventory = inventory
        self._macs: Newest[str, str] = Newest(_REMEMBERED)
        """The MAC of the machine of each Workflow, by the Workflow's UID."""

    def on_change(self, new: Raw, old: Raw | None) -> None:
        """Record the changes from `old` to `new`; `old` is None if the Workflow is new to the informer."""
        is_same = old is not None and old["metadata"].get("uid") == new["metadata"].get("uid")
        if is_same and old is not None and is_history(old):
            return  # Its status does not change any more, and `old` may be shortened.
        workflow = _parse(new)
        if workflow is None:
            return
        # With another UID, it was deleted and recreated with the same name in between.
        before = _parse(old) if old is not None and is_same else None
        if before is None and workflow.status.state is not None and workflow.status.state.terminal:
            self._record(workflow, self._missed_clean_up(workflow))  # It ended before this process started.
            return
        entries = list(_changes(workflow, before))
        self._record(workflow, entries if old is not None else self._not_recorded_before(workflow, entries))

    def on_delete(self, old: Raw) -> None:
        """Record that a Workflow was deleted before its end."""
        workflow = None if has_ended(old) else _parse(old)
        if workflow is None:
            return
        entry = _Entry(Step.WORKFLOW, Outcome.INFO, f"workflow {_name(workflow)}: deleted", {})
        self._record(workflow, [entry])

    def _record(self, workflow: Workflow, entries: list[_Entry]) -> None:
        if not entries:
            return
        mac = self._mac(workflow)
        for step, outcome, message, detail in entries:
            if mac:
                self._journey.record(mac, step, outcome, message, workflow=_name(workflow), **detail)
            else:
                level, name = logging.DEBUG if self._others else logging.WARNING, workflow.spec.hardware_ref.name
                log.log(level, "%s (its Hardware %s is not known here)", message, name or '""')

    def _mac(self, workflow: Workflow) -> str:
        """Return the MAC whose journey a Workflow is part of, or "" if its Hardware was never known here."""
        machine, uid = self._machine(workflow), workflow.metadata.uid
        if machine is None:
            return self._macs.get(uid, "")
        self._macs[uid] = machine.mac  # also after the end: the clean-up of BMC control is still to come
        return machine.mac

    def _not_recorded_before(self, workflow: Workflow, entries: list[_Entry]) -> list[_Entry]:
        """Return the entries that an earlier run has not recorded already."""
        machine = self._machine(workflow)
        if not entries or machine is None:
            return entries
        newest: dict[Step, str] = {}
        for _, kept in self._journey.earlier(machine.mac, _LOOKED_AT):
            detail = dict(detail_of(kept))
            is_about = "state" in detail or step_of(kept) is Step.POWER
            if detail.get("workflow") == _name(workflow) and is_about:
                newest[step_of(kept)] = message_of(kept)
        return [entry for entry in entries if newest.get(entry.step) != entry.message]

    def _missed_clean_up(self, workflow: Workflow) -> list[_Entry]:
        """Return the clean-up after a Workflow if an earlier run has recorded the Workflow, but not this result."""
        entry, name = _clean_up_entry(workflow), _name(workflow)
        if entry is None:
            return []
        is_known, since = False, entry.detail.get("since")
        for machine in self._inventory.by_name(workflow.spec.hardware_ref.name, workflow.metadata.namespace):
            for _, kept in self._journey.earlier(machine.mac, _LOOKED_AT):
                detail = dict(detail_of(kept))
                if detail.get("workflow") != name:
                    continue
                is_known = True
                is_result = detail.get("clean_up") == entry.detail["clean_up"]
                if is_result and detail.get("since", since) == since:
                    return []
        return [entry] if is_known else []

    def _machine(self, workflow: Workflow) -> Machine | None:
        """Return the interface whose journey gets the events: the last heard one, so that a boot is in one journey."""
        machines = self._inventory.by_name(workflow.spec.hardware_ref.name, workflow.metadata.namespace)

        def heard_at(machine: Machine) -> float:
            # Earlier Workflow events are no sign of a card: they would keep later ones at a card that never boots.
            last = self._journey.last_sign(machine.mac)
            return last.time if last is not None else 0.0

        return max(machines, key=heard_at, default=None)


def _changes(new: Workflow, old: Workflow | None) -> Iterator[_Entry]:
    """Yield the changes in order: a Workflow starts before its first action, and ends after its last."""
    state = new.status.state
    state_changed = state is not None and (old is None or old.status.state is not state)
    if state_changed and state is not None and not state.terminal:
        yield _state_entry(new, state)
    power = _power_entry(new)
    if power is not None and (old is None or power != _power_entry(old)):
        yield power
    yield from _action_changes(new, old)
    if state_changed and state is not None and state.terminal:
        yield _state_entry(new, state)
    clean_up = _clean_up_entry(new)
    if clean_up is not None and (old is None or clean_up != _clean_up_entry(old)):
        yield clean_up


def _power_entry(workflow: Workflow) -> _Entry | None:
    """Return the progress of BMC control, or None if it has done nothing for the Workflow.

    BMC control writes the same sentence into the condition and into `status.boot`.
    """
    boot = workflow.status.boot
    prepared = next(
        (each for each in workflow.status.conditions or [] if each.type == ConditionType.BOOT_PREPARED), None
    )
    message = (prepared.message if prepared is not None else None) or (boot.message if boot is not None else None)
    if not message:
        return None
    detail: dict[str, Value] = {}
    if boot is not None and boot.way is not None:
        detail |= {"way": boot.way.value, "attempt": boot.attempt or 1}
    reason = prepared.reason if prepared is not None else None
    if reason:
        detail["reason"] = reason
    if prepared is not None and prepared.status is ConditionStatus.TRUE:
        return _Entry(Step.POWER, Outcome.OK, message, detail)
    if workflow.status.state is WorkflowState.FAILED:
        return _Entry(Step.POWER, Outcome.FAILED, f"BMC control has given up: {message}", detail)
    return _Entry(Step.POWER, Outcome.INFO if reason in _PROGRESS or not reason else Outcome.WARNING, message, detail)


def _clean_up_entry(workflow: Workflow) -> _Entry | None:
    """Return the result of the clean-up of BMC control after the end of the Workflow, or None if there is none."""
    conditions = workflow.status.conditions or []
    found = next((each for each in conditions if each.type == ConditionType.BOOT_CLEANED_UP), None)
    if found is None or not found.message:
        return None
    outcome = Outcome.OK if found.status is ConditionStatus.TRUE else Outcome.WARNING
    detail: dict[str, Value] = {"clean_up": found.reason or ""}
    if found.last_transition_time:
        detail["since"] = found.last_transition_time  # names the result: another Workflow may have had the same name
    return _Entry(Step.POWER, outcome, f"after the workflow: {found.message}", detail)


def _state_entry(workflow: Workflow, state: WorkflowState) -> _Entry:
    message = f"workflow {_name(workflow)}: {state.value}"
    if state is WorkflowState.FAILED:
        message += _why(workflow)
    detail: dict[str, Value] = {"state": state.value}
    if state.terminal:
        seconds = _seconds(workflow.status.started_at, workflow.status.last_transitioned)
        if seconds is not None:
            detail["duration_seconds"] = seconds
            message += f" after {seconds:.1f} s" if state is WorkflowState.SUCCEEDED else ""
    return _Entry(Step.WORKFLOW, _STATE_OUTCOME.get(state, Outcome.INFO), message, detail)


def _why(workflow: Workflow) -> str:
    """Return the reason of a failure from the status's condition: perhaps no action failed."""
    for condition in workflow.status.conditions or []:
        if condition.type == "Succeeded" and condition.reason is not None:
            return f": {condition.reason}" + (f": {condition.message}" if condition.message else "")
    return ""


def _action_changes(new: Workflow, old: Workflow | None) -> Iterator[_Entry]:
    actions = new.status.actions or []
    before = {action.id: action.state for action in (old.status.actions if old is not None else None) or []}
    for number, action in enumerate(actions, start=1):
        was = before.get(action.id) or ActionState.PENDING
        if action.state is None or action.state is was or action.state is ActionState.PENDING:
            continue
        if was is ActionState.PENDING and (old is not None or action.state is ActionState.RUNNING):
            of = len(actions)
            message = f"action {_action_name(action)} started ({number} of {of})"
            detail = _action_detail(action, number, ActionState.RUNNING) | {"of": of}
            if action.rendered is not None and action.rendered.timeout:
                detail["timeout_seconds"] = action.rendered.timeout
            yield _Entry(Step.ACTION, Outcome.INFO, message, detail)
        if old is not None and action.state in (ActionState.SUCCEEDED, ActionState.FAILED):
            yield _ended(action, number, len(actions))


def _ended(action: ActionStatus, number: int, of: int) -> _Entry:
    detail = _action_detail(action, number, action.state or ActionState.PENDING) | {"of": of}
    seconds = _seconds(action.started_at, action.last_transitioned)
    took = ""
    if seconds is not None:
        detail["duration_seconds"] = seconds
        took = f" in {seconds:.1f} s" if action.state is ActionState.SUCCEEDED else f" after {seconds:.1f} s"
    if action.state is ActionState.SUCCEEDED:
        message = f"action {_action_name(action)} succeeded{took} ({number} of {of})"
        return _Entry(Step.ACTION, Outcome.OK, message, detail)
    reason, text = action.failure_reason or "Unknown", action.failure_message or ""
    detail |= {"reason": reason, "failure_message": text}
    message = f"action {_action_name(action)} failed{took} ({number} of {of}): {reason}" + (f": {text}" if text else "")
    return _Entry(Step.ACTION, Outcome.FAILED, message, detail)


def _action_detail(action: ActionStatus, number: int, state: ActionState) -> dict[str, Value]:
    detail: dict[str, Value] = {"action": _action_name(action), "number": number, "state": state.value}
    if action.rendered is not None:
        detail["image"] = action.rendered.image
    return detail


def _action_name(action: ActionStatus) -> str:
    return action.rendered.name if action.rendered is not None else action.id


def _name(workflow: Workflow) -> str:
    return f"{workflow.metadata.namespace}/{workflow.metadata.name}"


def _seconds(start: str | None, end: str | None) -> float | None:
    """Return the seconds between two RFC 3339 times, or None if one is missing or invalid."""
    if start is None or end is None:
        return None
    try:
        return max(0.0, (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds())
    except (ValueError, TypeError):
        log.warning("a Workflow's status has times that are not RFC 3339: %r, %r", start, end)
        return None


def _parse(obj: Raw) -> Workflow | None:
    try:
        workflow = Workflow.model_validate(obj)
    except ValidationError as error:
        metadata = obj.get("metadata", {})
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        log.error("Workflow %s/%s is ignored: %s", metadata.get("namespace", ""), metadata.get("name", ""), problems)
        return None
    if workflow.status.state is WorkflowState.PENDING and unprepared(status_of(obj)):
        # PENDING is the default of the API. The event is that the controller has prepared the Workflow.
        return workflow.model_copy(update={"status": workflow.status.model_copy(update={"state": None})})
    return workflow
