"""What a process serves, in the one line that `systemctl status` shows."""

from __future__ import annotations

from collections.abc import Sequence

from edge.composition.host import NetworkState
from edge.composition.readiness import Readiness
from edge.composition.settings import EDGE, Service, StackSettings


def status_line(settings: StackSettings, networks: Sequence[NetworkState], readiness: Readiness, machines: int) -> str:
    """`machines`: how many Hardware the edge knows."""
    if readiness.problem:
        return f"not ready: {readiness.problem}"
    services = settings.services
    parts = [", ".join(sorted(services))]
    if services & (EDGE | {Service.SERVER}):
        served = ", ".join(f"{network.interface} ({network.address})" for network in networks)
        parts.append(f"on {served}")
    if services & EDGE:
        parts.append(f"for {machines} machine{'' if machines == 1 else 's'}")
    if Service.APISERVER in services:
        parts.append(f"with the embedded API on port {settings.api_port}")
    return "; ".join((f"serving {' '.join(parts)}", *readiness.notes))
