"""Keeps what the informers of an edge know in files, and gives it back to them at a start while the API is away.

    informers -> DATA_DIR/checkpoint/hardware, osies, workflows -> informers of the next process

A file is written some seconds after its kind has changed, by a thread, and so seldom that it costs little: with a
hundred thousand Hardware, which are some thirty megabytes, every five minutes at most. Of Workflows only those that
have not ended are kept. At a clean end everything is written once more.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from prometheus_client.core import Metric

from edge.checkpoint import file as checkpoint_file
from edge.checkpoint.file import AbsentError, CheckpointError, Head, LookedUpBy
from tink.files import private_files
from tink.kube.cache import Informer, Packed
from tink.kube.objects import NamespacedName
from tink.limits.backoff import Backoff
from tink.metrics.families import gauge

log = logging.getLogger(__name__)

DIRECTORY: Final = "checkpoint"
"""Its name in the data directory."""
HARDWARE: Final = "hardware"
"""The kind without which there is nothing to serve from."""

_LOOK_SECONDS: Final = 1.0
_SETTLE_SECONDS: Final = 2.0
"""From a change to the writing: what is applied together is written together."""
_SHORTEST_SECONDS: Final = 10.0
_BYTES_PER_SECOND: Final = 100_000
"""What is written of one kind on average, at most; with pauses that are no shorter than above."""
_STILL_SO_SECONDS: Final = 15.0
"""How often it is noted that what is in the files is still so."""
_AT_ONCE: Final = 100
"""Objects that are restored in one turn of the event loop."""
_SPARE_BYTES: Final = 64 << 20
"""What a writing leaves free on the disk."""

Keys = Callable[[], Collection[NamespacedName]]


@dataclass(slots=True)
class _Part:
    """One kind. Times are monotonic, in seconds."""

    informer: Informer
    path: Path
    keys: Keys | None
    looked_up_by: LookedUpBy | None
    backoff: Backoff = field(default_factory=lambda: Backoff(_SHORTEST_SECONDS, 300.0))
    changed: float | None = None
    not_before: float = 0.0
    size: int = 0
    failing: bool = False
    restored: bool = False

    def note(self, now: float) -> None:
        if self.changed is None:
            self.changed = now

    def due(self, now: float) -> bool:
        changed = self.changed
        settled = changed is not None and now >= max(changed + _SETTLE_SECONDS, self.not_before)
        return settled and self.informer.has_synced and not self.informer.untold


class Checkpoint:
    """Belongs to one event loop, and to the one process that has this data directory."""

    def __init__(
        self,
        data_dir: Path,
        cluster: frozenset[str],
        informers: Mapping[str, tuple[Informer, Keys | None]],
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        looked_up_by: Mapping[str, LookedUpBy] | None = None,
    ) -> None:
        """`informers` by kind, each with what says which of its objects are worth keeping (None: all); `looked_up_by`
        says by kind by what objects are looked for.

        `cluster` is what the API's cluster is known by; `clock` gives Unix seconds.
        """
        self._directory = data_dir / DIRECTORY
        self._cluster = cluster
        self._clock = clock
        self._monotonic = monotonic
        found = looked_up_by or {}
        self._parts = {
            kind: _Part(informer, self._directory / kind, keys, found.get(kind))
            for kind, (informer, keys) in informers.items()
        }
        self._noted = 0.0
        for part in self._parts.values():
            part.informer.add_change_listener(partial(self._changed, part))

    def _changed(self, part: _Part) -> None:
        part.note(self._monotonic())

    # --- at a start ---------------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether there may be something to serve from."""
        return self.age < math.inf

    @property
    def age(self) -> float:
        """For how many seconds it has not been known whether it is still so; infinite: there is nothing."""
        try:
            found = (self._directory / HARDWARE).lstat()
        except OSError:  # a disk that is broken has nothing
            return math.inf
        return self._clock() - found.st_mtime if stat.S_ISREG(found.st_mode) else math.inf

    @property
    def size(self) -> int:
        """Bytes of Hardware that there may be to serve from."""
        try:
            return (self._directory / HARDWARE).lstat().st_size
        except OSError:
            return 0

    async def restore(self) -> float | None:
        """Have the informers know what they knew, if they don't follow the API yet: since when that is, in Unix
        seconds; None: there is nothing to serve from. What can't be used is said in the log.
        """
        times = []
        for kind, part in self._parts.items():
            try:
                times.append(await self._restore(kind, part))
            except AbsentError:
                log.info("there is no checkpoint of %s in %s", kind, self._directory)
            except CheckpointError as error:
                log.error("%s", error)
        if HARDWARE not in self._parts or not self._parts[HARDWARE].restored:
            return None
        return min([*times, self._clock()])

    async def _restore(self, kind: str, part: _Part) -> float:
        with ExitStack() as stack:
            content = await asyncio.to_thread(
                stack.enter_context, checkpoint_file.opened(part.path, kind, self._cluster)
            )
            part.restored = True
            try:
                for number, (key, packed, looked_up_by) in enumerate(content.entries()):
                    part.informer.restore(key, packed, content.packer, looked_up_by)
                    if number % _AT_ONCE == 0:
                        await asyncio.sleep(0)
            except CheckpointError as error:
                log.error("%s", error)
            log.info("%d %s restored from %s", len(part.informer), kind, part.path)
            return content.head.known

    # --- while the edge runs ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write what changes, until cancelled."""
        with suppress(OSError):  # a disk that is read-only for now
            private_files.sweep(self._directory, *self._parts)
        while True:
            await self.look()
            await asyncio.sleep(_LOOK_SECONDS)

    async def look(self) -> None:
        """Write what is due."""
        now = self._monotonic()
        for kind, part in self._parts.items():
            if part.due(now):
                await self._write(kind, part)
        if now >= self._noted + _STILL_SO_SECONDS:
            self._noted = now
            # A disk that hangs must not hold up machines.
            await asyncio.to_thread(self._note_still_so, self._still_so())

    async def close(self) -> None:
        """Write what has changed since, at a clean end."""
        for kind, part in self._parts.items():
            if part.changed is not None and part.informer.has_synced:
                await self._write(kind, part)
        self._note_still_so(self._still_so())

    async def _write(self, kind: str, part: _Part) -> None:
        part.changed = None
        packed = part.informer.packed(part.keys() if part.keys is not None else None)
        known = self._clock() - part.informer.failing_for
        head = Head(kind, known, self._cluster, len(packed.objects))
        try:
            part.size = await asyncio.to_thread(self._write_down, part, head, packed)
        except OSError as error:
            self._failed(kind, part, error)
            return
        if part.failing:
            log.info("the checkpoint of %s is written again", kind)
        part.failing = False
        part.backoff.reset()
        part.not_before = self._monotonic() + max(_SHORTEST_SECONDS, part.size / _BYTES_PER_SECOND)

    def _write_down(self, part: _Part, head: Head, packed: Packed) -> int:
        """In a thread; the bytes that were written. Raises OSError, also where the disk is needed for more urgent
        things."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        if shutil.disk_usage(self._directory).free < part.size + _SPARE_BYTES:
            raise OSError(0, f"less than {_SPARE_BYTES >> 20} MiB would be free on the disk")
        if part.looked_up_by is None:
            return checkpoint_file.write(part.path, head, packed)
        return checkpoint_file.write(part.path, head, packed, part.looked_up_by)

    def _failed(self, kind: str, part: _Part, error: OSError) -> None:
        part.note(self._monotonic())
        part.not_before = self._monotonic() + part.backoff.next()
        if not part.failing:
            text = "the checkpoint of %s can't be written: %s: a start without the Kubernetes API would know less"
            log.warning(text, kind, error.strerror or error)
        part.failing = True

    def _still_so(self) -> list[Path]:
        """Which files have what the API has. To be asked in the event loop, as informers are."""
        return [
            part.path
            for part in self._parts.values()
            if part.changed is None and part.size and part.informer.has_synced and not part.informer.failing_for
        ]

    def _note_still_so(self, files: list[Path]) -> None:
        """Have them say so. In a thread."""
        now = self._clock()
        for path in files:
            try:
                os.utime(path, (now, now))
            except OSError as error:
                log.debug("%s: %s", path, error)

    @property
    def states(self) -> dict[str, tuple[int, bool]]:
        """Of each kind how many bytes were written last, and whether it can't be written now."""
        return {kind: (part.size, part.failing) for kind, part in self._parts.items()}


def checkpoint_metrics(checkpoint: Checkpoint | None) -> Iterator[Metric]:
    """What is kept for a start without the API; None: nothing."""
    states = checkpoint.states if checkpoint is not None else {}
    text = "What was written last of what is known, for a start without the API."
    sizes = {(kind,): size for kind, (size, _) in states.items()}
    yield gauge("tinkedge_checkpoint_size_bytes", text, ["resource"], sizes)
    failing = {(kind,): is_failing for kind, (_, is_failing) in states.items()}
    yield gauge("tinkedge_checkpoint_failing", "1: what has changed can't be written.", ["resource"], failing)


def discard(data_dir: Path) -> None:
    """Remove what an earlier run has kept: the operator does not want it any more. Raises OSError."""
    with suppress(FileNotFoundError):
        shutil.rmtree(data_dir / DIRECTORY)
