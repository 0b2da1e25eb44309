"""What `--link-metadata` needs of an interface: IPv6, nobody else on the link with the address, and its port."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final

from edge.doctor.checks.findings import Finding, note, warning
from edge.neighbour.links import Link, look
from edge.neighbour.table import NeighbourTable
from edge.neighbour.well_known import METADATA_ADDRESS, METADATA_PORT, Held, look_at

_SYSTEM: Final = Path("/proc/sys/net/ipv6/conf")
_PATIENCE_SECONDS: Final = 3.0
_RESOLUTION_SECONDS: Final = 3.5
"""The kernel asks three times, a second apart (RFC 4861 section 10), and a host answers at once."""
_LOOK_SECONDS: Final = 0.05
_DISCARD_PORT: Final = 9  # RFC 863
_IPV6_FREEBIND: Final = 78  # linux/in6.h, since Linux 4.15
_METADATA_ALONE: Final = b"here is metadata alone"
"""What an edge says there of everything else (`edge.http`)."""


def check_link_metadata(
    interface: str,
    *,
    ask: Callable[[str], Link | None] = look,
    held: Callable[[int], Held] = lambda index: look_at(index, METADATA_ADDRESS),
    neighbour: Callable[[str], str | None] | None = None,
    system: Path = _SYSTEM,
) -> Iterator[Finding]:
    """What is so of one interface. Raises OSError if the kernel can't be asked. Asks nobody but this host itself.

    `ask` gives the interface, `held` how it is with the address on the link of that number, `neighbour` the MAC of who
    has it there as far as this host has heard, and `system` is where the kernel has its settings.
    """
    name, link = _name(interface), ask(interface)
    if link is None:
        return  # that is told already
    if not system.is_dir():
        remedy = "start the kernel without ipv6.disable=1, or leave --link-metadata out"
        yield Finding(name, False, "this kernel has no IPv6", remedy)
        return
    if _setting(system / interface / "disable_ipv6") == "1":
        seen = f"IPv6 is switched off on {interface}"
        yield Finding(name, False, seen, f"sysctl -w net.ipv6.conf.{interface}.disable_ipv6=0")
        return
    if not link.carrier:
        why = "has no carrier" if link.up else "is down"
        yield note(name, f"not served while {interface} {why}")
        return
    yield _finding(name, link, held(link.index), neighbour or _heard)


def probe_link_metadata(interface: str, *, ask: Callable[[str], Link | None] = look) -> Iterator[Finding]:
    """Ask the link who has the address, where this host has it not, and that host whether it is an edge.

    Raises OSError if the kernel can't be asked.
    """
    link = ask(interface)
    if link is None or not link.carrier or look_at(link.index, METADATA_ADDRESS) in (Held.OURS, Held.FIXED):
        return  # there is nobody to be asked
    name = f"who has {METADATA_ADDRESS} on {interface}"
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as asking:
            asking.sendto(b"", (str(METADATA_ADDRESS), _DISCARD_PORT, 0, link.index))
    except OSError as error:
        yield note(name, f"not asked: {error.strerror}", "the interface needs an IPv6 address of its link to ask from")
        return
    end = time.monotonic() + _RESOLUTION_SECONDS
    while (mac := _heard(interface)) is None and time.monotonic() < end:
        time.sleep(_LOOK_SECONDS)
    if mac is None:
        yield Finding(name, True, "nobody")
    elif _METADATA_ALONE in _said_at(interface):
        yield Finding(name, True, f"the edge at {mac}, which serves metadata there")
    else:
        seen = f"{mac}, as far as the kernel knows, which serves no metadata there"
        yield Finding(name, False, seen, f"take the address from it: machines on {interface} ask it for their metadata")


def _finding(name: str, link: Link, held: Held, neighbour: Callable[[str], str | None]) -> Finding:
    match held:
        case Held.OURS | Held.FIXED:
            return _served(name, link, held)
        case Held.TRIED:
            return note(name, "the link is being asked at this moment whether the address is free")
        case Held.REFUSED | Held.NOT:
            mac = neighbour(link.name)
            if held is Held.REFUSED or mac is not None:
                seen = (
                    f"another host on {link.name}, {mac or 'of unknown MAC'}, has the address: this edge waits for it"
                )
                remedy = "fine, if that is another edge of yours: `tinkedge doctor --probe` asks it"
                return warning(name, seen, remedy)
            trouble = _port_trouble(link.index)
            return trouble(name) if trouble else Finding(name, True, "nobody is known to have it, and its port is free")


def _served(name: str, link: Link, held: Held) -> Finding:
    """The address is there: who answers at it."""
    said = _said_at(link.name)
    if _METADATA_ALONE in said:
        return Finding(name, True, "metadata is served there")
    if said:
        return _taken(name)
    trouble = _port_trouble(link.index)
    if trouble is not None:
        return trouble(name)
    if held is Held.FIXED:
        return Finding(name, True, "the address is there by this host's own configuration, and its port is free")
    remedy = "see the log of tinkedge; what was killed gives the address up within 15 s"
    return warning(name, "the address is held, and nobody answers at its port", remedy)


def _taken(name: str) -> Finding:
    remedy = f"stop what has it ('ss -ltnp sport = :{METADATA_PORT}' names it), or bind it to an address of its own"
    return Finding(name, False, f"another program has port {METADATA_PORT}", remedy)


def _port_trouble(index: int) -> Callable[[str], Finding] | None:
    """Why the port can't be had there, tried as the server does it, whether the address is there or not."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)
            probe.bind((str(METADATA_ADDRESS), METADATA_PORT, 0, index))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return _taken
        seen = os.strerror(error.errno or 0)
        return lambda name: Finding(name, False, seen, "run it as root, or with CAP_NET_BIND_SERVICE")
    return None


def _said_at(interface: str) -> bytes:
    """What HTTP answers there; empty: nobody does."""
    connection = HTTPConnection(f"{METADATA_ADDRESS}%{interface}", METADATA_PORT, timeout=_PATIENCE_SECONDS)
    try:
        connection.request("GET", "/healthz", headers={"Host": f"[{METADATA_ADDRESS}]"})
        answer = connection.getresponse()
        return b"%d " % answer.status + answer.read(1024)
    except HTTPException:
        return b"something else"
    except OSError:
        return b""
    finally:
        connection.close()


def _heard(interface: str) -> str | None:
    """The MAC that the kernel has for the address there; None: it has none. Raises OSError."""
    table = NeighbourTable([interface])
    try:
        return table.mac(f"{METADATA_ADDRESS}%{interface}")
    finally:
        table.close()


def _name(interface: str) -> str:
    return f"metadata at [{METADATA_ADDRESS}%{interface}]:{METADATA_PORT}"


def _setting(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
