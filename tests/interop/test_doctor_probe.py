"""`tinkedge doctor --probe` finds other DHCP servers on a real cable, and fetches from our TFTP as a machine does."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge.diagnose import fetch
from edge.diagnose.extra import DiagnoseError
from tests.interop.conftest import Network
from tests.interop.test_watch_capture import POOL, PROGRAM, start_tftp

OpenWire = Callable[..., Any]


PROXY = ("--dhcp-range=10.77.6.0,proxy", "--pxe-service=x86-64_EFI,boot,ipxe.efi")


def probe(network: Network, namespace: str, interface: str, ipxe_dir: Path = Path("/nowhere")) -> str:
    """What the probe finds, in a process of its own, for scapy knows one set of interfaces; with less patience."""
    script = (
        "import sys; from pathlib import Path; from edge.composition import doctor; from edge.diagnose import servers\n"
        "servers.LISTEN_SECONDS = 0.7\n"
        "for found in doctor.probe([sys.argv[1]], Path(sys.argv[2])):\n"
        "    print('ok' if found.ok else 'PROBLEM', f'{found.name}: {found.seen} -> {found.remedy}')\n"
    )
    return run(network, namespace, "-c", script, interface, str(ipxe_dir))


def run(network: Network, namespace: str, *arguments: str) -> str:
    command = ["ip", "netns", "exec", namespace, sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_foreign_dhcp_server_is_named_with_what_it_would_do_to_machines(network: Network, tmp_path: Path) -> None:
    network.give_client_its_address()
    with network.dnsmasq(tmp_path, *POOL):
        told = run(network, network.client, "-m", "edge.cli", "doctor", "--no-lab", "--probe", "--interface", "eth0")
    found = re.search(r"other DHCP servers on eth0: 10\.77\.6\.1 \(([0-9a-f:]{17})\) offers an address (.*)\n", told)
    assert found, told
    assert re.fullmatch(r"\(10\.77\.6\.1\d\d\) and evil\.efi from 10\.77\.6\.1 to boot", found[2])
    assert told.count("other DHCP servers") == 1  # asked three times, told once
    assert "--dhcp-mode proxy" in told


def test_proxy_dhcp_server_is_told_apart_from_one_that_gives_addresses(network: Network, tmp_path: Path) -> None:
    network.give_client_its_address()
    with network.dnsmasq(tmp_path, *PROXY):
        told = probe(network, network.client, "eth0")
    assert "PROBLEM other DHCP servers on eth0: 10.77.6.1 (" in told
    assert "offers no address" in told


def test_server_of_this_address_is_not_foreign(network: Network, tmp_path: Path) -> None:
    with network.dnsmasq(tmp_path, *POOL):
        told = probe(network, network.client, f"eth0={network.server_ip}")
    assert "ok other DHCP servers on eth0: none answered" in told


def test_probe_asks_as_a_machine_that_nobody_has(network: Network, wire: OpenWire) -> None:
    network.give_client_its_address()
    ears = wire(network.server, "srv0")
    told = probe(network, network.client, "eth0") + probe(network, network.client, "eth0")
    assert told.count("ok other DHCP servers on eth0: none answered within 0.7 s") == 2
    assert told.count("TFTP from 10.77.6.50: not tried: it does not run here now") == 2
    macs = set()
    for frame in ears.heard():
        if frame[12:14] == b"\x08\0":
            assert frame[:6] == b"\xff" * 6
            assert frame[6] & 3 == 2  # locally administered, of one machine
            assert frame[6:12] == frame[70:76]  # chaddr
            macs.add(frame[6:12])
    assert len(macs) == 2


def test_tftp_is_fetched_and_compared_with_the_file(network: Network, tmp_path: Path) -> None:
    with network.serving(lambda: start_tftp(network)):
        for content, words in (
            (PROGRAM, rf"ok TFTP from 10\.77\.6\.1: snponly\.efi, {len(PROGRAM)} bytes in [\d.]+ s, as it should be"),
            (PROGRAM + b"x", rf"PROBLEM TFTP .* is not the file in .*: {len(PROGRAM)} bytes instead of 76801 "),
        ):
            (tmp_path / "snponly.efi").write_bytes(content)
            assert re.search(words, probe(network, network.server, "srv0", tmp_path))


def test_tftp_that_the_firewall_keeps_from_machines_is_not_as_it_should_be(network: Network, tmp_path: Path) -> None:
    """What this host asks itself does not come in on the machines' interface."""
    (tmp_path / "snponly.efi").write_bytes(PROGRAM)
    network.firewall(network.server, "INPUT", "-i", "srv0", "-p", "udp", "--dport", "69", "-j", "DROP")
    with network.serving(lambda: start_tftp(network)):
        told = probe(network, network.server, "srv0", tmp_path)
    assert re.search(
        r"PROBLEM TFTP from 10\.77\.6\.1: .* machines on srv0 ask in vain: 69/udp on srv0 is dropped by", told
    ), told


def test_ports_are_asked_as_if_from_outside_whatever_the_rules_of_this_host_are(network: Network) -> None:
    """A rule about addresses may or may not be about machines, so that reading it tells nothing."""
    from_outside = r"69/udp \(TFTP\) from outside on srv0"
    with network.serving(lambda: start_tftp(network)):
        told = probe(network, network.server, "srv0")
        assert re.search(rf"ok {from_outside}: answers what arrives there", told), told
        network.firewall(network.server, "INPUT", "-s", "10.77.6.0/24", "-p", "udp", "--dport", "69", "-j", "DROP")
        told = probe(network, network.server, "srv0")
    assert re.search(rf"PROBLEM {from_outside}: TFTP runs here, and does not answer what arrives on srv0", told), told


def test_tftp_server_that_has_not_the_file_is_quoted(network: Network) -> None:
    with (
        network.serving(lambda: start_tftp(network)),
        pytest.raises(DiagnoseError, match=r"10\.77\.6\.1 port 69: File not found"),
    ):
        network.inside(network.server, lambda: fetch.fetch(network.server_ip, "missing"))


def test_tftp_server_that_is_silent_is_given_up(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_TIMEOUT_SECONDS", 0.2)
    network.firewall(network.server, "INPUT", "-p", "udp", "--dport", "69", "-j", "DROP")
    with network.serving(lambda: start_tftp(network)), pytest.raises(DiagnoseError, match="does not answer"):
        network.inside(network.server, lambda: fetch.fetch(network.server_ip, "snponly.efi"))
