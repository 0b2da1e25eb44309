"""Who is calling: a mistake here gives a machine another one's script, metadata and secrets."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest

from edge.callers import Callers, by_address
from edge.machines import DhcpMode, Inventory
from tests.support import objects
from tests.support.objects import CREATED
from tink.api.v1alpha2 import Raw

A, B, C = "52:54:00:00:00:0a", "52:54:00:00:00:0b", "52:54:00:00:00:0c"
SPARE = "52:54:00:00:00:1a"
GIVING, PROXY = DhcpMode.RESERVATION, [DhcpMode.PROXY, DhcpMode.AUTO_PROXY, DhcpMode.OFF]
STRANGER = "52:54:00:99:99:99"


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


def hardware(name: str, mac: str, ip: str | None = None, ipv6: str = "", **metadata: Any) -> Raw:
    dhcp = {"ipv6": {"address": ipv6}} if ipv6 else {}
    return objects.hardware(name, mac, ip, dhcp=dhcp, metadata=metadata)


class Site:
    """Three machines, of which `a` and `b` reserve addresses and `c` does not, and an edge that looks who calls."""

    def __init__(self, mode: DhcpMode = GIVING, **more: Any) -> None:
        self.table, self.inventory, self.now = Table(), Inventory(), 1000.0
        self.register(hardware("a", A, "10.0.0.1"), hardware("b", B, "10.0.0.2"), hardware("c", C))
        self.callers = Callers(self.inventory, mode, self.table, lambda: self.now, **more)

    def register(self, *objects: Raw) -> None:
        for obj in objects:
            self.inventory.apply(obj)

    def name(self, ip: str, *, on: str = "", connected: bool = False) -> str | None:
        """Return the name of the machine that calls from an address; `on`: by the link that answers leave by."""
        callers = self.callers.answering_on(on) if on else self.callers
        machine = callers.machine(ip, connected=connected)
        return machine.name if machine is not None else None

    def mac(self, ip: str, *, connected: bool = False) -> str | None:
        return self.callers.mac(ip, connected=connected)


@pytest.fixture
def giving() -> Site:
    """Where this edge gives out the addresses."""
    return Site()


@pytest.fixture
def proxy() -> Site:
    return Site(DhcpMode.PROXY)


@pytest.fixture(params=[GIVING, *PROXY])
def site(request: pytest.FixtureRequest) -> Site:
    return Site(request.param)


def test_where_we_give_addresses_a_machine_is_at_its_own_and_nowhere_else(giving: Site) -> None:
    giving.table.entries["10.0.0.9"] = A
    giving.callers.learn(A, "10.0.0.9")
    assert [*giving.callers.learnt()] == [], "what is not looked at is not kept"
    assert [giving.name(ip) for ip in ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.9")] == ["a", "b", None, None]
    assert giving.mac("10.0.0.9") == A
    assert giving.name("10.0.0.1", connected=True) == "a", "behind a router, it is known by its address"
    assert giving.mac("10.0.0.1", connected=True) == A
    giving.register(hardware("b", B, "10.0.0.1"))
    assert giving.name("10.0.0.1") is None, "an address that two reserve is nobody's"


@pytest.mark.parametrize("other", [B, STRANGER])
@pytest.mark.parametrize("connected", [True, False])
def test_second_address_on_a_machine_does_not_make_it_another_one(giving: Site, other: str, connected: bool) -> None:
    giving.table.entries["10.0.0.1"] = other
    assert giving.name("10.0.0.1", connected=connected) is None
    assert giving.mac("10.0.0.1", connected=connected) == other


def test_machine_answers_at_its_address_with_any_of_its_cards(giving: Site) -> None:
    two = hardware("a", A, "10.0.0.1")
    two["spec"]["networkInterfaces"][SPARE] = {}
    giving.register(two)
    giving.table.entries["10.0.0.1"] = SPARE
    assert (giving.name("10.0.0.1"), giving.mac("10.0.0.1")) == ("a", A)


def test_host_on_our_link_without_an_entry_is_no_machine_yet_on_a_connection(site: Site) -> None:
    """A host that lets the entry run out and then ends its request would be taken for the owner of the address."""
    site.table.links.add("10.0.0.1")
    assert site.callers.is_hidden("10.0.0.1")
    assert site.callers.is_unresolved("10.0.0.1")
    assert (site.name("10.0.0.1", connected=True), site.mac("10.0.0.1", connected=True)) == (None, None)
    assert site.name("10.0.0.1") == "a", "a datagram may come before the kernel has asked who sends it"
    site.table.entries["10.0.0.1"] = A
    assert site.name("10.0.0.1", connected=True) == "a", "the next moment, it is known"


def test_other_host_at_an_address_is_named_to_the_server_of_agents(giving: Site) -> None:
    assert giving.callers.stranger("10.0.0.1", (A,)) is None, "behind a router"
    giving.table.entries["10.0.0.2"] = B
    assert giving.callers.stranger("10.0.0.2", (A, B)) is None
    assert giving.callers.stranger("10.0.0.2", (A,)) == B
    giving.table.links.add("10.0.0.3")
    assert "does not know" in giving.callers.stranger("10.0.0.3", (A,))


def test_takeover_of_an_address_is_noticed_when_the_kernel_tells_of_it(giving: Site) -> None:
    for mac, changed, name in ((A, None, "a"), (B, "10.0.0.2", "a"), (B, "10.0.0.1", None), (A, None, "a")):
        giving.table.entries["10.0.0.1"] = mac
        giving.callers.changed(changed)
        assert giving.name("10.0.0.1") == name


def test_network_known_by_address_is_known_so() -> None:
    """Where a router answers ARP for the machines, all have its MAC."""
    site = Site(by_address=(ipaddress.IPv4Network("10.0.0.0/31"),))
    site.table.entries |= dict.fromkeys(("10.0.0.1", "10.0.0.2"), STRANGER)
    assert (site.name("10.0.0.1"), site.name("10.0.0.2")) == ("a", None)


@pytest.mark.parametrize("mode", PROXY)
def test_machine_on_our_link_is_known_by_its_hardware_address_whatever_dhcp_and_hardware_say(mode: DhcpMode) -> None:
    site = Site(mode)
    site.table.entries |= {"10.0.0.77": C, "10.0.0.50": B, "10.0.0.1": STRANGER, "10.0.0.60": SPARE}
    assert site.name("10.0.0.77") == "c"
    site.callers.learn(A, "10.0.0.50")  # in another's name
    assert site.name("10.0.0.50") == "b"
    assert (site.name("10.0.0.1"), site.mac("10.0.0.1")) == (None, STRANGER)
    site.register(hardware("d", SPARE, "10.0.0.4"), hardware("e", SPARE, "10.0.0.5"))
    assert (site.name("10.0.0.60"), site.mac("10.0.0.60")) == (None, SPARE), "two claim that MAC"


def test_machine_behind_a_relay_is_where_it_last_said_to_the_other_server(proxy: Site) -> None:
    proxy.callers.learn(A, "10.9.0.7")
    assert proxy.name("10.9.0.7") == "a"
    assert proxy.name("10.0.0.1") is None, "it is not at the address of its Hardware"
    proxy.callers.learn(A, "10.9.0.8")
    assert (proxy.mac("10.9.0.7"), proxy.mac("10.9.0.8")) == (None, A)
    proxy.callers.learn(B, "10.9.0.8")
    assert proxy.mac("10.9.0.8") == B
    assert proxy.name("10.0.0.1") == "a", "its address is not known otherwise"
    for mac, name in ((A, "a"), (STRANGER, None), (C, "c")):
        proxy.callers.learn(mac, "10.9.0.7")
        assert proxy.name("10.9.0.7") == name, "a stranger may take an address over"
    proxy.now += by_address.LEARNT_SECONDS - 1
    assert proxy.name("10.9.0.7") == "c"
    proxy.now += 1
    assert proxy.name("10.9.0.7") is None, "what DHCP said is not believed for ever"


def test_flood_of_made_up_macs_pushes_no_registered_machine_out(proxy: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    learn = proxy.callers.learn
    learn(C, "10.9.0.7")
    for number in range(by_address.MAX_STRANGERS + 10):
        learn(f"02:00:00:00:{number >> 8:02x}:{number & 255:02x}", f"10.8.{number >> 8}.{number & 255}")
    assert proxy.name("10.9.0.7") == "c"
    assert proxy.mac("10.8.0.9") is None, "the oldest went"
    assert proxy.mac("10.8.0.10") is not None
    monkeypatch.setattr(proxy.callers._machines, "_capacity", 2)
    learn(A, "10.9.0.8")
    learn(C, "10.9.0.7")
    learn(B, "10.9.0.9")
    assert [proxy.mac(f"10.9.0.{n}") for n in (7, 8, 9)] == [C, None, B], "the one heard of longest ago went"


def test_kernel_is_asked_once_a_second_for_an_address(proxy: Site) -> None:
    proxy.table.links.add("10.0.0.50")
    proxy.table.entries["10.0.0.50"] = B
    assert {proxy.mac("10.0.0.50") for _ in range(100)} == {B}
    assert proxy.table.asked == 1
    proxy.table.entries["10.0.0.50"] = C
    proxy.now += by_address.NEIGHBOUR_SECONDS
    assert proxy.mac("10.0.0.50") == C
    del proxy.table.entries["10.0.0.50"]
    proxy.now += by_address.NEIGHBOUR_SECONDS
    assert proxy.mac("10.0.0.50") is None
    proxy.table.entries["10.0.0.50"] = A
    assert proxy.mac("10.0.0.50") == A, "that there is none is no answer to keep"
    for number in range(by_address._MAX_NEIGHBOURS + 100):
        ip = f"10.7.{number >> 8}.{number & 255}"
        proxy.table.entries[ip] = B
        proxy.mac(ip)
    assert len(proxy.callers._neighbour_of) == by_address._MAX_NEIGHBOURS, "many callers fill no memory"


# --- IPv6 -------------------------------------------------------------------------------------------------------------


def test_machine_with_ipv6_is_known_by_its_reserved_address_and_wherever_the_kernel_knows_its_mac(giving: Site) -> None:
    giving.inventory.remove(hardware("c", C))
    giving.register(hardware("d", C, ipv6="fd00::d"))
    giving.table.links = {"fd00::d", "fe80::d", "fd00::99", "10.0.0.9"}
    assert giving.name("fd00::d") == "d"
    assert giving.name("fd00::d", connected=True) is None, "on a connection, its MAC must be known"
    giving.table.entries = {"fd00::d": C, "fe80::d": C, "10.0.0.9": C}
    assert giving.name("fd00::d", connected=True) == "d"
    assert giving.name("fe80::d") == "d", "its address of the link"
    assert giving.name("10.0.0.9") is None, "IPv4 has no such addresses"
    assert giving.name("fd00::99") is None
    for other, name in ((A, "a"), (STRANGER, None)):
        giving.table.entries["fd00::d"] = other
        giving.now += 2
        assert giving.name("fd00::d") == name, "the reservation is not enough: it is the machine of its MAC"
    assert giving.callers.neighbour("fe80::d") == C


SLAAC = "fd00::5054:ff:fe00:a"
"""An address made from the MAC of `a`."""


@pytest.mark.parametrize("connected", [True, False])
@pytest.mark.parametrize("address", ["fd00::aaaa", "fd00::bbbb"])
def test_machine_is_itself_at_an_ipv6_address_that_another_hardware_reserves(
    giving: Site, address: str, connected: bool
) -> None:
    giving.register(hardware("thief", C, ipv6="fd00::aaaa"))
    giving.register(hardware("second", SPARE, ipv6="fd00::bbbb"), hardware("third", STRANGER, ipv6="fd00::bbbb"))
    giving.table.entries[address] = A
    assert giving.name(address, connected=connected) == "a"
    assert giving.mac(address, connected=connected) == A


def test_reservation_of_an_address_made_of_anothers_mac_serves_no_machine_if_no_mac_is_known(giving: Site) -> None:
    giving.register(hardware("thief", C, ipv6=SLAAC))
    assert (giving.name(SLAAC, connected=True), giving.mac(SLAAC, connected=True)) == (None, None)
    giving.table.entries[SLAAC] = C
    giving.callers.changed(SLAAC)
    assert giving.name(SLAAC) == "thief", "on our link, its machine has the address"
    giving.table.entries.clear()
    giving.callers.changed(SLAAC)
    giving.inventory.remove(hardware("a", A, "10.0.0.1"))
    assert giving.name(SLAAC) == "thief", "no other Hardware has the MAC"
    giving.register(hardware("a", A, "10.0.0.1", deletionTimestamp=CREATED))
    assert giving.name(SLAAC) == "thief", "a Hardware that is being deleted is in nobody's way"


def test_terminating_hardware_with_anothers_mac_is_not_the_machine_at_its_own_addresses(giving: Site) -> None:
    """Otherwise a machine would get the attacker's user-data at any address that the attacker's Hardware reserves."""
    giving.register(hardware("thief", A, "10.0.0.66", "fd00::aaaa", deletionTimestamp=CREATED))
    addresses = ("10.0.0.1", "fd00::aaaa", "10.0.0.66")
    giving.table.entries |= dict.fromkeys(addresses, A)
    assert [giving.name(ip) for ip in addresses] == ["a", "a", None]


# --- several links: `a` is on that of br1, where its address is routed to; `b` claims the same address on br0 ---------


@pytest.fixture
def two_links(site: Site) -> Site:
    site.table.routes["10.0.0.1"] = "br1"
    site.table.links.add("10.0.0.1")
    site.table.entries["10.0.0.1"] = A
    site.table.bound = {("10.0.0.1", "br1"): A, ("10.0.0.1", "br0"): B}
    return site


def test_machine_is_known_on_the_link_by_which_its_answer_leaves(two_links: Site) -> None:
    for _ in range(2):
        assert (two_links.name("10.0.0.1"), two_links.name("10.0.0.1", on="br1")) == ("a", "a")
        assert two_links.name("10.0.0.1", on="br0") != "a"
        two_links.callers.changed("10.0.0.1")
    by_br1 = two_links.callers.answering_on("br1")
    assert by_br1.machine("10.0.0.1").name == "a"
    two_links.table.bound["10.0.0.1", "br1"] = STRANGER
    two_links.callers.changed("10.0.0.1")
    assert by_br1.machine("10.0.0.1") is None, "a change makes the views of all links ask again"
    two_links.table.bound = {("10.0.0.1", "br0"): A}  # it moves to another link
    two_links.table.routes["10.0.0.1"] = "br0"
    two_links.callers.changed("10.0.0.1")
    assert two_links.name("10.0.0.1", on="br0") == "a"
    two_links.now += 1
    assert two_links.name("10.0.0.1", on="br1") is None


def test_datagram_from_an_address_of_another_link_has_no_machine_until_its_sender_is_known(two_links: Site) -> None:
    del two_links.table.bound["10.0.0.1", "br0"]
    by_br0 = two_links.callers.answering_on("br0")
    assert not by_br0.is_hidden("10.0.0.1"), "nobody has to be asked there"
    assert by_br0.is_unresolved("10.0.0.1"), "a bound socket sends there all the same"
    assert (by_br0.machine("10.0.0.1"), by_br0.mac("10.0.0.1")) == (None, None)


def test_gateway_on_a_link_has_no_machines_of_another_link_of_ours_behind_it(
    two_links: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket that is bound to br0 sends the answers to the gateway there."""
    monkeypatch.setattr(two_links.table, "mac", lambda _ip, _interface="": None)
    monkeypatch.setattr(two_links.table, "on_link", lambda _ip, _interface="": False)
    by_br0 = two_links.callers.answering_on("br0")
    assert (by_br0.machine("10.0.0.1"), by_br0.mac("10.0.0.1")) == (None, None)
    two_links.table.routes.clear()
    two_links.now += 1
    assert by_br0.machine("10.0.0.1").name == "a", "behind a router on br0"


def test_dhcp_on_one_link_can_not_report_an_address_of_another_link(proxy: Site) -> None:
    proxy.table.routes["10.9.0.7"] = "br1"
    for interface in ("br0", ""):
        assert not proxy.callers.learn(C, "10.9.0.7", interface)
    assert proxy.mac("10.9.0.7") is None
    assert proxy.callers.learn(C, "10.9.0.7", "br1")
    assert proxy.callers.learn(B, "10.9.0.8", ""), "a relay speaks for networks that are none of ours"
    assert (proxy.mac("10.9.0.7"), proxy.mac("10.9.0.8")) == (C, B)
