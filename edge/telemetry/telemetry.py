"""The task that collects ended boots once a second, with their durations as metrics for Prometheus and as traces."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import Metric

from edge.telemetry.ends import ABANDONED, BootEnds, EndedBoot
from edge.telemetry.traces import Traces
from tink.metrics.counts import Histogram, Histograms
from tink.metrics.families import histogram

STEP_BOUNDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
PROVISION_BOUNDS: Final = (15.0, 30.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 900.0, 1200.0, 1800.0, 3600.0, 7200.0)
"""Upper bounds of the buckets in seconds."""
_OUTCOMES: Final = ("Succeeded", "Failed", "Canceled", ABANDONED)


class Durations:
    """Histograms of the durations of boots and their steps. Belongs to one event loop."""

    def __init__(self) -> None:
        self._provisions = Histograms(PROVISION_BOUNDS)
        # A series that begins with its first boot has no increase by it for Prometheus.
        for outcome in _OUTCOMES:
            self._provisions[(outcome,)] = Histogram(PROVISION_BOUNDS)
        self._steps = Histograms(STEP_BOUNDS)

    def take(self, boot: EndedBoot) -> None:
        """Count a boot. Labels are fixed words, and never names of machines or actions."""
        outcome = boot.outcome if boot.outcome in _OUTCOMES else ABANDONED
        self._provisions[(outcome,)].observe(boot.ended - boot.began)
        for step in boot.steps:
            self._steps[(step.label,)].observe(step.ended - step.began)

    def metrics(self) -> Iterator[Metric]:
        """Yield the histograms."""
        text = "From a machine's first DHCP packet to the end of its Workflow, by how that ended."
        yield histogram("tinkedge_provision_duration_seconds", text, ["outcome"], self._provisions)
        text = "How long machines took for each step of their boots."
        yield histogram("tinkedge_boot_step_duration_seconds", text, ["step"], self._steps)


log = logging.getLogger(__name__)

SECONDS: Final = 1.0
MAX_TRACED: Final = 500  # maximum number of boots that are traced in a second; further ones are only counted


@dataclass(eq=False)
class Telemetry:
    """The task that counts and traces ended boots; `run` it. Belongs to one event loop."""

    ends: BootEnds
    durations: Durations
    traces: Traces | None

    async def run(self) -> None:
        """Collect ended boots once a second until cancelled."""
        try:
            while True:
                await asyncio.sleep(SECONDS)
                await self.look()
        finally:
            self.ends.close()

    async def look(self) -> None:
        """Collect ended boots once. Never raises, because telemetry must not stop the edge."""
        ended: list[EndedBoot] = []
        try:
            for boot in self.ends.take():
                if boot is None:
                    await asyncio.sleep(0)
                    continue
                self.durations.take(boot)
                ended.append(boot)
            if self.traces is not None and ended:
                self.traces.skipped += max(0, len(ended) - MAX_TRACED)
                await asyncio.to_thread(self.traces.take, ended[:MAX_TRACED])
        except Exception:
            log.exception("boots that have ended can't be counted")
