"""Whether a process can do its work, and what is to be known beside that: what probes, metrics and operators are told.

An API that is away means different things. The edge goes on: machines are served from what was known, and it says since
when. Whoever writes to the API (controller, gRPC server, webhooks) can't, and is not ready: a load balancer then leaves
it alone.
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
    """`problem`: why not; empty: it is ready. `notes`: what else is so."""

    problem: str = ""
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """In one line, for the body of an answer: `ok`, `ok: this replica is on standby`, or the problem."""
        return self.problem or ": ".join(filter(None, ("ok", "; ".join(self.notes))))


class ApiContact:
    """Since when the Kubernetes API has not let us follow what it has."""

    def __init__(
        self,
        informers: Callable[[], Collection[Informer]],
        announce: Callable[[Notice], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
        restored: Callable[[], float | None] = lambda: None,
    ) -> None:
        """`informers()` that follow it; `announce` hears when it goes, and comes back; `clock` gives Unix seconds.

        `restored()`: when what was restored at the start was known, if the API has not listed everything since.
        """
        self._informers = informers
        self._restored = restored
        self._announce = announce
        self._clock = clock
        self._said = False

    @property
    def away_since(self) -> float | None:
        """In Unix seconds; None: it is there, or has been away for less than a restart of it takes."""
        longest = max((informer.failing_for for informer in self._informers()), default=0.0)
        restored = self._restored()
        if restored is not None and longest:
            return restored
        return self._clock() - longest if longest > AWAY_SECONDS else None

    @property
    def problem(self) -> str:
        """The same as a clause; empty: it is there."""
        since = self.away_since
        return f"the Kubernetes API has not answered since {rfc3339(since)}" if since is not None else ""

    @property
    def note(self) -> str:
        """What it means for machines; empty: nothing."""
        since = self.away_since
        return f"serving from what was known at {rfc3339(since)}: the API does not answer" if since is not None else ""

    @property
    def known_at(self) -> float:
        """The Unix second of which it is what is served: now, as long as the API can be followed."""
        restored = self._restored()
        since = restored if restored is not None else self.away_since
        return self._clock() if since is None else since

    @property
    def not_listed(self) -> str:
        """What was never listed, as a clause; empty: all was."""
        missing = [informer.resource.plural for informer in self._informers() if not informer.has_synced]
        return f"the Kubernetes API has not listed {', '.join(missing)} yet" if missing else ""

    def notices(self) -> list[Notice]:
        """What was announced and is still so."""
        return [Notice(self._clock(), Outcome.FAILED, self.note, {})] if self._said and self.note else []

    def metrics(self) -> Iterator[Metric]:
        """Of when it is what machines are served."""
        text = "Unix time of which it is what is known of the API's objects: now, unless the API is away."
        yield gauge("tinkedge_api_known_timestamp_seconds", text, [], {(): self.known_at})

    async def run(self) -> None:
        """Tell of it when it begins and when it is over, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_LOOK_SECONDS)

    def look(self) -> None:
        """Tell of it now."""
        note = self.note
        if bool(note) == self._said:
            return
        self._said = bool(note)
        outcome = Outcome.FAILED if note else Outcome.OK
        line = note or "the Kubernetes API answers again: machines are served by what it has now"
        log.log(logging.WARNING if note else logging.INFO, "%s", line)
        self._announce(Notice(self._clock(), outcome, line, {}))
