"""How it goes, in the one line that `systemctl status` shows; told to the service manager while it goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from edge.neighbour.host import NetworkState
from edge.run.process.notify import Notifier
from edge.run.readiness import Readiness
from edge.settings.model import EDGE, Service, StackSettings

_EVERY_SECONDS: Final = 1.0


async def report(notifier: Notifier, not_ready: Callable[[], str], status: Callable[[], str]) -> None:
    """Tell the manager that we are ready as soon as we are, and then each change of the status; until cancelled."""
    said, ready = "", False
    while notifier.address:
        text = status()
        if not ready and not not_ready():
            notifier.ready(text)
            ready = True
        elif text != said:
            notifier.status(text)
        said = text
        await asyncio.sleep(_EVERY_SECONDS)


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
