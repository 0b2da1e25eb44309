"""What has happened since somebody took it last, one after the other: for a file, and for other edges.

Who records an event does nothing for that but put a MAC into a set (`edge.journey.changes`). Of the machines in it the
entries are looked up that are younger than the last time. Belongs to one event loop.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

from edge.journey.changes import PendingChanges
from edge.journey.history import Entry
from edge.journey.recorder import Journey
from edge.journey.records import Happened

AT_ONCE: Final = 200
"""So many of the newest events of one machine are taken; of more at a time, the older ones are skipped."""


class News:
    """`close` it after use."""

    def __init__(
        self,
        journey: Journey,
        wanted: Callable[[Entry], bool],
        clock: Callable[[], float],
        *,
        since: float | None = None,
        at_once: int = AT_ONCE,
        asker: PendingChanges | None = None,
    ) -> None:
        """Entries that are `wanted`; from `since` on (seconds since the epoch), None: from now on. `clock` is the
        journey's; `asker` knows of which machines, if not of all."""
        self._journey = journey
        self._wanted = wanted
        self._clock = clock
        self._at_once = at_once
        self._since = clock()
        self._pending = asker or journey.changes()
        self._waiting: OrderedDict[str, float] = OrderedDict()
        """The machines whose entries are to be taken, and from when on."""
        if since is not None:
            self._waiting.update(dict.fromkeys(reversed(journey.macs()), since))

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self) -> Iterator[list[Happened]]:
        """What there is, the entries of one machine at a time. Who stops in between has the others the next time."""
        now = self._clock()
        since, self._since = min(self._since, now), now
        for mac in self._pending.take():
            self._waiting.setdefault(mac, since)
        while self._waiting:
            mac, begin = self._waiting.popitem(last=False)
            found = self._journey.after(mac, begin, self._at_once)
            happened = [Happened(time, mac, entry) for time, entry in found if self._wanted(entry)]
            if happened:
                yield happened

    def close(self) -> None:
        """Hear of nothing any more."""
        self._pending.close()
        self._waiting.clear()
