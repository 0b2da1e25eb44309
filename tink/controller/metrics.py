"""In which states the Workflows are, and how many came to each: counted from what the informer tells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tink.api.v1alpha2 import Raw, WorkflowState
from tink.metrics.families import counter, gauge
from tink.workflow.status import InvalidStatusError, state_of

_UNPREPARED, _INVALID = "Unprepared", "Invalid"


class WorkflowMetrics(Collector):
    """Told of every Workflow that comes, changes and goes, by an informer."""

    def __init__(self) -> None:
        self._states: Counter[str] = Counter({_UNPREPARED: 0, _INVALID: 0, **dict.fromkeys(map(str, WorkflowState), 0)})
        self._transitions: Counter[str] = Counter(dict.fromkeys(map(str, WorkflowState), 0))

    def apply(self, new: Raw, old: Raw | None) -> None:
        """A Workflow is new, or has changed."""
        after, before = _shown(new), _shown(old) if old is not None else ""
        if after == before:
            return
        self._states[after] += 1
        if before:
            self._states[before] -= 1
            if after in self._transitions:
                self._transitions[after] += 1

    def remove(self, old: Raw) -> None:
        """A Workflow is gone."""
        self._states[_shown(old)] -= 1

    def collect(self) -> Iterator[Metric]:
        """Called for each scrape."""
        states = {(state,): count for state, count in self._states.items()}
        reached = {(state,): count for state, count in self._transitions.items()}
        yield gauge("tinkedge_workflows", "Workflows, by the state in which they are.", ["state"], states)
        yield counter("tinkedge_workflow_transitions", "Workflows that came to a state.", ["to"], reached)


def _shown(workflow: Raw) -> str:
    try:
        return str(state_of(workflow) or _UNPREPARED)
    except InvalidStatusError:
        return _INVALID
