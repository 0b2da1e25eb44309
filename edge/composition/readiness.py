"""Whether a process can do its work, and what is to be known beside that: what probes, metrics and operators are told.

An API that is away means different things. The edge goes on: machines are served from what was known, and it says since
when. Whoever writes to the API (controller, gRPC server, webhooks) can't, and is not ready: a load balancer then leaves
it alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from edge.journey.events import Notice, Outcome
from tink.kube.cache import AWAY_SECONDS, Informer

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
    ) -> None:
        """`informers()` that follow it; `announce` hears when it goes, and comes back; `clock` gives Unix seconds."""
        self._informers = informers
        self._announce = announce
        self._clock = clock
        self._said = False

    @property
    def away_since(self) -> float | None:
        """In Unix seconds; None: it is there, or has been away for less than a restart of it takes."""
        longest = max((informer.failing_for for informer in self._informers()), default=0.0)
        return self._clock() - longest if longest > AWAY_SECONDS else None

    @property
    def problem(self) -> str:
        """The same as a clause; empty: it is there."""
        since = self.away_since
        return f"the Kubernetes API has not answered since {_shown(since)}" if since is not None else ""

    @property
    def note(self) -> str:
        """What it means for machines; empty: nothing."""
        since = self.away_since
        return f"serving from what was known at {_shown(since)}: the API does not answer" if since is not None else ""

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


def _shown(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
