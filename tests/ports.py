"""Ports of this host: which are free, and which somebody listens on."""

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
    """So many TCP ports that nobody has; all different.

    None of those that the kernel gives to clients: one of them might get it before the test does. Nor of those that
    this gives in another process of the same run (pytest-xdist): its test may be about to listen there.
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
    """Whether somebody does, on loopback."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
