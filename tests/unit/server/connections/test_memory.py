"""The alarm for growing memory, with a clock that the tests move."""

from __future__ import annotations

from tink.server.connections.memory import CONNECTION_BYTES, Alarm, MemoryWatch

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
