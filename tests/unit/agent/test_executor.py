"""The executor's rules, by table: commands and results in, effects out."""

import pytest

from tink.agent.executor import (
    BACKLOG_LIMIT,
    REMEMBERED_WORKFLOWS,
    EndWorkflow,
    ExecutionProgress,
    Executor,
    Publish,
    RunAction,
    StopAction,
)
from tink.agent.model import (
    ActionFailed,
    ActionStarted,
    ActionSucceeded,
    RenderedAction,
    RunResult,
    StartWorkflow,
    StopWorkflow,
    Workflow,
    WorkflowOutcome,
    WorkflowRejected,
)

FIRST = RenderedAction("a1", "first", "img")
SECOND = RenderedAction("a2", "second", "img")
W1 = Workflow("w1", (FIRST, SECOND))
W2 = Workflow("w2", (FIRST,))
OK = RunResult(0)
BAD = RunResult(3, "DiskNotFound", "no disk")

STARTED_FIRST = [Publish(ActionStarted("w1", "a1")), RunAction("w1", FIRST, first=True)]
STARTED_SECOND = [Publish(ActionStarted("w1", "a2")), RunAction("w1", SECOND, last=True)]


def reported(effects):
    """Return the id and the reason of a rejection, or of a failure that ends the workflow as canceled."""
    event = effects[0].event
    if isinstance(event, WorkflowRejected):
        assert len(effects) == 1
        return event.workflow_id, event.reason
    assert isinstance(event, ActionFailed)
    assert effects[1:] == [EndWorkflow("w1", WorkflowOutcome.CANCELED)]
    return event.action_id, event.reason


STARTED_OTHER = [Publish(ActionStarted("w2", "a1")), RunAction("w2", FIRST, first=True, last=True)]
FAILED = [Publish(ActionFailed("w1", "a1", "DiskNotFound", "no disk")), EndWorkflow("w1", WorkflowOutcome.FAILED)]

SCRIPTS = {
    "actions_run_one_after_the_other_and_the_same_start_again_does_nothing": [
        (StartWorkflow(W1), []),
        (OK, [Publish(ActionSucceeded("w1", "a1")), *STARTED_SECOND]),
        (StartWorkflow(W1), []),
        (OK, [Publish(ActionSucceeded("w1", "a2")), EndWorkflow("w1", WorkflowOutcome.SUCCEEDED)]),
    ],
    "a_failed_action_ends_the_workflow_which_is_not_run_again": [
        (BAD, FAILED),
        (StartWorkflow(W1), ("w1", "AlreadyFinished")),
    ],
    "a_second_workflow_is_rejected_while_one_runs_and_may_come_again_later": [
        (StartWorkflow(W2), ("w2", "AlreadyRunning")),
        (BAD, FAILED),
        (StartWorkflow(W2), STARTED_OTHER),
    ],
    "stop_ends_the_action_once_and_reports_canceled": [
        (StopWorkflow("w1"), [StopAction()]),
        (StopWorkflow("w1"), []),
        (StartWorkflow(W1), []),
        (RunResult(143), ("a1", "Canceled")),
        (StartWorkflow(W1), ("w1", "AlreadyFinished")),
    ],
    "a_stopped_action_that_leaves_with_0_is_still_canceled_and_nothing_follows": [
        (StopWorkflow("w1"), [StopAction()]),
        (OK, ("a1", "Canceled")),
    ],
    "stopping_what_does_not_run_is_answered_so_that_the_server_can_call_it_canceled": [
        (StopWorkflow("w2"), ("w2", "UnknownWorkflow")),
        (BAD, FAILED),
        (StopWorkflow("w1"), ("w1", "UnknownWorkflow")),
    ],
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_executor(name):
    executor = Executor()
    assert reported(executor.handle(StopWorkflow("w1"))) == ("w1", "UnknownWorkflow")
    assert reported(executor.handle(StartWorkflow(Workflow("w3", ())))) == ("w3", "InvalidWorkflow")
    assert executor.handle(StartWorkflow(W1)) == STARTED_FIRST
    for stimulus, expected in SCRIPTS[name]:
        effects = executor.action_ended(stimulus) if isinstance(stimulus, RunResult) else executor.handle(stimulus)
        assert (reported(effects) if isinstance(expected, tuple) else effects) == expected


def test_machine_that_is_about_to_reboot_takes_no_new_workflow():
    executor = Executor(after_workflow=True)
    executor.handle(StartWorkflow(W2))
    executor.action_ended(OK)
    assert reported(executor.handle(StartWorkflow(W1))) == ("w1", "AlreadyRunning")
    executor.after_workflow_ended()
    assert executor.handle(StartWorkflow(W1)) == STARTED_FIRST


def test_server_that_takes_no_events_gets_no_new_workflow_done():
    executor = Executor()
    assert reported(executor.handle(StartWorkflow(W1), backlog=BACKLOG_LIMIT)) == ("w1", "AlreadyRunning")
    assert executor.handle(StartWorkflow(W1), backlog=BACKLOG_LIMIT - 1) == STARTED_FIRST
    assert executor.handle(StartWorkflow(W1), backlog=BACKLOG_LIMIT) == [], "it runs already"


@pytest.mark.parametrize(
    ("progress", "effects"),
    [
        (ExecutionProgress(), []),
        (ExecutionProgress(W1), [RunAction("w1", FIRST, first=True)]),
        (ExecutionProgress(W1, begun=True), [RunAction("w1", FIRST, first=True, resumed=True)]),
        (ExecutionProgress(W1, index=1), [RunAction("w1", SECOND, last=True)]),
        (ExecutionProgress(W1, index=1, stopping=True), [RunAction("w1", SECOND, last=True), StopAction()]),
        (
            ExecutionProgress(W1, index=1, begun=True, stopping=True),
            [RunAction("w1", SECOND, last=True, resumed=True), StopAction()],
        ),
    ],
)
def test_executor_of_an_agent_that_was_started_again_goes_on(progress, effects):
    executor = Executor(progress)
    assert executor.resume() == effects
    if progress.workflow is not None:
        assert executor.handle(StartWorkflow(W1)) == [], "the server may send it again"
        assert reported(executor.handle(StartWorkflow(W2))) == ("w2", "AlreadyRunning")


def test_next_action_has_not_begun_when_the_one_before_has_ended():
    executor = Executor()
    executor.handle(StartWorkflow(W1))
    executor.action_begins()
    assert executor.progress.begun
    executor.action_ended(OK)
    assert (executor.progress.index, executor.progress.begun) == (1, False)


def test_ids_of_ended_workflows_do_not_fill_memory():
    executor = Executor()
    for number in range(REMEMBERED_WORKFLOWS + 1):
        executor.handle(StartWorkflow(Workflow(f"w{number}", (FIRST,))))
        executor.action_ended(OK)
    assert reported(executor.handle(StartWorkflow(Workflow("w1", (FIRST,))))) == ("w1", "AlreadyFinished")
    assert isinstance(executor.handle(StartWorkflow(Workflow("w0", (FIRST,))))[-1], RunAction)


def test_result_without_a_workflow_is_a_fault_of_the_program():
    with pytest.raises(RuntimeError):
        Executor().action_ended(OK)
