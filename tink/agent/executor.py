"""Decides what the agent does after a command or an action's end. Pure.

Input: commands of the server and results of actions. Output: effects, which `agent` carries out in order:

    StartWorkflow, idle            -> ActionStarted of the first action, run it
    StartWorkflow, the same again  -> nothing: the server did not know that its first command had arrived
    StartWorkflow, another runs    -> WorkflowRejected AlreadyRunning
    StartWorkflow, it has ended    -> WorkflowRejected AlreadyFinished: an action is never run twice
    action succeeded               -> ActionSucceeded, then the next action or the end of the workflow
    action failed                  -> ActionFailed with the action's reason; the workflow ends
    StopWorkflow, it runs          -> stop the action; when that has ended, ActionFailed Canceled
    StopWorkflow, anything else    -> WorkflowRejected UnknownWorkflow: the server may cancel it
    the agent was restarted        -> an action that had not begun is run; one that had begun is looked up in the
                                      runtime, and its end is handled like any other

The whole state is one value, `ExecutionProgress`, which `journal` stores on disk: a new executor with it continues at
the same position. `action_begins` is called between `RunAction` and the action's first step; once that is stored, the
action is never run again.

After a workflow's end a command (such as a reboot) may run, once the server has the last event. Until
`after_workflow_ended` is called, another workflow is rejected, because the machine may go down; the server offers it
again. This command is also begun only once: a machine whose state survives its reboot would otherwise reboot endlessly.

An action that was stopped is reported as canceled whatever its exit code: a program that catches TERM and exits with 0
has not done its work. The states are those of `tink.workflow`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tink.agent.model import (
    ActionFailed,
    ActionStarted,
    ActionSucceeded,
    Command,
    Event,
    Reason,
    RenderedAction,
    RunResult,
    StartWorkflow,
    Workflow,
    WorkflowOutcome,
    WorkflowRejected,
    awaits_end,
)

REMEMBERED_WORKFLOWS = 256
"""Maximum number of ended workflows that are remembered by id."""

BACKLOG_LIMIT = 1000
"""Number of unsent events from which no workflow is started: they would fill memory and disk."""


@dataclass(frozen=True, slots=True)
class AfterWorkflow:
    """A workflow that has ended, while what follows its end has not.

    That is `finally_run`, which waited for the end, and the after-workflow command. `begun`: these may have run.
    """

    workflow_id: str
    outcome: WorkflowOutcome
    begun: bool = False
    finally_run: RenderedAction | None = None


@dataclass(frozen=True, slots=True)
class ExecutionProgress:
    """The position of the execution: action `index` of `workflow`.

    The action runs if `begun`, and is being stopped if `stopping`; otherwise it is the next to run.
    """

    workflow: Workflow | None = None
    index: int = 0
    begun: bool = False
    stopping: bool = False
    ended: Mapping[str, WorkflowOutcome] = field(default_factory=dict)
    """The outcomes of ended workflows by id, oldest first; at most REMEMBERED_WORKFLOWS."""
    after_workflow: AfterWorkflow | None = None

    @property
    def action(self) -> RenderedAction | None:
        """Return the action at `index`."""
        return self.workflow.actions[self.index] if self.workflow else None

    def with_ended(self, workflow_id: str, outcome: WorkflowOutcome) -> ExecutionProgress:
        """Return the progress after the end of this workflow."""
        ended = [*self.ended.items(), (workflow_id, outcome)][-REMEMBERED_WORKFLOWS:]
        return ExecutionProgress(ended=dict(ended), after_workflow=self.after_workflow)


@dataclass(frozen=True, slots=True)
class Publish:
    """Send an event to the server."""

    event: Event


@dataclass(frozen=True, slots=True)
class RunAction:
    """Call `action_begins`, run `action`, and call `action_ended` with the result.

    `first`: until it begins, the server might send the workflow to another machine. `last`: it may reboot the machine,
    so the server should know of its start before. `resumed`: a killed agent had begun it, so it is looked up in the
    runtime and not started. `awaits_end`: only prepare this action; it runs when the workflow has ended.
    """

    workflow_id: str
    action: RenderedAction
    first: bool = False
    last: bool = False
    resumed: bool = False
    awaits_end: RenderedAction | None = None


@dataclass(frozen=True, slots=True)
class StopAction:
    """Stop the running action; its end is still reported through `action_ended`."""


@dataclass(frozen=True, slots=True)
class EndWorkflow:
    """All events of the workflow are in the spool; the after-workflow command is next, if there is one.

    `finally_run`: the action that waited for this end (`model.awaits_end`); it runs first.
    """

    workflow_id: str
    outcome: WorkflowOutcome
    finally_run: RenderedAction | None = None


Effect = Publish | RunAction | StopAction | EndWorkflow


class Executor:
    """Decides for one workflow at a time.

    `after_workflow`: a command follows each workflow, and blocks the next until `after_workflow_ended` is called.
    """

    def __init__(self, progress: ExecutionProgress | None = None, *, after_workflow: bool = False) -> None:
        self._has_after_workflow = after_workflow
        self.progress = progress or ExecutionProgress()

    @property
    def running(self) -> str | None:
        """Return the id of the running workflow."""
        return self.progress.workflow.id if self.progress.workflow else None

    def resume(self) -> list[Effect]:
        """Continue at the position of a killed agent. Called once, first."""
        effects: list[Effect] = []
        after = self.progress.after_workflow
        if after is not None:
            if (self._has_after_workflow or after.finally_run is not None) and not after.begun:
                effects.append(EndWorkflow(after.workflow_id, after.outcome, after.finally_run))
            else:
                self.after_workflow_ended()
        if self.progress.workflow is not None:
            effects.append(self._run(self.progress.workflow))
            if self.progress.stopping:
                effects.append(StopAction())
        return effects

    def handle(self, command: Command, *, backlog: int = 0) -> list[Effect]:
        """Handle a command of the server while `backlog` events wait for delivery."""
        if isinstance(command, StartWorkflow):
            return self._start(command.workflow, backlog)
        if command.workflow_id != self.running:
            unknown = f"workflow {command.workflow_id} is not running on this machine"
            return [_reject(command.workflow_id, Reason.UNKNOWN_WORKFLOW, unknown)]
        if self.progress.stopping:
            return []
        self.progress = replace(self.progress, stopping=True)
        return [StopAction()]

    def action_begins(self) -> None:
        """Note that the action of the last `RunAction` is about to do its first step."""
        self.progress = replace(self.progress, begun=True)

    def action_ended(self, result: RunResult) -> list[Effect]:
        """Handle the end of the last `RunAction`. Raises RuntimeError if none was running."""
        workflow, action = self.progress.workflow, self.progress.action
        if workflow is None or action is None:
            raise RuntimeError("an action ended, but no workflow runs")
        if self.progress.stopping:
            message = f"stopped while action {action.name} ran, because the workflow was canceled"
            failed = ActionFailed(workflow.id, action.id, Reason.CANCELED, message)
            return [Publish(failed), self._end(workflow, WorkflowOutcome.CANCELED)]
        if not result.succeeded:
            failed = ActionFailed(workflow.id, action.id, result.reason, result.message)
            return [Publish(failed), self._end(workflow, WorkflowOutcome.FAILED)]
        succeeded = Publish(ActionSucceeded(workflow.id, action.id))
        if self.progress.index + 1 < len(workflow.actions):
            self.progress = replace(self.progress, index=self.progress.index + 1, begun=False)
            return [succeeded, *self._run_next(workflow)]
        return [succeeded, self._end(workflow, WorkflowOutcome.SUCCEEDED, awaits_end(action))]

    def after_workflow_begins(self) -> None:
        """Note that what follows the workflow's end is about to begin."""
        if self.progress.after_workflow is not None:
            self.progress = replace(self.progress, after_workflow=replace(self.progress.after_workflow, begun=True))

    def after_workflow_ended(self) -> None:
        """Note that what follows the workflow's end is over, so the next workflow may start."""
        self.progress = replace(self.progress, after_workflow=None)

    def _start(self, workflow: Workflow, backlog: int) -> list[Effect]:
        if workflow.id == self.running:
            return []
        if not workflow.actions:
            return [_reject(workflow.id, Reason.INVALID_WORKFLOW, f"workflow {workflow.id} has no actions")]
        if outcome := self.progress.ended.get(workflow.id):
            ended = f"workflow {workflow.id} has already ended on this machine: {outcome}"
            return [_reject(workflow.id, Reason.ALREADY_FINISHED, ended)]
        busy, after = "", self.progress.after_workflow
        if self.running is not None:
            busy = f"workflow {self.running} is running"
        elif after is not None:
            busy = f"workflow {after.workflow_id} has ended, but its after-workflow command has not"
        elif backlog >= BACKLOG_LIMIT:
            busy = f"{backlog} events of earlier workflows wait for the server to take them"
        if busy:
            return [_reject(workflow.id, Reason.ALREADY_RUNNING, busy)]
        self.progress = replace(self.progress, workflow=workflow, index=0, begun=False, stopping=False)
        return self._run_next(workflow)

    def _run_next(self, workflow: Workflow) -> list[Effect]:
        run = self._run(workflow)
        return [Publish(ActionStarted(workflow.id, run.action.id)), run]

    def _run(self, workflow: Workflow) -> RunAction:
        index = self.progress.index
        return RunAction(
            workflow.id,
            workflow.actions[index],
            first=index == 0,
            last=index == len(workflow.actions) - 1,
            resumed=self.progress.begun,
            awaits_end=awaits_end(workflow.actions[index]) if index == len(workflow.actions) - 1 else None,
        )

    def _end(
        self, workflow: Workflow, outcome: WorkflowOutcome, finally_run: RenderedAction | None = None
    ) -> EndWorkflow:
        self.progress = self.progress.with_ended(workflow.id, outcome)
        if self._has_after_workflow or finally_run is not None:
            after = AfterWorkflow(workflow.id, outcome, finally_run=finally_run)
            self.progress = replace(self.progress, after_workflow=after)
        return EndWorkflow(workflow.id, outcome, finally_run)


def _reject(workflow_id: str, reason: Reason, message: str) -> Publish:
    return Publish(WorkflowRejected(workflow_id, reason, message))
