"""Which Hardware has a pending Workflow: one that has not ended, so that its machine should netboot.

Fed by an informer of Workflows; read by `edge.machines.policy` for every packet, so a question is a dictionary access.
Where there is none it knows which Workflow ended last: that is what an operator has to know at the machine's screen.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Final, NamedTuple

from tink.api.annotations import HOLD_ANNOTATION
from tink.api.v1alpha2 import Raw, WorkflowState, as_mapping
from tink.kube.cache import Archive
from tink.kube.objects import NamespacedName
from tink.workflow.guards import held
from tink.workflow.status import InvalidStatusError, parse_timestamp, state_of, status_of

MOST_FEW: Final = 64
"""Of more Hardware with a Workflow, nobody looks through all."""
MAX_MESSAGE = 200
"""Characters of what a Workflow says of itself."""
_STATES: Final = tuple(state for state in WorkflowState if state.terminal)
_HEAD: Final = struct.Struct(">dB")  # when, in seconds since the epoch; place of the state


class _Ended(NamedTuple):
    when: float
    workflow: str
    state: WorkflowState


class PendingWorkflows:
    """Belongs to one event loop. A Workflow that somebody holds is none that its machine should boot for."""

    def __init__(self) -> None:
        self._hardware_of: dict[NamespacedName, NamespacedName] = {}
        """Of the Workflows that have not ended."""
        self._open: dict[NamespacedName, set[str]] = {}
        """Names of the Workflows that have not ended, by Hardware."""
        self._held: dict[NamespacedName, set[str]] = {}
        """Names of the Workflows that somebody holds, by Hardware."""
        self._messages: dict[NamespacedName, str] = {}
        """What Workflows that have not ended say of themselves."""
        self._ended = Archive()
        """The Workflow that ended last, by Hardware: of most machines there is one."""

    def has_pending(self, namespace: str, name: str) -> bool:
        """Whether the Hardware has a Workflow that has not ended."""
        return (namespace, name) in self._open

    def pending(self, namespace: str, name: str) -> str:
        """Such a Workflow, as NAMESPACE/NAME; empty if there is none."""
        names = self._open.get(NamespacedName(namespace, name))
        return f"{namespace}/{min(names)}" if names else ""

    def few(self, namespace: str) -> list[tuple[str, str]]:
        """The Workflows of a namespace that have not ended, with the names of their Hardware; none of many."""
        if len(self._open) > MOST_FEW:
            return []
        return [
            (min(names), hardware.name) for hardware, names in self._open.items() if hardware.namespace == namespace
        ]

    def newest(self, namespace: str, name: str) -> str:
        """The Workflow that the Hardware is at, or is held, or else the one that ended last: its name; empty: none."""
        hardware = NamespacedName(namespace, name)
        open_names = self._open.get(hardware) or self._held.get(hardware)
        if open_names:
            return min(open_names)
        ended = self._last(hardware)
        return ended.workflow if ended is not None else ""

    def message(self, namespace: str, name: str) -> str:
        """What the status of that Workflow says of itself; empty if nothing."""
        workflow = self.pending(namespace, name)
        return self._messages.get(NamespacedName(*workflow.split("/", 1)), "") if workflow else ""

    def why_none(self, namespace: str, name: str) -> str:
        """Why the Hardware has none, in one line that says what to do."""
        hardware = NamespacedName(namespace, name)
        if hardware in self._held:
            workflow = min(self._held[hardware])
            return f"Workflow {namespace}/{workflow} is held: see its annotation {HOLD_ANNOTATION}"
        ended = self._last(hardware)
        if ended is None:
            return f"no Workflow for {namespace}/{name}: create one"
        was = "was" if ended.state is WorkflowState.CANCELED else "has"
        return f"Workflow {namespace}/{ended.workflow} {was} {ended.state}: create another"

    def why_done(self, namespace: str, name: str) -> str:
        """The same where that is as it should be: the last one has succeeded, and no other has come; else empty."""
        hardware = NamespacedName(namespace, name)
        ended = self._last(hardware) if hardware not in self._open and hardware not in self._held else None
        return self.why_none(*hardware) if ended is not None and ended.state is WorkflowState.SUCCEEDED else ""

    @property
    def names(self) -> Collection[NamespacedName]:
        """All Workflows that have not ended, those that somebody holds among them."""
        known = (self._open, self._held)
        return [key._replace(name=name) for one in known for key, names in one.items() for name in names]

    def apply(self, new: Raw, _old: Raw | None = None) -> None:
        """Take in a Workflow that was added or changed. It is pending until its state is an end state."""
        key = NamespacedName.of(new)
        hardware = _hardware(new)
        self._forget(key)
        if hardware is None:
            return
        state, last = _end_state(new), self._last(hardware)
        if state is None:
            self._messages[key] = str(as_mapping(new.get("status")).get("message") or "")[:MAX_MESSAGE]
            names = self._held if _held(new) else self._open
            names.setdefault(hardware, set()).add(key.name)
            self._hardware_of[key] = hardware
            return
        ended = _Ended(_time_of_end(new), key.name, state)
        if last is None or last.when <= ended.when:
            packed = _HEAD.pack(ended.when, _STATES.index(state)) + ended.workflow.encode()
            self._ended.put(str(hardware).encode(), packed)

    def _last(self, hardware: NamespacedName) -> _Ended | None:
        packed = self._ended.get(str(hardware).encode())
        if packed is None:
            return None
        when, state = _HEAD.unpack_from(packed)
        return _Ended(when, packed[_HEAD.size :].decode(), _STATES[state])

    def remove(self, old: Raw) -> None:
        """Forget a Workflow that is gone."""
        key, hardware = NamespacedName.of(old), _hardware(old)
        self._forget(key)
        last = self._last(hardware) if hardware is not None else None
        if last is not None and last.workflow == key.name:
            self._ended.pop(str(hardware).encode())

    def _forget(self, key: NamespacedName) -> None:
        self._messages.pop(key, None)
        hardware = self._hardware_of.pop(key, None)
        if hardware is None:
            return
        for by_hardware in (self._open, self._held):
            names = by_hardware.get(hardware, set())
            names.discard(key.name)
            if not names:
                by_hardware.pop(hardware, None)


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
