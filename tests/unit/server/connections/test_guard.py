"""When the guard lists connections, and when growing memory is an alarm; both with a clock that the tests move."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tink.net.addresses import Block
from tink.server.connections import guard
from tink.server.connections.accounts import CONNECTION_BYTES, Accepted, Alarm, MemoryWatch, PortLimits
from tink.server.connections.guard import Guard, Sockets

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
    made = Guard(PortLimits(connections=1000, per_address=100))
    made._clock = lambda: host.now
    await made._measure_if_due(host)
    host.listed = 0
    return made


async def looks(watching: Guard, host: Host, seconds: float) -> None:
    """Ten looks a second, while others on the host get a connection before each."""
    for _ in range(round(seconds * 10)):
        host.opened += 1
        host.now += 0.1
        await watching._measure_if_due(host)


async def test_connections_of_others_on_the_host_have_it_look_once_a_second(watching: Guard, host: Host) -> None:
    await looks(watching, host, 5)
    assert 4 <= host.listed <= 6


async def test_connection_that_is_ours_is_found_at_the_next_look(watching: Guard, host: Host) -> None:
    host.descriptors += 1
    await looks(watching, host, 0.1)
    assert host.listed == 1
    watching.begun(PEER, busy=False)  # one in the place of another is found by its call
    await looks(watching, host, 0.1)
    assert host.listed == 2


async def test_guard_lists_sockets_each_time_if_the_kernel_does_not_count_descriptors(
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
    made = Guard(PortLimits(connections=1000, per_address=100), kept_away=reported.append)
    made._clock = lambda: host.now
    made.keep_away([("192.0.2.66/32", host.now + 60)])
    made.listens(42113)
    assert host.away == {"192.0.2.66/32"}
    assert reported == [[("192.0.2.66/32", host.now + 60)]]
    host.now += 61
    made.listens(42113)
    assert host.away == set()


MB = 1 << 20
# The limit, and looks: when, how much memory, how many connections; and the alarm (megabytes, whether it is pressed).
GROWTH: dict[str, tuple[int | None, list[tuple[float, float, int, tuple[int, bool] | None]]]] = {
    "sudden": (
        400,
        [
            *((0.0, 100, 0, None), (0.02, 120, 0, None), (0.04, 140, 0, (40, False))),
            *((0.06, 141, 0, None), (0.08, 175, 0, (35, False))),  # counts from there on
        ],
    ),
    "slow": (400, [(float(second), 100 + second, 0, None) for second in range(150)]),
    "near the limit": (
        400,
        [
            *((0.0, 290, 0, None), (1.0, 301, 0, (11, True)), (1.5, 301, 0, None), (1.6, 306, 0, (5, True))),
            (10.0, 306, 0, None),  # a large site may be there all the time
        ],
    ),
    "honest connections": (400, [(0.0, 100, 0, None), (1.0, 100 + 1000 * CONNECTION_BYTES / MB, 1000, None)]),
    "no limit": (None, [(0.0, 90_000, 0, None), (1.0, 90_010, 0, None), (1.0, 90_050, 0, (50, False))]),
}


@pytest.mark.parametrize("name", GROWTH)
def test_growth_of_memory_is_an_alarm_if_it_is_sudden_or_near_the_limit(name: str) -> None:
    limit, looks = GROWTH[name]
    watch = MemoryWatch(None if limit is None else limit * MB)
    for when, size, connections, alarm in looks:
        expected = None if alarm is None else Alarm(alarm[0] * MB, pressed=alarm[1])
        assert watch.look(round(size * MB), connections, when) == expected, when
