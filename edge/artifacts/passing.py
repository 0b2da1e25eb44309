"""Passes a file of another edge through to one reader, because the cache has no room for it. Nothing is stored.

    the other edge -> up to AHEAD_BYTES ahead of the reader -> a file in memory with the size of the whole file, whose
    bytes are freed again BEHIND_BYTES after the reader

The reader sees the same as with a download: a file that fills, with all bytes at their offsets. It may be in another
process. Each reader has its own transfer, which starts at the reader's offset (Range) and resumes if it breaks off. A
transfer from the first byte is checked against the SHA-256 that the other edge signs, and its end is withheld until
then. A transfer of a part can't be checked; its reader needs a digest of its own, or requests the whole file.
"""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import logging
import os
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

from edge.artifacts.artifact import (
    Artifact,
    ArtifactError,
    ChangedError,
    ChecksumError,
    PeerError,
    Progress,
    StorageError,
    UpstreamError,
    in_thread,
)
from edge.artifacts.download import TAIL_BYTES
from edge.artifacts.flight import Services, source_of
from edge.artifacts.upstream import Offer
from tink.net.urls import shown

log = logging.getLogger(__name__)


MAX_PASSING: Final = 16
"""Number of readers at a time."""
AHEAD_BYTES: Final = 4 << 20
BEHIND_BYTES: Final = 4 << 20
"""Bytes behind the reader that stay available, because the kernel may still send them: more than tcp_wmem."""
_STEP_BYTES: Final = 2 << 20
"""Holes begin and end at multiples of this, so that no page is cut, not even a huge one."""

# linux/falloc.h
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_libc = ctypes.CDLL(None, use_errno=True)


class Passing:
    """One reader's transfer of a peer's copy of `url`, with the checksum `pin` if there is one."""

    def __init__(
        self, url: str, key: str, pin: str, offer: Offer, services: Services, gone: Callable[[Passing], None]
    ) -> None:
        """`gone` is called when the reader has closed its file. Raises StorageError."""
        self._url, self._key, self._pin = url, key, pin
        self._offer = offer
        self._services = services
        self._gone = gone
        self._size = offer.copy.size
        self._start = self._written = self._read = self._freed = 0
        self._failure: ArtifactError | None = None
        self._task: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()
        self._is_verified = False
        self._sha256 = ""
        self._digest = hashlib.sha256()
        self._fd = -1
        try:
            self._fd = os.memfd_create("passed-through", os.MFD_CLOEXEC)
            os.truncate(self._fd, self._size)
            self._reader_fd = os.dup(self._fd)
        except OSError as error:
            if self._fd >= 0:
                os.close(self._fd)
            raise StorageError(url, f"can't be passed through: {error.strerror}") from error

    def reader(self) -> Artifact:
        """Return the reader. Call it once. Bytes before the last offset of `Artifact.filled` are freed soon."""
        version, source = self._offer.copy.version, source_of(self._offer)
        return Artifact(self._url, self._reader_fd, self._size, version, source, self, released=self._released)

    async def stop(self) -> None:
        """Abort the transfer. Its reader gets an error."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    # --- for the reader: `edge.artifacts.artifact.Filling` ---

    def progress(self) -> Progress:
        """Return the progress."""
        return Progress(self._url, self._written, self._size, 1)

    async def filled(self, offset: int) -> int:
        """Return the number of available bytes as soon as it exceeds `offset`. Earlier bytes may be freed.

        Raises ArtifactError.
        """
        if self._task is None:
            self._start = self._written = self._freed = offset
            self._task = asyncio.create_task(self._pass())
        self._read = max(self._read, offset)
        self._free()
        self._move()
        while self._readable <= offset and self._failure is None:
            await self._moved.wait()
        if self._readable <= offset and self._failure is not None:
            raise self._failure.again()
        return self._readable

    async def whole_sha256(self) -> str:
        """Return the verified checksum of the whole file; empty for a part. Raises ArtifactError."""
        while self._readable < self._size and self._failure is None:
            await self._moved.wait()
        if self._failure is not None:
            raise self._failure.again()
        return self._sha256

    # --- the transfer ---

    async def _pass(self) -> None:
        try:
            await self._receive_all()
        except ArtifactError as error:
            self._failure = error
        except OSError as error:
            self._failure = StorageError(self._url, f"can't be passed through: {error.strerror}")
        except asyncio.CancelledError:
            self._failure = UpstreamError(self._url, "the edge is stopping")
            raise
        except Exception as error:
            log.exception("passing %s through", shown(self._url))
            self._failure = StorageError(self._url, f"internal error: {error!r}")
        finally:
            self._move()

    async def _receive_all(self) -> None:
        """Receive the file, with retries. Raises ArtifactError, OSError."""
        timeouts, vain = self._services.timeouts, 0
        while self._readable < self._size:
            before = self._written
            try:
                await self._receive()
            except UpstreamError:
                vain = vain + 1 if self._written == before else 0
                if vain > timeouts.retries:
                    raise
                await asyncio.sleep(timeouts.pause * 2**vain)
                await self._find_again()

    async def _find_again(self) -> None:
        """Ask the peer for a new offer: it may have restarted. Raises ChangedError, NotFoundError."""
        peers, before = self._services.peers, self._offer.copy
        offer = await peers.find(self._key, self._url, self._pin, ()) if peers is not None else None
        if offer is not None:
            if (offer.copy.version, offer.copy.size) != (before.version, before.size):
                raise ChangedError(self._url, "became another file while it was passed through")
            self._offer = offer

    async def _receive(self) -> None:
        """Request the rest, and receive it."""
        peers = self._services.peers
        if peers is None:
            raise PeerError(self._url, "there is no other edge")
        # If only the signature is missing, request the last byte again: the signature follows it.
        offset = min(self._written, self._size - 1)
        is_known = offset < self._written
        async with peers.get(self._offer, self._url, self._key, self._pin, offset) as answer:
            async with aclosing(answer.body(self._services.clock)) as body:
                async for chunk in body:
                    self._services.counts.peer_bytes += len(chunk)
                    if not is_known:
                        await self._add(chunk)
            self._check(answer.sha256)

    async def _add(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view:
            while self._written - self._read >= AHEAD_BYTES:
                await self._moved.wait()
            piece = view[: AHEAD_BYTES - (self._written - self._read)]
            await in_thread(self._services.writers, self._write, piece)
            view = view[len(piece) :]
            self._move()

    def _write(self, piece: memoryview) -> None:
        offset, left = self._written, piece
        while left:
            count = os.pwrite(self._fd, left, offset)
            left, offset = left[count:], offset + count
        if not self._start:
            self._digest.update(piece)
        self._written = offset

    def _check(self, signed: str) -> None:
        """Compare the checksum of a transfer from the first byte. Raises ChecksumError."""
        if not self._start:
            found, wanted = self._digest.hexdigest(), self._pin or signed
            if wanted and found != wanted:
                if self._services.peers is not None:
                    self._services.peers.distrust(self._offer, self._key)
                raise ChecksumError(self._url, f"wrong SHA-256: it should be {wanted}, but what came has {found}")
            self._sha256 = found
        self._is_verified = True
        self._move()

    @property
    def _readable(self) -> int:
        if self._is_verified or self._start:
            return self._written
        return min(self._written, self._size - TAIL_BYTES)

    def _move(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    # --- freeing ---

    def _free(self) -> None:
        """Free the bytes that are far enough behind the reader."""
        first = self._freed - self._freed % _STEP_BYTES
        end = (self._read - BEHIND_BYTES) // _STEP_BYTES * _STEP_BYTES
        if end > first:
            mode = _KEEP_SIZE | _PUNCH_HOLE
            _libc.fallocate(self._fd, mode, ctypes.c_long(first), ctypes.c_long(end - first))
            self._freed = end

    def _released(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task.add_done_callback(lambda _: self._close())
        else:
            self._close()

    def _close(self) -> None:
        os.close(self._fd)
        self._gone(self)
