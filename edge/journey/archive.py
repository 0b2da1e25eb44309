"""The journeys of earlier runs, in two bounded files: an edge that was started again knows what machines did before.

    DATA_DIR/journey/events     what was written last      -> when it is full, it becomes
    DATA_DIR/journey/before     what was written before that

A file is a line that says what it is, and pieces: 4 bytes of length, the CRC-32 of what follows (network order), and
deflated JSON, a list of `edge.journey.records`. A piece is what happened in a second or more. A process that is killed,
or a disk without room, can only leave a last piece that is cut off: it is passed over, and the next run begins another
file behind what is whole.

Nothing is done for it while a packet is answered: it is looked once a second what has happened, a few machines at a
time, and a thread packs and writes that. The files are for their owner alone (0600).
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import struct
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

from edge.journey.history import is_from_elsewhere
from edge.journey.news import News
from edge.journey.recorder import Journey
from edge.journey.records import Happened, plain, read

log = logging.getLogger(__name__)

DIRECTORY: Final = "journey"
"""Its name in the data directory."""
MAX_BYTES: Final = 8 << 20
"""Of each of the two files: some hundred thousand events."""
INTERVAL_SECONDS: Final = 1.0
AT_ONCE: Final = 1000
"""Events of one piece, which take a hundredth of a processor in a second; what is more has its turn a second later."""
_OTHERS_WAITING: Final = 10_000
_PORTION: Final = 100
_PLAIN: Final = 500
_MAGIC: Final = b"tinkedge-journey/1\n"
_HEAD: Final = struct.Struct("!II")
_MAX_PIECE: Final = 16 << 20
_MAX_PLAIN: Final = 64 << 20
_SPARE_BYTES: Final = 64 << 20
"""What a writing leaves free on the disk."""
_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


class Archive:
    """Belongs to one event loop, and to the one process that has this data directory. `restore`, then `run`."""

    def __init__(
        self,
        journey: Journey,
        data_dir: Path,
        clock: Callable[[], float] = time.time,
        *,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """`clock` is the journey's."""
        self._journey = journey
        self._directory = data_dir / DIRECTORY
        self._max_bytes = max_bytes
        self._news = News(journey, lambda entry: not is_from_elsewhere(entry), clock)
        self._others: deque[Happened] = deque(maxlen=_OTHERS_WAITING)
        self._failing = ""
        self._mended = False
        self.restored = asyncio.Event()
        """When the journey has what there was."""

    def keep(self, happened: Happened) -> None:
        """What another process of the site has seen is to be written, too."""
        self._others.append(happened)

    # --- at a start ---------------------------------------------------------------------------------------------------

    async def restore(self) -> int:
        """Give the journey what earlier runs have written; how many events. Never raises."""
        count = 0
        for name in ("before", "events"):
            pieces = _pieces(self._directory / name)
            while (piece := await asyncio.to_thread(_next, pieces)) is not None:
                for at, found in enumerate(piece, start=1):
                    event = read(found)
                    if event is not None:
                        self._journey.take_in(event[1], event[0], event[2], now=False)
                        count += 1
                    if at % _PORTION == 0:
                        await asyncio.sleep(0)
        return count

    # --- from then on -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Restore, then write for ever; once more at the end."""
        try:
            await self.restore()
            self.restored.set()
            while True:
                await asyncio.sleep(INTERVAL_SECONDS)
                await self.write()
        finally:
            await self.write()
            self._news.close()

    async def write(self) -> None:
        """Write what has happened. Never raises: what can't be written is lost, and said once."""
        taken = [self._others.popleft() for _ in range(min(len(self._others), AT_ONCE // 2))]
        for number, happened in enumerate(self._news.take(), start=1):
            taken += happened
            if len(taken) >= AT_ONCE:
                break
            if number % _PORTION == 0:
                await asyncio.sleep(0)
        if not taken:
            return
        try:
            await asyncio.to_thread(self._append, taken)
        except OSError as error:
            why = error.strerror or str(error)
            if why != self._failing:
                log.warning("what machines did is not kept for the next start: %s: %s", self._directory, why)
            self._failing = why
        else:
            self._failing = ""

    def _append(self, taken: list[Happened]) -> None:
        """In a thread, which gives way to the event loop between portions. Raises OSError."""
        compressor, packed = zlib.compressobj(3), bytearray()
        packed += compressor.compress(b"[")
        for start in range(0, len(taken), _PLAIN):
            text = orjson.dumps([plain(each) for each in taken[start : start + _PLAIN]])[1:-1]
            packed += compressor.compress(b"," + text if start else text)
        packed += compressor.compress(b"]") + compressor.flush()
        path = self._directory / "events"
        self._directory.mkdir(mode=0o700, exist_ok=True)
        free = os.statvfs(self._directory)
        if free.f_bavail * free.f_frsize < _SPARE_BYTES:
            raise OSError(0, "the disk is nearly full")
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_APPEND
        with os.fdopen(os.open(path, flags, 0o600), "r+b", buffering=0) as file:
            if not self._mended:
                _mend(file)
            size = os.fstat(file.fileno()).st_size
            self._mended = False  # should this be cut short
            file.write((b"" if size else _MAGIC) + _HEAD.pack(len(packed), zlib.crc32(packed)) + packed)
            self._mended = True
            full = os.fstat(file.fileno()).st_size >= self._max_bytes
        if full:
            path.replace(self._directory / "before")


def _mend(file: BinaryIO) -> None:
    """Cut off what a killed writer has left at the end. What is no file of ours begins anew."""
    size = os.fstat(file.fileno()).st_size
    whole = 0
    file.seek(0)
    if file.read(len(_MAGIC)) == _MAGIC:
        whole = len(_MAGIC)
        while (end := whole + _HEAD.size) <= size:
            file.seek(whole)
            length, _ = _HEAD.unpack(file.read(_HEAD.size))
            if end + length > size:
                break
            whole = end + length
    if whole < size:
        file.truncate(whole)


def _pieces(path: Path) -> Iterator[list[Any]]:
    """Those of a file that are whole, oldest first; nothing of a file that is none of ours."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("%s can't be read: %s", path, error.strerror)
        return
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
            log.warning("%s is ignored: it is no file of ours alone", path)
            return
        try:
            yield from _whole_pieces(file, path)
        except OSError as error:
            log.warning("%s can't be read on: %s", path, error.strerror)


def _whole_pieces(file: BinaryIO, path: Path) -> Iterator[list[Any]]:
    if file.read(len(_MAGIC)) != _MAGIC:
        log.warning("%s is ignored: it is of another release, or damaged", path)
        return
    while len(head := file.read(_HEAD.size)) == _HEAD.size:
        length, checksum = _HEAD.unpack(head)
        packed = file.read(length) if length <= _MAX_PIECE else b""
        if len(packed) != length or zlib.crc32(packed) != checksum:
            log.warning("%s is damaged: what stands behind that is ignored", path)
            return
        text = zlib.decompressobj().decompress(packed, _MAX_PLAIN)
        try:
            found = orjson.loads(text)
        except orjson.JSONDecodeError:
            continue
        if isinstance(found, list):
            yield found


def _next(pieces: Iterator[list[Any]]) -> list[Any] | None:
    return next(pieces, None)
