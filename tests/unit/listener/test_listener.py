"""Listeners of datagrams: they survive what arrives, share the turns of the event loop, and let fast packets gather."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from edge.listener import DatagramListener, ModeratedListener, ReceiveBuffers, advice, moderation, turns
from edge.listener.moderation import INTERVAL_SECONDS, Moderation
from edge.listener.turns import TURN_SECONDS, TurnBudget
from tests.support import virtual_time
from tests.support.virtual_time import elapse
from tests.waiting import until

DOWN = OSError(errno.ENETDOWN, "Network is down")


class Served:
    """A listener on a pair of sockets: what it has handled, and the errors that its next reads raise."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.ours.setblocking(False)
        self.received: list[bytes] = []
        self.errors: list[OSError] = []
        self.reads = 0
        self.listener = DatagramListener(self.ours, "test", self.receive, self.handle)

    def receive(self, sock: socket.socket) -> bytes:
        self.reads += 1
        if self.errors:
            raise self.errors.pop()
        return sock.recv(100)

    def handle(self, _: socket.socket, datagram: bytes) -> None:
        if datagram == b"bad":
            raise ZeroDivisionError
        self.received.append(datagram)

    def send(self, *datagrams: bytes) -> None:
        for datagram in datagrams:
            self.theirs.send(datagram)

    def close(self) -> None:
        if self.ours.fileno() >= 0:
            self.listener.stop()
        self.theirs.close()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    found = Served()
    yield found
    found.close()


@pytest.mark.looptime
async def test_fault_on_one_datagram_does_not_keep_the_next_from_being_handled(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    served.listener.start()
    served.send(b"bad", b"bad", b"good")
    await elapse(1)
    assert served.received == [b"good"]
    assert caplog.text.count("test: internal error on") == 1  # the second one within ten seconds is not logged


async def test_storm_on_one_socket_lets_others_have_their_turn(served: Served) -> None:
    per_turn: list[int] = []
    served.listener = DatagramListener(
        served.ours, "test", served.receive, served.handle, per_turn=2, after_turn=lambda: per_turn.append(served.reads)
    )
    served.listener.start()
    served.send(*(bytes((number,)) for number in range(5)))
    await until(lambda: len(served.received) == 5)
    assert per_turn[:2] == [2, 4]


@pytest.mark.looptime
async def test_receive_error_is_reported_and_the_service_goes_on(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    served.errors.append(DOWN)
    served.listener.start()
    served.send(b"x")
    await elapse(0.9)
    assert (served.received, served.reads) == ([], 1), "it rests for a moment"
    await elapse(0.2)
    assert served.received == [b"x"]
    assert "test: receiving: Network is down; going on" in caplog.text


@pytest.mark.looptime
async def test_stopping_while_it_rests_does_not_wake_it_up_again(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    served.errors.append(DOWN)
    served.listener.start()
    served.send(b"x")
    await elapse(0.5)
    served.listener.stop()
    caplog.clear()
    await elapse(60)  # a reader on the closed socket would raise in the loop, which logs that
    assert (served.ours.fileno(), served.reads, caplog.records) == (-1, 1, [])


async def test_listener_that_was_never_started_can_be_stopped(served: Served) -> None:
    served.listener.stop()
    assert (served.ours.fileno(), turns.turn_budget().lost()) == (-1, {})


@pytest.mark.looptime
async def test_what_is_handled_may_close_the_listener(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    def handle(_: socket.socket, datagram: bytes) -> None:
        served.received.append(datagram)
        served.listener.stop()

    served.listener = DatagramListener(served.ours, "test", served.receive, handle)
    served.listener.start()
    served.send(b"first", b"second")
    await elapse(60)  # nothing wakes it up again
    assert (served.received, caplog.records) == ([b"first"], [])


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
    error = OSError(number, os.strerror(number))
    text = advice("TFTP can't open UDP port 69", error, port=69, without="--disable tftp")
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

    def drain(self, name: str, seconds: float = TURN_SECONDS) -> Callable[[], None]:
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


@pytest.fixture
def loop() -> Turns:
    return Turns()


def test_lone_datagram_is_read_at_once(loop: Turns) -> None:
    assert loop.turn(loop.drain("dhcp", TURN_SECONDS / 10)) == ["dhcp"]
    assert not loop.has_more


def test_listeners_together_take_no_more_of_a_turn_than_its_budget(loop: Turns) -> None:
    readable = [loop.drain(name, TURN_SECONDS / 2) for name in ("dhcp", "dhcp6", "syslog", "tftp")]
    for _ in range(10):
        assert len(loop.turn(*readable)) <= 2


def test_full_sockets_are_read_in_turn(loop: Turns) -> None:
    readable = [loop.drain(name) for name in ("dhcp", "dhcp6", "syslog", "tftp")]
    counts = Counter(name for _ in range(40) for name in loop.turn(*readable))
    assert counts == {"dhcp": 10, "dhcp6": 10, "syslog": 10, "tftp": 10}


def test_listener_that_takes_too_long_is_followed_by_as_many_turns_without_listeners(loop: Turns) -> None:
    readable = [loop.drain("dhcp", TURN_SECONDS * 10), loop.drain("tftp")]
    ran = [loop.turn(*readable) for _ in range(22)]
    assert sum(map(len, ran)) <= 5
    assert {name for names in ran for name in names} == {"dhcp", "tftp"}


def test_listeners_keep_half_of_the_processor_where_everything_else_is_busy(loop: Turns) -> None:
    readable = [loop.drain("dhcp"), loop.drain("tftp")]
    counts = [len(loop.turn(*readable, others=TURN_SECONDS * 8)) for _ in range(20)]
    assert sum(counts[1:]) >= 2 * 19  # No listener waits, because a turn brings as much time as everything else took.


def test_clock_that_jumps_silences_no_listener(loop: Turns) -> None:
    loop.turn(loop.drain("dhcp", 3600))
    readable = loop.drain("dhcp")
    assert any(loop.turn(readable) for _ in range(100))


def test_fault_of_one_listener_leaves_the_others_in_line(loop: Turns) -> None:
    def fault() -> None:
        raise ZeroDivisionError

    loop.turn(loop.drain("dhcp"), fault, loop.drain("tftp"))
    with pytest.raises(ZeroDivisionError):
        loop.turn()
    assert loop.turn() == ["tftp"]


def test_listener_that_was_stopped_while_it_waits_is_not_read(loop: Turns) -> None:
    waits = loop.drain("tftp")
    loop.turn(loop.drain("dhcp"), waits)
    loop.budget.forget(waits)
    assert loop.turn() == []
    assert not loop.has_more


def test_tcp_is_served_between_the_datagrams_of_full_sockets() -> None:
    """A loop like the edge's, three sockets that are always full, and a clock by which a datagram takes 20 us."""
    now, seen = [0.0], Counter[str]()

    def receive(_: socket.socket) -> list[bytes]:
        return [b"x"] * 64  # the datagram that makes the socket readable stays in the socket

    def handle(_: socket.socket, packets: list[bytes]) -> None:
        now[0] += len(packets) * 20e-6
        seen["datagrams"] += len(packets)

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    async def serve() -> float:
        loop = asyncio.get_running_loop()

        def count_turns() -> None:
            seen["turns"] += 1
            loop.call_soon(count_turns)

        budget = TurnBudget(loop.call_soon, lambda: now[0])
        full = [Served() for _ in range(3)]
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        for each in full:
            each.listener = ModeratedListener(
                each.ours, "test", receive, handle, after_turn=lambda: None, budget=budget
            )
            each.send(b"x")
            each.listener.start()
        count_turns()
        for _ in range(29):
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
            writer.write(b"a request\n")
            assert await reader.readline() == b"a request\n"
            writer.close()
        for each in full:
            each.close()
        server.close()
        return seen["datagrams"] / seen["turns"]

    # Without the budget each turn brought 192 datagrams.
    assert uvloop.run(serve()) < 100


async def test_dropped_datagrams_are_counted_by_service_even_after_the_socket_is_closed() -> None:
    budget = turns.turn_budget()
    ours = turns.udp_socket(
        "127.0.0.1", 0, None, lambda sock: sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    )
    served = DatagramListener(ours, "a full service", lambda sock: sock.recv(100), lambda _sock, _datagram: None)
    served.start()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as theirs:
        for _ in range(200):
            theirs.sendto(b"x", ours.getsockname())
    lost = budget.lost()["a full service"]
    assert 0 < lost < 200
    served.stop()
    assert budget.lost()["a full service"] == lost


# --- whether packets gather -------------------------------------------------------------------------------------------


class ModerationByClock(Moderation):
    """A moderation with a clock, in seconds, that each turn moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(lambda: self.now)

    def take_turns(self, number: int, *, packets: int = 1, seconds: float = INTERVAL_SECONDS) -> None:
        """Count turns of `packets` packets; each turn is `seconds` after the one before."""
        for _ in range(number):
            self.now += seconds
            self.turned(packets)


@pytest.fixture
def idle() -> ModerationByClock:
    return ModerationByClock()


@pytest.fixture
def gathering(idle: ModerationByClock) -> ModerationByClock:
    """A moderation after fast single packets: packets gather."""
    idle.take_turns(32, seconds=INTERVAL_SECONDS / 10)
    assert idle.gathers
    return idle


@pytest.mark.parametrize(
    ("rate", "gathers"), [(1, False), (1500, False), (7000, False), (15_000, False), (20_000, True), (40_000, True)]
)
def test_single_packets_gather_if_several_arrive_in_an_interval(
    idle: ModerationByClock, rate: int, gathers: bool
) -> None:
    idle.take_turns(1024, seconds=1 / rate)
    assert idle.gathers is gathers


def test_packets_that_arrive_together_do_not_gather(idle: ModerationByClock) -> None:
    idle.take_turns(1000, packets=30)
    assert not idle.gathers


def test_a_few_fast_packets_after_a_long_silence_do_not_gather(idle: ModerationByClock) -> None:
    for _ in range(100):
        idle.take_turns(31, seconds=1e-6)
        idle.take_turns(1, seconds=60)
    assert not idle.gathers


@pytest.mark.parametrize(
    ("turns", "packets", "gathers"),
    [
        pytest.param(32, 0, False, id="quiet again"),
        pytest.param(10_000, 6, True, id="enough"),
        pytest.param(32, 64, False, id="more than one call reads"),
    ],
)
def test_packets_gather_while_they_are_enough_and_not_too_many(
    gathering: ModerationByClock, turns: int, packets: int, gathers: bool
) -> None:
    gathering.take_turns(turns, packets=packets)
    assert gathering.gathers is gathers


def test_client_that_waits_for_each_answer_is_slowed_only_briefly(gathering: ModerationByClock) -> None:
    slow = 0
    for _ in range(10_000):
        # Four clients: one after the other while they are answered at once, all in one turn when that takes a while.
        gathering.now += INTERVAL_SECONDS if gathering.gathers else INTERVAL_SECONDS / 10
        slow += gathering.gathers
        gathering.turned(4 if gathering.gathers else 1)
    assert slow < 500


# --- the listener that lets packets gather ----------------------------------------------------------------------------


class ManualModeration(Moderation):
    """A test decides whether packets gather, from the next turn on."""

    def turned(self, packets: int) -> None:
        pass


class Moderated(Served):
    def __init__(self) -> None:
        super().__init__()
        self.moderation = ManualModeration()
        self.listener = ModeratedListener(
            self.ours,
            "test",
            lambda sock: [self.receive(sock)],
            lambda _, packets: self.received.extend(packets),
            after_turn=lambda: None,
            moderation=self.moderation,
        )
        self.listener.start()

    async def has_received(self, *packets: bytes) -> None:
        await until(lambda: self.received == list(packets))

    async def gather(self) -> None:
        """Send the last of the packets that are answered at once."""
        self.moderation.gathers = True
        self.send(b"at once")
        await until(lambda: self.listener.gathers)

    def is_waited_for(self) -> bool:
        """Return whether the event loop waits for the socket itself; it does not afterwards."""
        return asyncio.get_running_loop().remove_reader(self.ours)


@pytest.fixture
async def moderated() -> AsyncIterator[Moderated]:
    found = Moderated()
    yield found
    found.close()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_queued_packets_are_all_received_in_order(moderated: Moderated) -> None:
    await moderated.gather()
    packets = [b"%d" % number for number in range(50)]
    moderated.send(*packets)
    await moderated.has_received(b"at once", *packets)
    assert not moderated.is_waited_for()


async def test_socket_is_watched_again_after_gathering_ends(moderated: Moderated) -> None:
    await moderated.gather()
    moderated.moderation.gathers = False
    await until(lambda: not moderated.listener.gathers)
    moderated.send(b"alone")
    await moderated.has_received(b"at once", b"alone")
    assert moderated.is_waited_for()


async def test_packets_that_gather_are_read_when_the_timer_ends_and_not_before(
    moderated: Moderated, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer = os.eventfd(0)
    monkeypatch.setattr(moderation, "interval_timer", lambda _seconds: timer)
    await moderated.gather()
    before = moderated.reads
    moderated.send(b"gathers")
    await virtual_time.turns(20)
    assert moderated.reads == before
    os.eventfd_write(timer, 1)
    await moderated.has_received(b"at once", b"gathers")
    assert moderated.reads == before + 1


async def test_stopping_while_packets_gather_leaves_no_descriptor(moderated: Moderated) -> None:
    before = descriptors()
    await moderated.gather()
    assert descriptors() == before + 1
    moderated.listener.stop()
    assert descriptors() == before - 1  # the socket's
    await virtual_time.turns(10)  # a reader on a closed descriptor would raise in the loop


@pytest.mark.looptime
async def test_error_while_packets_gather_is_rested_from(
    moderated: Moderated, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer = os.eventfd(0)
    monkeypatch.setattr(moderation, "interval_timer", lambda _seconds: timer)
    await moderated.gather()
    moderated.errors.append(DOWN)
    os.eventfd_write(timer, 1)
    await elapse(0.5)
    assert "Network is down; going on" in caplog.text
    assert not moderated.listener.gathers
    moderated.moderation.gathers = False
    moderated.send(b"afterwards")
    await elapse(0.6)
    assert moderated.received == [b"at once", b"afterwards"]


async def test_without_a_timer_packets_are_answered_at_once(
    moderated: Moderated, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(_seconds: float) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(moderation, "interval_timer", none_left)
    moderated.moderation.gathers = True
    packets = [b"%d" % number for number in range(5)]
    moderated.send(*packets)
    await moderated.has_received(*packets)
    assert caplog.text.count("test: no timer to let packets gather by: Too many open files") == 1
    assert moderated.is_waited_for()


# --- many datagrams with one call: none is lost, mixed up, or taken for another's -------------------------------------

Sockets = tuple[socket.socket, list[socket.socket]]


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    """One that has_received, and three that send to it."""
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


def test_a_storm_is_taken_in_order_64_at_a_time(sockets: Sockets) -> None:
    ours, senders = sockets
    buffers = ReceiveBuffers(1500)
    sent = [str(number).encode() * (number + 1) for number in range(100)]
    for payload in sent:
        senders[0].send(payload)
    first, second = buffers.receive(ours), buffers.receive(ours)
    assert (len(first), len(second)) == (64, 36)
    assert first + second == sent  # what was taken first is not touched by what came next
    assert all(type(payload) is bytes for payload in first)


def test_each_datagram_is_known_by_its_own_sender(sockets: Sockets) -> None:
    ours, senders = sockets
    buffers = ReceiveBuffers(1500)
    order = [2, 0, 1, 1, 2]
    for _ in range(2):  # the second time, everything has been written to once
        for number in order:
            senders[number].send(bytes((number,)))
        assert buffers.receive(ours) == [bytes((number,)) for number in order]
        assert [buffers.source(at) for at in range(5)] == [senders[number].getsockname() for number in order]
        order.reverse()


def test_one_that_is_too_long_is_cut_and_the_next_is_whole(sockets: Sockets) -> None:
    ours, senders = sockets
    buffers = ReceiveBuffers(10)
    for payload in (b"a" * 10, b"b" * 11, b"", b"c" * 2000, b"d"):
        senders[0].send(payload)
    assert buffers.receive(ours) == [b"a" * 10, b"b" * 10, b"", b"c" * 10, b"d"]


def test_none_that_waits_is_no_failure_of_the_network(sockets: Sockets) -> None:
    ours, _ = sockets
    ours.setblocking(True)  # whatever the socket is, the event loop never waits
    with pytest.raises(BlockingIOError):
        ReceiveBuffers(1500).receive(ours)


def test_network_failure_is_reported_with_its_errno() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = nobody.getsockname()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ours:
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
