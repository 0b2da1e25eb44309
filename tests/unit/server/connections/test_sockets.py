"""gRPC's sockets by the kernel: found among our descriptors, measured, ended, kept away."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from ipaddress import ip_network

import pytest

from tests.waiting import PATIENCE_SECONDS
from tink.net.addresses import block_of
from tink.server.connections.accounts import MAX_BLOCKS, Accepted, Peer
from tink.server.connections.guard import Sockets, opened, program


@pytest.fixture(params=["127.0.0.1", "::1", "::"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    address: str = request.param
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family, dualstack_ipv6=address == "::") as made:
        yield made


def name(listener: socket.socket) -> tuple[str, int]:
    """Where to connect to; to a socket that takes both, by IPv4."""
    address, port = listener.getsockname()[:2]
    return address if address != "::" else "127.0.0.1", port


def found(sockets: Sockets) -> list[Accepted]:
    return [each for each in sockets.accepted() if each is not None]


def test_connections_are_found_by_their_port_and_measured(listener: socket.socket) -> None:
    sockets = Sockets(name(listener)[1])
    before = opened()
    assert found(sockets) == []
    with socket.create_connection(name(listener)) as client, listener.accept()[0] as served:
        assert opened() > before
        (accepted,) = found(sockets)
        assert accepted.fd == served.fileno()
        assert accepted.peer == Peer(*client.getsockname()[:2])
        client.sendall(bytes(1000))
        select.select([served], [], [], PATIENCE_SECONDS)
        assert sockets.received(accepted) == 1000
        assert served.recv(2000) == bytes(1000), "it can be read as before"
        assert [each is accepted for each in found(sockets)] == [True]
    assert found(sockets) == []
    assert sockets.received(accepted) == 0


def test_an_ended_connection_is_reset_and_what_came_in_is_gone(listener: socket.socket) -> None:
    sockets = Sockets(name(listener)[1])
    with socket.create_connection(name(listener)) as client, listener.accept()[0] as served:
        client.sendall(bytes(1000))
        select.select([served], [], [], PATIENCE_SECONDS)
        (accepted,) = found(sockets)
        assert not sockets.end(accepted, at_least=1001), "it is not what was measured"
        assert sockets.end(accepted, at_least=1000)
        with pytest.raises(OSError):
            client.recv(1)
        with pytest.raises(OSError):
            served.recv(1)
        poll = select.poll()
        poll.register(served, select.POLLIN)
        assert poll.poll(PATIENCE_SECONDS * 1000), "who waits for it wakes up"


def test_descriptor_that_was_reused_is_left_alone(listener: socket.socket) -> None:
    sockets = Sockets(name(listener)[1])
    bystander, other = socket.socketpair()
    with socket.create_connection(name(listener)), bystander, other:
        served, _ = listener.accept()
        (accepted,) = found(sockets)
        os.dup2(bystander.fileno(), served.fileno())
        assert not sockets.end(accepted)
        other.sendall(b"x")
        assert bystander.recv(1) == b"x"
        assert found(sockets) == []
        served.close()


def test_rejected_address_can_not_connect_until_its_time_is_over(listener: socket.socket) -> None:
    address, port = name(listener)
    sockets = Sockets(port)
    found(sockets)
    sockets.keep_away(frozenset([block_of(address), block_of("192.0.2.1"), block_of("2001:db8::1")]))
    with pytest.raises(TimeoutError):
        socket.create_connection((address, port), timeout=0.2)
    sockets.keep_away(frozenset([block_of("192.0.2.1"), block_of("2001:db8::1")]))
    with socket.create_connection((address, port), timeout=PATIENCE_SECONDS):
        pass
    sockets.keep_away(frozenset())
    with socket.create_connection((address, port), timeout=PATIENCE_SECONDS):
        pass


def test_the_filter_is_no_larger_than_the_kernel_takes() -> None:
    blocks = frozenset(ip_network(f"2001:db8:0:{number:x}::/64") for number in range(MAX_BLOCKS))
    assert len(program(blocks)) < 2048
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        sockets = Sockets(name(listener)[1])
        found(sockets)
        sockets.keep_away(blocks)


def test_other_sockets_and_files_are_ignored() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        assert found(Sockets(1)) == []
