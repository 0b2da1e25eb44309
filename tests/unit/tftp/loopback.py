"""A TFTP server on loopback, and what clients of it send and take, packet by packet."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from edge.journey.events import JourneyEvent, Outcome, Step
from edge.tftp import TftpServer
from edge.tftp.source import OpenFile, TftpFile
from tests.waiting import until

Address = tuple[str, int]

MAC = "52:54:00:00:00:01"
CONTENT = random.Random(7).randbytes(300_007)


@dataclass
class Loopback:
    """A server on a free port of loopback, and what it recorded."""

    open_file: OpenFile
    events: list[JourneyEvent] = field(default_factory=list)
    under_way: list[JourneyEvent] = field(default_factory=list)
    """What was told before the ends: beginnings, and silence in between."""

    @asynccontextmanager
    async def serving(self, **settings: int | bool | Callable[[str], bool]) -> AsyncIterator[TftpServer]:
        server = TftpServer(self.open_file, self._record, host="127.0.0.1", port=0, **settings)  # type: ignore[arg-type]
        await server.start()
        self.address = ("127.0.0.1", server.port)
        try:
            yield server
        finally:
            await server.stop()
            assert server.transfers == 0

    def _record(self, mac: str, step: Step, outcome: Outcome, message: str, **detail: str | int | float) -> None:
        events = self.under_way if "phase" in detail else self.events
        events.append(JourneyEvent(0.0, mac, step, outcome, message, detail))

    async def settled(self, count: int) -> list[str]:
        """The messages, when `count` of them are there."""
        await until(lambda: len(self.events) >= count)
        await asyncio.sleep(0.01)
        return [event.message for event in self.events]


def serving(content: bytes | memoryview, **more: object) -> Loopback:
    return Loopback(lambda _request: TftpFile(content, "file", MAC, **more))  # type: ignore[arg-type]


def udp() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    sock.setblocking(False)
    return sock


def rrq(*options: str, name: str = "file", mode: str = "octet") -> bytes:
    return b"\0\1" + b"".join(text.encode() + b"\0" for text in (name, mode, *options))


def ack(number: int) -> bytes:
    return b"\0\4" + (number & 0xFFFF).to_bytes(2, "big")


async def receive(sock: socket.socket) -> tuple[bytes, Address]:
    async with asyncio.timeout(20):
        while True:
            try:
                return sock.recvfrom(70_000)
            except BlockingIOError:
                await asyncio.sleep(0.001)


async def silence(sock: socket.socket, seconds: float = 0.1) -> None:
    """Nothing comes."""
    await asyncio.sleep(seconds)
    with pytest.raises(BlockingIOError):
        sock.recvfrom(70_000)


async def download(sock: socket.socket, server: Address, request: bytes, block: int = 512, window: int = 1) -> bytes:
    """The file, as a client without faults takes it."""
    sock.sendto(request, server)
    data, expected, in_window = b"", 1, 0
    while True:
        packet, sender = await receive(sock)
        if packet[1] == 6:
            sock.sendto(ack(0), sender)
            continue
        assert packet[1] == 3, packet
        if packet[2:4] != ack(expected)[2:]:
            continue
        data, expected, in_window = data + packet[4:], expected + 1, in_window + 1
        last = len(packet) - 4 < block
        if last or in_window == window:
            in_window = 0
            sock.sendto(ack(expected - 1), sender)
        if last:
            return data
