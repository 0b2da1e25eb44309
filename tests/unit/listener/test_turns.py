"""A datagram server must survive what arrives, what the network does, and its own faults."""

from __future__ import annotations

import asyncio
import errno
import os
import socket

import pytest

from edge.listener import Listener, advice, turns
from tests.waiting import until


def pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.setblocking(False)
    return ours, theirs


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_fault_on_one_datagram_does_not_keep_the_next_from_being_handled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ours, theirs = pair()
    handled: list[bytes] = []

    def handle(_: socket.socket, datagram: bytes) -> None:
        if datagram == b"bad":
            raise ZeroDivisionError
        handled.append(datagram)

    served = Listener(ours, "test", lambda sock: sock.recv(100), handle)
    served.start()
    for datagram in (b"bad", b"bad", b"good"):
        theirs.send(datagram)
    await settle()
    assert handled == [b"good"]
    assert caplog.text.count("test: internal error on") == 1  # the second within ten seconds is not said again
    served.stop()
    theirs.close()


async def test_storm_on_one_socket_lets_others_have_their_turn() -> None:
    ours, theirs = pair()
    handled: list[bytes] = []
    served = Listener(
        ours, "test", lambda sock: sock.recv(100), lambda _, datagram: handled.append(datagram), per_turn=2
    )
    for number in range(5):
        theirs.send(bytes((number,)))
    served._drain()
    assert len(handled) == 2
    served.stop()
    theirs.close()


async def test_receive_error_is_reported_and_the_service_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "_PAUSE_SECONDS", 0.01)
    ours, theirs = pair()
    handled: list[bytes] = []
    errors = [OSError(errno.ENETDOWN, "Network is down")]

    def receive(sock: socket.socket) -> bytes:
        if errors:
            raise errors.pop()
        return sock.recv(100)

    served = Listener(ours, "test", receive, lambda _, datagram: handled.append(datagram))
    served.start()
    theirs.send(b"x")
    await until(lambda: handled)
    assert "test: receiving: Network is down; going on" in caplog.text
    served.stop()
    theirs.close()


async def test_stopping_while_it_rests_does_not_wake_it_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_PAUSE_SECONDS", 0.01)
    ours, theirs = pair()

    def receive(_: socket.socket) -> bytes:
        raise OSError(errno.ENETDOWN, "Network is down")

    served = Listener(ours, "test", receive, lambda _sock, _datagram: None)
    served._drain()
    served.stop()
    await asyncio.sleep(0.05)  # a reader on the closed socket would raise in the loop
    assert ours.fileno() == -1
    theirs.close()


async def test_what_is_handled_may_close_the_listener(caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = pair()
    handled: list[bytes] = []

    def handle(_: socket.socket, datagram: bytes) -> None:
        handled.append(datagram)
        served.stop()

    served = Listener(ours, "test", lambda sock: sock.recv(100), handle)
    served.start()
    theirs.send(b"first")
    theirs.send(b"second")
    await settle()
    assert handled == [b"first"]
    assert served._pause is None  # nothing will wake it up again
    assert not caplog.records
    theirs.close()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EADDRINUSE, ("port 69", "another program has it", "--disable tftp")),
        (errno.EACCES, ("run as root", "CAP_NET_BIND_SERVICE")),
        (errno.ENODEV, ("no such interface", "--interface")),
        (errno.EADDRNOTAVAIL, ("no interface of this host has that address",)),
        (errno.EIO, ("Input/output error",)),
    ],
)
def test_advice_says_what_to_do(number: int, words: tuple[str, ...]) -> None:
    text = advice(
        "TFTP can't open UDP port 69", OSError(number, os.strerror(number)), port=69, without="--disable tftp"
    )
    assert all(word in text for word in words)
