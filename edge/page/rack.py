"""All machines as rows, which are kept up to date while a page is open, in short turns of the event loop.

    journey, inventory, expectations --MACs that changed--> the rows of these machines are made again

Without an open page, no row is kept and nothing is computed.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final

from edge.journey.events import Outcome
from edge.journey.expectations import Expectations
from edge.journey.history import outcome_of
from edge.journey.recorder import Journey
from edge.journey.subscription import Changes, PendingChanges
from edge.machines import Inventory, Machine
from edge.page.live import TimeSlice
from edge.page.query import Query, Selection, select
from edge.page.rows import Named, Packed, Row, Traits, as_it_was, named, row, traits
from tink.kube.objects import NamespacedName

LINGER_SECONDS: Final = 30.0  # the rows are kept so long after the last look, for the next one
MORE_STRANGERS: Final = 512
"""Unregistered machines that may be added before those are removed that the journey has forgotten."""
_SAMPLE: Final = 100
_PORTION: Final = 25


class Rack:
    """The rows of all machines. Belongs to one event loop."""

    def __init__(self, journey: Journey, inventory: Inventory, expectations: Expectations) -> None:
        self.rows: dict[str, Packed] = {}
        self.version = 0  # increases with each change of `rows`
        self.journey = journey
        self.inventory = inventory
        self.expectations = expectations
        self._hardware = Changes()
        inventory.on_change(self._hardware.mark)
        inventory.on_power_change(self._power_changed)
        self._subscribers: list[PendingChanges] = []
        self._names: list[tuple[str, str]] = []  # `order` and MAC of all rows, sorted
        self._named: dict[str, Packed] = {}
        self._machines: dict[str, Machine | None] = {}  # the machines that the names were made from
        self._traits: dict[str, Packed] = {}  # `Traits` of the machines that were heard
        self._waiting: OrderedDict[str, None] = OrderedDict()  # the MACs of the machines whose rows are out of date
        self._facts: dict[str, tuple[Machine, str, dict[str, str]]] = {}
        """The Hardware that was read, its OSIE, its labels."""
        self._strangers: set[str] = set()
        self._most_strangers = MORE_STRANGERS
        self._lock = asyncio.Lock()
        self._lookers = 0
        self._closing: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """True if rows are kept."""
        return bool(self._subscribers)

    @property
    def is_whole(self) -> bool:
        """True if all rows are up to date."""
        return not self._waiting

    @asynccontextmanager
    async def looked_at(self) -> AsyncIterator[None]:
        """Keep the rows inside of this context."""
        self._lookers += 1
        self._keep()
        try:
            yield
        finally:
            self._lookers -= 1
            if not self._lookers and self.is_open:
                self._closing = asyncio.get_running_loop().call_later(LINGER_SECONDS, self.close)

    def close(self) -> None:
        """Discard all rows."""
        self._keep()
        for pending in self._subscribers:
            pending.close()
        self._subscribers.clear()
        self.rows = {}
        for kept in (
            self._names,
            self._named,
            self._machines,
            self._traits,
            self._waiting,
            self._facts,
            self._strangers,
        ):
            kept.clear()
        self._most_strangers = MORE_STRANGERS

    def _keep(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None

    async def update(self, turns: TimeSlice | None = None, shown: Iterable[str] = ()) -> None:
        """Bring all rows up to date. With `turns`, if the event loop is busy: those of `shown` and in trouble first,
        others later.
        """
        working = turns or TimeSlice()
        working.leave()
        async with self._lock:
            working.go_on()
            if not self.is_open:
                self._subscribers = [self.journey.changes(), self.expectations.changes(), self._hardware.subscribe()]
                self._waiting |= dict.fromkeys(self.journey.macs())
                self._waiting |= dict.fromkeys(each.mac for each in self.inventory.machines())
            for pending in self._subscribers:
                self._waiting |= dict.fromkeys(pending.take())
            for mac in [mac for mac in shown if mac in self._waiting]:
                self._look(mac)
                del self._waiting[mac]
            await self._look_at_waiting(working)
            if len(self._strangers) > self._most_strangers:
                self._waiting |= dict.fromkeys(self._strangers)
                await self._look_at_waiting(working)
                self._most_strangers = len(self._strangers) + MORE_STRANGERS

    async def select(self, query: Query, turns: TimeSlice | None = None) -> Selection:
        """Return what a query finds among the present rows."""
        turns = turns or TimeSlice()
        if query.group and query.group not in ("state", "namespace"):
            for mac in list(self.rows):
                self._facts_of(mac)
                await turns.rest()
        found, names = Selection(query), [mac for _, mac in self._names]
        for found in select(names, dict(self.rows), query, lambda each: self._group(query, each)):  # noqa: B007 - the last
            await turns.rest()
        return found

    async def labels(self) -> list[str]:
        """Return labels that some of the machines have."""
        known: dict[str, None] = {}
        for number, mac in enumerate(list(self.rows)[:_SAMPLE], start=1):
            facts = self._facts_of(mac)
            if facts is not None:
                known |= dict.fromkeys(facts[2])
            if number % 20 == 0:
                await asyncio.sleep(0)
        return sorted(known)[:_SAMPLE]

    # --- one machine ----------------------------------------------------------------------------------------------

    def _is_urgent(self, mac: str) -> bool:
        """Return True if the machine is in trouble."""
        awaited, last = self.expectations.of(mac), self.journey.last_entry(mac)
        failed = last is not None and outcome_of(last.entry) is Outcome.FAILED
        return failed or (awaited is not None and awaited.finding is not None)

    async def _look_at_waiting(self, turns: TimeSlice) -> None:
        """Make the rows that wait in the order of changes; those in trouble first while the event loop is busy."""
        by_urgency = False
        while self._waiting:
            if turns.is_busy and not by_urgency:
                by_urgency = True
                for mac in [mac for mac in self._waiting if self._is_urgent(mac)]:
                    self._waiting.move_to_end(mac, last=False)
            for _ in range(min(_PORTION, len(self._waiting))):
                self._look(self._waiting.popitem(last=False)[0])
            if turns.may_wait:
                return
            await turns.rest()

    def _look(self, mac: str) -> None:
        machine = self.inventory.by_mac(mac)
        claimed = machine is None and bool(self.inventory.claimants(mac))
        last = self.journey.last_sign(mac)
        if machine is None and last is None and not claimed:
            self._forget_name(mac)
            self._traits.pop(mac, None)
            self._facts.pop(mac, None)
            if self.rows.pop(mac, None) is not None:
                self.version += 1
            return
        if mac not in self._named or self._machines[mac] is not machine:
            self._name(mac, machine)
        name, expectations = Named._make(self._named[mac]), self.expectations
        awaited = expectations.of(mac) or as_it_was(self.journey, mac)
        known = self._traits.get(mac)
        of_boot = traits(self.journey, mac, last, awaited, Traits._make(known) if known is not None else None)
        if of_boot != known:
            self._traits[mac] = tuple(of_boot)
        power = self.inventory.power(machine) if machine is not None else ""
        new = tuple(row(name, last, awaited, expectations.limits, claimed=claimed, traits=of_boot, power=power))
        if self.rows.get(mac) != new:
            self.rows[mac] = new
            self.version += 1

    def _power_changed(self, hardware: NamespacedName, _power: str, _before: str) -> None:
        for machine in self.inventory.by_name(hardware.name, hardware.namespace):
            self._hardware.mark(machine.mac)

    def _name(self, mac: str, machine: Machine | None) -> None:
        self._forget_name(mac)
        name = named(mac, machine)
        self._named[mac], self._machines[mac] = tuple(name), machine
        insort(self._names, (name.order, mac))
        if machine is None:
            self._strangers.add(mac)

    def _forget_name(self, mac: str) -> None:
        if mac in self._named:
            name = Named._make(self._named.pop(mac))
            del self._machines[mac], self._names[bisect_left(self._names, (name.order, mac))]
        self._strangers.discard(mac)

    def _facts_of(self, mac: str) -> tuple[Machine, str, dict[str, str]] | None:
        machine = self.inventory.by_mac(mac)
        if machine is None:
            return None
        facts = self._facts.get(mac)
        if facts is None or facts[0] is not machine:
            hardware = machine.hardware
            osie = hardware.spec.osie.name if hardware.spec.osie is not None else ""
            facts = self._facts[mac] = (machine, osie, dict(hardware.metadata.labels))
        return facts

    def _group(self, query: Query, each: Row) -> str:
        match query.group:
            case "state":
                return each.kind.value
            case "namespace":
                return each.name.partition("/")[0]
        facts = self._facts_of(each.mac)
        if facts is None:
            return ""
        return facts[1] if query.group == "osie" else facts[2].get(query.group, "")
