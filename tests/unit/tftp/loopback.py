"""A TFTP server on loopback, and clients that send and receive single packets."""

from __future__ import annotations

import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from edge.journey.events import JourneyEvent, Outcome, Step
from edge.tftp import TftpServer
from edge.tftp.source import OpenFile
from tests.support.virtual_time import turns
from tests.waiting import until

Address = tuple[str, int]

MAC = "52:54:00:00:00:01"
CONTENT = random.Random(7).randbytes(300_007)


def udp(ip: str = "127.0.0.1") -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((ip, 0))
    sock.setblocking(False)
    return sock


def rrq(*options: str, name: str = "file", mode: str = "octet") -> bytes:
    return b"\0\1" + b"".join(text.encode() + b"\0" for text in (name, mode, *options))


def ack(number: int) -> bytes:
    return b"\0\4" + (number & 0xFFFF).to_bytes(2, "big")


class Client:
    """A client of the server. It sends to the port of the last answer."""

    def __init__(self, server: Address, ip: str = "127.0.0.1") -> None:
        self.socket = udp(ip)
        self.server = server
        self.transfer = server

    def request(self, *options: str, **how: str) -> None:
        self.socket.sendto(rrq(*options, **how), self.server)

    def send(self, datagram: bytes) -> None:
        self.socket.sendto(datagram, self.transfer)

    async def receive(self) -> bytes:
        packet, self.transfer = await until(self._received, "no packet came", every=0.001)
        return packet

    def _received(self) -> tuple[bytes, Address] | None:
        with suppress(BlockingIOError):
            return self.socket.recvfrom(70_000)
        return None

    async def ask(self, *options: str, **how: str) -> bytes:
        """Send a request and return the answer."""
        self.request(*options, **how)
        return await self.receive()

    async def answer(self, datagram: bytes) -> bytes:
        """Send a datagram and return the server's answer."""
        self.send(datagram)
        return await self.receive()

    async def begin(self, *options: str, **how: str) -> bytes:
        """Acknowledge the first block of a file, or the OACK, and return the next packet."""
        first = await self.ask(*options, **how)
        self.send(ack(0 if first[1] == 6 else 1))
        while (packet := await self.receive()) == first:  # sent again before the acknowledgement was there
            pass
        return packet

    def drained(self) -> list[bytes]:
        """Return the packets that have arrived and were not received yet."""
        packets = []
        while (received := self._received()) is not None:
            packets.append(received[0])
        return packets

    async def download(self, block: int = 512, window: int = 1, *options: str, **how: str) -> bytes:
        """Download a file as a correct client does, and return its content."""
        sizes = (("blksize", block, 512), ("windowsize", window, 1))
        self.request(
            *(text for name, size, usual in sizes if size != usual for text in (name, str(size))), *options, **how
        )
        data, expected, in_window = b"", 1, 0
        while True:
            packet = await self.receive()
            if packet[1] == 6:
                self.send(ack(0))
                continue
            assert packet[1] == 3, packet
            if packet[2:4] != ack(expected)[2:]:
                continue
            data, expected, in_window = data + packet[4:], expected + 1, in_window + 1
            last = len(packet) - 4 < block
            if last or in_window == window:
                in_window = 0
                self.send(ack(expected - 1))
            if last:
                return data


class Loopback:
    """A server on a free port of loopback, and the events that it recorded."""

    def __init__(self, open_file: OpenFile) -> None:
        self.open_file = open_file
        self.events: list[JourneyEvent] = []
        """The ends of transfers, and refusals, without the events of phases."""
        self._clients: list[Client] = []

    @asynccontextmanager
    async def serving(self, host: str = "127.0.0.1", **settings: Any) -> AsyncIterator[Loopback]:
        self.server = TftpServer(self.open_file, self.record, host=host, port=0, **settings)
        await self.server.start()
        self.address = ("127.0.0.1", self.server.port)
        try:
            yield self
        finally:
            await self.server.stop()
            for client in self._clients:
                client.socket.close()
            assert self.server.transfers == 0

    def client(self, ip: str = "127.0.0.1") -> Client:
        self._clients.append(Client(self.address, ip))
        return self._clients[-1]

    def clients(self, count: int, ip: str = "127.0.0.1") -> list[Client]:
        """Create clients; `{}` in `ip` is replaced by the number of the client."""
        return [self.client(ip.format(number)) for number in range(count)]

    @property
    def transfers(self) -> int:
        return self.server.transfers

    def record(self, mac: str, step: Step, outcome: Outcome, message: str, **detail: str | int | float) -> None:
        if "phase" not in detail:
            self.events.append(JourneyEvent(0.0, mac, step, outcome, message, detail))

    async def settled(self, count: int) -> list[str]:
        """Wait for `count` events and return their messages."""
        await until(lambda: len(self.events) >= count)
        await turns(3)
        return [event.message for event in self.events]

    async def has_read(self) -> None:
        """Wait until the server has read all earlier requests, which it reads in order."""
        assert await self.client().ask(mode="mail") == b"\0\5\0\4only the modes octet and netascii are served\0"
        await turns(3)
