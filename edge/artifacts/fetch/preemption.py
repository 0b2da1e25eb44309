"""Which download gives way when there are as many as there may be, or when the cache is full. Pure decisions.

**Their number**, when one more is to begin. Each download takes a connection, a file and some memory, for an hour if
its upstream is slow enough. A download of the upstream with the most of them ends, and of these the slowest. So an
upstream that holds many open, or the same one under many names, is in its own way only.

**Room**, when the cache is full of downloads in progress, which can't be evicted. Each upstream has a share of the
cache: a half, or less if more than two upstreams download at once. Above its share an upstream holds room only while no
other upstream needs room within its own. So an upstream whose files have no end can't keep the files of others away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

MAX_DOWNLOADS = 256

_HEAD_START_BYTES = 1 << 20
"""Bytes that each is taken to have brought in its first second, when it may still be waiting for an answer."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A download: of which URL, how many bytes it has brought, in how many seconds."""

    url: str
    received: int
    seconds: float

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return (self.received + _HEAD_START_BYTES) / (self.seconds + 1)


def preempted(candidates: Iterable[tuple[T, Candidate]]) -> T | None:
    """Which of them; None if there are none."""
    known = list(candidates)
    busy = Counter(host_of(candidate.url) for _, candidate in known)
    order = {each: (-busy[host_of(candidate.url)], candidate.rate) for each, candidate in known}
    return min(order, key=order.__getitem__, default=None)


@dataclass(frozen=True, slots=True)
class Claim:
    """The room that a download holds, in bytes. `is_bounded`: its size is known."""

    url: str
    size: int
    is_bounded: bool


def giving_room(claims: Iterable[tuple[T, Claim]], wanted: Claim, capacity: int) -> T | None:
    """Return the download that has to end so that the one that wants `wanted` in all gets room; None if there is none.

    `claims` are those of the other downloads, `capacity` the bytes that the cache may hold. A download of unknown size
    takes room from others of unknown size only: its own may have no end.
    """
    known = [(each, claim, host_of(claim.url)) for each, claim in claims if claim.size > 0]
    host, held = host_of(wanted.url), Counter[str]()
    for _, claim, other in known:
        held[other] += claim.size
    share = capacity // max(2, len(held.keys() | {host}))
    if held[host] + wanted.size > share:
        return None
    candidates = {
        each: (held[other], not claim.is_bounded, claim.size)
        for each, claim, other in known
        if held[other] > share and (wanted.is_bounded or not claim.is_bounded)
    }
    return max(candidates, key=candidates.__getitem__, default=None)


def host_of(url: str) -> str:
    """The name or address in a URL."""
    return urlsplit(url).hostname or ""
