"""Between the agent's words and the messages on the wire."""

import pytest

from proto import workflow_pb2 as pb
from tink.agent.connection.wire import UnusableCommandError, command_from_wire, event_to_wire
from tink.agent.model import (
    Action,
    ActionFailed,
    ActionStarted,
    ActionSucceeded,
    StartWorkflow,
    StopWorkflow,
    Workflow,
    WorkflowRejected,
)


def test_every_field_of_an_action_reaches_the_runtime():
    message = pb.GetWorkflowsResponse()
    message.start_workflow.workflow.workflow_id = "w"
    message.start_workflow.workflow.actions.add(
        id="a",
        name="n",
        image="i",
        cmd="c",
        args=["x", "y"],
        env={"K": "V"},
        volumes=["/a:/b"],
        ns=pb.Workflow.Action.Namespace(pid="host", net="none"),
    )
    action = Action("a", "n", "i", "c", ("x", "y"), {"K": "V"}, ("/a:/b",), "host", "none")
    assert command_from_wire(message) == StartWorkflow(Workflow("w", (action,)))


def test_action_without_a_name_is_called_by_its_id():
    message = pb.GetWorkflowsResponse()
    message.start_workflow.workflow.workflow_id = "w"
    message.start_workflow.workflow.actions.add(id="a", image="i")
    command = command_from_wire(message)
    assert isinstance(command, StartWorkflow)
    assert command.workflow.actions == (Action("a", "a", "i"),)


def test_stop_names_its_workflow():
    message = pb.GetWorkflowsResponse(stop_workflow=pb.GetWorkflowsResponse.StopWorkflow(workflow_id="w"))
    assert command_from_wire(message) == StopWorkflow("w")


@pytest.mark.parametrize(
    "message",
    [
        pb.GetWorkflowsResponse(),
        pb.GetWorkflowsResponse(start_workflow=pb.GetWorkflowsResponse.StartWorkflow()),
        pb.GetWorkflowsResponse(stop_workflow=pb.GetWorkflowsResponse.StopWorkflow()),
        None,  # what grpc hands out for bytes that it cannot parse
    ],
)
def test_command_that_names_nothing_is_refused(message):
    with pytest.raises(UnusableCommandError):
        command_from_wire(message)


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (ActionStarted("w", "a"), 'workflow_id: "w" action_started { action_id: "a" }'),
        (ActionSucceeded("w", "a"), 'workflow_id: "w" action_succeeded { action_id: "a" }'),
        (
            ActionFailed("w", "a", "R", "m"),
            'workflow_id: "w" action_failed { action_id: "a" failure_reason: "R" failure_message: "m" }',
        ),
        (
            WorkflowRejected("w", "R", "m"),
            'workflow_id: "w" workflow_rejected { failure_reason: "R" failure_message: "m" }',
        ),
    ],
)
def test_event_says_the_same_on_the_wire(event, text):
    assert " ".join(str(event_to_wire(event).event).split()) == text
