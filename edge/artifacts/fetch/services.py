"""What all flights of a cache use together."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from edge.artifacts.fetch.peers import PeerCaches
from edge.artifacts.fetch.upstream import Timeouts, Upstream
from edge.artifacts.metrics import Counts
from edge.artifacts.storage.room import Allocator
from edge.artifacts.storage.store import Store


@dataclass(frozen=True, slots=True)
class Services:
    """What flights use together. `writers` take what must not wait, `syncers` what waits for the disk."""

    store: Store
    upstream: Upstream
    peers: PeerCaches | None
    room: Allocator
    timeouts: Timeouts
    writers: Executor
    syncers: Executor
    counts: Counts
    clock: Callable[[], float]
    new_version: Callable[[], str]
