"""What a process serves, in the one line that `systemctl status` shows."""

from __future__ import annotations

from collections.abc import Sequence

from edge.composition.host import NetworkState
from edge.composition.settings import EDGE, Service, StackSettings


def status_line(settings: StackSettings, networks: Sequence[NetworkState], not_ready: str, machines: int) -> str:
    """`not_ready`: why not; empty: it is ready. `machines`: how many Hardware the edge knows."""
    if not_ready:
        return f"not ready: {not_ready}"
    services = settings.services
    parts = [", ".join(sorted(services))]
    if services & (EDGE | {Service.SERVER}):
        served = ", ".join(f"{network.interface} ({network.address})" for network in networks)
        parts.append(f"on {served}")
    if services & EDGE:
        parts.append(f"for {machines} machine{'' if machines == 1 else 's'}")
    if Service.APISERVER in services:
        parts.append(f"with the embedded API on port {settings.api_port}")
    return f"serving {' '.join(parts)}"
