"""Workflows in the words of older agents, and their reports as events of the state machine. Pure.

An action in today's words has more than they can express: `inexpressible` says what. What can't be said, but does not
change what an action does to a machine, is left out: for tink-worker the network namespace, which its containers get
from Docker.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from google.protobuf.empty_pb2 import Empty
from google.protobuf.unknown_fields import UnknownFieldSet

from proto import older_pb2 as pb
from tink.api.v1alpha2 import ActionState, Raw, as_mapping
from tink.printable import printable
from tink.server.workflows import pid_namespace, uid_of
from tink.workflow import events
from tink.workflow.status import (
    REASON_ACTION_TIMEOUT,
    REASON_DEFAULT_FAILURE,
    action_name,
    action_state,
    actions_of,
    status_of,
)

NO_TIMEOUT_SECONDS: Final = 10 * 365 * 24 * 3600
"""Seconds of an action that may take any time: 0 is none at all for tink-agent, and an hour for tink-worker."""

REASON_NOT_EXPRESSIBLE: Final = "NotExpressible"
"""Why an action failed that the machine's agent can't be told of."""

_PID_MODES: Final = {"": "", "private": "", "host": "host", "/proc/1/ns/pid": "host"}
"""What Docker calls the PID namespaces that an action may name."""

_TASK: Final = "workflow"
"""The name of the one task."""
_NO_CONTAINER_NAME = re.compile(r"[^A-Za-z0-9_.-]+")
_STATUS_FIELD, _VARINT = 4, 0
_SHOWN: Final = 8
_MAX_DESCRIPTION: Final = 500
"""Disks and cards, and characters, that are shown of a machine."""


class Dialect(StrEnum):
    """Which program asks, as far as what it calls says."""

    TINK_AGENT = "tink-agent"
    TINK_WORKER = "tink-worker"
    TINK_WORKER_0_8 = "tink-worker (v0.8 or older)"


@dataclass(frozen=True, slots=True)
class Report:
    """What an agent says of an action, by its id (tink-agent) or by its name; `state` as tink-agent calls it."""

    workflow_id: str
    action_id: str
    action_name: str
    state: str
    message: str

    @property
    def started(self) -> bool:
        """Whether it waits for the answer before it runs the action."""
        return self.state == "RUNNING"


# --- to agents ---


def inexpressible(workflow: Raw) -> tuple[str, str] | None:
    """The id of an action that no older agent can be told to run, and why; None if there is none such."""
    for action in actions_of(status_of(workflow)):
        rendered = _rendered(action)
        if rendered.get("cmd"):
            why = (
                f"the action {action_name(action)!r} has a cmd, and the machine's agent can't replace an image's "
                "entrypoint: use an image whose entrypoint it is, with args, or an OSIE with the agent of tinkedge"
            )
            return str(action["id"]), why
        if (namespace := pid_namespace(rendered)) not in _PID_MODES:
            why = (
                f"the action {action_name(action)!r} has the pidNamespace {namespace!r:.80}, and the machine's agent "
                'knows "host" alone: give it that, none, or an OSIE with the agent of tinkedge'
            )
            return str(action["id"]), why
    return None


def next_action(workflow: Raw) -> Mapping[str, Any] | None:
    """The first action that has not succeeded; None if all have. Raises InvalidStatusError."""
    for action in actions_of(status_of(workflow)):
        if action_state(action) is not ActionState.SUCCEEDED:
            return action
    return None


def running_action(workflow: Raw) -> str | None:
    """The id of the action that runs; None if none does. Raises InvalidStatusError."""
    for action in actions_of(status_of(workflow)):
        if action_state(action) is ActionState.RUNNING:
            return str(action.get("id"))
    return None


def action_response(workflow: Raw, action: Mapping[str, Any], agent_id: str) -> pb.ActionResponse:
    """An action for tink-agent."""
    rendered = _rendered(action)
    pid = _PID_MODES[pid_namespace(rendered)]
    return pb.ActionResponse(
        workflow_id=uid_of(workflow),
        task_id=_TASK,
        agent_id=agent_id,
        action_id=str(action["id"]),
        name=action_name(action),
        image=str(rendered.get("image") or ""),
        timeout=_timeout(rendered),
        command=_texts(rendered, "args"),
        volumes=_texts(rendered, "volumes"),
        environment=_environment(rendered),
        pid=pid,
        namespaces=pb.ActionResponse.Namespaces(network=str(rendered.get("networkNamespace") or "host"), pid=pid),
    )


def workflow_context(workflow: Raw, worker_id: str) -> pb.WorkflowContext:
    """Where a Workflow is, for tink-worker: it goes on after the last action that has succeeded.

    Raises InvalidStatusError.
    """
    actions = actions_of(status_of(workflow))
    names = _worker_names(workflow)
    done = sum(action_state(action) is ActionState.SUCCEEDED for action in actions)
    context = pb.WorkflowContext(
        workflow_id=uid_of(workflow), current_worker=worker_id, current_task=_TASK, total_number_of_actions=len(actions)
    )
    if done:
        context.current_action = names[str(actions[done - 1].get("id"))]
        context.current_action_index = done - 1
        context.current_action_state = pb.WORKER_SUCCESS
    return context


def workflow_actions(workflow: Raw, worker_id: str) -> pb.WorkflowActionList:
    """All actions of a Workflow, for tink-worker."""
    names = _worker_names(workflow)
    return pb.WorkflowActionList(
        action_list=[
            pb.WorkflowAction(
                task_name=_TASK,
                name=names[str(action.get("id"))],
                image=str(rendered.get("image") or ""),
                timeout=_timeout(rendered),
                command=_texts(rendered, "args"),
                worker_id=worker_id,
                volumes=_texts(rendered, "volumes"),
                environment=_environment(rendered),
                pid=_PID_MODES[pid_namespace(rendered)],
            )
            for action in actions_of(status_of(workflow))
            for rendered in [_rendered(action)]
        ]
    )


def _worker_names(workflow: Raw) -> dict[str, str]:
    """Names that tell the actions apart, by id: they are the names of containers."""
    names: dict[str, str] = {}
    for index, action in enumerate(actions_of(status_of(workflow))):
        name = _NO_CONTAINER_NAME.sub("-", action_name(action)).lstrip("_.-") or f"action-{index}"
        names[str(action.get("id"))] = f"{name}-{index}" if name in names.values() else name
    return names


def _rendered(action: Mapping[str, Any]) -> Mapping[str, Any]:
    return as_mapping(action.get("rendered"))


def _timeout(rendered: Mapping[str, Any]) -> int:
    value = rendered.get("timeout")
    return value if isinstance(value, int) and 0 < value < NO_TIMEOUT_SECONDS else NO_TIMEOUT_SECONDS


def _texts(rendered: Mapping[str, Any], field: str) -> list[str]:
    values = rendered.get(field)
    return [str(value) for value in values] if isinstance(values, list) else []


def _environment(rendered: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in as_mapping(rendered.get("env")).items()]


# --- from agents ---


def report_of(raw: bytes) -> Report:
    """What comes as ReportActionStatus: tink-agent's message or tink-worker's, which field 4 tells apart.

    Raises DecodeError for bytes that are neither.
    """
    if _wire_type(raw, _STATUS_FIELD) == _VARINT:
        return worker_report(pb.WorkflowActionStatus.FromString(raw))
    message = pb.ActionStatusRequest.FromString(raw)
    state = _name(pb.ActionStatusRequest.State, message.action_state)
    return Report(message.workflow_id, message.action_id, message.action_name, state, message.message.message)


def worker_report(message: pb.WorkflowActionStatus) -> Report:
    """What tink-worker reports. One that names no state says PENDING, as protobuf has it."""
    state = _name(pb.WorkerState, message.action_status).removeprefix("WORKER_")
    return Report(message.workflow_id, "", message.action_name, state, message.message)


def event_of(report: Report, workflow: Raw) -> events.AgentEvent | None:
    """The event that a report of this Workflow is; None for one that says nothing, or of no action that there is."""
    action_id = report.action_id or _id_of(report.action_name, workflow)
    if not action_id:
        return None
    match report.state:
        case "RUNNING":
            return events.ActionStarted(action_id)
        case "SUCCESS":
            return events.ActionSucceeded(action_id)
        case "FAILED":
            return events.ActionFailed(action_id, REASON_DEFAULT_FAILURE, _of_failure(report))
        case "TIMEOUT":
            return events.ActionFailed(action_id, REASON_ACTION_TIMEOUT, "the agent stopped it: its time was up")
    return None


def _of_failure(report: Report) -> str:
    """tink-agent says "action completed" whatever has happened, tink-worker nothing."""
    said = "" if report.message == "action completed" else report.message
    return said or "the agent does not say why: see the machine's own log"


def _id_of(name: str, workflow: Raw) -> str:
    return next((action_id for action_id, known in _worker_names(workflow).items() if known == name), "")


def _name(enumeration: Any, value: int) -> str:
    return enumeration.Name(value) if value in enumeration.values() else ""


def _wire_type(raw: bytes, field: int) -> int | None:
    """The wire type in which a field of a message comes first; None if it does not. Raises DecodeError."""
    fields = UnknownFieldSet(Empty.FromString(raw))
    found = (fields[index] for index in range(len(fields)))
    return next((each.wire_type for each in found if each.field_number == field), None)


# --- what an agent says of its machine ---


def describe_attributes(attributes: pb.AgentAttributes) -> str:
    """The machine as tink-agent has found it, in one line of bounded length; empty if it says nothing."""
    product = attributes.product
    parts = [
        " ".join(filter(_known, (product.vendor, product.name))),
        f"serial {product.serial_number}" if _known(product.serial_number) else "",
        f"chassis {attributes.chassis.serial}" if _known(attributes.chassis.serial) else "",
        f"{attributes.cpu.total_cores} cores" if attributes.cpu.total_cores else "",
        f"{attributes.memory.total} memory" if attributes.memory.total else "",
        *(f"{disk.name} {disk.size}".strip() for disk in attributes.block[:_SHOWN]),
        *(f"{card.name} {card.mac}" for card in attributes.network[:_SHOWN] if card.mac),
    ]
    return printable(", ".join(filter(None, parts)), " ")[:_MAX_DESCRIPTION]


def _known(value: str) -> bool:
    """Firmware that says nothing is "unknown" to the library of tink-agent."""
    return value not in ("", "unknown")
