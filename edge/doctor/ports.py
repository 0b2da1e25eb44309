"""The ports that the services listen on: free, held by tinkedge, or held by another program."""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge.doctor.findings import Finding, passed, problem
from edge.neighbour.host import Network

_OUR_PROGRAMS: Final = ("tinkedge", "edge.cli", "edge.run.server_process")


@dataclass(frozen=True, slots=True)
class Port:
    """A port that a service listens on."""

    service: str
    kind: socket.SocketKind
    number: int
    name: str  # the service's name for --disable
    address: str = ""  # the address to listen at; empty: each address that faces machines
    without: str = ""  # the option to start without this port; empty: --disable

    @property
    def protocol(self) -> str:
        """`udp` or `tcp`."""
        return "udp" if self.kind is socket.SOCK_DGRAM else "tcp"


PORTS: Final = (
    Port("DHCP", socket.SOCK_DGRAM, 67, "dhcp"),
    Port("PXE boot server", socket.SOCK_DGRAM, 4011, "dhcp"),
    Port("TFTP", socket.SOCK_DGRAM, 69, "tftp"),
    Port("HTTP", socket.SOCK_STREAM, 7080, "http"),
    Port("gRPC", socket.SOCK_STREAM, 42113, "server"),
    Port("embedded API", socket.SOCK_STREAM, 6443, "apiserver", "127.0.0.1"),
    Port("admin HTTP", socket.SOCK_STREAM, 7081, "admin", "127.0.0.1"),
)
"""The ports of all services by default."""


def check_port(port: Port, network: Network | None) -> Finding:
    """Bind the port as the service does: on the network's interface or address, or else at the port's own address."""
    where = f" on {network.interface}" if network is not None else ""
    name = f"port {port.number}/{port.protocol} ({port.service}){where}"
    is_udp = port.kind is socket.SOCK_DGRAM
    address = network.address if network is not None and not is_udp else port.address
    interface = network.interface if network is not None and is_udp else ""
    error = bind_error(port.kind, (address, port.number), interface)
    return _refused(name, port, error) if error is not None else passed(name, "free")


def bind_error(
    kind: socket.SocketKind, at: tuple[str | int, ...], interface: str = "", *options: tuple[int, int, int]
) -> OSError | None:
    """Bind a socket to the address `at`, and to an interface if it is named. Return the error; None if that works."""
    family = socket.AF_INET6 if ":" in str(at[0]) else socket.AF_INET
    try:
        with socket.socket(family, kind) as sock:
            if kind is socket.SOCK_STREAM:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            for option in options:
                sock.setsockopt(*option)
            if interface:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode() + b"\0")
            sock.bind(at)
    except OSError as error:
        return error
    return None


def _refused(name: str, port: Port, error: OSError) -> Finding:
    seen = os.strerror(error.errno or 0)
    if error.errno == errno.EADDRNOTAVAIL:
        return problem(name, seen, "see which addresses there are: ip -brief address")
    if error.errno != errno.EADDRINUSE:
        return problem(name, seen, "run it as root, or with CAP_NET_BIND_SERVICE and CAP_NET_RAW")
    found = list(holders(port))
    if found and all(holder.is_ours for holder in found):
        return passed(name, f"tinkedge serves here, process {found[0].pid}")
    programs = ", ".join(f"{holder.name} (process {holder.pid})" for holder in found)
    programs = programs or f"another program, named by: ss -lnp 'sport = :{port.number}'"
    without = port.without or f"--disable {port.name}"
    return problem(name, seen, f"stop the program that has it: {programs}; or start without it: {without}")


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has a port open; `is_ours`: it is a process of tinkedge."""

    pid: int
    name: str
    is_ours: bool


def holders(port: Port) -> Iterator[Holder]:
    """Yield the processes that have the port open at any address, of those that this user may inspect (proc(5))."""
    # gRPC listens on IPv4 addresses with IPv6 sockets, too.
    tables = [Path("/proc/net") / f"{port.protocol}{version}" for version in ("", "6")]
    lines = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    state = "07" if port.protocol == "udp" else "0A"  # the state of an unconnected UDP socket, and LISTEN
    inodes = {line[9] for line in lines if line[1].endswith(f":{port.number:04X}") and line[3] == state}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            sockets = []
            for descriptor in (process / "fd").iterdir():
                with suppress(FileNotFoundError):  # It was closed meanwhile, as that of this very directory is.
                    sockets += re.findall(r"^socket:\[(\d+)\]$", str(descriptor.readlink()))
            if inodes.isdisjoint(sockets):
                continue
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            name = (process / "comm").read_text().strip()
        except OSError:
            continue  # The process has ended, or is another user's.
        yield Holder(int(process.name), name, any(Path(word).name in _OUR_PROGRAMS for word in words[:4]))
