"""What happens to all machines, counted while it happens. Holds numbers, not machines; the clock is the caller's."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from edge.fleet.results.steps import MEASURED, Question, Step, Whole

MAX_ERRORS: Final = 1000
"""Different errors that are counted apart; they have texts of servers in them."""
_OTHERS: Final = "others"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a machine failed: the first thing that went wrong and was not mended. `injected`: the fleet itself did it."""

    machine: str
    step: str
    cause: str
    injected: bool


class Recorder:
    """Counts."""

    def __init__(self, machines: int) -> None:
        self.machines = machines
        self.at: Counter[str] = Counter({Step.OFF: machines})
        """Machines by step."""
        self.seconds: dict[StrEnum, array[float]] = {key: array("d") for key in (*MEASURED, *Question, *Whole)}
        self.errors: Counter[str] = Counter()
        """What went wrong and was tried again."""
        self.failures: list[Failure] = []
        self.faults: Counter[str] = Counter()
        """What the fleet did to machines."""
        self.bytes_received: Counter[str] = Counter()
        self.packets = 0
        self.events = 0
        self.actions = 0
        self.twice: list[str] = []
        """Actions that were run again: the machine and the action."""
        self._runs: set[int] = set()

    def moved(self, before: Step, after: Step, seconds: float, *, completed: bool) -> None:
        """A machine goes from one step to another; `completed`: the first did what it is for."""
        self.at[before] -= 1
        self.at[after] += 1
        if completed and before in self.seconds:
            self.seconds[before].append(seconds)

    def took(self, what: Question | Whole, seconds: float) -> None:
        """How long it took."""
        self.seconds[what].append(seconds)

    def error(self, step: str, text: str) -> None:
        """Something went wrong, and is tried again."""
        key = f"{step}: {text}"
        self.errors[key if key in self.errors or len(self.errors) < MAX_ERRORS else _OTHERS] += 1

    def action_begins(self, machine: str, workflow: str, action: str) -> None:
        """An action is run; the same one a second time is what must not be."""
        self.actions += 1
        key = hash((workflow, action))
        if key in self._runs:
            self.twice.append(f"{machine}: action {action} of workflow {workflow}")
        self._runs.add(key)


def percentile(values: Iterable[float], share: float) -> float:
    """The value that so great a share of them does not exceed (nearest rank); 0 of none."""
    found = sorted(values)
    return found[max(math.ceil(len(found) * share), 1) - 1] if found else 0.0
