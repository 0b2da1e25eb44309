"""The installation environment from its first DISCOVER to the agent's start: what a Linux in memory does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from edge.fleet.machines.lease import lease
from edge.fleet.machines.surroundings import BootError
from edge.fleet.protocols import http, ipxe
from edge.fleet.protocols.dhcp import Clients
from edge.fleet.results import Step
from tink.agent import AgentError, AgentSettings, from_kernel_command_line

if TYPE_CHECKING:
    from edge.fleet.machines.machine import Machine

_SIGN = "tinkedge_sign="


async def start(machine: Machine, kernel: ipxe.Boot) -> AgentSettings:
    """What the agent is told. Raises BootError, HttpError."""
    machine.at(Step.OSIE_DHCP)
    await lease(machine, Clients.OSIE.value)
    machine.at(Step.OSIE)
    sign = next((word.removeprefix(_SIGN) for word in kernel.command_line.split() if word.startswith(_SIGN)), "")
    if sign:
        await _give_sign(machine, sign)
    await asyncio.sleep(machine.traits.osie)
    try:
        return from_kernel_command_line(kernel.command_line)
    except AgentError as error:
        raise BootError(f"the agent can't be started with this kernel command line: {error}") from error


async def _give_sign(machine: Machine, url: str) -> None:
    """Whatever becomes of it, the OSIE goes on."""
    try:
        machine.around.check(http.Url.of(url).host)
        await http.get(machine.identity.address, url)
    except (http.HttpError, BootError) as error:
        machine.error(str(error))
