"""The journey: what is kept (in memory, by a naive model; in files), what is handed on, its log lines, and floods."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.journey.archive import DIRECTORY, Archive
from edge.journey.events import MAX_DETAIL, MAX_MESSAGE, JourneyEvent, Note, Outcome, Recorder, Step
from edge.journey.history import kept_bytes, read
from edge.journey.recorder import PERIOD_SECONDS, ROUTINE_LINES, WARNING_LINES, Journey
from edge.journey.subscription import Changes
from tests.support.objects import MAC
from tests.support.virtual_time import elapse, turns

OTHER = "52:54:00:00:00:02"
OFFER = Note(Step.DHCP, Outcome.OK, "DHCPOFFER", {"address": "10.0.0.1"})


REFUSAL = Note(Step.DHCP, Outcome.REFUSED, "no DHCP answer")


def ticking(**bounds: int) -> Journey:
    """A journey whose clock is 1 s later each time that it is read."""
    times = count(1)
    return Journey(lambda: float(next(times)), **bounds)


def test_event_is_stored_with_time_and_detail_and_is_one_log_line_that_can_not_be_forged(journey, clock, caplog):
    caplog.set_level(logging.INFO, logger="edge.journey")
    record: Recorder = journey.record
    clock.now = 2_000.5
    record(MAC, Step.KERNEL, Outcome.REFUSED, "no", size_bytes=12)
    assert journey.events(MAC) == [JourneyEvent(2_000.5, MAC, Step.KERNEL, Outcome.REFUSED, "no", {"size_bytes": 12})]
    assert journey.last_seen(MAC) == 2_000.5
    assert journey.last_seen("52:54:00:00:00:99") is None
    (line,) = caplog.records
    assert (line.name, line.levelno) == ("edge.journey", logging.WARNING)
    assert line.getMessage() == f"{MAC} kernel refused: no"
    fields = {"mac": MAC, "step": "kernel", "outcome": "refused", "detail": {"size_bytes": 12}}
    assert line.__dict__["fields"] == fields
    record(MAC, Step.METADATA, Outcome.OK, "user-data to x\n52:54 kernel ok: \x1b[2Jforged" + "y" * 5000)
    message = journey.events(MAC)[1].message
    assert (message.isprintable(), len(message)) == (True, MAX_MESSAGE)


def test_flood_of_unregistered_machines_replaces_no_registered_machine(journey):
    for mac in ("a", "b", "c", "a", "d"):
        journey.record(mac, Step.DHCP, Outcome.OK, "offer")
    for number in range(100):
        journey.record(f"02:00:00:00:00:{number:02x}", Step.SEEN, Outcome.INFO, "seen, not registered")
    strangers = {machine.mac for machine in journey.machines() if machine.only_heard}
    assert strangers == {"02:00:00:00:00:62", "02:00:00:00:00:63"}
    assert {machine.mac for machine in journey.machines()} == {"c", "a", "d"} | strangers


def test_unregistered_machine_keeps_its_history_when_it_is_registered(journey, clock):
    journey.record(MAC, Step.SEEN, Outcome.INFO, "seen, not registered")
    clock.now += 60
    journey.record(MAC, Step.DHCP, Outcome.OK, "offer")
    (machine,) = journey.machines()
    assert (machine.only_heard, machine.first_seen, machine.last_seen) == (False, 1_000.0, 1_060.0)
    assert [event.step for event in journey.events(MAC)] == [Step.SEEN, Step.DHCP]


# --- subscriptions, and which machines changed ---


async def test_subscriber_gets_events_from_the_call_on_until_it_closes(journey):
    journey.record(MAC, Step.DHCP, Outcome.OK, "before")
    subscription, other = journey.subscribe(), journey.subscribe()
    journey.record(MAC, Step.DHCP, Outcome.OK, "one")
    assert (await anext(subscription)).message == "one"
    waiting = asyncio.create_task(anext(subscription))
    await turns()
    journey.record(MAC, Step.DHCP, Outcome.OK, "two")
    assert (await waiting).message == "two"
    subscription.close()
    journey.record(MAC, Step.DHCP, Outcome.OK, "later")
    assert [event async for event in subscription] == []
    assert [(await anext(other)).message for _ in range(3)] == ["one", "two", "later"]


async def test_slow_subscriber_loses_the_oldest_events_and_gets_their_number(journey):
    with closing(journey.subscribe(backlog=2)) as subscription:
        for number in range(5):
            journey.record(MAC, Step.DHCP, Outcome.OK, str(number))
    assert subscription.dropped == 3
    assert [event.message async for event in subscription] == ["3", "4"]


async def test_forgotten_subscription_is_no_leak(journey):
    subscription = journey.subscribe()
    assert len(journey._subscriptions.open) == 1
    del subscription  # at once, and not when garbage is collected: what others left would be collected with it
    assert len(journey._subscriptions.open) == 0
    assert not journey._readers


def test_each_reader_of_changes_gets_each_machine_once_from_its_start_on():
    changes = Changes()
    changes.mark("early")
    one, other = changes.subscribe(), changes.subscribe()
    changes.mark("a")
    changes.mark("a")
    assert one.take() == {"a"}
    late = changes.subscribe()
    changes.mark("b")
    assert (one.take(), other.take(), late.take()) == ({"b"}, {"a", "b"}, {"b"})
    assert other.take() == set()
    for each in (one, other, late, late):
        each.close()
    changes.mark("c")
    assert (changes.marked, changes.subscribers) == (set(), []), "nothing is kept for nobody"
    journey = Journey(lambda: 1.0)
    journey.record("a", Step.DHCP, Outcome.OK, "before")
    pending = journey.changes()
    journey.record("b", Step.DHCP, Outcome.OK, "after")
    assert pending.take() == {"b"}


def test_diagnosis_is_no_sign_of_life():
    journey = ticking()
    journey.record("a", Step.DHCP, Outcome.OK, "offer")
    journey.record("a", Step.DHCP, Outcome.WARNING, "silent")
    assert (journey.last_entry("a").time, journey.last_sign("a").time) == (2.0, 1.0)
    assert journey.last_sign("b") is None


def test_only_the_end_of_a_workflow_that_ran_is_a_sign_of_life_among_workflow_events_and_findings():
    journey = ticking()
    journey.record("a", Step.WORKFLOW, Outcome.INFO, "workflow d/w: Pending", state="Pending")
    journey.record("a", Step.WORKFLOW, Outcome.FAILED, "workflow d/w: Failed: TemplateError", state="Failed")
    assert (journey.last_sign("a"), journey.was_heard("a")) == (None, False)
    journey.record("a", Step.DHCP, Outcome.OK, "offer")
    journey.record("a", Step.WORKFLOW, Outcome.INFO, "workflow d/v: Pending", state="Pending")
    journey.record("a", Step.ACTION, Outcome.INFO, "action disk has been running for 60 s", rule="ActionSilent")
    assert (journey.last_sign("a").time, journey.was_heard("a")) == (3.0, True)
    journey.record("a", Step.WORKFLOW, Outcome.OK, "workflow d/v: Succeeded", state="Succeeded")
    assert journey.last_sign("a").time == 6.0


# --- what is kept ---

PREPARED = {step: Note(step, Outcome.OK, f"prepared {step}", {"client": "ROM"}) for step in Step}


class Happening(NamedTuple):
    mac: str
    step: Step
    prepared: bool


happenings = st.lists(
    st.builds(
        Happening,
        mac=st.integers(0, 7).map(lambda number: f"52:54:00:00:00:{number:02x}"),
        step=st.sampled_from((Step.DHCP, Step.DHCP, Step.SEEN, Step.KERNEL)),
        prepared=st.booleans(),
    ),
    max_size=80,
)


class Kept:
    """A journey, and a list of all events that were recorded into it."""

    def __init__(self, **bounds: int) -> None:
        times = count(1_000)
        self.journey = Journey(lambda: float(next(times)), **bounds)
        self.logged: list[JourneyEvent] = []

    def record(self, number: int, happening: Happening) -> None:
        mac, step, prepared = happening
        if prepared:
            self.journey.note(mac, PREPARED[step])
            message, detail = f"prepared {step}", {"client": "ROM"}
        else:
            self.journey.record(mac, step, Outcome.OK, f"event {number}", number=number)
            message, detail = f"event {number}", {"number": number}
        self.logged.append(JourneyEvent(1_000.0 + number, mac, step, Outcome.OK, message, detail))

    def of(self, mac: str) -> list[JourneyEvent]:
        return [event for event in self.logged if event.mac == mac]


@given(happenings)
@settings(max_examples=100, deadline=None)
def test_with_room_for_all_each_machine_keeps_its_newest_events(happened):
    kept = Kept(per_machine=5, machines=8, strangers=8)
    for number, happening in enumerate(happened):
        kept.record(number, happening)
        assert kept.journey.events(happening.mac) == kept.of(happening.mac)[-5:]
    macs = {event.mac for event in kept.logged}
    everything = [event for mac in macs for event in kept.of(mac)[-5:]]
    assert list(kept.journey.past()) == sorted(everything, key=lambda event: event.time)
    machines = kept.journey.machines()
    assert {machine.mac for machine in machines} == macs
    assert [machine.last_seen for machine in machines] == sorted((kept.of(mac)[-1].time for mac in macs), reverse=True)
    for machine in machines:
        own = kept.of(machine.mac)
        assert machine.first_seen == own[0].time
        assert machine.last == own[-1]
        assert machine.only_heard == all(event.step is Step.SEEN for event in own)
        assert kept.journey.last_seen(machine.mac) == own[-1].time
    for (step, outcome), counted in kept.journey.counts().items():
        assert counted == sum(1 for event in kept.logged if (event.step, event.outcome) == (step, outcome))


@given(
    happenings,
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, 3),
    st.one_of(st.integers(0, 4_000), st.just(10**9)),
)
@settings(max_examples=300, deadline=None)
def test_newest_event_is_stored_and_all_bounds_hold_under_any_shortage(
    happened, per_machine, machines, strangers, memory_bytes
):
    kept = Kept(per_machine=per_machine, machines=machines, strangers=strangers, memory_bytes=memory_bytes)
    journey = kept.journey
    for number, happening in enumerate(happened):
        kept.record(number, happening)
        known = journey.machines()
        received = [machine for machine in known if machine.only_heard]
        assert len(received) <= strangers
        assert len(known) - len(received) <= machines
        for machine in known:
            events, own = journey.events(machine.mac), kept.of(machine.mac)
            assert 1 <= len(events) <= per_machine
            assert events == own[-len(events) :]
            assert machine.last == own[-1]
        if memory_bytes > 3_000:  # room for a few events: that of now is among them
            assert journey.events(happening.mac)[-1] == kept.logged[-1]
        assert sorted(machine.mac for machine in known) == sorted({event.mac for event in journey.past()})
        histories = (*journey._histories.values(), *journey._strangers.values())
        assert all(len(history) == len(history.times) for history in histories)
        held = [entry for history in histories for entry in history]
        held += [quiet.entry for quiet in journey._quiet.values()]
        assert journey.kept_bytes == sum(map(kept_bytes, held))
        of_strangers = sum(kept_bytes(entry) for history in journey._strangers.values() for entry in history)
        assert journey.kept_bytes <= max(memory_bytes, of_strangers)


def test_quiet_machines_keep_their_last_event_when_memory_is_short():
    journey = ticking(memory_bytes=32 * 100)
    for mac in ("quiet", "busy"):
        for _ in range(30):
            journey.note(mac, OFFER)
    journey.record("quiet", Step.WORKFLOW, Outcome.OK, "succeeded")
    for _ in range(50):
        journey.note("busy", OFFER)
    assert [event.message for event in journey.events("quiet")] == ["succeeded"]
    assert len(journey.events("busy")) == 80
    journey.note("quiet", OFFER)
    assert [event.time for event in journey.events("quiet")] == [61.0, 112.0]
    assert journey.summary("quiet").first_seen == 1.0


def test_machine_with_only_its_last_event_is_forgotten_first():
    journey = Journey(lambda: 0.0, machines=2, memory_bytes=32 * 10)
    for mac in ("first", "second"):
        for _ in range(6):
            journey.note(mac, OFFER)
    journey.note("third", OFFER)
    assert {machine.mac for machine in journey.machines()} == {"second", "third"}


def test_one_event_costs_a_bounded_search_however_many_machines_were_active():
    journey = Journey(lambda: 0.0, machines=100_000, memory_bytes=32 * 4_000)
    for _ in range(2):
        for number in range(2_000):
            journey.note(str(number), OFFER)
    looks = 0

    class Counted(dict[str, object]):
        def __getitem__(self, mac: str) -> object:
            nonlocal looks
            looks += 1
            return super().__getitem__(mac)

    journey._histories = Counted(journey._histories)
    journey.note("1", OFFER)
    assert looks <= 20


def test_long_texts_of_an_event_count_as_memory_and_are_cut():
    journey = Journey(lambda: 0.0)
    journey.record("m", Step.AGENT, Outcome.OK, "x", short="y")
    short = journey.kept_bytes
    journey.record("m", Step.AGENT, Outcome.OK, "x" * 100, short="y" * 1_000)
    assert journey.kept_bytes - short == short + 99 + 999
    journey = Journey(lambda: 0.0)
    prepared = Note(Step.SEEN, Outcome.INFO, "line\nbreak", {"manifest": "x" * 9_999, "size_bytes": 3})
    for _ in range(1_000):
        journey.note("02:00:00:00:00:01", prepared)
    event, *others = journey.events("02:00:00:00:00:01")
    assert (event.message, len(str(event.detail["manifest"])), len(others)) == ("line break", MAX_DETAIL, 19)
    assert journey.kept_bytes < 30 * (MAX_DETAIL + 1_000), "few manifests of a stranger"
    assert journey.sent_bytes()[Step.SEEN] == 3_000.0


# --- lines in the log: every event at ordinary times, a bounded number in a storm, and the rest counted ---


def mac(number: int) -> str:
    return f"52:54:00:00:{number >> 8:02x}:{number & 255:02x}"


@pytest.fixture
def reported(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, logger="edge.journey")
    return lambda: [record.getMessage() for record in caplog.records]


def storm(journey: Journey, events: int, note: Note = OFFER, machines: int = 300) -> None:
    for number in range(events):
        journey.note(mac(number % machines), note)


def test_every_event_has_its_line_in_order_at_ordinary_times(journey, clock, reported):
    for number in range(3 * ROUTINE_LINES):
        clock.now += 1 / (ROUTINE_LINES // 2)
        journey.record(mac(1), Step.DHCP, Outcome.OK, str(number))
    assert [line.rpartition(" ")[2] for line in reported()] == [str(number) for number in range(3 * ROUTINE_LINES)]


def test_storm_is_summed_up_when_its_second_is_over_and_then_lines_are_written_again(journey, clock, reported):
    storm(journey, ROUTINE_LINES + 1_200)
    assert len(reported()) == ROUTINE_LINES
    clock.now += 1.25
    storm(journey, 1)
    assert reported()[ROUTINE_LINES:] == [
        "1,200 more dhcp events (ok) of 300 machines in 1.2 s are in the journey, but not in this log",
        f"{mac(0)} dhcp ok: DHCPOFFER",
    ]
    clock.now += 60
    storm(journey, ROUTINE_LINES)
    assert len(reported()) == 2 * ROUTINE_LINES + 2
    assert journey.counts()[Step.DHCP, Outcome.OK] == 2 * ROUTINE_LINES + 1_201, "each, with a line or not"


def test_suppressed_lines_are_summed_up_once_at_the_end(journey, reported):
    storm(journey, ROUTINE_LINES + 7, machines=ROUTINE_LINES + 7)
    journey.flush()
    journey.flush()
    assert [line for line in reported() if " more " in line] == [
        "7 more dhcp events (ok) of 7 machines in 0.0 s are in the journey, but not in this log"
    ]


def test_storm_of_offers_takes_no_line_from_other_steps_and_warnings(journey, reported):
    storm(journey, ROUTINE_LINES + 100)
    journey.record(mac(9), Step.KERNEL, Outcome.OK, "kernel sent")
    journey.note(mac(9), REFUSAL)
    assert reported()[ROUTINE_LINES:] == [f"{mac(9)} kernel ok: kernel sent", f"{mac(9)} dhcp refused: no DHCP answer"]


def test_storm_of_refusals_is_bounded_and_its_sum_is_a_warning(journey, caplog):
    storm(journey, WARNING_LINES + 50, REFUSAL)
    journey.flush()
    assert len(caplog.records) == WARNING_LINES + 1
    last = caplog.records[-1]
    assert last.levelno == logging.WARNING
    assert last.__dict__["fields"] == {"step": "dhcp", "outcome": "refused", "events": 50, "machines": 50}
    caplog.clear()
    caplog.set_level(logging.WARNING, logger="edge.journey")
    storm(journey, ROUTINE_LINES + 10)
    journey.flush()
    assert caplog.records == [], "a quiet level costs no lines"


@pytest.mark.looptime
async def test_end_of_each_storm_is_logged_without_further_events(journey, reported):
    for number in (1, 2):
        storm(journey, ROUTINE_LINES + 5)
        await elapse(PERIOD_SECONDS)
        assert len(reported()) == number * (ROUTINE_LINES + 1)
        assert reported()[-1].startswith("5 more dhcp events")


def test_clock_that_was_set_back_silences_nothing(journey, clock, reported):
    storm(journey, ROUTINE_LINES + 1)
    clock.now += 10
    storm(journey, ROUTINE_LINES)
    clock.now -= 3600
    before = len(reported())
    storm(journey, 3)
    assert len(reported()) == before + 3


# --- after a restart: the journey in files, whatever killed the edge or broke the disk ---


class Run:
    """One run of an edge after the other, with a clock that a test moves."""

    def __init__(self, data_dir: Path, clock: Any, **bounds: int) -> None:
        self.clock = clock
        clock.now += 10
        self.journey = Journey(clock, began=clock.now)
        self.archive = Archive(self.journey, data_dir, clock, **bounds)

    async def step(self, message: str, mac: str = MAC, **detail: str | int) -> None:
        self.clock.now += 1
        self.journey.record(mac, Step.DHCP, Outcome.OK, message, **detail)
        self.clock.now += 1
        await self.archive.write()

    def logged(self, mac: str = MAC) -> list[str]:
        return [event.message for event in self.journey.events(mac)]


async def restarted(data_dir: Path, clock: Any, **bounds: int) -> Run:
    run = Run(data_dir, clock, **bounds)
    await run.archive.restore()
    return run


async def test_after_a_restart_the_journey_goes_on_where_it_was(tmp_path, clock):
    first = Run(tmp_path, clock)
    await first.step("one", stage="iPXE", size_bytes=7)
    await first.step("two")
    await first.step("of another", OTHER)
    second = await restarted(tmp_path, clock)
    await second.step("three")
    third = await restarted(tmp_path, clock)
    assert third.logged() == ["one", "two", "three"]
    assert third.logged(OTHER) == ["of another"]
    assert third.journey.events(MAC)[:3] == [*first.journey.events(MAC), *second.journey.events(MAC)[2:]]
    assert third.journey.last_seen(MAC) == second.journey.last_seen(MAC)


async def test_events_of_an_earlier_run_cause_no_diagnosis(tmp_path, clock):
    first = Run(tmp_path, clock)
    await first.step("one")
    second = Run(tmp_path, clock)
    asker = second.journey.changes()
    await second.archive.restore()
    assert asker.take() == set()
    await second.step("two")
    assert [event.message for event in second.journey.newest(MAC, 10)] == ["two"]
    assert [event.message for event in second.journey.newest(MAC, 10, earlier=True)] == ["one", "two"]
    assert sum(second.journey.counts().values()) == 1


@pytest.mark.parametrize("cut", [1, 5, 20, 40])
async def test_incomplete_piece_after_a_crash_costs_that_piece_alone(tmp_path, clock, cut):
    first = Run(tmp_path, clock)
    await first.step("one")
    await first.step("two")
    file = tmp_path / DIRECTORY / "events"
    os.truncate(file, file.stat().st_size - cut)
    second = await restarted(tmp_path, clock)
    assert second.logged() == ["one"]
    await second.step("three")
    assert (await restarted(tmp_path, clock)).logged() == ["one", "three"]


async def test_damaged_file_is_ignored_and_logged(tmp_path, clock, caplog):
    first = Run(tmp_path, clock)
    await first.step("one")
    file = tmp_path / DIRECTORY / "events"
    content = bytearray(file.read_bytes())
    content[-1] ^= 255
    file.write_bytes(content)
    assert (await restarted(tmp_path, clock)).logged() == []
    assert "is damaged" in caplog.text
    file.write_bytes(b"something else")
    second = await restarted(tmp_path, clock)
    assert "another release" in caplog.text
    await second.step("two")
    assert (await restarted(tmp_path, clock)).logged() == ["two"]


async def test_files_are_for_their_owner_alone_and_a_link_to_elsewhere_is_not_followed(tmp_path, clock):
    mask = os.umask(0)
    try:
        await Run(tmp_path, clock).step("one")
    finally:
        os.umask(mask)
    file = tmp_path / DIRECTORY / "events"
    assert [path.stat().st_mode & 0o777 for path in (file.parent, file)] == [0o700, 0o600]
    file.unlink()
    (tmp_path / "elsewhere").write_text("precious")
    file.symlink_to(tmp_path / "elsewhere")
    run = await restarted(tmp_path, clock)
    await run.step("one")
    assert (tmp_path / "elsewhere").read_text() == "precious"


async def test_files_are_bounded_and_have_the_newest_events(tmp_path, clock):
    run = Run(tmp_path, clock, max_bytes=2000)
    for number in range(200):
        await run.step(f"{number} {os.urandom(20).hex()}")
    files = {file.name: file.stat().st_size for file in (tmp_path / DIRECTORY).iterdir()}
    assert set(files) <= {"events", "before"}
    assert max(files.values()) < 2300
    logged = (await restarted(tmp_path, clock)).logged()
    assert logged == run.logged()[-len(logged) :]
    assert len(logged) > 10


async def test_unwritable_disk_is_logged_once_and_the_edge_serves_on(tmp_path, clock, caplog):
    (tmp_path / DIRECTORY).write_text("no directory")
    run = Run(tmp_path, clock)
    await run.step("one")
    await run.step("two")
    assert caplog.text.count("journeys are not stored for the next start") == 1
    assert run.logged() == ["one", "two"]


@pytest.mark.parametrize(
    "found",
    [
        None,
        [],
        {"time": 1},
        [1, MAC, "dhcp", "ok", "message"],
        ["now", MAC, "dhcp", "ok", "message", {}],
        [float("nan"), MAC, "dhcp", "ok", "message", {}],
        [1, "no mac", "dhcp", "ok", "message", {}],
        [1, MAC, "elsewhere", "ok", "message", {}],
        [1, MAC, ["dhcp"], "ok", "message", {}],
        [1, MAC, "dhcp", "ok", 7, {}],
        [1, MAC, "dhcp", "ok", "message", []],
    ],
)
def test_invalid_event_is_rejected(found):
    assert read(found) is None


def test_event_of_another_process_is_bounded_like_an_own_one():
    detail = {"text": "x" * 10_000, "a b": 1, "list": [1], "none": None, "great": 2**80, "fine": 1.5}
    found = read(
        [1, MAC, "dhcp", "ok", "line\nbreak \x1b[31m" + "x" * 10_000, detail | {f"n{n}": n for n in range(99)}]
    )
    note = found[2]
    assert len(note.message) == 500
    assert "\n" not in note.message
    assert "\x1b" not in note.message
    assert len(note.detail) == 40
    assert {"a b", "list", "none", "great"}.isdisjoint(note.detail)
    assert len(str(note.detail["text"])) == 4000
