"""Unknown machines, from their first DISCOVER to the answer with an address: by the API, and in attacks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ipaddress import IPv4Network
from typing import Any

import pytest

from edge.dhcp import Reply
from edge.dhcp.unknown import HOLD_SECONDS
from edge.dhcp.wire import MessageType, codec, options
from edge.dhcp.wire.codec import Message
from edge.journey.events import JourneyEvent, Outcome
from edge.machines import DhcpMode, DiscoveryWriter, Inventory
from tests.support.api import InProcessApi
from tests.support.virtual_time import elapse, turns
from tests.unit.dhcp.harness import (
    HTTP_DISCOVER,
    IPXE_BIOS,
    PLAIN,
    PXE_DISCOVER,
    Edge,
    MakeEdge,
    altered,
    hardware,
    invented,
    message_type,
    read,
    requesting,
    sent_by,
)
from tink.api.v1alpha2 import Raw
from tink.discovery.admission import BOOT_FILE_SECONDS, Admission, read_rule
from tink.kube.client import ApiError
from tink.kube.resources import HARDWARE

pytestmark = pytest.mark.looptime

RULE = "range=10.77.0.100-10.77.0.149/24,gateway=10.77.0.1,osie=hook,name=rack7"
NETWORKS = (IPv4Network("10.77.0.0/24"),)
STRANGER = bytes.fromhex("52540000aa01")
NAME = "discovery-52-54-00-00-aa-01"


class Site:
    """Edges that see the same machines and share one API."""

    def __init__(self, make_edge: MakeEdge, api: InProcessApi, rules: tuple[str, ...], count: int, **more: Any) -> None:
        self.api = api
        self.writers: list[DiscoveryWriter] = []
        self.edges: list[Edge] = []
        self.late: list[Reply] = []
        """The replies that answer no packet of their turn."""
        read_rules = tuple(map(read_rule, rules))
        for number in range(count):
            informer = api.informer(HARDWARE)

            def discovery(
                inventory: Inventory, record: Any, clock: Callable[[], float], informer: Any = informer
            ) -> DiscoveryWriter:
                informer.add_event_handler(lambda new, _old: inventory.apply(new), inventory.remove)
                admission = Admission(
                    read_rules, lambda mac: bool(inventory.claimants(mac)), own_addresses=lambda: ("10.77.0.1",)
                )
                self.writers.append(DiscoveryWriter(api, informer, admission, read_rules, record, clock))  # type: ignore[arg-type]
                return self.writers[-1]

            edge = make_edge(server_ip=f"10.77.0.{number + 1}", discovery=discovery, **{"networks": NETWORKS, **more})
            for obj in api.objects(HARDWARE):
                edge.inventory.apply(obj)
            edge.responder.send_later = self.late.append
            self.edges.append(edge)

    @property
    def edge(self) -> Edge:
        return self.edges[0]

    def send(self, packet: bytes, **where: Any) -> list[Reply | None]:
        """Let every edge receive a packet."""
        return [edge.send(packet, **where) for edge in self.edges]

    def offer(self, packet: bytes, **where: Any) -> Message:
        """Return the offer to a DISCOVER."""
        reply = self.send(packet, **where)[0]
        assert message_type(reply) is MessageType.OFFER
        return read(reply)

    async def boot(self, packet: bytes, **where: Any) -> Message:
        """Send a DISCOVER and the REQUEST for its offer to every edge; return the ACK, which follows its Hardware."""
        self.late.clear()
        assert self.send(requesting(packet, self.offer(packet, **where)), **where) == [None] * len(self.edges)
        await self.wait(1.0)
        (reply,) = self.late
        assert message_type(reply) is MessageType.ACK
        return read(reply)

    async def wait(self, seconds: float = 3.0) -> None:
        """Let time pass for edges, writers and API alike."""
        for edge in self.edges:
            edge.now += seconds
        await elapse(seconds)

    @property
    def hardware(self) -> dict[str, Raw]:
        return {each["metadata"]["name"]: each for each in self.api.objects(HARDWARE)}

    def line(self, word: str, edge: Edge | None = None) -> JourneyEvent:
        """Return the only event with this word."""
        (event,) = [each for each in (edge or self.edge).events if word in each.message]
        return event


@pytest.fixture
def make_site(make_edge: MakeEdge) -> Callable[..., Any]:
    @asynccontextmanager
    async def make(*rules: str, machines: tuple[Raw, ...] = (), count: int = 1, **more: Any) -> AsyncIterator[Site]:
        site = Site(make_edge, InProcessApi(*machines), rules or (RULE,), count, **more)
        tasks = [asyncio.create_task(writer.run()) for writer in site.writers]
        try:
            yield site
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    return make


def relayed(packet: bytes, relay: str, *, circuit: bytes = b"", link: str = "") -> bytes:
    """Return the packet as a relay passes it on, with option 82."""
    information = b"".join(
        options.option(code, value)
        for code, value in (
            (options.CIRCUIT_ID, circuit),
            (options.LINK_SELECTION, options.ipv4(link) if link else b""),
        )
        if value
    )
    more = {"options": {options.RELAY_AGENT_INFORMATION: information}} if information else {}
    return altered(packet, giaddr=options.ipv4(relay), **more)


# --- the way of an unknown machine ------------------------------------------------------------------------------------


@pytest.mark.parametrize("packet", [PXE_DISCOVER, HTTP_DISCOVER, IPXE_BIOS], ids=["pxe", "http", "ipxe"])
async def test_unknown_machine_is_offered_an_address_at_once_and_created_at_its_request(
    make_site, packet: bytes
) -> None:
    discover = sent_by(STRANGER, packet)
    async with make_site() as site:
        offer = site.offer(discover)
        await site.wait()
        assert not site.hardware
        address = options.dotted(offer.yiaddr)
        assert f"rule rack7 offers it the address {address}" in site.line("seen").message
        assert "manifest" not in site.line("seen").detail, "the rule creates the Hardware"
        assert offer.options[options.SUBNET_MASK] == b"\xff\xff\xff\0"
        assert offer.options[options.ROUTER] == options.ipv4("10.77.0.1")
        assert offer.options[options.LEASE_TIME] == (300).to_bytes(4, "big")
        assert offer.file or offer.options[67]  # RFC 2132 section 9.5
        ack = await site.boot(discover)
        assert options.dotted(ack.yiaddr) == address
        assert site.hardware[NAME]["spec"]["networkInterfaces"]["52:54:00:00:aa:01"]["dhcp"]["ip"] == address
        created = site.line(f"Hardware default/{NAME} created with address {address}, OSIE default/hook")
        assert (created.outcome, created.detail) == (Outcome.OK, {"address": address, "rule": "rack7"})


@pytest.mark.parametrize("packet", [PXE_DISCOVER, HTTP_DISCOVER, IPXE_BIOS], ids=["pxe", "http", "ipxe"])
async def test_offer_before_the_hardware_is_there_equals_that_afterwards(make_site, packet: bytes) -> None:
    discover = sent_by(STRANGER, packet)
    async with make_site() as site:
        before = site.send(discover)
        await site.boot(discover)
        assert site.send(discover) == before


async def test_ack_follows_the_hardware_and_is_sent_once(make_site) -> None:
    discover = sent_by(STRANGER)
    async with make_site() as site:
        ack = await site.boot(discover)
        assert ack.xid == codec.parse(discover).xid
        site.api.change(HARDWARE, NAME, spec={"kernelParams": ["quiet"]})
        await elapse(0.5)
        assert len(site.late) == 1, "a later change of the Hardware answers nothing"


async def test_request_that_waits_too_long_is_answered_when_it_comes_again(make_site) -> None:
    discover = sent_by(STRANGER)
    async with make_site() as site:
        request = requesting(discover, site.offer(discover))
        assert site.send(request) == [None]
        site.edge.now += HOLD_SECONDS + 0.1  # the API is slow
        await elapse(0.5)
        assert NAME in site.hardware
        assert site.late == []
        (reply,) = site.send(request)
        assert message_type(reply) is MessageType.ACK


async def test_machine_whose_offer_was_taken_gets_a_nak_and_another_address(make_site) -> None:
    async with make_site("range=10.77.0.100-10.77.0.101/24,osie=hook") as site:
        offers = {number: site.offer(invented(number)) for number in range(3)}
        one, other = (each for each in offers if offers[each].yiaddr == offers[0].yiaddr)
        await site.boot(invented(one))
        (reply,) = site.send(requesting(invented(other), offers[other]))
        assert message_type(reply) is MessageType.NAK
        assert reply is not None
        assert (reply.address, reply.port) == ("255.255.255.255", 68)
        assert (await site.boot(invented(other))).yiaddr != offers[0].yiaddr


async def test_machine_whose_address_the_api_rejects_gets_a_nak_and_then_the_other_address(make_site) -> None:
    """Two edges have offered one address to two machines."""
    discover = sent_by(STRANGER)
    async with make_site() as site:
        offer = site.offer(discover)
        address = options.dotted(offer.yiaddr)
        site.api.fail("create", ApiError(422, "Invalid", f"IP address {address} belongs to m7 already"), of=HARDWARE)
        assert site.send(requesting(discover, offer)) == [None]
        await site.wait(1.0)
        assert [message_type(each) for each in site.late] == [MessageType.NAK]
        again = site.offer(discover)
        assert again.yiaddr != offer.yiaddr
        (reply,) = site.send(requesting(discover, again))
        assert message_type(reply) is MessageType.ACK


async def test_request_for_the_offer_of_another_server_creates_nothing_and_is_reported(make_site) -> None:
    discover = sent_by(STRANGER)
    async with make_site() as site:
        request = requesting(discover, site.offer(discover))
        other = altered(request, options={options.SERVER_IDENTIFIER: options.ipv4("10.77.0.77")})
        assert site.send(other) == [None]
        await site.wait()
        assert not site.hardware
        assert site.line("accepted the offer of another DHCP server, 10.77.0.77").outcome is Outcome.FAILED


@pytest.mark.parametrize("drop", [(options.SERVER_IDENTIFIER,), (50, 54)], ids=["INIT-REBOOT", "RENEWING"])
async def test_request_that_accepts_no_offer_is_not_answered(make_site, drop: tuple[int, ...]) -> None:
    discover = sent_by(STRANGER)
    async with make_site() as site:
        offer = site.offer(discover)
        ciaddr = codec.NO_ADDRESS if 50 not in drop else offer.yiaddr
        assert site.send(altered(requesting(discover, offer), drop=drop, ciaddr=ciaddr)) == [None]
        await site.wait()
        assert not site.hardware


async def test_request_without_an_offer_of_this_edge_gets_a_nak(make_site) -> None:
    """The edge has restarted since the offer."""
    discover = sent_by(STRANGER)
    async with make_site(count=2) as site:
        offer = read(site.edges[0].send(discover))
        assert site.edges[1].send(requesting(discover, offer)) is None, "it names the other edge"
        forged = altered(requesting(discover, offer), options={options.SERVER_IDENTIFIER: options.ipv4("10.77.0.2")})
        assert message_type(site.edges[1].send(forged)) is MessageType.NAK
        await site.wait()
        assert not site.hardware


async def test_machine_behind_a_relay_is_admitted(make_site) -> None:
    discover, where = relayed(sent_by(STRANGER), "10.78.0.1"), {"source": "10.78.0.1", "source_port": 67}
    rule = "range=10.78.0.100-10.78.0.149/24,osie=hook,relay=10.78.0.1"
    async with make_site(rule) as site:
        (reply,) = site.send(discover, **where)
        assert reply is not None
        assert (reply.address, reply.port) == ("10.78.0.1", 67)
        ack = await site.boot(discover, **where)
        assert options.dotted(ack.yiaddr).startswith("10.78.0.1")
        assert (site.late[0].address, site.late[0].port) == ("10.78.0.1", 67)


async def test_link_selection_names_the_link_of_a_relayed_machine(make_site) -> None:
    discover = relayed(sent_by(STRANGER), "192.0.2.1", link="10.78.0.0")
    async with make_site("range=10.78.0.100-10.78.0.149/24,osie=hook") as site:
        await site.boot(discover, source="192.0.2.1", source_port=67)
        assert list(site.hardware) == [NAME]


async def test_ports_of_a_switch_have_shares_of_their_own(make_site) -> None:
    where = {"source": "10.77.0.9", "source_port": 67}
    async with make_site("range=10.77.0.100-10.77.0.103/24,osie=hook") as site:
        await site.boot(relayed(invented(1), "10.77.0.9", circuit=b"port 1"), **where)
        await site.boot(relayed(invented(2), "10.77.0.9", circuit=b"port 2"), **where)
        for number in (3, 4):
            discover = relayed(invented(number), "10.77.0.9", circuit=b"port 2")
            assert site.send(requesting(discover, site.offer(discover, **where)), **where) == [None]
        await site.wait()
        assert sorted(site.hardware) == ["discovery-02-00-00-00-00-01", "discovery-02-00-00-00-00-02"]
        assert len([each for each in site.edge.events if "waits for a place: half of the free" in each.message]) == 2


async def test_machine_takes_the_place_of_a_silent_one_by_its_request(make_site) -> None:
    discover = sent_by(STRANGER)
    async with make_site("range=10.77.0.100-10.77.0.101/24,osie=hook") as site:
        for number in range(2):
            await site.boot(invented(number))
        await site.wait(BOOT_FILE_SECONDS)
        request = requesting(discover, site.offer(discover))
        await site.wait(1.0)
        assert site.api.count("delete", of=HARDWARE) == 0, "an offer displaces nothing"
        site.late.clear()
        assert site.send(request) == [None]
        await site.wait(1.0)
        ((name, gone),) = [(n, each) for n, each in site.hardware.items() if "deletionTimestamp" in each["metadata"]]
        assert NAME not in site.hardware
        site.api.remove(HARDWARE, name)  # the controller does so
        await site.wait(1.0)
        (ack,) = map(read, site.late)
        assert ack.options[options.MESSAGE_TYPE] == bytes([MessageType.ACK])
        (interface,) = gone["spec"]["networkInterfaces"].values()
        assert options.dotted(ack.yiaddr) == interface["dhcp"]["ip"]
        assert NAME in site.hardware


async def test_edge_whose_offer_is_accepted_creates_the_hardware_and_both_answer_then(make_site) -> None:
    discover = sent_by(STRANGER)
    async with make_site(count=2) as site:
        offers = [read(reply).yiaddr for reply in site.send(discover)]
        assert offers[0] == offers[1]
        await site.boot(discover)
        assert site.api.count("create", of=HARDWARE) == 1
        replies = [read(reply) for reply in site.send(discover)]
        assert replies[0].yiaddr == replies[1].yiaddr == offers[0]
        created = [event for edge in site.edges for event in edge.events if "created" in event.message]
        assert len(created) == 1


async def test_edge_admits_the_machine_of_a_peer_that_is_gone(make_site) -> None:
    discover = sent_by(STRANGER)
    async with make_site(count=2) as site:
        offer = site.offer(discover)
        site.edges[1].send(discover)
        site.edges[1].responder.peers_changed(frozenset(), gone=frozenset({"10.77.0.1"}))
        assert site.edges[1].send(requesting(discover, offer)) is None
        await site.wait(1.0)
        ((ack,), (hardware,)) = map(read, site.late), site.hardware
        assert ack.options[options.SERVER_IDENTIFIER] == options.ipv4("10.77.0.1")
        assert (hardware, ack.yiaddr) == (NAME, offer.yiaddr)


async def test_rack_that_two_edges_see_gets_addresses_without_conflict(make_site) -> None:
    """Each machine accepts the offer of another edge than the machine before it."""
    async with make_site(count=2) as site:
        offers = [site.send(invented(number)) for number in range(40)]
        for number, pair in enumerate(offers):
            site.send(requesting(invented(number), read(pair[number % 2])))
            await turns(2)
        for _ in range(4):
            await site.wait()
            for number in range(40):
                if f"discovery-02-00-00-00-00-{number:02x}" not in site.hardware:
                    site.send(requesting(invented(number), read(site.send(invented(number))[number % 2])))
                    await turns(2)
        assert len(site.hardware) == 40
        replies = [site.send(invented(number)) for number in range(40)]
        assert all(reply is not None for pair in replies for reply in pair)
        assert len({read(reply).yiaddr for pair in replies for reply in pair}) == 40


async def test_machine_goes_on_while_its_hardware_is_being_deleted(make_site) -> None:
    async with make_site() as site:
        await site.boot(sent_by(STRANGER))
        await site.api.delete(HARDWARE, NAME, "default")
        assert site.hardware[NAME]["metadata"]["deletionTimestamp"]
        (reply,) = site.send(sent_by(STRANGER))
        assert message_type(reply) is MessageType.OFFER
        site.api.remove(HARDWARE, NAME)
        for _ in range(3):
            assert site.send(sent_by(STRANGER)) == [None]
            await site.wait()
        assert not site.hardware
        assert "less than 10 minutes ago" in site.line("not admitted: its discovered Hardware").message


# --- packets that admit no machine ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("packet", "where", "text"),
    [
        (PLAIN, {}, ""),
        (altered(PXE_DISCOVER, options={53: bytes([MessageType.REQUEST])}), {}, ""),
        (PXE_DISCOVER, {"port": 4011}, ""),
        (PXE_DISCOVER, {"source": "10.77.0.66"}, "its packet came from 10.77.0.66"),
        (relayed(PXE_DISCOVER, "10.79.0.1"), {"source": "10.79.0.1"}, "no rule of --discover is for its network"),
        (relayed(PXE_DISCOVER, "10.77.0.9"), {"source": "203.0.113.5"}, "name that address in --relays"),
    ],
    ids=["operating system", "request", "port 4011", "routed", "network", "relay"],
)
async def test_packet_of_another_kind_or_way_admits_no_machine(
    make_site, packet: bytes, where: dict[str, Any], text: str
) -> None:
    async with make_site(relays="10.77.0.9/32 10.79.0.1/32") as site:
        for _ in range(4):
            assert site.send(sent_by(STRANGER, packet), **where) == [None]
            await site.wait()
        assert not site.hardware
        refusals = [each.message for each in site.edge.events if each.outcome is Outcome.REFUSED]
        assert len(refusals) == bool(text)
        assert all(text in each for each in refusals)


async def test_reason_of_a_refusal_is_reported_once_a_minute(make_site) -> None:
    async with make_site(f"{RULE},mac=aa:bb") as site:
        for _ in range(40):
            site.send(sent_by(STRANGER))
            await site.wait()
        refusals = [each for each in site.edge.events if each.outcome is Outcome.REFUSED]
        assert len(refusals) == 2
        assert sum("manifest" in each.detail for each in site.edge.events) == 2, "one a minute, to register it by hand"
        assert refusals[0].message.startswith(
            "not admitted: rule rack7 is for MAC addresses that begin with aa:bb; add"
        )
        assert refusals[0].detail["reason"] == "other-mac"


@pytest.mark.parametrize("mode", [DhcpMode.PROXY, DhcpMode.AUTO_PROXY])
async def test_proxy_modes_admit_no_machine(make_edge: MakeEdge, mode: DhcpMode) -> None:
    def no_discovery(*_: Any) -> Any:
        class Discovery:
            def __getattr__(self, name: str) -> Any:
                raise AssertionError(name)

        return Discovery()

    edge = make_edge(mode=mode, discovery=no_discovery)
    for _ in range(3):
        edge.send(sent_by(STRANGER))
        edge.now += 3


# --- attacks ----------------------------------------------------------------------------------------------------------


async def test_hundred_thousand_invented_machines_do_not_crowd_out_a_real_one(make_site) -> None:
    """5,000 packets a second, each with another MAC. A real machine sends as its ROM does: after 4 and 8 s.

    Its REQUEST follows 4 s after the offer. Registered machines are answered all the time.
    """
    registered = [
        hardware(f"m{number}", f"52:54:00:00:01:{number:02x}", f"10.77.0.{number + 10}") for number in range(20)
    ]
    known = [sent_by(bytes.fromhex(f"5254000001{number:02x}")) for number in range(20)]
    answers, offer = 0, None
    async with make_site(machines=tuple(registered)) as site:
        for second in range(20):
            for number in range(5000):
                site.edge.now += 0.0002
                site.edge.send(invented(second * 5000 + number))
                if number == 4000 and second in (2, 6) and offer is None:
                    (offer,) = site.send(sent_by(STRANGER))
                if number == 4000 and second == 10:
                    assert site.send(requesting(sent_by(STRANGER), read(offer))) == [None]
                if number % 1000 == 0:
                    answers += sum(site.edge.send(packet) is not None for packet in known)
            await turns(5)
            await elapse(1.0)
        assert answers == 20 * 5 * 20
        assert set(site.hardware) - {f"m{number}" for number in range(20)} == {NAME}
        assert site.send(sent_by(STRANGER)) != [None]
        assert len(site.edge.responder.reservations) == 21
        assert len(site.edge.events) < 2500 + answers


async def test_machines_that_are_invented_and_accept_offers_fill_the_range_at_most(make_site) -> None:
    async with make_site(
        "range=10.77.0.100-10.77.0.119/24,osie=hook", machines=(hardware("m1", "52:54:00:00:01:01", "10.77.0.9"),)
    ) as site:
        for _ in range(10):
            for number in range(500):
                reply = site.edge.send(invented(number))
                if reply is not None and message_type(reply) is MessageType.OFFER:
                    site.edge.send(requesting(invented(number), read(reply)))
            await turns(50)
            assert site.edge.send(sent_by(bytes.fromhex("525400000101"))) is not None
            await site.wait()
        assert len(site.hardware) == 21
        metrics = {metric.name: metric for metric in site.writers[0].metrics()}
        assert metrics["tinkedge_discovery_admitted"].samples[0].value == 20
        assert metrics["tinkedge_discovery_waiting"].samples[0].value == 20
        assert metrics["tinkedge_discovery_free_addresses"].samples[0].value == 0
        assert any("has no free address; approve or delete" in each.message for each in site.edge.events)


async def test_flood_of_repeated_machines_on_a_link_does_not_silence_a_machine_behind_a_relay(make_site) -> None:
    """5,000 packets a second from 5,000 machines that do not exist. The real one sends at most four times."""
    rules = ("range=10.77.0.100-10.77.0.119/24,osie=hook", "range=10.78.0.100-10.78.0.119/24,osie=hook")
    discover, where = relayed(sent_by(STRANGER), "10.78.0.1"), {"source": "10.78.0.1", "source_port": 67}
    flood = [invented(number) for number in range(5000)]
    async with make_site(*rules) as site:
        packet = discover
        for second in range(20):
            for number, each in enumerate(flood):
                site.edge.now += 0.0002
                site.edge.send(each)
                if number == 4000 and second in (0, 4, 12, 16):
                    (reply,) = site.send(packet, **where)
                    packet = requesting(discover, read(reply)) if reply is not None else packet
            await turns(5)
            await elapse(1.0)
        assert list(site.hardware) == [NAME]


async def test_registered_machine_costs_no_look_at_the_admission(make_site) -> None:
    async with make_site(machines=(hardware("m1", "52:54:00:00:01:01", "10.77.0.9"),)) as site:
        packet = sent_by(bytes.fromhex("525400000101"))
        site.edge.send(packet)
        calls: list[str] = []
        for name in ("is_returning", "has_offer", "offer", "request"):
            setattr(site.writers[0], name, lambda *_, name=name: calls.append(name))
        for _ in range(3):
            assert site.edge.send(packet) is not None
        assert not calls


def test_relayed_packet_has_its_circuit() -> None:
    message: Message = codec.parse(relayed(PXE_DISCOVER, "10.77.0.9", circuit=b"port 1"))
    assert options.suboptions(message.options[82]) == {1: b"port 1"}
