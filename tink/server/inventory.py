"""Inventories that agents report: reads them as hostile data, and writes them to `status.inventory.inBand` of Hardware.

    report (JSON) -> tink.discovery.report (pure) -> InventoryKeeper -> HardwareWriter -> merge patch of hardware/status
                                                          `-> Events about the changes (`tink.discovery.changes`)

Anybody on the network who can act for a machine can report anything about that machine, and about no other one. So the
size of a report, its depth, its texts, lists and numbers, the rate of reports, of writes and of Events, and the memory
of pending writes are bounded. A report is data and never a command: nothing here follows what it contains.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol

import grpc
import grpc.aio
import orjson

from proto import inventory_pb2 as pb
from proto import inventory_pb2_grpc as pb_grpc
from tink.api.inventory import MAX_INVENTORY_NUMBER
from tink.api.v1alpha2 import Raw, as_mapping
from tink.discovery.changes import changes, keep_neighbours
from tink.discovery.report import MAX_REPORT_BYTES, CollectionMethod, UnreadableReportError, read_report
from tink.kube.client import ApiError, KubeClient, NotFoundError
from tink.kube.objects import NamespacedName, merge_patch
from tink.kube.resources import HARDWARE
from tink.kube.runtime import Event, EventRecorder
from tink.limits import Backoff, LimitedLog, TokenBuckets
from tink.server.auth import MAX_AGENT_ID, credentials_of
from tink.server.callers import Callers, abort
from tink.timestamps import rfc3339
from tink.workflow.status import parse_timestamp

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
Spawn = Callable[[Coroutine[Any, Any, None]], Any]


def clock_offset(machine: float, server: float) -> float | None:
    """Return by how many seconds the clock of a machine is ahead of the server's (both: Unix seconds).

    None below 2 s, which includes the time of the call, and without a usable clock. Rounded to a second.
    """
    if not math.isfinite(machine) or machine <= 0:
        return None
    offset = float(round(machine - server))
    return offset if 2 <= abs(offset) <= MAX_INVENTORY_NUMBER else None


# --- writing to Hardware ----------------------------------------------------------------------------------------------


MAX_PENDING: Final = 20_000
"""Maximum number of pending writes of one writer."""
MAX_PENDING_BYTES: Final = 64 << 20
"""Maximum size of all pending writes of one writer together."""
_MAX_AT_ONCE: Final = 8
"""Maximum number of writes in progress: a rack that powers on reports all inventories at once."""
_REFUSED_SECONDS: Final = 3600.0
"""Pause after the API has rejected a write with 403."""
_RETRY_SECONDS, _MAX_RETRY_SECONDS = 1.0, 30.0
_REPEAT_SECONDS: Final = 0.1
"""Delay before the next look at a Hardware whose last write is still in progress."""


class HardwareWrite(Protocol):
    """A pending write."""

    @property
    def size(self) -> int:
        """Bytes that count against MAX_PENDING_BYTES."""

    def patch(self, hardware: Raw) -> Raw | None:
        """Return the merge patch for the present object; None if there is nothing to write."""

    def written(self, hardware: Raw, answer: Raw) -> Raw | None:
        """Take note of a success: `hardware` is the object before, `answer` the object after it.

        Return another patch if the object had been changed meanwhile.
        """


class HardwareWriter:
    """Writes what agents report to their Hardware: for each machine its newest report, at a limited rate.

    A write that fails because the API is away is repeated, unless a newer one waits. If the server has no right to
    write (403), all pending writes are dropped. The log names the missing right once, and the writer pauses an hour.
    """

    def __init__(
        self,
        client: KubeClient,
        hardware: Callable[[str, str], Raw | None],
        spawn: Spawn,
        *,
        what: str,
        advice: str,
        interval: float,
        subresource: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        refused: Callable[[], None] = lambda: None,
        level: int = logging.WARNING,
    ) -> None:
        """`hardware` looks up a Hardware by namespace and name; `clock` returns monotonic seconds.

        `what` and `advice` are for the log, `level` for its line about a missing right. `interval` is the minimum time
        between two writes of one Hardware in seconds. `refused` is called after a 403.
        """
        self._client = client
        self._hardware = hardware
        self._spawn = spawn
        self._what = what
        self._advice = advice
        self._interval = interval
        self._subresource = subresource
        self._clock = clock
        self._refused = refused
        self._level = level
        self._pending: dict[NamespacedName, HardwareWrite] = {}
        self._bytes = 0
        self._queue: list[tuple[float, int, NamespacedName]] = []
        """A heap with one entry for each pending write: when it is due."""
        self._numbers = itertools.count()
        self._written_at: dict[NamespacedName, float] = {}
        self._in_progress: set[NamespacedName] = set()
        self._slots = asyncio.Semaphore(_MAX_AT_ONCE)
        self._wakeup = asyncio.Event()
        self._is_running = self._is_closing = self._was_refused = False
        self._refused_until = self._away_until = -math.inf
        self._backoff = Backoff(_RETRY_SECONDS, _MAX_RETRY_SECONDS)
        self._log = LimitedLog(log, clock, capacity=10, interval=600.0)

    @property
    def is_refused(self) -> bool:
        """True during the pause after a 403."""
        return self._clock() < self._refused_until

    def put(self, key: NamespacedName, write: HardwareWrite) -> bool:
        """Add a write, in place of an earlier one of the same Hardware. Return False if there are too many."""
        if self.is_refused:
            return True
        before = self._pending.get(key)
        size = self._bytes + write.size - (before.size if before is not None else 0)
        if size > MAX_PENDING_BYTES or (before is None and len(self._pending) >= MAX_PENDING):
            return False
        self._bytes = size
        self._pending[key] = write
        if before is None:
            self._schedule(key, self._written_at.get(key, -math.inf) + self._interval)
        return True

    def forget(self, key: NamespacedName) -> None:
        """Drop what is pending for a deleted Hardware."""
        self._take(key)
        self._written_at.pop(key, None)

    def close(self) -> None:
        """Write all pending changes at once, each in one attempt."""
        self._is_closing = True
        self._wakeup.set()

    def _schedule(self, key: NamespacedName, due: float) -> None:
        heapq.heappush(self._queue, (max(due, self._clock()), next(self._numbers), key))
        self._wakeup.set()
        if not self._is_running:
            self._is_running = True
            self._spawn(self._run())

    def _take(self, key: NamespacedName) -> HardwareWrite | None:
        write = self._pending.pop(key, None)
        if write is not None:
            self._bytes -= write.size
        return write

    async def _run(self) -> None:
        try:
            while self._queue:
                due, _, key = self._queue[0]
                wait = max(due, self._away_until) - self._clock()
                if wait > 0 and not self._is_closing:
                    self._wakeup.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(wait):
                            await self._wakeup.wait()
                    continue
                heapq.heappop(self._queue)
                if key in self._in_progress:
                    self._schedule(key, self._clock() + _REPEAT_SECONDS)
                    if self._is_closing:
                        await asyncio.sleep(_REPEAT_SECONDS)
                    continue
                await self._slots.acquire()
                write = self._take(key)
                if write is None:
                    self._slots.release()
                    continue
                self._in_progress.add(key)
                self._spawn(self._write(key, write))
            if self._is_closing:  # end after the last write
                for _ in range(_MAX_AT_ONCE):
                    await self._slots.acquire()
                for _ in range(_MAX_AT_ONCE):
                    self._slots.release()
        finally:
            self._is_running = False

    async def _write(self, key: NamespacedName, write: HardwareWrite) -> None:
        try:
            await self._send(key, write)
        except NotFoundError:
            pass  # the Hardware was deleted
        except ApiError as error:
            self._failed(key, write, error)
        except Exception:
            # An error about one report must not stop the others.
            log.exception("%s of Hardware %s can't be stored", self._what, key)
        finally:
            self._in_progress.discard(key)
            self._slots.release()

    async def _send(self, key: NamespacedName, write: HardwareWrite) -> None:
        hardware = self._hardware(*key)
        patch = write.patch(hardware) if hardware is not None and not self.is_refused else None
        if hardware is None or patch is None:
            return
        self._written_at[key] = self._clock()
        send = partial(self._client.patch, HARDWARE, key.name, key.namespace, subresource=self._subresource)
        again = write.written(hardware, await send(patch))
        self._backoff.reset()
        if again is not None:
            await send(again)

    def _failed(self, key: NamespacedName, write: HardwareWrite, error: ApiError) -> None:
        if error.status == 403:
            self._pause()
            return
        self._log.warning("%s of Hardware %s are not stored: %s", self._what, key, error, key=error.status)
        if (error.is_away or error.status == 409) and not self._is_closing:
            if error.is_away:
                self._away_until = self._clock() + self._backoff.next()
            if key not in self._pending:
                self.put(key, write)

    def _pause(self) -> None:
        """Drop all pending writes, and take no others for an hour."""
        self._pending.clear()
        self._queue.clear()
        self._bytes = 0
        self._refused_until = self._clock() + _REFUSED_SECONDS
        self._refused()
        if not self._was_refused:
            log.log(self._level, "%s are not stored in Hardware: %s", self._what, self._advice)
        self._was_refused = True


# --- inventories ------------------------------------------------------------------------------------------------------


WRITE_SECONDS: Final = 5.0
"""Minimum time between two writes of one inventory. An agent reports at its start, and again with LLDP after 35 s."""
REFRESH_SECONDS: Final = 3600.0
"""Age of `lastUpdated` from which on an unchanged inventory is written."""
MAX_EVENTS: Final = 20
"""Maximum number of Events about one report."""
_EVENTS_AT_ONCE, _EVENTS_PER_SECOND = 60.0, 1 / 60
"""Rate limit of the Events of one Hardware."""
_VOLATILE: Final = frozenset({"lastUpdated", "clockOffsetSeconds"})
"""Fields whose change alone is no reason to write."""


class InventoryKeeper:
    """Stores in-band inventories in the status of Hardware, and records Events about what has changed."""

    def __init__(
        self,
        client: KubeClient,
        hardware: Callable[[str, str], Raw | None],
        spawn: Spawn,
        recorder: EventRecorder,
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`hardware` looks up a Hardware by namespace and name; `now` returns Unix seconds, `clock` monotonic ones."""
        self._recorder = recorder
        self._now = now
        self._clock = clock
        self._events = TokenBuckets(_EVENTS_AT_ONCE, _EVENTS_PER_SECOND)
        self._writer = HardwareWriter(
            client,
            hardware,
            spawn,
            what="inventories that agents report",
            advice="the server's role has no patch on hardware/status (on a cluster: deploy/rbac.yaml or the chart)",
            interval=WRITE_SECONDS,
            subresource="status",
            clock=clock,
        )
        self.forget = self._writer.forget
        self.close = self._writer.close

    def store(
        self, key: NamespacedName, attributes: Raw, method: CollectionMethod, offset: float | None = None
    ) -> bool:
        """Store the attributes that an agent reports for a Hardware. Return False if too many writes are pending.

        `offset` is the clock offset of the machine in seconds (`clock_offset`).
        """
        clock = {"clockOffsetSeconds": offset} if offset is not None else {}
        stamp = rfc3339(self._now())
        report = orjson.dumps({**attributes, **clock, "lastUpdated": stamp, "collectionMethod": method.value})
        return self._writer.put(key, _InventoryWrite(report, self._now, self._report_changes))

    def _report_changes(self, hardware: Raw, before: Raw, after: Raw) -> None:
        """Record an Event for each change, and log what was stored."""
        key, found = NamespacedName.of(hardware), changes(before, after)
        log.info("Hardware %s: the inventory from its agent is stored (%s)", key, _summary(after))
        for change in found[:MAX_EVENTS]:
            if self._events.allows(key, self._clock()):
                self._recorder.event(hardware, HARDWARE, Event(change.reason, change.text, warning=change.is_loss))


class _InventoryWrite:
    """One inventory. It is kept as JSON, which needs a tenth of the memory of its objects."""

    def __init__(self, report: bytes, now: Callable[[], float], done: Callable[[Raw, Raw, Raw], None]) -> None:
        self._report = report
        self._now = now
        self._done = done

    @property
    def size(self) -> int:
        return len(self._report)

    def patch(self, hardware: Raw) -> Raw | None:
        before, after = _in_band(hardware), self._wanted(hardware)
        methods = before.get("collectionMethod"), after["collectionMethod"]
        if methods == (CollectionMethod.AGENT, CollectionMethod.TINK_AGENT):
            return None  # a machine may run one agent after the other, and the older one reports less
        if _without(_VOLATILE, before) == _without(_VOLATILE, after):
            written = parse_timestamp(before.get("lastUpdated")) or 0.0
            if 0 <= self._now() - written < REFRESH_SECONDS:
                return None
        return _body(before, after)

    def written(self, hardware: Raw, answer: Raw) -> Raw | None:
        before, after, stored = _in_band(hardware), self._wanted(hardware), _in_band(answer)
        self._done(hardware, before, stored)
        # Parts that another server has written since are not in the patch. Delete them; but an API with an older
        # definition prunes new fields, and then there is nothing to repeat.
        return _body(stored, after) if stored.keys() - after.keys() else None

    def _wanted(self, hardware: Raw) -> Raw:
        return keep_neighbours(_in_band(hardware), orjson.loads(self._report))


def _body(before: Raw, after: Raw) -> Raw:
    return {"status": {"inventory": {"inBand": merge_patch(before, after)}}}


def _in_band(hardware: Raw) -> Raw:
    return as_mapping(as_mapping(as_mapping(hardware.get("status")).get("inventory")).get("inBand"))


def _without(names: frozenset[str], inventory: Raw) -> Raw:
    return {name: value for name, value in inventory.items() if name not in names}


def _summary(inventory: Raw) -> str:
    counts = {
        "drives": len(inventory.get("blockDevices", ())),
        "network adapters": len(inventory.get("networkInterfaces", ())),
        "PCI devices": len(inventory.get("pciDevices", ())),
    }
    return ", ".join(f"{count} {name}" for name, count in counts.items())


# --- the service ------------------------------------------------------------------------------------------------------


_REPORTS_AT_ONCE, _REPORTS_PER_SECOND = 10.0, 0.2
"""Rate limit of the reports of one machine: reading a large one takes the server some milliseconds."""


class InventoryService(pb_grpc.InventoryServiceServicer):
    """The methods of proto/inventory.proto. `clock` returns monotonic seconds.

    Status codes beside those of `tink.server.service`:
        INVALID_ARGUMENT    the report is no JSON object, or has no part that can be stored
        RESOURCE_EXHAUSTED  the report is too large, or the machine reports too often
        UNAVAILABLE         too many inventories wait for the API: try again later
    """

    def __init__(self, callers: Callers, keeper: InventoryKeeper, clock: Callable[[], float] = time.monotonic) -> None:
        self._callers = callers
        self._keeper = keeper
        self._clock = clock
        self._rate = TokenBuckets(_REPORTS_AT_ONCE, _REPORTS_PER_SECOND)
        self._log = LimitedLog(log, clock, capacity=100, interval=600.0)

    async def ReportInventory(  # noqa: N802 - name of the proto
        self, request: pb.ReportInventoryRequest, context: Context
    ) -> pb.ReportInventoryResponse:
        agent_id, credentials = request.agent_id, credentials_of(context)
        if not agent_id or len(agent_id) > MAX_AGENT_ID:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, "agent_id is missing or too long")
        offset = clock_offset(request.clock_unix_seconds, self._callers.parts.clock())
        await self._callers.synced(context)
        key = await self._callers.admit(agent_id, credentials, context)
        if not self._rate.allows(key, self._clock()):
            why = f"{credentials.peer} reports its inventory too often"
            self._callers.note_refusal(agent_id, key, credentials.peer, why)
            await abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, f"{why}; try again in a minute")
        size = len(request.attributes)
        if size > MAX_REPORT_BYTES:
            why = f"the inventory has {size} bytes; the maximum is {MAX_REPORT_BYTES}"
            self._log.warning("Hardware %s: %s", key, why, key=key)
            await abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, why)
        try:
            report = read_report(request.attributes)
        except UnreadableReportError as error:
            self._log.warning("Hardware %s: %s", key, error, key=key)
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if report.problems:
            left_out = "; ".join(report.problems)
            self._log.warning("Hardware %s: parts of the inventory are left out: %s", key, left_out, key=key)
        if not self._keeper.store(key, report.attributes, CollectionMethod.AGENT, offset):
            why = "too many inventories wait for the Kubernetes API; try again in a minute"
            await abort(context, grpc.StatusCode.UNAVAILABLE, why)
        return pb.ReportInventoryResponse()
