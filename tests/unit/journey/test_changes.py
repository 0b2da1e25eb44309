"""Several who ask which machines changed."""

from __future__ import annotations

from edge.journey.changes import Changes
from edge.journey.events import Outcome, Step
from edge.journey.recorder import Journey


def test_each_who_asks_hears_of_each_machine_once() -> None:
    changes = Changes()
    one, other = changes.subscribe(), changes.subscribe()
    changes.mark("a")
    changes.mark("a")
    assert one.take() == {"a"}
    changes.mark("b")
    assert one.take() == {"b"}
    assert other.take() == {"a", "b"}
    assert other.take() == set()


def test_who_asks_later_hears_of_what_happens_then() -> None:
    changes = Changes()
    one = changes.subscribe()
    changes.mark("a")
    late = changes.subscribe()
    changes.mark("b")
    assert (one.take(), late.take()) == ({"a", "b"}, {"b"})


def test_nothing_is_kept_for_nobody() -> None:
    changes = Changes()
    changes.mark("a")
    pending = changes.subscribe()
    changes.mark("b")
    pending.close()
    pending.close()
    changes.mark("c")
    assert (changes.marked, changes.subscribers) == (set(), [])


def test_journey_tells_of_machines_to_which_something_happened() -> None:
    journey = Journey(lambda: 1.0)
    journey.record("a", Step.DHCP, Outcome.OK, "before")
    pending = journey.changes()
    assert pending.take() == set()
    journey.record("b", Step.DHCP, Outcome.OK, "after")
    assert pending.take() == {"b"}


def test_what_is_said_of_a_machines_silence_is_no_sign_of_life() -> None:
    times = iter(range(10))
    journey = Journey(lambda: float(next(times)))
    journey.record("a", Step.DHCP, Outcome.OK, "offer")
    journey.record("a", Step.DHCP, Outcome.WARNING, "silent")
    last, sign = journey.last_entry("a"), journey.last_sign("a")
    assert last is not None
    assert sign is not None
    assert (last.time, sign.time) == (1.0, 0.0)
    assert journey.last_sign("b") is None
