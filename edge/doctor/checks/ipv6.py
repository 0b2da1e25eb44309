"""What `--ipv6` needs of an interface: an address to tell, one of its link to answer from, and DHCPv6's port."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from edge.doctor.checks.findings import Finding, warning
from edge.neighbour.links import Link, look

_SYSTEM = Path("/proc/sys/net/ipv6/conf")
_PORT = 547


def check_ipv6(
    interface: str,
    *,
    routes: bool = False,
    dhcp: bool = True,
    ask: Callable[[str], Link | None] = look,
    system: Path = _SYSTEM,
) -> Iterator[Finding]:
    """What is so of one interface; `routes`: it is to be the router there. Raises OSError if the kernel can't be asked.

    `dhcp`: whether DHCPv6 is to be served. `ask` gives the interface, `system` is where the kernel has its settings.
    """
    name = f"IPv6 on {interface}"
    link = ask(interface)
    if link is None:
        return  # that is told already
    if _setting(system / interface / "disable_ipv6") == "1":
        yield Finding(name, False, "it is switched off", f"sysctl -w net.ipv6.conf.{interface}.disable_ipv6=0")
        return
    if not link.addresses6:
        remedy = f"give it one of the machines' network: ip address add 2001:db8::1/64 dev {interface}"
        yield Finding(name, False, "no address that machines can be told", remedy)
    else:
        others = f" (and {len(link.addresses6) - 1} more)" if len(link.addresses6) > 1 else ""
        yield Finding(name, True, f"machines are told {link.addresses6[0].ip}{others}")
    if routes and _setting(system / "all" / "forwarding") != "1":
        seen = "machines are told that this host is their router, and it forwards nothing"
        yield warning(name, seen, "sysctl -w net.ipv6.conf.all.forwarding=1, or leave --ipv6-router out")
    if dhcp:
        yield _port(interface)


def _port(interface: str) -> Finding:
    """Whether DHCPv6's port can be had, tried as the server does it."""
    name = f"port {_PORT}/udp (DHCPv6) on {interface}"
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode() + b"\0")
            probe.bind(("::", _PORT))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            remedy = f"if that is not tinkedge, stop what has it ('ss -lunp sport = :{_PORT}' names it)"
            return warning(name, "somebody has it", remedy)
        remedy = "run it as root, or with CAP_NET_BIND_SERVICE and CAP_NET_RAW"
        return Finding(name, False, os.strerror(error.errno or 0), remedy)
    return Finding(name, True, "free")


def _setting(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
