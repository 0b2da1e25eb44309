"""All machines as rows, kept up to date while somebody looks, a few at a time: the event loop serves DHCP, too.

    journey, inventory, expectations --MACs that changed--> the rows of these machines made anew

Nothing is kept, and nothing is done, where nobody looks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final

from edge.journey.changes import Asker, Changes
from edge.journey.expectations import Expectations
from edge.journey.recorder import Journey
from edge.machines import Inventory, Machine
from edge.page.query import Query, Selection, select
from edge.page.rows import Row, row

TURN_SECONDS: Final = 0.002
"""How long rows are made between two turns of the event loop."""
LINGER_SECONDS: Final = 30.0
"""The rows are kept so long after the last look, for the next one."""
MORE_STRANGERS: Final = 512
"""After so many more that no Hardware names, those are looked for that the journey has forgotten."""
_SAMPLE: Final = 100


class Rack:
    """Belongs to one event loop."""

    def __init__(
        self,
        journey: Journey,
        inventory: Inventory,
        expectations: Expectations,
        elapsed: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`elapsed` gives seconds, of any epoch."""
        self.rows: dict[str, Row] = {}
        self.version = 0
        """Another one after each change of `rows`."""
        self._journey = journey
        self._inventory = inventory
        self._expectations = expectations
        self._elapsed = elapsed
        self._hardware = Changes()
        inventory.on_change(self._hardware.mark)
        self._askers: list[Asker] = []
        self._facts: dict[str, tuple[Machine, str, dict[str, str]]] = {}
        """The Hardware that was read, its OSIE, its labels."""
        self._strangers: set[str] = set()
        self._most_strangers = MORE_STRANGERS
        self._lock = asyncio.Lock()
        self._lookers = 0
        self._closing: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """Whether rows are kept."""
        return bool(self._askers)

    @asynccontextmanager
    async def looked_at(self) -> AsyncIterator[None]:
        """Have the rows kept."""
        self._lookers += 1
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
        try:
            yield
        finally:
            self._lookers -= 1
            if not self._lookers and self.is_open:
                self._closing = asyncio.get_running_loop().call_later(LINGER_SECONDS, self.close)

    def close(self) -> None:
        """Keep nothing any more."""
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
        for asker in self._askers:
            asker.close()
        self._askers.clear()
        self.rows = {}
        self._facts.clear()
        self._strangers.clear()
        self._most_strangers = MORE_STRANGERS

    async def update(self) -> None:
        """Bring the rows up to date."""
        async with self._lock:
            if not self.is_open:
                self._askers = [self._journey.changes(), self._expectations.changes(), self._hardware.asker()]
                changed: Iterable[str] = [*self._journey.macs(), *(each.mac for each in self._inventory.machines())]
                changed = dict.fromkeys(changed)
            else:
                changed = set().union(*(asker.take() for asker in self._askers))
            await self._look_at(changed)
            if len(self._strangers) > self._most_strangers:
                await self._look_at(list(self._strangers))
                self._most_strangers = len(self._strangers) + MORE_STRANGERS

    async def select(self, query: Query) -> Selection:
        """What a query finds among the rows as they are."""
        if query.group and query.group not in ("state", "namespace"):
            await self._read_hardware()
        found, turn = Selection(query), self._elapsed()
        for found in select(self.rows, query, lambda each: self._group(query, each)):  # noqa: B007 - the last one
            if self._elapsed() - turn > TURN_SECONDS:
                await asyncio.sleep(0)
                turn = self._elapsed()
        return found

    async def labels(self) -> list[str]:
        """Labels that some of the machines have."""
        known: dict[str, None] = {}
        for number, mac in enumerate(list(self.rows)[:_SAMPLE], start=1):
            facts = self._facts_of(mac)
            if facts is not None:
                known |= dict.fromkeys(facts[2])
            if number % 20 == 0:
                await asyncio.sleep(0)
        return sorted(known)[:_SAMPLE]

    # --- one machine ----------------------------------------------------------------------------------------------

    async def _look_at(self, macs: Iterable[str]) -> None:
        turn = self._elapsed()
        for mac in macs:
            self._look(mac)
            if self._elapsed() - turn > TURN_SECONDS:
                await asyncio.sleep(0)
                turn = self._elapsed()

    def _look(self, mac: str) -> None:
        machine = self._inventory.by_mac(mac)
        claimed = machine is None and bool(self._inventory.claimants(mac))
        last = self._journey.last_sign(mac)
        if machine is None and last is None and not claimed:
            if self.rows.pop(mac, None) is not None:
                self.version += 1
            self._facts.pop(mac, None)
            self._strangers.discard(mac)
            return
        if machine is None:
            self._strangers.add(mac)
        else:
            self._strangers.discard(mac)
        expectations = self._expectations
        new = row(mac, machine, last, expectations.of(mac), expectations.limits, claimed=claimed)
        if self.rows.get(mac) != new:
            self.rows[mac] = new
            self.version += 1

    def _facts_of(self, mac: str) -> tuple[Machine, str, dict[str, str]] | None:
        machine = self._inventory.by_mac(mac)
        if machine is None:
            return None
        facts = self._facts.get(mac)
        if facts is None or facts[0] is not machine:
            hardware = machine.hardware
            osie = hardware.spec.osie.name if hardware.spec.osie is not None else ""
            facts = self._facts[mac] = (machine, osie, dict(hardware.metadata.labels))
        return facts

    async def _read_hardware(self) -> None:
        turn = self._elapsed()
        for mac in list(self.rows):
            self._facts_of(mac)
            if self._elapsed() - turn > TURN_SECONDS:
                await asyncio.sleep(0)
                turn = self._elapsed()

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
