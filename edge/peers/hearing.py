"""What other edges and servers of the site have seen of machines, taken into this edge's journey; and who they are.

An event keeps the time at which it was seen, so that all edges have the same order of what happened; where the other
clock is off by seconds, that is allowed for. It says who has seen it: `seen_by` in its detail, which nobody but this
writes. It is told to nobody else, said in no log and counted nowhere but where it was seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from edge.journey.events import Note
from edge.journey.history import PLACE, SEEN_BY, SERVER, detail_of, milestone, pack, packed_bytes
from edge.journey.recorder import Journey
from edge.journey.records import Happened, read
from edge.journey.steps import Milestone, Step
from edge.peers.messages import Told
from tink.limits.newest import Newest

MAX_TELLERS: Final = 64
SKEW_SECONDS: Final = 3.0
"""Clocks that are less apart are taken to agree."""
NEW_SECONDS: Final = 600.0
"""What is older is history, and no ground for anything."""
LIVING_SECONDS: Final = 15.0
LATE_SECONDS: Final = 10.0
"""So late an offer may be."""
_OFFERS: Final = frozenset({Milestone.OFFERED, Milestone.IPXE_OFFERED, Milestone.OS_OFFERED})
_LOOKED_AT: Final = 50
_PORTION: Final = 50
_OF_SERVERS: Final = frozenset({Step.AGENT, Step.ACTION})
"""What servers can know."""


@dataclass(frozen=True, slots=True)
class Teller:
    """Another process of the site. `heard`: monotonic seconds; `events` that were news, since it was heard first."""

    kind: str
    name: str
    heard: float
    events: int


class Hearing:
    """Belongs to one event loop."""

    def __init__(
        self,
        journey: Journey,
        kept: Callable[[Happened], None] = lambda _: None,
        clock: Callable[[], float] = lambda: 0.0,
        now: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`kept(happened)` hears of what was news. `clock` gives monotonic seconds, `now` those of the journey."""
        self._journey = journey
        self._kept = kept
        self._clock = clock
        self._now = now
        self._tellers: Newest[tuple[str, str], Teller] = Newest(MAX_TELLERS)

    @property
    def tellers(self) -> list[Teller]:
        """Those that were heard a moment ago."""
        since = self._clock() - LIVING_SECONDS
        return sorted(
            (each for each in self._tellers.values() if each.heard >= since), key=lambda each: (each.kind, each.name)
        )

    async def take(self, told: Told) -> int:
        """Take it in; how much of it was news. Others have their turn in between."""
        now, taken = self._now(), 0
        ahead = told.now - now
        shift = -ahead if abs(ahead) > SKEW_SECONDS else 0.0
        for number, found in enumerate(told.events, start=1):
            taken += self._take(found, told, shift, now)
            if number % _PORTION == 0:
                await asyncio.sleep(0)
        before = self._tellers.get((told.kind, told.name))
        events = taken + (before.events if before is not None else 0)
        self._tellers[told.kind, told.name] = Teller(told.kind, told.name, self._clock(), events)
        return taken

    def _take(self, found: object, told: Told, shift: float, now: float) -> bool:
        event = read(found)
        if event is None:
            return False
        time, mac, note = event
        if told.kind == SERVER and note.step not in _OF_SERVERS:
            return False
        time = min(time + shift, now)
        if note.milestone in _OFFERS and self._has_gone_on(mac, time, told.name):
            return False
        detail = {name: value for name, value in note.detail.items() if name not in (SEEN_BY, PLACE)}
        detail |= {SEEN_BY: told.name, PLACE: told.kind}
        note = Note(note.step, note.outcome, note.message, detail, kept_bytes=packed_bytes(note.message, detail))
        if not self._journey.take_in(mac, time, note, now=now - time < NEW_SECONDS):
            return False
        self._kept(Happened(time, mac, pack(note)))
        return True

    def _has_gone_on(self, mac: str, time: float, name: str) -> bool:
        """Whether the machine was past its offers at that time: all edges offer, and a late one is no new boot."""
        for at, entry in self._journey.after(mac, time - LATE_SECONDS, _LOOKED_AT):
            reached = milestone(entry)
            if (
                at <= time
                and reached is not None
                and reached not in _OFFERS
                and dict(detail_of(entry)).get(SEEN_BY) != name
            ):
                return True
        return False
