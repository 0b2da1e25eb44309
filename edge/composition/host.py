"""This host's network interfaces: the one that faces the machines, and its address."""

from __future__ import annotations

import fcntl
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

_SIOCGIFADDR = 0x8915  # netdevice(7)


class HostError(Exception):
    """This host's network is not as it must be; the message says what was looked for."""


@dataclass(frozen=True, slots=True)
class Network:
    """An interface that faces machines, and this host's IPv4 address there, in dotted form."""

    interface: str
    address: str


def default_interface(routes: Path = Path("/proc/net/route")) -> str:
    """The interface of the IPv4 default route (proc(5), /proc/net/route). Raises HostError if there is none."""
    for line in routes.read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1] == "00000000" and int(fields[3], 16) & 1:
            return fields[0]
    raise HostError("no interface was named and there is no default route: give --interface")


def interface_address(name: str) -> str:
    """The first IPv4 address of an interface, in dotted form. Raises HostError."""
    if name not in _interfaces():
        raise HostError(f"there is no interface {name} (there are: {', '.join(sorted(_interfaces()))})")
    request = struct.pack("256s", name.encode())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError as error:
            raise HostError(f"interface {name} has no IPv4 address: {error.strerror}") from None
    return socket.inet_ntoa(answer[20:24])


def _interfaces() -> set[str]:
    return {name for _, name in socket.if_nameindex()}
