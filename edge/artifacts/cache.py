"""The artifact cache: kernels and initrds named by OSIE objects, fetched once for all machines.

`ArtifactCache.open(url)` gives an `Artifact`: its size, an open file, and how far that file is filled. A download is
written to a file that all who ask read from while it grows, so a machine starts to receive with the first bytes, and
fifty machines cost the upstream one request. The rooms behind this door:

    flight      one question to an upstream and the download that follows; goes on where it broke off
    peers       the caches of other edges, which are asked first
    download    the file that fills, and its readers
    upstream    HTTP, and its troubles in our words
    checksum    of the OSIE, of `<url>.sha256`, of files
    store       the directory: what is whole, what was broken off; survives a crash at any moment
    room, eviction    what goes when there is no room
    local       file:// URLs: served from the file itself, never copied

An artifact that is on disk is served from there. After `revalidate_after` seconds the next machine makes the cache
ask the upstream whether it has changed (ETag, Last-Modified); an upstream that is down or broken costs nothing but a
log line then, the stored bytes are served as `STALE`. If the OSIE demands a checksum, and its own URL has brought a
file with that checksum, no upstream is asked. A file of another URL is not served, whatever its checksum: tenants may
know the checksums of each other's files. Each URL is fetched once for itself. An upstream's 304 proves nothing for
another URL: only the bytes do.

A download continues when the machines that requested it have left: they, or others, will request it again. `stop`
keeps an unfinished download. It continues with the first request after the next start.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from edge.artifacts.artifact import Artifact, Progress, Source
from edge.artifacts.checksum import FileSums, normalized
from edge.artifacts.errors import (
    ArtifactError,
    BadUrlError,
    ChecksumError,
    NoRoomError,
    StorageError,
    TooLargeError,
    UpstreamError,
)
from edge.artifacts.fetch.download import Download
from edge.artifacts.fetch.flight import Flight
from edge.artifacts.fetch.passing import MAX_PASSING, Passing
from edge.artifacts.fetch.peers import Copy, PeerCaches
from edge.artifacts.fetch.preemption import MAX_DOWNLOADS, Candidate, Claim, giving_room, host_of, preempted
from edge.artifacts.fetch.services import Services
from edge.artifacts.fetch.upstream import Timeouts, Upstream
from edge.artifacts.local import identity, open_file
from edge.artifacts.metrics import Counts
from edge.artifacts.shared import SCHEME, LentFiles, SharedFiles
from edge.artifacts.storage.room import Allocator
from edge.artifacts.storage.store import Store, Stored, key_of
from tink.limits.newest import Newest
from tink.limits.once_per import OncePer
from tink.net.outbound import Reach
from tink.net.urls import shown

log = logging.getLogger(__name__)

LONGEST_MEMORY = 8
LONGEST_CHECKSUM_MEMORY = 64
"""Up to how many times `remember_failures` a failure is remembered when it happens again and again; a wrong file is
remembered longer, for it costs a whole download to see it again."""

MAX_FAILURES = 4096
MAX_FAILED_FETCHES = 100
"""Failed fetches that are kept for people, by URL; of more, the newest."""

SAY_SECONDS = 30.0
"""The same trouble with the same upstream gets a log line once in so many seconds."""

_Key = tuple[str, str]
"""A URL, and the checksum that the OSIE demands (may be empty)."""


class ArtifactCache:
    """Artifacts by URL, kept in `directory`. `start` before use, `stop` after."""

    def __init__(
        self,
        directory: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        timeouts: Timeouts | None = None,
        revalidate_after: float = 10.0,
        remember_failures: float = 2.0,
        budget: int | None = None,
        file_root: Path | None = None,
        reach: Reach | None = None,
        peers: PeerCaches | None = None,
        shared: SharedFiles | None = None,
        new_version: Callable[[], str] = lambda: uuid.uuid4().hex,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` gives monotonic seconds, `wall_clock` seconds since the epoch; `new_version` gives a hexadecimal name
        that no other download had.

        `budget` is how many bytes may be kept (None: as many as the disk has, but for a floor that stays free).
        An upstream that gave no answer is not asked again for `remember_failures` seconds.
        file:// URLs may name files below `file_root` only (None: none at all): who may write an OSIE object must not be
        able to have this host's other files served. Nor its other services: `reach` says where URLs of http and https
        may lead (None: to no special address, see `tink.net.addresses`). `peers`: the caches of other edges,
        which are asked before an upstream is. `shared` are the files that they may have from this edge (`edge:` URLs).
        """
        self.counts = Counts()
        self._store = Store(directory, clock)
        self._file_root = file_root
        self._reach = reach or Reach()
        self._peers = peers
        self._clock = clock
        self._timeouts = timeouts or Timeouts()
        self._revalidate_after = revalidate_after
        self._remember_failures = remember_failures
        self._new_version = new_version
        self._wall_clock = wall_clock
        self._failed_fetches: Newest[str, FailedFetch] = Newest(MAX_FAILED_FETCHES)
        self._writers = ThreadPoolExecutor(max_workers=3, thread_name_prefix="artifact-writer")
        self._syncers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="artifact-syncer")
        self._sums = FileSums(self._syncers)
        self._lent = LentFiles(shared, self._sums, revalidate_after) if shared is not None else None
        self._room = Allocator(self._store, budget, self._syncers, self.counts, self._give_room)
        self._services: Services | None = None
        self._checked: dict[_Key, _Check] = {}
        self._failures: dict[_Key, _Failure] = {}
        self._flights: dict[_Key, Flight] = {}
        self._tasks: dict[Flight, asyncio.Task[None]] = {}
        self._passing: set[Passing] = set()
        self._said = OncePer(SAY_SECONDS, capacity=100)

    async def start(self) -> None:
        """Take the directory, sweep what an earlier process left and can't be used, and keep within the budget.

        Raises DirectoryInUseError, OSError.
        """
        await asyncio.to_thread(self._store.open)
        await self._room.shrink()
        self._services = Services(
            store=self._store,
            upstream=Upstream(self._timeouts, self._reach),
            peers=self._peers,
            room=self._room,
            timeouts=self._timeouts,
            writers=self._writers,
            syncers=self._syncers,
            counts=self.counts,
            clock=self._clock,
            new_version=self._new_version,
        )

    async def stop(self) -> None:
        """Break downloads off, to be gone on with after the next start; whoever reads from one gets an error."""
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
        """Get hold of the artifact of `url`: at once if it is on disk, else when the upstream's first bytes are there.

        `sha256`: the only bytes that will do, 64 hexadecimal digits. The caller closes the artifact. Raises
        ArtifactError.
        """
        try:
            pin = normalized(sha256)
        except ValueError as error:
            words = f"can't be checked: {error}, and the OSIE says {sha256[:80]!r}"
            raise self._counted(ChecksumError(url, words)) from None
        if url.startswith("file:"):
            try:
                artifact = await self._open_local(url, pin)
            except ArtifactError as error:
                self._counted(error)
                self._note_failed_fetch(url, error)
                raise
            self._failed_fetches.pop(url, None)
        elif url.startswith(("http://", "https://")):
            artifact = await self._open_remote((url, pin))
        elif url.startswith(SCHEME) and self._peers is not None:
            try:
                artifact = await self._open_remote((url, pin))
            except (NoRoomError, TooLargeError) as error:
                artifact = await self._pass_through(self._peers, (url, pin), error)
        else:
            raise self._counted(BadUrlError(url, "the scheme must be http, https or file"))
        self.counts.opened[artifact.source] += 1
        return artifact

    def same_until(self, url: str, sha256: str, version: str) -> float:
        """Until when (seconds of the clock) `open` would give this `version` again, if nobody removes it; 0: it has
        to be looked at each time."""
        pin = normalized(sha256)
        stored, check = self._store.brought(key_of(url, pin), pin), self._checked.get((url, pin))
        if stored is None or stored.version != version:
            return 0.0
        if pin:
            return self._clock() + self._revalidate_after
        return check.until if check is not None and (url, pin) not in self._flights else 0.0

    # --- what others show ---

    def downloads(self) -> list[Progress]:
        """Those in progress, oldest first."""
        return [flight.download.progress() for flight in self._flights.values() if flight.download is not None]

    def stored(self) -> list[Stored]:
        """Those on disk, whole, in no order."""
        return self._store.whole()

    def failed_fetches(self) -> list[FailedFetch]:
        """Return the files whose last fetch failed, the newest failure first."""
        return list(reversed(self._failed_fetches.values()))

    @property
    def stored_bytes(self) -> int:
        """Size of what is on disk, whole."""
        return sum(stored.size for stored in self._store.whole())

    @property
    def stored_files(self) -> int:
        """How many artifacts are on disk, whole."""
        return len(self._store.whole())

    # --- what other edges are given ---

    def held(self, key: str, pin: str) -> tuple[Copy | None, bool]:
        """Return the copy of an artifact and whether this edge is about to fetch it from its upstream.

        `key` is made by `edge.artifacts.storage.store.key_of`.

        With `pin`, the copy must have that checksum. An unfinished copy from another edge does not count: otherwise two
        edges could wait for each other.
        """
        flight = self._flight(key)
        if flight is not None:
            download = flight.download
            if download is not None and self._is_shared(flight) and download.size is not None:
                copy = Copy(
                    download.version, download.size, download.etag, download.last_modified, self._revalidate_after
                )
                return copy, True
        stored = self._store.brought(key, pin)
        if stored is None:
            return None, flight is not None
        check = self._checked.get((stored.url, stored.pin))
        fresh = 0.0 if check is None or check.stale else max(0.0, check.until - self._clock())
        fresh = self._revalidate_after if pin else fresh
        copy = Copy(stored.version, stored.size, stored.etag, stored.last_modified, fresh, stored.sha256)
        return copy, flight is not None

    def held_of(self, url: str, pin: str) -> Copy | None:
        """The copy of `url` that others may have from here now."""
        return self.held(key_of(url, pin), pin)[0]

    async def lend(self, url: str, pin: str) -> Copy | None:
        """The copy of an `edge:` URL that another edge may have, if it is among the `shared`. Raises ArtifactError."""
        return await self._lent.lend(url, pin) if self._lent is not None else None

    async def open_held(self, key: str, pin: str, version: str) -> Artifact | None:
        """The copy that `held` has named; None if it has gone. The caller closes it. Raises ArtifactError."""
        if self._lent is not None and (lent := await self._lent.open(key, version)) is not None:
            return lent
        flight = self._flight(key)
        if flight is not None and flight.download is not None and flight.download.version == version:
            return flight.download.reader() if self._is_shared(flight) else None
        stored = self._store.brought(key, pin)
        if stored is None or stored.version != version:
            return None
        return await self._open_intact(stored, stale=False)

    def _flight(self, key: str) -> Flight | None:
        return next((flight for flight in self._flights.values() if flight.key == key), None)

    def _is_shared(self, flight: Flight) -> bool:
        """Whether its upstream sends, and others may read what comes."""
        download = flight.download
        began = flight.answered.done() and download is not None and not download.ended
        return began and download is not None and download.source in (Source.UPSTREAM, Source.UPSTREAM_EDGE)

    # --- opening what is here ---

    async def _open_local(self, url: str, pin: str) -> Artifact:
        artifact = open_file(url, self._file_root)
        if pin and (found := await self._sha256(artifact, identity(artifact.fd))) != pin:
            artifact.close()
            raise ChecksumError(url, f"wrong SHA-256: the OSIE says {pin}, but the file has {found}")
        return artifact

    async def _open_pinned(self, url: str, pin: str) -> Artifact | None:
        """Open the file that `url` brought earlier, without a request to the upstream.

        Return None if there is no such file with the checksum `pin`. A file from before this start is hashed once
        before it is used.
        """
        while (stored := self._store.brought(key_of(url, pin), pin)) is not None:
            if (artifact := await self._open_intact(stored, stale=False)) is not None:
                return artifact
        return None

    async def _open_intact(self, stored: Stored, *, stale: bool) -> Artifact | None:
        """A stored file, which was stored by this process or hashed once since it started; None if it is damaged."""
        artifact = self._open_stored(stored, stale=stale)
        if artifact is None or await self._sha256(artifact, stored.blob) == stored.sha256:
            return artifact
        artifact.close()
        log.error("artifact cache: the file of %s was damaged on disk; it is fetched anew", shown(stored.url))
        self._store.forget(stored)
        return None

    async def _sha256(self, artifact: Artifact, content: Hashable) -> str:
        """The checksum of an open file, which is closed if it can't be had. Raises StorageError."""
        try:
            return await self._sums.of(content, artifact.fd, artifact.size)
        except OSError as error:
            artifact.close()
            raise StorageError(artifact.url, f"can't be read: {error.strerror}") from error
        except BaseException:
            artifact.close()
            raise

    def _open_stored(self, stored: Stored, *, stale: bool) -> Artifact | None:
        """None if the file is gone: whoever deleted it, it can be fetched anew."""
        try:
            fd = self._store.hold(stored)
        except OSError as error:
            log.warning("artifact cache: %s can't be read from the cache: %s", shown(stored.url), error.strerror)
            self._store.forget(stored)
            return None
        source = Source.STALE if stale else Source.CACHE
        blob = stored.blob
        return Artifact(
            stored.url,
            fd,
            stored.size,
            stored.version,
            source,
            None,
            sha256=stored.sha256,
            released=lambda: self._store.release(blob),
        )

    # --- opening what is to be asked for ---

    async def _open_remote(self, key: _Key) -> Artifact:
        for _ in range(3):
            artifact = await self._try_remote(key)
            if artifact is not None:
                return artifact
        raise StorageError(key[0], "it was in the cache a moment ago, and is gone, again and again")

    async def _try_remote(self, key: _Key) -> Artifact | None:
        """None if what was here is gone."""
        url, pin = key
        if pin and (artifact := await self._open_pinned(url, pin)) is not None:
            return artifact
        flight = self._flights.get(key)
        if flight is None:
            stored, check = self._store.get(url, pin), self._checked.get(key)
            if stored is not None and check is not None and self._clock() < check.until:
                return await self._open_intact(stored, stale=check.stale)
            self._raise_remembered(key)
            flight = self._take_off(key, stored)
        try:
            async with asyncio.timeout(self._timeouts.patience if flight.stored is not None else None):
                download = await asyncio.shield(flight.answered)
        except TimeoutError:
            return await self._open_intact(flight.stored, stale=True) if flight.stored is not None else None
        if download is not None and download.size is None:
            # The upstream did not say how long the file is, but a machine must be told: iPXE and UEFI firmware
            # hang at the end of a body without Content-Length.
            await download.whole()
        if download is not None and not download.ended:
            return download.reader()
        if download is not None and download.failure is not None:
            raise download.failure.again()
        stored, check = self._store.get(url, pin), self._checked.get(key)
        return await self._open_intact(stored, stale=check is not None and check.stale) if stored is not None else None

    async def _pass_through(self, peers: PeerCaches, key: _Key, why: ArtifactError) -> Artifact:
        """A file of another edge that can't be kept: to this one reader. Raises `why`, or another ArtifactError."""
        url, pin = key
        if len(self._passing) >= MAX_PASSING:
            raise UpstreamError(url, f"{why.reason}, and {MAX_PASSING} such files are being passed through: try again")
        offer = await peers.find(key_of(url, pin), url, pin, ())
        if self._services is None or offer is None:
            raise why.again()
        passing = Passing(url, key_of(url, pin), pin, offer, self._services, self._passing.discard)
        self._passing.add(passing)
        if self._said.due((key, "passed through"), self._clock()):
            log.warning("artifact cache: %s is passed through, and not kept: %s", shown(url), why.reason)
        return passing.reader()

    # --- flights ---

    def _take_off(self, key: _Key, stored: Stored | None) -> Flight:
        url, pin = key
        if self._services is None:
            raise UpstreamError(url, "the artifact cache is not running")
        if len(self._flights) >= MAX_DOWNLOADS:
            self._make_way(url)
        flight = Flight(url, pin, stored, self._services)
        self._flights[key] = flight
        task = self._tasks[flight] = asyncio.create_task(self._fly(key, flight), name=f"artifact {shown(url)}")
        task.add_done_callback(lambda _: self._tasks.pop(flight))
        return flight

    def _make_way(self, url: str) -> None:
        """End one download, so that another may begin. Raises UpstreamError if all are at their end already."""
        now = self._clock()
        flight = preempted(
            (flight, Candidate(flight.url, flight.received, now - flight.started))
            for flight, task in self._tasks.items()
            if flight.under_way and not task.cancelling()
        )
        if flight is None:
            raise UpstreamError(url, f"{MAX_DOWNLOADS} other downloads are under way: try again")
        flight.why_cancelled = f"gave way to another download: it was slow, and {MAX_DOWNLOADS} were under way"
        if self._said.due("gave way", now):
            log.warning("artifact cache: %s: %s", shown(flight.url), flight.why_cancelled)
        self._tasks[flight].cancel()

    async def _give_room(self, asking: Download, size: int, capacity: int) -> bool:
        """End a download of an upstream that holds more than its share, for `asking`, which wants `size` bytes in all.

        Return when its room is free, or False if there is no such download.
        """
        others = {flight: task for flight, task in self._tasks.items() if flight.download not in (None, asking)}
        ending = [task for task in others.values() if task.cancelling()]
        if not ending:
            wanted = Claim(asking.url, size, asking.size is not None)
            flight = giving_room(self._claims(others), wanted, capacity)
            if flight is None:
                return False
            flight.why_cancelled = (
                f"gave way to files of other upstreams: {host_of(flight.url)} held more than its share of the cache, "
                f"which may hold {capacity} bytes (see --cache-size)"
            )
            if self._said.due(("gave room", host_of(flight.url)), self._clock()):
                log.warning("artifact cache: %s: %s", shown(flight.url), flight.why_cancelled)
            others[flight].cancel()
            ending = [others[flight]]
        await asyncio.wait(ending)
        return True

    def _claims(self, flights: Iterable[Flight]) -> Iterator[tuple[Flight, Claim]]:
        """The room of downloads, but of those of which all bytes are there."""
        for flight in flights:
            download = flight.download
            if download is not None and (download.size is None or download.written < download.size):
                yield flight, Claim(flight.url, self._store.claimed(download.part), download.size is not None)

    async def _fly(self, key: _Key, flight: Flight) -> None:
        """Never raises an ArtifactError."""
        url, _ = key
        try:
            stored = await flight.run()
        except ArtifactError as error:
            self._failed(key, flight, error)
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

    def _failed(self, key: _Key, flight: Flight, error: ArtifactError) -> None:
        """Tell those who wait, or give them what there is; and do not ask again at once."""
        self._counted(error)
        self._note_failed_fetch(key[0], error)
        stored = self._store.get(*key)
        if flight.answered.done():
            if self._said.due((key, error.reason), self._clock()):
                log.error("artifact cache: %s", error)
            # What broke off may be asked for at once: it goes on where it was.
            wait = self._remember(key, error, LONGEST_CHECKSUM_MEMORY) if isinstance(error, ChecksumError) else 0.0
            if stored is not None:  # the machine that tries again gets what there is
                self._checked[key] = self._check(stale=True, at_least=wait)
        elif stored is not None and isinstance(error, UpstreamError):
            if self._said.due((key, error.reason), self._clock()):
                log.warning("artifact cache: the stored file is served, for its upstream can't be asked: %s", error)
            self._checked[key] = self._check(stale=True)
            flight.answered.set_result(None)
        else:
            self._remember(key, error, LONGEST_MEMORY)
            flight.fail(error)

    def _note_failed_fetch(self, url: str, error: ArtifactError) -> None:
        before = self._failed_fetches.get(url)
        times = before.times + 1 if before is not None else 1
        self._failed_fetches[url] = FailedFetch(url, error.reason, self._wall_clock(), times)

    def _check(self, *, stale: bool, at_least: float = 0.0, fresh: float | None = None) -> _Check:
        """`fresh`: for how many seconds another edge took it to be fresh, which is not to grow from edge to edge."""
        seconds = self._revalidate_after if fresh is None else min(fresh, self._revalidate_after)
        return _Check(self._clock() + max(seconds, at_least), stale)

    def _remember(self, key: _Key, error: ArtifactError, longest: int) -> float:
        """Gives for how many seconds."""
        now = self._clock()
        # Those of URLs that nobody asks for any more.
        for old in [old for old, failure in self._failures.items() if now - failure.until > failure.seconds * 2]:
            del self._failures[old]
        before = self._failures.get(key)
        while before is None and len(self._failures) >= MAX_FAILURES:
            del self._failures[next(iter(self._failures))]
        seconds = self._remember_failures
        if before is not None:
            seconds = min(before.seconds * 2, seconds * longest)
        self._failures[key] = _Failure(error, now + seconds, seconds)
        return seconds

    def _raise_remembered(self, key: _Key) -> None:
        failure = self._failures.get(key)
        if failure is not None and self._clock() < failure.until:
            raise failure.error.again()


@dataclass(frozen=True, slots=True)
class FailedFetch:
    """A file whose last fetch failed: why, when (seconds since the epoch), and how often since it was fetched last."""

    url: str
    reason: str
    at: float
    times: int


@dataclass(frozen=True, slots=True)
class _Check:
    """Until when (monotonic seconds) the upstream need not be asked about a stored artifact again, and whether it could
    not answer.
    """

    until: float
    stale: bool


@dataclass(frozen=True, slots=True)
class _Failure:
    """An upstream's failure, not to be tried again before `until` (monotonic seconds), which was after `seconds`."""

    error: ArtifactError
    until: float
    seconds: float
