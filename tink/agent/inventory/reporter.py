"""Reports the inventory to the server (`proto/inventory.proto`), without delaying a Workflow or ending the agent.

The first report is sent as soon as the agent is connected. The second follows when every card with a link has received
an LLDP frame, at most 35 s after the start, unless nothing differs by then; later ones follow when a neighbour changes.
A server that does not know the service answers UNIMPLEMENTED, and the agent sends no more. Other failures are retried
without limit.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import grpc
import grpc.aio

from proto import inventory_pb2 as pb
from proto.inventory_pb2_grpc import InventoryServiceStub
from tink.agent.inventory.collector import collect, network_cards, network_cards_with_link
from tink.agent.inventory.ioctls import set_up
from tink.agent.inventory.lldp import LldpListener, Neighbours
from tink.agent.inventory.smbios import Facts
from tink.limits import Backoff

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_REPORT_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class ReportSchedule:
    """Times of the reports, in seconds."""

    lldp_wait: float = 35.0
    """Maximum time from the start to the report with neighbours: switches send every 30 s (IEEE 802.1AB 9.2.5.7)."""
    link_wait: float = 8.0
    """Minimum of the same: a card that was set up needs time to get its link."""
    settle: float = 2.0
    """Time after the last neighbour for another switch on the same cable."""
    min_interval: float = 30.0
    """Minimum time between later reports: a neighbour that changes all the time must not load the server."""
    look_interval: float = 30.0
    """Maximum time until a neighbour that has expired is noticed."""
    collect_timeout: float = 60.0
    call_timeout: float = 15.0
    initial_backoff: float = 1.0
    max_backoff: float = 60.0


class ReportedMachine(Protocol):
    """The machine whose inventory is reported. A thread calls the methods."""

    def prepare(self) -> None:
        """Set the network cards up, if that is allowed. Raises nothing."""

    def cards(self) -> list[str]:
        """Return the names of the network cards that can have neighbours."""

    def cards_with_link(self) -> list[str]:
        """Return those of them that have a link."""

    def attributes(self, neighbours: Mapping[str, Facts]) -> Facts:
        """Return the inventory with the neighbours of cards by their names."""


class LocalMachine:
    """The machine of this process.

    root: the root of its file system.
    in_osie: True if the agent runs in an OSIE. Then cards that are down are set up, so that they have links and
        receive LLDP. On a running system nothing is changed.
    """

    def __init__(self, root: Path = Path("/"), *, in_osie: bool) -> None:
        self._root = root
        self._in_osie = in_osie

    def prepare(self) -> None:
        """Set cards up that are down, in an OSIE."""
        for card in self.cards() if self._in_osie else ():
            try:
                if int((self._root / "sys/class/net" / card / "flags").read_text(), 16) & 1:
                    continue
                # A router of another network must not change the routes of the card that booted.
                with suppress(OSError):
                    (self._root / "proc/sys/net/ipv6/conf" / card / "accept_ra").write_text("0")
                set_up(card)
            except (OSError, ValueError) as error:
                log.info("inventory: %s can't be set up: %s", card, error)

    def cards(self) -> list[str]:
        """Return the names of the Ethernet cards."""
        return network_cards(self._root)

    def cards_with_link(self) -> list[str]:
        """Return the names of the Ethernet cards with a link."""
        return network_cards_with_link(self._root)

    def attributes(self, neighbours: Mapping[str, Facts]) -> Facts:
        """Return the inventory."""
        return collect(self._root, neighbours=neighbours)


class InventoryReporter:
    """Reports the inventory of `machine` through `channel`. Cancel `run` to end it."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        agent_id: str,
        machine: ReportedMachine,
        schedule: ReportSchedule | None = None,
        *,
        connected: Callable[[], Awaitable[Any]],
        clock: Callable[[], float] = time.time,
        in_background: Callable[[Callable[[], Any]], Awaitable[Any]] | None = None,
    ) -> None:
        """`connected` returns when the command stream is open: servers distrust much data before it.

        `clock` returns the time in seconds since 1970. `in_background` runs the methods of `machine`.
        """
        self._stub = InventoryServiceStub(channel)
        self._agent_id = agent_id
        self._machine = machine
        self._schedule = schedule or ReportSchedule()
        self._connected = connected
        self._clock = clock
        self._neighbours = Neighbours()
        self._news = asyncio.Event()
        self._in_background = in_background or in_daemon_thread

    async def run(self) -> None:
        """Report the inventory, and its changes. Returns if the server does not take inventories.

        Raises TimeoutError if a device of the machine does not answer.
        """
        begun = asyncio.get_running_loop().time()
        listener = LldpListener(self.receive)
        try:
            await self._in_thread(self._machine.prepare)
            listener.listen(await self._in_thread(self._machine.cards))
            sent: Facts = {}
            for number in itertools.count():
                neighbours = self._present()
                found = await self._in_thread(partial(self._machine.attributes, neighbours))
                if found and found != sent:
                    if not await self._deliver(found):
                        return
                    sent = found
                if number == 0:
                    await self._all_have_neighbours(begun)
                else:
                    await self._changed(neighbours)
        finally:
            listener.close()

    def receive(self, card: str, frame: bytes) -> None:
        """Receive a frame with the EtherType of LLDP at a card."""
        if self._neighbours.receive(card, frame, asyncio.get_running_loop().time()):
            self._news.set()

    def _present(self) -> dict[str, Facts]:
        return self._neighbours.present(asyncio.get_running_loop().time())

    async def _all_have_neighbours(self, begun: float) -> None:
        """Wait until every card with a link has a neighbour, and the wait for LLDP at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(begun + self._schedule.lldp_wait):
                await asyncio.sleep(begun + self._schedule.link_wait - asyncio.get_running_loop().time())
                while True:
                    self._news.clear()
                    cards = await self._in_thread(self._machine.cards_with_link)
                    is_complete = bool(cards) and self._present().keys() >= set(cards)
                    await asyncio.sleep(self._schedule.settle)
                    if is_complete:
                        return
                    await self._news.wait()

    async def _changed(self, neighbours: Mapping[str, Facts]) -> None:
        """Wait until the neighbours are others than these, and between two reports."""
        await asyncio.sleep(self._schedule.min_interval)
        while self._present() == neighbours:
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._schedule.look_interval):
                    await self._news.wait()

    async def _deliver(self, attributes: Facts) -> bool:
        """Send a report until the server takes it or refuses it for good. Return False if it takes none."""
        content = encoded(attributes)
        backoff = Backoff(self._schedule.initial_backoff, self._schedule.max_backoff)
        logged: grpc.StatusCode | None = None
        while True:
            await self._connected()
            request = pb.ReportInventoryRequest(
                agent_id=self._agent_id, attributes=content, clock_unix_seconds=self._clock()
            )
            try:
                await self._stub.ReportInventory(request, timeout=self._schedule.call_timeout)
            except grpc.aio.AioRpcError as error:
                code = error.code()
                if code is grpc.StatusCode.UNIMPLEMENTED:
                    log.info("the server does not take inventories; none is sent")
                    return False
                if code is grpc.StatusCode.INVALID_ARGUMENT:
                    log.warning("the server refuses the inventory: %s", error.details())
                    return True
                if code is not logged:
                    log.info("inventory not delivered yet, trying again: %s: %s", code.name, error.details())
                    logged = code
                await asyncio.sleep(backoff.next())
            else:
                log.info("the server has the inventory of this machine")
                return True

    async def _in_thread(self, work: Callable[[], T]) -> T:
        async with asyncio.timeout(self._schedule.collect_timeout):
            result: T = await self._in_background(work)
            return result


async def in_daemon_thread(work: Callable[[], Any]) -> Any:
    """Return the result of `work` in a daemon thread.

    A file of a broken device may block its reader without limit, and such a thread must not keep the agent alive, as
    one of `asyncio.to_thread` does.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if not done.done():
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except Exception as error:  # raised in the loop
            failure = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="inventory", daemon=True).start()
    return await done


def encoded(attributes: Facts) -> bytes:
    """Return the attributes as JSON of at most MAX_REPORT_BYTES; the largest lists are left out of larger ones."""
    content = json.dumps(attributes, ensure_ascii=False, separators=(",", ":")).encode()
    for name in ("pciDevices", "gpuDevices", "networkInterfaces", "memory", "blockDevices"):
        if len(content) <= MAX_REPORT_BYTES:
            break
        log.warning("inventory: too large with %s, which is left out", name)
        attributes = {key: value for key, value in attributes.items() if key != name}
        content = json.dumps(attributes, ensure_ascii=False, separators=(",", ":")).encode()
    return content
