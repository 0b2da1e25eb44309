"""Many datagrams with one call: none is lost, mixed up, or taken for another's."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

import pytest

from edge.listener import ReceiveBuffers


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, list[socket.socket]]]:
    """One that hears, and three that send to it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ours:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        ours.bind(("127.0.0.1", 0))
        senders = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(3)]
        for number, sender in enumerate(senders):
            sender.bind((f"127.0.0.{number + 2}", 0))
            sender.connect(ours.getsockname())
        yield ours, senders
        for sender in senders:
            sender.close()


def test_a_storm_is_taken_in_order_64_at_a_time(sockets: tuple[socket.socket, list[socket.socket]]) -> None:
    ours, senders = sockets
    buffers = ReceiveBuffers(1500)
    sent = [str(number).encode() * (number + 1) for number in range(100)]
    for payload in sent:
        senders[0].send(payload)
    first, second = buffers.receive(ours), buffers.receive(ours)
    assert (len(first), len(second)) == (64, 36)
    assert first + second == sent  # what was taken first is not touched by what came next
    assert all(type(payload) is bytes for payload in first)


def test_each_datagram_is_known_by_its_own_sender(sockets: tuple[socket.socket, list[socket.socket]]) -> None:
    ours, senders = sockets
    buffers = ReceiveBuffers(1500)
    order = [2, 0, 1, 1, 2]
    for _ in range(2):  # the second time, everything has been written to once
        for number in order:
            senders[number].send(bytes((number,)))
        assert buffers.receive(ours) == [bytes((number,)) for number in order]
        assert [buffers.source(at) for at in range(5)] == [senders[number].getsockname() for number in order]
        order.reverse()


def test_one_that_is_too_long_is_cut_and_the_next_is_whole(
    sockets: tuple[socket.socket, list[socket.socket]],
) -> None:
    ours, senders = sockets
    buffers = ReceiveBuffers(10)
    for payload in (b"a" * 10, b"b" * 11, b"", b"c" * 2000, b"d"):
        senders[0].send(payload)
    assert buffers.receive(ours) == [b"a" * 10, b"b" * 10, b"", b"c" * 10, b"d"]


def test_none_that_waits_is_no_failure_of_the_network(sockets: tuple[socket.socket, list[socket.socket]]) -> None:
    ours, _ = sockets
    ours.setblocking(True)  # whatever the socket is, the event loop never waits
    with pytest.raises(BlockingIOError):
        ReceiveBuffers(1500).receive(ours)


def test_a_failure_of_the_network_is_told_by_its_number() -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nobody,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ours,
    ):
        nobody.bind(("127.0.0.1", 0))
        address = nobody.getsockname()
        nobody.close()
        ours.connect(address)
        ours.send(b"is anybody there?")  # loopback: the refusal is here when this returns
        with pytest.raises(ConnectionRefusedError) as refused:
            ReceiveBuffers(1500).receive(ours)
    assert refused.value.errno == errno.ECONNREFUSED


def test_datagrams_of_ipv6_are_known_by_sender_and_by_where_they_were_sent_to() -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as ours:
        ours.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        ours.bind(("::", 0))
        senders = [socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) for _ in range(3)]
        buffers, loopback = ReceiveBuffers(1500, socket.AF_INET6), socket.inet_pton(socket.AF_INET6, "::1")
        for _ in range(2):  # the second time, everything has been written to once
            for number, sender in enumerate(senders):
                sender.sendto(bytes((number,)), ("::1", ours.getsockname()[1]))
            assert buffers.receive(ours) == [b"\0", b"\1", b"\2"]
            assert [buffers.source(at) for at in range(3)] == [("::1", each.getsockname()[1]) for each in senders]
            assert [(buffers.address(at), buffers.destination(at)) for at in range(3)] == [(loopback, loopback)] * 3
        for sender in senders:
            sender.close()
