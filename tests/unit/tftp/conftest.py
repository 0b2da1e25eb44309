"""What the tests of transfers share: packets as bytes, and clients written from the rules of real ones."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import pytest
import uvloop

from edge.tftp.blocks import Burst, NetasciiBlocks, OctetBlocks
from edge.tftp.packets import Agreed
from edge.tftp.transfer import Ending, ReadTransfer
from tests.unit.tftp.boot_files import Edge, make_edge
from tests.unit.tftp.loopback import udp

REQUEST_BYTES = 40

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, LoopFactory]:
    """The server runs on both loops: uvloop, which serves, has its own way with sockets that had an error."""
    loops: dict[str, LoopFactory] = {"asyncio": asyncio.new_event_loop}
    if item.path.name.startswith("test_server"):
        loops["uvloop"] = uvloop.new_event_loop
    return loops


@pytest.fixture
def client() -> Iterator[socket.socket]:
    with udp() as sock:
        yield sock


def packets_of(burst: Burst, block_bytes: int = 0) -> list[bytes]:
    """Each packet whole; of those that are ready, `block_bytes` tells where they end."""
    if isinstance(burst, memoryview):
        return [bytes(burst[at : at + block_bytes + 4]) for at in range(0, len(burst), block_bytes + 4)]
    assert len(burst) % 2 == 0
    return [bytes(burst[at]) + bytes(burst[at + 1]) for at in range(0, len(burst), 2)]


def numbers(burst: Burst) -> list[int]:
    """The block numbers on the wire."""
    return [int.from_bytes(packet[2:4], "big") for packet in packets_of(burst)]


def ack(number: int) -> bytes:
    return b"\0\4" + (number & 0xFFFF).to_bytes(2, "big")


def of(
    content: bytes, agreed: Agreed | None = None, *, filled: int | None = None, netascii: bool = False
) -> ReadTransfer:
    """A transfer at the time 0; `filled` is given for a file that is still arriving."""
    agreed = agreed or Agreed()
    kind = NetasciiBlocks if netascii else OctetBlocks
    return ReadTransfer(kind(content, agreed.block_bytes, filled), agreed, 0.0, request_bytes=REQUEST_BYTES)


class Client:
    """Takes blocks in order, and acknowledges the end of each window and the last block (RFC 7440 section 4)."""

    def __init__(self, block_bytes: int, window: int) -> None:
        self.block_bytes = block_bytes
        self.window = window
        self.data = bytearray()
        self.expected = 1
        self.in_window = 0
        self.done = False

    def take(self, packet: bytes) -> bytes | None:
        """The answer to a packet; None where there is none."""
        assert packet[:2] in (b"\0\3", b"\0\6")
        if packet[:2] == b"\0\6":
            return ack(0) if self.expected == 1 else None
        number, payload = int.from_bytes(packet[2:4], "big"), packet[4:]
        if number != self.expected & 0xFFFF:
            return self.unexpected(number)
        assert not self.done, "a block behind the last one"
        assert len(payload) <= self.block_bytes
        self.data += payload
        self.expected += 1
        self.in_window += 1
        self.done = len(payload) < self.block_bytes
        if self.done or self.in_window == self.window:
            self.in_window = 0
            return ack(self.expected - 1)
        return None

    def timed_out(self) -> bytes:
        """What it sends after a silence: the last acknowledgement."""
        self.in_window = 0
        return ack(self.expected - 1)

    def unexpected(self, number: int) -> bytes | None:
        raise NotImplementedError


class Edk2(Client):
    """Mtftp4Rrq.c: it acknowledges the last good block for each one that it did not expect, whatever it is."""

    def unexpected(self, number: int) -> bytes | None:
        self.in_window = 0
        return ack(self.expected - 1)


class Sparing(Client):
    """Like U-Boot and atftp: it says once that there is a gap, and answers a block that it has had once more."""

    def __init__(self, block_bytes: int, window: int) -> None:
        super().__init__(block_bytes, window)
        self._told = 0

    def unexpected(self, number: int) -> bytes | None:
        if number == (self.expected - 1) & 0xFFFF:
            self.in_window = 0
            return ack(self.expected - 1)
        if self._told == self.expected:
            return None
        self._told = self.expected
        self.in_window = 0
        return ack(self.expected - 1)


CLIENTS: Sequence[type[Client]] = (Edk2, Sparing)


def ending(transfer: ReadTransfer) -> Ending | None:
    return transfer.ended.ending if transfer.ended is not None else None


def waits(transfer: ReadTransfer, now: float) -> list[float]:
    """The seconds between repetitions to a client that has fallen silent, until it is given up."""
    found = []
    while transfer.ended is None:
        found.append(round(transfer.deadline - now, 3))
        now = transfer.deadline
        transfer.expire(now)
    return found


@pytest.fixture
async def edge(tmp_path: Path) -> AsyncIterator[Edge]:
    edge = make_edge(tmp_path)
    yield edge
    for artifact in edge.cache.opened:
        artifact.close()
