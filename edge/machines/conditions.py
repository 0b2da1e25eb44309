"""Conditions in the status of a Hardware, and the base class of their writers (`StatusWriter`).

AddressConflict (`ConditionWriter`): the machine has declined its address. DHCP's quarantine (`edge.dhcp_common`)
reports its start and its end. The writer compares that with the API and patches the status if they differ. DHCP never
waits: Hardware are queued, at most once each, and the current state is written. Several edges may serve the same
machines, and a process may die during a quarantine. So the end of the quarantine is in the condition's message. An edge
leaves the condition of another edge alone until that time, and ends it a while after that.

BootProblem (`BootProblemWriter`): the machine does not boot. Condition and Events have the words of the journey's
diagnosis (`edge.journey.expectations`). Only a Hardware whose machine has had a problem gets the condition. It becomes
False, without a message, when the machine progresses. The reason of a warning is also in the field `bootProblem`, for
the column BOOT. If several edges serve a machine, each writes its own diagnosis, and the one that sees the machine
progress clears it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from edge.machines.inventory import Machine
from tink.api.v1alpha2 import ConditionStatus, Raw, as_mapping
from tink.discovery.model import ADDRESS_CONFLICT, DECLINED
from tink.kube.cache import Informer
from tink.kube.client import ApiError, ConflictError, KubeClient, NotFoundError
from tink.kube.objects import NamespacedName
from tink.kube.resources import HARDWARE
from tink.kube.runtime import DONE, Controller, Event, EventRecorder, Result, controller_log
from tink.limits import Newest, OncePer
from tink.timestamps import rfc3339
from tink.workflow.status import parse_timestamp

log = logging.getLogger(__name__)

ATTEMPTS: Final = 10
"""Maximum number of attempts to write a change, with delays that grow to a minute."""

Condition = dict[str, Any]


class StatusWriter(ABC):
    """Writes a part of the status of Hardware, which wait in a queue, at most once each.

    Belongs to one event loop. Without `run`, nothing is written.
    """

    def __init__(
        self,
        client: KubeClient,
        what: str,
        *,
        per_second: float = math.inf,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        """`what` names the part in log lines, such as `its condition BootProblem`.

        `per_second` is the maximum rate of writes that wait for their turn (`_turn`), by the monotonic seconds of
        `elapsed`.
        """
        self._client = client
        self._what = what
        self._per_second = per_second
        self._elapsed = elapsed
        self._next_write = -math.inf
        self._limited_log = controller_log(log, time.monotonic)
        self.runtime = Controller(
            "Hardware",
            self._reconcile,
            retry_first=0.5,
            retry_longest=60.0,
            on_error=lambda *_: True,  # logged when the last attempt fails
        )
        self._queue = self.runtime.queue

    async def run(self) -> None:
        """Write until cancelled."""
        try:
            await self.runtime.run()
        finally:
            self._queue.shut_down()

    @abstractmethod
    async def _write(self, key: NamespacedName) -> None:
        """Write this part of the status if it differs from the wanted one. Raises ApiError."""

    async def _turn(self) -> None:
        """Wait until the maximum rate of writes allows another one."""
        if (wait := self._next_write - self._elapsed()) > 0:
            await asyncio.sleep(wait)

    def _count_write(self) -> None:
        """Count a write; before it begins, so that retries keep the same interval while the API is away."""
        self._next_write = self._elapsed() + 1 / self._per_second

    async def _reconcile(self, key: NamespacedName) -> Result:
        try:
            await self._write(key)
        except ApiError as error:
            is_final = 400 <= error.status < 500 and not isinstance(error, ConflictError) and error.status != 429
            if not is_final and self._queue.num_requeues(key) + 1 < ATTEMPTS:
                raise
            text = "Hardware %s: %s is not written: %s%s"
            self._limited_log.warning(text, key, self._what, error, _ADVICE.get(error.status, ""), owner=key.namespace)
        except Exception:
            # An error in this program for one Hardware must not affect the others.
            log.exception("Hardware %s: %s is not written", key, self._what)
        return DONE


_ADVICE: Final = {
    403: "; allow the edge to get hardware and to patch hardware/status",
    404: "; if its definition is older than this edge, update it: 'tinkedge crds | kubectl apply --server-side -f -'",
}


def condition_of(hardware: Raw, kind: str) -> Condition:
    """Return the condition of this type, or an empty one."""
    for one in _conditions(hardware):
        if isinstance(one, dict) and one.get("type") == kind:
            return one
    return {}


def condition(kind: str, status: ConditionStatus, reason: str, message: str) -> Condition:
    """Return a condition to write."""
    return {"type": kind, "status": status.value, "reason": str(reason), "message": message}


def differs(current: Condition, wanted: Condition) -> bool:
    """Return True if a condition has another status, reason or message than the one to write."""
    return any(current.get(field) != wanted[field] for field in ("status", "reason", "message"))


async def write(client: KubeClient, hardware: Raw, wanted: Condition, now: float, **fields: Any) -> None:
    """Set a condition and keep all others, if the Hardware has not been changed meanwhile. Raises ApiError.

    Its lastTransitionTime is `now` (seconds since the epoch) if its status is another one than before (Kubernetes API
    conventions, "Typical status properties"). `fields` of the status are written with it; None removes one.
    """
    conditions, current = _conditions(hardware), condition_of(hardware, wanted["type"])
    since = current.get("lastTransitionTime") if current.get("status") == wanted["status"] else None
    new = {**wanted, "lastTransitionTime": since or rfc3339(now)}
    kept = [new if one is current else one for one in conditions]
    if not current:
        kept.append(new)
    metadata = {"resourceVersion": hardware["metadata"]["resourceVersion"]}
    key = NamespacedName.of(hardware)
    patch = {"metadata": metadata, "status": {"conditions": kept, **fields}}
    await client.patch(HARDWARE, key.name, key.namespace, patch, subresource="status")


def _conditions(hardware: Raw) -> list[Any]:
    conditions = as_mapping(hardware.get("status")).get("conditions")
    return conditions if isinstance(conditions, list) else []


ENDED = "QuarantineEnded"

MAX_CONFLICTS = 4096
"""Maximum number of Hardware with stored conflicts; further conflicts are only logged."""
GRACE_SECONDS = 60.0
"""How long after the end of a quarantine another process's condition may stay until this edge ends it."""

_address_conflict = partial(condition, ADDRESS_CONFLICT)
_UNTIL = re.compile(r"not offered until (\S+Z)")
_ADDRESS = re.compile(r"(\S+) is used by another host")


@dataclass(frozen=True, slots=True)
class _Declined:
    mac: str
    address: str
    until: float

    def __str__(self) -> str:
        until = rfc3339(self.until)
        return f"{self.address} is used by another host: {self.mac} declined it; it is not offered until {until}"


class ConditionWriter(StatusWriter):
    """Writes the condition AddressConflict."""

    def __init__(self, client: KubeClient, clock: Callable[[], float] = time.time) -> None:
        """`clock` returns seconds since the epoch."""
        super().__init__(client, f"its condition {ADDRESS_CONFLICT}")
        self._clock = clock
        self._declined: dict[NamespacedName, dict[tuple[str, str], _Declined]] = {}
        """The conflicts of this process by Hardware, MAC and address: a machine may have an IPv4 and an IPv6 one."""
        self._written: dict[NamespacedName, str] = {}
        """The messages of the conditions that this process has set and not ended."""
        self._dropped_once = OncePer(60.0, 1)

    def changed(self, machine: Machine, address: str, until: float | None) -> None:
        """Record that the machine declined `address` until `until` (epoch), or None: its end. Never waits."""
        key = NamespacedName(machine.namespace, machine.name)
        declined = self._declined.get(key, {})
        if until is not None:
            if not declined and len(self._declined) >= MAX_CONFLICTS:
                if self._dropped_once.due("", self._clock()):
                    log.warning("more than %d Hardware have address conflicts: not all show it", MAX_CONFLICTS)
                return
            self._declined.setdefault(key, {})[machine.mac, address] = _Declined(machine.mac, address, until)
        elif declined.pop((machine.mac, address), None) is None:
            return
        elif not declined:
            del self._declined[key]
        self._queue.add(key)

    # --- the informer of Hardware ---------------------------------------------------------------------

    def apply(self, new: Raw, _old: Raw | None = None) -> None:
        """Take in a Hardware that was added or changed: another process's condition may have to be ended later."""
        current = condition_of(new, ADDRESS_CONFLICT)
        until = _until(current) if current.get("status") == ConditionStatus.TRUE else None
        if until is not None and (key := NamespacedName.of(new)) not in self._declined:
            self._queue.add_after(key, until + GRACE_SECONDS - self._clock())

    def remove(self, old: Raw) -> None:
        """Forget a Hardware that was deleted."""
        self._forget(NamespacedName.of(old))

    # --- writing ------------------------------------------------------------------------------------------------

    async def _write(self, key: NamespacedName) -> None:
        try:
            hardware = await self._client.get(HARDWARE, key.name, key.namespace)
        except NotFoundError:
            self._forget(key)
            return
        wanted = self._wanted(key, condition_of(hardware, ADDRESS_CONFLICT))
        if wanted is not None:
            await write(self._client, hardware, wanted, self._clock())
        if wanted is not None and wanted["status"] == ConditionStatus.TRUE:
            self._written[key] = wanted["message"]
        elif key not in self._declined:
            self._written.pop(key, None)

    def _wanted(self, key: NamespacedName, current: Condition) -> Condition | None:
        """Return the condition to write, or None if the current one stays."""
        now, is_true = self._clock(), current.get("status") == ConditionStatus.TRUE
        message, until = str(current.get("message", "")), _until(current)
        # A conflict whose end was not reported is over after a while.
        by_address = self._declined.get(key, {})
        for over in [at for at, one in by_address.items() if one.until + GRACE_SECONDS <= now]:
            del by_address[over]
        if not by_address:
            self._declined.pop(key, None)
        if declined := list(by_address.values()):
            end = max(one.until for one in declined)
            self._queue.add_after(key, end + GRACE_SECONDS - now)
            # Interfaces that share an address share its quarantine: the first one declined it.
            shown = {one.address: one for one in reversed(declined)}
            wanted = _address_conflict(ConditionStatus.TRUE, DECLINED, "; ".join(map(str, reversed(shown.values()))))
            if is_true and message != self._written.get(key) and until is not None and until >= int(end):
                known = set(_ADDRESS.findall(message)) >= {one.address for one in declined}
                return None if known else wanted  # another edge's condition that covers this conflict
            return wanted if differs(current, wanted) else None
        if not is_true or until is None:
            return None  # If it is true without a time, a user has set it.
        if until > now and message != self._written.get(key):
            self._queue.add_after(key, until + GRACE_SECONDS - now)
            return None
        addresses = ", ".join(dict.fromkeys(_ADDRESS.findall(message)))
        return _address_conflict(ConditionStatus.FALSE, ENDED, f"the quarantine of {addresses} is over")

    def _forget(self, key: NamespacedName) -> None:
        self._declined.pop(key, None)
        self._written.pop(key, None)


def _until(condition: Mapping[str, Any]) -> float | None:
    """Return the end of the last quarantine in the condition's message, or None."""
    ends = [parse_timestamp(end) for end in _UNTIL.findall(str(condition.get("message", "")))]
    return max((end for end in ends if end is not None), default=None)


BOOT_PROBLEM = "BootProblem"
GETS_ON = "GetsOn"

MAX_SHOWN = 10_000
"""Maximum number of Hardware with stored problems; further ones are only on the journey."""
EVENT_SECONDS = 300.0
"""Minimum interval between two Events with the same reason for the same Hardware."""
EVENTS_PER_INTERVAL = 5000
_boot_problem = partial(condition, BOOT_PROBLEM)


@dataclass(frozen=True, slots=True)
class BootProblem:
    """A problem of a machine. `reason` is a word in CamelCase; without `warning` the state may be intended."""

    reason: str
    message: str
    warning: bool = True
    of_another: bool = False
    """True if the machine is not registered with this Hardware."""


class BootProblemWriter(StatusWriter):
    """Writes the condition BootProblem, and Events for `kubectl describe`."""

    def __init__(self, client: KubeClient, hardware: Informer, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds of any epoch, for the interval between Events."""
        super().__init__(client, f"its condition {BOOT_PROBLEM}")
        self._hardware = hardware
        self._clock = clock
        self._events = EventRecorder(client, "tinkedge-edge", clock=clock)
        self._event_once = OncePer(EVENT_SECONDS, EVENTS_PER_INTERVAL)
        self._problems: Newest[NamespacedName, dict[str, BootProblem]] = Newest(MAX_SHOWN)

    def found(self, machine: Machine, problem: BootProblem | None) -> None:
        """Record the problem of one card of a Hardware, or with None, that the card progresses. Never waits."""
        key = NamespacedName(machine.namespace, machine.name)
        if problem is not None:
            self._add(key, machine.mac, problem)
            return
        known = self._remove(key, lambda at, problem: at == machine.mac or problem.of_another)
        obj = self._hardware.get(*key)
        # The condition may be from an earlier run or another edge, which does not see the machine progress.
        shown = obj is not None and (
            condition_of(obj, BOOT_PROBLEM).get("reason") not in (None, GETS_ON) or _in_column(obj) is not None
        )
        if known or shown:
            self._queue.add(key)

    def found_of_another(self, key: NamespacedName, mac: str, problem: BootProblem | None) -> None:
        """Record a problem of an unregistered machine that concerns this Hardware; None: its end. Never waits."""
        if problem is not None:
            self._add(key, mac, replace(problem, of_another=True))
        elif mac in self._problems.get(key, {}):
            self._remove(key, lambda at, _: at == mac)
            self._queue.add(key)

    def _add(self, key: NamespacedName, mac: str, problem: BootProblem) -> None:
        self._problems[key] = self._problems.get(key, {}) | {mac: problem}
        self._queue.add(key)
        obj = self._hardware.get(*key)
        if obj is not None and self._event_once.due((key, mac, problem.reason), self._clock()):
            self._events.event(obj, HARDWARE, Event(problem.reason, f"{mac}: {problem.message}", problem.warning))

    def _remove(self, key: NamespacedName, is_over: Callable[[str, BootProblem], bool]) -> bool:
        """Remove the problems that are over, and return True if there were any."""
        problems = self._problems.get(key, {})
        left = {mac: problem for mac, problem in problems.items() if not is_over(mac, problem)}
        if left:
            self._problems[key] = left
        else:
            self._problems.pop(key, None)
        return len(left) < len(problems)

    async def run(self) -> None:
        """Write conditions and Events until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._events.run())
            group.create_task(super().run())

    async def _write(self, key: NamespacedName) -> None:
        obj = self._hardware.get(*key)
        if obj is None:
            self._problems.pop(key, None)
            return
        current, problems = condition_of(obj, BOOT_PROBLEM), self._problems.get(key)
        if problems:
            mac, problem = max(problems.items(), key=lambda item: item[1].warning)
            status = ConditionStatus.TRUE if problem.warning else ConditionStatus.FALSE
            wanted = _boot_problem(status, problem.reason, f"{mac}: {problem.message}")
        elif current:
            wanted = _boot_problem(ConditionStatus.FALSE, GETS_ON, "")
        else:
            return
        column = wanted["reason"] if wanted["status"] == ConditionStatus.TRUE else None
        if differs(current, wanted) or _in_column(obj) != column:
            with suppress(NotFoundError):
                await write(self._client, obj, wanted, time.time(), bootProblem=column)


def _in_column(obj: Raw) -> str | None:
    shown: str | None = as_mapping(obj.get("status")).get("bootProblem")
    return shown
