"""Who is calling: a mistake here gives a machine another one's script, metadata and secrets."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest

from edge.callers import Callers, by_address
from edge.machines import DhcpMode, Inventory

A, B, C = "52:54:00:00:00:0a", "52:54:00:00:00:0b", "52:54:00:00:00:0c"
SPARE = "52:54:00:00:00:1a"
PROXY = [DhcpMode.PROXY, DhcpMode.AUTO_PROXY, DhcpMode.OFF]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Table:
    """A neighbour table, the addresses on our links, and the number of queries.

    `bound` has entries by address and by the interface that the answering socket is bound to; `routes` has the
    interface that the route to an address uses.
    """

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}
        self.bound: dict[tuple[str, str], str] = {}
        self.routes: dict[str, str] = {}
        self.links: set[str] = set()
        self.asked = 0

    def mac(self, ip: str, interface: str = "") -> str | None:
        self.asked += 1
        return self.bound.get((ip, interface)) if interface else self.entries.get(ip)

    def on_link(self, ip: str, interface: str = "") -> bool:
        return bool(interface) or ip in self.links

    def link(self, ip: str) -> str:
        return self.routes.get(ip, "")


def hardware(name: str, mac: str, ip: str | None) -> dict[str, Any]:
    interface: dict[str, Any] = {"dhcp": {"ip": ip}} if ip else {}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"networkInterfaces": {mac: interface}}}


@pytest.fixture
def inventory() -> Inventory:
    """`a` and `b` reserve addresses, `c` does not."""
    made = Inventory()
    made.apply(hardware("a", A, "10.0.0.1"))
    made.apply(hardware("b", B, "10.0.0.2"))
    made.apply(hardware("c", C, None))
    return made


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.fixture
def proxy(inventory: Inventory, table: Table, clock: Clock) -> Callers:
    return Callers(inventory, DhcpMode.PROXY, table, clock)


def name(found: Callers, ip: str) -> str | None:
    machine = found.machine(ip)
    return machine.name if machine is not None else None


def at(found: Callers, inventory: Inventory, mac: str, ip: str) -> bool:
    machine = inventory.by_mac(mac)
    assert machine is not None
    there = found.machine(ip)
    return there is not None and (there.mac, there.name) == (machine.mac, machine.name)


def test_where_we_give_addresses_a_machine_is_at_its_own_and_nowhere_else(inventory: Inventory, table: Table) -> None:
    found = Callers(inventory, DhcpMode.RESERVATION, table)
    table.entries["10.0.0.9"] = A
    found.learn(A, "10.0.0.9")
    assert (name(found, "10.0.0.1"), name(found, "10.0.0.9"), found.mac("10.0.0.9")) == ("a", None, A)
    assert at(found, inventory, A, "10.0.0.1")
    assert not at(found, inventory, A, "10.0.0.9")
    assert not at(found, inventory, A, "10.0.0.2")
    assert not at(found, inventory, C, "10.0.0.3")
    assert not found._machines._by_mac, "what is not looked at is not kept"


@pytest.fixture
def giving(inventory: Inventory, table: Table, clock: Clock) -> Callers:
    """Where this edge gives out the addresses."""
    return Callers(inventory, DhcpMode.RESERVATION, table, clock)


@pytest.mark.parametrize("other", [B, "52:54:00:99:99:99"])
def test_second_address_on_a_machine_does_not_make_it_another_one(giving: Callers, table: Table, other: str) -> None:
    table.entries["10.0.0.1"] = other
    for connected in (True, False):
        assert giving.machine("10.0.0.1", connected=connected) is None
        assert giving.mac("10.0.0.1", connected=connected) == other


def test_machine_answers_at_its_address_with_any_of_its_cards(
    inventory: Inventory, giving: Callers, table: Table
) -> None:
    two = hardware("a", A, "10.0.0.1")
    two["spec"]["networkInterfaces"][SPARE] = {}
    inventory.apply(two)
    table.entries["10.0.0.1"] = SPARE
    assert (name(giving, "10.0.0.1"), giving.mac("10.0.0.1")) == ("a", A)


def test_machine_behind_a_router_is_known_by_its_address(giving: Callers) -> None:
    machine = giving.machine("10.0.0.1", connected=True)
    assert machine is not None
    assert (machine.name, giving.mac("10.0.0.1", connected=True)) == ("a", A)


@pytest.mark.parametrize("mode", [DhcpMode.RESERVATION, *PROXY])
def test_who_is_on_our_link_without_an_entry_is_nobody_yet_on_a_connection(
    inventory: Inventory, table: Table, clock: Clock, mode: DhcpMode
) -> None:
    """Who lets the entry run out and then sends the rest of a request would have been taken for the address's owner."""
    found = Callers(inventory, mode, table, clock)
    table.links.add("10.0.0.1")
    assert found.is_hidden("10.0.0.1")
    assert found.is_unresolved("10.0.0.1")
    assert found.machine("10.0.0.1", connected=True) is None
    assert found.mac("10.0.0.1", connected=True) is None
    assert name(found, "10.0.0.1") == "a", "a datagram may come before the kernel has asked who sends it"
    table.entries["10.0.0.1"] = A
    assert found.machine("10.0.0.1", connected=True) is not None, "the next moment, it is known"


def test_who_else_is_at_an_address_is_told_to_the_server_of_agents(giving: Callers, table: Table) -> None:
    assert giving.stranger("10.0.0.1", (A,)) is None, "behind a router"
    table.entries["10.0.0.2"] = B
    assert giving.stranger("10.0.0.2", (A, B)) is None
    assert giving.stranger("10.0.0.2", (A,)) == B
    table.links.add("10.0.0.3")
    assert "does not know" in (giving.stranger("10.0.0.3", (A,)) or "")


def test_takeover_of_an_address_is_noticed_when_the_kernel_tells_of_it(giving: Callers, table: Table) -> None:
    table.entries["10.0.0.1"] = A
    assert name(giving, "10.0.0.1") == "a"
    table.entries["10.0.0.1"] = B
    giving.changed("10.0.0.2")
    assert name(giving, "10.0.0.1") == "a"
    giving.changed("10.0.0.1")
    assert name(giving, "10.0.0.1") is None
    table.entries["10.0.0.1"] = A
    giving.changed(None)
    assert name(giving, "10.0.0.1") == "a"


def test_network_known_by_address_is_known_so(inventory: Inventory, table: Table, clock: Clock) -> None:
    """Where a router answers ARP for the machines, all have its MAC."""
    networks = (ipaddress.IPv4Network("10.0.0.0/31"),)
    found = Callers(inventory, DhcpMode.RESERVATION, table, clock, by_address=networks)
    table.entries |= dict.fromkeys(("10.0.0.1", "10.0.0.2"), "52:54:00:99:99:99")
    assert (name(found, "10.0.0.1"), name(found, "10.0.0.2")) == ("a", None)


def test_address_that_two_reserve_is_nobodys(inventory: Inventory) -> None:
    inventory.apply(hardware("b", B, "10.0.0.1"))
    found = Callers(inventory)
    assert name(found, "10.0.0.1") is None
    assert not at(found, inventory, A, "10.0.0.1")


@pytest.mark.parametrize("mode", PROXY)
def test_machine_on_our_link_is_known_by_its_hardware_address(
    inventory: Inventory, table: Table, clock: Clock, mode: DhcpMode
) -> None:
    found = Callers(inventory, mode, table, clock)
    table.entries["10.0.0.77"] = C
    assert name(found, "10.0.0.77") == "c"
    assert at(found, inventory, C, "10.0.0.77")
    assert not at(found, inventory, A, "10.0.0.77")


def test_machine_that_speaks_dhcp_in_anothers_name_does_not_become_it(
    proxy: Callers, inventory: Inventory, table: Table
) -> None:
    table.entries["10.0.0.50"] = B
    proxy.learn(A, "10.0.0.50")
    assert name(proxy, "10.0.0.50") == "b"
    assert not at(proxy, inventory, A, "10.0.0.50")


def test_stranger_on_our_link_at_a_reserved_address_does_not_become_its_owner(
    proxy: Callers, inventory: Inventory, table: Table
) -> None:
    table.entries["10.0.0.1"] = "52:54:00:99:99:99"
    assert proxy.machine("10.0.0.1") is None
    assert proxy.mac("10.0.0.1") == "52:54:00:99:99:99"
    assert not at(proxy, inventory, A, "10.0.0.1")


def test_machine_behind_a_relay_is_known_by_what_it_said_to_the_other_server(proxy: Callers) -> None:
    proxy.learn(C, "10.9.0.7")
    assert name(proxy, "10.9.0.7") == "c"


def test_what_was_said_last_counts(proxy: Callers) -> None:
    proxy.learn(A, "10.9.0.7")
    proxy.learn(A, "10.9.0.8")
    assert (proxy.mac("10.9.0.7"), proxy.mac("10.9.0.8")) == (None, A)
    proxy.learn(B, "10.9.0.8")
    assert proxy.mac("10.9.0.8") == B
    assert name(proxy, "10.0.0.1") == "a", "its address is not known otherwise"


def test_address_that_a_stranger_took_over_is_no_longer_the_machines(proxy: Callers) -> None:
    proxy.learn(A, "10.9.0.7")
    proxy.learn("52:54:00:99:99:99", "10.9.0.7")
    assert proxy.machine("10.9.0.7") is None
    proxy.learn(A, "10.9.0.7")
    assert name(proxy, "10.9.0.7") == "a"


def test_machine_known_to_be_elsewhere_is_not_at_the_address_of_its_hardware(proxy: Callers) -> None:
    assert name(proxy, "10.0.0.1") == "a"
    proxy.learn(A, "10.9.0.7")
    assert proxy.machine("10.0.0.1") is None


def test_what_dhcp_said_is_not_believed_for_ever(proxy: Callers, clock: Clock) -> None:
    proxy.learn(C, "10.9.0.7")
    clock.now += by_address.LEARNT_SECONDS - 1
    assert name(proxy, "10.9.0.7") == "c"
    clock.now += 1
    assert proxy.machine("10.9.0.7") is None


def test_flood_of_made_up_macs_pushes_no_registered_machine_out(
    proxy: Callers, monkeypatch: pytest.MonkeyPatch, inventory: Inventory
) -> None:
    proxy.learn(C, "10.9.0.7")
    for number in range(by_address.MAX_STRANGERS + 10):
        proxy.learn(f"02:00:00:00:{number >> 8:02x}:{number & 255:02x}", f"10.8.{number >> 8}.{number & 255}")
    assert name(proxy, "10.9.0.7") == "c"
    assert len(proxy._strangers._by_mac) == len(proxy._strangers._by_ip) == by_address.MAX_STRANGERS
    assert proxy.mac("10.8.0.9") is None, "the oldest went"
    assert proxy.mac("10.8.0.10") is not None
    monkeypatch.setattr(proxy._machines, "_capacity", 2)
    proxy.learn(A, "10.9.0.8")
    proxy.learn(C, "10.9.0.7")
    proxy.learn(B, "10.9.0.9")
    assert [proxy.mac(f"10.9.0.{n}") for n in (7, 8, 9)] == [C, None, B], "the one heard of longest ago went"


def test_kernel_is_asked_once_a_second_for_an_address(proxy: Callers, table: Table, clock: Clock) -> None:
    table.links.add("10.0.0.50")
    table.entries["10.0.0.50"] = B
    for _ in range(100):
        assert proxy.mac("10.0.0.50") == B
    assert table.asked == 1
    table.entries["10.0.0.50"] = C
    clock.now += by_address.NEIGHBOUR_SECONDS
    assert proxy.mac("10.0.0.50") == C
    del table.entries["10.0.0.50"]
    clock.now += by_address.NEIGHBOUR_SECONDS
    assert proxy.mac("10.0.0.50") is None
    table.entries["10.0.0.50"] = A
    assert proxy.mac("10.0.0.50") == A, "that there is none is no answer to keep"


def test_callers_from_many_addresses_fill_no_memory(proxy: Callers, table: Table) -> None:
    for number in range(by_address._MAX_NEIGHBOURS + 100):
        ip = f"10.7.{number >> 8}.{number & 255}"
        table.entries[ip] = B
        proxy.mac(ip)
    assert len(proxy._neighbour_of) == by_address._MAX_NEIGHBOURS


def test_mac_that_two_hardware_claim_is_neither(proxy: Callers, table: Table, inventory: Inventory) -> None:
    inventory.apply(hardware("d", B, "10.0.0.4"))
    table.entries["10.0.0.50"] = B
    assert proxy.machine("10.0.0.50") is None
    assert proxy.mac("10.0.0.50") == B


def test_machine_with_ipv6_is_known_by_its_reserved_address_and_wherever_the_kernel_knows_its_mac(
    inventory: Inventory, clock: Clock
) -> None:
    reserved = hardware("d", C, None)
    reserved["spec"]["networkInterfaces"][C] = {"dhcp": {"ipv6": {"address": "fd00::d"}}}
    inventory.apply(reserved)
    inventory.remove(hardware("c", C, None))
    inventory.apply(reserved)
    table = Table()
    table.links = {"fd00::d", "fe80::d", "fd00::99", "10.0.0.9"}
    callers = Callers(inventory, neighbours=table, clock=clock)
    at_reserved = callers.machine("fd00::d")
    assert at_reserved is not None
    assert callers.machine("fd00::d", connected=True) is None, "on a connection, its MAC must be known"
    table.entries = {"fd00::d": C, "fe80::d": C, "10.0.0.9": C}
    assert callers.machine("fd00::d", connected=True) is at_reserved
    assert callers.machine("fe80::d") is at_reserved, "its address of the link"
    assert callers.machine("10.0.0.9") is None, "IPv4 has no such addresses"
    assert callers.machine("fd00::99") is None
    table.entries["fd00::d"] = A
    clock.now += 2
    at_second = callers.machine("fd00::d")
    assert at_second is not None
    assert at_second.name == "a", "somebody else's address is not enough to be that machine: it is what its MAC says"
    table.entries["fd00::d"] = "52:54:00:99:99:99"
    clock.now += 2
    assert callers.machine("fd00::d") is None
    assert callers.neighbour("fe80::d") == C


SLAAC = "fd00::5054:ff:fe00:a"
"""An address made from the MAC of `a`."""


def six(name: str, mac: str, address: str, **metadata: Any) -> dict[str, Any]:
    made = hardware(name, mac, None)
    made["metadata"] |= metadata
    made["spec"]["networkInterfaces"][mac] = {"dhcp": {"ipv6": {"address": address}}}
    return made


@pytest.mark.parametrize("connected", [True, False])
def test_machine_is_itself_at_an_ipv6_address_that_another_hardware_reserves(
    inventory: Inventory, giving: Callers, table: Table, connected: bool
) -> None:
    inventory.apply(six("thief", C, "fd00::aaaa"))
    inventory.apply(six("second", SPARE, "fd00::bbbb"))
    inventory.apply(six("third", "52:54:00:00:00:1b", "fd00::bbbb"))
    table.entries |= {"fd00::aaaa": A, "fd00::bbbb": A}
    for address in ("fd00::aaaa", "fd00::bbbb"):
        machine = giving.machine(address, connected=connected)
        assert machine is not None
        assert (machine.name, giving.mac(address, connected=connected)) == ("a", A)


def test_reservation_of_an_address_made_of_anothers_mac_serves_no_machine_if_no_mac_is_known(
    inventory: Inventory, giving: Callers, table: Table
) -> None:
    inventory.apply(six("thief", C, SLAAC))
    assert giving.machine(SLAAC, connected=True) is None
    assert giving.mac(SLAAC, connected=True) is None
    table.entries[SLAAC] = C
    giving.changed(SLAAC)
    assert name(giving, SLAAC) == "thief", "on our link, its machine has the address"
    table.entries.clear()
    giving.changed(SLAAC)
    inventory.remove(hardware("a", A, "10.0.0.1"))
    assert name(giving, SLAAC) == "thief", "no other Hardware has the MAC"
    gone = hardware("a", A, "10.0.0.1")
    gone["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    inventory.apply(gone)
    assert name(giving, SLAAC) == "thief", "a Hardware that is being deleted is in nobody's way"


def test_terminating_hardware_with_anothers_mac_is_not_the_machine_at_its_own_addresses(
    inventory: Inventory, giving: Callers, table: Table
) -> None:
    """Otherwise a machine would get the attacker's user-data at any address that the attacker's Hardware reserves."""
    thief = six("thief", A, "fd00::aaaa", deletionTimestamp="2027-01-15T08:00:00Z")
    thief["spec"]["networkInterfaces"][A]["dhcp"]["ip"] = "10.0.0.66"
    inventory.apply(thief)
    table.entries |= {"10.0.0.1": A, "fd00::aaaa": A, "10.0.0.66": A}
    assert [name(giving, ip) for ip in ("10.0.0.1", "fd00::aaaa", "10.0.0.66")] == ["a", "a", None]


# --- several links ----------------------------------------------------------------------------------------------------


@pytest.fixture
def two_links(table: Table) -> Table:
    """`a` is on the link of br1, where its address is routed to; `b` claims the same address on br0."""
    table.routes["10.0.0.1"] = "br1"
    table.links.add("10.0.0.1")
    table.entries["10.0.0.1"] = A
    table.bound = {("10.0.0.1", "br1"): A, ("10.0.0.1", "br0"): B}
    return table


@pytest.mark.parametrize("mode", [DhcpMode.RESERVATION, *PROXY])
@pytest.mark.usefixtures("two_links")
def test_machine_is_known_on_the_link_by_which_its_answer_leaves(
    inventory: Inventory, table: Table, clock: Clock, mode: DhcpMode
) -> None:
    found = Callers(inventory, mode, table, clock)
    by_br0, by_br1 = found.answering_on("br0"), found.answering_on("br1")
    for _ in range(2):
        assert (name(found, "10.0.0.1"), name(by_br1, "10.0.0.1")) == ("a", "a")
        assert name(by_br0, "10.0.0.1") != "a"
        found.changed("10.0.0.1")


@pytest.mark.parametrize("mode", [DhcpMode.RESERVATION, *PROXY])
def test_datagram_from_an_address_of_another_link_has_no_machine_until_its_sender_is_known(
    inventory: Inventory, two_links: Table, clock: Clock, mode: DhcpMode
) -> None:
    del two_links.bound["10.0.0.1", "br0"]
    by_br0 = Callers(inventory, mode, two_links, clock).answering_on("br0")
    assert not by_br0.is_hidden("10.0.0.1"), "nobody has to be asked there"
    assert by_br0.is_unresolved("10.0.0.1"), "a bound socket sends there all the same"
    assert by_br0.machine("10.0.0.1") is None
    assert by_br0.mac("10.0.0.1") is None


@pytest.mark.parametrize("mode", [DhcpMode.RESERVATION, *PROXY])
def test_gateway_on_a_link_has_no_machines_of_another_link_of_ours_behind_it(
    inventory: Inventory, two_links: Table, clock: Clock, mode: DhcpMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket that is bound to br0 sends the answers to the gateway there."""
    monkeypatch.setattr(two_links, "mac", lambda _ip, _interface="": None)
    monkeypatch.setattr(two_links, "on_link", lambda _ip, _interface="": False)
    found = Callers(inventory, mode, two_links, clock).answering_on("br0")
    assert found.machine("10.0.0.1") is None
    assert found.mac("10.0.0.1") is None
    two_links.routes.clear()
    clock.now += 1
    assert name(found, "10.0.0.1") == "a", "behind a router on br0"


def test_change_on_any_link_makes_the_views_of_all_links_ask_again(giving: Callers, two_links: Table) -> None:
    by_br1 = giving.answering_on("br1")
    assert name(by_br1, "10.0.0.1") == "a"
    two_links.bound["10.0.0.1", "br1"] = B
    giving.changed("10.0.0.1")
    assert name(by_br1, "10.0.0.1") is None


def test_machine_that_moves_to_another_link_is_known_there(giving: Callers, two_links: Table, clock: Clock) -> None:
    two_links.bound = {("10.0.0.1", "br0"): A}
    two_links.routes["10.0.0.1"] = "br0"
    assert name(giving.answering_on("br0"), "10.0.0.1") == "a"
    clock.now += 1
    assert name(giving.answering_on("br1"), "10.0.0.1") is None


def test_dhcp_on_one_link_can_not_report_an_address_of_another_link(proxy: Callers, table: Table) -> None:
    table.routes["10.9.0.7"] = "br1"
    for interface in ("br0", ""):
        assert not proxy.learn(C, "10.9.0.7", interface)
    assert proxy.mac("10.9.0.7") is None
    assert proxy.learn(C, "10.9.0.7", "br1")
    assert proxy.learn(B, "10.9.0.8", ""), "a relay speaks for networks that are none of ours"
    assert (proxy.mac("10.9.0.7"), proxy.mac("10.9.0.8")) == (C, B)
