"""A server that runs apart from the edges: it tells them what its agents do. It is no edge, and nobody asks it.

    agents -> tink.server --activity--> journey of this process --signed--> every edge of the site

Where the edges are the operator says, or their Leases (`edge.peers.leases`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from edge.journey.history import SERVER
from edge.journey.recorder import Journey
from edge.peers.calls import Calls
from edge.peers.counts import Counts
from edge.peers.publisher import EventPublisher
from edge.peers.signatures import Signatures
from tink.files.key_file import KeyFile

_NO_NAME = re.compile(r"[^A-Za-z0-9._:-]")


class ServerReports:
    """`start` before use, `stop` after; `run` meanwhile."""

    def __init__(
        self, keys: KeyFile, journey: Journey, named: Iterable[str], name: str, clock: Callable[[], float]
    ) -> None:
        """`keys` sign; `named` are `address:port` of edges; `name` is this host's; `clock` gives Unix seconds."""
        self.counts = Counts()
        self._named = frozenset(named)
        self._found: frozenset[str] = frozenset()
        self._calls = Calls(Signatures(keys, clock))
        spelled = _NO_NAME.sub("-", name)[:63] or "server"
        self._publisher = EventPublisher(
            journey, self._calls, SERVER, lambda: spelled, lambda: self._named | self._found, self.counts, now=clock
        )

    def found(self, authorities: Iterable[str]) -> None:
        """Where Leases say that edges are, each time that these are read."""
        self._found = frozenset(authorities)

    async def start(self) -> None:
        """Needs a running loop."""
        await self._calls.start()

    async def stop(self) -> None:
        """Tell nobody any more."""
        await self._calls.stop()

    async def publish(self) -> None:
        """Send the edges what agents have done since the last time; `run` does it again and again."""
        await self._publisher.turn()

    async def run(self) -> None:
        """Until cancelled."""
        await self._publisher.run()
