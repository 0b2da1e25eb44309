"""A flat link without relays on which a host sends packets of invented MAC addresses, while real machines boot."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from ipaddress import IPv4Network
from typing import Any

import pytest

from edge.dhcp import Reply
from edge.dhcp.wire import MessageType
from edge.machines import DiscoveryWriter, Inventory
from tests.support.api import InProcessApi
from tests.support.virtual_time import elapse
from tests.unit.dhcp.harness import (
    PXE_DISCOVER,
    Edge,
    MakeEdge,
    hardware,
    invented,
    message_type,
    read,
    requesting,
    sent_by,
)
from tink.api.annotations import EXPECTED_MACHINES_LABEL
from tink.api.v1alpha2 import Raw
from tink.discovery.admission import Admission, Progress, read_rule
from tink.discovery.controller import DiscoveryController
from tink.discovery.expected import ExpectedMachines
from tink.discovery.model import discovered_name
from tink.kube.resources import CONFIG_MAP, HARDWARE, WORKFLOW
from tink.webhooks.admission import ReviewPlugin

pytestmark = [pytest.mark.looptime, pytest.mark.long]

RULE = "range=10.77.0.100-10.77.0.149/24,osie=hook,name=rack7"
ADDRESSES = 50
NETWORKS = (IPv4Network("10.77.0.0/24"),)
MACHINES = 20
PAUSES = (4, 8, 16, 32)
"""PXE 2.1 section 2.2.2.2: a ROM repeats its DISCOVER after these seconds, then tries its next boot device."""
INVENTORY_SECONDS = 90


class Machine:
    """A machine that boots by PXE again and again until it has an address.

    The ROM of every second machine collects offers for 4 s, as EDK2 does.
    """

    def __init__(self, number: int, start: int, *, is_listed: bool) -> None:
        self.mac = f"52:54:00:{1 if is_listed else 2:02x}:00:{number:02x}"
        self.packet = sent_by(bytes.fromhex(self.mac.replace(":", "")), PXE_DISCOVER)
        self.leased_at: int | None = None
        self._collects = 4 if number % 2 else 0
        self._request = b""
        self._tries = 0
        self._due = start

    def act(self, second: int, edges: list[Edge]) -> None:
        """Send the packet of this second to all edges, if there is one."""
        if second != self._due or self.leased_at is not None:
            return
        if self._request:
            self._send_request(second, edges)
            return
        replies = [edge.send(self.packet) for edge in edges]
        self._repeat(second)
        reply = next((each for each in replies if each is not None), None)
        if reply is None:
            return
        assert message_type(reply) is MessageType.OFFER
        self._request, self._tries, self._due = requesting(self.packet, read(reply)), 0, second + self._collects
        self.act(second, edges)

    def _send_request(self, second: int, edges: list[Edge]) -> None:
        replies = [edge.send(self._request) for edge in edges]
        self._repeat(second)
        for reply in replies:
            self.receive(second, reply)

    def _repeat(self, second: int) -> None:
        """Send again later; after four times, begin again with a DISCOVER."""
        self._due = second + PAUSES[self._tries]
        self._tries += 1
        if self._tries == len(PAUSES):
            self._tries, self._request = 0, b""

    def receive(self, second: int, reply: Reply | None) -> None:
        """Take the answer to a REQUEST, which may come later than in its turn."""
        if reply is not None and message_type(reply) is MessageType.ACK:
            self.leased_at = second
        elif reply is not None and message_type(reply) is MessageType.NAK:
            self._request, self._tries, self._due = b"", 0, second + 1

    def progress(self, second: int) -> Progress:
        if self.leased_at is None:
            return Progress.UNKNOWN
        return Progress.BOOTING if second > self.leased_at + 5 else Progress.NONE


class Link:
    """The edges, the controller and the API of a flat link, in virtual time."""

    def __init__(
        self, make_edge: MakeEdge, machines: list[Machine], lists: list[str], *, edges: int = 1, takes: bool = False
    ) -> None:
        """`takes`: the invented machines accept their offers."""
        self.takes = takes
        self.machines = {each.mac: each for each in machines}
        self.registered = [sent_by(bytes.fromhex(f"5254000000{number:02x}")) for number in range(MACHINES)]
        known = [
            hardware(f"m{number}", f"52:54:00:00:00:{number:02x}", f"10.77.0.{number + 10}")
            for number in range(MACHINES)
        ]
        rows = "".join(f"listed-{number},{mac}\n" for number, mac in enumerate(lists))
        config_map: Raw = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"list.csv": f"name,mac\n{rows}"}}
        config_map["metadata"] = {"name": "rack", "namespace": "default", "labels": {EXPECTED_MACHINES_LABEL: "true"}}

        async def find(_key: str, namespace: str, name: str) -> Raw | None:
            return self.api.read(HARDWARE, name, namespace)

        self.api = InProcessApi(plugin=ReviewPlugin(find))  # it rejects a second Hardware with one address
        for obj in (*known, config_map):
            self.api.put(obj)
        self.second = 0
        self.writers: list[DiscoveryWriter] = []
        self.edges: list[Edge] = [
            make_edge(server_ip=f"10.77.0.{number + 1}", discovery=self._discovery, networks=NETWORKS)
            for number in range(edges)
        ]
        self.edge = self.edges[0]
        for edge in self.edges:
            edge.responder.send_later = self._receive
            for obj in self.api.objects(HARDWARE):
                edge.inventory.apply(obj)
        clock = asyncio.get_running_loop().time
        informers = {each: self.api.informer(each) for each in (CONFIG_MAP, WORKFLOW, HARDWARE)}
        self.controller = DiscoveryController(
            self.api,  # type: ignore[arg-type]
            informers,
            elapsed=clock,
        )

    def _discovery(self, inventory: Inventory, record: Any, clock: Callable[[], float]) -> DiscoveryWriter:
        informer, expected, rules = self.api.informer(HARDWARE), ExpectedMachines(), (read_rule(RULE),)
        informer.add_event_handler(lambda new, _old: inventory.apply(new), inventory.remove)
        self.api.informer(CONFIG_MAP).add_event_handler(lambda new, _old: expected.apply(new), expected.remove)
        admission = Admission(
            rules,
            lambda mac: bool(inventory.claimants(mac)),
            listed=expected,
            salt=36 + len(self.writers),
            chance=random.Random(36 + len(self.writers)),
            progress=lambda mac: self.machines[mac].progress(self.second) if mac in self.machines else Progress.NONE,
        )
        self.writers.append(DiscoveryWriter(self.api, informer, admission, rules, record, clock))  # type: ignore[arg-type]
        return self.writers[-1]

    async def run(self, seconds: int, flood: Callable[[int], list[int]]) -> None:
        """Let time pass; `flood` returns the numbers of the invented machines that send in a second."""
        tasks = [asyncio.create_task(each.run()) for each in (*self.writers, self.controller)]
        chance = random.Random(36)
        try:
            for self.second in range(seconds):
                numbers = flood(self.second)
                real_at = chance.randrange(len(numbers) or 1)
                for at, number in enumerate(numbers):
                    if at == real_at:
                        self._real()
                    for edge in self.edges:
                        edge.now += 1 / len(numbers)
                    self._invented(invented(number))
                if not numbers:
                    for edge in self.edges:
                        edge.now += 1
                    self._real()
                await elapse(1.0)
                for edge in self.edges:
                    assert edge.send(self.registered[self.second % MACHINES]) is not None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _receive(self, reply: Reply) -> None:
        mac = read(reply).mac.hex(":")
        if mac in self.machines:
            self.machines[mac].receive(self.second, reply)

    def _invented(self, packet: bytes) -> None:
        replies = [edge.send(packet) for edge in self.edges]
        reply = next((each for each in replies if each is not None), None)
        if self.takes and reply is not None and message_type(reply) is MessageType.OFFER:
            request = requesting(packet, read(reply))
            for edge in self.edges:
                edge.send(request)

    def _real(self) -> None:
        for each in self.machines.values():
            each.act(self.second, self.edges)
            is_ready = each.leased_at is not None and self.second >= each.leased_at + INVENTORY_SECONDS
            name = discovered_name(each.mac)
            if is_ready and (obj := self.api.read(HARDWARE, name)) and not (obj.get("status") or {}).get("inventory"):
                facts = {"networkInterfaces": [{"ports": [{"mac": each.mac}]}]}
                self.api.change(HARDWARE, name, status={"inventory": {"inBand": facts}})

    def count(self, name: str) -> float:
        """Return a metric of all edges together."""
        return sum(each.samples[0].value for writer in self.writers for each in writer.metrics() if each.name == name)

    def names(self) -> set[str]:
        return {each["metadata"]["name"] for each in self.api.objects(HARDWARE)}

    def introduced(self) -> set[str]:
        """Return the MAC addresses of machines whose inventory is known."""
        found = [each for each in self.api.objects(HARDWARE) if (each.get("status") or {}).get("inventory")]
        return {mac for each in found for mac in each["spec"]["networkInterfaces"]}


def rounds(second: int, *, per_second: int = 500, again: int = 60) -> list[int]:
    """Return new invented machines, those of the last second again, and those of a minute ago once more."""
    numbers: list[int] = []
    for back in (0, 1, again):
        if second >= back:
            numbers += range((second - back) * per_second, (second - back + 1) * per_second)
    return numbers


async def test_each_machine_comes_in_through_a_flood_of_discovers_that_creates_nothing(make_edge: MakeEdge) -> None:
    """500 new addresses a second, each sent three times."""
    listed = [Machine(number, 10 + number // 2, is_listed=True) for number in range(MACHINES)]
    unlisted = [Machine(number, 10 + number // 2, is_listed=False) for number in range(MACHINES)]
    link = Link(make_edge, [*listed, *unlisted], [each.mac for each in listed])
    await link.run(90, lambda second: rounds(second, again=30))
    assert [each.mac for each in (*listed, *unlisted) if each.leased_at is None] == []
    assert len(link.names()) == MACHINES + len(listed) + len(unlisted), "no other Hardware was created"
    assert link.count("tinkedge_discovery_displaced") == 0


async def test_listed_machines_come_in_through_a_flood_that_accepts_offers(make_edge: MakeEdge) -> None:
    """200 new addresses a second, each sent three times, and a REQUEST for each offer. It holds the range."""
    listed = [Machine(number, 10 + number // 2, is_listed=True) for number in range(MACHINES)]
    link = Link(make_edge, listed, [each.mac for each in listed], takes=True)
    await link.run(140, lambda second: rounds(second, per_second=200, again=30))
    assert {each.mac for each in listed} <= link.introduced()
    assert {f"listed-{number}" for number in range(MACHINES)} <= link.names()
    assert len(link.names()) <= MACHINES + MACHINES + ADDRESSES


async def test_unlisted_machines_come_in_while_ten_machines_a_second_that_accept_offers_are_invented(
    make_edge: MakeEdge,
) -> None:
    unlisted = [Machine(number, 60 + number, is_listed=False) for number in range(MACHINES)]
    link = Link(make_edge, unlisted, [], takes=True)
    await link.run(660, lambda second: rounds(second, per_second=10, again=10_000))
    assert len(link.introduced()) >= MACHINES // 2


async def test_each_unlisted_machine_comes_in_after_a_short_flood(make_edge: MakeEdge) -> None:
    """The places of machines that are gone are taken one by one, not after half an hour."""
    unlisted = [Machine(number, 10 + number, is_listed=False) for number in range(MACHINES)]
    link = Link(make_edge, unlisted, [], takes=True)
    await link.run(300, lambda second: rounds(second, per_second=300) if second < 10 else [])
    assert link.introduced() == {each.mac for each in unlisted}


async def test_listed_machine_is_heard_in_a_flood_of_machines_that_return(make_edge: MakeEdge) -> None:
    """5,000 packets a second of 5,000 machines: 400 of them are parsed."""
    real = Machine(1, 20, is_listed=True)
    link = Link(make_edge, [real], [real.mac])
    await link.run(35, lambda _second: list(range(5000)))
    assert real.leased_at is not None
    assert real.leased_at <= 20 + sum(PAUSES[:2]) + 4, "its third DISCOVER is answered"


async def test_flood_in_the_name_of_a_listed_machine_is_limited(make_edge: MakeEdge) -> None:
    mac = "52:54:00:01:00:01"
    link = Link(make_edge, [], [mac])
    responder, packet = link.edge.responder, sent_by(bytes.fromhex(mac.replace(":", "")))
    for number in range(1000):
        responder.is_surplus(invented(number))
    assert sum(not responder.is_surplus(packet) for _ in range(100)) == 10
    link.edge.now += 1
    for number in range(1000):
        responder.is_surplus(invented(number))
    assert sum(not responder.is_surplus(packet) for _ in range(2000)) < 600


async def test_two_edges_of_a_link_let_listed_machines_in_and_do_not_displace_what_boots(make_edge: MakeEdge) -> None:
    listed = [Machine(number, 90 + number, is_listed=True) for number in range(5)]
    early = [Machine(number, number, is_listed=False) for number in range(5)]
    link = Link(make_edge, [*listed, *early], [each.mac for each in listed], edges=2, takes=True)
    await link.run(220, lambda second: rounds(second, per_second=20) if second > 30 else [])
    assert link.introduced() == {each.mac for each in (*listed, *early)}
    assert all(discovered_name(each.mac) in link.names() for each in early)
    assert len(link.names()) <= MACHINES + len(listed) + ADDRESSES
