"""`tinkedge doctor` names what is broken: each test breaks one thing, in a namespace or a directory of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.rack import IN_EDGE, TINKEDGE, Namespaces, ip
from tests.interop.test_networks import Host
from tests.waiting import wait_until

NEW_IPXE = Path(sys.prefix) / "ipxe-trixie"
"""Debian 13's (`deploy/setup.sh ipxe`)."""


class Doctor(Namespaces):
    """A host with the interface eth1 10.77.1.1/24, and a cable in it."""

    def build(self) -> None:
        self.add(IN_EDGE)
        self.add("other")
        end = ["eth1", "type", "veth", "peer", "name", "eth0", "netns", self.namespaces["other"]]
        self.edge("link", "add", *end)
        self.edge("link", "set", "eth1", "up")
        ip("-n", self.namespaces["other"], "link", "set", "eth0", "up")
        self.edge("address", "add", "10.77.1.1/24", "dev", "eth1")

    def edge(self, *words: str) -> None:
        ip("-n", self.namespaces[IN_EDGE], *words)

    def found(self, *options: str | Path, severity: str = "") -> dict[str, dict[str, Any]]:
        """The findings of that severity, or all that are not ok, by name; but for the clock, which is the machine's."""
        given = ["--interface", "eth1", "--data-dir", self.directory / "data", *options]
        ran = self.run(IN_EDGE, *TINKEDGE, "doctor", "--no-lab", "--json", *given)
        document = json.loads(ran.out)
        wanted = {severity} if severity else {"warning", "error"}
        return {
            one["name"]: one for one in document["findings"] if one["severity"] in wanted and one["name"] != "clock"
        }


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Doctor]:
    with Doctor(tmp_path) as host:
        yield host


def test_second_interface_on_the_same_ethernet_is_named_until_the_host_minds_where_it_is_asked(host: Doctor) -> None:
    other = host.namespaces["other"]
    ip("-n", other, "link", "add", "switch", "type", "bridge")
    host.edge("link", "add", "eth2", "type", "veth", "peer", "name", "port2", "netns", other)
    host.edge("link", "add", "eth3", "type", "veth", "peer", "name", "port3", "netns", other)
    for port in ("eth0", "port2"):
        ip("-n", other, "link", "set", port, "master", "switch", "up")
    ip("-n", other, "link", "set", "switch", "up")
    ip("-n", other, "address", "add", "10.77.1.50/24", "dev", "switch")
    for card, address in (("eth2", "10.77.2.1/24"), ("eth3", "10.77.3.1/24")):
        host.edge("link", "set", card, "up")
        host.edge("address", "add", address, "dev", card)
    assert "ARP on eth1" not in host.found(), "nobody has said anything yet"
    host.run("other", "curl", "-s", "--max-time", "5", "http://10.77.1.1:9/")  # it asks who has that address
    found = host.found()["ARP on eth1"]
    assert re.match(r"eth1 and eth2 of this host seem to be on one Ethernet \(10\.77\.1\.50, ", found["seen"]), found
    assert "eth3" not in found["seen"]
    host.run(IN_EDGE, "sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=1")
    assert "ARP on eth1" not in host.found()


def test_host_that_has_everything_has_notes_only(host: Doctor) -> None:
    assert host.found() == {}
    # Media of Debian 12's iPXE are not for machines without DHCP.
    notes = {"running edge", "names of OSIEs' URLs", "other DHCP servers"}
    assert set(host.found("--ipxe-dir", NEW_IPXE, severity="note")) == notes


def test_link_that_is_down_has_no_address_no_carrier_or_a_small_mtu_is_named(host: Doctor) -> None:
    host.edge("link", "set", "eth1", "mtu", "1400")
    assert host.found()["MTU"]["seen"].startswith("eth1 takes packets of 1400 bytes")
    host.edge("link", "set", "eth1", "mtu", "1500")
    ip("-n", host.namespaces["other"], "link", "set", "eth0", "down")
    assert host.found()["link"]["seen"].startswith("eth1 has no carrier")
    host.edge("address", "flush", "dev", "eth1")
    assert host.found()["interface"]["seen"] == "eth1 has no IPv4 address"
    assert "192.0.2.9 is no address of this host" in host.found("--interface", "eth1=192.0.2.9")["interface"]["seen"]
    host.edge("link", "set", "eth1", "down")
    assert host.found()["interface"]["remedy"] == "ip link set eth1 up"


@pytest.mark.parametrize("tool", ["nft", "iptables"])
def test_firewall_rule_that_drops_what_machines_send_is_named(host: Doctor, tool: str) -> None:
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
    assert "firewall" not in host.found(*disabled)


def test_documented_firewall_is_taken_by_nft_and_lets_machines_in(host: Doctor) -> None:
    paper = (Path(__file__).resolve().parents[2] / "docs" / "operating.md").read_text()
    (text,) = re.findall(r"^```\n(table inet tinkedge .*?)^```", paper, re.MULTILINE | re.DOTALL)
    rules = host.directory / "nftables.conf"
    # Also what is there for whoever needs it.
    rules.write_text(re.sub(r"^ +# (ip saddr .* accept)$", r"\1", text, flags=re.MULTILINE))
    for words in (["-c", "-f", str(rules)], ["-f", str(rules)]):
        ran = host.run(IN_EDGE, "nft", *words)
        assert ran.popen.returncode == 0, ran.out
    assert host.found(severity="error") == {}
    without = host.run(IN_EDGE, "nft", "flush", "set", "inet", "tinkedge", "machines")
    assert without.popen.returncode == 0, without.out
    assert "firewall" in host.found(severity="warning"), "the check does not see the rules at all"


def test_port_that_somebody_else_has_is_named_with_its_holder(host: Doctor) -> None:
    code = "import socket,time\ns = socket.socket()\ns.bind(('10.77.1.1', 7777))\ns.listen()\ntime.sleep(60)"
    holder = host.start(IN_EDGE, "python3", "-c", code)
    wait_until(lambda: "tcp:7777" in host.listening())
    assert host.found() == {}
    found = host.found("--http-port", "7777")["port 7777/tcp (HTTP) on eth1"]
    assert f"python3 (process {holder.popen.pid})" in found["remedy"]


def test_full_data_directory_is_named(host: Doctor) -> None:
    data = host.directory / "data"
    data.mkdir(mode=0o700)
    script = (
        f"mount -t tmpfs -o size=8m,nr_inodes=20,mode=700 tmpfs {data} && "
        f"exec {' '.join(TINKEDGE)} doctor --no-lab --json --interface lo --data-dir {data}"
    )
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False)
    found = {one["name"]: one["severity"] for one in json.loads(done.stdout)["findings"]}
    assert (found["data directory's space"], found["data directory's inodes"]) == ("error", "warning")


def test_name_in_an_osie_that_nobody_resolves_is_named(host: Doctor) -> None:
    manifests = host.directory / "manifests"
    manifests.mkdir()
    urls = {"kernelUrl": "http://kernels.invalid/k", "initrdUrl": "http://10.0.0.1/i"}
    osie = {"apiVersion": "tinkerbell.org/v1alpha2", "kind": "OSIE", "metadata": {"name": "hook"}, "spec": urls}
    (manifests / "osie.json").write_text(json.dumps(osie))
    found = host.found("--manifests", manifests)["name of an OSIE's URL"]
    assert found["seen"].startswith("kernels.invalid (OSIE default/hook: kernelUrl): ")


def test_running_edge_that_is_not_ready_is_named(tmp_path: Path) -> None:
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
