"""The tools for an operator on a real link.

`tinkedge watch --capture` shows what passes; `tinkedge doctor --probe` finds other DHCP servers, and fetches from our
TFTP as a machine does.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from scapy.layers.dhcp import BOOTP
from scapy.utils import rdpcap

from edge.doctor import DiagnoseError, tftp
from edge.journey.events import Outcome, Step
from edge.tftp import TftpServer
from edge.tftp.packets import ErrorCode
from edge.tftp.source import Opened, TftpFile, TftpRefusal, TftpRequest
from tests.interop.conftest import Network
from tests.waiting import PATIENCE_SECONDS, wait_until

OpenWire = Callable[..., Any]

PROGRAM = bytes(range(256)) * 300


def inside(namespace: str, *arguments: str) -> list[str]:
    return ["ip", "netns", "exec", namespace, sys.executable, *arguments]


POOL = ("--dhcp-range=10.77.6.100,10.77.6.110,1h", "--dhcp-boot=evil.efi,,10.77.6.1")


def open_file(request: TftpRequest) -> Opened:
    if request.name == "snponly.efi":
        return TftpFile(PROGRAM, request.name)
    return TftpRefusal(ErrorCode.NOT_FOUND, f"{request.name}: no such file")


async def start_tftp(network: Network) -> Sequence[TftpServer]:
    server = TftpServer(open_file, network.record, host=network.server_ip, interface="srv0")
    await server.start()
    return [server]


@contextmanager
def watching(network: Network, directory: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `tinkedge watch --capture` in the server's namespace, until Ctrl-C."""
    command = inside(network.server, "-m", "edge.cli", "watch", network.client_mac, "--capture", "--interface", "srv0")
    token = directory / "admin-token"
    token.write_text("0" * 64)
    command += ["--admin-token-file", str(token)]
    with (directory / "out").open("wb") as out, (directory / "err").open("wb") as err:
        process = subprocess.Popen([*command, *options], stdout=out, stderr=err)
        try:
            error = directory / "err"
            wait_until(lambda: process.poll() is not None or "end with Ctrl-C" in error.read_text(), error.read_text)
            assert process.poll() is None, error.read_text()
            yield process
        finally:
            process.send_signal(signal.SIGINT)  # all packets up to now are shown and written
            process.wait(PATIENCE_SECONDS)


async def start_journey(network: Network) -> Sequence[Any]:
    """Run an edge's admin HTTP, which reports an offer soon after DHCP packets."""

    async def events(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in list(network.events):
            fields = {"time": event.time, "mac": event.mac, "step": event.step, "outcome": event.outcome}
            data = json.dumps({**fields, "message": event.message, "detail": {}})
            await response.write(f"data: {data}\n\n".encode())
        await asyncio.sleep(60)
        return response

    app = web.Application()
    app.router.add_get("/api/v1/events", events)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 7081).start()
    return [SimpleNamespace(stop=runner.cleanup)]


def test_conversation_of_one_machine_is_shown_and_written_to_a_file(network: Network, tmp_path: Path) -> None:
    file = tmp_path / "machine.pcap"
    download = tmp_path / "got"
    network.record(network.client_mac, Step.DHCP, Outcome.OK, "reported by the edge")
    with (
        network.serving(lambda: start_tftp(network)),
        network.serving(lambda: start_journey(network)),
        network.dnsmasq(tmp_path, *POOL),
        watching(network, tmp_path, "--write", str(file)) as process,
    ):
        output_file = tmp_path / "out"
        wait_until(lambda: "reported by the edge" in output_file.read_text(), output_file.read_text)
        network.run("busybox", "udhcpc", "-i", "eth0", "-n", "-q", "-f", "-s", "/bin/true")
        network.give_client_its_address()
        curl = ("curl", "-sS", "--tftp-blksize", "1468", "-o", str(download), f"tftp://{network.server_ip}/")
        assert network.run(*curl[:-1], f"{curl[-1]}snponly.efi").returncode == 0
        network.run(*curl[:-1], f"{curl[-1]}missing")
    out, err = (tmp_path / "out").read_text(), (tmp_path / "err").read_text()
    assert process.returncode == 0, err
    assert download.read_bytes() == PROGRAM
    output = [re.sub(r"^(\d{4}-\d\d-\d\d )?\S+ ", "", line) for line in out.splitlines()]
    wanted = [
        r" +\+0\.0s dhcp      ok       reported by the edge",
        r"0\.0\.0\.0:68 > 255\.255\.255\.255:67 DHCPDISCOVER of 52:54:00:cc:00:01 .*class\(60\) \"udhcp ",
        r"10\.77\.6\.1:67 > .*:68 DHCPOFFER to 52:54:00:cc:00:01 .* file \"evil\.efi\"",
        r"0\.0\.0\.0:68 > .* DHCPREQUEST of ",
        r"10\.77\.6\.1:67 > .* DHCPACK to ",
        r"ARP who has 10\.77\.6\.1\? asks 10\.77\.6\.50",
        r"ARP 10\.77\.6\.1 is at ",
        r"10\.77\.6\.50:\d+ > 10\.77\.6\.1:69 TFTP reads \"snponly\.efi\" tsize=0 blksize=1468",
        r"10\.77\.6\.1:\d+ > 10\.77\.6\.50:\d+ TFTP agrees to ",
        r".* TFTP first block, 1468 bytes",
        r".* TFTP last block 53, 464 bytes",
        rf".* TFTP has all of snponly\.efi: {len(PROGRAM)} bytes in ",
        r".* TFTP reads \"missing\"",
        r".* TFTP error 1 \"missing: no such file\", missing",
    ]
    left = iter(output)
    for pattern in wanted:  # in this order, whatever is between
        assert any(re.match(pattern, line) for line in left), (pattern, output)
    assert re.search(rf"\d+ packets read; all frames are in {file}", err)
    assert file.stat().st_mode & 0o777 == 0o600
    frames = rdpcap(str(file))
    assert sum(BOOTP in frame for frame in frames) >= 4
    assert len(frames) > 2 * len(PROGRAM) // 1468  # every block and every acknowledgement


def test_packets_are_shown_without_an_edge(network: Network, tmp_path: Path) -> None:
    with watching(network, tmp_path, "-o", "json") as process:
        network.run("busybox", "udhcpc", "-i", "eth0", "-n", "-q", "-f", "-t", "1", "-T", "1", "-s", "/bin/true")
    assert process.returncode == 0
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert any("DHCPDISCOVER" in line["packet"] and line["mac"] == network.client_mac for line in lines)
    assert "packets alone are shown" in (tmp_path / "err").read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--interface", "nic9"], "there is no interface nic9"),
        (["--interface", "srv0", "--write", "/nowhere/x.pcap"], "can't write /nowhere/x.pcap: No such file"),
        ([], "there is no default route: give --interface"),
    ],
)
def test_capture_that_can_not_start_reports_why(network: Network, options: list[str], words: str) -> None:
    command = inside(network.server, "-m", "edge.cli", "watch", network.client_mac, "--capture", *options)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_capture_without_the_privilege_names_it(network: Network) -> None:
    dropped = ["setpriv", "--bounding-set=-net_raw", "--inh-caps=-net_raw", sys.executable, "-m", "edge.cli"]
    command = ["ip", "netns", "exec", network.server, *dropped, "watch", network.client_mac, "--capture"]
    done = subprocess.run([*command, "--interface", "srv0"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "run it as root, or with CAP_NET_RAW" in done.stderr


# --- doctor --probe ---------------------------------------------------------------------------------------------------


PROXY = ("--dhcp-range=10.77.6.0,proxy", "--pxe-service=x86-64_EFI,boot,ipxe.efi")


def probe(namespace: str, interface: str, ipxe_dir: Path = Path("/nowhere")) -> str:
    """Return the findings of the probe, in a process of its own, because scapy reads the interfaces once."""
    script = (
        "import sys; from pathlib import Path; from edge.doctor import ExaminedServices, dhcp_servers, probe\n"
        "dhcp_servers.LISTEN_SECONDS = 0.7\n"
        "name, _, address = sys.argv[1].partition('=')\n"
        "for found in probe(ExaminedServices([(name, address)], Path(sys.argv[2]))):\n"
        "    print('ok' if found.is_fine else 'PROBLEM', f'{found.name}: {found.seen} -> {found.remedy}')\n"
    )
    return run(namespace, "-c", script, interface, str(ipxe_dir))


def run(namespace: str, *arguments: str) -> str:
    done = subprocess.run(inside(namespace, *arguments), capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_foreign_dhcp_server_is_reported_with_its_offer(network: Network, tmp_path: Path) -> None:
    network.give_client_its_address()
    with network.dnsmasq(tmp_path, *POOL):
        output = run(network.client, "-m", "edge.cli", "doctor", "--no-lab", "--probe", "--interface", "eth0")
        ours = probe(network.client, f"eth0={network.server_ip}")
    assert "ok other DHCP servers on eth0: none answered" in ours, "the server of this address is not foreign"
    found = re.search(r"other DHCP servers on eth0: 10\.77\.6\.1 \(([0-9a-f:]{17})\) offers an address (.*)\n", output)
    assert found, output
    assert re.fullmatch(r"\(10\.77\.6\.1\d\d\) and evil\.efi from 10\.77\.6\.1 to boot", found[2])
    assert output.count("other DHCP servers") == 1  # asked three times, reported once
    assert "--dhcp-mode proxy" in output


def test_proxy_dhcp_server_is_distinguished_from_one_that_offers_addresses(network: Network, tmp_path: Path) -> None:
    network.give_client_its_address()
    with network.dnsmasq(tmp_path, *PROXY):
        output = probe(network.client, "eth0")
    assert "PROBLEM other DHCP servers on eth0: 10.77.6.1 (" in output
    assert "offers no address" in output


def test_probe_uses_a_random_hardware_address_each_time(network: Network, wire: OpenWire) -> None:
    network.give_client_its_address()
    ears = wire(network.server, "srv0")
    output = probe(network.client, "eth0") + probe(network.client, "eth0")
    assert output.count("ok other DHCP servers on eth0: none answered within 0.7 s") == 2
    assert output.count("TFTP from 10.77.6.50: not tried: it does not run here now") == 2
    macs = set()
    for frame in ears.received():
        if frame[12:14] == b"\x08\0":
            assert frame[:6] == b"\xff" * 6
            assert frame[6] & 3 == 2  # locally administered, of one machine
            assert frame[6:12] == frame[70:76]  # chaddr
            macs.add(frame[6:12])
    assert len(macs) == 2


def test_tftp_probe_compares_the_file_and_examines_the_firewall(network: Network, tmp_path: Path) -> None:
    with network.serving(lambda: start_tftp(network)):
        for content, words in (
            (PROGRAM + b"x", rf"PROBLEM TFTP .* is not the file in .*: {len(PROGRAM)} bytes instead of 76801 "),
            (PROGRAM, rf"ok TFTP from 10\.77\.6\.1: snponly\.efi, {len(PROGRAM)} bytes in [\d.]+ s, as it should be"),
        ):
            (tmp_path / "snponly.efi").write_bytes(content)
            assert re.search(words, probe(network.server, "srv0", tmp_path))
        # What this host asks itself does not come in on the machines' interface.
        network.firewall(network.server, "INPUT", "-i", "srv0", "-p", "udp", "--dport", "69", "-j", "DROP")
        output = probe(network.server, "srv0", tmp_path)
    why = r"PROBLEM TFTP from 10\.77\.6\.1: .* requests of machines on srv0 get no answer: 69/udp on srv0 is dropped by"
    assert re.search(why, output), output


def test_ports_are_probed_from_outside_past_any_firewall_rule(network: Network) -> None:
    """A rule about addresses may or may not match machines, so that it can't be decided by reading it."""
    from_outside = r"69/udp \(TFTP\) from outside on srv0"
    with network.serving(lambda: start_tftp(network)):
        output = probe(network.server, "srv0")
        assert re.search(rf"ok {from_outside}: answers what arrives there", output), output
        network.firewall(network.server, "INPUT", "-s", "10.77.6.0/24", "-p", "udp", "--dport", "69", "-j", "DROP")
        output = probe(network.server, "srv0")
    assert re.search(rf"PROBLEM {from_outside}: TFTP runs here, and does not answer what arrives on srv0", output), (
        output
    )


def test_error_of_a_tftp_server_is_quoted_and_a_silent_server_times_out(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tftp, "_TIMEOUT_SECONDS", 0.2)
    with network.serving(lambda: start_tftp(network)):
        with pytest.raises(DiagnoseError, match=r"10\.77\.6\.1 port 69: File not found"):
            network.inside(network.server, lambda: tftp.fetch(network.server_ip, "missing"))
        network.firewall(network.server, "INPUT", "-p", "udp", "--dport", "69", "-j", "DROP")
        with pytest.raises(DiagnoseError, match="does not answer"):
            network.inside(network.server, lambda: tftp.fetch(network.server_ip, "snponly.efi"))
