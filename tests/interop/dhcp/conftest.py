"""Fixtures for tests of the DHCP server: a server over an inventory, and the leases that clients report."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.dhcp import BOOTP, DHCP

from edge.dhcp import DhcpServer, DhcpSettings, Responder
from edge.dhcp_common import DhcpSite
from edge.machines import Inventory, NetbootPolicy
from edge.neighbour.table import NeighbourTable
from ipxe.binaries import BootBinaries
from tests.interop.conftest import Network
from tests.support import objects
from tests.waiting import PATIENCE_SECONDS, wait_until

SERVER_IP = "10.77.6.1"
CLIENT_IP, CLIENT_MAC = "10.77.6.50", "52:54:00:cc:00:01"


def message(kind: str, *options: Any, mac: str = CLIENT_MAC, **fields: Any) -> bytes:
    """A DHCP message of the client's machine, or of another one."""
    head = BOOTP(op=1, chaddr=bytes.fromhex(mac.replace(":", "")), **fields)
    return bytes(head / DHCP(options=[("message-type", kind), *options, "end"]))


@contextmanager
def client_socket(network: Network, address: str = "", port: int = 0) -> Iterator[socket.socket]:
    """A UDP socket of the client's, bound there."""
    with network.inside(network.client, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sock.bind((address, port))
        sock.settimeout(20)
        yield sock


class Closing:
    """A server that is stopped when it is closed."""

    def __init__(self, table: NeighbourTable) -> None:
        self._table = table

    async def stop(self) -> None:
        self._table.close()


class Learning:
    """The script of dhclient, udhcpc and dhcpcd, which writes what they learned into `learned.<event>`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.script = directory / "script"
        new, learned = (f'"{directory}/{name}.$event"' for name in ("new", "learned"))
        self.script.write_text(f"#!/bin/sh\nevent=$1$reason\nenv > {new} && mv {new} {learned}\n")
        self.script.chmod(0o755)

    def learned(self, event: str, timeout: float = PATIENCE_SECONDS) -> dict[str, str]:
        """Return the variables that a client passed to its script at this event."""
        path = self.directory / f"learned.{event}"
        wait_until(path.exists, f"the client never came to {event}", within=timeout)
        return dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)

    def forget(self) -> None:
        for path in self.directory.glob("learned.*"):
            path.unlink()


class DhcpLab(Learning):
    """A DHCP server in the server's namespace, for the machine in the client's; and what clients learn from it."""

    def __init__(self, network: Network, directory: Path) -> None:
        super().__init__(directory)
        self.network = network
        self.inventory = Inventory()
        boot = directory / "ipxe"
        boot.mkdir()
        (boot / "snponly.efi").write_bytes(b"snponly")
        self.binaries = BootBinaries(boot)

    def register(self, ip: str = CLIENT_IP, mac: str = CLIENT_MAC, name: str = "lab-1", seconds: int = 4321) -> None:
        """Give a machine a Hardware, or another address, or a lease that it has to renew soon."""
        self.inventory.apply(self.hardware(ip, mac, name, seconds))

    def hardware(
        self, ip: str = CLIENT_IP, mac: str = CLIENT_MAC, name: str = "lab-1", seconds: int = 4321
    ) -> dict[str, Any]:
        where = {"ip": ip, "netmask": "255.255.255.0", "gateway": self.network.server_ip, "hostname": name}
        servers = {"nameservers": ["10.77.6.1", "10.77.6.2"], "timeservers": ["10.77.6.3"]}
        return objects.hardware(name, mac, ip, dhcp={**where, **servers, "leaseTimeSeconds": seconds})

    def responder(self, address: str = SERVER_IP, **options: Any) -> Responder:
        settings = DhcpSettings(address, address, f"http://{address}:7080")
        site = DhcpSite(self.inventory, NetbootPolicy(), self.binaries, self.network.record, time.monotonic)
        responder = Responder(site, settings, **options)
        self.inventory.on_change(responder.machine_changed)
        return responder

    async def start(self, interface: str = "srv0", address: str = SERVER_IP, **options: Any) -> list[DhcpServer]:
        server = DhcpServer(self.responder(address, **options), interface)
        await server.start()
        return [server]

    def udhcpc(
        self, *options: str, interface: str = "eth0", timeout: float = PATIENCE_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """One lease with busybox's client, or a failure."""
        command = ["busybox", "udhcpc", "-i", interface, "-n", "-q", "-f", "-s", str(self.script), *options]
        return self.network.run(*command, timeout=timeout)

    @contextmanager
    def dhclient(self, *options: str, had: str = "", of: str = SERVER_IP) -> Iterator[subprocess.Popen[bytes]]:
        """ISC's client, running; `had`: the address of a lease of an earlier day, of the server `of`."""
        leases = self.directory / "leases"
        day = "0 2040/01/01 00:00:00"
        if had:
            leases.write_text(
                f'lease {{ interface "eth0"; fixed-address {had}; option subnet-mask 255.255.255.0; '
                f"option dhcp-server-identifier {of}; renew {day}; rebind {day}; expire {day}; }}\n"
            )
        files = ["-lf", str(leases), "-pf", str(self.directory / "pid"), "-sf", str(self.script)]
        command = self.network.as_client("dhclient", "-d", *options, *files, "eth0")
        with (self.directory / "dhclient.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(PATIENCE_SECONDS)


@pytest.fixture
def dhcp(network: Network, tmp_path: Path) -> DhcpLab:
    lab = DhcpLab(network, tmp_path)
    lab.register()
    return lab
