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
    GrowingFile,
    StorageError,
    UpstreamError,
    in_thread,
)
from edge.artifacts.download import TAIL_BYTES
from edge.artifacts.flight import Services
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


class Passing(GrowingFile):
    """One reader's transfer of a peer's copy of `url`, with the checksum `pin` if there is one."""

    size: int

    def __init__(
        self, url: str, key: str, pin: str, offer: Offer, services: Services, gone: Callable[[Passing], None]
    ) -> None:
        """`gone` is called when the reader has closed its file. Raises StorageError."""
        fd = -1
        try:
            fd = os.memfd_create("passed-through", os.MFD_CLOEXEC)
            os.truncate(fd, offer.copy.size)
            self._reader_fd = os.dup(fd)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            raise StorageError(url, f"can't be passed through: {error.strerror}") from error
        super().__init__(url, fd, offer.copy.size)
        self.readers = 1
        self._key, self._pin = key, pin
        self._offer = offer
        self._services = services
        self._gone = gone
        self._start = self._read = self._freed = 0
        self._task: asyncio.Task[None] | None = None
        self._is_verified = False
        self._digest = hashlib.sha256()

    def reader(self) -> Artifact:
        """Return the reader. Call it once. Bytes before the last offset of `Artifact.filled` are freed soon."""
        version, source = self._offer.copy.version, self._offer.source
        return Artifact(self.url, self._reader_fd, self.size, version, source, self, released=self._released)

    async def stop(self) -> None:
        """Abort the transfer. Its reader gets an error."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def filled(self, offset: int) -> int:
        """Return the number of readable bytes once it exceeds `offset`, before which bytes are freed."""
        if self._task is None:
            self._start = self.written = self._freed = offset
            self._task = asyncio.create_task(self._pass())
        self._read = max(self._read, offset)
        first = self._freed - self._freed % _STEP_BYTES
        end = (self._read - BEHIND_BYTES) // _STEP_BYTES * _STEP_BYTES
        if end > first:  # free the bytes that are far enough behind the reader
            mode = _KEEP_SIZE | _PUNCH_HOLE
            _libc.fallocate(self.fd, mode, ctypes.c_long(first), ctypes.c_long(end - first))
            self._freed = end
        self.notify()
        return await super().filled(offset)

    @property
    def readable(self) -> int:
        """The number of bytes that the reader may have."""
        if self._is_verified or self._start:
            return self.written
        return min(self.written, self.size - TAIL_BYTES)

    # --- the transfer ---

    async def _pass(self) -> None:
        try:
            await self._receive_all()
        except ArtifactError as error:
            self.failure = error
        except OSError as error:
            self.failure = StorageError(self.url, f"can't be passed through: {error.strerror}")
        except asyncio.CancelledError:
            self.failure = UpstreamError(self.url, "the edge is stopping")
            raise
        except Exception as error:
            log.exception("passing %s through", shown(self.url))
            self.failure = StorageError(self.url, f"internal error: {error!r}")
        finally:
            self.ended = True
            self.notify()

    async def _receive_all(self) -> None:
        """Receive the file, with retries. Raises ArtifactError, OSError."""
        timeouts, vain = self._services.timeouts, 0
        while self.readable < self.size:
            before = self.written
            try:
                await self._receive()
            except UpstreamError:
                vain = vain + 1 if self.written == before else 0
                if vain > timeouts.retries:
                    raise
                await asyncio.sleep(timeouts.pause * 2**vain)
                # Ask for a new offer: the peer may have restarted.
                offer = await self._services.peers.find(self._key, self.url, self._pin, ())
                if offer is not None:
                    if (offer.copy.version, offer.copy.size) != (self._offer.copy.version, self.size):
                        raise ChangedError(self.url, "became another file while it was passed through") from None
                    self._offer = offer

    async def _receive(self) -> None:
        """Request the rest, and receive it."""
        peers = self._services.peers
        # If only the signature is missing, request the last byte again: the signature follows it.
        offset = min(self.written, self.size - 1)
        is_known = offset < self.written
        async with peers.get(self._offer, self.url, self._key, self._pin, offset) as answer:
            async with aclosing(answer.body(self._services.clock)) as body:
                async for chunk in body:
                    self._services.counts.peer_bytes += len(chunk)
                    if not is_known:
                        await self._add(chunk)
            self._check(answer.sha256)

    async def _add(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view:
            while self.written - self._read >= AHEAD_BYTES:
                await self._changed.wait()
            piece = view[: AHEAD_BYTES - (self.written - self._read)]
            await in_thread(self._services.writers, self.write, piece)
            view = view[len(piece) :]
            self.notify()

    def write(self, chunk: bytes | memoryview) -> None:
        """Append to the file and to the checksum, like `GrowingFile.write`."""
        super().write(chunk)
        if not self._start:
            self._digest.update(chunk)

    def _check(self, signed: str) -> None:
        """Compare the checksum of a transfer from the first byte. Raises ChecksumError."""
        if not self._start:
            found, wanted = self._digest.hexdigest(), self._pin or signed
            if wanted and found != wanted:
                self._services.peers.distrust(self._offer, self._key)
                raise ChecksumError(self.url, f"wrong SHA-256: it should be {wanted}, but what came has {found}")
            self.sha256 = found
        self._is_verified = True
        self.notify()

    def _released(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            self._task.add_done_callback(lambda _: self._released())
            return
        os.close(self.fd)
        self._gone(self)
