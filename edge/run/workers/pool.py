"""The workers of an edge, kept alive by its main process.

    networks -> `listen`: a port is one socket for each worker (SO_REUSEPORT), of which the kernel gives each client one
    informers, DHCP, other edges -> told to all workers
    what workers see -> the journey and the log of the main process, in the order in which it happened

The main process keeps every socket open. So no connection is refused while a worker is away: the share of one that has
died is another one's at once, and what waits in its queue is answered there, until it is replaced.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Final

from prometheus_client.core import Metric

from edge.journey.events import Notice, Outcome
from edge.run.workers.inbox import Inbox
from edge.run.workers.measures import cpu_seconds, resident_bytes
from edge.run.workers.messages import (
    Edges,
    Failure,
    Learned,
    Listen,
    Message,
    Move,
    Networks,
    Ready,
    Reread,
    Said,
    Unlisten,
)
from edge.run.workers.worker import Begin, Sources, Worker, how_ended
from edge.settings.model import StackSettings
from tink.api.v1alpha2 import Raw
from tink.errors import TinkedgeError
from tink.files.rereading import register
from tink.limits.backoff import Backoff
from tink.metrics.families import counter, gauge

log = logging.getLogger(__name__)

START_SECONDS: Final = 60.0
PING_SECONDS: Final = 5.0
PATIENCE_SECONDS: Final = 30.0
"""A worker that answers nothing for so long is ended, and replaced."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 10.0
"""Before a worker that has died is replaced; it doubles with each that does not live for GOOD_SECONDS."""
GOOD_SECONDS: Final = 60.0
KEEPS_ENDING: Final = 3
"""So many ends within GOOD_SECONDS are said on /readyz."""
_SHARES: Final = 64
"""More workers than any machine is given."""


class WorkersError(TinkedgeError):
    """The workers can't begin; says which and why."""


@dataclass(slots=True)
class Place:
    """Where machines are served: an address with a port, and the socket of each share of it."""

    number: int
    protocol: str
    interface: str
    address: str
    port: int
    sockets: list[socket.socket]

    def share(self, share: int) -> int:
        """The name of one share, in messages."""
        return self.number * _SHARES + share


class Pool:
    """`start` before use, `run` meanwhile, `stop` after. Belongs to one event loop."""

    def __init__(
        self,
        settings: StackSettings,
        sources: Sources,
        inbox: Inbox,
        *,
        ready: Callable[[], str],
        learnt: Callable[[], Iterator[tuple[str, str]]],
        announce: Callable[[Notice], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`inbox` takes what workers see. `ready()`: why machines can't be served, `learnt()`: what DHCP said of
        addresses; `announce` hears when a worker has ended and when it is replaced. `clock` gives monotonic seconds.
        """
        self._settings = settings
        self._sources = sources
        self._inbox = inbox
        self._ready = ready
        self._learnt = learnt
        self._announce = announce
        self._clock = clock
        self._shares = range(settings.edge.workers)
        self._workers: dict[int, Worker] = {}
        self._holders: dict[int, int] = {}
        """Which worker serves a share."""
        self._places: dict[int, Place] = {}
        self._numbers = count(1)
        self._state: dict[type, Message] = {}
        """What was said last of what is so or not so, for workers that begin."""
        self._ends: deque[tuple[float, int, str]] = deque(maxlen=256)
        self._restarts: Counter[int] = Counter(dict.fromkeys(self._shares, 0))
        self._dropped = 0
        self._keepers: list[asyncio.Task[None]] = []
        self._began = asyncio.Event()
        inbox.on_shared(self._pass_on)
        for kind, informer in sources.informers.items():
            informer.add_event_handler(self._changed(kind, removed=False), self._changed(kind, removed=True))
        register(self)

    # --- their life --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin, and wait until all can serve. Raises WorkersError."""
        self._keepers = [asyncio.create_task(self._keep(share), name=f"worker {share + 1}") for share in self._shares]
        try:
            async with asyncio.timeout(START_SECONDS):
                while not all(map(self._serves, self._shares)):
                    self._began.clear()
                    if self._ends:
                        raise WorkersError(f"{self._ends[-1][2]} at its start; see its lines above")
                    await self._began.wait()
        except TimeoutError:
            raise WorkersError(f"the workers did not begin within {START_SECONDS:.0f} s") from None

    async def stop(self) -> None:
        """End all of them, and close the sockets."""
        for task in self._keepers:
            task.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for place in [*self._places.values()]:
            self.close(place)
        self._inbox.flush()

    async def run(self) -> None:
        """See that they answer, until cancelled."""
        asked = self._clock()
        while True:
            await asyncio.sleep(0.5)
            self.tell(Ready(self._ready()))
            if self._clock() - asked >= PING_SECONDS:
                asked = self._clock()
                for worker in [*self._workers.values()]:
                    if worker.unanswered > PATIENCE_SECONDS / PING_SECONDS:
                        log.error("worker %d answers nothing for %.0f s: it is ended", worker.number, PATIENCE_SECONDS)
                        worker.kill()
                    else:
                        worker.ask()

    async def _keep(self, share: int) -> None:
        backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        begin = Begin(self._settings, share + 1, len(self._shares), logging.getLogger().level)
        while True:
            since = self._clock()
            try:
                how = await self._live(share, begin)
            except OSError as error:
                how = f"worker {share + 1} can't be started: {error.strerror or error}"
            except Exception as error:  # whatever it is: there has to be another worker
                log.exception("worker %d", share + 1)
                how = f"worker {share + 1} can't be started: {error!r}"
            try:
                self._ended(share, how)
            except OSError as error:  # too many open files
                log.error("the machines of worker %d must wait for it: %s", share + 1, error.strerror or error)
            if self._clock() - since >= GOOD_SECONDS:
                backoff.reset()
            await asyncio.sleep(backoff.next())
            self._restarts[share] += 1

    async def _live(self, share: int, begin: Begin) -> str:
        """One life of a worker; how it has ended. Raises OSError."""
        worker = await Worker.started(begin, self._sources, self._inbox.heard)
        self._workers[share] = worker
        for message in self._state.values():
            worker.send(message)
        for mac, ip in self._learnt():
            worker.send(Learned(mac, ip))
        coming = asyncio.create_task(self._when_ready(share, worker))
        try:
            status = await worker.ended()
        except asyncio.CancelledError:
            await worker.stop()
            raise
        finally:
            coming.cancel()
            self._dropped += worker.dropped
            del self._workers[share]
        return f"worker {begin.number} ended {how_ended(status)}"

    async def _when_ready(self, share: int, worker: Worker) -> None:
        await worker.ready()
        worker.serves = True
        free = [each for each in self._shares if each not in self._holders and each != share]
        for each in (share, *free):
            before = self._workers.get(self._holders.get(each, -1))
            self._give(each, share)
            if before is not None and before is not worker:
                worker.ask(partial(self._take_back, each, before))
        self._began.set()
        if self._restarts[share]:
            line = f"worker {worker.number} is there again"
            log.info("%s", line)
            self._announce(Notice(time.time(), Outcome.OK, line, {"worker": worker.number}))

    def _ended(self, share: int, how: str) -> None:
        log.error("%s: it is replaced, and its machines ask again", how)
        self._announce(Notice(time.time(), Outcome.FAILED, how, {"worker": share + 1}))
        self._ends.append((self._clock(), share, how))
        self._began.set()
        for each in [each for each, holder in self._holders.items() if holder == share]:
            del self._holders[each]
            serving = [number for number, worker in self._workers.items() if worker.serves]
            if serving:
                self._give(each, min(serving, key=list(self._holders.values()).count))

    # --- where they serve --------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How many workers there are to be."""
        return len(self._shares)

    def listen(self, protocol: str, interface: str, address: str, port: int, sockets: list[socket.socket]) -> Place:
        """Have them serve `protocol` (http or tftp) on these sockets of one port, one for each, which are ours now."""
        place = Place(next(self._numbers), protocol, interface, address, port, sockets)
        self._places[place.number] = place
        for share, holder in self._holders.items():
            self._serve(place, share, holder)
        return place

    def move(self, place: Place) -> None:
        """Its interface was made anew."""
        for share, holder in self._holders.items():
            self._workers[holder].send(Move(place.share(share)))

    def close(self, place: Place) -> None:
        """Serve there no more."""
        if self._places.pop(place.number, None) is None:
            return
        for share, holder in self._holders.items():
            if holder in self._workers:
                self._workers[holder].send(Unlisten(place.share(share)))
        for sock in place.sockets:
            sock.close()

    def _give(self, share: int, holder: int) -> None:
        self._holders[share] = holder
        for place in self._places.values():
            self._serve(place, share, holder)

    def _serve(self, place: Place, share: int, holder: int) -> None:
        listen = Listen(place.share(share), place.protocol, place.interface, place.address, place.port)
        self._workers[holder].send(listen, [place.sockets[share].fileno()])

    def _take_back(self, share: int, before: Worker) -> None:
        for place in self._places.values():
            before.send(Unlisten(place.share(share)))

    # --- what they are told ------------------------------------------------------------------------------------------

    def tell(self, message: Networks | Edges | Ready) -> None:
        """Say to all what is so, if it was not so before."""
        if self._state.get(type(message)) != message:
            self._state[type(message)] = message
            self._to_all(message)

    def learned(self, mac: str, ip: str) -> None:
        """DHCP said so."""
        self._to_all(Learned(mac, ip))

    def reread(self) -> bool:
        """SIGHUP: have them read keys and certificates again (`tink.files.rereading`); each logs how it was."""
        self._to_all(Reread())
        return True

    def _changed(self, kind: str, *, removed: bool) -> Callable[..., None]:
        def change(content: Raw, _old: Raw | None = None) -> None:
            for worker in self._workers.values():
                worker.feed.change(kind, content, removed=removed)

        return change

    def _pass_on(self, message: Said | Failure, source: Worker) -> None:
        for worker in self._workers.values():
            if worker is not source:
                worker.send(message)

    def _to_all(self, message: Message) -> None:
        for worker in self._workers.values():
            worker.send(message)

    # --- what is told of them ----------------------------------------------------------------------------------------

    @property
    def problem(self) -> str:
        """Why no machine is served; empty: some worker does."""
        if any(worker.serves for worker in self._workers.values()) or not self._ends:
            return ""
        return f"no worker serves machines: {self._ends[-1][2]}"

    @property
    def note(self) -> str:
        """Which workers keep ending, or are away; empty: none."""
        now = self._clock()
        often = Counter(share for when, share, _ in self._ends if now - when < GOOD_SECONDS)
        last = {share: how for _, share, how in self._ends}
        said = [
            f"{last[share]}, {times} times within {GOOD_SECONDS:.0f} s: its log lines say why"
            for share, times in sorted(often.items())
            if times >= KEEPS_ENDING
        ]
        away = [str(share + 1) for share in often if often[share] < KEEPS_ENDING and not self._serves(share)]
        said += [f"worker {', '.join(away)} is being replaced"] if away else []
        return "; ".join(said)

    def _serves(self, share: int) -> bool:
        return share in self._workers and self._workers[share].serves

    def metrics(self) -> Iterator[Metric]:
        """Of the workers, for Prometheus."""
        serving = {(str(share + 1),): float(self._serves(share)) for share in self._shares}
        yield gauge("tinkedge_worker_up", "Whether this worker serves machines.", ["worker"], serving)
        restarts = {(str(share + 1),): float(self._restarts[share]) for share in self._shares}
        yield counter("tinkedge_worker_restarts", "How often it was replaced.", ["worker"], restarts)
        pids = {(str(share + 1),): worker.process.pid for share, worker in self._workers.items()}
        cpu = {labels: seconds for labels, pid in pids.items() if (seconds := cpu_seconds(pid)) is not None}
        yield counter("tinkedge_worker_cpu_seconds", "Processor time since its start.", ["worker"], cpu)
        memory = {labels: size for labels, pid in pids.items() if (size := resident_bytes(pid)) is not None}
        yield gauge("tinkedge_worker_resident_memory_bytes", "Its memory.", ["worker"], memory)
        dropped = self._dropped + sum(worker.dropped for worker in self._workers.values())
        yield counter("tinkedge_worker_dropped_events", "Events and lines that found no room.", [], {(): dropped})


def tcp_sockets(address: str, port: int, number: int, backlog: int) -> Sequence[socket.socket]:
    """So many sockets that share a TCP port, listening. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # Nobody else may have the port, which those that share it can't tell.
    with _bound(family, address, port, shared=False) as alone:
        port = alone.getsockname()[1]
    sockets: list[socket.socket] = []
    try:
        for _ in range(number):
            sockets.append(_bound(family, address, port, shared=True))
        for sock in sockets:
            sock.listen(backlog)
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def _bound(family: socket.AddressFamily, address: str, port: int, *, shared: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        # Of a link-local address the zone becomes the scope, which `bind` alone would leave out.
        (where, *_) = socket.getaddrinfo(address, port, family, socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        sock.bind(where[4])
    except OSError:
        sock.close()
        raise
    return sock
