"""Servers that are replaced, one after the other, under an agent that is at work: it moves, and that is all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

import pytest

from tests.support.virtual_time import turns
from tests.unit.agent.workflow_service import transporting
from tests.unit.server.conftest import Rig
from tests.waiting import until
from tink.agent import connection as transport
from tink.agent.journal import Spool
from tink.agent.model import ActionStarted
from tink.server import WorkflowServer

ROLLS = 4


class Service:
    """A Service of Kubernetes, as an agent sees it: one address, whose new connections go to `endpoint`."""

    def __init__(self) -> None:
        self.endpoint = 0
        self.port = 0
        self._pipes: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()
            for writer in self._writers:
                writer.close()
            await asyncio.gather(*self._pipes, *(each.wait_closed() for each in self._writers), return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        back, there = await asyncio.open_connection("127.0.0.1", self.endpoint)
        self._writers.append(there)
        for source, sink in ((reader, there), (back, writer)):
            self._pipes.add(asyncio.create_task(self._pipe(source, sink)))

    @staticmethod
    async def _pipe(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while piece := await source.read(65536):
                sink.write(piece)
                await sink.drain()
        sink.close()


def logged(log: pytest.LogCaptureFixture, words: str, times: int) -> Callable[[], bool]:
    return lambda: sum(words in record.getMessage() for record in log.records) == times


async def next_server(rig: Rig, service: Service) -> WorkflowServer:
    """It serves, and new connections go to it."""
    await rig.start()
    server: WorkflowServer = rig.server
    rig.machine()  # of which it hears now
    rig.workflow(state="Running")
    await until(lambda: server._serving)
    service.endpoint = server.port
    return server


async def test_agent_at_work_goes_from_server_to_server_and_loses_nothing(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, transport.__name__)
    service, spool, sent = Service(), Spool(), 0
    async with service.listening():
        server = await next_server(rig, service)
        async with transporting(service.port, spool, [], held_workflows=lambda: ["uid-w"]):
            for roll in range(1, ROLLS + 1):
                await until(logged(caplog, "connected to the server", roll))
                old, server = server, await next_server(rig, service)
                stopping = asyncio.create_task(old.stop())
                while not stopping.done() or not len(server._streams):
                    spool.append(ActionStarted("uid-w", "a0"))
                    sent += 1
                    await turns(50)
            await until(lambda: len(spool) == 0)
    assert sent > ROLLS
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == []
    assert logged(caplog, "is stopping; going to the next", ROLLS)()
    assert rig.state() == "Running"
