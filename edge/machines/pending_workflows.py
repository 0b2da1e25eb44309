"""Which Hardware has a pending Workflow: one that has not ended, so that its machine should netboot.

Fed by an informer of Workflows; read by `edge.machines.policy` for every packet, so a question is a dictionary access.
Where there is none it knows which Workflow ended last: that is what an operator has to know at the machine's screen.
"""

from __future__ import annotations

from typing import NamedTuple

from tink.api.v1alpha2 import HOLD_ANNOTATION, Raw, WorkflowState, as_mapping
from tink.kube.objects import NamespacedName
from tink.workflow.guards import held
from tink.workflow.status import InvalidStatusError, parse_timestamp, state_of, status_of


class _Ended(NamedTuple):
    when: float
    workflow: str
    state: WorkflowState


class PendingWorkflows:
    """Belongs to one event loop. A Workflow that somebody holds is none that its machine should boot for."""

    def __init__(self) -> None:
        self._hardware_of: dict[NamespacedName, NamespacedName] = {}
        self._open: dict[NamespacedName, set[str]] = {}
        """Names of the Workflows that have not ended, by Hardware."""
        self._held: dict[NamespacedName, set[str]] = {}
        """Names of the Workflows that somebody holds, by Hardware."""
        self._ended: dict[NamespacedName, _Ended] = {}
        """The Workflow that ended last, by Hardware."""

    def has_pending(self, namespace: str, name: str) -> bool:
        """Whether the Hardware has a Workflow that has not ended."""
        return (namespace, name) in self._open

    def why_none(self, namespace: str, name: str) -> str:
        """Why the Hardware has none, in one line that says what to do."""
        hardware = NamespacedName(namespace, name)
        if hardware in self._held:
            workflow = min(self._held[hardware])
            return f"Workflow {namespace}/{workflow} is held: see its annotation {HOLD_ANNOTATION}"
        ended = self._ended.get(hardware)
        if ended is None:
            return f"no Workflow for {namespace}/{name}: create one"
        was = "was" if ended.state is WorkflowState.CANCELED else "has"
        return f"Workflow {namespace}/{ended.workflow} {was} {ended.state}: create another"

    def apply(self, new: Raw, _old: Raw | None = None) -> None:
        """Take in a Workflow that was added or changed. It is pending until its state is an end state."""
        key = NamespacedName.of(new)
        hardware = _hardware(new)
        self._forget(key)
        if hardware is None:
            return
        self._hardware_of[key] = hardware
        state = _end_state(new)
        if state is None:
            names = self._held if _held(new) else self._open
            names.setdefault(hardware, set()).add(key.name)
            return
        ended = _Ended(_time_of_end(new), key.name, state)
        if hardware not in self._ended or self._ended[hardware].when <= ended.when:
            self._ended[hardware] = ended

    def remove(self, old: Raw) -> None:
        """Forget a Workflow that is gone."""
        self._forget(NamespacedName.of(old))

    def _forget(self, key: NamespacedName) -> None:
        hardware = self._hardware_of.pop(key, None)
        if hardware is None:
            return
        for by_hardware in (self._open, self._held):
            names = by_hardware.get(hardware, set())
            names.discard(key.name)
            if not names:
                by_hardware.pop(hardware, None)
        ended = self._ended.get(hardware)
        if ended is not None and ended.workflow == key.name:
            del self._ended[hardware]


def _hardware(workflow: Raw) -> NamespacedName | None:
    """The Hardware that a Workflow names, in its own namespace; None if it can't be read."""
    name = as_mapping(as_mapping(workflow.get("spec")).get("hardwareRef")).get("name")
    return NamespacedName.of(workflow)._replace(name=name) if isinstance(name, str) and name else None


def _held(workflow: Raw) -> bool:
    try:
        return held(workflow)
    except InvalidStatusError:
        return False


def _end_state(workflow: Raw) -> WorkflowState | None:
    """The state that a Workflow has ended in; None if it has not, or says nothing that can be read."""
    try:
        state = state_of(workflow)
    except InvalidStatusError:
        return None  # the controller logs it, and leaves the Workflow alone until somebody mends it
    return state if state is not None and state.terminal else None


def _time_of_end(workflow: Raw) -> float:
    """Seconds since the epoch: when the state changed last, or else when the Workflow was made."""
    for value in (status_of(workflow).get("lastTransitioned"), workflow["metadata"].get("creationTimestamp")):
        seconds = parse_timestamp(value)
        if seconds is not None:
            return seconds
    return 0.0
