"""Identification of machines by address or token: a mistake reveals another machine's script, metadata and secrets."""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from edge.callers import Callers, MetadataTokenError, MetadataTokens, by_address, token_keys
from edge.cli import main
from edge.machines import DhcpMode, Inventory
from tests.support import objects
from tests.support.api import InProcessApi
from tests.support.objects import CREATED
from tink.api.v1alpha2 import Raw
from tink.files.key_file import KeyFile, KeyFileError

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


def test_machine_with_a_reservation_is_at_its_reserved_address_only(giving: Site) -> None:
    giving.table.entries["10.0.0.9"] = A
    assert not giving.callers.learn(A, "10.0.0.9"), "an address that is not looked at is not stored"
    assert [giving.name(ip) for ip in ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.9")] == ["a", "b", None, None]
    assert giving.mac("10.0.0.9") == A
    assert giving.name("10.0.0.1", connected=True) == "a", "behind a router, it is known by its address"
    assert giving.mac("10.0.0.1", connected=True) == A
    giving.register(hardware("b", B, "10.0.0.1"))
    assert giving.name("10.0.0.1") is None, "an address that two reserve is nobody's"


def test_interface_with_the_mac_at_a_shared_address_is_the_caller(giving: Site) -> None:
    cards = {mac: {"dhcp": {"ip": "10.0.0.1", "ipv6": {"address": "fd00::1"}}} for mac in (A, SPARE)}
    giving.register(objects.hardware("a", interfaces=cards))
    for ip in ("10.0.0.1", "fd00::1"):
        assert (giving.name(ip), giving.mac(ip)) == ("a", A), "behind a router, nothing tells which it is"
        for mac, name in ((A, "a"), (SPARE, "a"), (STRANGER, None)):
            giving.table.entries[ip] = mac
            giving.callers.changed(ip)
            assert (giving.name(ip, connected=True), giving.mac(ip)) == (name, mac)


@pytest.mark.parametrize("other", [B, STRANGER])
@pytest.mark.parametrize("connected", [True, False])
def test_machine_with_another_machines_address_is_not_taken_for_it(giving: Site, other: str, connected: bool) -> None:
    giving.table.entries["10.0.0.1"] = other
    assert giving.name("10.0.0.1", connected=connected) is None
    assert giving.mac("10.0.0.1", connected=connected) == other


def test_machine_answers_at_its_address_with_any_of_its_cards(giving: Site) -> None:
    two = hardware("a", A, "10.0.0.1")
    two["spec"]["networkInterfaces"][SPARE] = {}
    giving.register(two)
    giving.table.entries["10.0.0.1"] = SPARE
    assert (giving.name("10.0.0.1"), giving.mac("10.0.0.1")) == ("a", A)


def test_connection_from_a_host_without_a_neighbour_entry_has_no_machine(site: Site) -> None:
    """A host that lets the entry run out and then ends its request would be taken for the owner of the address."""
    site.table.links.add("10.0.0.1")
    assert site.callers.is_hidden("10.0.0.1")
    assert site.callers.is_unresolved("10.0.0.1")
    assert (site.name("10.0.0.1", connected=True), site.mac("10.0.0.1", connected=True)) == (None, None)
    assert site.name("10.0.0.1") == "a", "a datagram may come before the kernel has asked who sends it"
    site.table.entries["10.0.0.1"] = A
    assert site.name("10.0.0.1", connected=True) == "a", "the next moment, it is known"


def test_other_host_at_an_address_is_reported_to_the_agents_server(giving: Site) -> None:
    assert giving.callers.stranger("10.0.0.1", (A,)) is None, "behind a router"
    giving.table.entries["10.0.0.2"] = B
    assert giving.callers.stranger("10.0.0.2", (A, B)) is None
    assert giving.callers.stranger("10.0.0.2", (A,)) == B
    giving.table.links.add("10.0.0.3")
    assert "does not know" in giving.callers.stranger("10.0.0.3", (A,))


def test_takeover_of_an_address_is_noticed_when_the_kernel_reports_it(giving: Site) -> None:
    for mac, changed, name in ((A, None, "a"), (B, "10.0.0.2", "a"), (B, "10.0.0.1", None), (A, None, "a")):
        giving.table.entries["10.0.0.1"] = mac
        giving.callers.changed(changed)
        assert giving.name("10.0.0.1") == name


def test_macs_are_ignored_in_networks_known_by_address() -> None:
    """Where a router answers ARP for the machines, all have its MAC."""
    site = Site(by_address=(ipaddress.IPv4Network("10.0.0.0/31"),))
    site.table.entries |= dict.fromkeys(("10.0.0.1", "10.0.0.2"), STRANGER)
    assert (site.name("10.0.0.1"), site.name("10.0.0.2")) == ("a", None)


@pytest.mark.parametrize("mode", PROXY)
def test_mac_on_our_link_counts_more_than_dhcp_and_hardware(mode: DhcpMode) -> None:
    site = Site(mode)
    site.table.entries |= {"10.0.0.77": C, "10.0.0.50": B, "10.0.0.1": STRANGER, "10.0.0.60": SPARE}
    assert site.name("10.0.0.77") == "c"
    site.callers.learn(A, "10.0.0.50")  # in another's name
    assert site.name("10.0.0.50") == "b"
    assert (site.name("10.0.0.1"), site.mac("10.0.0.1")) == (None, STRANGER)
    site.register(hardware("d", SPARE, "10.0.0.4"), hardware("e", SPARE, "10.0.0.5"))
    assert (site.name("10.0.0.60"), site.mac("10.0.0.60")) == (None, SPARE), "two claim that MAC"


def test_machine_behind_a_relay_is_at_the_address_of_its_last_dhcp_request(proxy: Site) -> None:
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


def test_flood_of_invented_macs_displaces_no_registered_machine(proxy: Site, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_machine_is_identified_on_the_link_by_which_its_answer_leaves(two_links: Site) -> None:
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


MAC = "52:54:00:00:00:01"
NEVER = 0.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    return token_keys(tmp_path, None, create=True)


# --- tokens ---------------------------------------------------------------------------------------------------------


def test_token_is_valid_without_limit_unless_it_has_a_lifetime(keys: KeyFile) -> None:
    clock = Clock()
    lasting, ending = MetadataTokens(keys, NEVER, clock), MetadataTokens(keys, 60, clock)
    token, short = lasting.mint(MAC), ending.mint(MAC)
    assert lasting.mac(token) == lasting.mac(short) == ending.mac(token) == MAC
    clock.now += 60
    assert ending.mac(token) == MAC
    with pytest.raises(MetadataTokenError, match="it ended at 1970-01-01T00:17:40Z"):
        lasting.mac(short)
    clock.now = 1e12 - 1
    assert lasting.mac(token) == MAC
    clock.now = 1e11
    assert len(ending.mint(MAC)) <= 72, "it fits where there is room for one"
    for other in ("", "m1", "52-54-00-00-00-01", "52:54:00:00:00:0A", f"{MAC}\n"):
        with pytest.raises(ValueError, match="is no MAC address"):
            lasting.mint(other)


@given(position=st.integers(0, 60), character=st.characters(min_codepoint=33, max_codepoint=126))
def test_token_with_one_wrong_character_is_invalid(
    tmp_path_factory: pytest.TempPathFactory, position: int, character: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "one.key"
    tokens = MetadataTokens(KeyFile(path, "key", create=True))
    token = tokens.mint(MAC)
    changed = token[:position] + character + token[position + 1 :]
    if changed != token:
        with pytest.raises(MetadataTokenError) as caught:
            tokens.mac(changed)
        assert changed[20:] not in str(caught.value)


# --- the key file ---------------------------------------------------------------------------------------------------


def test_key_file_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    first = token_keys(tmp_path / "new", None, create=True)
    path = tmp_path / "new" / "metadata-token.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    second = token_keys(tmp_path / "new", None, create=True)
    assert MetadataTokens(second).mac(MetadataTokens(first).mint(MAC)) == MAC
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_key_file_given_by_the_operator_is_never_created(tmp_path: Path) -> None:
    # Of several edges, each would make its own.
    with pytest.raises(KeyFileError, match="openssl rand -hex 32"):
        token_keys(tmp_path, tmp_path / "shared.key", create=True)
    with pytest.raises(KeyFileError, match=r"metadata-token\.key: No such file"):
        token_keys(tmp_path, None, create=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(KeyFileError, match="can't be created"):
        KeyFile(tmp_path / "file" / "below" / "key", "metadata token key", create=True)


def test_new_key_signs_and_the_old_one_still_verifies(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now, path = Clock(), tmp_path / "key"
    path.write_text("a" * 64 + "\n")
    path.chmod(0o644)
    file = KeyFile(path, "key", monotonic=now)
    assert "chmod 600" in caplog.text, "all users of the host can read it"
    old = file.sign("l", "c")
    path.write_text(f"# new\n{'b' * 64}\n\n{'a' * 64}\n")
    assert file.sign("l", "c") == old  # not looked at yet
    now.now += 1
    assert file.sign("l", "c") == old, "others may not have it yet"
    now.now += 120
    assert file.sign("l", "c") != old
    assert file.signed("l", "c", old)
    path.write_text("b" * 64 + "\n")
    now.now += 1
    assert not file.signed("l", "c", old)


def test_key_file_that_becomes_invalid_is_logged_once_and_the_old_keys_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now, path = Clock(), tmp_path / "key"
    file = KeyFile(path, "key", create=True, monotonic=now)
    signature = file.sign("l", "c")
    path.write_text("short\n")
    for _ in range(3):
        now.now += 1
        assert file.sign("l", "c") == signature
    path.unlink()
    now.now += 1
    assert file.sign("l", "c") == signature
    assert [record.levelno for record in caplog.records].count(logging.ERROR) == 2
    assert "short" not in caplog.text.replace("has less", "")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "no key"),
        ("# only\n", "no key"),
        ("x" * 31, "less than 32"),
        ("x" * 40 + "\ny", "less than 32"),
        (("k" * 40 + "\n") * 17, "more than 16"),
        ("z" * 70_000, "more than 16"),
    ],
)
def test_invalid_key_file_is_reported_with_the_problem(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "key"
    path.write_text(content)
    with pytest.raises(KeyFileError, match=problem) as caught:
        KeyFile(path, "some key")
    assert str(path) in str(caught.value)


GARBLED = [b"\xff\xfe" * 40, b"\0" * 65, b"a" * 40 + b"\n" + b"\x01" * 40 + b"\n"]


def test_own_key_that_is_truncated_or_garbled_is_rejected_and_not_overwritten(tmp_path: Path) -> None:
    token_keys(tmp_path, None, create=True)
    path = tmp_path / "metadata-token.key"
    whole = path.read_bytes()
    again = "put the right one back, or remove the file to get a new one"
    for content, said in (*((whole[:cut], again) for cut in range(64)), *((each, "is malformed") for each in GARBLED)):
        path.write_bytes(content)
        with pytest.raises(KeyFileError, match=said):
            KeyFile(path, "key", create=True)
        assert path.read_bytes() == content
    with pytest.raises(KeyFileError, match="is malformed"):
        token_keys(tmp_path, path, create=False)


def test_unusable_own_key_is_replaced_by_a_private_one_until_it_is_usable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metadata-token.key"
    before = MetadataTokens(token_keys(tmp_path, None, create=True)).mint(MAC)
    whole = path.read_bytes()
    path.write_bytes(whole[:20])
    first, second = (token_keys(tmp_path, None, create=True) for _ in range(2))
    assert path.read_bytes() == whole[:20]
    assert "has less than 32 characters" in caplog.text
    assert "Until then, tokens in URLs of metadata are not accepted" in caplog.text
    assert MetadataTokens(first).mac(MetadataTokens(first).mint(MAC)) == MAC
    for token in (before, MetadataTokens(second).mint(MAC)):
        with pytest.raises(MetadataTokenError):
            MetadataTokens(first).mac(token)
    path.write_bytes(whole)
    assert first.reread()
    assert MetadataTokens(first).mac(before) == MAC


def test_key_that_could_not_be_created_is_created_later(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    keys = KeyFile(tmp_path / "data" / "key", "key", create=True, without="nothing works")
    assert not keys.reread()
    (tmp_path / "data").unlink()
    assert keys.reread()
    signature = keys.sign("a", "b")
    assert KeyFile(tmp_path / "data" / "key", "key").signed("a", "b", signature)


def test_signature_for_one_purpose_is_invalid_for_another(keys: KeyFile) -> None:
    assert not keys.signed("one", "c", keys.sign("other", "c"))
    assert keys.sign("a", "b") != keys.sign("ab", "")


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_options_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TINKEDGE_")]:
        monkeypatch.delenv(name)


def run(*arguments: str | Path, **env: str) -> Result:
    return CliRunner().invoke(main, ["metadata-url", *map(str, arguments)], env=env)


def test_printed_urls_have_a_token_that_the_edge_accepts(tmp_path: Path, keys: KeyFile) -> None:
    result = run("52-54-00-00-00-01", "--data-dir", tmp_path, "--public-ip", "10.0.0.1", "-o", "json")
    (urls,) = json.loads(result.output)
    token = urls["ec2"].removeprefix("http://10.0.0.1:7080/machine/")
    assert MetadataTokens(keys).mac(token) == MAC
    assert urls["nocloud"] == f"http://10.0.0.1:7080/nocloud/{token}/"
    assert urls["phone_home"] == f"http://10.0.0.1:7080/phone-home/{token}"
    text = run(MAC, "--data-dir", tmp_path, "--public-ip", "10.0.0.1").output
    assert all(url in text for url in urls.values())
    key = (tmp_path / "metadata-token.key").read_text().strip()
    snippet = run(MAC, "--data-dir", tmp_path, "--public-ip", "10.0.0.1", "-o", "cloud-init").output
    assert key not in result.output + text + snippet


def test_edges_own_settings_are_read_from_its_environment(tmp_path: Path, keys: KeyFile) -> None:
    env = {"TINKEDGE_DATA_DIR": str(tmp_path), "TINKEDGE_INTERFACE": "a=10.0.0.1 lo", "TINKEDGE_HTTP_PORT": "80"}
    urls = json.loads(run(MAC, "-o", "json", **env, TINKEDGE_METADATA_TOKEN_LIFETIME="60").output)
    assert [url["ec2"].partition("/machine/")[0] for url in urls] == ["http://10.0.0.1:80", "http://127.0.0.1:80"]
    assert MetadataTokens(keys, clock=lambda: 0).mac(urls[0]["ec2"].rpartition("/")[2]) == MAC
    assert ".0." not in urls[0]["ec2"].rpartition("/")[2]


def test_cloud_init_snippet_is_what_its_name_says(tmp_path: Path, keys: KeyFile) -> None:
    result = run(MAC, "--data-dir", tmp_path, "--public-ip", "10.0.0.1", "-o", "cloud-init")
    config = yaml.safe_load(result.output)
    token = MetadataTokens(keys).mint(MAC)
    assert config["datasource_list"] == ["NoCloud"]
    assert config["datasource"]["NoCloud"]["seedfrom"] == f"http://10.0.0.1:7080/nocloud/{token}/"
    assert config["phone_home"]["url"] == f"http://10.0.0.1:7080/phone-home/{token}"
    two = run(MAC, "--data-dir", tmp_path, "--interface", "a=10.0.0.1", "--interface", "b=10.1.0.1", "-o", "cloud-init")
    assert two.exit_code == 2
    assert "--public-ip" in two.output


def test_name_of_a_hardware_becomes_its_first_mac(
    tmp_path: Path, keys: KeyFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    interfaces = {"no-mac": {}, MAC: {}, objects.OTHER_MAC: {}}
    apis: dict[Path, InProcessApi] = {}
    closed: list[InProcessApi] = []

    class Api(InProcessApi):
        async def close(self) -> None:
            closed.append(self)
            await super().close()

    async def connect(kubeconfig: Path) -> InProcessApi:
        made = (objects.hardware("m1", namespace="rack", interfaces=interfaces), objects.hardware("m2", interfaces={}))
        return apis.setdefault(kubeconfig, Api(*made))

    monkeypatch.setattr("tink.kube.client.KubeClient.connect", connect)
    result = run("m1", "-n", "rack", "--data-dir", tmp_path, "--public-ip", "10.0.0.1", "-o", "json")
    token = json.loads(result.output)[0]["ec2"].rpartition("/")[2]
    assert MetadataTokens(keys).mac(token) == MAC
    empty = run("m2", "--data-dir", tmp_path, "--public-ip", "10.0.0.1", "--kubeconfig", tmp_path / "k")
    assert empty.exit_code == 1
    assert "Hardware default/m2: spec.networkInterfaces has no MAC address" in empty.output
    assert [*apis] == [tmp_path / "kubeconfig", tmp_path / "k"]
    assert closed == [*apis.values()]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["m1"], 1, "no such file"),
        ([MAC, "--public-ip", "x"], 2, "--public-ip"),
        ([MAC, "--interface", "nosuch"], 2, "no interface nosuch"),
        ([MAC, "--metadata-token-key", "/nonexistent/key"], 1, "The edge makes it at its start"),
    ],
)
def test_missing_argument_is_reported_with_the_remedy(
    tmp_path: Path, keys: KeyFile, arguments: list[str], code: int, said: str
) -> None:
    result = run(*arguments, "--data-dir", tmp_path, *([] if code == 2 else ["--public-ip", "10.0.0.1"]))
    assert result.exit_code == code
    assert said in result.output
    assert "Traceback" not in result.output
