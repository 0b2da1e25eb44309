"""The reason for lost answers to a relay, from the kernel; and the other Ethernet interfaces of this host."""

from __future__ import annotations

import subprocess

from edge.neighbour.links import other_ethernets
from edge.neighbour.table import delivery_problem
from tests.interop.conftest import Network
from tests.waiting import wait_until


def ip(network: Network, *words: str) -> None:
    subprocess.run(["ip", "-n", network.server, *words], check=True, capture_output=True)


def why(network: Network, address: str) -> str:
    found: str = network.inside(network.server, lambda: delivery_problem(address, ["srv0"]))
    return found


def test_reason_for_lost_answers_to_a_relay_is_found(network: Network) -> None:
    assert why(network, "10.98.0.1") == "this host has no route to it ('ip route get 10.98.0.1')"
    assert why(network, "10.77.6.51") == "no host answers ARP for it on srv0"
    assert why(network, "10.77.6.1").endswith("is this host's own address")
    assert why(network, "no address") == ""
    ip(network, "link", "add", "other0", "type", "veth", "peer", "name", "other1")
    ip(network, "address", "add", "10.99.0.1/24", "dev", "other0")
    ip(network, "link", "set", "other0", "up")
    ip(network, "link", "set", "other1", "up")
    assert why(network, "10.99.0.7") == "this host's route to it leads by other0, and its answers leave by srv0"
    network.give_client_its_address()
    network.meet()
    assert wait_until(lambda: not why(network, "10.77.6.50"))
    ip(network, "route", "add", "10.97.0.0/24", "via", "10.77.6.50")
    assert why(network, "10.97.0.1") == "", "what is behind the router is not known here"


def test_other_ethernets_are_interfaces_that_receive_packets_themselves(network: Network) -> None:
    """Ports of bridges and interfaces that are down do not count."""
    ip(network, "link", "add", "other0", "type", "veth", "peer", "name", "other1")
    ip(network, "link", "add", "bridge0", "type", "bridge")
    ip(network, "link", "set", "other1", "master", "bridge0", "up")
    assert network.inside(network.server, lambda: other_ethernets(["srv0"])) == []
    ip(network, "link", "set", "other0", "up")
    ip(network, "link", "set", "bridge0", "up")
    found = network.inside(network.server, lambda: other_ethernets(["srv0"]))
    assert sorted(found) == ["bridge0", "other0"]
