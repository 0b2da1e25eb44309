"""A flight: a request to an upstream, and the download that may follow, for all machines that wait for one artifact.

The order of events in `Flight.run`:

    pick up     open the unfinished download of the same file, if the store has one
    ask         the other edges of the site, then the upstream: for the rest of that download; or if the stored file is
                still valid; or for the file
    receive     write and hash the body in a thread, chunk by chunk, and notify the readers. Now and then fsync it and
                write a journal (`ArtifactStore.checkpoint`), so that a restart can continue from there
    resume      if the upstream breaks off: by Range if the upstream supports it, otherwise by fetching everything again
                and comparing it with the received bytes. Readers wait meanwhile and do not notice. Bytes from another
                edge that went away before it signed them are always compared
    keep        if the checksum is right: the file becomes the artifact of its URL

Readers get bytes as they arrive, so a download never mixes the bytes of two versions.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass

from edge.artifacts.artifact import (
    ArtifactError,
    ChangedError,
    ChecksumError,
    Counts,
    PeerError,
    Source,
    StorageError,
    UpstreamError,
    UpstreamTimeoutError,
    WrongContentError,
    in_thread,
)
from edge.artifacts.checksum import from_sidecar, hash_file, sidecar_url
from edge.artifacts.download import Allocator, Download
from edge.artifacts.store import ArtifactStore, StoredArtifact, Unfinished, key_of
from edge.artifacts.upstream import (
    Copy,
    Known,
    Offer,
    PeerCaches,
    PeerResponse,
    RangeError,
    Timeouts,
    Upstream,
    UpstreamResponse,
)
from tink.net.urls import shown

log = logging.getLogger(__name__)


CHECKPOINT_BYTES = 32 << 20
CHECKPOINT_SECONDS = 2.0
"""Interval of checkpoints, in bytes and in time: a crash loses at most that much."""

PROGRESS_BYTES = 1 << 20
"""Bytes that an attempt must bring. An attempt with fewer bytes counts as one without progress."""


@dataclass(frozen=True, slots=True)
class Services:
    """The services that all flights share. `writers` run quick work, `syncers` run fsync and other slow disk work."""

    store: ArtifactStore
    upstream: Upstream
    peers: PeerCaches
    room: Allocator
    timeouts: Timeouts
    writers: Executor
    syncers: Executor
    counts: Counts
    clock: Callable[[], float]
    new_version: Callable[[], str]


class Flight:
    """A request for `url`, with the checksum `pin` if the OSIE demands one. `stored` is the artifact on disk, or None.

    answered: a future that returns the started download, or None if the stored file is to be served. The caller of
        `run` sets its exception.
    why_cancelled: the caller that cancels `run` may set the reason before.
    fresh: seconds for which another edge vouches that the file is current; None if the upstream itself answered.
    stale: True if the upstream could not be asked.
    """

    def __init__(self, url: str, pin: str, stored: StoredArtifact | None, services: Services) -> None:
        self.url = url
        self.pin = pin
        self.stored = stored
        self.answered: asyncio.Future[Download | None] = asyncio.get_running_loop().create_future()
        self.download: Download | None = None
        self.key = key_of(url, pin)
        self.started = services.clock()
        self.fresh: float | None = None
        self.stale = False
        self.under_way = False
        self.why_cancelled = "the edge is stopping"
        self._services = services
        self._ranges = True
        self._avoided: set[str] = set()
        self._offer: Offer | None = None
        self._signed_sha256 = ""
        self._deadline = services.clock() + services.timeouts.total
        self._hashing: asyncio.Future[None] | None = None
        self._sidecar: asyncio.Task[str] | None = None
        self._checkpoint: asyncio.Task[bool] | None = None
        self._checkpointed = (0, services.clock())

    @property
    def received(self) -> int:
        """The number of bytes that this flight has received."""
        return self.download.written - self.download.resumed if self.download is not None else 0

    def fail(self, error: ArtifactError) -> None:
        """Pass an error to the machines that wait for `answered`, if any."""
        if not self.answered.done():
            self.answered.set_exception(error)
            self.answered.exception()  # marks it as retrieved: the waiting machines may have left

    async def run(self) -> StoredArtifact | None:
        """Run the flight. Return the new artifact, or None if the stored file is current. Raises ArtifactError."""
        self.under_way = True
        try:
            await self._pick_up()
            download = await self._receive_all()
            if download is None:
                await self._end(None)
                return None
            return await self._keep(download)
        except ArtifactError as error:
            await self._end(error)
            raise
        except OSError as error:
            failure = StorageError(self.url, f"can't be written to the cache: {error.strerror}")
            await self._end(failure)
            raise failure from error
        finally:
            if self.download is not None and not self.download.ended:  # cancelled
                await self._end(UpstreamError(self.url, self.why_cancelled))

    # --- asking ---

    async def _pick_up(self) -> None:
        """Open an unfinished download, if its bytes match its journal."""
        services = self._services
        unfinished = services.store.take_unfinished(self.url, self.pin)
        if unfinished is None:
            return
        part = services.store.location(unfinished)
        try:
            fd = services.store.reopen(unfinished)
        except OSError:
            services.store.discard(part)
            return
        self.download = Download(self.url, self.pin, unfinished.version, part, fd)
        digest = await in_thread(services.writers, hash_file, fd, unfinished.received)
        if digest.hexdigest() != unfinished.sha256:
            log.warning("artifact cache: the unfinished download of %s is damaged; it starts again", shown(self.url))
            self._drop_download()
        else:
            self.download.go_on_from(unfinished, digest)

    async def _receive_all(self) -> Download | None:
        """Send requests until all bytes are here. Return None if the stored file is current. Raises ArtifactError."""
        vain, pause, before = 0, self._services.timeouts.pause, 0
        while True:
            try:
                return await self._attempt()
            except RangeError:
                self._ranges = False
                continue
            except PeerError as error:
                log.info("artifact cache: %s", error)
                self._services.counts.failures[error.kind] += 1
                self._avoided.add(error.peer)
                continue
            except (ChangedError, WrongContentError):
                raise
            except UpstreamError as error:
                download = self.download
                if download is None or not self.answered.done():
                    raise
                if download.written - before >= PROGRESS_BYTES:
                    vain, pause = 0, self._services.timeouts.pause
                before = download.written
                if vain == self._services.timeouts.retries:
                    raise
                log.info("artifact cache: resuming in %.3g s, from byte %d on: %s", pause, download.written, error)
            await asyncio.sleep(pause)
            vain, pause = vain + 1, pause * 2

    async def _attempt(self) -> Download | None:
        """Send one request and receive its whole body. Return None if the stored file is current."""
        seconds = self._deadline - self._services.clock()
        if seconds <= 0:
            raise UpstreamTimeoutError(self.url, f"not there within {self._services.timeouts.total:g} s")
        await self._hashed()
        self.stale = False
        offer = await self._services.peers.find(self.key, self.url, self.pin, self._avoided)
        continues = offer is not None and (not self.answered.done() or self._continues(offer.copy))
        if offer is not None and offer.copy.fresh > 0 and continues:
            self.fresh = offer.copy.fresh
            return await self._accept(offer)
        try:
            return await self._ask_upstream(offer, seconds)
        except UpstreamError as error:
            if offer is None or self.stored is not None or self.download is not None:
                raise
            log.warning("artifact cache: another edge's copy is used, because the upstream can't be asked: %s", error)
            self.stale, self.fresh = True, None
            return await self._accept(offer)

    async def _ask_upstream(self, offer: Offer | None, seconds: float) -> Download | None:
        """Send a request to the upstream; if only another edge has the file, ask if that copy is current."""
        if self._is_unsigned and self.download is not None:
            self._ranges = False
        known, borrowed = self._known(), False
        if known == Known() and offer is not None and self.download is None:
            known, borrowed = Known(etag=offer.copy.etag, last_modified=offer.copy.last_modified), True
        async with self._services.upstream.get(self.url, known, seconds=seconds) as answer:
            self.fresh = None
            if not answer.not_modified:
                await answer.first()
                return await self._receive(answer)
            self._services.counts.revalidations += 1
        return await self._accept(offer) if borrowed and offer is not None else None

    # --- other edges ---

    @property
    def _is_unsigned(self) -> bool:
        """True if the bytes came from another edge that has not signed them, and no checksum is known."""
        return self._offer is not None and not self._signed_sha256 and not self.pin

    async def _accept(self, offer: Offer) -> Download | None:
        """Receive a peer's copy. Return None if it equals the stored file. Raises PeerError."""
        copy, stored = offer.copy, self.stored
        if stored is not None and not self.answered.done():
            same = copy.same_as(stored.etag, stored.last_modified, stored.size)
            if copy.sha256 == stored.sha256 if copy.sha256 else same:
                return None
        if not self._continues(copy):
            self._drop_download()
        offset = self.download.hashed if self.download is not None else 0
        services = self._services
        try:
            async with services.peers.get(offer, self.url, self.key, self.pin, offset) as answer:
                download = await self._receive(answer, offer)
        except PeerError:
            raise
        except UpstreamError as error:
            raise PeerError(self.url, f"from the edge {offer.address}: {error.reason}", offer.peer) from error
        self._signed_sha256 = answer.sha256
        services.counts.from_peers += 1
        return download

    def _continues(self, copy: Copy) -> bool:
        """Return True if the download, if any, is the start of a peer's copy."""
        download = self.download
        if download is None or download.size != copy.size:
            return download is None
        return bool(self.pin) or copy.same_as(download.etag, download.last_modified, download.size)

    async def _receive(self, answer: UpstreamResponse, offer: Offer | None = None) -> Download:
        """Receive the body of an answer up to its end. `offer` is given for a peer's answer."""
        if self.download is not None and not self.answered.done() and answer.start == 0:
            self._drop_download()  # it has no readers yet, and the whole file comes again
        services = self._services
        if self.download is None:
            version = services.new_version()
            part = services.store.part_path(self.url, version, self.pin)
            fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            self.download = Download(self.url, self.pin, version, part, fd)
            self.download.describe(answer)
        download = self.download
        self._offer, self._signed_sha256 = offer or self._offer, ""
        download.source = offer.source if offer is not None else Source.UPSTREAM
        if offer is not None:
            download.withhold()
        if not self.answered.done():
            await services.room.allocate(download)
            services.counts.downloads += 1
            self._checkpointed = (download.written, services.clock())
            self.answered.set_result(download)
        if offer is None and not self.pin and self._sidecar is None:
            self._sidecar = asyncio.create_task(self._read_sidecar(download))
        await self._write_body(download, answer)
        return download

    def _known(self) -> Known:
        download, stored = self.download, self.stored
        if download is not None and (unfinished := download.unfinished()) is not None and self._ranges:
            validators = unfinished.etag, unfinished.last_modified, unfinished.validator
            return Known(*validators, offset=unfinished.received, size=unfinished.size)
        if stored is not None and not self.answered.done():
            return Known(etag=stored.etag, last_modified=stored.last_modified)
        return Known()

    # --- receiving ---

    async def _write_body(self, download: Download, answer: UpstreamResponse) -> None:
        """Write the body. Bytes that the file has already must be the same."""
        async with aclosing(answer.body(self._services.clock)) as body:
            if answer.start < download.written:
                await self._add(download, await self._skip(download, answer, body))
            elif download.written:
                self._services.counts.resumptions += 1
            async for chunk in body:
                self._count(answer, chunk)
                await self._add(download, chunk)

    def _count(self, answer: UpstreamResponse, chunk: bytes) -> None:
        if isinstance(answer, PeerResponse):
            self._services.counts.peer_bytes += len(chunk)
        else:
            self._services.counts.fetched_bytes += len(chunk)

    async def _add(self, download: Download, chunk: bytes) -> None:
        if not chunk:
            return
        await self._services.room.extend(download, len(chunk))
        await in_thread(self._services.writers, download.write, chunk)
        download.notify()
        await self._hashed()
        self._checkpoint_if_due(download)
        # Hash this chunk while the next one is received and written.
        loop = asyncio.get_running_loop()
        self._hashing = loop.run_in_executor(self._services.writers, download.hash, chunk)

    async def _hashed(self) -> None:
        """Wait for the chunk that is being hashed."""
        if self._hashing is not None:
            await asyncio.wait([self._hashing])
            self._hashing.result()

    async def _skip(self, download: Download, answer: UpstreamResponse, body: AsyncIterator[bytes]) -> bytes:
        """Return the first bytes beyond the received ones, of a body that starts too early. Raises ChangedError."""
        if answer.size != download.size:
            raise ChangedError(self.url, f"has {answer.size} bytes now; it had {download.size} when it broke off")
        ahead, again = download.written, hashlib.sha256()
        async for chunk in body:
            self._count(answer, chunk)
            known, beyond = chunk[:ahead], chunk[ahead:]
            await in_thread(self._services.writers, again.update, known)
            ahead -= len(known)
            if not ahead:
                if again.digest() != download.digest.digest():
                    break
                # The received bytes are also the start of the new version, so its rest fits, whatever its ETag.
                download.describe(answer)
                return beyond
        raise ChangedError(self.url, "became another file while it was being fetched")

    # --- keeping ---

    async def _keep(self, download: Download) -> StoredArtifact:
        """Store the complete file as the artifact, if its checksum is right. Raises ChecksumError, OSError."""
        services = self._services
        await self._hashed()
        sha256 = download.digest.hexdigest()
        await self._check(sha256)
        download.sha256 = sha256
        download.release()
        if self._checkpoint is not None:
            await asyncio.wait([self._checkpoint])
        blob, validators = download.part.with_suffix(".blob").name, (download.etag, download.last_modified)
        stored = StoredArtifact(self.url, blob, download.written, sha256, *validators, pin=self.pin)
        await in_thread(services.syncers, services.store.commit, stored, download.part, download.fd)
        services.store.adopt(stored, download.part)
        download.end(None)
        return stored

    async def _check(self, sha256: str) -> None:
        """Compare with the OSIE's checksum, or with the sending edge's, or with the sidecar's. Raises ChecksumError."""
        expected, source = self.pin, "the OSIE says"
        if not expected and self._signed_sha256:
            expected, source = self._signed_sha256, "the edge that it came from says"
        elif not expected and self._sidecar is not None:
            expected, source = await self._sidecar, f"{shown(sidecar_url(self.url))} says"
        if expected and expected != sha256:
            if self._offer is not None:
                self._services.peers.distrust(self._offer, self.key)
            raise ChecksumError(self.url, f"wrong SHA-256: {source} {expected}, but what came has {sha256}")

    async def _read_sidecar(self, download: Download) -> str:
        """Return the checksum of the sidecar file. Without a usable one, return "" and accept the file unchecked."""
        expected = ""
        try:
            content = await self._services.upstream.sidecar(self.url)
            if content:
                expected = from_sidecar(content, self.url)
        except (UpstreamError, ValueError) as error:
            log.warning("artifact cache: %s is ignored: %s", shown(sidecar_url(self.url)), error)
        if not expected:
            download.release()
        return expected

    async def _end(self, failure: ArtifactError | None) -> None:
        """End the download: keep it if it can be resumed, and pass the failure to readers. Idempotent."""
        if self._sidecar is not None:
            self._sidecar.cancel()
            await asyncio.wait([self._sidecar])
        await self._hashed()
        if self._checkpoint is not None:
            await asyncio.wait([self._checkpoint])
        download, store = self.download, self._services.store
        if download is None or download.ended:
            return
        can_resume = isinstance(failure, UpstreamError) and not isinstance(failure, (ChangedError, WrongContentError))
        unfinished = download.unfinished() if can_resume and not self._is_unsigned else None
        try:
            if unfinished is not None and await self._write_checkpoint(unfinished, download.fd):
                store.keep_unfinished(unfinished)
            else:
                store.discard(download.part)
        finally:
            download.end(failure)

    def _drop_download(self) -> None:
        """Drop the download, which has no readers yet."""
        download, self.download = self.download, None
        if download is not None:
            self._services.store.discard(download.part)
            download.end(None)

    # --- checkpoints ---

    def _checkpoint_if_due(self, download: Download) -> None:
        at, time = self._checkpointed
        is_due = download.hashed - at >= CHECKPOINT_BYTES or self._services.clock() - time >= CHECKPOINT_SECONDS
        if not is_due or (self._checkpoint is not None and not self._checkpoint.done()):
            return
        unfinished = None if self._is_unsigned else download.unfinished()
        if unfinished is not None:
            self._checkpointed = (download.hashed, self._services.clock())
            self._checkpoint = asyncio.create_task(self._write_checkpoint(unfinished, download.fd))

    async def _write_checkpoint(self, unfinished: Unfinished, fd: int) -> bool:
        try:
            await in_thread(self._services.syncers, self._services.store.checkpoint, unfinished, fd)
        except OSError as error:
            log.warning("artifact cache: no checkpoint of %s: %s", shown(self.url), error.strerror)
            return False
        return True
