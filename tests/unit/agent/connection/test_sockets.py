"""The agent has the kernel ask whether its server is there, on its own connections and no others."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from tink.agent.connection.sockets import probe_often


def test_kernel_asks_on_connections_to_the_server_and_on_no_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        ours, another = (socket.create_connection(each.getsockname()) for each in (server, other))
        reading, writing = os.pipe()
        with ours, another:
            before = len([*Path("/proc/self/fd").iterdir()])
            assert probe_often(server.getsockname()[1]) == 1
            assert len([*Path("/proc/self/fd").iterdir()]) <= before
            assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 5
            assert another.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
            ours.sendall(b"it is as it was")
        for descriptor in (reading, writing):
            os.close(descriptor)
    assert probe_often(1) == 0
