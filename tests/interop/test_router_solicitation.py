"""A real IPv6 host solicits a router and hears that there is none."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

import pytest

from edge.neighbour.router_advertisement import RouterAdvertiser, RouterAdvertiserError
from tests.interop.conftest import Network

# A socket that receives router advertisements (RFC 4861, section 4.2) alone; the hop limit is an argument.
OPEN = """
import socket, struct, sys, time
scope = socket.if_nametoindex("eth0")
s = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
s.setsockopt(socket.IPPROTO_ICMPV6, 1, struct.pack("=8I", *[0xffffffff] * 4, 0xffffffff & ~(1 << 6), *[0xffffffff] * 3))
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, int(sys.argv[1]))
"""

# Solicits like iPXE does, from its link-local address, and prints what comes back.
SOLICIT = f"""{OPEN}
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVHOPLIMIT, 1)
s.settimeout(float(sys.argv[2]))
for _ in range(40):  # until duplicate address detection has let the kernel use the link-local address
    try:
        s.sendto(bytes((133, 0)) + bytes(6), ("ff02::2", 0, 0, scope))
        break
    except OSError:
        time.sleep(0.1)
packet, ancillary, _, source = s.recvmsg(1500, 64)
print(packet.hex(), struct.unpack("=i", ancillary[0][2])[0], source[0])
"""


# Solicits 3,000 times at once, then waits for an advertisement to all nodes; prints the number of earlier ones.
FLOOD = f"""{OPEN}
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
s.settimeout(30)
for _ in range(3000):
    s.sendto(bytes((133, 0)) + bytes(6), ("ff02::2", 0, 0, scope))
single = 0
try:
    while s.recvmsg(1500, 64)[1][0][2][0] != 0xff:
        single += 1
finally:
    print(single)
"""


async def start() -> Sequence[RouterAdvertiser]:
    advertiser = RouterAdvertiser("srv0")
    await advertiser.start()
    return [advertiser]


@pytest.fixture
def ipv6(network: Network) -> Network:
    """Addresses at once, without the second that duplicate address detection takes, and no solicitations but ours."""
    for namespace, interface in ((network.server, "srv0"), (network.client, "eth0")):
        network.sysctl(namespace, f"net.ipv6.conf.{interface}.accept_dad", "0")
        network.sysctl(namespace, f"net.ipv6.conf.{interface}.router_solicitations", "0")
        network.bounce(namespace, interface)
    return network


def test_solicitation_is_answered_with_router_lifetime_zero_and_the_host_gets_no_route_and_no_address(
    ipv6: Network,
) -> None:
    ipv6.sysctl(ipv6.client, "net.ipv6.conf.eth0.accept_ra", "2")
    with ipv6.serving(start):
        packet, hop_limit, source = ipv6.run("python3", "-c", SOLICIT, "255", "10").stdout.split()
        assert bytes.fromhex(packet)[0] == 134
        assert bytes.fromhex(packet)[5:] == bytes(11)
        assert hop_limit == "255"
        assert source.startswith("fe80:")
        routes = json.loads(ipv6.run("ip", "-6", "-j", "route", "show", "default").stdout or "[]")
        assert routes == []
        addresses = json.loads(ipv6.run("ip", "-6", "-j", "address", "show", "dev", "eth0", "scope", "global").stdout)
        assert not any(entry.get("addr_info") for entry in addresses)


def test_forwarded_solicitation_is_not_answered_and_a_flood_is_answered_together(ipv6: Network) -> None:
    with ipv6.serving(start):
        assert "timed out" in ipv6.run("python3", "-c", SOLICIT, "64", "1").stderr
        done = ipv6.run("python3", "-c", FLOOD, "255")
    assert int(done.stdout) < 1000, done.stderr


# What `--router-advertisements` does if it is not given: iPXE alone is answered, where no router is heard.

MAC_OF_CLIENT = "open('/sys/class/net/eth0/address').read().strip()"

# A router of the link, which says M: it advertises once.
ADVERTISE = """
import socket, struct, time
scope = socket.if_nametoindex("eth0")
s = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
for _ in range(40):
    try:
        s.sendto(struct.pack("!BBHBBHII", 134, 0, 0, 64, 0x80, 1800, 0, 0), ("ff02::1", 0, 0, scope))
        break
    except OSError:
        time.sleep(0.1)
"""


def test_only_an_expected_host_is_answered(ipv6: Network) -> None:
    mac = ipv6.run("python3", "-c", f"print({MAC_OF_CLIENT})").stdout.strip()
    solicited: list[str] = []
    wanted = {mac}

    async def start_for_ipxe() -> Sequence[RouterAdvertiser]:
        advertiser = RouterAdvertiser("srv0", only=wanted.__contains__, on_solicitation=solicited.append)
        await advertiser.start()
        return [advertiser]

    with ipv6.serving(start_for_ipxe):
        packet, hop_limit, source = ipv6.run("python3", "-c", SOLICIT, "255", "10").stdout.split()
        assert (bytes.fromhex(packet)[0], bytes.fromhex(packet)[5:], hop_limit) == (134, bytes(11), "255")
        assert source.startswith("fe80:")
        wanted.clear()
        assert "timed out" in ipv6.run("python3", "-c", SOLICIT, "255", "2").stderr
    assert set(solicited) == {mac}


def test_no_advertisement_is_sent_beside_a_router(ipv6: Network) -> None:
    async def start_for_ipxe() -> Sequence[RouterAdvertiser]:
        advertiser = RouterAdvertiser("srv0", only=lambda _mac: True)
        await advertiser.start()
        return [advertiser]

    with ipv6.serving(start_for_ipxe):
        assert ipv6.run("python3", "-c", SOLICIT, "255", "10").stdout, "it is answered as long as no router is heard"
        assert ipv6.run("python3", "-c", ADVERTISE).stderr == ""
        assert "timed out" in ipv6.run("python3", "-c", SOLICIT, "255", "3").stderr


async def test_interface_without_ipv6_is_no_error_by_default(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    advertiser = RouterAdvertiser("nic9", only=lambda _mac: True)
    await advertiser.start()
    assert "; iPXE waits 16 s for a router there" in caplog.text
    await advertiser.stop()


async def test_missing_interface_is_an_error() -> None:
    with pytest.raises(RouterAdvertiserError, match="on nic9 can't be answered: there is no such interface"):
        await RouterAdvertiser("nic9").start()
