"""Ports of this host: which are free, and which somebody listens on."""

from __future__ import annotations

import contextlib
import socket


def free_ports(count: int) -> list[int]:
    """So many TCP ports of loopback that nobody has; all different."""
    with contextlib.ExitStack() as open_meanwhile:
        return [
            open_meanwhile.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(count)
        ]


def free_port() -> int:
    return free_ports(1)[0]


def listens(port: int) -> bool:
    """Whether somebody does, on loopback."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
