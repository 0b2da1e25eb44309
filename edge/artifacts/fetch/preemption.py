"""Which download gives way when there are as many as there may be: a pure decision, made when one more is to begin.

Each download takes a connection, a file and some memory, for an hour if its upstream is slow enough. That of the
upstream with the most of them goes, and of these the slowest: an upstream that holds many open, or the same one under
many names, is in nobody's way but its own.
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


def host_of(url: str) -> str:
    """The name or address in a URL."""
    return urlsplit(url).hostname or ""
