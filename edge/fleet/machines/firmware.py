"""What firmware does before there is an operating system: an address, and the boot program by TFTP or HTTP."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from edge.fleet.machines.lease import lease
from edge.fleet.machines.surroundings import BootError
from edge.fleet.network.datagrams import DatagramSocket
from edge.fleet.population import Firmware
from edge.fleet.protocols import http, tftp
from edge.fleet.protocols.dhcp import Client, Clients
from edge.fleet.results import Question, Step

if TYPE_CHECKING:
    from edge.fleet.machines.machine import Machine

_CLIENTS: Final[dict[Firmware, Client]] = {
    Firmware.BIOS: Clients.BIOS.value,
    Firmware.UEFI: Clients.UEFI.value,
    Firmware.UEFI_HTTP: Clients.UEFI_HTTP.value,
}
_HTTP_HEADERS: Final = ("Accept: */*", "User-Agent: UefiHttpBoot/1.0")


class NoNetbootError(BootError):
    """The server has nothing to boot for it: firmware goes on to the next boot device."""


async def load(machine: Machine) -> None:
    """Until the boot program is there. Raises BootError, HttpError; NoNetbootError: it is not to boot from here."""
    machine.at(Step.FIRMWARE_DHCP, completed=False)
    file, server = await offered(machine)
    machine.at(Step.BOOT_PROGRAM)
    if machine.traits.firmware is Firmware.UEFI_HTTP:
        await _by_http(machine, file)
    else:
        await _by_tftp(machine, server, file)


async def offered(machine: Machine) -> tuple[str, str]:
    """The boot file and the server that DHCP names. Raises BootError, NoNetbootError."""
    found = await lease(machine, _CLIENTS[machine.traits.firmware])
    if found.local_boot or not found.file:
        raise NoNetbootError("the server says: boot from the next device")
    return found.file, found.next_server or found.server


async def _by_http(machine: Machine, text: str) -> None:
    """EDK2: HEAD and GET on one connection, and a Host without the port (HttpBootClient.c)."""
    url = http.Url.of(text)
    machine.around.check(url.host)
    connection = await http.HttpConnection.connect(machine.identity.address, url)
    try:
        headers = (f"Host: {url.host}", *_HTTP_HEADERS)
        head = await connection.request("HEAD", url.target, headers)
        if head.status == 403:
            raise NoNetbootError("the server says 403: boot from the next device")
        if head.status != 200 or not head.length:
            raise BootError(f"the boot program is answered with {head.status}, and {head.length} bytes")
        file = await connection.request("GET", url.target, headers, keep=False)
    finally:
        connection.close()
    if file.status != 200 or file.length != head.length:
        raise BootError(f"the boot program: {file.status}, {file.length} bytes where HEAD said {head.length}")
    machine.around.recorder.bytes_received["boot program"] += file.length


async def _by_tftp(machine: Machine, server: str, file: str) -> None:
    machine.around.check(server)
    reads = tftp.Reads.BIOS if machine.traits.firmware is Firmware.BIOS else tftp.Reads.UEFI
    probe, asked = reads.value
    size = (await _transfer(machine, server, tftp.Reading(file, probe, probe=True))).size
    transfer = await _transfer(machine, server, tftp.Reading(file, asked))
    if size is not None and transfer.received != size:
        raise BootError(f"TFTP: {file} has {transfer.received} bytes, and the server said {size}")
    machine.around.recorder.bytes_received["boot program"] += transfer.received


async def _transfer(machine: Machine, server: str, reading: tftp.Reading) -> tftp.Reading:
    try:
        transfer = _Transfer(machine, server, reading)
    except OSError as error:
        raise BootError(f"TFTP: {error.strerror}") from error
    try:
        await transfer.run()
    except tftp.TftpError as error:
        raise BootError(f"TFTP: {error}") from error
    finally:
        transfer.close()
    return reading


class _Transfer:
    """A transfer's socket and timer. The server answers from a port of its own (RFC 1350 section 4)."""

    __slots__ = ("_done", "_loop", "_machine", "_reading", "_sent", "_server", "_socket", "_tid", "_timer", "_tries")

    def __init__(self, machine: Machine, server: str, reading: tftp.Reading) -> None:
        self._loop = asyncio.get_running_loop()
        self._machine = machine
        self._server = server
        self._reading = reading
        self._tid = 0
        self._tries = 0
        self._sent = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._socket = DatagramSocket(machine.identity.address, self._received, machine.lost)

    async def run(self) -> None:
        """Until the last block. Raises TftpError."""
        self._sent = self._loop.time()
        self._send(self._reading.packet())
        await self._done

    def close(self) -> None:
        """Close."""
        if self._timer is not None:
            self._timer.cancel()
        self._socket.close()

    def _send(self, packet: bytes) -> None:
        self._socket.send(packet, (self._server, self._tid or tftp.PORT))
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(tftp.TIMEOUT_SECONDS, self._silence)

    def _silence(self) -> None:
        self._timer = None
        self._tries += 1
        if self._tries >= tftp.ATTEMPTS:
            if not self._done.done():
                self._done.set_exception(tftp.TftpError(f"{self._server} is silent"))
            return
        self._machine.around.recorder.error(self._machine.step, "TFTP: a packet was sent again")
        self._send(self._reading.repeated())

    def _received(self, datagram: bytes, sender: tuple[str, int]) -> None:
        if self._done.done() or sender[0] != self._server or (self._tid and sender[1] != self._tid):
            return
        if not self._tid:
            self._tid = sender[1]
            self._machine.around.recorder.took(Question.TFTP, self._loop.time() - self._sent)
        try:
            answer = self._reading.receive(datagram)
        except tftp.TftpError as error:
            self._done.set_exception(error)
            return
        if answer is not None:
            self._tries = 0
            self._send(answer)
        if self._reading.done:
            self._done.set_result(None)
