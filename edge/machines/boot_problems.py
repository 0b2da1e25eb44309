"""Shows on a Hardware why its machine does not boot: the condition `BootProblem`, and Events for `kubectl describe`.

What is shown is what the journey says (`edge.journey.expectations`), in the same words. Only a Hardware whose machine
has had a problem gets the condition; when the machine gets on, it is False, without a message. The reason of a warning
stands in the field `bootProblem`, too, which the column BOOT shows: of a healthy machine that is empty.

Several edges may serve one machine: each writes what it sees, and the one that sees the machine get on clears it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from edge.machines.inventory import Machine
from edge.machines.status import StatusWriter, condition, condition_of, differs, write
from tink.api.v1alpha2 import ConditionStatus, Raw, as_mapping
from tink.kube.cache import Informer
from tink.kube.client import KubeClient, NotFoundError
from tink.kube.objects import NamespacedName
from tink.kube.resources import HARDWARE
from tink.kube.runtime import Event, EventRecorder
from tink.limits.newest import Newest
from tink.limits.once_per import OncePer

BOOT_PROBLEM = "BootProblem"
GETS_ON = "GetsOn"

MAX_SHOWN = 10_000
"""Hardware whose problems are known at a time; of more there is the journey only."""
EVENT_SECONDS = 300.0
"""The same about the same Hardware is no Event again before that."""
EVENTS_PER_INTERVAL = 5000
_made = partial(condition, BOOT_PROBLEM)


@dataclass(frozen=True, slots=True)
class Problem:
    """`reason` is a word in CamelCase; without `warning` it may be as it is wanted."""

    reason: str
    message: str
    warning: bool = True
    of_another: bool = False
    """It is the problem of a machine that is none of the Hardware's, as far as is known."""


class BootProblemWriter(StatusWriter):
    """Writes that condition, and the Events."""

    def __init__(self, client: KubeClient, hardware: Informer, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` spaces Events; in seconds, of any epoch."""
        super().__init__(client, f"its condition {BOOT_PROBLEM}")
        self._hardware = hardware
        self._clock = clock
        self._events = EventRecorder(client, "tinkedge-edge", clock=clock)
        self._event_once = OncePer(EVENT_SECONDS, EVENTS_PER_INTERVAL)
        self._problems: Newest[NamespacedName, dict[str, Problem]] = Newest(MAX_SHOWN)

    def found(self, machine: Machine, problem: Problem | None) -> None:
        """What is wrong with one card of a Hardware, or with None: that it gets on. Never waits."""
        key = NamespacedName(machine.namespace, machine.name)
        if problem is None:
            self._gets_on(key, machine.mac)
            return
        self._add(key, machine.mac, problem)

    def found_of_another(self, key: NamespacedName, mac: str, problem: Problem | None) -> None:
        """What is wrong with a machine that nobody has registered, and concerns this Hardware; with None: it does no
        more. Never waits."""
        if problem is not None:
            self._add(key, mac, replace(problem, of_another=True))
        elif mac in self._problems.get(key, {}):
            self._remove(key, lambda at, _: at == mac)
            self._queue.add(key)

    def _add(self, key: NamespacedName, mac: str, problem: Problem) -> None:
        self._problems[key] = self._problems.get(key, {}) | {mac: problem}
        self._queue.add(key)
        self._tell(key, mac, problem)

    def _remove(self, key: NamespacedName, is_over: Callable[[str, Problem], bool]) -> bool:
        """Whether there was one that is over."""
        problems = self._problems.get(key, {})
        left = {mac: problem for mac, problem in problems.items() if not is_over(mac, problem)}
        if left:
            self._problems[key] = left
        else:
            self._problems.pop(key, None)
        return len(left) < len(problems)

    async def run(self) -> None:
        """Write for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._events.run())
            group.create_task(super().run())

    def _gets_on(self, key: NamespacedName, mac: str) -> None:
        known = self._remove(key, lambda at, problem: at == mac or problem.of_another)
        obj = self._hardware.get(*key)
        # Of an earlier run, or another edge's: who sees the machine get on, knows better.
        shown = obj is not None and (
            condition_of(obj, BOOT_PROBLEM).get("reason") not in (None, GETS_ON) or _in_column(obj) is not None
        )
        if known or shown:
            self._queue.add(key)

    def _tell(self, key: NamespacedName, mac: str, problem: Problem) -> None:
        obj = self._hardware.get(*key)
        if obj is not None and self._event_once.due((key, mac, problem.reason), self._clock()):
            self._events.event(obj, HARDWARE, Event(problem.reason, f"{mac}: {problem.message}", problem.warning))

    async def _write(self, key: NamespacedName) -> None:
        obj = self._hardware.get(*key)
        if obj is None:
            self._problems.pop(key, None)
            return
        current, problems = condition_of(obj, BOOT_PROBLEM), self._problems.get(key)
        if problems:
            mac, problem = max(problems.items(), key=lambda item: item[1].warning)
            status = ConditionStatus.TRUE if problem.warning else ConditionStatus.FALSE
            wanted = _made(status, problem.reason, f"{mac}: {problem.message}")
        elif current:
            wanted = _made(ConditionStatus.FALSE, GETS_ON, "")
        else:
            return
        column = wanted["reason"] if wanted["status"] == ConditionStatus.TRUE else None
        if differs(current, wanted) or _in_column(obj) != column:
            with suppress(NotFoundError):
                await write(self._client, obj, wanted, time.time(), bootProblem=column)


def _in_column(obj: Raw) -> str | None:
    shown: str | None = as_mapping(obj.get("status")).get("bootProblem")
    return shown
