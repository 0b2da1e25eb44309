"""The checkpoint: the objects of an edge on its disk, for a start while the API is away and for quick restarts.

    informers -> DATA_DIR/checkpoint/objects.db -> informers of the next process

A changed object is written some seconds later, by a thread. A thousand Hardware or fewer are restored at once. Of more,
each is restored when a server looks for its MAC or address (`recall`), and the rest in the background (`restore_rest`).
"""

from __future__ import annotations

import asyncio
import logging
import math
import shutil
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from prometheus_client.core import Metric

from edge.checkpoint.database import CheckpointError, Database, LookupValues
from tink.api.v1alpha2 import Raw
from tink.kube.cache import Informer
from tink.kube.objects import NamespacedName
from tink.limits import Backoff
from tink.metrics.families import gauge

log = logging.getLogger(__name__)

DIRECTORY: Final = "checkpoint"  # its name in the data directory
HARDWARE: Final = "hardware"  # the collection without which an edge can't serve

_LOOK_SECONDS: Final = 1.0
_SETTLE_SECONDS: Final = 2.0
"""Delay from a change to its writing, so that objects that are applied together are written together."""
_PAUSE_SECONDS: Final = 10.0  # minimum time between two writings of a collection
_MAX_PAUSE_SECONDS: Final = 300.0  # maximum time until the next attempt after writing has failed
_CONFIRM_SECONDS: Final = 15.0  # time between two updates of the time at which the content was known to be current
_BATCH: Final = 50  # objects that are read or written in one call of the thread
_TURN: Final = 10  # objects that are restored in one turn of the event loop
_MAX_AT_ONCE: Final = 1000  # maximum number of Hardware that a start waits for
_LISTING_SECONDS: Final = 10.0
"""Time without a new object after which the remaining objects are restored beside the list of an API that answers."""
_MAX_LISTING_SECONDS: Final = 60.0  # the same for a list that goes on: restoring beside it would do all work twice
_SPARE_BYTES: Final = 64 << 20  # disk space that the checkpoint leaves free


@dataclass(slots=True)
class _Collection:
    """The state of one collection. Times are monotonic, in seconds."""

    informer: Informer
    wanted: Callable[[], Collection[NamespacedName]] | None
    pending: dict[NamespacedName, None] = field(default_factory=dict)
    """The objects that have changed or gone since they were written."""
    changed_at: float = -math.inf  # when the first of the pending objects changed
    not_before: float = 0.0
    has_pruned: bool = False  # True if the objects that had gone before this process began are removed from the file
    is_failing: bool = False
    size: int = 0
    backoff: Backoff = field(default_factory=lambda: Backoff(_PAUSE_SECONDS, _MAX_PAUSE_SECONDS))

    @property
    def is_behind(self) -> bool:
        return self.informer.has_synced and (bool(self.pending) or not self.has_pruned)

    def is_due(self, now: float) -> bool:
        return self.is_behind and now >= max(self.not_before, self.changed_at + _SETTLE_SECONDS)

    def staleness(self, now: float) -> float:
        """The age of the collection in the file, in seconds."""
        return max(self.informer.failing_for, now - self.changed_at if self.pending else 0.0)


class Checkpoint:
    """The checkpoint of one edge. Belongs to one event loop, and to the process that has locked the data directory.

    Call `open` first; then `restore` and `restore_rest` if the API does not list the objects in time; then `run`.
    """

    def __init__(
        self,
        data_dir: Path,
        cluster: frozenset[str],
        informers: Mapping[str, Informer],
        *,
        wanted: Mapping[str, Callable[[], Collection[NamespacedName]]] | None = None,
        lookup_values: LookupValues = lambda _hardware: (),
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a checkpoint of the objects of `informers`, by the names of their collections, from `cluster`.

        `wanted` returns the keys of the objects to keep, if not all are kept. `lookup_values` returns the MACs and
        addresses of a Hardware. `clock` returns Unix seconds.
        """
        self._directory = data_dir / DIRECTORY
        self._database = Database(self._directory, cluster, lookup_values)
        self._clock = clock
        self._monotonic = monotonic
        self._collections = {name: _Collection(each, (wanted or {}).get(name)) for name, each in informers.items()}
        self._known: float | None = None
        self._confirmed_at = -math.inf
        self.is_restoring = False  # some Hardware are only restored when a server looks for them (`recall`)
        self._recalled: deque[tuple[str, ...]] = deque()
        self._is_recalling = False
        for name, collection in self._collections.items():
            collection.informer.add_event_handler(
                partial(self._changed, name, collection), partial(self._mark, collection)
            )

    def _changed(self, name: str, collection: _Collection, new: Raw, _old: Raw | None = None) -> None:
        # After a restart, most listed or restored objects are in the file as they are: they need not be read again.
        if collection.informer.has_synced or not self._database.has(name, new):
            self._mark(collection, new)

    def _mark(self, collection: _Collection, obj: Raw) -> None:
        """Mark an object as one to write or to remove."""
        if not collection.pending:
            collection.changed_at = self._monotonic()
        collection.pending[NamespacedName.of(obj)] = None

    # --- restoring ----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the file of an earlier process. An unusable file is logged, ignored, and replaced by `run`."""
        try:
            self._known = await asyncio.to_thread(self._database.open)
        except CheckpointError as error:
            log.error("%s: it is ignored, and replaced when the Kubernetes API answers", error)

    @property
    def age(self) -> float:
        """The number of seconds since the content was known to be current; infinite if there are no Hardware."""
        return self._clock() - self._known if self._known is not None and self.hardware_count else math.inf

    @property
    def exists(self) -> bool:
        """True if machines can be served from it."""
        return self.age < math.inf

    @property
    def hardware_count(self) -> int:
        """The number of Hardware in the opened file."""
        return self._database.counts.get(HARDWARE, 0)

    async def restore(self) -> float | None:
        """Restore the objects into the informers, which may run. Return the Unix time at which they were current, if
        usable.
        """
        known = self._known
        if known is None or not self.exists:
            log.info("there is no checkpoint of Hardware in %s", self._directory)
            return None
        self.is_restoring = True
        for name in self._collections:  # of very many Hardware, none is restored before `recall`
            if name != HARDWARE or self.hardware_count <= _MAX_AT_ONCE:
                await self._restore_all(name)
        return min(known, self._clock())

    async def _restore_all(self, name: str) -> None:
        informer, after = self._collections[name].informer, ""
        while not informer.has_synced:
            try:
                found = await asyncio.to_thread(self._database.objects, name, after, _BATCH)
            except CheckpointError as error:
                log.error("%s", error)
                break
            if not found:
                break
            for number, (_, obj) in enumerate(found):
                if obj is not None:
                    informer.restore(obj)
                if number % _TURN == 0:
                    await asyncio.sleep(0)
            after = found[-1][0]
        if name == HARDWARE:
            self._end_restoring()
        log.info("%s: %d are known after restoring the checkpoint", name, len(informer))

    def recall(self, *values: str) -> None:
        """Restore the Hardware that are looked up by any of these values: MACs, addresses, or NAMESPACE/NAME."""
        if not self.is_restoring:
            return
        self._recalled.append(values)
        if self._is_recalling:  # a handler looks for another Hardware: not recursively, because chains may be long
            return
        informer = self._collections[HARDWARE].informer
        self._is_recalling = True
        try:
            while self._recalled:
                # `open` has read the whole file, so this reads from the page cache, and not from the disk.
                for obj in self._database.hardware(self._recalled.popleft(), skip=informer.__contains__):
                    informer.restore(obj)
        except CheckpointError as error:
            log.error("%s", error)
            self._end_restoring()
        finally:
            self._is_recalling = False

    async def restore_rest(self) -> None:
        """Restore the Hardware that no server has looked for, unless the API lists them first."""
        hardware = self._collections[HARDWARE].informer
        known, progressed_at = -1, self._monotonic()
        last = progressed_at + _MAX_LISTING_SECONDS
        while self.is_restoring and not hardware.has_synced:
            now = self._monotonic()
            if len(hardware) != known:
                known, progressed_at = len(hardware), now
            if hardware.failing_for or now > min(progressed_at + _LISTING_SECONDS, last):
                await self._restore_all(HARDWARE)
            await asyncio.sleep(_LOOK_SECONDS)
        self._end_restoring()

    def _end_restoring(self) -> None:
        self.is_restoring = False
        self._database.close_reader()

    # --- writing ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write changes until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(_LOOK_SECONDS)

    async def look(self) -> None:
        """Write the changes that are due."""
        now = self._monotonic()
        for name, collection in self._collections.items():
            if collection.is_due(now):
                await self._write(name, collection)
        if now >= self._confirmed_at + _CONFIRM_SECONDS:
            await self._confirm()

    async def close(self) -> None:
        """Write the remaining changes, and close the file."""
        for name, collection in self._collections.items():
            if collection.is_behind:
                await self._write(name, collection)
        await self._confirm()
        self.is_restoring = False
        await asyncio.to_thread(self._database.close)

    async def _write(self, name: str, collection: _Collection) -> None:
        informer, wanted = collection.informer, set(collection.wanted()) if collection.wanted is not None else None
        try:
            if await asyncio.to_thread(self._prepare):
                for each in self._collections.values():
                    each.pending |= dict.fromkeys(each.informer)
            if not collection.has_pruned:
                await asyncio.to_thread(self._database.prune, name, list(informer) if wanted is None else wanted)
                collection.has_pruned = True
            while collection.pending:
                batch = list(islice(collection.pending, _BATCH))
                kept = [key for key in batch if wanted is None or key in wanted]
                objects = dict.fromkeys(batch) | {key: informer.get(*key) for key in kept}
                for key in batch:
                    del collection.pending[key]
                try:
                    await asyncio.to_thread(self._database.write, name, objects)
                except BaseException:
                    collection.pending |= dict.fromkeys(batch)
                    raise
            collection.size = await asyncio.to_thread(self._database.size, name)
        except (OSError, CheckpointError) as error:
            collection.not_before = self._monotonic() + collection.backoff.next()
            if not collection.is_failing:
                reason = getattr(error, "strerror", None) or error
                text = "the checkpoint of %s can't be written: %s: a start without the Kubernetes API would know less"
                log.warning(text, name, reason)
            collection.is_failing = True
            return
        if collection.is_failing:
            log.info("the checkpoint of %s is written again", name)
        collection.is_failing = False
        collection.backoff.reset()
        collection.not_before = self._monotonic() + _PAUSE_SECONDS
        self._confirmed_at = -math.inf

    def _prepare(self) -> bool:
        """Open the file for writing, in a thread; return True if it is a new one. Raises OSError, CheckpointError."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        if shutil.disk_usage(self._directory).free < _SPARE_BYTES:
            raise OSError(0, f"less than {_SPARE_BYTES >> 20} MiB would be free on the disk")
        return self._database.open_for_writing()

    async def _confirm(self) -> None:
        """Note in the file up to which time its content is known to be current."""
        collections = self._collections.values()
        if not self._database.is_open or not all(each.informer.has_synced and each.has_pruned for each in collections):
            return
        now = self._confirmed_at = self._monotonic()
        known = self._clock() - max((each.staleness(now) for each in collections), default=0.0)
        try:
            # In a thread, because a disk that hangs must not delay machines.
            await asyncio.to_thread(self._database.confirm, known)
        except CheckpointError as error:
            log.debug("%s", error)

    @property
    def states(self) -> dict[str, tuple[int, bool]]:
        """The size in bytes of each collection in the file, and whether writing it fails."""
        return {name: (each.size, each.is_failing) for name, each in self._collections.items()}


def checkpoint_metrics(checkpoint: Checkpoint | None) -> Iterator[Metric]:
    """Yield the metrics of a checkpoint; None: this process keeps none."""
    states = checkpoint.states if checkpoint is not None else {}
    text = "What was written last of what is known, for a start without the API."
    sizes = {(name,): size for name, (size, _) in states.items()}
    yield gauge("tinkedge_checkpoint_size_bytes", text, ["resource"], sizes)
    failing = {(name,): is_failing for name, (_, is_failing) in states.items()}
    yield gauge("tinkedge_checkpoint_failing", "1: what has changed can't be written.", ["resource"], failing)


def discard(data_dir: Path) -> None:
    """Remove the checkpoint of an earlier process, with its Secrets. Raises OSError."""
    with suppress(FileNotFoundError):
        shutil.rmtree(data_dir / DIRECTORY)
