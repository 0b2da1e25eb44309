"""What gRPC's own tools ask any server: the health service (probes, load balancers) and reflection (grpcurl).

Health is NOT_SERVING until `ready`, from `not_ready` until the next `ready`, and from `draining` on; for the server
as a whole (the empty name) and for the service of the agents alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

_NOTIFY_SECONDS = 1.0
"""Seconds for telling those who watch: one that does not read must not hold up the end of the server."""


class HealthAndReflection:
    """The two services, at every address of a server. `services` are the full names of what it serves otherwise."""

    def __init__(self, services: Sequence[str]) -> None:
        self._services = services
        self._health = health.aio.HealthServicer()

    async def begin(self) -> None:
        """Agents can't be served yet."""
        await self._say(health_pb2.HealthCheckResponse.NOT_SERVING)

    def add_to(self, server: grpc.aio.Server) -> None:
        """Before the server starts, of which there may be several."""
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection([*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME], server)

    async def ready(self) -> None:
        """Agents can be served."""
        await self._say(health_pb2.HealthCheckResponse.SERVING)

    async def not_ready(self) -> None:
        """Agents can't be served at the moment."""
        await self._say(health_pb2.HealthCheckResponse.NOT_SERVING)

    async def draining(self) -> None:
        """No more of them, for good."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_NOTIFY_SECONDS):
                await self._health.enter_graceful_shutdown()

    async def _say(self, status: Any) -> None:
        for name in ("", *self._services):
            await self._health.set(name, status)
