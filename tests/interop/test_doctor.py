"""`tinkedge doctor` reports faults: each test causes one, in a namespace or a directory of its own.

With `--link-metadata`, each removes one requirement of metadata at fe80::a9fe:a9fe.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge.neighbour.links import METADATA_ADDRESS, AddressState, address_state, hold_address, look
from tests.interop.conftest import in_namespace
from tests.interop.rack import IN_EDGE, TINKEDGE, Namespaces, ip
from tests.interop.test_networks import Host
from tests.waiting import wait_until

NEW_IPXE = Path(sys.prefix) / "ipxe-trixie"
"""Debian 13's iPXE (`deploy/setup.sh ipxe`)."""


class Doctor(Namespaces):
    """A host with the interface eth1, 10.77.1.1/24, which has a carrier."""

    def build(self) -> None:
        self.add(IN_EDGE)
        self.add("other")
        end = ["eth1", "type", "veth", "peer", "name", "eth0", "netns", self.namespaces["other"]]
        self.edge("link", "add", *end)
        self.edge("link", "set", "eth1", "up")
        self.other("link", "set", "eth0", "up")
        self.edge("address", "add", "10.77.1.1/24", "dev", "eth1")

    def edge(self, *words: str) -> None:
        ip("-n", self.namespaces[IN_EDGE], *words)

    def other(self, *words: str) -> None:
        ip("-n", self.namespaces["other"], *words)

    def findings(self, *options: str | Path, severity: str = "") -> dict[str, dict[str, Any]]:
        """Return findings of `severity` by name, or warnings and errors; without the clock, which is the host's."""
        given = ["--interface", "eth1", "--data-dir", self.directory / "data", *options]
        ran = self.run(IN_EDGE, *TINKEDGE, "doctor", "--no-lab", "--json", *given)
        document = json.loads(ran.out)
        severities = {severity} if severity else {"warning", "error"}
        return {
            one["name"]: one for one in document["findings"] if one["severity"] in severities and one["name"] != "clock"
        }

    def link_metadata(self, *options: str) -> tuple[str, str]:
        """Return the severity and the observation of the finding about link metadata."""
        given = ["--link-metadata", "--ipxe-dir", NEW_IPXE, *options]
        findings = self.findings(*given) | self.findings(*given, severity="ok") | self.findings(*given, severity="note")
        return findings[NAME]["severity"], findings[NAME]["seen"]

    def other_has_it(self) -> str:
        self.other("address", "add", f"{METADATA_ADDRESS}/64", "dev", "eth0", "nodad")
        link = in_namespace(self.namespaces["other"], lambda: look("eth0"))
        assert link is not None
        return link.mac.hex(":")

    def holds(self) -> AddressState:
        """Add the metadata address to this host, as the edge does, and return its state."""
        link = in_namespace(self.namespaces[IN_EDGE], lambda: look("eth1"))
        assert link is not None

        def try_it() -> AddressState:
            hold_address(link.index, METADATA_ADDRESS, 3600)
            wait_until(lambda: address_state(link.index, METADATA_ADDRESS) is not AddressState.TENTATIVE)
            return address_state(link.index, METADATA_ADDRESS)

        return in_namespace(self.namespaces[IN_EDGE], try_it)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Doctor]:
    with Doctor(tmp_path) as host:
        yield host


def test_second_interface_on_the_same_ethernet_is_reported_until_arp_ignore_is_set(host: Doctor) -> None:
    host.other("link", "add", "switch", "type", "bridge")
    for card, port, address in (("eth2", "port2", "10.77.2.1/24"), ("eth3", "port3", "10.77.3.1/24")):
        host.edge("link", "add", card, "type", "veth", "peer", "name", port, "netns", host.namespaces["other"])
        host.edge("link", "set", card, "up")
        host.edge("address", "add", address, "dev", card)
    for port in ("eth0", "port2"):
        host.other("link", "set", port, "master", "switch", "up")
    host.other("link", "set", "switch", "up")
    host.other("address", "add", "10.77.1.50/24", "dev", "switch")
    assert "ARP on eth1" not in host.findings(), "no packet has been sent yet"
    host.run("other", "curl", "-s", "--max-time", "5", "http://10.77.1.1:9/")  # sends an ARP request for that address
    finding = host.findings()["ARP on eth1"]
    assert re.match(r"eth1 and eth2 of this host seem to be on one Ethernet \(10\.77\.1\.50, ", finding["seen"]), (
        finding
    )
    assert "eth3" not in finding["seen"]
    host.run(IN_EDGE, "sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=1")
    assert "ARP on eth1" not in host.findings()


def test_complete_host_has_notes_only(host: Doctor) -> None:
    assert host.findings() == {}
    # Media of Debian 12's iPXE do not boot machines without DHCP.
    notes = {"running edge", "names of OSIEs' URLs", "other DHCP servers"}
    assert set(host.findings("--ipxe-dir", NEW_IPXE, severity="note")) == notes


def test_interface_that_is_down_without_address_or_carrier_or_with_small_mtu_is_reported(host: Doctor) -> None:
    host.edge("link", "set", "eth1", "mtu", "1400")
    assert host.findings()["MTU"]["seen"].startswith("eth1 takes packets of 1400 bytes")
    host.edge("link", "set", "eth1", "mtu", "1500")
    host.other("link", "set", "eth0", "down")
    assert host.findings()["link"]["seen"].startswith("eth1 has no carrier")
    host.edge("address", "flush", "dev", "eth1")
    assert host.findings()["interface"]["seen"] == "eth1 has no IPv4 address"
    assert "192.0.2.9 is no address of this host" in host.findings("--interface", "eth1=192.0.2.9")["interface"]["seen"]
    host.edge("link", "set", "eth1", "down")
    assert host.findings()["interface"]["remedy"] == "ip link set eth1 up"


@pytest.mark.parametrize("tool", ["nft", "iptables"])
def test_firewall_rule_that_drops_packets_of_machines_is_reported(host: Doctor, tool: str) -> None:
    if tool == "nft":
        filter_of = "type filter hook input priority 0; policy drop; tcp dport 7080 accept;"
        rules = f"table inet guard {{ chain input {{ {filter_of} }}; }}"
        assert host.run(IN_EDGE, "nft", rules).popen.returncode == 0
        expected = {"67/udp", "4011/udp", "69/udp", "42113/tcp"}
    else:
        rule = ["INPUT", "-i", "eth1", "-p", "udp", "--dport", "69", "-j", "DROP"]
        assert host.run(IN_EDGE, "iptables", "-A", *rule).popen.returncode == 0
        expected = {"69/udp"}
    ran = host.run(IN_EDGE, *TINKEDGE, "doctor", "--no-lab", "--interface", "eth1", "--data-dir", host.directory / "d")
    lines = [line for line in ran.out.splitlines() if "PROBLEM firewall" in line]
    assert {line.split()[2] for line in lines} == expected, ran.out
    assert ran.popen.returncode == 1
    disabled = ["--dhcp-mode", "off", "--disable", "tftp", "--disable", "server"]
    assert "firewall" not in host.findings(*disabled)


def test_documented_firewall_is_valid_for_nft_and_admits_machines(host: Doctor) -> None:
    paper = (Path(__file__).resolve().parents[2] / "docs" / "operating.md").read_text()
    (text,) = re.findall(r"^```\n(table inet tinkedge .*?)^```", paper, re.MULTILINE | re.DOTALL)
    rules = host.directory / "nftables.conf"
    # Also the rules that are comments.
    rules.write_text(re.sub(r"^ +# (ip saddr .* accept)$", r"\1", text, flags=re.MULTILINE))
    for words in (["-c", "-f", str(rules)], ["-f", str(rules)]):
        ran = host.run(IN_EDGE, "nft", *words)
        assert ran.popen.returncode == 0, ran.out
    assert host.findings(severity="error") == {}
    without = host.run(IN_EDGE, "nft", "flush", "set", "inet", "tinkedge", "machines")
    assert without.popen.returncode == 0, without.out
    assert "firewall" in host.findings(severity="warning"), "the check does not see the rules at all"


def test_port_of_another_program_is_reported_with_the_program(host: Doctor) -> None:
    code = "import socket,time\ns = socket.socket()\ns.bind(('10.77.1.1', 7777))\ns.listen()\ntime.sleep(60)"
    holder = host.start(IN_EDGE, "python3", "-c", code)
    wait_until(lambda: "tcp:7777" in host.listening())
    assert host.findings() == {}
    finding = host.findings("--http-port", "7777")["port 7777/tcp (HTTP) on eth1"]
    assert f"python3 (process {holder.popen.pid})" in finding["remedy"]


def test_full_data_directory_is_reported(host: Doctor) -> None:
    data = host.directory / "data"
    data.mkdir(mode=0o700)
    script = (
        f"mount -t tmpfs -o size=8m,nr_inodes=20,mode=700 tmpfs {data} && "
        f"exec {' '.join(TINKEDGE)} doctor --no-lab --json --interface lo --data-dir {data}"
    )
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False)
    severities = {one["name"]: one["severity"] for one in json.loads(done.stdout)["findings"]}
    assert (severities["data directory's space"], severities["data directory's inodes"]) == ("error", "warning")


def test_unresolved_name_in_an_osie_is_reported(host: Doctor) -> None:
    manifests = host.directory / "manifests"
    manifests.mkdir()
    urls = {"kernelUrl": "http://kernels.invalid/k", "initrdUrl": "http://10.0.0.1/i"}
    osie = {"apiVersion": "tinkerbell.org/v1alpha2", "kind": "OSIE", "metadata": {"name": "hook"}, "spec": urls}
    (manifests / "osie.json").write_text(json.dumps(osie))
    finding = host.findings("--manifests", manifests)["name of an OSIE's URL"]
    assert finding["seen"].startswith("kernels.invalid (OSIE default/hook: kernelUrl): ")


def test_running_edge_that_is_not_ready_is_reported(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        host.up("eth1")
        doctor = [*TINKEDGE, "doctor", "--no-lab", "--interface", "eth1", "--data-dir", host.data_dir]
        ran = host.run(IN_EDGE, *doctor)
        assert "running edge: ready" in ran.out
        assert "running edge's network eth1: it serves with 10.77.1.1" in ran.out
        host.in_edge("address", "del", "10.77.1.1/24", "dev", "eth1")
        wait_until(lambda: host.readiness()[0] == 503)
        ran = host.run(IN_EDGE, *doctor)
        assert ran.popen.returncode == 1
        assert "PROBLEM running edge: not ready: eth1 has no IPv4 address" in ran.out


# --- metadata at fe80::a9fe:a9fe --------------------------------------------------------------------------------------

NAME = "metadata at [fe80::a9fe:a9fe%eth1]:80"


@pytest.fixture
def linked(host: Doctor) -> Doctor:
    """A host whose link-local address is its own, and another one at the other end of its cable."""
    wait_until(lambda: "tentative" not in host.run(IN_EDGE, "ip", "-6", "address", "show", "dev", "eth1").out)
    return host


def test_link_metadata_is_examined_only_on_request(linked: Doctor) -> None:
    assert NAME not in linked.findings("--ipxe-dir", NEW_IPXE, severity="ok")
    assert linked.link_metadata() == ("ok", "no other host is known to have it, and its port is free")
    assert linked.findings("--link-metadata") == {}
    findings = linked.findings("--link-metadata", "--probe", severity="ok")
    assert findings["who has fe80::a9fe:a9fe on eth1"]["seen"] == "no host"


def test_interface_without_ipv6_or_that_is_down_is_reported(linked: Doctor) -> None:
    linked.edge("link", "set", "eth1", "down")
    assert linked.link_metadata() == ("note", "not served while eth1 is down")
    linked.edge("link", "set", "eth1", "up")
    linked.other("link", "set", "eth0", "down")
    assert linked.link_metadata() == ("note", "not served while eth1 has no carrier")
    linked.run(IN_EDGE, "sysctl", "-qw", "net.ipv6.conf.eth1.disable_ipv6=1")
    assert linked.link_metadata() == ("error", "IPv6 is switched off on eth1")
    assert "eth1.disable_ipv6=0" in linked.findings("--link-metadata")[NAME]["remedy"]


def test_other_host_with_the_address_is_reported_with_its_mac(linked: Doctor) -> None:
    mac = linked.other_has_it()
    assert linked.link_metadata()[0] == "ok", "the kernel does not know the other host, and the link was not asked"
    finding = linked.findings("--link-metadata", "--probe")["who has fe80::a9fe:a9fe on eth1"]
    assert finding["severity"] == "error"
    assert finding["seen"] == f"{mac}, as far as the kernel knows, which serves no metadata there"
    seen = f"another host on eth1, {mac}, has the address: this edge waits for it"
    assert linked.link_metadata() == ("warning", seen), "now the kernel knows"
    linked.edge("address", "add", f"{METADATA_ADDRESS}/64", "dev", "eth1")
    wait_until(lambda: "dadfailed" in linked.run(IN_EDGE, "ip", "-6", "address", "show", "dev", "eth1").out)
    severity, seen = linked.link_metadata()
    assert severity == "warning"
    assert seen.startswith("another host on eth1, "), seen


@pytest.mark.parametrize("is_there", [False, True], ids=["no-address", "address"])
def test_metadata_port_of_another_program_is_reported(linked: Doctor, is_there: bool) -> None:
    if is_there:
        assert linked.holds() is AddressState.HELD
        assert linked.link_metadata() == ("warning", "this host holds the address, but no server answers at its port")
    linked.start(IN_EDGE, "python3", "-m", "http.server", "--bind", "::", "80")
    wait_until(lambda: "tcp:80" in linked.listening())
    assert linked.link_metadata() == ("error", "another program has port 80")


def test_firewall_rule_for_ipv6_alone_is_reported(linked: Doctor) -> None:
    rules = "table ip6 guard { chain input { type filter hook input priority 0; tcp dport 80 drop; }; }"
    assert linked.run(IN_EDGE, "nft", rules).popen.returncode == 0
    assert linked.findings() == {}
    assert linked.findings("--link-metadata")["firewall"]["seen"].startswith("80/tcp of IPv6 on eth1 is dropped by ")
