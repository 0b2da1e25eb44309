"""Fixtures of the TFTP tests: packets as bytes, and the server on both event loops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import uvloop

from edge.tftp.blocks import Burst
from edge.tftp.source import TftpFile
from tests.unit.artifacts.conftest import cache, clock, make_cache, start_cache, upstream
from tests.unit.tftp.loopback import MAC, Loopback

__all__ = ["cache", "clock", "make_cache", "start_cache", "upstream"]

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, LoopFactory]:
    """Run the server on both loops, because uvloop handles sockets with an error in its own way."""
    loops: dict[str, LoopFactory] = {"asyncio": asyncio.new_event_loop}
    if item.path.name == "test_server.py":
        loops["uvloop"] = uvloop.new_event_loop
    return loops


def packets_of(burst: Burst, block_bytes: int = 0) -> list[bytes]:
    """Return the packets of a burst; `block_bytes` is the block size of assembled packets."""
    if isinstance(burst, memoryview):
        return [bytes(burst[at : at + block_bytes + 4]) for at in range(0, len(burst), block_bytes + 4)]
    assert len(burst) % 2 == 0
    return [bytes(burst[at]) + bytes(burst[at + 1]) for at in range(0, len(burst), 2)]


def numbers(burst: Burst) -> list[int]:
    """Return the block numbers of the packets."""
    return [int.from_bytes(packet[2:4], "big") for packet in packets_of(burst)]


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Awaitable[Loopback]]]:
    """Start a server of one file, or of a function that opens files, until the test ends."""
    async with AsyncExitStack() as stack:

        async def start(opens: Any, file: dict[str, Any] | None = None, **settings: Any) -> Loopback:
            open_file = opens if callable(opens) else lambda _request: TftpFile(opens, "file", MAC, **(file or {}))
            return await stack.enter_async_context(Loopback(open_file).serving(**settings))

        yield start
