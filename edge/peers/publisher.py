"""Journey events between the edges and servers of a site, so that each edge knows the journey of every machine.

    EventPublisher   journey of this process --batches, once a second, signed--> every edge of the site
    EventReceiver    batches of other edges and servers --> journey of this edge, its page, `tinkedge watch`
    server_publisher the same for a gRPC server that runs apart from the edges

An edge publishes the steps of its machines, a server those of its agents. Workflow events are not published: every
process reads them from the API. A new edge, or one that was restarted, first gets the last day. The events per second
and per machine are bounded; an edge that can't keep up misses older events of a machine. While an edge does not answer,
only the MACs of machines with new events are stored for it.

A received event keeps its time, corrected if the sender's clock is off by seconds, so that all edges show one order.
Its detail `seen_by`, which only the receiver writes, names the sender. A received event is not forwarded, logged or
counted.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

import orjson

from edge.journey.events import REPORTED_BY_API, Milestone, Note, Step
from edge.journey.history import (
    PLACE,
    SEEN_BY,
    SERVER,
    Entry,
    Happened,
    detail_of,
    is_from_elsewhere,
    milestone,
    pack,
    packed_bytes,
    plain,
    read,
    step_of,
)
from edge.journey.recorder import Journey, News
from edge.peers.calls import CallError, Calls, NotListeningError
from edge.peers.messages import HAPPENED, MAX_BATCH_BYTES, MAX_BATCH_EVENTS, BatchReceipt, EventBatch, Signatures
from tink.files.key_file import KeyFile
from tink.limits import Newest, OncePer

log = logging.getLogger(__name__)

TURN_SECONDS: Final = 1.0
QUIET_SECONDS: Final = 5.0
"""Interval of empty batches, which show that this process lives."""
PAST_SECONDS: Final = 86_400.0
"""Maximum age of the events that a new edge gets."""
EVENTS_OF_A_MACHINE: Final = 60
"""Maximum number of events of one machine in a turn, the newest."""
EVENTS: Final = 500
"""Maximum number of events for one edge in a turn: it costs the receiver 1 or 2 % of a processor."""
REST_SECONDS: Final = 15.0
"""Pause before the next attempt to reach an edge that did not answer."""
MAX_EDGES: Final = 32
_MAX_EVENT: Final = 64 << 10
_SHORT: Final = 200
_ROOM: Final = MAX_BATCH_BYTES - 1024
_SAY_AGAIN_SECONDS: Final = 300.0


@dataclass(slots=True)
class _Subscriber:
    """An edge that gets the events of this process. Times are monotonic."""

    news: News
    waiting: list[bytes] = field(default_factory=list)
    last: float = float("-inf")
    not_before: float = float("-inf")


@dataclass(eq=False)
class EventPublisher:
    """Sends new journey events to the other edges. `run` it. Belongs to one event loop.

    name: returns the name of this process for people.
    edges: returns the `address:port` of the receivers.
    clock: returns monotonic seconds.
    now: returns the time of the journey.
    """

    journey: Journey
    calls: Calls
    kind: Literal["edge", "server"]
    name: Callable[[], str]
    edges: Callable[[], Iterable[str]]
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._subscribers: dict[str, _Subscriber] = {}
        self._logged = OncePer(_SAY_AGAIN_SECONDS, capacity=256)

    async def run(self) -> None:
        """Publish until cancelled."""
        try:
            while True:
                began = self.clock()
                await self.turn()
                await asyncio.sleep(max(0.0, TURN_SECONDS - (self.clock() - began)))
        finally:
            for subscriber in self._subscribers.values():
                subscriber.news.close()

    async def turn(self) -> None:
        """Send each edge the events that it has not received yet."""
        edges = sorted(set(self.edges()))[:MAX_EDGES]
        for gone in self._subscribers.keys() - set(edges):
            self._subscribers.pop(gone).news.close()
        for edge in edges:
            if edge not in self._subscribers:
                self._subscribers[edge] = _Subscriber(self._from_the_past())
        await asyncio.gather(*(self._publish(edge, subscriber) for edge, subscriber in self._subscribers.items()))

    def _from_the_past(self) -> News:
        since = self.now() - PAST_SECONDS
        return News(self.journey, is_published, self.now, since=since, at_once=EVENTS_OF_A_MACHINE)

    async def _publish(self, edge: str, subscriber: _Subscriber) -> None:
        if self.clock() < subscriber.not_before:
            return
        if not subscriber.waiting:
            subscriber.waiting = await self._gathered(subscriber.news)
        if not subscriber.waiting and self.clock() - subscriber.last < QUIET_SECONDS:
            return
        try:
            head = orjson.dumps({"kind": self.kind, "name": self.name(), "now": float(self.now())})
            batch = head[:-1] + b',"events":[' + b",".join(subscriber.waiting) + b"]}"
            await self.calls.send(edge, HAPPENED, batch, BatchReceipt)
        except CallError as error:
            subscriber.not_before = self.clock() + REST_SECONDS
            self.calls.counts.failed_batches += 1
            if isinstance(error, NotListeningError):  # The edge restarts, and may have lost the events.
                subscriber.news.close()
                subscriber.news, subscriber.waiting = self._from_the_past(), []
            if self._logged.due((edge, str(error)), self.clock()):
                log.warning("the edge at %s can't be told what machines do: %s", edge, error)
            return
        self.calls.counts.sent += len(subscriber.waiting)
        subscriber.waiting, subscriber.last = [], self.clock()

    async def _gathered(self, news: News) -> list[bytes]:
        """Return encoded events for one batch."""
        found: list[bytes] = []
        room = _ROOM
        for number, happened in enumerate(news.take(), start=1):
            for each in happened:
                text = _encoded(each)
                room -= len(text) + 1
                found.append(text)
            if room < EVENTS_OF_A_MACHINE * 1000 or len(found) > EVENTS - EVENTS_OF_A_MACHINE:
                break
            if number % 50 == 0:
                await asyncio.sleep(0)
        # The newest events that fit into a batch; older ones are dropped.
        room, kept = _ROOM, 0
        for text in reversed(found):
            room -= len(text) + 1
            if room < 0 or kept >= MAX_BATCH_EVENTS:
                break
            kept += 1
        return found[len(found) - kept :]


def is_published(entry: Entry) -> bool:
    """Return True if the other edges can't know this event from the API or from its source."""
    step = step_of(entry)
    if step in REPORTED_BY_API or step is Step.WORKFLOW or is_from_elsewhere(entry):
        return False
    return step is not Step.ACTION or "state" not in dict(detail_of(entry))


def _encoded(happened: Happened) -> bytes:
    found = plain(happened)
    text = orjson.dumps(found)
    if len(text) > _MAX_EVENT:
        found[5] = {
            name: value for name, value in found[5].items() if not isinstance(value, str) or len(value) <= _SHORT
        }
        text = orjson.dumps(found)
    return text


MAX_PUBLISHERS: Final = 64
SKEW_SECONDS: Final = 3.0
"""Clocks that differ by less are treated as equal."""
NEW_SECONDS: Final = 600.0
"""Maximum age of a received event that counts as a change of its machine."""
LIVING_SECONDS: Final = 15.0
LATE_SECONDS: Final = 10.0
"""Maximum delay of another edge's offer."""
_OFFERS: Final = frozenset({Milestone.OFFERED, Milestone.IPXE_OFFERED, Milestone.OS_OFFERED})
_LOOKED_AT: Final = 50
_PORTION: Final = 50
_OF_SERVERS: Final = frozenset({Step.AGENT, Step.ACTION})
"""The steps that a server may report."""


@dataclass(frozen=True, slots=True)
class Publisher:
    """Another process of the site that publishes: when it was last heard (monotonic seconds) and its new events."""

    kind: str
    name: str
    heard: float
    events: int


@dataclass(eq=False)
class EventReceiver:
    """Takes the events of other edges and servers into this edge's journey. Belongs to one event loop.

    `kept(event)` is called for each new event. `clock` returns monotonic seconds, `now` the journey's time.
    """

    journey: Journey
    kept: Callable[[Happened], None] = lambda _: None
    clock: Callable[[], float] = lambda: 0.0
    now: Callable[[], float] = lambda: 0.0
    _publishers: Newest[tuple[str, str], Publisher] = field(default_factory=lambda: Newest(MAX_PUBLISHERS), init=False)

    @property
    def publishers(self) -> list[Publisher]:
        """The processes that were heard within LIVING_SECONDS, by kind and name."""
        since = self.clock() - LIVING_SECONDS
        return sorted(
            (each for each in self._publishers.values() if each.heard >= since), key=lambda each: (each.kind, each.name)
        )

    async def take(self, batch: EventBatch) -> int:
        """Take in a batch and return the number of new events. Yields to the event loop in between."""
        now, taken = self.now(), 0
        ahead = batch.now - now
        shift = -ahead if abs(ahead) > SKEW_SECONDS else 0.0
        for number, found in enumerate(batch.events, start=1):
            taken += self._take(found, batch, shift, now)
            if number % _PORTION == 0:
                await asyncio.sleep(0)
        before = self._publishers.get((batch.kind, batch.name))
        events = taken + (before.events if before is not None else 0)
        self._publishers[batch.kind, batch.name] = Publisher(batch.kind, batch.name, self.clock(), events)
        return taken

    def _take(self, found: object, batch: EventBatch, shift: float, now: float) -> bool:
        event = read(found)
        if event is None:
            return False
        time, mac, note = event
        if batch.kind == SERVER and note.step not in _OF_SERVERS:
            return False
        time = min(time + shift, now)
        if note.milestone in _OFFERS and self._has_gone_on(mac, time, batch.name):
            return False
        detail = {name: value for name, value in note.detail.items() if name not in (SEEN_BY, PLACE)}
        detail |= {SEEN_BY: batch.name, PLACE: batch.kind}
        note = Note(note.step, note.outcome, note.message, detail, kept_bytes=packed_bytes(note.message, detail))
        if not self.journey.take_in(mac, time, note, now=now - time < NEW_SECONDS):
            return False
        self.kept(Happened(time, mac, pack(note)))
        return True

    def _has_gone_on(self, mac: str, time: float, name: str) -> bool:
        """Return True if the machine was past its offers then: all edges offer, and a late offer starts no new boot."""
        for at, entry in self.journey.after(mac, time - LATE_SECONDS, _LOOKED_AT):
            reached = milestone(entry)
            if (
                at <= time
                and reached is not None
                and reached not in _OFFERS
                and dict(detail_of(entry)).get(SEEN_BY) != name
            ):
                return True
        return False


_NO_NAME = re.compile(r"[^A-Za-z0-9._:-]")


def server_publisher(
    journey: Journey, keys: KeyFile, host: str, edges: Callable[[], Iterable[str]], now: Callable[[], float]
) -> EventPublisher:
    """Return the publisher of a gRPC server that runs apart from the edges. The server answers no edge.

    `keys` sign; `host` is the name of this host; `now` returns Unix seconds. Start `calls` of the result before use.
    """
    spelled = _NO_NAME.sub("-", host)[:63] or "server"
    return EventPublisher(journey, Calls(Signatures(keys, now)), SERVER, lambda: spelled, edges, now=now)
