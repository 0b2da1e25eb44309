"""When the guard lists connections, and when growing memory is an alarm; both with a clock that the tests move."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tink.net.blocks import Block
from tink.server.connections import guard
from tink.server.connections.accounts import Limits
from tink.server.connections.guard import Guard
from tink.server.connections.memory import CONNECTION_BYTES, Alarm, MemoryWatch
from tink.server.connections.sockets import Accepted, Sockets

PEER = "ipv4:10.0.0.7:40000"


class Host(Sockets):
    """A host whose counters say what a test wants; counts how often connections are listed."""

    def __init__(self) -> None:
        super().__init__(42113)
        self.opened, self.descriptors, self.now, self.listed = 1, 20, 100.0, 0
        self.away: set[str] = set()

    def keep_away(self, blocks: frozenset[Block]) -> None:
        self.away = {str(block) for block in blocks}

    def accepted(self) -> Iterator[Accepted | None]:
        self.listed += 1
        return iter(())


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host()
    monkeypatch.setattr(guard, "opened", lambda: made.opened)
    monkeypatch.setattr(guard, "descriptors", lambda: made.descriptors)
    return made


@pytest.fixture
async def watching(host: Host) -> Guard:
    made = Guard(Limits(connections=1000, per_address=100))
    made._clock = lambda: host.now
    await made._look(host)
    host.listed = 0
    return made


async def looks(watching: Guard, host: Host, seconds: float) -> None:
    """Ten looks a second, while others on the host get a connection before each."""
    for _ in range(round(seconds * 10)):
        host.opened += 1
        host.now += 0.1
        await watching._look(host)


async def test_connections_of_others_on_the_host_have_it_look_once_a_second(watching: Guard, host: Host) -> None:
    await looks(watching, host, 5)
    assert 4 <= host.listed <= 6


async def test_connection_that_is_ours_is_found_at_the_next_look(watching: Guard, host: Host) -> None:
    host.descriptors += 1
    await looks(watching, host, 0.1)
    assert host.listed == 1


async def test_connection_in_the_place_of_another_is_found_by_its_call(watching: Guard, host: Host) -> None:
    watching.begun(PEER, busy=False)
    await looks(watching, host, 0.1)
    assert host.listed == 1


async def test_kernel_that_does_not_say_how_many_descriptors_there_are_has_it_look_each_time(
    watching: Guard, host: Host
) -> None:
    host.descriptors = -1
    await looks(watching, host, 1)
    assert host.listed == 10


async def test_network_blocked_from_the_start_can_not_connect_before_the_first_measurement(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "Sockets", lambda _port: host)
    reported: list[list[tuple[str, float]]] = []
    made = Guard(Limits(connections=1000, per_address=100), kept_away=reported.append)
    made._clock = lambda: host.now
    made.keep_away([("192.0.2.66/32", host.now + 60)])
    made.listens(42113)
    assert host.away == {"192.0.2.66/32"}
    assert reported == [[("192.0.2.66/32", host.now + 60)]]
    host.now += 61
    made.listens(42113)
    assert host.away == set()


MB = 1 << 20
LIMIT = 400 * MB


def test_sudden_growth_is_an_alarm_with_the_number_of_bytes() -> None:
    watch = MemoryWatch(LIMIT)
    assert watch.look(100 * MB, 0, 0.0) is None
    assert watch.look(120 * MB, 0, 0.02) is None
    assert watch.look(140 * MB, 0, 0.04) == Alarm(40 * MB, pressed=False)
    assert watch.look(141 * MB, 0, 0.06) is None, "counts from there on"
    assert watch.look(175 * MB, 0, 0.08) == Alarm(35 * MB, pressed=False)


def test_slow_growth_is_no_alarm_while_there_is_enough_memory() -> None:
    watch = MemoryWatch(LIMIT)
    assert [watch.look((100 + second) * MB, 0, float(second)) for second in range(150)] == [None] * 150


def test_near_the_limit_less_growth_counts() -> None:
    watch = MemoryWatch(LIMIT)
    watch.look(290 * MB, 0, 0.0)
    assert watch.look(301 * MB, 0, 1.0) == Alarm(11 * MB, pressed=True)
    assert watch.look(301 * MB, 0, 1.5) is None
    assert watch.look(306 * MB, 0, 1.6) == Alarm(5 * MB, pressed=True)
    assert watch.look(306 * MB, 0, 10.0) is None, "a large site may be there all the time"


def test_memory_of_honest_connections_is_no_alarm() -> None:
    watch = MemoryWatch(LIMIT)
    watch.look(100 * MB, 0, 0.0)
    assert watch.look(100 * MB + 1000 * CONNECTION_BYTES, 1000, 1.0) is None


def test_without_a_limit_sudden_growth_alone_counts() -> None:
    watch = MemoryWatch(None)
    watch.look(90_000 * MB, 0, 0.0)
    assert watch.look(90_010 * MB, 0, 1.0) is None
    assert watch.look(90_050 * MB, 0, 1.0) == Alarm(50 * MB, pressed=False)
