"""The journey: what is kept, what is handed on, and what a flood cannot do to it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest

from edge.journey.events import MAX_MESSAGE, JourneyEvent, Outcome, Recorder, Step
from edge.journey.recorder import Journey

if TYPE_CHECKING:
    from collections.abc import Callable

    class Clock:
        now: float
        __call__: Callable[[], float]


MAC = "52:54:00:00:00:01"


def seen(journey: Journey, mac: str) -> None:
    journey.record(mac, Step.SEEN, Outcome.INFO, "seen, not registered")


def test_event_is_kept_with_time_and_detail(journey: Journey, clock: Clock) -> None:
    record: Recorder = journey.record
    clock.now = 2_000.5
    record(MAC, Step.KERNEL, Outcome.OK, "kernel sent", size_bytes=12)
    assert journey.events(MAC) == [
        JourneyEvent(2_000.5, MAC, Step.KERNEL, Outcome.OK, "kernel sent", {"size_bytes": 12})
    ]
    assert journey.last_seen(MAC) == 2_000.5
    assert journey.last_seen("52:54:00:00:00:99") is None


def test_each_event_is_one_log_line(journey: Journey, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="edge.journey"):
        journey.record(MAC, Step.SCRIPT, Outcome.REFUSED, "no")
    (line,) = caplog.records
    assert (line.name, line.levelno, line.getMessage()) == (
        "edge.journey",
        logging.WARNING,
        f"{MAC} script refused: no",
    )


def test_message_from_outside_cannot_forge_log_lines(journey: Journey) -> None:
    journey.record(MAC, Step.METADATA, Outcome.OK, "user-data to x\n52:54 kernel ok: \x1b[2Jforged" + "y" * 5000)
    message = journey.events(MAC)[0].message
    assert message.isprintable()
    assert len(message) == MAX_MESSAGE


def test_old_events_of_a_chatty_machine_make_room(journey: Journey) -> None:
    for number in range(9):
        journey.record(MAC, Step.DHCP, Outcome.OK, str(number))
    assert [event.message for event in journey.events(MAC)] == ["4", "5", "6", "7", "8"]


def test_flood_of_strangers_keeps_registered_machines(journey: Journey) -> None:
    journey.record(MAC, Step.DHCP, Outcome.OK, "offer")
    for number in range(100):
        seen(journey, f"02:00:00:00:00:{number:02x}")
    assert journey.events(MAC)
    strangers = {machine.mac for machine in journey.machines() if machine.only_heard}
    assert strangers == {"02:00:00:00:00:62", "02:00:00:00:00:63"}


def test_stranger_that_gets_registered_keeps_its_history(journey: Journey, clock: Clock) -> None:
    seen(journey, MAC)
    clock.now += 60
    journey.record(MAC, Step.DHCP, Outcome.OK, "offer")
    (machine,) = journey.machines()
    assert (machine.only_heard, machine.first_seen, machine.last_seen) == (False, 1_000.0, 1_060.0)
    assert [event.step for event in journey.events(MAC)] == [Step.SEEN, Step.DHCP]


def test_machine_quiet_for_longest_makes_room(journey: Journey) -> None:
    for mac in ("a", "b", "c", "a", "d"):
        journey.record(mac, Step.DHCP, Outcome.OK, "offer")
    assert {machine.mac for machine in journey.machines()} == {"c", "a", "d"}


async def test_subscriber_gets_what_happens_from_the_call_on(journey: Journey) -> None:
    journey.record(MAC, Step.DHCP, Outcome.OK, "before")
    subscription = journey.subscribe()
    journey.record(MAC, Step.DHCP, Outcome.OK, "one")
    reader = asyncio.create_task(anext(subscription))
    assert (await reader).message == "one"
    waiting = asyncio.create_task(anext(subscription))
    await asyncio.sleep(0)
    journey.record(MAC, Step.DHCP, Outcome.OK, "two")
    assert (await waiting).message == "two"
    subscription.close()
    assert [event async for event in subscription] == []


async def test_slow_subscriber_loses_the_oldest_and_is_told(journey: Journey) -> None:
    with journey.subscribe(backlog=2) as subscription:
        for number in range(5):
            journey.record(MAC, Step.DHCP, Outcome.OK, str(number))
    assert subscription.dropped == 3
    assert [event.message async for event in subscription] == ["3", "4"]


async def test_forgotten_subscription_is_no_leak(journey: Journey) -> None:
    subscription = journey.subscribe()
    assert len(journey._subscriptions.open) == 1
    del subscription  # at once, and not when garbage is collected: what others left would be collected with it
    assert len(journey._subscriptions.open) == 0
    assert not journey._readers


async def test_closed_subscription_gets_no_more(journey: Journey) -> None:
    closed, other = journey.subscribe(), journey.subscribe()
    closed.close()
    journey.record(MAC, Step.DHCP, Outcome.OK, "later")
    assert [event async for event in closed] == []
    assert (await anext(other)).message == "later"
