"""Which Workflows that have ended are more than an operator wants to keep: all but the newest of each Hardware."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple

from tink.api.v1alpha2 import Raw, as_mapping
from tink.kube.objects import NamespacedName
from tink.workflow.ended import has_ended
from tink.workflow.guards import hold_of, paused
from tink.workflow.status import creation_order, deleted, parse_timestamp, status_of


class _Ended(NamedTuple):
    """A Workflow that has ended: when, in seconds since the epoch, its place in the order of creation, and its name."""

    when: float
    created: tuple[str, int, str]
    key: NamespacedName


class WorkflowHistory:
    """Told of every Workflow that comes, changes and goes. `limit`: how many of each Hardware are kept; None: all."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._by_hardware: dict[NamespacedName, list[_Ended]] = {}
        """Oldest first."""
        self._places: dict[NamespacedName, tuple[NamespacedName, _Ended]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def apply(self, workflow: Raw) -> list[NamespacedName]:
        """A Workflow is new, or has changed; those that are too many since then.

        What somebody holds, or what is on its way to another API, neither goes nor counts.
        """
        if self._limit is None:
            return []
        key = NamespacedName.of(workflow)
        self.remove(key)
        hardware = as_mapping(as_mapping(workflow.get("spec")).get("hardwareRef")).get("name")
        kept = hold_of(workflow) is not None or paused(workflow)
        if not has_ended(workflow) or deleted(workflow) or kept or not isinstance(hardware, str):
            return []
        when = parse_timestamp(status_of(workflow).get("lastTransitioned")) or 0.0
        machine, ended = NamespacedName(key.namespace, hardware), _Ended(when, creation_order(workflow), key)
        row = self._by_hardware.setdefault(machine, [])
        insort(row, ended)
        self._places[key] = machine, ended
        surplus = row[: max(0, len(row) - self._limit)]
        # One at a time becomes too many; this one, if it is the oldest, or the one that it pushes out.
        return [each.key for each in surplus if each is ended or each is surplus[-1]]

    def remove(self, key: NamespacedName) -> None:
        """A Workflow is gone."""
        machine, ended = self._places.pop(key, (None, None))
        if machine is None or ended is None:
            return
        row = self._by_hardware[machine]
        del row[bisect_left(row, ended)]
        if not row:
            del self._by_hardware[machine]

    def is_surplus(self, key: NamespacedName) -> bool:
        """Whether as many as are to be kept of its Hardware are newer."""
        machine, ended = self._places.get(key, (None, None))
        if machine is None or ended is None or self._limit is None:
            return False
        row = self._by_hardware[machine]
        return len(row) - bisect_left(row, ended) > self._limit
