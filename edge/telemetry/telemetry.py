"""Looks once a second which boots have ended, counts them, and has them traced."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from edge.telemetry.durations import Durations
from edge.telemetry.ends import BootEnds, EndedBoot
from edge.telemetry.traces import Traces

log = logging.getLogger(__name__)

SECONDS: Final = 1.0
AT_ONCE: Final = 500
"""Boots that are traced in a second, at most; of more, the others are counted only."""


class Telemetry:
    """`run` it. Belongs to one event loop."""

    def __init__(self, ends: BootEnds, durations: Durations, traces: Traces | None) -> None:
        self._ends = ends
        self._durations = durations
        self._traces = traces

    async def run(self) -> None:
        """Look for ever."""
        try:
            while True:
                await asyncio.sleep(SECONDS)
                await self.look()
        finally:
            self._ends.close()

    async def look(self) -> None:
        """Look once. What explains boots must not end them: it never raises."""
        ended: list[EndedBoot] = []
        try:
            for boot in self._ends.take():
                if boot is None:
                    await asyncio.sleep(0)
                    continue
                self._durations.take(boot)
                ended.append(boot)
            if self._traces is not None and ended:
                self._traces.skipped += max(0, len(ended) - AT_ONCE)
                await asyncio.to_thread(self._traces.take, ended[:AT_ONCE])
        except Exception:
            log.exception("boots that have ended can't be counted")
