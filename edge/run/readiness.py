"""Readiness of a process: the problem or the notes for probes, metrics and operators.

An API that is away means different things. An edge continues: it serves machines from its cache, and reports since when
the API is away. A controller, gRPC server or webhook has to write to the API, so it is not ready, and a load balancer
skips it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import Metric

from edge.journey.events import Notice, Outcome
from tink.kube.cache import AWAY_SECONDS, Informer
from tink.metrics.families import gauge
from tink.timestamps import rfc3339

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Readiness:
    """The readiness of a process. `problem` is empty if it is ready; `notes` are for operators."""

    problem: str = ""
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """One line for the body of an answer: `ok`, `ok: this replica is on standby`, or the problem."""
        return self.problem or ": ".join(filter(None, ("ok", "; ".join(self.notes))))


@dataclass(eq=False)
class ApiContact:
    """Reports whether the informers reach the Kubernetes API.

    `announce` is called when the API goes away and returns; `clock` gives Unix seconds. `restored()` is the time of the
    state that was restored at the start, until the API has listed everything.
    """

    informers: Callable[[], Collection[Informer]]
    announce: Callable[[Notice], None] = lambda _: None
    clock: Callable[[], float] = time.time
    restored: Callable[[], float | None] = lambda: None

    def __post_init__(self) -> None:
        self._is_announced = False

    @property
    def away_since(self) -> float | None:
        """The time (Unix seconds) since which the API is away. None if it answers or is away for a short time only."""
        longest = max((informer.failing_for for informer in self.informers()), default=0.0)
        restored = self.restored()
        if restored is not None and longest:
            return restored
        return self.clock() - longest if longest > AWAY_SECONDS else None

    @property
    def problem(self) -> str:
        """A clause that says since when the API is away; empty if it answers."""
        since = self.away_since
        return f"the Kubernetes API has not answered since {rfc3339(since)}" if since is not None else ""

    @property
    def note(self) -> str:
        """A clause that says what this means for machines; empty if the API answers."""
        since = self.away_since
        return f"serving from what was known at {rfc3339(since)}: the API does not answer" if since is not None else ""

    @property
    def known_at(self) -> float:
        """The time (Unix seconds) of the served state: now, while the API can be followed."""
        restored = self.restored()
        return next((each for each in (restored, self.away_since) if each is not None), self.clock())

    @property
    def not_listed(self) -> str:
        """A clause that names the collections that were never listed; empty if all were."""
        missing = [informer.resource.plural for informer in self.informers() if not informer.has_synced]
        return f"the Kubernetes API has not listed {', '.join(missing)} yet" if missing else ""

    def notices(self) -> list[Notice]:
        """Return the announced problem, if it continues."""
        if not self._is_announced or not self.note:
            return []
        return [Notice(self.clock(), Outcome.FAILED, self.note, {})]

    def metrics(self) -> Iterator[Metric]:
        """Yield the time of the state that machines are served."""
        text = "Unix time of which it is what is known of the API's objects: now, unless the API is away."
        yield gauge("tinkedge_api_known_timestamp_seconds", text, [], {(): self.known_at})

    async def run(self) -> None:
        """Announce when the API goes away and returns, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_LOOK_SECONDS)

    def look(self) -> None:
        """Announce a change since the last call."""
        note = self.note
        if bool(note) == self._is_announced:
            return
        self._is_announced = bool(note)
        outcome = Outcome.FAILED if note else Outcome.OK
        line = note or "the Kubernetes API answers again: machines are served by what it has now"
        log.log(logging.WARNING if note else logging.INFO, "%s", line)
        self.announce(Notice(self.clock(), outcome, line, {}))
