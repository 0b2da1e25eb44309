"""An index of the Hardware with a pending Workflow, that is, one that has not ended: its machine should netboot.

An informer of Workflows feeds it. `edge.machines.policy` reads it for every packet, so a look-up is a dictionary
access. For a Hardware without a pending Workflow it stores the last one that ended, which the machine's screen shows.
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

MAX_FEW: Final = 64
"""Maximum number of Hardware with pending Workflows that `few` lists."""
MAX_MESSAGE = 200
"""Maximum characters of a Workflow's message."""
_STATES: Final = tuple(state for state in WorkflowState if state.terminal)
_HEAD: Final = struct.Struct(">dB")  # time in seconds since the epoch; index of the state


class _Ended(NamedTuple):
    when: float
    workflow: str
    state: WorkflowState


class PendingWorkflows:
    """The pending Workflows. A held Workflow (annotation) is not pending. Belongs to one event loop."""

    def __init__(self) -> None:
        self._hardware_of: dict[NamespacedName, NamespacedName] = {}
        """The Hardware of each Workflow that has not ended."""
        self._open: dict[NamespacedName, set[str]] = {}
        """Names of the Workflows that have not ended, by Hardware."""
        self._held: dict[NamespacedName, set[str]] = {}
        """Names of the held Workflows, by Hardware."""
        self._messages: dict[NamespacedName, str] = {}
        """The status messages of Workflows that have not ended."""
        self._ended = Archive()
        """The Workflow that ended last, by Hardware. Most machines have one."""

    def has_pending(self, namespace: str, name: str) -> bool:
        """Return True if the Hardware has a pending Workflow."""
        return (namespace, name) in self._open

    def pending(self, namespace: str, name: str) -> str:
        """Return a pending Workflow as NAMESPACE/NAME, or an empty string."""
        names = self._open.get(NamespacedName(namespace, name))
        return f"{namespace}/{min(names)}" if names else ""

    def few(self, namespace: str) -> list[tuple[str, str]]:
        """Return the pending Workflows of a namespace, each with its Hardware's name; none if there are too many."""
        if len(self._open) > MAX_FEW:
            return []
        return [
            (min(names), hardware.name) for hardware, names in self._open.items() if hardware.namespace == namespace
        ]

    def newest(self, namespace: str, name: str) -> str:
        """Return the name of the pending or held Workflow, or else of the last one that ended; empty without any."""
        hardware = NamespacedName(namespace, name)
        open_names = self._open.get(hardware) or self._held.get(hardware)
        if open_names:
            return min(open_names)
        ended = self._last(hardware)
        return ended.workflow if ended is not None else ""

    def message(self, namespace: str, name: str) -> str:
        """Return the status message of the pending Workflow, or an empty string."""
        workflow = self.pending(namespace, name)
        return self._messages.get(NamespacedName(*workflow.split("/", 1)), "") if workflow else ""

    def why_none(self, namespace: str, name: str) -> str:
        """Return why the Hardware has no pending Workflow, in one line that says what to do."""
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
        """Return the same text if the last Workflow succeeded and there is no other one, or else an empty string."""
        hardware = NamespacedName(namespace, name)
        ended = self._last(hardware) if hardware not in self._open and hardware not in self._held else None
        return self.why_none(*hardware) if ended is not None and ended.state is WorkflowState.SUCCEEDED else ""

    @property
    def names(self) -> Collection[NamespacedName]:
        """All Workflows that have not ended, including held ones."""
        known = (self._open, self._held)
        return [key._replace(name=name) for one in known for key, names in one.items() for name in names]

    def apply(self, new: Raw, _old: Raw | None = None) -> None:
        """Take in a Workflow that was added or changed. It is pending until its state is an end state."""
        key = NamespacedName.of(new)
        hardware = _hardware(new)
        self._forget(key)
        if hardware is None:
            return
        last = self._last(hardware)
        try:
            state = state_of(new)
        except InvalidStatusError:
            state = None  # The controller logs it, and ignores the Workflow until its status is corrected.
        if state is None or not state.terminal:
            self._messages[key] = str(as_mapping(new.get("status")).get("message") or "")[:MAX_MESSAGE]
            names = self._held if _held(new) else self._open
            names.setdefault(hardware, set()).add(key.name)
            self._hardware_of[key] = hardware
            return
        # The last change of the state, or else the creation, in seconds since the epoch.
        times = status_of(new).get("lastTransitioned"), new["metadata"].get("creationTimestamp")
        when = next((seconds for time in times if (seconds := parse_timestamp(time)) is not None), 0.0)
        if last is None or last.when <= when:
            self._ended.put(str(hardware).encode(), _HEAD.pack(when, _STATES.index(state)) + key.name.encode())

    def _last(self, hardware: NamespacedName) -> _Ended | None:
        packed = self._ended.get(str(hardware).encode())
        if packed is None:
            return None
        when, state = _HEAD.unpack_from(packed)
        return _Ended(when, packed[_HEAD.size :].decode(), _STATES[state])

    def remove(self, old: Raw) -> None:
        """Forget a Workflow that was deleted."""
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
    """Return the Hardware that a Workflow names, in its own namespace, or None if the name is invalid."""
    name = as_mapping(as_mapping(workflow.get("spec")).get("hardwareRef")).get("name")
    return NamespacedName.of(workflow)._replace(name=name) if isinstance(name, str) and name else None


def _held(workflow: Raw) -> bool:
    try:
        return held(workflow)
    except InvalidStatusError:
        return False
