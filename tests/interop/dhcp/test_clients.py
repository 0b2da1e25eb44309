"""Real DHCP clients against the server, each side in a network namespace of its own.

They get a lease, renew it, return with an old one, release it and decline it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from scapy.layers.dhcp import BOOTP, DHCP

from edge.dhcp import DhcpServer, DhcpServerError
from edge.dhcp_common import Quarantine
from edge.journey.events import Outcome, Step
from edge.machines import Machine
from tests.interop.conftest import Network
from tests.interop.dhcp.conftest import DhcpLab, client_socket, message
from tests.waiting import wait_until


def has_logged(network: Network, word: str) -> Callable[[], bool]:
    return lambda: any(word in message for message in network.messages())


@pytest.mark.smoke
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_udhcpc_gets_its_reservation(network: Network, dhcp: DhcpLab, loop: str) -> None:
    with network.serving(dhcp.start, loop):
        done = dhcp.udhcpc("-O", "ntpsrv")
    assert done.returncode == 0, done.stderr
    lease = dhcp.learned("bound")
    assert (lease["ip"], lease["subnet"], lease["router"]) == (network.client_ip, "255.255.255.0", network.server_ip)
    assert (lease["dns"], lease["hostname"], lease["lease"]) == ("10.77.6.1 10.77.6.2", "lab-1", "4321")
    assert (lease["serverid"], lease["ntpsrv"]) == (network.server_ip, "10.77.6.3")
    assert [*dict.fromkeys(message.split()[0] for message in network.messages())] == ["DHCPOFFER", "DHCPACK"]


@pytest.mark.parametrize(
    ("declared", "file"),
    [
        (("-V", "NVIDIA/BF/PXE", "-x", "0x5d:0007"), "snponly.efi"),
        (("-V", "acme", "-x", "0x5d:07"), "snponly.efi"),
        (("-V", "", "-x", "0x61:00525069341131c000320000011a2b3c4d"), ""),
        (
            (
                "-V",
                "NVIDIA/BF/OOB",
            ),
            None,
        ),
    ],
    ids=["BlueField", "architecture of one byte", "Raspberry Pi without option 60", "operating system"],
)
def test_udhcpc_that_declares_firmware_gets_its_boot_file(
    network: Network, dhcp: DhcpLab, declared: tuple[str, ...], file: str | None
) -> None:
    with network.serving(dhcp.start):
        done = dhcp.udhcpc(*declared, "-O", "tftp")
    assert done.returncode == 0, done.stderr
    lease = dhcp.learned("bound")
    has_server = file is not None
    assert (lease.get("tftp"), lease.get("boot_file", "")) == (network.server_ip if has_server else None, file or "")


@pytest.mark.smoke
def test_dhclient_gets_its_reservation_moves_with_it_and_releases_it(
    network: Network, dhcp: DhcpLab, tmp_path: Path
) -> None:
    leases = tmp_path / "leases"
    arguments = ["-v", "-lf", str(leases), "-pf", str(tmp_path / "pid"), "-sf", str(dhcp.script)]
    command = network.as_client("dhclient", "-1", "-d", *arguments, "eth0")

    def has_lease(address: str) -> bool:
        """Return True once dhclient has written the lease to its file, which it does after its script."""
        text = leases.read_text() if leases.exists() else ""
        return "renew " in text.rpartition(f"fixed-address {address};")[2] and f"fixed-address {address};" in text

    with network.serving(dhcp.start):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as client:
            lease = dhcp.learned("BOUND")
            wait_until(lambda: has_lease(network.client_ip), "dhclient keeps no lease")
            client.terminate()
        assert (lease["new_ip_address"], lease["new_subnet_mask"]) == (network.client_ip, "255.255.255.0")
        assert (lease["new_routers"], lease["new_broadcast_address"]) == (network.server_ip, "10.77.6.255")
        assert (lease["new_domain_name_servers"], lease["new_ntp_servers"]) == ("10.77.6.1 10.77.6.2", "10.77.6.3")
        assert (lease["new_dhcp_lease_time"], lease["new_dhcp_renewal_time"]) == ("4321", "2160")

        # After a change of the Hardware, dhclient requests its old address (INIT-REBOOT), gets a NAK, then the new one.
        dhcp.register("10.77.6.60")
        dhcp.forget()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as client:
            assert dhcp.learned("BOUND")["new_ip_address"] == "10.77.6.60"
            wait_until(lambda: has_lease("10.77.6.60"), "dhclient keeps no lease")
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


def test_server_that_can_not_start_reports_the_reason(
    network: Network, dhcp: DhcpLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = r"on nic9: there is no such interface .* name another with --interface"
    with pytest.raises(DhcpServerError, match=missing), network.serving(lambda: dhcp.start("nic9")):
        pytest.fail("started")
    message = r"UDP port 67 on srv0: another program has it"
    with network.serving(dhcp.start), pytest.raises(DhcpServerError, match=message), network.serving(dhcp.start):
        pytest.fail("started")

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(socket.socket, "setsockopt", refuse)
    needs = "not permitted; run as root, or with CAP_NET_BIND_SERVICE and CAP_NET_RAW"
    with pytest.raises(DhcpServerError, match=needs), network.serving(dhcp.start):
        pytest.fail("started")


def test_server_starts_again_right_after_it_stopped(network: Network, dhcp: DhcpLab) -> None:
    async def twice() -> Sequence[DhcpServer]:
        for server in await dhcp.start():
            await server.stop()
        return await dhcp.start()

    with network.serving(twice):
        assert dhcp.udhcpc().returncode == 0


# --- dhclient ---------------------------------------------------------------------------------------------------------


def test_dhclient_renews_by_unicast(network: Network, dhcp: DhcpLab) -> None:
    dhcp.register(seconds=6)
    network.give_client_its_address()
    with network.serving(dhcp.start), dhcp.dhclient():
        assert dhcp.learned("RENEW")["new_ip_address"] == network.client_ip
    assert has_logged(network, "renewal")()


def test_dhclient_with_the_address_of_another_network_gets_a_nak_and_recovers(network: Network, dhcp: DhcpLab) -> None:
    with network.serving(dhcp.start), dhcp.dhclient(had="10.77.6.99"):
        assert dhcp.learned("BOUND")["new_ip_address"] == network.client_ip
    words = [message.split()[0].rstrip(":") for message in network.messages()]
    assert [*dict.fromkeys(words)] == ["DHCPNAK", "DHCPOFFER", "DHCPACK"]


def test_dhclient_that_comes_back_with_its_address_needs_two_packets(network: Network, dhcp: DhcpLab) -> None:
    with network.serving(dhcp.start), dhcp.dhclient(had=network.client_ip):
        dhcp.learned("REBOOT")
    assert {message.split()[0] for message in network.messages()} == {"DHCPACK"}


# --- udhcpc -----------------------------------------------------------------------------------------------------------


def test_udhcpc_releases_its_lease_on_a_signal(network: Network, dhcp: DhcpLab) -> None:
    network.give_client_its_address()
    command = network.as_client("busybox", "udhcpc", "-i", "eth0", "-f", "-R", "-s", str(dhcp.script))
    with network.serving(dhcp.start):
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as client:
            dhcp.learned("bound")
            client.terminate()
        wait_until(has_logged(network, f"DHCPRELEASE of {network.client_ip}"), "the server did not receive the release")


def test_address_of_another_host_is_declined_and_not_offered_again(network: Network, dhcp: DhcpLab) -> None:
    # Another host on the segment has the machine's address; udhcpc -a sends an ARP probe before it takes one.
    changes: list[tuple[str, float | None]] = []

    def changed(machine: Machine, address: str, until: float | None) -> None:
        changes.append((f"{machine.name} {address}", until))

    network.add_address(network.server, "srv0", f"{network.client_ip}/24")
    quarantine = Quarantine(time.monotonic, 600.0, changed)
    with network.serving(lambda: dhcp.start(quarantine=quarantine)):
        assert dhcp.udhcpc("-a", "-T", "1", "-t", "3", "-A", "1").returncode != 0
    (failed,) = [event for event in network.events if event.outcome is Outcome.FAILED]
    assert "DHCPDECLINE" in failed.message
    assert network.client_ip in failed.message
    assert [lease for lease, _ in changes] == [f"lab-1 {network.client_ip}"]
    assert any("quarantine" in event.message for event in network.events if event.outcome is Outcome.REFUSED)
    declined = next(number for number, message in enumerate(network.messages()) if "DHCPDECLINE" in message)
    assert not any("DHCPOFFER" in message for message in network.messages()[declined:])


def test_address_is_offered_again_after_the_quarantine(network: Network, dhcp: DhcpLab) -> None:
    network.add_address(network.server, "srv0", f"{network.client_ip}/24")
    quarantine = Quarantine(time.monotonic, 2.0)
    with network.serving(lambda: dhcp.start(quarantine=quarantine)):
        assert dhcp.udhcpc("-a", "-T", "1", "-t", "1", "-A", "1").returncode != 0
        network.remove_address(network.server, "srv0", f"{network.client_ip}/24")
        assert dhcp.udhcpc("-a", "-T", "1", "-t", "5", "-A", "1").returncode == 0


# --- dhcpcd -----------------------------------------------------------------------------------------------------------


@contextmanager
def dhcpcd(network: Network, directory: Path) -> Iterator[Path]:
    """Run dhcpcd with a home directory of its own; yield its log."""
    directory.mkdir(exist_ok=True)
    log = directory / "log"
    # It must not change the resolver and files of this host. -B: in the foreground; no -p, so that it removes the
    # address at its end.
    options = "-4 -d -B -A -L --nohook resolv.conf --nohook hostname --nohook ntp.conf -f /dev/null -c /bin/true"
    inner = (
        f"mount --bind {directory} /var/lib/dhcpcd && mkdir -p /run/dhcpcd && mount -t tmpfs tmpfs /run/dhcpcd && "
        f"exec dhcpcd {options} eth0"
    )
    command = network.as_client("unshare", "-m", "sh", "-c", inner)
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True) as process,
    ):
        try:
            yield log
        finally:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:  # its processes wait for each other, now and then (dhcpcd 9.4)
                os.killpg(process.pid, signal.SIGKILL)
            network.run("ip", "address", "flush", "dev", "eth0")


def test_dhcpcd_keeps_its_reservation_and_gets_a_nak_after_a_change(
    network: Network, dhcp: DhcpLab, tmp_path: Path
) -> None:
    home = tmp_path / "dhcpcd"

    def leased(address: str) -> str:
        with dhcpcd(network, home) as log:
            wait_until(lambda: f"leased {address}" in log.read_text(), log.read_text)
            return log.read_text()

    with network.serving(dhcp.start):
        leased(network.client_ip)
        network.events.clear()
        assert "rebinding lease" in leased(network.client_ip)
        assert [message.split()[0] for message in network.messages()][:1] == ["DHCPACK"]
        # If the server sent no DHCPNAK, dhcpcd would wait for five seconds.
        dhcp.register("10.77.6.60")
        leased("10.77.6.60")
    assert has_logged(network, "DHCPNAK")()


# --- systemd-networkd -------------------------------------------------------------------------------------------------

_NETWORK = """\
[Match]
Name=eth0
[Network]
DHCP=ipv4
LinkLocalAddressing=no
IPv6AcceptRA=no
"""


@contextmanager
def networkd(network: Network, directory: Path) -> Iterator[Path]:
    """Run systemd-networkd with its own /run, in which udev has processed every interface; yield its log."""
    log = directory / "networkd.log"
    (directory / "10.network").write_text(_NETWORK)
    inner = (
        "mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/network /run/systemd/netif/links "
        "/run/systemd/netif/leases /run/udev/data && "
        f"cp {directory}/10.network /run/systemd/network/ && "
        "for index in /sys/class/net/*/ifindex; do echo I:1 > /run/udev/data/n$(cat $index); done && "
        "chown -R systemd-network /run/systemd && SYSTEMD_LOG_LEVEL=debug exec /lib/systemd/systemd-networkd"
    )
    command = network.as_client("unshare", "-m", "--propagation", "private", "sh", "-c", inner)
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            yield log
        finally:
            process.terminate()


def test_networkd_gets_its_reservation_and_releases_it(network: Network, dhcp: DhcpLab, tmp_path: Path) -> None:
    # Its client identifier is no MAC (RFC 4361); the server identifies the machine by chaddr.
    with network.serving(dhcp.start):
        with networkd(network, tmp_path) as log:
            wait_until(
                lambda: "DHCPv4 address and routes set" in log.read_text(errors="replace"), "networkd got no lease"
            )
            assert f"DHCPv4 address {network.client_ip}/24" in log.read_text(errors="replace")
            # networkd removes the address right after the release, which is lost if it has to wait for ARP.
            network.meet()
        wait_until(has_logged(network, "DHCPRELEASE"), "the server did not receive networkd's release")
    assert [*dict.fromkeys(message.split()[0] for message in network.messages())][:2] == ["DHCPOFFER", "DHCPACK"]


# --- packets that none of these clients sends -------------------------------------------------------------------------


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_inform_is_answered_where_it_came_from(network: Network, dhcp: DhcpLab, loop: str) -> None:
    network.add_address(network.client, "eth0", "10.77.6.77/24")
    with network.serving(dhcp.start, loop), client_socket(network, "10.77.6.77", 68) as client:
        client.sendto(message("inform", xid=9, ciaddr="10.77.6.77"), (network.server_ip, 67))
        answer = BOOTP(client.recv(2000))
    options_by_name = {option[0]: option[1] for option in answer[DHCP].options if isinstance(option, tuple)}
    assert (answer.xid, answer.yiaddr, options_by_name["message-type"]) == (9, "0.0.0.0", 5)
    assert "lease_time" not in options_by_name
