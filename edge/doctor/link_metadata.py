"""The requirements of `--link-metadata` on an interface: IPv6, the address fe80::a9fe:a9fe for this host, its port."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final

from edge.doctor.findings import Finding, note, passed, problem, warning
from edge.doctor.interfaces import IPV6_SETTINGS, setting_of
from edge.doctor.ports import bind_error
from edge.neighbour.links import METADATA_ADDRESS, METADATA_PORT, AddressState, HostLink, address_state, look
from edge.neighbour.table import NeighbourTable

_HTTP_TIMEOUT_SECONDS: Final = 3.0
_RESOLUTION_SECONDS: Final = 3.5
"""The kernel solicits three times, a second apart (RFC 4861 section 10), and a host answers at once."""
_POLL_SECONDS: Final = 0.05
_DISCARD_PORT: Final = 9  # RFC 863
_IPV6_FREEBIND: Final = 78  # linux/in6.h, since Linux 4.15
_ANSWER_OF_AN_EDGE: Final = b"here is metadata alone"
"""The text with which an edge answers other paths at this address (`edge.http`)."""


def check_link_metadata(
    interface: str, *, look_up: Callable[[str], HostLink | None] = look, settings: Path = IPV6_SETTINGS
) -> Iterator[Finding]:
    """Examine one interface without sending anything to the link. Raises OSError if the kernel does not answer."""
    name, link = f"metadata at [{METADATA_ADDRESS}%{interface}]:{METADATA_PORT}", look_up(interface)
    if link is None:
        return  # `check_interface` has reported it.
    if not settings.is_dir():
        remedy = "start the kernel without ipv6.disable=1, or leave --link-metadata out"
        yield problem(name, "this kernel has no IPv6", remedy)
    elif setting_of(settings / interface / "disable_ipv6") == "1":
        seen = f"IPv6 is switched off on {interface}"
        yield problem(name, seen, f"sysctl -w net.ipv6.conf.{interface}.disable_ipv6=0")
    elif not link.carrier:
        reason = "has no carrier" if link.up else "is down"
        yield note(name, f"not served while {interface} {reason}")
    else:
        yield _check_address(name, link)


def probe_link_metadata(interface: str) -> Iterator[Finding]:
    """Ask the link which other host has the address, and ask that host whether it is an edge. Raises OSError."""
    link = look(interface)
    ours = (AddressState.HELD, AddressState.FIXED)
    if link is None or not link.carrier or address_state(link.index, METADATA_ADDRESS) in ours:
        return
    name = f"who has {METADATA_ADDRESS} on {interface}"
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"", (str(METADATA_ADDRESS), _DISCARD_PORT, 0, link.index))
    except OSError as error:
        remedy = "the interface needs a link-local IPv6 address to ask from"
        yield note(name, f"not asked: {error.strerror}", remedy)
        return
    end = time.monotonic() + _RESOLUTION_SECONDS
    while (mac := _known_mac(interface)) is None and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
    if mac is None:
        yield passed(name, "no host")
    elif _ANSWER_OF_AN_EDGE in _http_answer(interface):
        yield passed(name, f"the edge at {mac}, which serves metadata there")
    else:
        seen = f"{mac}, as far as the kernel knows, which serves no metadata there"
        yield problem(name, seen, f"take the address from it: machines on {interface} ask it for their metadata")


def _check_address(name: str, link: HostLink) -> Finding:
    state = address_state(link.index, METADATA_ADDRESS)
    if state is AddressState.TENTATIVE:
        return note(name, "the kernel is asking the link at this moment whether the address is free")
    if state in (AddressState.HELD, AddressState.FIXED):
        return _check_server(name, link, state)
    mac = _known_mac(link.name)
    if state is AddressState.DUPLICATE or mac is not None:
        seen = f"another host on {link.name}, {mac or 'of unknown MAC'}, has the address: this edge waits for it"
        return warning(name, seen, "fine, if that is another edge of yours: `tinkedge doctor --probe` asks it")
    return _port_problem(name, link.index) or passed(name, "no other host is known to have it, and its port is free")


def _check_server(name: str, link: HostLink, state: AddressState) -> Finding:
    """Find out which server answers at the address, which this host has."""
    answer = _http_answer(link.name)
    if _ANSWER_OF_AN_EDGE in answer:
        return passed(name, "metadata is served there")
    if answer:
        return _port_taken(name)
    if (trouble := _port_problem(name, link.index)) is not None:
        return trouble
    if state is AddressState.FIXED:
        return passed(name, "the address is there by this host's own configuration, and its port is free")
    remedy = "see the log of tinkedge; if tinkedge was killed, the kernel removes the address within 15 s"
    return warning(name, "this host holds the address, but no server answers at its port", remedy)


def _port_taken(name: str) -> Finding:
    remedy = f"stop it ('ss -ltnp sport = :{METADATA_PORT}' names it), or bind it to an address of its own"
    return problem(name, f"another program has port {METADATA_PORT}", remedy)


def _port_problem(name: str, index: int) -> Finding | None:
    """Bind the port as the server does, with or without the address. Return the finding if that fails."""
    options = [(socket.IPPROTO_IPV6, option, 1) for option in (socket.IPV6_V6ONLY, _IPV6_FREEBIND)]
    error = bind_error(socket.SOCK_STREAM, (str(METADATA_ADDRESS), METADATA_PORT, 0, index), "", *options)
    if error is None:
        return None
    if error.errno == errno.EADDRINUSE:
        return _port_taken(name)
    return problem(name, os.strerror(error.errno or 0), "run it as root, or with CAP_NET_BIND_SERVICE")


def _http_answer(interface: str) -> bytes:
    """Return the status and the beginning of the body of the HTTP answer at the address; empty: no server answers."""
    connection = HTTPConnection(f"{METADATA_ADDRESS}%{interface}", METADATA_PORT, timeout=_HTTP_TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/healthz", headers={"Host": f"[{METADATA_ADDRESS}]"})
        answer = connection.getresponse()
        return b"%d " % answer.status + answer.read(1024)
    except HTTPException:
        return b"not HTTP"
    except OSError:
        return b""
    finally:
        connection.close()


def _known_mac(interface: str) -> str | None:
    """Return the MAC that the kernel has for the address on the link, or None. Raises OSError."""
    table = NeighbourTable([interface])
    try:
        return table.mac(f"{METADATA_ADDRESS}%{interface}")
    finally:
        table.close()
