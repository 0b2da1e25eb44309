"""A lease from DHCP, with the patience of the program that asks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from edge.fleet.machines.surroundings import BootError
from edge.fleet.protocols.dhcp import Client, Conversation, Lease, NakError
from edge.fleet.results import Question

if TYPE_CHECKING:
    from edge.fleet.machines.machine import Machine

_NAKS = 3
"""Refusals of what was offered, after which a client gives up."""


async def lease(machine: Machine, client: Client) -> Lease:
    """A lease for what `client` is on the machine. Raises BootError."""
    for _ in range(_NAKS):
        try:
            found = await _Asking(machine, client).lease()
        except NakError as error:
            machine.error(f"{client.name}: {error}")
            continue
        if found.address != machine.identity.address:
            raise BootError(f"{client.name} was given {found.address} instead of its Hardware's address")
        return found
    raise BootError(f"{client.name}: DHCPNAK {_NAKS} times")


class _Asking:
    __slots__ = ("_arrived", "_client", "_conversation", "_loop", "_machine")

    def __init__(self, machine: Machine, client: Client) -> None:
        self._machine = machine
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Future[None] = self._loop.create_future()
        xid = int(machine.chance() * 2**32).to_bytes(4, "big")
        giaddr = machine.around.port.giaddr
        self._conversation = Conversation(client, machine.identity.mac, machine.traits.uuid, xid, giaddr)

    async def lease(self) -> Lease:
        port, mac = self._machine.around.port, self._machine.identity.mac
        port.listen(mac, self._received)
        try:
            begun = self._loop.time()
            await self._exchange(begun, Question.DHCP_OFFER, "no offer")
            self._conversation.take()
            await self._exchange(begun, Question.DHCP_ACK, "an offer, but no acknowledgement")
        finally:
            port.listen(mac, None)
        if self._conversation.lease is None:
            raise BootError(f"{self._client.name}: no lease")
        return self._conversation.lease

    async def _exchange(self, begun: float, question: Question, without: str) -> None:
        """Send and wait, again and again. Raises BootError, NakError."""
        for wait in self._client.waits:
            if self._client.jitter:
                wait += self._client.jitter * (2 * self._machine.chance() - 1)
            sent = self._loop.time()
            self._arrived = self._loop.create_future()
            packet = self._conversation.packet(sent - begun)
            if not self._machine.lost():
                self._machine.around.port.send(self._machine.identity.mac, packet)
            try:
                async with asyncio.timeout(wait):
                    await self._arrived
            except TimeoutError:
                self._machine.around.recorder.error(
                    self._machine.step, f"{self._client.name} has asked again after {wait:.0f} s"
                )
                continue
            now = self._loop.time()
            self._machine.around.recorder.took(question, now - sent)
            if question is Question.DHCP_OFFER:
                rest = wait - (now - sent) if self._client.collects else self._conversation.waits_for_proxy
                await asyncio.sleep(max(rest, 0.0))
            return
        raise BootError(f"{self._client.name}: {without} within {sum(self._client.waits):.0f} s")

    def _received(self, payload: bytes) -> None:
        if self._machine.lost() or self._arrived.done():
            return
        try:
            if self._conversation.receive(payload):
                self._arrived.set_result(None)
        except NakError as error:
            self._arrived.set_exception(error)
