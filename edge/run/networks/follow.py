"""Follows the addresses and links of the networks that face machines.

    the kernel (edge.neighbour.links) -> `host.state_of` for each network -> the followers, one after the other

A follower gets the current state of a network and adapts to it. The same state again changes nothing, so a failure,
such as a port that is taken, is simply retried. A network's problem is reported once: in the log, on the journey, on
/readyz, as a metric and on the operators' port. Its end is reported once too. Other networks are not affected.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from ipaddress import IPv4Network

from prometheus_client.core import Metric

from edge.journey.events import Notice, Outcome
from edge.machines import DhcpMode
from edge.neighbour.host import Network, NetworkState, state_of
from edge.neighbour.links import HostLink, LinkChanges, look
from tink.api.mistakes import Site
from tink.metrics.families import gauge

log = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0


Follower = Callable[[NetworkState], Awaitable[None]]
"""Serves a network in its current state. If it raises its own error, it is called again."""


class HostNetworks:
    """The states of the networks. `start` it once, then `run` it. Belongs to one event loop."""

    def __init__(
        self,
        networks: Sequence[Network],
        announce: Callable[[Notice], None] = lambda _: None,
        look: Callable[[str], HostLink | None] = look,
    ) -> None:
        """`announce` receives the begin and end of problems; `look` asks the kernel for a link. Raises OSError."""
        self._ask = look
        self._networks = {network.interface: network for network in networks}
        self._announce = announce
        self._followers: list[Follower] = []
        self._handlers: list[Callable[[], None]] = []
        self._states: dict[str, NetworkState] = {}
        self._states = {name: self._look(name) for name in self._networks}
        self._reported: dict[str, NetworkState] = {}  # the states that all followers have adapted to
        self._logged: dict[str, NetworkState] = {}  # the last reported state of each network
        self._changed = asyncio.Event()
        self._changes = LinkChanges(self._changed.set)

    def add_follower(self, follower: Follower) -> None:
        """Call `follower` with each network's state at the start and after every change."""
        self._followers.append(follower)

    def on_change(self, handler: Callable[[], None]) -> None:
        """Call `handler()` when some network may have changed."""
        self._handlers.append(handler)

    def close(self) -> None:
        """Stop following."""
        self._changes.close()

    async def start(self) -> None:
        """Call the followers for the first time. Unlike later, the error of a follower is raised."""
        for name in self._networks:
            await self._notify(self._states[name])
        self._report()

    async def run(self) -> None:
        """Follow the kernel until cancelled."""
        while True:
            retry = any(self._reported.get(name) != state for name, state in self._states.items())
            with suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_SECONDS if retry else None):
                    await self._changed.wait()
            self._changed.clear()
            await self.update()

    async def update(self) -> None:
        """Read the networks' states, and call the followers for each one that has changed."""
        for name in self._networks:
            try:
                state = self._look(name)
            except OSError as error:
                log.warning("the state of %s can't be read: %s", name, error.strerror)
                continue
            if self._reported.get(name) == state:
                continue
            try:
                await self._notify(state)
            except Exception as error:
                # The error becomes the network's problem, and the state is tried again.
                self._reported.pop(state.interface, None)
                log.debug("%s: where", state.interface, exc_info=error)
                state = replace(state, problem=state.problem or str(error) or repr(error))
            self._states[name] = state
        self._report()

    # --- the current states ---------------------------------------------------------------------------------------

    @property
    def states(self) -> list[NetworkState]:
        """The current state of each network."""
        return list(self._states.values())

    def not_ready(self) -> str:
        """Return the problems of all networks in one line; empty if there is none."""
        return "; ".join(state.problem for state in self._states.values() if state.problem)

    def notices(self) -> list[Notice]:
        """Return the announced problems that continue."""
        return [_notice(state, Outcome.FAILED, _line(state)) for state in self.states if state.problem]

    def site(self, relayed: Sequence[IPv4Network], mode: DhcpMode) -> Site:
        """Return the description of the networks for the mistakes of Hardware."""
        return Site(
            tuple(dict.fromkeys(network for state in self.states for network in state.networks)),
            relayed,
            frozenset(address for state in self.states for address in state.addresses),
            f"the edge {socket.gethostname()}",
            gives_addresses=mode is DhcpMode.RESERVATION,
        )

    def shown(self) -> list[dict[str, object]]:
        """Return the states for programs, as the operators' port shows them."""
        return [
            {
                "interface": state.interface,
                "address": state.address,
                "ipv6": state.address6,
                "fixed": bool(self._networks[state.interface].address),
                "ready": not state.problem,
                "carrier": state.carrier,
                "problem": state.problem,
            }
            for state in self.states
        ]

    def metrics(self) -> Iterator[Metric]:
        """Yield two gauges for each interface."""
        ready = {(state.interface,): not state.problem for state in self.states}
        text = "Whether machines on this interface are served."
        yield gauge("tinkedge_network_ready", text, ["interface"], ready)
        carrier = {(state.interface,): state.carrier for state in self.states}
        yield gauge("tinkedge_network_carrier", "Whether this interface has a link.", ["interface"], carrier)

    # --- following ------------------------------------------------------------------------------------------------

    def _look(self, name: str) -> NetworkState:
        before = self._states.get(name)
        address, address6 = (before.address, before.address6) if before is not None else ("", "")
        return state_of(self._networks[name], self._ask(name), address, before6=address6)

    async def _notify(self, state: NetworkState) -> None:
        for follower in self._followers:
            await follower(state)
        self._reported[state.interface] = state

    def _report(self) -> None:
        for handler in self._handlers:
            handler()
        for name, state in self._states.items():
            was = self._logged.get(name)
            self._logged[name] = state
            if state.problem:
                if was is None or was.problem != state.problem:
                    self._announce_line(state, logging.ERROR, Outcome.FAILED, _line(state))
            elif was is not None and was.problem:
                line = f"{name} has {' and '.join(state.addresses)}: machines there are served again"
                self._announce_line(state, logging.INFO, Outcome.OK, line)
            elif was is not None and was.address != state.address:
                line = f"{name} has {state.address} now, and no longer {was.address}: machines there are served by it"
                self._announce_line(state, logging.WARNING, Outcome.INFO, line)
            if self._networks[name].ipv6 and not state.problem:
                self._report_ipv6(state, was)

    def _report_ipv6(self, state: NetworkState, was: NetworkState | None) -> None:
        before = was.address6 if was is not None and not was.problem else None
        if before == state.address6:
            return
        if not state.address6:
            fixed = self._networks[state.interface].address6
            why = f"{fixed} is no address of this host" if fixed else f"{state.interface} has no IPv6 address"
            line = f"{why}: machines on {state.interface} are served over IPv4 alone"
            self._announce_line(state, logging.WARNING, Outcome.INFO, line)
        elif before is not None:
            line = f"{state.interface} has {state.address6} now: machines there are served by it over IPv6"
            self._announce_line(state, logging.WARNING if before else logging.INFO, Outcome.INFO, line)

    def _announce_line(self, state: NetworkState, level: int, outcome: Outcome, line: str) -> None:
        notice = _notice(state, outcome, line)
        log.log(level, "%s", line, extra={"fields": notice.detail})
        self._announce(notice)


def _line(state: NetworkState) -> str:
    return f"{state.problem}: machines on {state.interface} are not served"


def _notice(state: NetworkState, outcome: Outcome, line: str) -> Notice:
    return Notice(time.time(), outcome, line, {"interface": state.interface, "address": state.address})
