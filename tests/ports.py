"""Ports of this host: find free ones, and check whether a process listens on one."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections import deque
from pathlib import Path

_LOWEST = 10_000
_given: deque[int] = deque(maxlen=1000)
"""The last ones."""


def free_ports(count: int) -> list[int]:
    """Return `count` different free TCP ports.

    They are outside the kernel's range of ports for clients, since a client might get one before the test listens.
    Other processes of the same run (pytest-xdist) get other ports, since their tests may be about to listen.
    """
    runs, which = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")), os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    clients = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found: list[int] = []
    with contextlib.ExitStack() as open_meanwhile:
        while len(found) < count:
            port = random.randrange(_LOWEST + int(which.removeprefix("gw")) % runs, max(clients, 2 * _LOWEST), runs)
            if port in _given:  # its test may not listen there yet
                continue
            with contextlib.suppress(OSError):
                open_meanwhile.enter_context(socket.create_server(("", port)))
                found.append(port)
                _given.append(port)
    return found


def free_port() -> int:
    return free_ports(1)[0]


def listens(port: int) -> bool:
    """Return True if a process listens on this port of loopback."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
