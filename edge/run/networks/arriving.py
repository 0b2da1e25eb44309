"""What arrives for our ports on this host's interfaces, whatever becomes of it: looked at while somebody wants to know.

On the interfaces that machines are served on it tells a firewall of this host from one on the way. On the others it
tells that they are on the same Ethernet: the kernel answers ARP for an address of this host on any of its interfaces,
and what a machine then sends to the wrong one never comes to a socket that is bound to the right one.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from edge.neighbour.arrivals import Arrivals
from edge.neighbour.host import NetworkState
from edge.neighbour.links import other_ethernets

log = logging.getLogger(__name__)

LOOKED_SECONDS: Final = 4.0
"""Who has not looked for so long does not say that nothing came."""
OTHERS: Final = 16
"""So many interfaces that machines are not served on are looked at."""


class Arriving:
    """Belongs to one event loop. Without the privilege for it, it sees nothing."""

    def __init__(
        self, states: Callable[[], Sequence[NetworkState]], *tcp_ports: int, clock: Callable[[], float] = time.time
    ) -> None:
        """`states()` are the networks that are served; `tcp_ports` those of ours, beside udp/69; `clock` is Unix's."""
        self._states = states
        self._clock = clock
        self._since = 0.0
        self._tcp_ports = tcp_ports
        self._here: dict[str, Arrivals] = {}
        self._elsewhere: dict[str, Arrivals] = {}
        self._cannot = False

    def look(self) -> None:
        """Count from now on."""
        served = [state.interface for state in self._states() if state.addresses]
        for name in served:
            self._open(name, self._here)
        if served and not self._elsewhere and not self._cannot:
            for name in self._others(served):
                self._open(name, self._elsewhere)

    def close(self) -> None:
        """Count no more."""
        for arrivals in (*self._here.values(), *self._elsewhere.values()):
            arrivals.close()
        self._here.clear()
        self._elsewhere.clear()

    def _others(self, served: Sequence[str]) -> list[str]:
        try:
            return other_ethernets(served)[:OTHERS]
        except OSError as error:
            log.debug("the kernel does not tell of this host's interfaces: %s", error.strerror)
            return []

    def _open(self, name: str, where: dict[str, Arrivals]) -> None:
        if name in where or self._cannot:
            return
        try:
            where[name] = Arrivals(name, *self._tcp_ports, clock=self._clock)
            self._since = self._clock()
        except OSError as error:
            self._cannot = isinstance(error, PermissionError)
            log.debug("packets on %s can't be looked at: %s", name, error.strerror)

    # --- what was seen --------------------------------------------------------------------------------------------

    def repeated(self) -> Iterator[str]:
        """The addresses that knocked at one port more than once, where they are served."""
        for arrivals in self._here.values():
            yield from arrivals.repeated()

    def asked(self, ip: str, since: float) -> dict[str, int] | None:
        """How often `ip` knocked at which port after that time (epoch seconds); None: nobody has looked for long."""
        if not self._here:
            return None
        counts: Counter[str] = Counter()
        for arrivals in self._here.values():
            counts.update(arrivals.asked(ip, since))
        return dict(counts) if counts or self._clock() - self._since >= LOOKED_SECONDS else None

    def answered(self, ip: str, since: float) -> dict[str, int]:
        """How often this host answered that, as far as it is TCP's."""
        counts: Counter[str] = Counter()
        for arrivals in self._here.values():
            counts.update(arrivals.answered(ip, since))
        return dict(counts)

    def strayed(self, ip: str, since: float) -> dict[str, str]:
        """The ports at which `ip` knocked by another interface only, with its name."""
        here = self.asked(ip, since) or {}
        return {
            port: name
            for name, arrivals in self._elsewhere.items()
            for port, count in arrivals.asked(ip, since).items()
            if count and not here.get(port)
        }
