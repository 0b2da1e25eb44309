"""Interfaces appear and disappear; each has a server of its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence

import pytest
from scapy.layers.dhcp import BOOTP
from scapy.layers.inet import IP
from scapy.layers.l2 import Ether

from edge.dhcp import DhcpServer
from edge.neighbour import host as edge_host
from edge.run.networks.follow import HostNetworks
from edge.run.networks.services import NetworkServices, ServiceMakers
from tests.interop.conftest import Network, Server, Wire
from tests.interop.dhcp.conftest import DhcpLab, client_socket, message
from tests.waiting import wait_until

OpenWire = Callable[..., Wire]

SECOND_IP = "10.77.7.1"


@pytest.fixture
def second(network: Network) -> None:
    """Another cable between the two: `srv1` with 10.77.7.1/24, and `eth1`."""
    network.cable("eth1", "srv1", f"{SECOND_IP}/24")


def follow_interface(
    dhcp: DhcpLab, on_attempt: Callable[[], None] = lambda: None
) -> Callable[[], Awaitable[Sequence[Server]]]:
    """Return a function that starts a server which follows `srv0` as the edge does.

    `on_attempt()` is called before each attempt to serve the interface.
    """

    class Follower:
        async def start(self) -> None:
            self._networks = HostNetworks([edge_host.Network("srv0", dhcp.network.server_ip)])
            state = self._networks.states[0]
            self._services = NetworkServices(state, ServiceMakers(lambda state: dhcp.responder(state.address)))
            self._networks.add_follower(self._follow)
            await self._networks.start()
            self._running = asyncio.create_task(self._networks.run())

        async def _follow(self, state: edge_host.NetworkState) -> None:
            on_attempt()
            await self._services.follow(state)

        async def stop(self) -> None:
            self._running.cancel()
            self._networks.close()
            await self._services.stop()

    async def start() -> list[Follower]:
        server = Follower()
        await server.start()
        return [server]

    return start


@pytest.mark.usefixtures("second")
def test_two_interfaces_are_served_side_by_side_each_as_itself(network: Network, dhcp: DhcpLab, wire: OpenWire) -> None:
    # The second interface's machine is known too; both servers know both machines.
    dhcp.register("10.77.7.60", "52:54:00:cc:00:07", "lab-7")
    network.set_mac(network.client, "eth1", "52:54:00:cc:00:07")
    ears = [wire(network.client, "eth0"), wire(network.client, "eth1")]

    async def both() -> Sequence[DhcpServer]:
        return [*await dhcp.start("srv0"), *await dhcp.start("srv1", SECOND_IP)]

    with network.serving(both):
        assert dhcp.udhcpc().returncode == 0
        assert dhcp.learned("bound")["serverid"] == network.server_ip
        dhcp.forget()
        assert dhcp.udhcpc(interface="eth1").returncode == 0
        got = dhcp.learned("bound")
    assert (got["ip"], got["serverid"]) == ("10.77.7.60", SECOND_IP)
    for interface_ears, address in zip(ears, (network.server_ip, SECOND_IP), strict=True):
        packets = [Ether(frame) for frame in interface_ears.received()]
        assert {packet[IP].src for packet in packets if BOOTP in packet and packet[BOOTP].op == 2} == {address}


def test_second_address_of_the_interface_does_not_answer_instead(
    network: Network, dhcp: DhcpLab, wire: OpenWire
) -> None:
    # The kernel would choose the first for a broadcast; clients compare with option 54.
    network.add_address(network.server, "srv0", "10.77.6.2/24")
    ears = wire()
    with network.serving(lambda: dhcp.start("srv0", "10.77.6.2")):
        assert dhcp.udhcpc("-B").returncode == 0
        assert dhcp.udhcpc().returncode == 0
        network.give_client_its_address()
        with client_socket(network, network.client_ip, 67) as relay:
            # To an address of the interface that is not the server's, as some relays are configured.
            relay.sendto(message("discover", giaddr=network.client_ip), (network.server_ip, 67))
            assert relay.recvfrom(2000)[1] == ("10.77.6.2", 67)
    packets = [Ether(frame) for frame in ears.received()]
    assert {packet[IP].src for packet in packets if BOOTP in packet and packet[BOOTP].op == 2} == {"10.77.6.2"}


def test_interface_that_goes_down_and_up_is_served_again(network: Network, dhcp: DhcpLab) -> None:
    with network.serving(dhcp.start):
        assert dhcp.udhcpc().returncode == 0
        network.bounce(network.server, "srv0")
        assert dhcp.udhcpc("-T", "1", "-t", "8").returncode == 0


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_interface_that_is_replaced_between_two_polls_is_noticed(network: Network, dhcp: DhcpLab, loop: str) -> None:
    with network.serving(follow_interface(dhcp), loop):
        network.remove_cable("srv0")
        network.cable("eth0", "srv0", f"{network.server_ip}/24", mac=network.client_mac)
        assert dhcp.udhcpc("-T", "1", "-t", "8").returncode == 0


def test_interface_that_comes_back_with_its_port_taken_is_tried_again(
    network: Network, dhcp: DhcpLab, caplog: pytest.LogCaptureFixture
) -> None:
    attempts: list[None] = []
    with network.serving(follow_interface(dhcp, lambda: attempts.append(None))):
        network.remove_cable("srv0")
        wait_until(lambda: "there is no interface srv0" in caplog.text, "its loss was not noticed")
        other = network.inside(network.server, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        with other:
            other.bind(("0.0.0.0", 67))
            network.cable("eth0", "srv0", f"{network.server_ip}/24", mac=network.client_mac)
            wait_until(lambda: "another program has it" in caplog.text, "the taken port was not logged")
            before = len(attempts)
            wait_until(lambda: len(attempts) >= before + 2, "there is no other attempt")
        assert caplog.text.count("another program has it") == 1
        assert dhcp.udhcpc("-T", "1", "-t", "8").returncode == 0


def test_other_servers_of_the_host_can_not_share_the_port(network: Network, dhcp: DhcpLab) -> None:
    """SO_REUSEADDR does not help either: it would silently give another server half of the clients."""
    with network.serving(dhcp.start):
        for address in ("0.0.0.0", network.server_ip, "127.0.0.1"):
            other = network.inside(network.server, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            with other:
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                with pytest.raises(OSError, match="Address already in use"):
                    other.bind((address, 67))
