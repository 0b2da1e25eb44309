"""What the agent does with a command or an action's end: the rules, and no I/O.

Commands of the server and results of actions go in; effects come out, to be carried out in order by `agent`:

    StartWorkflow, idle            -> ActionStarted of the first action, run it
    StartWorkflow, the same again  -> nothing: the server did not know that it had been heard
    StartWorkflow, another runs    -> WorkflowRejected AlreadyRunning
    StartWorkflow, it has ended    -> WorkflowRejected AlreadyFinished: an action is never run twice
    action succeeded               -> ActionSucceeded, then the next action or the end of the workflow
    action failed                  -> ActionFailed with the action's reason; the workflow ends
    StopWorkflow, it runs          -> stop the action; when that has ended, ActionFailed Canceled
    StopWorkflow, anything else    -> WorkflowRejected UnknownWorkflow: the server may call it canceled

A workflow that has ended may still have to *settle*: its last event is on its way and a command (a reboot) is to run
after that. Until `settled` is called, another workflow is rejected, because the machine may go down under it.
The rejected one is offered again by the server.

An action that was told to stop is reported as canceled whatever its exit code: a program that catches TERM and leaves
with 0 has not done its work. Sources: seeds/workflow-execution.md; states in the Workflow's own table.
"""

from __future__ import annotations

from dataclasses import dataclass

from tink.agent.model import (
    Action,
    ActionFailed,
    ActionStarted,
    ActionSucceeded,
    Command,
    Event,
    Reason,
    RunResult,
    StartWorkflow,
    StopWorkflow,
    Workflow,
    WorkflowOutcome,
    WorkflowRejected,
)

REMEMBERED_WORKFLOWS = 256
"""How many ended workflows are known by id; older ones are forgotten."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Tell the server."""

    event: Event


@dataclass(frozen=True, slots=True)
class RunAction:
    """Start `action`; call `action_ended` when it is over."""

    workflow_id: str
    action: Action


@dataclass(frozen=True, slots=True)
class StopAction:
    """Stop the action that runs; its end is still reported through `action_ended`."""


@dataclass(frozen=True, slots=True)
class EndWorkflow:
    """Everything about the workflow has been published."""

    workflow_id: str
    outcome: WorkflowOutcome


Effect = Publish | RunAction | StopAction | EndWorkflow


class Executor:
    """One workflow at a time. With `settles`, ended workflows block new ones until `settled` is called."""

    def __init__(self, *, settles: bool = False) -> None:
        self._settles = settles
        self._workflow: Workflow | None = None
        self._index = 0
        self._stopping = False
        self._settling: str | None = None
        self._ended: dict[str, WorkflowOutcome] = {}

    @property
    def running(self) -> str | None:
        """The id of the workflow that runs."""
        return self._workflow.id if self._workflow else None

    def handle(self, command: Command) -> list[Effect]:
        """Take a command of the server."""
        if isinstance(command, StartWorkflow):
            return self._start(command.workflow)
        return self._stop(command)

    def action_ended(self, result: RunResult) -> list[Effect]:
        """The action of the last `RunAction` is over. Raises RuntimeError when none was running."""
        workflow = self._workflow
        if workflow is None:
            raise RuntimeError("an action ended, but no workflow runs")
        action = workflow.actions[self._index]
        if self._stopping:
            message = f"stopped while action {action.name} ran, because the workflow was canceled"
            failed = ActionFailed(workflow.id, action.id, Reason.CANCELED, message)
            return [Publish(failed), self._end(workflow, WorkflowOutcome.CANCELED)]
        if not result.succeeded:
            failed = ActionFailed(workflow.id, action.id, result.reason, result.message)
            return [Publish(failed), self._end(workflow, WorkflowOutcome.FAILED)]
        succeeded = Publish(ActionSucceeded(workflow.id, action.id))
        self._index += 1
        if self._index < len(workflow.actions):
            return [succeeded, *self._run_next(workflow)]
        return [succeeded, self._end(workflow, WorkflowOutcome.SUCCEEDED)]

    def settled(self) -> None:
        """What was to be done after the workflow's end is done; the next one may start."""
        self._settling = None

    def _start(self, workflow: Workflow) -> list[Effect]:
        if workflow.id == self.running:
            return []
        if not workflow.actions:
            return [_reject(workflow.id, Reason.INVALID_WORKFLOW, f"workflow {workflow.id} has no actions")]
        if outcome := self._ended.get(workflow.id):
            ended = f"workflow {workflow.id} has already ended on this machine: {outcome}"
            return [_reject(workflow.id, Reason.ALREADY_FINISHED, ended)]
        if self.running is not None:
            return [_reject(workflow.id, Reason.ALREADY_RUNNING, f"workflow {self.running} is running")]
        if self._settling is not None:
            busy = f"workflow {self._settling} has ended, but its after-workflow command has not"
            return [_reject(workflow.id, Reason.ALREADY_RUNNING, busy)]
        self._workflow = workflow
        self._index = 0
        self._stopping = False
        return self._run_next(workflow)

    def _stop(self, command: StopWorkflow) -> list[Effect]:
        if command.workflow_id != self.running:
            unknown = f"workflow {command.workflow_id} is not running on this machine"
            return [_reject(command.workflow_id, Reason.UNKNOWN_WORKFLOW, unknown)]
        if self._stopping:
            return []
        self._stopping = True
        return [StopAction()]

    def _run_next(self, workflow: Workflow) -> list[Effect]:
        action = workflow.actions[self._index]
        return [Publish(ActionStarted(workflow.id, action.id)), RunAction(workflow.id, action)]

    def _end(self, workflow: Workflow, outcome: WorkflowOutcome) -> EndWorkflow:
        self._workflow = None
        self._ended[workflow.id] = outcome
        if len(self._ended) > REMEMBERED_WORKFLOWS:
            del self._ended[next(iter(self._ended))]
        if self._settles:
            self._settling = workflow.id
        return EndWorkflow(workflow.id, outcome)


def _reject(workflow_id: str, reason: Reason, message: str) -> Publish:
    return Publish(WorkflowRejected(workflow_id, reason, message))
