"""Machines: polls the power state of each BMC, and keeps the inventory of its Hardware.

A Machine is polled when it is new or its spec changes, and every `poll_interval` seconds. The polls of a start are
spread over that interval. A failed poll sets the condition Contactable to False with the cause, and is repeated after
growing pauses. Machines that did not answer the last poll may have only a part of the workers, so that BMCs that hang
until a timeout don't delay the others.

A poll is a login, one GET and a logout. Paths and the version of the firmware are read with each inventory and each
Task, after an error, and once a day.

A refused password is not tried again: only its Secret is read, until it changes (`tink.bmc.credentials`).

The inventory is read once a day, and at the annotation `tinkerbell.org/refresh-inventory: "true"` on the Machine. It is
written to `status.inventory.outOfBand` of each Hardware whose `spec.bmcRef` names the Machine, and the Machine's power
state to `status.power`.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tink.api.annotations import (
    CREDENTIALS_REFUSED_ANNOTATION,
    DISABLE_INVENTORY_ANNOTATION,
    REFRESH_INVENTORY_ANNOTATION,
)
from tink.api.v1alpha2 import RUFIO_GROUP, Raw, as_mapping
from tink.bmc.connections import BmcContext, BmcSession, bmc_of, connection_of
from tink.bmc.credentials import requested_retry
from tink.bmc.model import LOGIN_CAUSES, BmcCredentials, BmcError, Cause, PowerState
from tink.bmc.status import condition, with_condition
from tink.kube.cache import Index, Informer
from tink.kube.client import NotFoundError
from tink.kube.objects import NamespacedName, merge_patch
from tink.kube.resources import HARDWARE, MACHINE
from tink.kube.runtime import DONE, Controller, Event, Result
from tink.metrics.families import counter, gauge
from tink.timestamps import rfc3339
from tink.workflow.status import parse_timestamp

log = logging.getLogger(__name__)

CONTACTABLE = "Contactable"
_BUSY_SECONDS = 5.0
"""Pause before a BMC is polled that a Task uses now."""
_RETRY_SECONDS = 30.0
"""Pause after the first failed poll; it doubles up to the poll interval."""
_SOON_SECONDS = 10.0
"""Time after which a Hardware is reported whose Machine is missing: it is usually the next object of the same file."""
_MAX_UNREPORTED = 3
"""Polls in a row that a busy BMC may refuse before the condition changes."""
_TRANSIENT = (Cause.BUSY, Cause.CONFLICT)
_JITTER = 0.1
_DOUBTFUL_PART = 4
"""The part of the workers that may poll BMCs which did not answer the last time: one in so many."""
_DOUBTFUL_SECONDS = 10.0
"""Maximum pause before such a BMC is polled if that part is busy."""
_MAX_RETRY_AFTER = 3600.0
_INVENTORY_RETRY_SECONDS = 3600.0


class MachineController(Collector):
    """Polls Machines. Its caller runs the informers."""

    def __init__(
        self,
        context: BmcContext,
        *,
        machines: Informer,
        hardware: Informer,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """`uniform` spreads the polls."""
        self._context = context
        self._machines = machines
        self._hardware = hardware
        self._uniform = uniform
        self._following = False
        self._failures: dict[NamespacedName, int] = {}
        """Number of failed polls in a row."""
        self._doubtful = 0
        """Number of workers that poll a BMC which did not answer the last time."""
        self._by_bmc: Index[NamespacedName, str] = Index()
        self._by_machine: Index[NamespacedName, NamespacedName] = Index()
        """Hardware, by the Machine that they name."""
        self._inventory_due: dict[NamespacedName, float] = {}
        """Unix seconds of the next inventory."""
        self._polls: Counter[str] = Counter(success=0)
        settings, limited_log = context.settings, context.limited_log
        first, longest = settings.retry_first, settings.retry_longest
        self.runtime = Controller(
            "Machine",
            self._reconcile,
            retry_first=first,
            retry_longest=longest,
            limited_log=limited_log,
            workers=settings.poll_workers,
        )
        self.references = Controller(
            "Hardware", self._follow_machine, retry_first=first, retry_longest=longest, limited_log=limited_log
        )
        machines.add_event_handler(self._changed, self._gone)
        hardware.add_event_handler(self._hardware_changed, self._hardware_gone)

    # --- life and events ----------------------------------------------------------------------------------------------

    def lead(self) -> None:
        """Queue all Machines, spread over the poll interval; those without a status come first."""
        self._following = True
        for machine in self._machines.list():
            key = NamespacedName.of(machine)
            wait = 0.0
            if condition(machine, CONTACTABLE) and not _wants_inventory(machine):
                wait = self._uniform(0.0, self._context.settings.poll_interval)
            self.runtime.queue.add_after(key, wait)
        for hardware in self._hardware.list():
            self._hardware_changed(hardware, None)

    def stand_by(self) -> None:
        """Queue no changes until `lead` is called again, which queues everything."""
        self._following = False

    def poll_soon(self, bmc: str) -> None:
        """Poll the Machines of a BMC (`bmc_of`): a Task has changed its state, or its password was refused."""
        for key in self._by_bmc.keys(bmc):
            self.runtime.queue.add(key)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for one scrape."""
        states: Counter[tuple[str]] = Counter({(each.value,): 0 for each in PowerState})
        contactable: Counter[tuple[str]] = Counter({("True",): 0, ("False",): 0, ("Unknown",): 0})
        for machine in self._machines.list():
            states[(_power(machine) or PowerState.UNKNOWN.value,)] += 1
            contactable[(str(condition(machine, CONTACTABLE).get("status", "Unknown")),)] += 1
        yield gauge("tinkedge_bmc_machines", "Machines, by power state.", ["power"], states)
        yield gauge("tinkedge_bmc_contactable", "Machines, by their condition Contactable.", ["status"], contactable)
        polls = {(result,): count for result, count in self._polls.items()}
        yield counter("tinkedge_bmc_polls", "Polls of BMCs, by their result.", ["result"], polls)

    def _changed(self, new: Raw, old: Raw | None) -> None:
        key = NamespacedName.of(new)
        bmc = _bmc_of(new)
        self._by_bmc.set(key, (bmc,) if bmc else ())
        is_requested = requested_retry(new) not in ("", requested_retry(old or {}))
        if self._following and _power(new) != _power(old or {}):
            for hardware in self._by_machine.keys(key):
                self.references.queue.add(hardware)
        is_changed = old is None or old.get("spec") != new.get("spec") or is_requested
        if self._following and (is_changed or (_wants_inventory(new) and not _wants_inventory(old or {}))):
            self.runtime.queue.add(key)

    def _gone(self, old: Raw) -> None:
        key = NamespacedName.of(old)
        self._by_bmc.set(key, ())
        self._failures.pop(key, None)
        self._inventory_due.pop(key, None)
        for hardware in self._by_machine.keys(key) if self._following else ():
            self.references.queue.add_after(hardware, _SOON_SECONDS)

    def _hardware_changed(self, new: Raw, old: Raw | None) -> None:
        key, machine = NamespacedName.of(new), _machine_of(new)
        self._by_machine.set(key, (machine,) if machine else ())
        if not self._following or (old is not None and _machine_of(old) == machine):
            return
        if machine is not None:
            self._inventory_due.pop(machine, None)
        if machine is not None or _power_of_hardware(new):
            self.references.queue.add_after(key, _SOON_SECONDS)

    def _hardware_gone(self, old: Raw) -> None:
        self._by_machine.set(NamespacedName.of(old), ())

    # --- one poll -----------------------------------------------------------------------------------------------------

    async def _reconcile(self, key: NamespacedName) -> Result:
        machine = self._machines.get(*key)
        if machine is None or machine["metadata"].get("deletionTimestamp"):
            return DONE
        is_doubtful = key in self._failures
        if is_doubtful and self._doubtful >= max(1, self._context.settings.poll_workers // _DOUBTFUL_PART):
            return Result(self._uniform(0.5, 1.0) * _DOUBTFUL_SECONDS)
        self._doubtful += is_doubtful
        try:
            return await self._poll(key, machine)
        finally:
            self._doubtful -= is_doubtful

    async def _poll(self, key: NamespacedName, machine: Raw) -> Result:
        reader, connections = self._context.reader, self._context.connections
        spec, keeper = as_mapping(machine["spec"].get("connection")), self._context.keeper(MACHINE, machine)
        credentials: BmcCredentials | None = None
        bmc = ""
        try:
            connection = connection_of(spec, await reader.authority(spec, key.namespace))
            credentials = await reader.credentials(spec, key.namespace)
            bmc = bmc_of(connection)
            connections.logins.restore(MACHINE.kind, machine, bmc, credentials)
            if connections.is_busy(bmc):
                return Result(_BUSY_SECONDS)
            found: Raw | None = None
            is_due = self._is_inventory_due(key, machine)
            async with connections.open(
                key, connection, credentials, keeper=keeper, reuse_layout=not is_due
            ) as session:
                seen = await session.observe()
                protocol = session.protocol
                if protocol == "redfish" and is_due:
                    found = await self._read_inventory(key, session)
        except BmcError as error:
            if credentials is not None and error.cause in LOGIN_CAUSES:
                # Before the status: a restart between the two writes must not log in again.
                await self._context.record_login(keeper, bmc, credentials)
            return await self._failed(key, machine, error)
        self._polls["success"] += 1
        self._failures.pop(key, None)
        await self._answered(key, machine, seen.power, protocol)
        if found is not None:
            await self._write_inventory(key, found)
        return Result(self._spread(self._context.settings.poll_interval))

    async def _answered(self, key: NamespacedName, machine: Raw, power: PowerState, protocol: str) -> None:
        name = "Redfish" if protocol == "redfish" else "IPMI"
        await self._report(machine, power, is_true=True, reason="BmcAnswers", message=f"the BMC answers by {name}")
        annotations = as_mapping(machine["metadata"].get("annotations"))
        done = [name for name in (CREDENTIALS_REFUSED_ANNOTATION, REFRESH_INVENTORY_ANNOTATION) if name in annotations]
        if done:
            await self._patch(key, {"metadata": {"annotations": dict.fromkeys(done)}})

    async def _failed(self, key: NamespacedName, machine: Raw, error: BmcError) -> Result:
        """Report a failed poll. Return when the next one is due."""
        settings = self._context.settings
        self._polls[error.cause.value] += 1
        count = self._failures[key] = self._failures.get(key, 0) + 1
        if error.cause not in _TRANSIENT or count >= _MAX_UNREPORTED or not condition(machine, CONTACTABLE):
            reason, message = error.cause.value, str(error)
            await self._report(machine, PowerState.UNKNOWN, is_true=False, reason=reason, message=message)
        if error.cause in (*LOGIN_CAUSES, Cause.CREDENTIALS_MISSING):
            # These cost no login until the Secret changes.
            del self._failures[key]
            return Result(min(self._spread(settings.secret_interval), settings.poll_interval))
        pause = min(_RETRY_SECONDS * 2 ** min(count - 1, 10), settings.poll_interval)
        return Result(max(self._spread(pause), min(error.retry_after, _MAX_RETRY_AFTER)))

    async def _report(self, machine: Raw, power: PowerState, *, is_true: bool, reason: str, message: str) -> None:
        """Write the status of a Machine if it has changed, and record an Event if its BMC is lost or is back."""
        status, before = as_mapping(machine.get("status")), condition(machine, CONTACTABLE)
        conditions = with_condition(
            machine,
            CONTACTABLE,
            is_true=is_true,
            reason=reason,
            message=message,
            now=self._context.now(),
            time_field="lastUpdateTime",
        )
        if status.get("powerState") == power.value and status.get("conditions") == conditions:
            return
        key = NamespacedName.of(machine)
        await self._patch(key, {"status": {"powerState": power.value, "conditions": conditions}}, subresource="status")
        is_news = before.get("status") != str(is_true) or (not is_true and before.get("reason") != reason)
        if is_news and (before or not is_true):
            self._context.recorder.event(machine, MACHINE, Event(reason, message, warning=not is_true))
            level = logging.INFO if is_true else logging.WARNING
            self._context.limited_log.log(level, "Machine %s: %s: %s", key, reason, message, owner=key.namespace)

    async def _patch(self, key: NamespacedName, body: Raw, subresource: str | None = None) -> None:
        with suppress(NotFoundError):  # it was deleted meanwhile
            await self._context.patch(MACHINE, key, body, subresource=subresource)

    def _spread(self, seconds: float) -> float:
        return seconds * self._uniform(1 - _JITTER, 1 + _JITTER)

    # --- inventory ----------------------------------------------------------------------------------------------------

    def _is_inventory_due(self, key: NamespacedName, machine: Raw) -> bool:
        hardware = list(self._hardware_of(key))
        if not hardware:
            return False
        due = self._inventory_due.get(key)
        if due is None:
            written = [_inventory_time(each) for each in hardware]
            due = min(written) + self._spread(self._context.settings.inventory_interval) if all(written) else 0.0
            self._inventory_due[key] = due
        return _wants_inventory(machine) or self._context.now() >= due

    def _hardware_of(self, key: NamespacedName) -> Iterator[Raw]:
        """Yield the Hardware whose inventory the Machine gives."""
        for each in self._by_machine.keys(key):
            hardware = self._hardware.get(*each)
            if hardware is not None and _annotation(hardware, DISABLE_INVENTORY_ANNOTATION) != "true":
                yield hardware

    async def _read_inventory(self, key: NamespacedName, session: BmcSession) -> Raw | None:
        """Read the documents of a BMC, and return the inventory; None if it lacks the System."""
        try:
            found = await session.read_inventory()
        except BmcError as error:
            if error.cause is Cause.CREDENTIALS_REFUSED:
                raise
            self._inventory_due[key] = self._context.now() + self._spread(_INVENTORY_RETRY_SECONDS)
            self._context.limited_log.log(logging.INFO, "Machine %s: no inventory: %s", key, error, owner=key.namespace)
            return None
        if not found:  # the inventory that was read before is the better one
            self._inventory_due[key] = self._context.now() + self._spread(_INVENTORY_RETRY_SECONDS)
            return None
        self._inventory_due[key] = self._context.now() + self._spread(self._context.settings.inventory_interval)
        return {"lastUpdated": rfc3339(self._context.now()), "collectionMethod": "redfish", **found}

    async def _write_inventory(self, key: NamespacedName, found: Raw) -> None:
        """Write the inventory to each Hardware that names the Machine."""
        for hardware in self._hardware_of(key):
            name = NamespacedName.of(hardware)
            before = as_mapping(as_mapping(hardware.get("status")).get("inventory")).get("outOfBand")
            body = {"status": {"inventory": {"outOfBand": merge_patch(as_mapping(before), found)}}}
            with suppress(NotFoundError):
                await self._context.patch(HARDWARE, name, body, subresource="status")

    # --- the Hardware of a Machine ------------------------------------------------------------------------------------

    async def _follow_machine(self, key: NamespacedName) -> Result:
        """Write the power state of a Hardware, and report it if its `spec.bmcRef` names a Machine that does not exist.

        The power state is that of its Machine, and is removed without one.
        """
        hardware = self._hardware.get(*key)
        if hardware is None:
            return DONE
        machine = _machine_of(hardware)
        found = self._machines.get(*machine) if machine is not None else None
        power = (_power(found) if found is not None else "") or None
        if _power_of_hardware(hardware) != (power or ""):
            body: Raw = {"status": {"power": power}}
            with suppress(NotFoundError):
                await self._context.patch(HARDWARE, key, body, subresource="status")
        if machine is None or found is not None:
            return DONE
        message = f"spec.bmcRef: there is no Machine {machine} of {RUFIO_GROUP}"
        self._context.recorder.event(hardware, HARDWARE, Event("MachineNotFound", message, warning=True))
        self._context.limited_log.warning("Hardware %s: %s", key, message, owner=key.namespace)
        return DONE


def _bmc_of(machine: Raw) -> str:
    """Return what identifies the BMC of a Machine; empty if its connection is not supported."""
    try:
        return bmc_of(connection_of(as_mapping(machine["spec"].get("connection"))))
    except BmcError:
        return ""


def _wants_inventory(machine: Raw) -> bool:
    return _annotation(machine, REFRESH_INVENTORY_ANNOTATION) == "true"


def _annotation(obj: Raw, name: str) -> str:
    return str(as_mapping(as_mapping(obj.get("metadata")).get("annotations")).get(name, ""))


def _power(machine: Raw) -> str:
    return str(as_mapping(machine.get("status")).get("powerState") or "")


def _power_of_hardware(hardware: Raw) -> str:
    return str(as_mapping(hardware.get("status")).get("power") or "")


def _machine_of(hardware: Raw) -> NamespacedName | None:
    """Return the Machine that a Hardware names, in its own namespace."""
    name = as_mapping(as_mapping(hardware.get("spec")).get("bmcRef")).get("name")
    return NamespacedName(NamespacedName.of(hardware).namespace, name) if isinstance(name, str) and name else None


def _inventory_time(hardware: Raw) -> float:
    """Return the time of a Hardware's inventory in Unix seconds; 0 if it has none."""
    inventory = as_mapping(as_mapping(hardware.get("status")).get("inventory"))
    return parse_timestamp(as_mapping(inventory.get("outOfBand")).get("lastUpdated")) or 0.0
