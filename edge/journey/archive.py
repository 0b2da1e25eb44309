"""The journal of journey events in two bounded files, so that journeys survive a restart of the edge.

    DATA_DIR/journey/events     the newest events; a full file is renamed to
    DATA_DIR/journey/before     the older events

A file is a line that names the format, followed by pieces. A piece is 4 bytes of length, the CRC-32 of the data
(network byte order), and the data: deflated JSON, a list of events in the form of `edge.journey.history`. A piece has
the events of a second or more. A killed process or a full disk can only leave an incomplete last piece: a reader
ignores it, and the next writer cuts it off.

Answering a packet does not wait for the archive. Once a second a task collects the new events, a few machines at a
time, and a thread compresses and writes them. Only the owner can read the files (0600).
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

from edge.journey.history import Happened, is_from_elsewhere, plain, read
from edge.journey.recorder import Journey, News

log = logging.getLogger(__name__)

DIRECTORY: Final = "journey"
"""The name of the journal's directory in the data directory."""
MAX_BYTES: Final = 8 << 20
"""Maximum size of each file: some hundred thousand events."""
INTERVAL_SECONDS: Final = 1.0
MAX_AT_ONCE: Final = 1000
"""Maximum number of events in a piece, which costs 1 % of a processor; others are written a second later."""
_OTHERS_WAITING: Final = 10_000
_PORTION: Final = 100
_PLAIN: Final = 500
_MAGIC: Final = b"tinkedge-journey/1\n"
_HEAD: Final = struct.Struct("!II")
_MAX_PIECE: Final = 16 << 20
_MAX_PLAIN: Final = 64 << 20
_SPARE_BYTES: Final = 64 << 20
"""Minimum free disk space; below it, no events are written."""
_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


class Archive:
    """The journal of one data directory. Belongs to one event loop; `run` it."""

    def __init__(
        self, journey: Journey, data_dir: Path, clock: Callable[[], float] = time.time, *, max_bytes: int = MAX_BYTES
    ) -> None:
        """`clock` is the journey's."""
        self._journey = journey
        self._directory = data_dir / DIRECTORY
        self._max_bytes = max_bytes
        self._news = News(journey, lambda entry: not is_from_elsewhere(entry), clock)
        self._others: deque[Happened] = deque(maxlen=_OTHERS_WAITING)
        self._failing = ""
        self._is_whole = False
        self.restored = asyncio.Event()
        """Set when the journey has the events of earlier runs."""

    def keep(self, happened: Happened) -> None:
        """Write an event that another process of the site has published, too."""
        self._others.append(happened)

    # --- at a start ---------------------------------------------------------------------------------------------------

    async def restore(self) -> int:
        """Load the events of earlier runs into the journey and return their number. Never raises."""
        count = 0
        for name in ("before", "events"):
            pieces = _pieces(self._directory / name)
            while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
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
        """Restore, then write once a second until cancelled, and once more at the end."""
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
        """Write the new events. Never raises: events that can't be written are lost, and the reason is logged once."""
        taken = [self._others.popleft() for _ in range(min(len(self._others), MAX_AT_ONCE // 2))]
        for number, happened in enumerate(self._news.take(), start=1):
            taken += happened
            if len(taken) >= MAX_AT_ONCE:
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
                log.warning("journeys are not stored for the next start: %s: %s", self._directory, why)
            self._failing = why
        else:
            self._failing = ""

    def _append(self, taken: list[Happened]) -> None:
        """Write a piece. Runs in a thread, which yields to the event loop between portions. Raises OSError."""
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
            if not self._is_whole:
                _truncate_to_whole(file)
            size = os.fstat(file.fileno()).st_size
            self._is_whole = False  # until the write below is complete
            file.write((b"" if size else _MAGIC) + _HEAD.pack(len(packed), zlib.crc32(packed)) + packed)
            self._is_whole = True
            full = os.fstat(file.fileno()).st_size >= self._max_bytes
        if full:
            path.replace(self._directory / "before")


def _truncate_to_whole(file: BinaryIO) -> None:
    """Cut off an incomplete last piece. A file in another format is emptied."""
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
    """Yield the complete pieces of a file, oldest first; none of a file of another owner or format."""
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
            log.warning("%s is ignored: it is not a file that belongs to this user alone", path)
            return
        try:
            yield from _whole_pieces(file, path)
        except OSError as error:
            log.warning("%s can't be read further: %s", path, error.strerror)


def _whole_pieces(file: BinaryIO, path: Path) -> Iterator[list[Any]]:
    if file.read(len(_MAGIC)) != _MAGIC:
        log.warning("%s is ignored: it is from another release, or damaged", path)
        return
    while len(head := file.read(_HEAD.size)) == _HEAD.size:
        length, checksum = _HEAD.unpack(head)
        packed = file.read(length) if length <= _MAX_PIECE else b""
        if len(packed) != length or zlib.crc32(packed) != checksum:
            log.warning("%s is damaged: the rest of it is ignored", path)
            return
        text = zlib.decompressobj().decompress(packed, _MAX_PLAIN)
        try:
            found = orjson.loads(text)
        except orjson.JSONDecodeError:
            continue
        if isinstance(found, list):
            yield found
