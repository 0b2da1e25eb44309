"""The executor's rules, by table: commands and results in, effects out."""

import pytest

from tink.agent.executor import (
    BACKLOG_LIMIT,
    REMEMBERED_WORKFLOWS,
    EndWorkflow,
    Executor,
    Progress,
    Publish,
    RunAction,
    StopAction,
)
from tink.agent.model import (
    Action,
    ActionFailed,
    ActionStarted,
    ActionSucceeded,
    RunResult,
    StartWorkflow,
    StopWorkflow,
    Workflow,
    WorkflowOutcome,
    WorkflowRejected,
)

FIRST = Action("a1", "first", "img")
SECOND = Action("a2", "second", "img")
W1 = Workflow("w1", (FIRST, SECOND))
W2 = Workflow("w2", (FIRST,))
OK = RunResult(0)
BAD = RunResult(3, "DiskNotFound", "no disk")

STARTED_FIRST = [Publish(ActionStarted("w1", "a1")), RunAction("w1", FIRST, first=True)]
STARTED_SECOND = [Publish(ActionStarted("w1", "a2")), RunAction("w1", SECOND, last=True)]


def rejection(effects):
    [effect] = effects
    assert isinstance(effect, Publish)
    assert isinstance(effect.event, WorkflowRejected)
    return effect.event.workflow_id, effect.event.reason


def canceled(effects):
    [publish, end] = effects
    assert isinstance(publish.event, ActionFailed)
    assert end == EndWorkflow("w1", WorkflowOutcome.CANCELED)
    return publish.event.action_id, publish.event.reason


SCRIPTS = {
    "actions_run_one_after_the_other": [
        (StartWorkflow(W1), STARTED_FIRST),
        (OK, [Publish(ActionSucceeded("w1", "a1")), *STARTED_SECOND]),
        (OK, [Publish(ActionSucceeded("w1", "a2")), EndWorkflow("w1", WorkflowOutcome.SUCCEEDED)]),
    ],
    "a_failed_action_ends_the_workflow_with_its_reason": [
        (StartWorkflow(W1), STARTED_FIRST),
        (
            BAD,
            [
                Publish(ActionFailed("w1", "a1", "DiskNotFound", "no disk")),
                EndWorkflow("w1", WorkflowOutcome.FAILED),
            ],
        ),
    ],
    "the_same_start_again_is_not_run_twice": [
        (StartWorkflow(W1), STARTED_FIRST),
        (StartWorkflow(W1), []),
        (OK, [Publish(ActionSucceeded("w1", "a1")), *STARTED_SECOND]),
        (StartWorkflow(W1), []),
    ],
    "a_second_workflow_is_rejected_while_one_runs": [
        (StartWorkflow(W1), STARTED_FIRST),
        (StartWorkflow(W2), ("w2", "AlreadyRunning")),
    ],
    "an_ended_workflow_is_not_run_again": [
        (StartWorkflow(W1), STARTED_FIRST),
        (BAD, None),
        (StartWorkflow(W1), ("w1", "AlreadyFinished")),
    ],
    "another_workflow_follows_an_ended_one": [
        (StartWorkflow(W1), STARTED_FIRST),
        (BAD, None),
        (StartWorkflow(W2), [Publish(ActionStarted("w2", "a1")), RunAction("w2", FIRST, first=True, last=True)]),
    ],
    "a_rejected_workflow_may_come_again_later": [
        (StartWorkflow(W1), STARTED_FIRST),
        (StartWorkflow(W2), ("w2", "AlreadyRunning")),
        (BAD, None),
        (StartWorkflow(W2), [Publish(ActionStarted("w2", "a1")), RunAction("w2", FIRST, first=True, last=True)]),
    ],
    "stop_ends_the_action_and_reports_canceled": [
        (StartWorkflow(W1), STARTED_FIRST),
        (StopWorkflow("w1"), [StopAction()]),
        (RunResult(143), ["a1", "Canceled"]),
        (StartWorkflow(W1), ("w1", "AlreadyFinished")),
    ],
    "a_stopped_action_that_leaves_with_0_is_still_canceled_and_nothing_follows": [
        (StartWorkflow(W1), STARTED_FIRST),
        (StopWorkflow("w1"), [StopAction()]),
        (OK, ["a1", "Canceled"]),
    ],
    "a_repeated_stop_is_one_stop": [
        (StartWorkflow(W1), STARTED_FIRST),
        (StopWorkflow("w1"), [StopAction()]),
        (StopWorkflow("w1"), []),
        (StartWorkflow(W1), []),
    ],
    "stopping_what_does_not_run_is_answered_so_that_the_server_can_call_it_canceled": [
        (StopWorkflow("w1"), ("w1", "UnknownWorkflow")),
        (StartWorkflow(W1), STARTED_FIRST),
        (StopWorkflow("w2"), ("w2", "UnknownWorkflow")),
        (BAD, None),
        (StopWorkflow("w1"), ("w1", "UnknownWorkflow")),
    ],
    "a_workflow_without_actions_is_rejected": [
        (StartWorkflow(Workflow("w3", ())), ("w3", "InvalidWorkflow")),
    ],
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_executor(name):
    executor = Executor()
    for stimulus, expected in SCRIPTS[name]:
        effects = executor.action_ended(stimulus) if isinstance(stimulus, RunResult) else executor.handle(stimulus)
        if isinstance(expected, tuple):
            assert rejection(effects) == expected
        elif isinstance(expected, list) and expected[:1] == ["a1"]:
            assert list(canceled(effects)) == expected
        elif expected is not None:
            assert effects == expected


def test_machine_that_is_about_to_reboot_takes_no_new_workflow():
    executor = Executor(after_workflow=True)
    executor.handle(StartWorkflow(W2))
    executor.action_ended(OK)
    assert rejection(executor.handle(StartWorkflow(W1))) == ("w1", "AlreadyRunning")
    executor.after_workflow_ended()
    assert executor.handle(StartWorkflow(W1)) == STARTED_FIRST


def test_server_that_takes_no_events_gets_no_new_workflow_done():
    executor = Executor()
    assert rejection(executor.handle(StartWorkflow(W1), backlog=BACKLOG_LIMIT)) == ("w1", "AlreadyRunning")
    assert executor.handle(StartWorkflow(W1), backlog=BACKLOG_LIMIT - 1) == STARTED_FIRST
    assert executor.handle(StartWorkflow(W1), backlog=BACKLOG_LIMIT) == [], "it runs already"


@pytest.mark.parametrize(
    ("progress", "effects"),
    [
        (Progress(), []),
        (Progress(W1), [RunAction("w1", FIRST, first=True)]),
        (Progress(W1, begun=True), [RunAction("w1", FIRST, first=True, resumed=True)]),
        (Progress(W1, index=1), [RunAction("w1", SECOND, last=True)]),
        (Progress(W1, index=1, stopping=True), [RunAction("w1", SECOND, last=True), StopAction()]),
        (
            Progress(W1, index=1, begun=True, stopping=True),
            [RunAction("w1", SECOND, last=True, resumed=True), StopAction()],
        ),
    ],
)
def test_executor_of_an_agent_that_was_started_again_goes_on(progress, effects):
    executor = Executor(progress)
    assert executor.resume() == effects
    if progress.workflow is not None:
        assert executor.handle(StartWorkflow(W1)) == [], "the server may send it again"
        assert rejection(executor.handle(StartWorkflow(W2))) == ("w2", "AlreadyRunning")


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
    assert rejection(executor.handle(StartWorkflow(Workflow("w1", (FIRST,))))) == ("w1", "AlreadyFinished")
    assert isinstance(executor.handle(StartWorkflow(Workflow("w0", (FIRST,))))[-1], RunAction)


def test_result_without_a_workflow_is_a_fault_of_the_program():
    with pytest.raises(RuntimeError):
        Executor().action_ended(OK)
