"""The registry of a serving process, and the metrics of the process itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib.metadata import version

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import Metric

from tink.metrics.families import Scraped, gauge


def process_registry(not_ready: Callable[[], str]) -> CollectorRegistry:
    """Return a registry with `process_*` and `python_*`, as for all Python programs, the release and `tinkedge_ready`.

    `not_ready()` returns the reason why this process can't do its work; empty if it can.
    """
    registry = CollectorRegistry()
    _Process(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    release = version("tinkedge")

    def families() -> Iterator[Metric]:
        yield gauge("tinkedge_build_info", "The release that runs; always 1.", ["version"], {(release,): 1})
        yield gauge("tinkedge_ready", "Whether this process can do its work: /readyz.", [], {(): not not_ready()})

    registry.register(Scraped(families))
    return registry


class _Process(ProcessCollector):
    """The metrics of this process without /proc/stat, which the units hide (ProcSubset=pid).

    The library reads the boot time there, and would omit all metrics.
    """

    def _boot_time(self) -> float:
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
