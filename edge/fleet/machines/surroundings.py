"""What all machines of a fleet share: the profile, the seed, the wire, the counters; and what ends a machine's boot."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field

from edge.fleet.network.port import DhcpPort
from edge.fleet.population import Profile
from edge.fleet.results import Recorder


class BootError(Exception):
    """This boot is at its end; firmware comes round and tries again."""


class GaveUpError(Exception):
    """The machine has failed for good. `injected`: because of what the fleet itself did to it."""

    def __init__(self, cause: str, *, injected: bool = False) -> None:
        super().__init__(cause)
        self.injected = injected


@dataclass(slots=True)
class Surroundings:
    """Of one run. `allowed(address)`: whether machines may speak to this IPv4 address; `by_reference`: kernel and
    initrd are asked for their length and last byte, and not fetched. Times are those of the event loop."""

    profile: Profile
    seed: int
    port: DhcpPort
    recorder: Recorder
    allowed: Callable[[str], bool]
    by_reference: bool = False
    contexts: dict[str, ssl.SSLContext] = field(default_factory=dict)
    """TLS by the authority's SHA-256: one for all machines that have the same."""

    def check(self, address: str) -> None:
        """Raises BootError for an address that a run must not touch."""
        if not self.allowed(address):
            raise BootError(f"was led to {address}, which is not the target: name it with --allow, if it is meant")
