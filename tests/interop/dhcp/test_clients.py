"""Real DHCP clients against the server, each side in a network namespace of its own."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from edge.dhcp import DhcpServer, DhcpServerError, DhcpSettings, Received, Reply, Responder
from edge.journey.events import Step
from edge.machines import Inventory, NetbootPolicy
from ipxe.binaries import BootBinaries
from tests.interop.conftest import Network
from tests.interop.dhcp.conftest import DhcpLab
from tests.waiting import wait_until


@pytest.mark.smoke
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_udhcpc_gets_its_reservation(network: Network, dhcp: DhcpLab, loop: str) -> None:
    with network.serving(dhcp.start, loop):
        done = dhcp.udhcpc("-O", "ntpsrv")
    assert done.returncode == 0, done.stderr
    got = dhcp.learned("bound")
    assert (got["ip"], got["subnet"], got["router"]) == (network.client_ip, "255.255.255.0", network.server_ip)
    assert (got["dns"], got["hostname"], got["lease"]) == ("10.77.6.1 10.77.6.2", "lab-1", "4321")
    assert (got["serverid"], got["ntpsrv"]) == (network.server_ip, "10.77.6.3")
    assert [*dict.fromkeys(message.split()[0] for message in network.messages())] == ["DHCPOFFER", "DHCPACK"]


@pytest.mark.smoke
def test_dhclient_gets_its_reservation_moves_with_it_and_releases_it(
    network: Network, dhcp: DhcpLab, tmp_path: Path
) -> None:
    leases = tmp_path / "leases"
    arguments = ["-v", "-lf", str(leases), "-pf", str(tmp_path / "pid"), "-sf", str(dhcp.script)]
    command = network.as_client("dhclient", "-1", "-d", *arguments, "eth0")

    def kept(address: str) -> bool:
        """dhclient writes the lease down after its script."""
        text = leases.read_text() if leases.exists() else ""
        return "renew " in text.rpartition(f"fixed-address {address};")[2] and f"fixed-address {address};" in text

    with network.serving(dhcp.start):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as client:
            got = dhcp.learned("BOUND")
            wait_until(lambda: kept(network.client_ip), "dhclient keeps no lease")
            client.terminate()
        assert (got["new_ip_address"], got["new_subnet_mask"]) == (network.client_ip, "255.255.255.0")
        assert (got["new_routers"], got["new_broadcast_address"]) == (network.server_ip, "10.77.6.255")
        assert (got["new_domain_name_servers"], got["new_ntp_servers"]) == ("10.77.6.1 10.77.6.2", "10.77.6.3")
        assert (got["new_dhcp_lease_time"], got["new_dhcp_renewal_time"]) == ("4321", "2160")

        # A changed Hardware: dhclient asks for the address it had (INIT-REBOOT), is refused it and gets the new one.
        dhcp.register("10.77.6.60")
        dhcp.forget()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as client:
            assert dhcp.learned("BOUND")["new_ip_address"] == "10.77.6.60"
            wait_until(lambda: kept("10.77.6.60"), "dhclient keeps no lease")
            client.terminate()
        assert any(message.startswith("DHCPNAK") for message in network.messages())

        # A release goes to the server's address alone, so it needs an address of its own.
        network.give_client_its_address()
        network.run("dhclient", "-r", *arguments, "eth0")
        released = f"DHCPRELEASE of 10.77.6.60, from {network.client_ip}"
        wait_until(lambda: network.messages()[-1] == released, network.messages)


def test_unregistered_client_gets_no_answer_and_the_operator_a_manifest(network: Network, dhcp: DhcpLab) -> None:
    dhcp.inventory.remove(dhcp.hardware())
    with network.serving(dhcp.start):
        done = dhcp.udhcpc("-t", "2", "-T", "1")
    assert done.returncode != 0
    assert [event.step for event in network.events] == [Step.SEEN]
    assert network.client_mac in str(network.events[0].detail["manifest"])


def test_fault_of_ours_on_one_packet_does_not_end_the_service(
    network: Network, dhcp: DhcpLab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    respond_in_full = Responder.respond_in_full
    faults = iter([ZeroDivisionError("first packet")])

    def fail_once(responder: Responder, packet: bytes, received: Received) -> Reply | None:
        for fault in faults:
            raise fault
        return respond_in_full(responder, packet, received)

    monkeypatch.setattr(Responder, "respond_in_full", fail_once)
    with network.serving(dhcp.start):
        done = dhcp.udhcpc("-T", "1", "-t", "8")
    assert done.returncode == 0, done.stderr
    assert "DHCP on srv0 port 67: internal error on" in caplog.text


def test_second_dhcp_server_on_the_host_is_told_which_port_is_taken(network: Network, dhcp: DhcpLab) -> None:
    with (
        network.serving(dhcp.start),
        pytest.raises(DhcpServerError, match=r"UDP port 67 on srv0: another program has it"),
        network.serving(dhcp.start),
    ):
        pytest.fail("started")


def test_missing_interface_is_named(network: Network, dhcp: DhcpLab) -> None:
    with (
        pytest.raises(DhcpServerError, match=r"on nic9: there is no such interface .* name another with --interface"),
        network.serving(lambda: dhcp.start("nic9")),
    ):
        pytest.fail("started")


def test_server_starts_again_right_after_it_stopped(network: Network, dhcp: DhcpLab) -> None:
    async def twice() -> Sequence[DhcpServer]:
        for server in await dhcp.start():
            await server.stop()
        return await dhcp.start()

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
