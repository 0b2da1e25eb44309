"""The addresses where the gRPC server listens: those of the networks that face machines, or the operator's choice.

An address of the operator may be on another host for now (keepalived, a load balancer). The server listens on it from
the moment when the kernel reports it here, and keeps it: the address may go and return. gRPC's core binds its sockets
itself and has no IP_FREEBIND (ip(7)), so it can't listen earlier.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Final

from edge.neighbour.host import IsOwn, NetworkState
from edge.neighbour.links import LinkChanges
from edge.neighbour.route import is_own
from edge.run.networks.follow import Follower
from tink.net.addresses import join_host_port
from tink.server import WorkflowServer

log = logging.getLogger(__name__)

EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 - the operator says so
_RETRY_SECONDS: Final = 1.0


def at_networks(server: WorkflowServer, states: Collection[NetworkState], port: int) -> Follower:
    """Return the follower that makes the gRPC server listen at the address of each network."""
    # An address that has gone is kept until the network has another one: it may return, with its connections.
    addresses: dict[tuple[str, bool], str] = {}

    def take(state: NetworkState) -> None:
        addresses.update({(state.interface, ":" in address): address for address in state.addresses})

    for state in states:
        take(state)

    async def network_changed(state: NetworkState) -> None:
        if state.addresses:
            take(state)
            await server.listen_at([join_host_port(address, port) for address in addresses.values()])

    return network_changed


class AgentsAddresses:
    """Makes the gRPC server listen at fixed addresses, each as soon as this host has it. Belongs to one event loop."""

    def __init__(self, addresses: Sequence[str], port: int, owned: IsOwn = is_own) -> None:
        """`addresses` of either family; 0.0.0.0 and `::` stand for all. Raises OSError if the kernel can't be asked."""
        self._wanted = tuple(dict.fromkeys(addresses))
        self._port = port
        self._owned = owned
        self._here = self._look()
        self._listening = self._here  # the addresses at the start, and all that appeared since

    @property
    def listening(self) -> list[str]:
        """The addresses to listen at, as HOST:PORT."""
        return [join_host_port(address, self._port) for address in self._listening]

    @property
    def note(self) -> str:
        """A note for operators; empty if this host has all addresses."""
        absent = [address for address in self._wanted if address not in self._here]
        return f"{', '.join(absent)} is not here: agents find it on another host" if absent else ""

    async def run(self, server: WorkflowServer) -> None:
        """Follow the kernel until cancelled."""
        changed = asyncio.Event()
        changes = LinkChanges(changed.set)
        retry = True
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_RETRY_SECONDS if retry else None):
                        await changed.wait()
                changed.clear()
                retry = not await self._follow(server.listen_at)
        finally:
            changes.close()

    async def _follow(self, listen_at: Callable[[Collection[str]], Awaitable[None]]) -> bool:
        """Listen at new addresses. Return False if that has to be retried."""
        before = self._here
        try:
            self._here = self._look()
            for address in self._wanted:
                if (address in self._here) != (address in before):
                    what = "is here now: agents are served there" if address in self._here else "has gone"
                    log.info("%s %s", address, what)
            more = tuple(address for address in self._here if address not in self._listening)
            if more:
                listening = self._listening + more
                await listen_at([join_host_port(address, self._port) for address in listening])
                self._listening = listening
        except OSError as error:
            log.warning("agents can't be served at all addresses: %s", error.strerror or error)
            return False
        return True

    def _look(self) -> tuple[str, ...]:
        """Return the addresses that this host has. Raises OSError."""
        return tuple(each for each in self._wanted if each in EVERYWHERE or self._owned(ip_address(each)))
