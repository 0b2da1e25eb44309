"""`tinkedge doctor --link-metadata`: each test takes one thing away that metadata at fe80::a9fe:a9fe needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.neighbour.links import look
from edge.neighbour.well_known import METADATA_ADDRESS, Held, hold, look_at
from tests.interop.conftest import in_namespace
from tests.interop.rack import IN_EDGE, ip
from tests.interop.test_doctor import NEW_IPXE, Doctor
from tests.waiting import wait_until

NAME = "metadata at [fe80::a9fe:a9fe%eth1]:80"


class Site(Doctor):
    """A host with eth1, and another one at the other end of its cable."""

    def build(self) -> None:
        super().build()
        wait_until(lambda: "tentative" not in self.run(IN_EDGE, "ip", "-6", "address", "show", "dev", "eth1").out)

    def link_metadata(self, *options: str) -> tuple[str, str]:
        """Severity, and what was seen."""
        given = ["--link-metadata", "--ipxe-dir", NEW_IPXE, *options]
        found = self.found(*given) | self.found(*given, severity="ok") | self.found(*given, severity="note")
        return found[NAME]["severity"], found[NAME]["seen"]

    def other_has_it(self) -> str:
        """Its MAC."""
        other = self.namespaces["other"]
        ip("-n", other, "address", "add", f"{METADATA_ADDRESS}/64", "dev", "eth0", "nodad")
        link = in_namespace(other, lambda: look("eth0"))
        assert link is not None
        return link.mac.hex(":")

    def holds(self) -> Held:
        """Have this host have the address, as the edge has it; whether it has."""
        link = in_namespace(self.namespaces[IN_EDGE], lambda: look("eth1"))
        assert link is not None

        def try_it() -> Held:
            hold(link.index, METADATA_ADDRESS, 3600)
            wait_until(lambda: look_at(link.index, METADATA_ADDRESS) is not Held.TRIED)
            return look_at(link.index, METADATA_ADDRESS)

        return in_namespace(self.namespaces[IN_EDGE], try_it)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path) as host:
        yield host


def test_nothing_is_said_of_it_where_it_is_not_wanted_and_that_it_could_be_served_where_it_is(host: Site) -> None:
    assert NAME not in host.found("--ipxe-dir", NEW_IPXE, severity="ok")
    assert host.link_metadata() == ("ok", "nobody is known to have it, and its port is free")
    assert host.found("--link-metadata") == {}


def test_interface_without_ipv6_or_that_is_down_is_named(host: Site) -> None:
    host.edge("link", "set", "eth1", "down")
    assert host.link_metadata() == ("note", "not served while eth1 is down")
    host.edge("link", "set", "eth1", "up")
    ip("-n", host.namespaces["other"], "link", "set", "eth0", "down")
    assert host.link_metadata() == ("note", "not served while eth1 has no carrier")
    host.run(IN_EDGE, "sysctl", "-qw", "net.ipv6.conf.eth1.disable_ipv6=1")
    assert host.link_metadata() == ("error", "IPv6 is switched off on eth1")
    assert "eth1.disable_ipv6=0" in host.found("--link-metadata")[NAME]["remedy"]


def test_other_host_with_the_address_is_named_with_its_mac(host: Site) -> None:
    mac = host.other_has_it()
    assert host.link_metadata()[0] == "ok", "nobody has heard of it, and nobody was asked"
    asked = host.found("--link-metadata", "--probe")["who has fe80::a9fe:a9fe on eth1"]
    assert asked["severity"] == "error"
    assert asked["seen"] == f"{mac}, as far as the kernel knows, which serves no metadata there"
    seen = f"another host on eth1, {mac}, has the address: this edge waits for it"
    assert host.link_metadata() == ("warning", seen), "now the kernel knows"


def test_address_that_was_found_to_be_a_duplicate_is_told(host: Site) -> None:
    host.other_has_it()
    host.edge("address", "add", f"{METADATA_ADDRESS}/64", "dev", "eth1")
    wait_until(lambda: "dadfailed" in host.run(IN_EDGE, "ip", "-6", "address", "show", "dev", "eth1").out)
    severity, seen = host.link_metadata()
    assert severity == "warning"
    assert seen.startswith("another host on eth1, "), seen


def test_nobody_has_the_address_when_the_link_is_asked(host: Site) -> None:
    asked = host.found("--link-metadata", "--probe", severity="ok")
    assert asked["who has fe80::a9fe:a9fe on eth1"]["seen"] == "nobody"


@pytest.mark.parametrize("is_there", [False, True], ids=["no-address", "address"])
def test_port_that_another_program_has_is_named(host: Site, is_there: bool) -> None:
    if is_there:
        assert host.holds() is Held.OURS
        assert host.link_metadata() == ("warning", "the address is held, and nobody answers at its port")
    host.start(IN_EDGE, "python3", "-m", "http.server", "--bind", "::", "80")
    wait_until(lambda: "tcp:80" in host.listening())
    assert host.link_metadata() == ("error", "another program has port 80")


def test_firewall_rule_for_ipv6_alone_is_named(host: Site) -> None:
    rules = "table ip6 guard { chain input { type filter hook input priority 0; tcp dport 80 drop; }; }"
    assert host.run(IN_EDGE, "nft", rules).popen.returncode == 0
    assert host.found() == {}
    assert host.found("--link-metadata")["firewall"]["seen"].startswith("80/tcp of IPv6 on eth1 is dropped by ")
