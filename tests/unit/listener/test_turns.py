"""A datagram server must survive what arrives, what the network does, and its own faults."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import Counter
from collections.abc import Callable

import pytest
import uvloop

from edge.listener import Listener, ModeratedListener, advice, turns
from edge.listener.turns import TURN_SECONDS, TurnBudget
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


# --- the budget of a turn ---------------------------------------------------------------------------------------------


class Turns:
    """An event loop with a processor clock, run by hand: `call_soon` calls back in the next turn."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ran: list[str] = []
        self._soon: list[Callable[[], None]] = []
        self.budget = TurnBudget(self._soon.append, lambda: self.now)

    @property
    def has_more(self) -> bool:
        return bool(self._soon)

    def drain(self, name: str, seconds: float) -> Callable[[], None]:
        def drain() -> None:
            self.ran.append(name)
            self.now += seconds

        return drain

    def turn(self, *readable: Callable[[], None], others: float = 0.0) -> list[str]:
        """Run one turn: the pending callbacks, the readable sockets, then `others` seconds of everything else."""
        self.ran = []
        soon, self._soon[:] = [*self._soon], []
        for callback in soon:
            callback()
        for drain in readable:
            self.budget.run(drain)
        self.now += others
        return self.ran


def test_lone_datagram_is_read_at_once() -> None:
    loop = Turns()
    assert loop.turn(loop.drain("dhcp", TURN_SECONDS / 10)) == ["dhcp"]
    assert not loop.has_more


def test_listeners_together_take_no_more_of_a_turn_than_its_budget() -> None:
    loop = Turns()
    readable = [loop.drain(name, TURN_SECONDS / 2) for name in ("dhcp", "dhcp6", "syslog", "tftp")]
    for _ in range(10):
        assert len(loop.turn(*readable)) <= 2


def test_full_sockets_are_read_in_turn() -> None:
    loop = Turns()
    readable = [loop.drain(name, TURN_SECONDS) for name in ("dhcp", "dhcp6", "syslog", "tftp")]
    counts = Counter(name for _ in range(40) for name in loop.turn(*readable))
    assert counts == {"dhcp": 10, "dhcp6": 10, "syslog": 10, "tftp": 10}


def test_listener_that_takes_too_long_is_followed_by_as_many_turns_without_listeners() -> None:
    loop = Turns()
    readable = [loop.drain("dhcp", TURN_SECONDS * 10), loop.drain("tftp", TURN_SECONDS)]
    ran = [loop.turn(*readable) for _ in range(22)]
    assert sum(map(len, ran)) <= 5
    assert {name for names in ran for name in names} == {"dhcp", "tftp"}


def test_listeners_keep_half_of_the_processor_where_everything_else_is_busy() -> None:
    loop = Turns()
    others = TURN_SECONDS * 8
    readable = [loop.drain("dhcp", TURN_SECONDS)]
    counts = [len(loop.turn(*readable, loop.drain("tftp", TURN_SECONDS), others=others)) for _ in range(20)]
    assert sum(counts[1:]) >= 2 * 19  # No listener waits, because a turn brings as much time as everything else took.


def test_clock_that_jumps_silences_no_listener() -> None:
    loop = Turns()
    loop.turn(loop.drain("dhcp", 3600))
    readable = loop.drain("dhcp", TURN_SECONDS)
    assert any(loop.turn(readable) for _ in range(100))


def test_fault_of_one_listener_leaves_the_others_in_line() -> None:
    loop = Turns()

    def fault() -> None:
        raise ZeroDivisionError

    loop.turn(loop.drain("dhcp", TURN_SECONDS), fault, loop.drain("tftp", TURN_SECONDS))
    with pytest.raises(ZeroDivisionError):
        loop.turn()
    assert loop.turn() == ["tftp"]


def test_listener_that_was_stopped_while_it_waits_is_not_read() -> None:
    loop = Turns()
    waits = loop.drain("tftp", TURN_SECONDS)
    loop.turn(loop.drain("dhcp", TURN_SECONDS), waits)
    loop.budget.forget(waits)
    assert loop.turn() == []
    assert not loop.has_more


def test_tcp_is_served_between_the_datagrams_of_full_sockets() -> None:
    """A loop like the edge's, three sockets that are always full, and a clock by which a datagram takes 20 us."""
    now, taken = [0.0], Counter[str]()

    async def serve() -> int:
        loop = asyncio.get_running_loop()
        budget = TurnBudget(loop.call_soon, lambda: now[0])
        sockets = [pair() for _ in range(3)]

        def receive(_: socket.socket) -> list[bytes]:
            return [b"x"] * 64  # the datagram that makes the socket readable stays in the socket

        def handle(_: socket.socket, packets: list[bytes]) -> None:
            now[0] += len(packets) * 20e-6
            taken["datagrams"] += len(packets)

        served = [ModeratedListener(ours, "test", receive, handle, after_turn=lambda: None, budget=budget)
                  for ours, _ in sockets]  # fmt: skip
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        for listener, (_, theirs) in zip(served, sockets, strict=True):
            theirs.send(b"x")
            listener.start()
        for _ in range(29):
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
            writer.write(b"a request\n")
            assert await reader.readline() == b"a request\n"
            writer.close()
        for listener, (_, theirs) in zip(served, sockets, strict=True):
            listener.stop()
            theirs.close()
        server.close()
        return taken["datagrams"]

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    # Both ends are in the loop: some ten turns for a request. Without the budget each turn brought 192 datagrams.
    assert uvloop.run(serve()) < 29 * 400


async def test_datagrams_that_found_no_room_are_counted_by_service_even_after_the_socket_is_closed() -> None:
    budget = turns.turn_budget()
    ours = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    ours.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    ours.bind(("127.0.0.1", 0))
    served = Listener(ours, "a full service", lambda sock: sock.recv(100), lambda _sock, _datagram: None)
    served.start()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as theirs:
        for _ in range(200):
            theirs.sendto(b"x", ours.getsockname())
    lost = budget.lost()["a full service"]
    assert 0 < lost < 200
    served.stop()
    assert budget.lost()["a full service"] == lost
