"""Metadata at a link-local address that machines know without configuration: fe80::a9fe:a9fe, port 80.

OpenStack uses this address for its metadata service over IPv6, as 169.254.169.254 over IPv4. An image that uses it,
`http://[fe80::a9fe:a9fe%25eth0]`, needs neither the edge's address nor one of its own. The caller is identified as
everywhere, by the MAC of its link-local address on this link (`edge.callers`).

    the link -> hold the address there, for LEASE_SECONDS at a time -> a site at it, unless another host has it

If several edges are on a link, duplicate address detection gives the address to one, and the others retry. If that one
dies, its hold expires, and the next edge gets the address.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import Final

from aiohttp import web

from edge.journey.events import Notice, Outcome
from edge.neighbour.host import NetworkState
from edge.neighbour.links import METADATA_ADDRESS as ADDRESS
from edge.neighbour.links import METADATA_PORT as PORT
from edge.neighbour.links import AddressState, address_state, hold_address, release_address
from edge.run.networks.services import MakeSite, tcp_advice

log = logging.getLogger(__name__)

LEASE_SECONDS: Final = 15  # lifetime of the address after its edge was killed
TICK_SECONDS: Final = 1.0
AGAIN_SECONDS: Final = 5.0  # time until the next try to get an address that another host has


@dataclass(slots=True)
class _Place:
    """The state on one interface."""

    index: int = 0  # the number of the link; 0 if it has no carrier
    asked: bool = False  # True if the address was requested from the kernel
    site: web.TCPSite | None = None
    due: float = 0.0  # the time of the next request
    line: str = ""  # the last line of the log


@dataclass(eq=False)
class LinkMetadata:
    """Serves metadata at the address on each network while `run` runs; `stop` releases the address.

    `announce` receives where metadata is served, and why it is not. `clock` gives seconds.
    """

    states: Callable[[], Sequence[NetworkState]]
    make_site: MakeSite
    announce: Callable[[Notice], None]
    clock: Callable[[], float] = time.monotonic
    _: KW_ONLY
    port: int = PORT

    def __post_init__(self) -> None:
        self._places: dict[str, _Place] = {}

    async def run(self) -> None:
        """Keep the address on each network where it is free, until cancelled."""
        while True:
            await self.update()
            await asyncio.sleep(TICK_SECONDS)

    async def update(self) -> None:
        """Take the next step on each network."""
        for state in self.states():
            place = self._places.setdefault(state.interface, _Place())
            index = state.index if state.carrier else 0
            if place.index != index:
                await self._close(place)
                place.index, place.asked, place.due = index, False, 0.0
            if not index:
                continue
            try:
                held = self._keep(place)
                await self._serve(state.interface, place, held)
            except OSError as error:
                await self._close(place)
                self._say(state.interface, place, Outcome.FAILED, _why_not(error, state.interface, self.port))

    async def stop(self) -> None:
        """Stop serving, and release the address for other edges."""
        for place in self._places.values():
            await self._close(place)
            with suppress(OSError):
                if place.index and address_state(place.index, ADDRESS) is AddressState.HELD:
                    release_address(place.index, ADDRESS)

    def _keep(self, place: _Place) -> AddressState:
        """Return the state of the address, and renew the hold if that is due. Raises OSError."""
        held = address_state(place.index, ADDRESS)
        if held is AddressState.DUPLICATE:
            release_address(place.index, ADDRESS)  # otherwise the kernel does not try again
        elif held is AddressState.ABSENT and place.asked:
            held = AddressState.DUPLICATE  # the kernel removes a temporary address if another host has it
        if held is AddressState.DUPLICATE:
            place.asked, place.due = False, self.clock() + AGAIN_SECONDS
        elif held is not AddressState.FIXED and self.clock() >= place.due:
            hold_address(place.index, ADDRESS, LEASE_SECONDS)
            place.asked, place.due = True, self.clock() + LEASE_SECONDS / 3
        return held

    async def _serve(self, interface: str, place: _Place, held: AddressState) -> None:
        """Open or close the site. Raises OSError."""
        if held in (AddressState.HELD, AddressState.FIXED):
            if place.site is None:
                site = self.make_site(f"{ADDRESS}%{interface}", self.port)
                try:
                    await site.start()
                except OSError:
                    await site.stop()
                    raise
                place.site = site
            self._say(interface, place, Outcome.OK, f"metadata is served at [{ADDRESS}%{interface}]:{self.port}")
            return
        await self._close(place)
        if held is AddressState.DUPLICATE:
            line = f"another host on {interface} has {ADDRESS}: metadata is not served there by this edge"
            self._say(interface, place, Outcome.INFO, line)

    @staticmethod
    async def _close(place: _Place) -> None:
        site, place.site = place.site, None
        if site is not None:
            await site.stop()

    def _say(self, interface: str, place: _Place, outcome: Outcome, line: str) -> None:
        if line == place.line:
            return
        place.line = line
        level = {Outcome.OK: logging.INFO, Outcome.FAILED: logging.ERROR}.get(outcome, logging.WARNING)
        fields = {"interface": interface, "address": str(ADDRESS)}
        log.log(level, "%s", line, extra={"fields": fields})
        self.announce(Notice(time.time(), outcome, line, fields))


def _why_not(error: OSError, interface: str, port: int) -> str:
    what = f"metadata at {ADDRESS} on {interface}"
    if error.errno == errno.EPERM:
        return f"{what}: not permitted; run as root, or with CAP_NET_ADMIN, or without --link-metadata"
    if error.errno == errno.EACCES:
        return f"{what}: IPv6 is off (sysctl net.ipv6.conf.{interface}.disable_ipv6), or port {port} not permitted"
    if isinstance(error, socket.gaierror):
        return f"{what}: the link has gone"
    return f"{what}: {tcp_advice(error, port, '--link-metadata, which has no other port')}"
