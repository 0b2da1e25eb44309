"""What this process has seen of machines, told to the edges of the site: each of them knows where every machine is.

    what happened here (`edge.journey.news`) --once a second, signed--> every edge: its journey, page, `tinkedge watch`

An edge tells what its machines did, a server what their agents did. What all of them hear from the API (Workflows) is
told by nobody. An edge that comes, or comes back, is told of the last day first. Everything is bounded: what one is
told in a second, and how many events of a machine that are; who can't keep up misses older events of that machine.
While an edge is away nothing is kept for it but the names of the machines that did something.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

import orjson

from edge.journey.history import Entry, detail_of, is_from_elsewhere, step_of
from edge.journey.news import News
from edge.journey.recorder import Journey
from edge.journey.records import Happened, plain
from edge.journey.steps import Step
from edge.peers.calls import CallError, Calls, RefusedError
from edge.peers.counts import Counts
from edge.peers.messages import MAX_TOLD_BYTES, MAX_TOLD_EVENTS
from tink.limits.once_per import OncePer

log = logging.getLogger(__name__)

TURN_SECONDS: Final = 1.0
QUIET_SECONDS: Final = 5.0
"""After so long without news it is told that there are none: who tells is there."""
PAST_SECONDS: Final = 86_400.0
"""What an edge is told first is no older."""
EVENTS_OF_A_MACHINE: Final = 60
"""So many of the newest events of one machine are told at a time."""
EVENTS: Final = 500
"""So many one edge is told in a turn: a storm costs who hears of it a hundredth of a processor or two."""
REST_SECONDS: Final = 15.0
"""After that long one is tried again that could not be told."""
MAX_EDGES: Final = 32
_MAX_EVENT: Final = 64 << 10
_SHORT: Final = 200
_ROOM: Final = MAX_TOLD_BYTES - 1024
_SAY_AGAIN_SECONDS: Final = 300.0


@dataclass(slots=True)
class _Told:
    """One edge. Times are monotonic."""

    news: News
    waiting: list[bytes] = field(default_factory=list)
    last: float = float("-inf")
    not_before: float = float("-inf")


class Telling:
    """`run` it. Belongs to one event loop."""

    def __init__(
        self,
        journey: Journey,
        calls: Calls,
        kind: Literal["edge", "server"],
        name: Callable[[], str],
        edges: Callable[[], Iterable[str]],
        counts: Counts,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`name()` is what people know this process by; `edges()` gives the `address:port` of those that are to be
        told. `clock` gives monotonic seconds, `now` those of the journey."""
        self._journey = journey
        self._calls = calls
        self._kind = kind
        self._name = name
        self._edges = edges
        self._counts = counts
        self._clock = clock
        self._now = now
        self._told: dict[str, _Told] = {}
        self._said = OncePer(_SAY_AGAIN_SECONDS, capacity=256)

    async def run(self) -> None:
        """Tell for ever."""
        try:
            while True:
                began = self._clock()
                await self.turn()
                await asyncio.sleep(max(0.0, TURN_SECONDS - (self._clock() - began)))
        finally:
            for told in self._told.values():
                told.news.close()

    async def turn(self) -> None:
        """Tell each edge what it does not know yet."""
        edges = sorted(set(self._edges()))[:MAX_EDGES]
        for gone in self._told.keys() - set(edges):
            self._told.pop(gone).news.close()
        for edge in edges:
            if edge not in self._told:
                self._told[edge] = _Told(self._from_the_past())
        await asyncio.gather(*(self._tell(edge, told) for edge, told in self._told.items()))

    def _from_the_past(self) -> News:
        since = self._now() - PAST_SECONDS
        return News(self._journey, is_told, self._now, since=since, at_once=EVENTS_OF_A_MACHINE)

    async def _tell(self, edge: str, told: _Told) -> None:
        if self._clock() < told.not_before:
            return
        if not told.waiting:
            told.waiting = await self._gathered(told.news)
        if not told.waiting and self._clock() - told.last < QUIET_SECONDS:
            return
        try:
            await self._calls.tell(edge, self._message(told.waiting))
        except CallError as error:
            self._failed(edge, told, error)
            return
        self._counts.told += len(told.waiting)
        told.waiting, told.last = [], self._clock()

    def _failed(self, edge: str, told: _Told, error: CallError) -> None:
        told.not_before = self._clock() + REST_SECONDS
        self._counts.untold += 1
        if isinstance(error, RefusedError):  # it is started again, and may know nothing of what it was told
            told.news.close()
            told.news, told.waiting = self._from_the_past(), []
        if self._said.due((edge, str(error)), self._clock()):
            log.warning("the edge at %s can't be told what machines do: %s", edge, error)

    async def _gathered(self, news: News) -> list[bytes]:
        """As much as one message has room for."""
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
        return _fitting(found)

    def _message(self, events: list[bytes]) -> bytes:
        head = orjson.dumps({"kind": self._kind, "name": self._name(), "now": float(self._now())})
        return head[:-1] + b',"events":[' + b",".join(events) + b"]}"


def is_told(entry: Entry) -> bool:
    """Whether others do not know it anyway."""
    step = step_of(entry)
    if step is Step.WORKFLOW or is_from_elsewhere(entry):
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


def _fitting(events: list[bytes]) -> list[bytes]:
    """The newest of them that fit; what is older is missed."""
    room, kept = _ROOM, 0
    for text in reversed(events):
        room -= len(text) + 1
        if room < 0 or kept >= MAX_TOLD_EVENTS:
            break
        kept += 1
    return events[len(events) - kept :]
