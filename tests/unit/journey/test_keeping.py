"""What the journey keeps, against a naive model that keeps everything."""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from edge.journey.events import MAX_DETAIL, JourneyEvent, Note, Outcome, Step
from edge.journey.history import kept_bytes
from edge.journey.recorder import Journey

OFFER = Note(Step.DHCP, Outcome.OK, "DHCPOFFER", {"address": "10.0.0.1"})

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
    """A journey, and a list of all that it was ever told."""

    def __init__(self, **bounds: int) -> None:
        times = count(1_000)
        self.journey = Journey(lambda: float(next(times)), **bounds)
        self.told: list[JourneyEvent] = []

    def tell(self, number: int, happening: Happening) -> None:
        mac, step, prepared = happening
        if prepared:
            self.journey.note(mac, PREPARED[step])
            message, detail = f"prepared {step}", {"client": "ROM"}
        else:
            self.journey.record(mac, step, Outcome.OK, f"told {number}", number=number)
            message, detail = f"told {number}", {"number": number}
        self.told.append(JourneyEvent(1_000.0 + number, mac, step, Outcome.OK, message, detail))

    def of(self, mac: str) -> list[JourneyEvent]:
        return [event for event in self.told if event.mac == mac]


@given(happenings)
@settings(max_examples=100, deadline=None)
def test_with_room_for_all_each_machine_keeps_its_newest_events(happened: list[Happening]) -> None:
    kept = Kept(per_machine=5, machines=8, strangers=8)
    for number, happening in enumerate(happened):
        kept.tell(number, happening)
        assert kept.journey.events(happening.mac) == kept.of(happening.mac)[-5:]
    macs = {event.mac for event in kept.told}
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
        assert counted == sum(1 for event in kept.told if (event.step, event.outcome) == (step, outcome))


@given(
    happenings,
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, 3),
    st.one_of(st.integers(0, 4_000), st.just(10**9)),
)
@settings(max_examples=300, deadline=None)
def test_whatever_is_short_the_newest_is_kept_and_the_bounds_hold(
    happened: list[Happening], per_machine: int, machines: int, strangers: int, memory_bytes: int
) -> None:
    kept = Kept(per_machine=per_machine, machines=machines, strangers=strangers, memory_bytes=memory_bytes)
    journey = kept.journey
    for number, happening in enumerate(happened):
        kept.tell(number, happening)
        known = journey.machines()
        heard = [machine for machine in known if machine.only_heard]
        assert len(heard) <= strangers
        assert len(known) - len(heard) <= machines
        for machine in known:
            events, own = journey.events(machine.mac), kept.of(machine.mac)
            assert 1 <= len(events) <= per_machine
            assert events == own[-len(events) :]
            assert machine.last == own[-1]
        if memory_bytes > 3_000:  # room for a few events: that of now is among them
            assert journey.events(happening.mac)[-1] == kept.told[-1]
        assert sorted(machine.mac for machine in known) == sorted({event.mac for event in journey.past()})
        histories = (*journey._histories.values(), *journey._strangers.values())
        assert all(len(history) == len(history.times) for history in histories)
        held = [entry for history in histories for entry in history]
        held += [quiet.entry for quiet in journey._quiet.values()]
        assert journey.kept_bytes == sum(map(kept_bytes, held))
        of_strangers = sum(kept_bytes(entry) for history in journey._strangers.values() for entry in history)
        assert journey.kept_bytes <= max(memory_bytes, of_strangers)


def test_when_memory_is_short_quiet_machines_keep_where_they_are() -> None:
    journey = Journey(lambda: 0.0, memory_bytes=32 * 100)
    for mac in ("quiet", "busy"):
        for _ in range(30):
            journey.note(mac, OFFER)
    journey.record("quiet", Step.WORKFLOW, Outcome.OK, "succeeded")
    for _ in range(50):
        journey.note("busy", OFFER)
    assert [event.message for event in journey.events("quiet")] == ["succeeded"]
    assert len(journey.events("busy")) == 80


def test_machine_that_wakes_up_goes_on_where_it_was() -> None:
    times = count(1)
    journey = Journey(lambda: float(next(times)), memory_bytes=32 * 10)
    for _ in range(5):
        journey.note("sleeper", OFFER)
    for _ in range(6):
        journey.note("busy", OFFER)
    assert len(journey.events("sleeper")) == 1
    journey.note("sleeper", OFFER)
    assert [event.time for event in journey.events("sleeper")] == [5.0, 12.0]
    summary = journey.summary("sleeper")
    assert summary is not None
    assert summary.first_seen == 1.0


def test_when_machines_are_too_many_one_that_made_room_before_goes_first() -> None:
    journey = Journey(lambda: 0.0, machines=2, memory_bytes=32 * 10)
    for mac in ("first", "second"):
        for _ in range(6):
            journey.note(mac, OFFER)
    journey.note("third", OFFER)
    assert {machine.mac for machine in journey.machines()} == {"second", "third"}


def test_one_event_costs_a_bounded_search_however_many_machines_were_active() -> None:
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

    journey._histories = Counted(journey._histories)  # type: ignore[assignment]
    journey.note("1", OFFER)
    assert looks <= 20


def test_stranger_that_is_heard_again_and_again_keeps_few_manifests() -> None:
    journey = Journey(lambda: 0.0)
    for _ in range(1_000):
        journey.record("02:00:00:00:00:01", Step.SEEN, Outcome.INFO, "seen", manifest="x" * 9_999)
    assert len(journey.events("02:00:00:00:00:01")) == 20
    assert journey.kept_bytes < 30 * (MAX_DETAIL + 1_000)


def test_prepared_note_is_cut_as_told_ones_are() -> None:
    journey = Journey(lambda: 0.0)
    journey.note("m", Note(Step.SEEN, Outcome.INFO, "line\nbreak", {"manifest": "x" * 9_999, "size_bytes": 3}))
    (event,) = journey.events("m")
    assert event.message == "line break"
    assert len(str(event.detail["manifest"])) == MAX_DETAIL
    assert journey.sent_bytes()[Step.SEEN] == 3.0


def test_long_texts_of_an_event_count_as_memory() -> None:
    journey = Journey(lambda: 0.0)
    journey.record("m", Step.AGENT, Outcome.OK, "x", short="y")
    short = journey.kept_bytes
    journey.record("m", Step.AGENT, Outcome.OK, "x" * 100, short="y" * 1_000)
    assert journey.kept_bytes - short == short + 99 + 999
