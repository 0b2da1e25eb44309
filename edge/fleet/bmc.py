"""Simulated BMCs of a fleet: Redfish over HTTPS at each machine's own address, and the power supply behind it.

A machine is off until its BMC starts it. The boot device of the start is the one that the BMC was asked for. One socket
serves all BMCs of the fleet: the address that a connection goes to identifies the BMC.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web

from edge.fleet.network import FleetError
from edge.fleet.population import Identity, Traits
from edge.lab.bmc import (
    BmcServer,
    MachineBoot,
    MachineDescription,
    MachineObserver,
    PoweredMachine,
    SimulatedBmc,
    http_response,
    served_certificate,
)
from tink.api.v1alpha2 import Raw

NETWORK_BOOT: Final = "Pxe"
"""The boot device of a network boot, also by HTTP: the fleet's firmware decides between TFTP and HTTP itself."""
_USER: Final = "fleet"
_PORT: Final = 443
_POWER_SECONDS: Final = 2.0
"""Time from a request to the new power state."""
_CLOSE_SECONDS: Final = 1.0


class PowerSupply(PoweredMachine):
    """The power of one machine, as its BMC controls it."""

    def __init__(self) -> None:
        self._observer: MachineObserver | None = None
        self._next = MachineBoot()
        self._is_on = False
        self._started = asyncio.Event()
        self._interrupted = asyncio.Event()
        self.boot_device = ""
        """The boot device of the present start, in Redfish's words."""
        self.starts = 0
        """The number of starts by the BMC."""
        self.requested_at: float | None = None
        """The time (`time.monotonic`) at which the machine's boot was requested; None before that."""

    async def started(self) -> None:
        """Wait until the BMC has started the machine."""
        await self._started.wait()
        self._started.clear()
        self._interrupted.clear()

    async def interrupted(self) -> None:
        """Wait until the BMC cuts the power of the machine, or resets it."""
        await self._interrupted.wait()

    def restart(self) -> str:
        """Restart the machine from inside; return the boot device of the start."""
        self.boot_device = self._next.target
        if self._observer is not None:
            self._observer.machine_started()
        return self.boot_device

    # --- what the BMC does --------------------------------------------------------------------------------------------

    def connect(self, observer: MachineObserver) -> None:
        """Report all further changes to `observer`."""
        self._observer = observer

    def prepare(self, boot: MachineBoot) -> None:
        """Use `boot` for each start from now on."""
        self._next = boot

    def power_on(self) -> None:
        """Start the machine if it is off."""
        if not self._is_on:
            self._is_on = True
            self._start()

    def power_off(self) -> None:
        """Cut the power."""
        if self._is_on:
            self._is_on = False
            self._started.clear()
            self._interrupted.set()
            if self._observer is not None:
                self._observer.machine_stopped()

    def reset(self) -> None:
        """Restart the machine if it is on."""
        if self._is_on:
            self._interrupted.set()
            self._start()

    def press_power_button(self) -> None:
        """Do nothing: no system of the fleet listens to the power button."""

    def insert(self, url: str) -> None:  # noqa: ARG002 - the BMC has no drive
        """Refuse the medium."""
        if self._observer is not None:
            self._observer.medium_refused("a machine of the fleet has no drive")

    def eject(self) -> None:
        """Report an empty drive."""
        if self._observer is not None:
            self._observer.medium_ejected()

    def _start(self) -> None:
        self.starts += 1
        self._started.set()
        self.restart()


@dataclass(frozen=True, slots=True)
class BmcAccess:
    """The account and the certificate of all BMCs of a fleet, for a Secret and Machines."""

    secret: str
    """The name of the Secret."""
    fingerprint: str
    password: str = field(default_factory=lambda: secrets.token_urlsafe(18), repr=False)

    @property
    def account(self) -> dict[str, str]:
        """The content of the Secret."""
        return {"username": _USER, "password": self.password}

    def machine_spec(self, machine: Identity, namespace: str) -> Raw:
        """Return the spec of the Machine of a simulated machine."""
        return {
            "connection": {
                "host": machine.address,
                "insecureTLS": False,
                "certificateFingerprint": self.fingerprint,
                "authSecretRef": {"name": self.secret, "namespace": namespace},
                "providerOptions": {"preferredOrder": ["gofish"]},
            }
        }


class FleetBmcs:
    """The BMCs of all machines of a fleet. `supplies` are the machines' power supplies, in the same order."""

    def __init__(self, identities: Sequence[Identity], traits: Sequence[Traits], secret: str) -> None:
        self._certificate = served_certificate(identities[0].address)
        self.access = BmcAccess(secret, self._certificate.fingerprint)
        self.supplies = [PowerSupply() for _ in identities]
        self.requests = 0
        self._servers: dict[str, BmcServer] = {}
        context = self._certificate.context()
        for each, drawn, supply in zip(identities, traits, self.supplies, strict=True):
            bmc = SimulatedBmc(
                accounts={_USER: self.access.password},
                machine=supply,
                description=MachineDescription(serial=each.name, macs=(each.mac_text,)),
                power_seconds=_POWER_SECONDS,
                post_seconds=drawn.post,
                slots=(),
            )
            self._servers[each.address] = server = BmcServer(bmc, context)
            supply.connect(server)
            supply.prepare(bmc.next_boot)
        self._context = context

    async def start(self, stack: AsyncExitStack) -> None:
        """Listen in the present network namespace until `stack` closes. Raises FleetError."""
        runner = web.ServerRunner(web.Server(self._handle), shutdown_timeout=_CLOSE_SECONDS)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        try:
            # None: all addresses. A namespace has those of its machines alone.
            await web.TCPSite(runner, None, _PORT, ssl_context=self._context, backlog=1024).start()
        except OSError as error:
            raise FleetError(f"the BMCs can't listen on port {_PORT}: {error.strerror}") from error

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests += 1
        address = request.transport.get_extra_info("sockname")[0] if request.transport is not None else ""
        server = self._servers.get(address)
        return http_response(await server.ask(request)) if server is not None else web.Response(status=404)

    def requesting(self, number: int) -> None:
        """Note that the boot of a machine is requested now, for the time until its power-on."""
        self.supplies[number].requested_at = time.monotonic()

    def summary(self) -> str:
        """Return in one line what the BMCs did."""
        bmcs = [each.bmc for each in self._servers.values()]
        started = sum(each.starts > 0 for each in self.supplies)
        logins, refused, left = (
            sum(getattr(bmc, name) for bmc in bmcs) for name in ("logins", "failed_logins", "open_sessions")
        )
        return (
            f"one at each machine's address (Redfish, port {_PORT}): {started} machines powered on, in "
            f"{sum(each.starts for each in self.supplies)} starts; {self.requests} requests, {logins} logins, "
            f"{refused} refused, {left} sessions left"
        )
