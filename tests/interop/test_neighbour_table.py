"""The kernel's neighbour table: who really answers for an address on our link."""

from __future__ import annotations

import socket
import subprocess
import time
from typing import Any

import pytest

from edge.neighbour.table import NeighbourTable

Network = Any

IP = "10.77.6.50"
OTHER_MAC = "52:54:00:99:99:99"


def neigh(network: Network, *words: str) -> None:
    command = ["ip", "-n", network.server, "neigh", *words]
    subprocess.run(command, check=True, capture_output=True)


def ask(network: Network, *interfaces: str, ip: str = IP) -> str | None:
    def inside() -> str | None:
        table = NeighbourTable(interfaces)
        try:
            return table.mac(ip)
        finally:
            table.close()

    found: str | None = network.inside(network.server, inside)
    return found


def test_machine_that_talks_to_us_is_known(network: Network) -> None:
    network.give_client_its_address()
    assert ask(network, "srv0") is None
    sender = network.inside(network.client, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    sender.sendto(b"x", (network.server_ip, 69))
    sender.close()
    give_up = time.monotonic() + 20
    while ask(network, "srv0") is None and time.monotonic() < give_up:
        time.sleep(0.02)
    assert ask(network, "srv0") == network.client_mac
    assert ask(network, "srv0", ip="10.77.6.51") is None
    assert ask(network, "lo") is None, "what another link says of it does not count"
    assert ask(network, "gone0", "lo", "srv0") == network.client_mac


@pytest.mark.parametrize(
    ("state", "known"),
    [("reachable", True), ("stale", True), ("delay", True), ("probe", True), ("permanent", True), ("noarp", False)],
)
def test_only_what_the_kernel_would_use_counts(network: Network, state: str, known: bool) -> None:
    neigh(network, "replace", IP, "lladdr", OTHER_MAC, "dev", "srv0", "nud", state)
    assert ask(network, "srv0") == (OTHER_MAC if known else None)


def test_address_that_nobody_answers_for_is_not_known(network: Network) -> None:
    """The kernel has an entry, but an incomplete or failed one."""
    sender = network.inside(network.server, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    sender.sendto(b"x", (IP, 9))
    sender.close()
    listed = subprocess.run(["ip", "-n", network.server, "neigh"], check=True, capture_output=True, text=True).stdout
    assert IP in listed
    assert ask(network, "srv0") is None


def test_address_that_this_host_answers_for_on_behalf_of_others_is_not_known(network: Network) -> None:
    neigh(network, "add", "proxy", IP, "dev", "srv0")
    assert ask(network, "srv0") is None


def test_a_thousand_questions_take_no_time(network: Network) -> None:
    """They are asked between two packets of other machines."""
    batch = "".join(f"neigh add 10.77.6.{n} lladdr 52:54:00:00:00:{n:02x} dev srv0 nud stale\n" for n in range(60, 250))
    subprocess.run(["ip", "-n", network.server, "-batch", "-"], input=batch, text=True, check=True)

    def inside() -> float:
        table = NeighbourTable(["srv0"])
        start = time.thread_time()
        for n in range(1000):
            address = 60 + n % 190
            assert table.mac(f"10.77.6.{address}") == f"52:54:00:00:00:{address:02x}"
        took = time.thread_time() - start
        table.close()
        return took

    assert network.inside(network.server, inside) < 0.5
