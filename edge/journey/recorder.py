"""The journeys of all machines, in memory: what `edge.journey.events` describes is kept here and handed on.

Every server records into one `Journey` (its bound method `record` is the `Recorder`). From here each event goes to the
log (one line, logger `edge.journey`), to the machine's own history, to listeners (metrics) and to subscribers
(`tinkedge watch`, the admin HTTP API's stream, the lab's live view).

Everything is bounded, for much of what is recorded was said by strangers on the wire: so many events a machine, so many
machines, the unregistered ones (heard, but nothing more) in a pool of their own so that a flood of made-up addresses
cannot push the journey of a real machine out; a subscriber that reads too slowly loses the oldest events, and is told
how many. Not thread-safe: record from the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from edge.journey.events import JourneyEvent, Note, Outcome, Step, Value

log = logging.getLogger("edge.journey")

MAX_MESSAGE = 500
"""Characters of a message that are kept. Longer ones are cut: they were made of something a stranger sent."""

MAX_DETAIL = 4000
"""Characters of one detail that are kept; a Hardware manifest to copy fits."""

_LEVEL = {
    Outcome.OK: logging.INFO,
    Outcome.INFO: logging.INFO,
    Outcome.REFUSED: logging.WARNING,
    Outcome.FAILED: logging.WARNING,
}

Listener = Callable[[JourneyEvent], None]


@dataclass(frozen=True, slots=True)
class MachineSummary:
    """Where one machine is: its first and last sign of life (seconds since the epoch) and its last event."""

    mac: str
    first_seen: float
    last_seen: float
    last: JourneyEvent
    only_heard: bool
    """Whether nothing but `Step.SEEN` ever happened: the machine is not registered."""


class Journey:
    """Keeps the last `per_machine` events of the last `machines` machines, and of the last `strangers` unregistered."""

    def __init__(
        self, clock: Callable[[], float], *, per_machine: int = 500, machines: int = 10_000, strangers: int = 256
    ) -> None:
        """`clock` gives seconds since the epoch."""
        self._clock = clock
        self._per_machine = per_machine
        self._registered = _Pool(machines)
        self._strangers = _Pool(strangers)
        self._subscriptions: weakref.WeakSet[Subscription] = weakref.WeakSet()
        self._listeners: list[Listener] = []

    def record(self, mac: str, step: Step, outcome: Outcome, message: str, **detail: Value) -> None:
        """Take in one event (`edge.journey.events.Recorder`). Never raises, never blocks."""
        event = JourneyEvent(
            time=self._clock(),
            mac=mac,
            step=step,
            outcome=outcome,
            message=_one_line(message),
            detail={name: value[:MAX_DETAIL] if isinstance(value, str) else value for name, value in detail.items()},
        )
        log.log(
            _LEVEL[outcome], "%s %s %s: %s", mac, step.value, outcome.value, event.message, extra={"journey": event}
        )
        self._history(event).append(event)
        for subscription in list(self._subscriptions):
            subscription.push(event)
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                log.exception("a listener failed on a journey event of %s", mac)

    def note(self, mac: str, note: Note) -> None:
        """Take in a prepared event (`edge.journey.events.NoteTaker`). Never raises, never blocks."""
        self.record(mac, note.step, note.outcome, note.message, **note.detail)

    def on_event(self, listener: Listener) -> None:
        """Call `listener(event)` after each event, from the event loop."""
        self._listeners.append(listener)

    def subscribe(self, *, backlog: int = 1000) -> Subscription:
        """Events from now on, in order. At most `backlog` wait for the reader; then the oldest are dropped.

        The subscription ends when it is closed, or when the last reference to it goes.
        """
        subscription = Subscription(backlog, self._subscriptions.discard)
        self._subscriptions.add(subscription)
        return subscription

    def events(self, mac: str) -> list[JourneyEvent]:
        """What is known of one machine, oldest first; empty if nothing is."""
        history = self._registered.get(mac) or self._strangers.get(mac)
        return list(history.events) if history is not None else []

    def machines(self) -> list[MachineSummary]:
        """All machines heard of, the one heard last first."""
        known = [_summary(mac, history, only_heard=False) for mac, history in self._registered.items()]
        known += [_summary(mac, history, only_heard=True) for mac, history in self._strangers.items()]
        return sorted(known, key=lambda machine: machine.last_seen, reverse=True)

    def last_seen(self, mac: str) -> float | None:
        """When something happened to this machine last, in seconds since the epoch; None if nothing is known."""
        history = self._registered.get(mac) or self._strangers.get(mac)
        return history.events[-1].time if history is not None else None

    def _history(self, event: JourneyEvent) -> deque[JourneyEvent]:
        """Where `event` goes. A stranger with whom more happens than being heard is a stranger no more."""
        history = self._registered.touch(event.mac)
        if history is None:
            history = self._strangers.touch(event.mac) or _History(deque(maxlen=self._per_machine), event.time)
            if event.step is Step.SEEN:
                self._strangers.put(event.mac, history)
            else:
                self._strangers.drop(event.mac)
                self._registered.put(event.mac, history)
        return history.events


class Subscription:
    """An async iterator of events, made by `Journey.subscribe`; also a context manager that closes itself."""

    def __init__(self, backlog: int, forget: Callable[[Subscription], None]) -> None:
        self.dropped = 0
        """How many events this reader has lost because it was too slow."""
        self._waiting: deque[JourneyEvent] = deque(maxlen=backlog)
        self._arrived = asyncio.Event()
        self._closed = False
        self._forget = forget

    def push(self, event: JourneyEvent) -> None:
        """Called by the journey: hand in one event."""
        if len(self._waiting) == self._waiting.maxlen:
            self.dropped += 1
        self._waiting.append(event)
        self._arrived.set()

    def close(self) -> None:
        """End the iteration after what has arrived already."""
        self._closed = True
        self._forget(self)
        self._arrived.set()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> JourneyEvent:
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        return self._waiting.popleft()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class _History:
    events: deque[JourneyEvent]
    first_seen: float


class _Pool:
    """Histories by MAC, at most `size`: the machine that was quiet for longest makes room."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._histories: OrderedDict[str, _History] = OrderedDict()

    def get(self, mac: str) -> _History | None:
        return self._histories.get(mac)

    def touch(self, mac: str) -> _History | None:
        if mac in self._histories:
            self._histories.move_to_end(mac)
        return self._histories.get(mac)

    def put(self, mac: str, history: _History) -> None:
        self._histories[mac] = history
        self._histories.move_to_end(mac)
        while len(self._histories) > self._size:
            self._histories.popitem(last=False)

    def drop(self, mac: str) -> None:
        self._histories.pop(mac, None)

    def items(self) -> list[tuple[str, _History]]:
        return list(self._histories.items())


def _summary(mac: str, history: _History, *, only_heard: bool) -> MachineSummary:
    last = history.events[-1]
    return MachineSummary(mac=mac, first_seen=history.first_seen, last_seen=last.time, last=last, only_heard=only_heard)


def _one_line(message: str) -> str:
    """`message` without line breaks and control characters, which would forge log lines or move a terminal's cursor."""
    if len(message) <= MAX_MESSAGE and message.isprintable():
        return message  # nearly always, and DHCP records an event for each packet
    line = "".join(character if character.isprintable() else " " for character in message[: MAX_MESSAGE + 1])
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 1] + "…"
