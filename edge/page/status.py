"""The edge itself: whether it can serve, the networks that it serves, and what its artifact cache is at."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from edge.artifacts import ArtifactCache, Source
from edge.journey.events import Notice
from edge.journey.steps import Step
from tink.net.urls import shown

MAX_FILES: Final = 100
_OLD_SECONDS: Final = 30.0
_LEAST_SECONDS: Final = 0.5
_KEPT_SPEEDS: Final = 256


@dataclass(frozen=True, slots=True)
class Health:
    """`problem`: why machines can't be served, empty if they can; `notes`: what else is so."""

    problem: str = ""
    notes: tuple[str, ...] = ()


class Networks(Protocol):
    """The networks that face machines."""

    def shown(self) -> list[dict[str, object]]:
        """Each of them."""

    def notices(self) -> list[Notice]:
        """What is wrong now."""


@dataclass(frozen=True, slots=True)
class Download:
    """One that goes on. Bytes, bytes a second (None: not known yet), percent (None: of an unknown size)."""

    url: str
    received: int
    size: int | None
    waiting: int
    speed: float | None

    @property
    def percent(self) -> float | None:
        """How much of it is there."""
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
class Other:
    """Another process of the site that tells what it sees of machines: an edge, or a server. So many `events` since it
    was heard first."""

    kind: str
    name: str
    events: int


@dataclass(frozen=True, slots=True)
class EdgeShown:
    """All of it. `sent` by kind of file: bytes since the start, bytes a second."""

    health: Health
    notices: tuple[str, ...]
    networks: tuple[Mapping[str, object], ...]
    others: tuple[Other, ...]
    sent: tuple[tuple[str, float, float | None], ...]
    cache: CacheShown | None


@dataclass(slots=True)
class Speeds:
    """How fast counters grow, between one look and the next."""

    seen: OrderedDict[str, tuple[float, float, float | None]] = field(default_factory=OrderedDict)

    def of(self, name: str, count: float, now: float) -> float | None:
        """In units a second; None: this is the first look for a while."""
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


class EdgeStatus:
    """Makes it."""

    def __init__(
        self,
        health: Callable[[], Health],
        networks: Networks,
        notices: Callable[[], Sequence[Notice]],
        sent_bytes: Callable[[], Mapping[Step, float]],
        cache: ArtifactCache | None,
        monotonic: Callable[[], float],
        others: Callable[[], Sequence[Other]] = tuple,
    ) -> None:
        """`notices()` are of the edge, besides the networks'; `sent_bytes()` what machines were sent; `others()` who of
        the site was heard a moment ago."""
        self._others = others
        self.health = health
        self._networks = networks
        self._notices = notices
        self._sent_bytes = sent_bytes
        self._cache = cache
        self._monotonic = monotonic
        self._speeds = Speeds()

    def notices(self) -> list[str]:
        """What is wrong with the edge, and why it can't serve."""
        problem = self.health().problem
        said = [notice.message for notice in (*self._notices(), *self._networks.notices())]
        return list(dict.fromkeys(filter(None, [problem, *said])))

    def shown(self) -> EdgeShown:
        """As it is now."""
        now = self._monotonic()
        notices = [*self._notices(), *self._networks.notices()]
        return EdgeShown(
            health=self.health(),
            notices=tuple(dict.fromkeys(notice.message for notice in notices)),
            networks=tuple(self._networks.shown()),
            others=tuple(self._others()),
            sent=tuple(
                (step.value, count, self._speeds.of(f"sent {step}", count, now))
                for step, count in self._sent_bytes().items()
                if count
            ),
            cache=self._shown_cache(self._cache, now) if self._cache is not None else None,
        )

    def _shown_cache(self, cache: ArtifactCache, now: float) -> CacheShown:
        counts, files = cache.counts, cache.stored()
        return CacheShown(
            stored_bytes=cache.stored_bytes,
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
