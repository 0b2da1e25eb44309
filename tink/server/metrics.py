"""The gRPC server as metrics: the names are those of gRPC's interceptors for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tink.metrics.families import counter, gauge, histogram
from tink.server.connections.calls import CallCounts

_METHOD = ["grpc_type", "grpc_service", "grpc_method"]


class ServerMetrics(Collector):
    """Metrics of a server. `agents()`: number of connected agents; `serving()`: the state of the health service;
    `ends()`: when certificates expire, by the flag that names them.
    """

    def __init__(
        self,
        calls: CallCounts,
        agents: Callable[[], int],
        serving: Callable[[], bool],
        ends: Callable[[], Mapping[str, datetime]],
    ) -> None:
        self._calls = calls
        self._agents = agents
        self._serving = serving
        self._ends = ends

    def collect(self) -> Iterator[Metric]:
        """Called for each scrape."""
        calls = self._calls
        yield counter("grpc_server_started", "Calls that have begun.", _METHOD, calls.started)
        yield counter("grpc_server_handled", "Calls that have ended, by code.", [*_METHOD, "grpc_code"], calls.handled)
        yield histogram("grpc_server_handling_seconds", "How long calls took, but for streams.", _METHOD, calls.seconds)
        yield gauge("tinkedge_agents_connected", "Agents whose command stream is open here.", [], {(): self._agents()})
        yield gauge(
            "tinkedge_agents_served", "Whether agents are served: the gRPC health service.", [], {(): self._serving()}
        )
        yield gauge(
            "tinkedge_certificate_expiration_timestamp_seconds",
            "Unix time until which certificates are valid, by the option that names their file.",
            ["option"],
            {(flag.removeprefix("--"),): end.timestamp() for flag, end in self._ends().items()},
        )
