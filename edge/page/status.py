"""The edge's own page: its process and readiness, its networks, its OSIEs, and its artifact cache.

Also the part of the rack with the machines that are expected and have not come yet.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from edge.artifacts.artifact import DownloadProgress, Source
from edge.artifacts.cache import ArtifactCache, FailedFetch
from edge.journey.events import Notice, Outcome, Step
from edge.journey.recorder import Journey
from edge.page.live import TimeSlice
from tink.discovery.expected import ExpectedMachines
from tink.discovery.model import ExpectedMachine
from tink.kube.objects import NamespacedName
from tink.net.urls import shown

MAX_FILES: Final = 100
MAX_OSIES: Final = 100
MAX_MISSING: Final = 100
"""Maximum number of expected machines that are shown."""
MAX_IDENTIFIERS: Final = 4
_EXPECTED_SECONDS: Final = 5.0
"""Time between two comparisons of lists and Hardware."""
_BATCH: Final = 500
"""Number of lines that are compared between two pauses."""
_OSIE_SECONDS: Final = 5.0  # the OSIE objects are read again after so long
COUNTED: Final = (Step.DHCP, Step.TFTP, Step.BINARY, Step.SCRIPT, Step.KERNEL, Step.INITRD, Step.AGENT, Step.METADATA)
ALWAYS_COUNTED: Final = frozenset({Step.DHCP, Step.TFTP})
_OLD_SECONDS: Final = 30.0
_LEAST_SECONDS: Final = 0.5
_KEPT_SPEEDS: Final = 256


@dataclass(frozen=True, slots=True)
class Health:
    """`problem` says why machines can't be served; empty if they can. `notes` are for operators."""

    problem: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Download:
    """A running download: bytes, and bytes a second (None: not known yet)."""

    url: str
    received: int
    size: int | None
    waiting: int
    speed: float | None

    @property
    def percent(self) -> float | None:
        """The received part in percent; None if the size is unknown."""
        return 100.0 * self.received / self.size if self.size else None


@dataclass(frozen=True, slots=True)
class CacheShown:
    """The artifact cache. `files` are those used last: URL, bytes, SHA-256."""

    stored_bytes: int
    stored_files: int
    fetched_bytes: int
    failures: int
    from_cache: int
    from_upstream: int
    downloads: tuple[Download, ...]
    files: tuple[tuple[str, int, str], ...]
    more: int


@dataclass(frozen=True, slots=True)
class Api:
    """The Kubernetes API. `where`: `embedded` or `cluster`; `problem`: why it can't be reached, empty if it can."""

    where: str = ""
    url: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class About:
    """The process and its host: bytes, Unix seconds, and whether the clock follows a time server; None: not known."""

    version: str = ""
    host: str = ""
    started: float = 0.0
    data_dir: str = ""
    free_bytes: int | None = None
    total_bytes: int | None = None
    synchronised: bool | None = None
    api: Api = field(default_factory=Api)

    @property
    def is_nearly_full(self) -> bool:
        """True if less than a twentieth of the data directory's disk is free."""
        return self.free_bytes is not None and bool(self.total_bytes) and self.free_bytes * 20 < (self.total_bytes or 0)


@dataclass(frozen=True, slots=True)
class Osie:
    """An OSIE object, NAMESPACE/NAME, and the URL of each of its files by kind (`kernel`, `initrd`, `UKI`)."""

    name: str
    files: tuple[tuple[str, str], ...]


class FileState(StrEnum):
    """The state of a file of an OSIE. The values are the words on the page."""

    STORED = "on disk"
    DOWNLOADING = "downloading"
    FAILED = "last fetch failed"
    LOCAL = "a file of this host"
    UNKNOWN = "not fetched yet"


@dataclass(frozen=True, slots=True)
class OsieFile:
    """A file of an OSIE: `detail` is the progress of its download, or why it failed `at` a time; `size` 0: no file."""

    kind: str
    url: str
    state: FileState
    detail: str = ""
    at: float = 0.0
    size: int = 0


@dataclass(frozen=True, slots=True)
class Counted:
    """Answers to machines at one step, by outcome, since the start; bytes sent, and bytes a second now."""

    step: str
    answered: int
    refused: int
    failed: int
    sent: float
    speed: float | None


@dataclass(frozen=True, slots=True)
class Other:
    """Another edge or server of the site that reports what it sees of machines. `events` counts its reports."""

    kind: str
    name: str
    events: int


@dataclass(frozen=True, slots=True)
class EdgeShown:
    """The content of the edge's page. `failed` are the files whose last fetch failed."""

    about: About
    health: Health
    notices: tuple[str, ...]
    networks: tuple[Mapping[str, object], ...]
    others: tuple[Other, ...]
    counted: tuple[Counted, ...]
    osies: tuple[tuple[str, tuple[OsieFile, ...]], ...]
    more_osies: int
    failed: tuple[FailedFetch, ...]
    cache: CacheShown | None


@dataclass(frozen=True, slots=True)
class MissingMachine:
    """An expected machine without a Hardware. `since`: Unix seconds at which its list was created, or 0."""

    name: str
    identifiers: str
    source: str
    since: float


@dataclass(frozen=True, slots=True)
class ExpectedShown:
    """The expected machines that have not come yet: the first ones, and the number of `more`.

    expected: the number of machines on all lists. problems: the number of lines that can't be used, and the first.
    """

    machines: tuple[MissingMachine, ...] = ()
    more: int = 0
    expected: int = 0
    problems: int = 0
    problem: str = ""

    @property
    def count(self) -> int:
        """The number of machines that have not come yet."""
        return len(self.machines) + self.more


@dataclass(eq=False)
class ExpectedStatus:
    """Compares the lists of expected machines with the Hardware. `lists` is None if this process follows no lists.

    `is_present(key)` is that of `ExpectedMachines.missing`; `monotonic` returns seconds.
    """

    lists: ExpectedMachines | None = None
    is_present: Callable[[NamespacedName], bool] = lambda _: False
    monotonic: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.shown = ExpectedShown()
        """The result of the last comparison."""
        self._compared: float | None = None

    async def update(self, turns: TimeSlice) -> None:
        """Compare again, if that is due: there may be 50,000 lines."""
        now = self.monotonic()
        if self.lists is None or (self._compared is not None and now - self._compared < _EXPECTED_SECONDS):
            return
        self._compared = now
        first: list[MissingMachine] = []
        count = 0
        for begin in range(0, len(self.lists), _BATCH):
            for each in self.lists.missing(self.is_present, slice(begin, begin + _BATCH)):
                count += 1
                if len(first) < MAX_MISSING:
                    first.append(_missing(each))
            await turns.rest()
        problems = self.lists.problems
        problem = f"{problems[0].source}: {problems[0].text}" if problems else ""
        self.shown = ExpectedShown(tuple(first), count - len(first), len(self.lists), len(problems), problem)


def _missing(machine: ExpectedMachine) -> MissingMachine:
    known, more = machine.identifiers[:MAX_IDENTIFIERS], len(machine.identifiers) - MAX_IDENTIFIERS
    identifiers = ", ".join(known) + (f" and {more} more" if more > 0 else "")
    return MissingMachine(str(machine.key), identifiers, machine.source, machine.listed_since)


@dataclass(slots=True)
class Speeds:
    """Measures how fast counters grow between two calls."""

    seen: OrderedDict[str, tuple[float, float, float | None]] = field(default_factory=OrderedDict)

    def of(self, name: str, count: float, now: float) -> float | None:
        """Return the growth of a counter in units a second; None at the first call for a while."""
        before = self.seen.get(name)
        if before is None or now - before[0] > _OLD_SECONDS or count < before[1]:
            speed = None
        elif now - before[0] < _LEAST_SECONDS:
            return before[2]
        else:
            speed = (count - before[1]) / (now - before[0])
        self.seen[name] = now, count, speed
        self.seen.move_to_end(name)
        if len(self.seen) > _KEPT_SPEEDS:
            self.seen.popitem(last=False)
        return speed


@dataclass(eq=False)
class EdgeStatus:
    """Collects the content of the edge's page.

    `networks()` are the networks that face machines, `announced()` the problems of the edge and its networks,
    `others()` the other edges and servers of the site, and `osies()` the OSIE objects.
    """

    health: Callable[[], Health]
    networks: Callable[[], list[dict[str, object]]]
    announced: Callable[[], Sequence[Notice]]
    journey: Journey
    cache: ArtifactCache | None
    monotonic: Callable[[], float]
    others: Callable[[], Sequence[Other]] = tuple
    about: Callable[[], About] = About
    osies: Callable[[], Iterable[Osie]] = tuple

    def __post_init__(self) -> None:
        self._osies: list[Osie] = []
        self._osies_read: float | None = None
        self._speeds = Speeds()

    def notices(self) -> list[str]:
        """Return the problems of the edge, and why it can't serve."""
        announced = [notice.message for notice in self.announced()]
        return list(dict.fromkeys(filter(None, [self.health().problem, *announced])))

    async def update(self, turns: TimeSlice) -> None:
        """Read the OSIE objects again, if that is due: each of them has to be unpacked."""
        now = self.monotonic()
        if self._osies_read is not None and now - self._osies_read < _OSIE_SECONDS:
            return
        self._osies_read, found = now, []
        for osie in self.osies():
            found.append(osie)
            await turns.rest()
        self._osies = sorted(found, key=lambda each: each.name)

    def shown(self) -> EdgeShown:
        """Return the present state."""
        now = self.monotonic()
        osies = self._osies
        failed = self.cache.failed_fetches() if self.cache is not None else []
        return EdgeShown(
            about=self.about(),
            health=self.health(),
            notices=tuple(dict.fromkeys(notice.message for notice in self.announced())),
            networks=tuple(self.networks()),
            others=tuple(self.others()),
            counted=tuple(self._counted(now)),
            osies=tuple(self._shown_osies(osies[:MAX_OSIES], failed)),
            more_osies=max(0, len(osies) - MAX_OSIES),
            failed=tuple(replace(each, url=shown(each.url)) for each in failed),
            cache=self._shown_cache(self.cache, now) if self.cache is not None else None,
        )

    def _counted(self, now: float) -> Iterator[Counted]:
        counts, sent = self.journey.counts(), self.journey.sent_bytes()
        for step in COUNTED:
            answered, refused, failed = (
                counts[step, outcome] for outcome in (Outcome.OK, Outcome.REFUSED, Outcome.FAILED)
            )
            if answered or refused or failed or step in ALWAYS_COUNTED:
                size = sent[step]
                yield Counted(step.value, answered, refused, failed, size, self._speeds.of(f"sent {step}", size, now))

    def _shown_osies(
        self, osies: Sequence[Osie], failed: Sequence[FailedFetch]
    ) -> Iterator[tuple[str, tuple[OsieFile, ...]]]:
        failures = {each.url: each for each in failed}
        stored = {each.url: each.size for each in self.cache.stored()} if self.cache is not None else {}
        downloads = {each.url: each for each in self.cache.downloads()} if self.cache is not None else {}
        for osie in osies:
            yield (
                osie.name,
                tuple(
                    _osie_file(kind, url, stored.get(url), downloads.get(url), failures.get(url))
                    for kind, url in osie.files
                ),
            )

    def _shown_cache(self, cache: ArtifactCache, now: float) -> CacheShown:
        counts, files = cache.counts, cache.stored()
        return CacheShown(
            stored_bytes=sum(each.size for each in files),
            stored_files=len(files),
            fetched_bytes=counts.fetched_bytes,
            failures=sum(counts.failures.values()),
            from_cache=counts.opened[Source.CACHE] + counts.opened[Source.STALE],
            from_upstream=sum(counts.opened[one] for one in (Source.UPSTREAM, Source.PEER, Source.UPSTREAM_EDGE)),
            downloads=tuple(
                Download(
                    shown(each.url),
                    each.received,
                    each.size,
                    each.waiting,
                    self._speeds.of(f"fetched {each.url}", each.received, now),
                )
                for each in cache.downloads()
            ),
            files=tuple((shown(each.url), each.size, each.sha256) for each in files[:MAX_FILES]),
            more=max(0, len(files) - MAX_FILES),
        )


def _osie_file(
    kind: str, url: str, size: int | None, download: DownloadProgress | None, failure: FailedFetch | None
) -> OsieFile:
    if download is not None:
        percent = f"{100 * download.received / download.size:.0f} %" if download.size else ""
        return OsieFile(kind, shown(url), FileState.DOWNLOADING, percent)
    if failure is not None:
        kept = "; machines get the file on disk" if size is not None else ""
        return OsieFile(kind, shown(url), FileState.FAILED, failure.reason + kept, failure.at)
    if size is not None:
        return OsieFile(kind, shown(url), FileState.STORED, size=size)
    state = FileState.LOCAL if url.startswith("file:") else FileState.UNKNOWN
    return OsieFile(kind, shown(url), state)
