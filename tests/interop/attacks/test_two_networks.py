"""A host on one network of the edge claims the addresses of a machine on another network of the edge.

    edge's namespace: rack0 172.31.77.1, fd77:1::1 --- bridge --- "attacker" 172.31.77.51
                      rack1 172.31.78.1, fd77:2::1 --- bridge --- "victim" 172.31.78.50, and addresses of its own

`tinkedge up --ipv6` runs once with reservations and once beside another DHCP server. Both machines have a Hardware.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from scapy.layers.dhcp import BOOTP, DHCP
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import ICMPv6ND_NS, ICMPv6NDOptSrcLLAddr, IPv6
from scapy.layers.l2 import ARP, Ether

from tests.interop.attacks.soak.boot import first_packet
from tests.interop.conftest import Wire
from tests.interop.rack import ADDRESS, IN_EDGE, Kubectl, Namespaces, ip
from tests.support import objects
from tests.waiting import wait_until

VICTIM, ATTACKER = "victim", "attacker"
MACS: Final = {VICTIM: "52:54:00:0b:00:50", ATTACKER: "52:54:00:0b:00:51"}
IPS: Final = {VICTIM: "172.31.78.50", ATTACKER: "172.31.77.51"}
SLAAC, OTHER = "fd77:2::5054:ff:fe0b:50", "172.31.78.99"
"""Addresses of the victim that no Hardware reserves; the second is a lease of another DHCP server."""
EDGE_OF: Final = {VICTIM: "172.31.78.1", ATTACKER: ADDRESS}
EDGE6_OF: Final = {VICTIM: "fd77:2::1", ATTACKER: "fd77:1::1"}
USERDATA = "/2009-04-04/user-data"
SCRIPT = f"/ipxe/script/{MACS[VICTIM]}/auto.ipxe"


def hardware(name: str) -> dict[str, Any]:
    dhcp = {"netmask": "255.255.255.0", "gateway": EDGE_OF[name]}
    instance = {"userdata": f"user-data of {name}"}
    return objects.hardware(name, MACS[name], IPS[name], dhcp=dhcp, instance=instance, osie={"name": "stub"})


class TwoNetworks(Namespaces):
    """The edge on two networks, and a machine on each."""

    def __init__(self, directory: Path, mode: str) -> None:
        super().__init__(directory)
        self.mode = mode

    def build(self) -> None:
        self.add(IN_EDGE)
        for bridge, name in (("rack0", ATTACKER), ("rack1", VICTIM)):
            self.bridge(bridge, f"{EDGE_OF[name]}/24")
            ip("-n", self.namespaces[IN_EDGE], "address", "add", f"{EDGE6_OF[name]}/64", "dev", bridge, "nodad")
            self.add(name)
            self.card(name, "eth0", MACS[name], bridge)
            self.add_address(name, f"{IPS[name]}/24")
            ip("-n", self.namespaces[name], "route", "add", "default", "via", EDGE_OF[name])
        self.add_address(VICTIM, f"{SLAAC}/64")
        self.add_address(VICTIM, f"{OTHER}/24")
        self.add_address(ATTACKER, "fd77:1::51/64")
        items = [objects.osie("stub"), hardware(VICTIM), hardware(ATTACKER)]
        data = self.directory / "data"
        networks = ["--interface", "rack0", "--interface", "rack1", "--ipv6", "--dhcp-mode", self.mode]
        self.process = self.tinkedge(IN_EDGE, "up", *networks, "--data-dir", data)
        self.ready(self.process)
        Kubectl(self, data / "kubeconfig").apply(json.dumps({"kind": "List", "apiVersion": "v1", "items": items}))
        wait_until(lambda: "user-data of victim" in self.get(VICTIM, IPS[VICTIM], USERDATA))

    def add_address(self, name: str, address: str) -> None:
        words = ["nodad"] if ":" in address else []
        ip("-n", self.namespaces[name], "address", "add", address, "dev", "eth0", *words)

    @contextmanager
    def taken(self, address: str) -> Iterator[None]:
        """The attacker has that address, too."""
        whole = f"{address}/{128 if ':' in address else 32}"
        self.add_address(ATTACKER, whole)
        try:
            yield
        finally:
            ip("-n", self.namespaces[ATTACKER], "address", "del", whole, "dev", "eth0")

    def get(self, name: str, source: str, path: str) -> str:
        """Return the status and the body that a machine receives from its own edge's address, sending from `source`."""
        host = f"[{EDGE6_OF[name]}]" if ":" in source else EDGE_OF[name]
        words = ("-sg", "--max-time", "5", "--interface", source, "-w", " %{http_code}")
        return self.run(name, "curl", *words, f"http://{host}:7080{path}").out

    def tftp(self, name: str, source: str, attempts: int = 3) -> bytes:
        """Return the first packet of the victim's script by TFTP; empty if there is none."""
        server = EDGE6_OF[name] if ":" in source else EDGE_OF[name]
        return first_packet(self.namespaces[name], source, server, f"{MACS[VICTIM]}/auto.ipxe", attempts)

    def claim(self, address: str) -> None:
        """Announce the address on the attacker's network until the edge's kernel has an entry for it."""
        mac = MACS[ATTACKER]

        def claimed() -> bool:
            wire.send(lie(mac, address))
            return mac in self.run(IN_EDGE, "ip", "neigh", "show", address, "dev", "rack0").out

        with closing(Wire(self.namespaces[ATTACKER], "eth0")) as wire:
            wait_until(claimed, lambda: self.run(IN_EDGE, "ip", "neigh").out)

    def journey(self, name: str) -> list[str]:
        answer = self.operators(self.directory / "data", f"/api/v1/machines/{MACS[name]}/events")
        events: list[dict[str, Any]] = json.loads(answer)
        return [event["message"] for event in events]


def lie(mac: str, address: str) -> bytes:
    """Return an ARP or neighbour request to the edge on the first network, from a host that claims this address."""
    if ":" in address:
        target = EDGE6_OF[ATTACKER]
        question = ICMPv6ND_NS(tgt=target) / ICMPv6NDOptSrcLLAddr(lladdr=mac)
        return bytes(
            Ether(src=mac, dst="33:33:ff:00:00:01") / IPv6(src=address, dst="ff02::1:ff00:1", hlim=255) / question
        )
    return bytes(Ether(src=mac, dst="ff:ff:ff:ff:ff:ff") / ARP(op=1, hwsrc=mac, psrc=address, pdst=EDGE_OF[ATTACKER]))


@pytest.fixture(scope="module", params=["reservation", "proxy"])
def site(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[TwoNetworks]:
    with TwoNetworks(tmp_path_factory.mktemp("two-networks"), request.param) as made:
        yield made


def own_addresses(site: TwoNetworks) -> list[str]:
    """Return the addresses at which the edge identifies the victim by the neighbour table."""
    return [IPS[VICTIM], SLAAC] + ([OTHER] if site.mode == "proxy" else [])


def test_claim_on_another_network_does_not_affect_the_machine(site: TwoNetworks) -> None:
    addresses = own_addresses(site)
    for address in addresses:
        assert site.get(VICTIM, address, USERDATA) == "user-data of victim 200"
        site.claim(address)
        assert site.get(VICTIM, address, USERDATA) == "user-data of victim 200", address
        assert MACS[VICTIM] in site.get(VICTIM, address, SCRIPT), address
        assert site.tftp(VICTIM, address)[:4] == b"\0\3\0\1", address


def test_agent_of_the_machine_is_served_as_before(site: TwoNetworks) -> None:
    site.claim(IPS[VICTIM])
    state = site.directory / "agent"
    words = ("agent", "--agent-id", MACS[VICTIM], "--server", f"{EDGE_OF[VICTIM]}:42113", "--runtime", "process")
    agent = site.tinkedge(VICTIM, *words, "--state-dir", state)
    wait_until(lambda: re.search("connected|waiting|PERMISSION", agent.err), lambda: agent.err)
    agent.end()
    assert "PERMISSION" not in agent.err
    assert "its address is that of another machine" not in agent.err


def test_packets_from_a_machines_address_on_another_network_receive_none_of_its_data(site: TwoNetworks) -> None:
    for address in own_addresses(site):
        with site.taken(address):
            site.claim(address)
            answer = site.tftp(ATTACKER, address, attempts=1)
            assert b"victim" not in answer
            assert answer[:2] != b"\0\3", answer
            assert "user-data of victim" not in site.get(ATTACKER, address, USERDATA)
    assert site.get(ATTACKER, IPS[ATTACKER], USERDATA) == "user-data of attacker 200"


def test_gateway_of_the_edge_receives_no_data_of_machines_on_another_network(site: TwoNetworks) -> None:
    """The edge's default route leads to the attacker's network, and so do answers of a socket that is bound there."""
    for address, gateway in ((IPS[VICTIM], IPS[ATTACKER]), (SLAAC, "fd77:1::51")):
        route = ["default", "via", gateway, "dev", "rack0"]
        ip("-n", site.namespaces[IN_EDGE], "route", "add", *route)
        try:
            with site.taken(address):
                answer = site.tftp(ATTACKER, address)
                assert answer[:2] == b"\0\5", answer
                assert b"victim" not in answer
                assert site.tftp(VICTIM, address)[:4] == b"\0\3\0\1", address
        finally:
            ip("-n", site.namespaces[IN_EDGE], "route", "del", *route)


@pytest.mark.parametrize("site", ["reservation"], indirect=True)
@pytest.mark.parametrize("relay", ["0.0.0.0", "172.31.78.9"], ids=["as the machine", "as its relay"])
def test_decline_on_another_network_has_no_effect_although_its_sender_answers_the_probes(
    site: TwoNetworks, relay: str
) -> None:
    chaddr = bytes.fromhex(MACS[VICTIM].replace(":", ""))
    words = [("message-type", "decline"), ("server_id", ADDRESS), ("requested_addr", IPS[VICTIM]), "end"]
    source, target = ("0.0.0.0", "255.255.255.255") if relay == "0.0.0.0" else (IPS[ATTACKER], ADDRESS)
    packet = IP(src=source, dst=target) / UDP(sport=68, dport=67) / BOOTP(op=1, xid=7, chaddr=chaddr, giaddr=relay)
    decline = bytes(Ether(src=MACS[ATTACKER], dst="ff:ff:ff:ff:ff:ff") / packet / DHCP(options=words))
    with closing(Wire(site.namespaces[ATTACKER], "eth0")) as wire:

        def reported() -> list[str]:
            wire.send(decline)
            wire.send(lie(MACS[ATTACKER], IPS[VICTIM]))
            return [message for message in site.journey(VICTIM) if "DECLINE" in message]

        wait_until(reported, lambda: site.process.err)
    why = "the link that it came from is not" if relay == "0.0.0.0" else f"it comes from {IPS[ATTACKER]} and not from"
    assert any(f"is not believed: {why}" in line for line in site.journey(VICTIM)), site.journey(VICTIM)
    assert not any("already uses" in line for line in site.journey(VICTIM))
