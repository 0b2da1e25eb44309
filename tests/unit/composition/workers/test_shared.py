"""Two workers say the same thing once, and know what went wrong in the other."""

from __future__ import annotations

from typing import Any

from edge.composition.workers.inbox import Inbox
from edge.composition.workers.messages import Event, LogsWanted
from edge.composition.workers.shared import SharedFailures, SharedOnce
from edge.journey.events import Outcome, Step


def test_what_one_worker_has_said_the_other_does_not() -> None:
    told: list[list[Any]] = []
    one, other = SharedOnce(60, 10, told.append), SharedOnce(60, 10, told.append)
    assert one.due(("metadata", "m1", None), 0)
    assert told == [["metadata", "m1", None]]
    other.heard(told[0], 0)
    assert not other.due(("metadata", "m1", None), 1)
    assert other.due(("metadata", "m1", None), 61), "after the interval it is news again"
    assert len(told) == 2, "what is heard is not handed on"


def test_why_a_file_did_not_come_is_known_to_all_until_it_came() -> None:
    told: list[tuple[str, str]] = []
    one = SharedFailures(10, lambda mac, reason: told.append((mac, reason)))
    other = SharedFailures(10, lambda mac, reason: told.append((mac, reason)))
    one["m1"] = "404"
    other.heard(*told.pop())
    assert other.get("m1") == "404"
    assert other.pop("m1", None) == "404"
    one.heard(*told.pop())
    assert "m1" not in one
    assert one.pop("m1", None) is None
    assert told == [], "nothing is said of what was not known"


async def test_what_workers_saw_in_one_turn_is_recorded_by_its_time() -> None:
    seen: list[str] = []

    def record(_mac: str, _step: Step, _outcome: Outcome, message: str, **_: object) -> None:
        seen.append(message)

    wanted: list[int] = []
    inbox = Inbox(record, lambda: wanted.append(1), lambda _sock, _received: None)
    worker: Any = None
    inbox.heard(worker, Event(2.0, "m", "kernel", "ok", "second", {}), [])
    inbox.heard(worker, Event(1.0, "m", "script", "ok", "first", {}), [])
    inbox.heard(worker, LogsWanted(), [])
    assert seen == []
    inbox.flush()
    assert seen == ["first", "second"]
    assert wanted == [1]
