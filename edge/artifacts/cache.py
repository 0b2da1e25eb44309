"""The artifact cache: kernels and initrds of OSIE objects, fetched once for all machines.

`ArtifactCache.open(url)` returns an `Artifact`: its size, an open file, and the number of bytes that are available. A
download is written to a file that all its readers read while it grows. So a machine receives the first bytes at once,
and fifty machines cost the upstream one request.

An artifact on disk is served from there. After `revalidate_after` seconds, the next machine makes the cache ask the
upstream if the file has changed (ETag, Last-Modified). If the upstream is down or broken, the cache logs a line and
serves the stored bytes as `STALE`. If the OSIE demands a checksum, and its own URL has brought a file with that
checksum, no upstream is asked.

A file of another URL is not served, whatever its checksum: tenants may know the checksums of each other's files. So
each URL is fetched separately. An upstream's 304 proves nothing about another URL: only the bytes do.

A download continues after the machines that requested it have left, because they will request it again. `stop` keeps an
unfinished download, which continues with the first request after the next start.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, InitVar, dataclass, field
from functools import partial
from pathlib import Path

from prometheus_client.core import Metric

from edge.artifacts.artifact import (
    KINDS,
    Artifact,
    ArtifactError,
    BadUrlError,
    ChecksumError,
    Counts,
    DownloadProgress,
    NoRoomError,
    Source,
    StorageError,
    TooLargeError,
    UpstreamError,
    identity,
    open_file,
)
from edge.artifacts.checksum import FileSums, normalized
from edge.artifacts.download import Allocator, Download
from edge.artifacts.eviction import MAX_DOWNLOADS, Candidate, RoomClaim, download_to_end, download_to_preempt, host_of
from edge.artifacts.flight import Flight, Services
from edge.artifacts.passing import MAX_PASSING, Passing
from edge.artifacts.shared import SCHEME, LentFiles, SharedFiles
from edge.artifacts.store import ArtifactStore, StoredArtifact, key_of
from edge.artifacts.upstream import Copy, NoPeers, PeerCaches, Timeouts, Upstream
from tink.limits import Newest, OncePer
from tink.metrics.families import counter, gauge
from tink.net.outbound import Reach
from tink.net.urls import shown

log = logging.getLogger(__name__)

MAX_BACKOFF = 8
MAX_CHECKSUM_BACKOFF = 64
"""Maximum time for which a repeated failure is remembered, as a multiple of `remember_failures`. A wrong file is
remembered longer, because each attempt costs a whole download."""

MAX_FAILURES = 4096
MAX_FAILED_FETCHES = 100
"""Number of failed fetches that are listed for people, one for each URL. Only the newest are listed."""

LOG_INTERVAL_SECONDS = 30.0
"""Interval of log lines about the same problem with the same upstream."""


@dataclass(eq=False)
class ArtifactCache:
    """Artifacts by URL, stored in `directory`. Call `start` before use, and `stop` after.

    clock: returns monotonic seconds.
    timeouts: the limits of requests to upstreams.
    revalidate_after: seconds after which the upstream is asked if a stored file has changed.
    remember_failures: seconds for which a failed upstream is not asked again.
    budget: bytes on disk; None means all of the disk except a floor that stays free.
    file_root: the directory for file:// URLs, or None. The author of an OSIE object must not be able to read other
        files of this host.
    reach: the addresses that http and https URLs may lead to, by default no special ones (`tink.net.addresses`).
    peers: the caches of other edges, which are asked before an upstream.
    shared: the files that other edges may have (`edge:` URLs).
    wall_clock: returns seconds since the epoch.
    """

    directory: Path
    _: KW_ONLY
    clock: Callable[[], float] = time.monotonic
    timeouts: Timeouts = field(default_factory=Timeouts)
    revalidate_after: float = 10.0
    remember_failures: float = 2.0
    budget: int | None = None
    file_root: Path | None = None
    reach: Reach = field(default_factory=Reach)
    peers: PeerCaches | None = None
    shared: InitVar[SharedFiles | None] = None
    new_version: Callable[[], str] = lambda: uuid.uuid4().hex
    wall_clock: Callable[[], float] = time.time

    def __post_init__(self, shared: SharedFiles | None) -> None:
        self.counts = Counts()
        self._store = ArtifactStore(self.directory, self.clock)
        self._failed_fetches: Newest[str, FailedFetch] = Newest(MAX_FAILED_FETCHES)
        self._writers = ThreadPoolExecutor(max_workers=3, thread_name_prefix="artifact-writer")
        self._syncers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="artifact-syncer")
        self._sums = FileSums(self._syncers)
        self._lent = LentFiles(shared, self._sums, self.revalidate_after) if shared is not None else None
        self._room = Allocator(self._store, self.budget, self._syncers, self.counts, self._give_room)
        self._services: Services | None = None
        # By the key of the artifact, see `key_of`.
        self._checked: dict[str, _Check] = {}
        self._failures: Newest[str, _Failure] = Newest(MAX_FAILURES)
        self._flights: dict[str, Flight] = {}
        self._tasks: dict[Flight, asyncio.Task[None]] = {}
        self._passing: set[Passing] = set()
        self._logged = OncePer(LOG_INTERVAL_SECONDS, capacity=100)

    async def start(self) -> None:
        """Lock the directory, delete unusable leftovers of an earlier process, and evict files beyond the budget.

        Raises DirectoryInUseError, OSError.
        """
        await asyncio.to_thread(self._store.open)
        await self._room.shrink()
        self._services = Services(
            store=self._store,
            upstream=Upstream(self.timeouts, self.reach),
            peers=self.peers or NoPeers(),
            room=self._room,
            timeouts=self.timeouts,
            writers=self._writers,
            syncers=self._syncers,
            counts=self.counts,
            clock=self.clock,
            new_version=self.new_version,
        )

    async def stop(self) -> None:
        """Interrupt all downloads, which continue after the next start. Their readers get an error."""
        services, self._services = self._services, None
        for task in self._tasks.values():
            task.cancel()
        passing = [each.stop() for each in self._passing]
        await asyncio.gather(*self._tasks.values(), *passing, return_exceptions=True)
        await self._sums.stop()
        if services is not None:
            await services.upstream.close()
        self._writers.shutdown(wait=True)
        self._syncers.shutdown(wait=True)
        self._store.close()

    async def open(self, url: str, *, sha256: str = "") -> Artifact:
        """Open the artifact of `url`: at once if it is on disk, otherwise after the upstream's first bytes.

        `sha256` is the required checksum, 64 hexadecimal digits, or empty. The caller closes the artifact. Raises
        ArtifactError.
        """
        try:
            pin = normalized(sha256)
        except ValueError as error:
            reason = f"can't be checked: {error}, and the OSIE says {sha256[:80]!r}"
            raise self._counted(ChecksumError(url, reason)) from None
        if url.startswith("file:"):
            try:
                artifact = open_file(url, self.file_root)
                if pin and (found := await self._sha256(artifact, identity(artifact.fd))) != pin:
                    artifact.close()
                    raise ChecksumError(url, f"wrong SHA-256: the OSIE says {pin}, but the file has {found}")
            except ArtifactError as error:
                self._counted(error)
                self._note_failed_fetch(url, error)
                raise
            self._failed_fetches.pop(url, None)
        elif url.startswith(("http://", "https://")):
            artifact = await self._open_remote(url, pin)
        elif url.startswith(SCHEME) and self.peers is not None:
            try:
                artifact = await self._open_remote(url, pin)
            except (NoRoomError, TooLargeError) as error:
                artifact = await self._pass_through(self.peers, url, pin, error)
        else:
            raise self._counted(BadUrlError(url, "the scheme must be http, https or file"))
        self.counts.opened[artifact.source] += 1
        return artifact

    # --- for metrics and pages ---

    def downloads(self) -> list[DownloadProgress]:
        """Return the downloads in progress, oldest first."""
        return [flight.download.progress() for flight in self._flights.values() if flight.download is not None]

    def stored(self) -> list[StoredArtifact]:
        """Return the complete artifacts on disk, the least recently used first."""
        return self._store.whole()

    def failed_fetches(self) -> list[FailedFetch]:
        """Return the files whose last fetch failed, the newest failure first."""
        return list(reversed(self._failed_fetches.values()))

    # --- for other edges ---

    def held(self, key: str, pin: str) -> tuple[Copy | None, bool]:
        """Return the copy of an artifact and whether this edge is about to fetch it from its upstream.

        `key` is made by `edge.artifacts.store.key_of`.

        With `pin`, the copy must have that checksum. An unfinished copy from another edge does not count: otherwise two
        edges could wait for each other.
        """
        flight = self._flights.get(key)
        if flight is not None:
            download = flight.download
            if download is not None and self._is_shared(flight) and download.size is not None:
                validators = download.etag, download.last_modified
                return Copy(download.version, download.size, *validators, self.revalidate_after), True
        stored = self._store.fetched(key, pin)
        if stored is None:
            return None, flight is not None
        check = self._checked.get(stored.key)
        fresh = 0.0 if check is None or check.stale else max(0.0, check.until - self.clock())
        fresh = self.revalidate_after if pin else fresh
        copy = Copy(stored.version, stored.size, stored.etag, stored.last_modified, fresh, stored.sha256)
        return copy, flight is not None

    async def lend(self, url: str, pin: str) -> Copy | None:
        """Return the copy of a shared `edge:` URL that another edge may have, or None. Raises ArtifactError."""
        return await self._lent.lend(url, pin) if self._lent is not None else None

    async def open_held(self, key: str, pin: str, version: str) -> Artifact | None:
        """Open the copy that `held` returned; None if it is gone. The caller closes it. Raises ArtifactError."""
        if self._lent is not None and (lent := await self._lent.open(key, version)) is not None:
            return lent
        flight = self._flights.get(key)
        if flight is not None and flight.download is not None and flight.download.version == version:
            return flight.download.reader() if self._is_shared(flight) else None
        stored = self._store.fetched(key, pin)
        if stored is None or stored.version != version:
            return None
        return await self._open_intact(stored, stale=False)

    def _is_shared(self, flight: Flight) -> bool:
        """Return True if the flight's upstream is sending and other edges may read the file."""
        download = flight.download
        began = flight.answered.done() and download is not None and not download.ended
        return began and download is not None and download.source in (Source.UPSTREAM, Source.UPSTREAM_EDGE)

    # --- opening stored files ---

    async def _open_intact(self, stored: StoredArtifact, *, stale: bool) -> Artifact | None:
        """Open a stored file, after it was hashed once by this process; None if it is gone or damaged."""
        try:
            fd = self._store.hold(stored)
        except OSError as error:
            log.warning("artifact cache: %s can't be read from the cache: %s", shown(stored.url), error.strerror)
            self._store.forget(stored)
            return None
        source = Source.STALE if stale else Source.CACHE
        released = partial(self._store.release, stored.blob)
        version = stored.version
        artifact = Artifact(stored.url, fd, stored.size, version, source, known_sha256=stored.sha256, released=released)
        if await self._sha256(artifact, stored.blob) == stored.sha256:
            return artifact
        artifact.close()
        log.error("artifact cache: the file of %s was damaged on disk; it is fetched again", shown(stored.url))
        self._store.forget(stored)
        return None

    async def _sha256(self, artifact: Artifact, content: Hashable) -> str:
        """Return the checksum of an open file. Close the file and raise StorageError if it can't be read."""
        try:
            return await self._sums.of(content, artifact.fd, artifact.size)
        except OSError as error:
            artifact.close()
            raise StorageError(artifact.url, f"can't be read: {error.strerror}") from error
        except BaseException:
            artifact.close()
            raise

    # --- opening remote files ---

    async def _open_remote(self, url: str, pin: str) -> Artifact:
        for _ in range(3):
            artifact = await self._try_remote(url, pin, key_of(url, pin))
            if artifact is not None:
                return artifact
        raise StorageError(url, "the cached file disappeared several times while it was opened")

    async def _try_remote(self, url: str, pin: str, key: str) -> Artifact | None:
        """Open a stored file or a download; None if a stored file vanished meanwhile."""
        # A file with the demanded checksum that the URL brought earlier needs no request to the upstream.
        while pin and (stored := self._store.fetched(key, pin)) is not None:
            if (artifact := await self._open_intact(stored, stale=False)) is not None:
                return artifact
        flight = self._flights.get(key)
        if flight is None:
            stored, check = self._store.get(key), self._checked.get(key)
            if stored is not None and check is not None and self.clock() < check.until:
                return await self._open_intact(stored, stale=check.stale)
            failure = self._failures.get(key)
            if failure is not None and self.clock() < failure.until:
                raise failure.error.again()
            flight = self._start_flight(url, pin, stored)
        try:
            async with asyncio.timeout(self.timeouts.patience if flight.stored is not None else None):
                download = await asyncio.shield(flight.answered)
        except TimeoutError:
            return await self._open_intact(flight.stored, stale=True) if flight.stored is not None else None
        if download is not None and download.size is None:
            # The upstream sent no length, but machines need one: iPXE and UEFI firmware hang at the end of a body
            # without Content-Length.
            await download.whole()
        if download is not None and not download.ended:
            return download.reader()
        if download is not None and download.failure is not None:
            raise download.failure.again()
        stored, check = self._store.get(key), self._checked.get(key)
        return await self._open_intact(stored, stale=check is not None and check.stale) if stored is not None else None

    async def _pass_through(self, peers: PeerCaches, url: str, pin: str, why: ArtifactError) -> Artifact:
        """Open a file of another edge that can't be stored. Raises `why`, or another ArtifactError."""
        key = key_of(url, pin)
        if len(self._passing) >= MAX_PASSING:
            raise UpstreamError(url, f"{why.reason}, and {MAX_PASSING} such files are being passed through: try again")
        offer = await peers.find(key, url, pin, ())
        if self._services is None or offer is None:
            raise why.again()
        passing = Passing(url, key, pin, offer, self._services, self._passing.discard)
        self._passing.add(passing)
        if self._logged.due((key, "passed through"), self.clock()):
            log.warning("artifact cache: %s is passed through, and not kept: %s", shown(url), why.reason)
        return passing.reader()

    # --- flights ---

    def _start_flight(self, url: str, pin: str, stored: StoredArtifact | None) -> Flight:
        if self._services is None:
            raise UpstreamError(url, "the artifact cache is not running")
        if len(self._flights) >= MAX_DOWNLOADS:
            self._preempt_one(url)
        flight = Flight(url, pin, stored, self._services)
        self._flights[flight.key] = flight
        task = self._tasks[flight] = asyncio.create_task(self._run_flight(flight), name=f"artifact {shown(url)}")
        task.add_done_callback(lambda _: self._tasks.pop(flight))
        return flight

    def _preempt_one(self, url: str) -> None:
        """End one download, so that another may begin. Raises UpstreamError if all are ending already."""
        now = self.clock()
        flight = download_to_preempt(
            (flight, Candidate(flight.url, flight.received, now - flight.started))
            for flight, task in self._tasks.items()
            if flight.under_way and not task.cancelling()
        )
        if flight is None:
            raise UpstreamError(url, f"{MAX_DOWNLOADS} other downloads are under way: try again")
        flight.why_cancelled = f"gave way to another download: it was slow, and {MAX_DOWNLOADS} were under way"
        if self._logged.due("gave way", now):
            log.warning("artifact cache: %s: %s", shown(flight.url), flight.why_cancelled)
        self._tasks[flight].cancel()

    async def _give_room(self, asking: Download, size: int, capacity: int) -> bool:
        """End a download of an upstream that holds more than its share. Return False if there is none."""
        others = {flight: task for flight, task in self._tasks.items() if flight.download not in (None, asking)}
        ending = [task for task in others.values() if task.cancelling()]
        if not ending:
            claims = [
                (each, RoomClaim(each.url, self._store.claimed(download.part), download.size is not None))
                for each in others
                if (download := each.download) is not None
                and (download.size is None or download.written < download.size)
            ]
            flight = download_to_end(claims, RoomClaim(asking.url, size, asking.size is not None), capacity)
            if flight is None:
                return False
            flight.why_cancelled = (
                f"gave way to files of other upstreams: {host_of(flight.url)} held more than its share of the cache, "
                f"which may hold {capacity} bytes (see --cache-size)"
            )
            if self._logged.due(("gave room", host_of(flight.url)), self.clock()):
                log.warning("artifact cache: %s: %s", shown(flight.url), flight.why_cancelled)
            others[flight].cancel()
            ending = [others[flight]]
        await asyncio.wait(ending)
        return True

    async def _run_flight(self, flight: Flight) -> None:
        """Run a flight and record its result. Never raises an ArtifactError."""
        key, url = flight.key, flight.url
        try:
            stored = await flight.run()
        except ArtifactError as error:
            self._failed(flight, error)
        else:
            self._failures.pop(key, None)
            self._failed_fetches.pop(url, None)
            self._checked[key] = self._check(stale=flight.stale, fresh=flight.fresh)
            if stored is None:
                flight.answered.set_result(None)
            else:
                self._sums.learn(stored.blob, stored.sha256)
                log.info("artifact cache: stored %s, %d bytes, SHA-256 %s", shown(url), stored.size, stored.sha256)
        finally:
            del self._flights[key]
            flight.fail(UpstreamError(url, flight.why_cancelled))

    def _counted(self, error: ArtifactError) -> ArtifactError:
        """Count a failure for the metrics, and return it."""
        self.counts.failures[error.kind] += 1
        return error

    def _failed(self, flight: Flight, error: ArtifactError) -> None:
        """Pass an error to the waiting readers, or serve the stored file. Do not ask the upstream again at once."""
        self._counted(error)
        self._note_failed_fetch(flight.url, error)
        key, stored = flight.key, self._store.get(flight.key)
        if flight.answered.done():
            if self._logged.due((key, error.reason), self.clock()):
                log.error("artifact cache: %s", error)
            # An interrupted download may be requested at once: it resumes.
            wait = self._remember(key, error, MAX_CHECKSUM_BACKOFF) if isinstance(error, ChecksumError) else 0.0
            if stored is not None:  # a machine that tries again gets the stored file
                self._checked[key] = self._check(stale=True, at_least=wait)
        elif stored is not None and isinstance(error, UpstreamError):
            if self._logged.due((key, error.reason), self.clock()):
                log.warning("artifact cache: the stored file is served, because its upstream can't be asked: %s", error)
            self._checked[key] = self._check(stale=True)
            flight.answered.set_result(None)
        else:
            self._remember(key, error, MAX_BACKOFF)
            flight.fail(error)

    def _note_failed_fetch(self, url: str, error: ArtifactError) -> None:
        times = before.times + 1 if (before := self._failed_fetches.get(url)) is not None else 1
        self._failed_fetches[url] = FailedFetch(url, error.reason, self.wall_clock(), times)

    def _check(self, *, stale: bool, at_least: float = 0.0, fresh: float | None = None) -> _Check:
        """Return the time of the next check. `fresh`: the remaining seconds at another edge, which this one keeps."""
        seconds = self.revalidate_after if fresh is None else min(fresh, self.revalidate_after)
        return _Check(self.clock() + max(seconds, at_least), stale)

    def _remember(self, key: str, error: ArtifactError, longest: int) -> float:
        """Remember a failure. Return the number of seconds."""
        now, before = self.clock(), self._failures.get(key)
        seconds = self.remember_failures
        if before is not None and now - before.until <= before.seconds * 2:
            seconds = min(before.seconds * 2, seconds * longest)
        self._failures[key] = _Failure(error, now + seconds, seconds)
        return seconds


@dataclass(frozen=True, slots=True)
class FailedFetch:
    """A file whose last fetch failed: the reason, the time (seconds since the epoch), and the number of failures in a
    row."""

    url: str
    reason: str
    at: float
    times: int


@dataclass(frozen=True, slots=True)
class _Check:
    """The last check of a stored artifact with its upstream.

    It is valid until `until` (monotonic seconds). `stale` is True if the upstream could not answer.
    """

    until: float
    stale: bool


@dataclass(frozen=True, slots=True)
class _Failure:
    """A failure of an upstream, which is not asked again before `until` (monotonic seconds): for `seconds`."""

    error: ArtifactError
    until: float
    seconds: float


def cache_metrics(cache: ArtifactCache) -> Iterator[Metric]:
    """Yield the metrics of the cache."""
    # No label has a URL: OSIEs come and go, and the series would accumulate.
    counts = cache.counts
    text = "Kernels and initrds that machines were given, by where the bytes came from."
    opened = {(source.value.replace(" ", "_"),): counts.opened[source] for source in Source}
    yield counter("tinkedge_artifact_opens", text, ["source"], opened)
    failures = {(kind.replace(" ", "_"),): counts.failures[kind] for kind in KINDS}
    text = "Fetches of kernels and initrds that failed, by reason."
    yield counter("tinkedge_artifact_failures", text, ["kind"], failures)
    for name, text, value in (
        ("downloads", "Downloads of kernels and initrds that have begun.", counts.downloads),
        ("resumptions", "Downloads that went on where they had broken off.", counts.resumptions),
        ("revalidations", "Times that an upstream said that the stored file is still the right one.",
         counts.revalidations),
        ("evictions", "Files that made room for others.", counts.evictions),
        ("fetched_bytes", "Bytes of kernels and initrds that came from upstreams.", counts.fetched_bytes),
        ("peer_downloads", "Kernels and initrds that came from other edges.", counts.from_peers),
        ("peer_bytes", "Bytes of kernels and initrds that came from other edges.", counts.peer_bytes),
    ):  # fmt: skip
        yield counter(f"tinkedge_artifact_{name}", text, [], {(): value})
    downloads, sizes = cache.downloads(), [stored.size for stored in cache.stored()]
    received = sum(download.received for download in downloads)
    expected = sum(download.size for download in downloads if download.size is not None)
    waiting = sum(download.waiting for download in downloads)
    for name, text, value in (
        ("stored_bytes", "Size of the kernels and initrds that are on disk.", sum(sizes)),
        ("stored_files", "Kernels and initrds that are on disk.", len(sizes)),
        ("downloads_in_progress", "Downloads that are going on.", len(downloads)),
        ("downloads_received_bytes", "Bytes that are there of downloads that are going on.", received),
        ("downloads_expected_bytes", "Bytes that these will have, where it is known.", expected),
        ("machines_waiting", "Machines that are sent a file while it is downloaded.", waiting),
    ):
        yield gauge(f"tinkedge_artifact_{name}", text, [], {(): value})
