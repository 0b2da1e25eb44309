"""Converts Workflows to the messages of older agents, and their reports to events of the state machine. Pure.

Current actions can contain more than the older protocols: `inexpressible` returns what. A field that does not change
what an action does to a machine is dropped instead: the network namespace for tink-worker, whose containers get it from
Docker.
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
from tink.api.inventory import mac_address
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
"""The timeout of an action without one: 0 means no time at all to tink-agent, and an hour to tink-worker."""

REASON_NOT_EXPRESSIBLE: Final = "NotExpressible"
"""The reason of an action that failed because the machine's older agent can't run it."""

_PID_MODES: Final = {"": "", "private": "", "host": "host", "/proc/1/ns/pid": "host"}
"""Docker's names of the PID namespaces that an action may use."""

_TASK: Final = "workflow"
"""The name of the only task."""
_NO_CONTAINER_NAME = re.compile(r"[^A-Za-z0-9_.-]+")
_STATUS_FIELD, _VARINT = 4, 0
_SHOWN: Final = 8
"""Maximum number of disks, and of network cards, in the description of a machine."""
_MAX_DESCRIPTION: Final = 500
"""Maximum length of the description of a machine, in characters."""


class Dialect(StrEnum):
    """The older program, as far as its calls reveal it."""

    TINK_AGENT = "tink-agent"
    TINK_WORKER = "tink-worker"
    TINK_WORKER_0_8 = "tink-worker (v0.8 or older)"


@dataclass(frozen=True, slots=True)
class ActionReport:
    """An agent's report of an action, by its id (tink-agent) or by its name; `state` as tink-agent calls it."""

    workflow_id: str
    action_id: str
    action_name: str
    state: str
    message: str


# --- to agents ---


def inexpressible(workflow: Raw) -> tuple[str, str] | None:
    """Return the id of an action that no older agent can run, and why; None if they can run all."""
    for action in actions_of(status_of(workflow)):
        rendered = _rendered(action)
        why = ""
        if rendered.get("cmd"):
            why = (
                "has a cmd, and the machine's agent can't replace an image's entrypoint: use an image whose entrypoint "
                "it is, with args, or an OSIE with the agent of tinkedge"
            )
        elif (namespace := pid_namespace(rendered)) not in _PID_MODES:
            why = (
                f'has the pidNamespace {namespace!r:.80}, and the machine\'s agent knows "host" alone: give it that, '
                "none, or an OSIE with the agent of tinkedge"
            )
        if why:
            return str(action["id"]), f"the action {action_name(action)!r} {why}"
    return None


def next_action(workflow: Raw) -> Mapping[str, Any] | None:
    """Return the first action that has not succeeded, or None. Raises InvalidStatusError."""
    actions = actions_of(status_of(workflow))
    return next((action for action in actions if action_state(action) is not ActionState.SUCCEEDED), None)


def running_action(workflow: Raw) -> str | None:
    """Return the id of the Running action, or None. Raises InvalidStatusError."""
    actions = actions_of(status_of(workflow))
    return next((str(each.get("id")) for each in actions if action_state(each) is ActionState.RUNNING), None)


def action_response(workflow: Raw, action: Mapping[str, Any], agent_id: str) -> pb.ActionResponse:
    """Return an action as tink-agent's message."""
    network, fields = str(_rendered(action).get("networkNamespace") or "host"), _fields(action)
    return pb.ActionResponse(
        workflow_id=uid_of(workflow),
        task_id=_TASK,
        agent_id=agent_id,
        action_id=str(action["id"]),
        name=action_name(action),
        namespaces=pb.ActionResponse.Namespaces(network=network, pid=fields["pid"]),
        **fields,
    )


def workflow_context(workflow: Raw, worker_id: str) -> pb.WorkflowContext:
    """Return the position of a Workflow for tink-worker, which continues after the last action that has succeeded.

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
    """Return all actions of a Workflow as tink-worker's message."""
    names = _worker_names(workflow)
    actions = [
        pb.WorkflowAction(task_name=_TASK, name=names[str(action.get("id"))], worker_id=worker_id, **_fields(action))
        for action in actions_of(status_of(workflow))
    ]
    return pb.WorkflowActionList(action_list=actions)


def _fields(action: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an action that are alike in both protocols."""
    rendered = _rendered(action)
    args, volumes, timeout = rendered.get("args"), rendered.get("volumes"), rendered.get("timeout")
    has_timeout = isinstance(timeout, int) and 0 < timeout < NO_TIMEOUT_SECONDS
    return {
        "image": str(rendered.get("image") or ""),
        "timeout": timeout if has_timeout else NO_TIMEOUT_SECONDS,
        "command": [str(value) for value in args] if isinstance(args, list) else [],
        "volumes": [str(value) for value in volumes] if isinstance(volumes, list) else [],
        "environment": [f"{name}={value}" for name, value in as_mapping(rendered.get("env")).items()],
        "pid": _PID_MODES[pid_namespace(rendered)],
    }


def _worker_names(workflow: Raw) -> dict[str, str]:
    """Return unique names of the actions by id: tink-worker uses them as container names."""
    names: dict[str, str] = {}
    for index, action in enumerate(actions_of(status_of(workflow))):
        name = _NO_CONTAINER_NAME.sub("-", action_name(action)).lstrip("_.-") or f"action-{index}"
        names[str(action.get("id"))] = f"{name}-{index}" if name in names.values() else name
    return names


def _rendered(action: Mapping[str, Any]) -> Mapping[str, Any]:
    return as_mapping(action.get("rendered"))


# --- from agents ---


def report_of(raw: bytes) -> ActionReport:
    """Parse a ReportActionStatus request of tink-agent or tink-worker. Raises DecodeError for other bytes."""
    # The two messages differ in the wire type of field 4.
    fields = UnknownFieldSet(Empty.FromString(raw))
    found = (fields[index] for index in range(len(fields)))
    if next((each.wire_type for each in found if each.field_number == _STATUS_FIELD), None) == _VARINT:
        return worker_report(pb.WorkflowActionStatus.FromString(raw))
    message = pb.ActionStatusRequest.FromString(raw)
    state = _name(pb.ActionStatusRequest.State, message.action_state)
    return ActionReport(message.workflow_id, message.action_id, message.action_name, state, message.message.message)


def worker_report(message: pb.WorkflowActionStatus) -> ActionReport:
    """Convert tink-worker's report. A message without a state means PENDING, the default of protobuf."""
    state = _name(pb.WorkerState, message.action_status).removeprefix("WORKER_")
    return ActionReport(message.workflow_id, "", message.action_name, state, message.message)


def event_of(report: ActionReport, workflow: Raw) -> events.AgentEvent | None:
    """Return the event of a report, or None for an unknown action or a state without meaning."""
    ids = {name: action_id for action_id, name in _worker_names(workflow).items()}
    action_id = report.action_id or ids.get(report.action_name, "")
    if not action_id:
        return None
    match report.state:
        case "RUNNING":
            return events.ActionStarted(action_id)
        case "SUCCESS":
            return events.ActionSucceeded(action_id)
        case "FAILED":
            # tink-agent always sends "action completed", tink-worker sends nothing.
            message = "" if report.message == "action completed" else report.message
            message = message or "the agent does not say why: see the machine's own log"
            return events.ActionFailed(action_id, REASON_DEFAULT_FAILURE, message)
        case "TIMEOUT":
            return events.ActionFailed(action_id, REASON_ACTION_TIMEOUT, "the agent stopped it: its time was up")
    return None


def _name(enumeration: Any, value: int) -> str:
    return enumeration.Name(value) if value in enumeration.values() else ""


# --- the machine's attributes ---


def describe_attributes(attributes: pb.AgentAttributes) -> str:
    """Describe a machine by tink-agent's attributes in one line of bounded length; empty if there are none."""
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


_UNITS: Final = {"B": 0, "KB": 10, "MB": 20, "GB": 30, "TB": 40, "PB": 50, "EB": 60}
"""Binary units of tink-agent's sizes, as powers of two. It rounds a size up to the next whole number of its unit."""
_SIZE = re.compile(r"([0-9]{1,6})(B|[KMGTPE]B)")
_SPEED = re.compile(r"([0-9]{1,7})\s?([MG])b(?:it)?/s")


def in_band(attributes: pb.AgentAttributes) -> Raw:
    """Return tink-agent's attributes in the shape of status.inventory.inBand, unchecked.

    A size is up to one unit too large: tink-agent reports a drive of 447.1 GiB as 448GB.
    """
    product, bios, board, chassis = attributes.product, attributes.bios, attributes.baseboard, attributes.chassis
    cpu = attributes.cpu
    return {
        "cpu": {"totalCores": cpu.total_cores or None, "totalThreads": cpu.total_threads or None},
        "memory": {"totalBytes": _bytes(attributes.memory.total)},
        "blockDevices": [
            {
                "name": f"/dev/{disk.name}" if disk.name else None,
                "controllerType": disk.controller_type,
                "driveType": disk.drive_type,
                "sizeBytes": _bytes(disk.size),
                "physicalBlockSizeBytes": _bytes(disk.physical_block_size),
                "vendor": disk.vendor,
                "model": disk.model,
                "wwn": disk.wwn.lower(),
                "serialNumber": disk.serial_number,
            }
            for disk in attributes.block
        ],
        "networkInterfaces": [
            {"ports": [{"name": card.name, "mac": card.mac, "speedMbps": _mbps(card.speed)}]}
            for card in attributes.network
            if mac_address(card.mac)
        ],
        "product": {"vendor": product.vendor, "model": product.name, "serialNumber": product.serial_number},
        "bios": {"vendor": bios.vendor, "firmwareVersion": bios.version},
        "baseboard": {"vendor": board.vendor, "model": board.product, "serialNumber": board.serial_number},
        "chassis": {"vendor": chassis.vendor, "serialNumber": chassis.serial},
    }


def _bytes(text: str) -> int | None:
    match = _SIZE.fullmatch(text)
    return int(match[1]) << _UNITS[match[2]] if match is not None else None


def _mbps(text: str) -> int | None:
    match = _SPEED.fullmatch(text)
    return int(match[1]) * (1000 if match[2] == "G" else 1) if match is not None else None


def _known(value: str) -> bool:
    """Return False for empty values. tink-agent's library returns "unknown" where the firmware contains nothing."""
    return value not in ("", "unknown")
