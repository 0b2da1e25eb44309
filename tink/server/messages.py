"""Between the messages of `proto/workflow.proto` and the Workflows and events of the state machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proto import workflow_pb2 as pb
from tink.api.v1alpha2 import Raw
from tink.printable import printable
from tink.server.workflows import uid_of
from tink.workflow import events
from tink.workflow.status import action_name, actions_of, name_of, status_of

_MAX_STORY = 500
"""Characters of a reason or a message in the log and on the journey; the status has more of it."""


class MalformedEventError(ValueError):
    """An event that no Workflow could take; the message says what is missing."""


class UnsendableError(ValueError):
    """A Workflow whose actions no program of ours wrote; the message names the object and the field."""


def start_command(workflow: Raw) -> pb.GetWorkflowsResponse:
    """StartWorkflow with all actions of a prepared Workflow. Raises UnsendableError."""
    actions = []
    for index, action in enumerate(actions_of(status_of(workflow))):
        try:
            actions.append(_action(action))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UnsendableError(
                f"Workflow {name_of(workflow)}: status.actions[{index}] can't be sent to an agent:"
                f" {type(error).__name__}: {error}"
            ) from error
    message = pb.Workflow(workflow_id=uid_of(workflow), actions=actions)
    return pb.GetWorkflowsResponse(start_workflow=pb.GetWorkflowsResponse.StartWorkflow(workflow=message))


def stop_command(uid: str) -> pb.GetWorkflowsResponse:
    """StopWorkflow for the Workflow with that uid."""
    return pb.GetWorkflowsResponse(stop_workflow=pb.GetWorkflowsResponse.StopWorkflow(workflow_id=uid))


def event_of(message: pb.Event) -> events.AgentEvent:
    """What an agent reports. Raises MalformedEventError."""
    if not message.workflow_id:
        raise MalformedEventError("event.workflow_id is missing")
    kind = message.WhichOneof("event")
    if kind == "workflow_rejected":
        rejected = message.workflow_rejected
        return events.Rejected(rejected.failure_reason, rejected.failure_message)
    if kind is None:
        raise MalformedEventError("event is of no kind that this server knows")
    action_id: str = getattr(message, kind).action_id
    if not action_id:
        raise MalformedEventError(f"event.{kind}.action_id is missing")
    if kind == "action_started":
        return events.ActionStarted(action_id)
    if kind == "action_succeeded":
        return events.ActionSucceeded(action_id)
    failed = message.action_failed
    return events.ActionFailed(action_id, failed.failure_reason, failed.failure_message)


def _action(action: dict[str, Any]) -> pb.Workflow.Action:
    rendered: Raw = action.get("rendered") or {}
    message = pb.Workflow.Action(
        id=str(action["id"]),
        name=action_name(action),
        image=str(rendered.get("image") or ""),
        args=[str(value) for value in rendered.get("args") or ()],
        env={str(key): str(value) for key, value in (rendered.get("env") or {}).items()},
        volumes=[str(value) for value in rendered.get("volumes") or ()],
    )
    if rendered.get("cmd"):
        message.cmd = str(rendered["cmd"])
    if rendered.get("networkNamespace"):
        message.ns.net = str(rendered["networkNamespace"])
    if pid := pid_namespace(rendered):
        message.ns.pid = pid
    return message


def pid_namespace(rendered: Mapping[str, Any]) -> str:
    """In which PID namespace a rendered action runs; "" for one of its own."""
    # reboot(2) in a PID namespace of its own restarts but the container, and kexec is refused there.
    return "host" if rendered.get("reboots") else str(rendered.get("pidNamespace") or "")


def describe(workflow: Raw, event: events.AgentEvent) -> str:
    """An event in one line, for the log and the journey."""
    match event:
        case events.Rejected():
            return f"rejected the Workflow: {_line(event.reason) or 'no reason given'}: {_line(event.message)}"
        case events.ActionStarted():
            return f"action {_name(workflow, event.action_id)!r} started"
        case events.ActionSucceeded():
            return f"action {_name(workflow, event.action_id)!r} succeeded"
        case events.ActionFailed():
            return f"action {_name(workflow, event.action_id)!r} failed: {_line(event.reason)}: {_line(event.message)}"


def _line(text: str) -> str:
    """What a container wrote, one line, of bounded length, that moves no terminal's cursor."""
    return " ".join(printable(text[: 2 * _MAX_STORY], " ").split())[:_MAX_STORY]


def _name(workflow: Raw, action_id: str) -> str:
    for action in actions_of(status_of(workflow)):
        if action.get("id") == action_id:
            return action_name(action)
    return action_id
