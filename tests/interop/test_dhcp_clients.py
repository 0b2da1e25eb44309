"""Real DHCP clients against the server, each side in a network namespace of its own."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from edge.dhcp.responder import DhcpSettings, Received, Reply, Responder
from edge.dhcp.server import DhcpServer, DhcpServerError
from edge.inventory import Inventory
from edge.journey.events import Step
from edge.policy import NetbootPolicy
from ipxe.binaries import BootBinaries

Network = Any
Start = Callable[[], Awaitable[Sequence[DhcpServer]]]


def hardware(network: Network, ip: str) -> dict[str, Any]:
    dhcp = {
        "ip": ip,
        "netmask": "255.255.255.0",
        "gateway": network.server_ip,
        "hostname": "lab-1",
        "nameservers": ["10.77.6.1", "10.77.6.2"],
        "timeservers": ["10.77.6.3"],
        "leaseTimeSeconds": 4321,
    }
    return {
        "metadata": {"name": "lab-1", "namespace": "default"},
        "spec": {"networkInterfaces": {network.client_mac: {"dhcp": dhcp}}},
    }


@pytest.fixture
def inventory(network: Network) -> Inventory:
    inventory = Inventory()
    inventory.apply(hardware(network, network.client_ip))
    return inventory


@pytest.fixture
def start(network: Network, inventory: Inventory, tmp_path: Path) -> Start:
    directory = tmp_path / "ipxe"
    directory.mkdir()
    (directory / "snponly.efi").write_bytes(b"snponly")

    async def start_dhcp(interface: str = "srv0") -> Sequence[DhcpServer]:
        settings = DhcpSettings(network.server_ip, network.server_ip, f"http://{network.server_ip}:7080")
        responder = Responder(
            inventory, settings, network.record, time.monotonic, BootBinaries(directory), NetbootPolicy()
        )
        server = DhcpServer(responder, interface)
        await server.start()
        return [server]

    return start_dhcp


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script for dhclient and udhcpc that writes what they learned into `learned.<event>` beside it."""
    path = tmp_path / "script"
    path.write_text(
        f'#!/bin/sh\nenv > "{tmp_path}/new.$1$reason" && mv "{tmp_path}/new.$1$reason" "{tmp_path}/learned.$1$reason"\n'
    )
    path.chmod(0o755)
    return path


def learned(script: Path, event: str, timeout: float = 15) -> dict[str, str]:
    path = script.parent / f"learned.{event}"
    end = time.monotonic() + timeout
    while not path.exists():
        assert time.monotonic() < end, f"the client never came to {event}"
        time.sleep(0.02)
    return dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_udhcpc_gets_its_reservation(network: Network, start: Start, script: Path, loop: str) -> None:
    with network.serving(start, loop):
        done = network.run("busybox", "udhcpc", "-i", "eth0", "-n", "-q", "-f", "-s", str(script), "-O", "ntpsrv")
    assert done.returncode == 0, done.stderr
    got = learned(script, "bound")
    assert (got["ip"], got["subnet"], got["router"]) == (network.client_ip, "255.255.255.0", network.server_ip)
    assert (got["dns"], got["hostname"], got["lease"]) == ("10.77.6.1 10.77.6.2", "lab-1", "4321")
    assert (got["serverid"], got["ntpsrv"]) == (network.server_ip, "10.77.6.3")
    assert network.messages() == ["DHCPOFFER 10.77.6.50 to operating system", "DHCPACK 10.77.6.50 to operating system"]


def test_dhclient_gets_its_reservation_moves_with_it_and_releases_it(
    network: Network, start: Start, script: Path, inventory: Inventory, tmp_path: Path
) -> None:
    arguments = ["-v", "-lf", str(tmp_path / "leases"), "-pf", str(tmp_path / "pid"), "-sf", str(script)]
    command = network.as_client("dhclient", "-1", "-d", *arguments, "eth0")
    with network.serving(start):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as client:
            got = learned(script, "BOUND")
            client.terminate()
        assert (got["new_ip_address"], got["new_subnet_mask"]) == (network.client_ip, "255.255.255.0")
        assert (got["new_routers"], got["new_broadcast_address"]) == (network.server_ip, "10.77.6.255")
        assert (got["new_domain_name_servers"], got["new_ntp_servers"]) == ("10.77.6.1 10.77.6.2", "10.77.6.3")
        assert (got["new_dhcp_lease_time"], got["new_dhcp_renewal_time"]) == ("4321", "2160")

        # A changed Hardware: dhclient asks for the address it had (INIT-REBOOT), is refused it and gets the new one.
        inventory.apply(hardware(network, "10.77.6.60"))
        (script.parent / "learned.BOUND").unlink()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as client:
            assert learned(script, "BOUND")["new_ip_address"] == "10.77.6.60"
            client.terminate()
        assert any(message.startswith("DHCPNAK") for message in network.messages())

        # A release goes to the server's address alone, so it needs an address of its own.
        network.give_client_its_address()
        network.run("dhclient", "-r", *arguments, "eth0")
    assert network.messages()[-1] == "DHCPRELEASE of 10.77.6.60"


def test_unregistered_client_gets_no_answer_and_the_operator_a_manifest(
    network: Network, start: Start, script: Path, inventory: Inventory
) -> None:
    inventory.remove(hardware(network, network.client_ip))
    with network.serving(start):
        done = network.run("busybox", "udhcpc", "-i", "eth0", "-n", "-q", "-f", "-s", str(script), "-t", "2", "-T", "1")
    assert done.returncode != 0
    assert [event.step for event in network.events] == [Step.SEEN]
    assert network.client_mac in str(network.events[0].detail["manifest"])


def test_garbage_on_the_wire_does_not_end_the_service(network: Network, start: Start, script: Path) -> None:
    network.give_client_its_address()
    throw = (
        "import os, socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "for n in (0, 1, 239, 240, 300, 5000): [s.sendto(os.urandom(n), ('10.77.6.1', p)) for p in (67, 4011)]"
    )
    with network.serving(start):
        assert network.run("python3", "-c", throw).returncode == 0
        done = network.run("busybox", "udhcpc", "-i", "eth0", "-n", "-q", "-f", "-s", str(script))
    assert done.returncode == 0, done.stderr


def test_fault_of_ours_on_one_packet_does_not_end_the_service(
    network: Network, start: Start, script: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    respond = Responder.respond
    faults = iter([ZeroDivisionError("first packet")])

    def fail_once(responder: Responder, packet: bytes, received: Received) -> Reply | None:
        for fault in faults:
            raise fault
        return respond(responder, packet, received)

    monkeypatch.setattr(Responder, "respond", fail_once)
    with network.serving(start):
        done = network.run("busybox", "udhcpc", "-i", "eth0", "-n", "-q", "-f", "-s", str(script), "-T", "1")
    assert done.returncode == 0, done.stderr
    assert "DHCP on srv0 port 67: internal error on" in caplog.text


def test_interface_that_goes_down_and_up_is_served_again(network: Network, start: Start, script: Path) -> None:
    udhcpc = ("busybox", "udhcpc", "-i", "eth0", "-n", "-q", "-f", "-s", str(script), "-T", "1", "-t", "8")
    with network.serving(start):
        assert network.run(*udhcpc).returncode == 0
        network.bounce(network.server, "srv0")
        assert network.run(*udhcpc).returncode == 0


def test_second_dhcp_server_on_the_host_is_told_which_port_is_taken(network: Network, start: Start) -> None:
    with (
        network.serving(start),
        pytest.raises(DhcpServerError, match=r"UDP port 67 on srv0: another program has it"),
        network.serving(start),
    ):
        pytest.fail("started")


def test_missing_interface_is_named(network: Network, start: Any) -> None:
    with (
        pytest.raises(DhcpServerError, match=r"on nic9: there is no such interface .* name another with --interface"),
        network.serving(lambda: start("nic9")),
    ):
        pytest.fail("started")


def test_server_starts_again_right_after_it_stopped(network: Network, start: Start) -> None:
    async def twice() -> Sequence[DhcpServer]:
        for server in await start():
            await server.stop()
        return await start()

    with network.serving(twice):
        pass


async def test_unprivileged_server_is_told_what_it_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "snponly.efi").write_bytes(b"snponly")
    settings = DhcpSettings("10.77.6.1", "10.77.6.1", "http://10.77.6.1:7080")
    binaries = BootBinaries(tmp_path)
    responder = Responder(Inventory(), settings, lambda *_args, **_: None, time.monotonic, binaries, NetbootPolicy())

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(socket.socket, "setsockopt", refuse)
    with pytest.raises(
        DhcpServerError, match="not permitted; run as root, or with CAP_NET_BIND_SERVICE and CAP_NET_RAW"
    ):
        await DhcpServer(responder, "lo").start()
