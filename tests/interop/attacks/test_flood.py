"""A flood of datagrams to all servers at once, while a machine requests its metadata.

    edge's namespace: rack0 172.31.77.1 --- bridge --- "honest" .50, "attacker" .51

In the first test the edge is stopped (SIGSTOP) while its sockets fill and the machine's requests arrive, so the kernel
has all of them when the edge continues. The test counts the edge's packets in the order in which the kernel sends them,
so the speed of the host makes no difference. In the second test the flood continues until the machine has all its
answers (`datagram_flood`).
"""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.interop.attacks.datagram_flood import POOLS, solicit
from tests.interop.attacks.soak.boot import ACK, DISCOVER, Card, NotServedError, http, lease, packet
from tests.interop.cloud_init.rack import MetadataRack, Registered
from tests.interop.conftest import Wire, in_namespace
from tests.interop.rack import ADDRESS, IN_EDGE, ip
from tests.waiting import wait_until

HONEST = Registered("honest", "52:54:00:00:0a:50", "172.31.77.50", userdata="password: 8h1t")
REQUESTS = 29
DATAGRAMS = 3000
"""Number of datagrams to each of the servers."""
ANSWERS_PER_REQUEST = 32
"""Maximum number of DHCP answers for each HTTP request that the edge answers meanwhile.

The edge sends 18; without a budget all 3000 left before the last response.
"""
PATHS = ("/2009-04-04/user-data", "/auto.ipxe")
EXPECTED = (b"8h1t", b"#!ipxe")
FLOOD = "tests.interop.attacks.datagram_flood"
PER_SECOND = 2000
"""Maximum number of datagrams of each sender while the machine sends its requests."""
_REQUEST = f"GET /2009-04-04/user-data HTTP/1.1\r\nHost: {ADDRESS}:7080\r\nCookie: none\r\n\r\n".encode()
"""A request with a header that the fast path does not know: it takes several turns of the loop."""
_COOKIE = b"\x63\x82\x53\x63"  # RFC 2131 section 3


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[MetadataRack]:
    with MetadataRack(tmp_path) as rack:
        rack.up("--ipv6", "--syslog", "on")
        rack.register(HONEST)
        rack.add("attacker")
        rack.card("attacker", "eth0", "52:54:00:00:0a:51", "rack0")
        rack.address("attacker", "172.31.77.51/24")
        ip("-n", rack.namespaces["attacker"], "address", "add", "fe80::51/64", "dev", "eth0", "nodad")
        yield rack


def flood() -> None:
    """Send DATAGRAMS to each server: DISCOVERs in the machine's name, the rest from an unregistered MAC."""
    rng = random.Random(1)
    scope = socket.if_nametoindex("eth0")
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as four,
        socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as six,
    ):
        four.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        four.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0\0")
        for number in range(DATAGRAMS):
            four.sendto(packet(DISCOVER, HONEST.mac, number), ("255.255.255.255", 67))
            six.sendto(solicit(rng), ("ff02::1:2", 547, 0, scope))
            four.sendto(b"<30>flood: a line", (ADDRESS, 514))
            four.sendto(b"\0\1%d\0octet\0tsize\x000\0" % number, (ADDRESS, 69))


class ReceivedAnswers:
    """Counts the frames at the machine's interface, in the order in which the edge sent them."""

    def __init__(self, namespace: str) -> None:
        self.wire = Wire(namespace, "eth0")
        self._segments: set[bytes] = set()
        self.responses = 0
        self.offers = 0
        self.offers_before_last_response = 0

    def listen(self) -> None:
        for frame in self.wire.received():
            if frame[12:14] != b"\x08\0" or frame[26:30] != socket.inet_aton(ADDRESS):
                continue
            if frame[23] == socket.IPPROTO_UDP:
                self.offers += frame.count(_COOKIE)
            elif (responses := frame.count(b"HTTP/1.1 200")) and (sequence := frame[38:42]) not in self._segments:
                self._segments.add(sequence)  # TCP repeats a segment if the machine acknowledges it late.
                self.responses += responses
                self.offers_before_last_response = self.offers
        self.wire.frames.clear()


def test_metadata_is_answered_between_the_datagrams_of_a_flood_and_dhcp_answers_all(rack: MetadataRack) -> None:
    honest, edge = rack.namespaces["honest"], rack.process.popen
    assert rack.get(HONEST, "/2009-04-04/user-data") == HONEST.userdata
    with ExitStack() as stack:
        received = ReceivedAnswers(honest)
        stack.callback(received.wire.close)
        edge.send_signal(signal.SIGSTOP)
        stack.callback(edge.send_signal, signal.SIGCONT)
        in_namespace(rack.namespaces["attacker"], flood)
        machine = stack.enter_context(in_namespace(honest, lambda: socket.create_connection((ADDRESS, 7080), 30)))
        machine.sendall(_REQUEST * REQUESTS)
        edge.send_signal(signal.SIGCONT)

        def all_answered() -> bool:
            received.listen()
            return received.responses >= REQUESTS and received.offers >= DATAGRAMS

        wait_until(all_answered, lambda: vars(received))
    assert received.responses == REQUESTS
    assert received.offers_before_last_response <= REQUESTS * ANSWERS_PER_REQUEST


async def patient(card: Card, path: str) -> bytes:
    """Return the response to an HTTP request. Each attempt uses a new connection, until one is answered."""
    while True:
        try:
            status, body = await http(card, path)
        except (OSError, TimeoutError, NotServedError):
            continue
        assert status == 200, body
        return body


async def boot(card: Card) -> list[bytes]:
    """Complete the machine's DHCP exchange and all its requests."""
    async with asyncio.timeout(600):
        given = await lease(card, random.Random(2))
        assert (given.kind, given.ip) == (ACK, HONEST.address)
        return [await patient(card, PATHS[number % len(PATHS)]) for number in range(REQUESTS)]


def test_machine_is_served_while_invented_senders_flood_four_ports(rack: MetadataRack) -> None:
    mac = rack.run(IN_EDGE, "cat", "/sys/class/net/rack0/address").out.strip()
    words = str(PER_SECOND), mac, ADDRESS, HONEST.mac
    senders = [rack.start("attacker", sys.executable, "-m", FLOOD, service, *words) for service in POOLS]
    wait_until(lambda: all(sender.out for sender in senders), lambda: [sender.err for sender in senders])
    answers = asyncio.run(boot(Card(rack.namespaces["honest"], ADDRESS, HONEST.mac)))
    assert [sender.popen.poll() for sender in senders] == [None] * len(POOLS), "the flood ended before the machine did"
    for number, answer in enumerate(answers):
        assert EXPECTED[number % len(PATHS)] in answer
    assert "addresses on the link that the kernel knows no MAC of" in rack.process.err
