"""What the agent has begun, finished and not yet reported: kept on disk, so that no action is run twice.

The agent writes here before it acts: which workflow it took, which action is about to begin, what has ended, and the
events that the server has not acknowledged. All of one step is one record of the `ledger`: either it happened, or it
did not. An agent that starts makes its `Executor` and its `Spool` of what `restore` gives, and goes on.

A record has what has changed, as JSON, under these keys; reading is putting one over the other:
    boot                 the kernel's id of this boot
    workflow             what runs, with its actions; null: nothing
    at                   [index of the action, whether it has begun, whether it is to stop]
    ended                {id of a workflow: how it ended}, added to those before
    settling             [id, outcome, whether the after-workflow command has begun], or null
    first                the number of the oldest event that waits; older ones have been acknowledged
    events               [[number, kind, fields], ...], added to those before

Three findings make what ran *lost*: the file is damaged or incomplete; it can't be written any more, so it may be old;
or the machine has booted since (its state outlived the reboot, its processes did not). The workflow counts as ended and
is not run again; the agent does not say that it holds it, so the server decides: it failed, or it has succeeded because
its last action reboots the machine.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from tink.agent.durable.ledger import Disk, Ledger
from tink.agent.executor import REMEMBERED_WORKFLOWS, AfterWorkflow, Progress
from tink.agent.model import (
    Action,
    ActionFailed,
    ActionStarted,
    ActionSucceeded,
    Event,
    Workflow,
    WorkflowOutcome,
    WorkflowRejected,
)

log = logging.getLogger(__name__)

FILE_NAME = "journal"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_EVENTS = {kind.__name__: kind for kind in (ActionStarted, ActionSucceeded, ActionFailed, WorkflowRejected)}

NumberedEvent = tuple[int, Event]


@dataclass(frozen=True, slots=True)
class Restored:
    """What an agent goes on with: its progress, and the events that wait, oldest first. `lost`: the id of the workflow
    of which nobody knows how far it came."""

    progress: Progress
    pending: tuple[NumberedEvent, ...] = ()
    lost: str = ""


class Journal:
    """The journal in `state_dir`, for one agent. `boot` tells one boot of the machine from another."""

    def __init__(self, state_dir: Path, boot: str, disk: Disk | None = None) -> None:
        self._boot = boot
        self._ledger = Ledger(state_dir / FILE_NAME, self._snapshot, disk)
        self._progress = Progress()
        self._pending: Sequence[NumberedEvent] = ()

    @property
    def durable(self) -> bool:
        """Whether everything is on disk; False when that is full."""
        return self._ledger.durable

    @property
    def stale(self) -> bool:
        """Whether an agent that reads it might run an action which this one has run already: what stands there is old,
        and can't be changed."""
        return self._ledger.stale

    def restore(self) -> Restored:
        """What an earlier agent has left; an empty beginning when there was none. Never raises."""
        content = self._ledger.read()
        whole = content.whole
        try:
            state = _replay(content.records)
            events = tuple((int(number), _EVENTS[kind](**values)) for number, kind, values in state["events"])
            restored = Restored(_progress_from(state), events)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            log.error("the journal is not one of this version: %r; what the agent did before is not known", error)
            restored, whole, state = Restored(Progress()), False, {}
        if not whole:
            restored = _without_what_ran(restored, "the journal is incomplete")
        elif state["boot"] not in ("", self._boot):
            restored = _without_what_ran(restored, "the machine has booted since")
        self._progress, self._pending = restored.progress, restored.pending
        if not self._ledger.rewrite() and self._ledger.stale:
            restored = _without_what_ran(restored, "the journal can't be written, and may be old")
        return replace(restored, lost=restored.lost or _unreported(restored))

    def write(self, progress: Progress, pending: Sequence[NumberedEvent], *, sync: bool = True) -> None:
        """Keep where execution is and which events wait. On disk when it returns, if that can be (`durable`).

        Without `sync` it may be lost when the machine loses power.
        """
        change = self._change(progress, pending)
        self._progress, self._pending = progress, pending
        if change or not self.durable:
            self._ledger.append(_dump(change), sync=sync)

    def close(self) -> None:
        """Let go of the file."""
        self._ledger.close()

    def _snapshot(self) -> bytes:
        return _dump({"boot": self._boot, **_differences(Progress(), (), self._progress, self._pending)})

    def _change(self, progress: Progress, pending: Sequence[NumberedEvent]) -> dict[str, Any]:
        return _differences(self._progress, self._pending, progress, pending)


def boot_id() -> str:
    """The kernel's id of this boot; "" where there is none, which is then never another one."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _differences(
    old: Progress, old_pending: Sequence[NumberedEvent], new: Progress, new_pending: Sequence[NumberedEvent]
) -> dict[str, Any]:
    change: dict[str, Any] = {}
    if new.workflow is not old.workflow:
        change["workflow"] = asdict(new.workflow) if new.workflow else None
    if _at(new) != _at(old):
        change["at"] = _at(new)
    if ended := {workflow_id: outcome for workflow_id, outcome in new.ended.items() if workflow_id not in old.ended}:
        change["ended"] = ended
    if new.after_workflow != old.after_workflow:
        after = new.after_workflow
        change["settling"] = _settling(after) if after else None
    newest = old_pending[-1][0] if old_pending else 0
    if added := [[number, type(event).__name__, asdict(event)] for number, event in new_pending if number > newest]:
        change["events"] = added
    if new_pending and (not old_pending or new_pending[0][0] != old_pending[0][0]):
        change["first"] = new_pending[0][0]
    elif old_pending and not new_pending:
        change["first"] = newest + 1
    return change


def _settling(after: AfterWorkflow) -> list[Any]:
    waits = [asdict(after.finally_run)] if after.finally_run is not None else []
    return [after.workflow_id, after.outcome, after.begun, *waits]


def _settling_from(raw: Sequence[Any]) -> AfterWorkflow:
    workflow_id, outcome, begun, *waits = raw
    return AfterWorkflow(workflow_id, WorkflowOutcome(outcome), begun, _action_from(waits[0]) if waits else None)


def _at(progress: Progress) -> list[Any]:
    return [progress.index, progress.begun, progress.stopping]


def _replay(records: Sequence[bytes]) -> dict[str, Any]:
    state: dict[str, Any] = {"boot": "", "workflow": None, "at": [0, False, False], "settling": None, "first": 0}
    state |= {"ended": {}, "events": []}
    for record in records:
        change = json.loads(record)
        state["ended"] |= change.pop("ended", {})
        state["events"] += change.pop("events", [])
        state |= change
    state["events"] = [raw for raw in state["events"] if raw[0] >= state["first"]]
    return state


def _progress_from(state: Mapping[str, Any]) -> Progress:
    raw = state["workflow"]
    workflow = Workflow(raw["id"], tuple(_action_from(action) for action in raw["actions"])) if raw else None
    index, begun, stopping = state["at"]
    after = state["settling"]
    if workflow is not None and not 0 <= index < len(workflow.actions):
        raise IndexError(f"action {index} of workflow {workflow.id}")
    ended = list(state["ended"].items())[-REMEMBERED_WORKFLOWS:]
    return Progress(
        workflow=workflow,
        index=index,
        begun=begun,
        stopping=stopping,
        ended={workflow_id: WorkflowOutcome(outcome) for workflow_id, outcome in ended},
        after_workflow=_settling_from(after) if after else None,
    )


def _action_from(raw: Mapping[str, Any]) -> Action:
    values: dict[str, Any] = {field.name: raw[field.name] for field in fields(Action) if field.name in raw}
    values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return Action(**values)


def _without_what_ran(restored: Restored, why: str) -> Restored:
    """`restored`, with the workflow that ran as one that ended nobody knows how, and with no command to be run."""
    progress = Progress(ended=restored.progress.ended)
    workflow = restored.progress.workflow
    if workflow is None:
        return Restored(progress, restored.pending)
    log.warning("workflow %s ran here, but %s: it is not gone on with; the server decides", workflow.id, why)
    return Restored(progress.with_ended(workflow.id, WorkflowOutcome.FAILED), restored.pending, workflow.id)


def _unreported(restored: Restored) -> str:
    """The workflow that an agent found lost, and died before the server had heard what there was to tell of it; ""."""
    reported = [event for _, event in restored.pending if not isinstance(event, WorkflowRejected)]
    for event in reversed(reported):
        if restored.progress.ended.get(event.workflow_id) is WorkflowOutcome.FAILED:
            return "" if isinstance(event, ActionFailed) else event.workflow_id
    return ""


def _dump(record: Mapping[str, Any]) -> bytes:
    # ASCII, so that no line feed can be in it and a lone surrogate can be kept
    return json.dumps(record, separators=(",", ":")).encode("ascii")
