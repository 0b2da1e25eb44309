"""What a process serves, in the one line that `systemctl status` shows."""

from __future__ import annotations

from edge.composition.settings import EDGE, Service, StackSettings


def status_line(settings: StackSettings, not_ready: str, machines: int) -> str:
    """`not_ready`: why not; empty: it is ready. `machines`: how many Hardware the edge knows."""
    if not_ready:
        return f"not ready: {not_ready}"
    services = settings.services
    parts = [", ".join(sorted(services))]
    if services & (EDGE | {Service.SERVER}):
        networks = ", ".join(f"{network.interface} ({network.address})" for network in settings.networks)
        parts.append(f"on {networks}")
    if services & EDGE:
        parts.append(f"for {machines} machine{'' if machines == 1 else 's'}")
    if Service.APISERVER in services:
        parts.append(f"with the embedded API on port {settings.api_port}")
    return f"serving {' '.join(parts)}"
