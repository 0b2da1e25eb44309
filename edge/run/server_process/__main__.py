"""`python -m edge.run.server_process FD`: the gRPC server, connected to its parent by the channel at FD.

The parent process starts it and sends the initial settings (`ServerBegin`) on standard input. Users do not start it.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import gc
import logging
import os
import pickle
import re
import resource
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final, cast

from prometheus_client import generate_latest
from prometheus_client.registry import CollectorRegistry

from edge.run.graph import AgentsObserver, Stack
from edge.run.server_process.channel import (
    Channel,
    ChannelHandler,
    Failed,
    KeptAway,
    Message,
    Ping,
    Pong,
    Reread,
    ServerState,
    Up,
)
from edge.run.server_process.supervisor import ServerBegin
from tink.files.rereading import reread_all
from tink.server import AgentActivity

log = logging.getLogger(__name__)

STATE_SECONDS: Final = 1.0
WAITING_BYTES: Final = 8 << 20
"""Maximum number of activities that the parent has not read yet. Further ones are dropped."""
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_OWN_LOGGERS: Final = ("tink.server", "tink.files", "edge.run.networks.agents")
_LOGGED_TWICE: Final = ("edge.run.networks", "tink.kube")
"""The child logs nothing about networks and the API: the parent follows both and logs them."""
_RESERVE_BYTES: Final = 64 << 20
"""Address space beyond the limit: threads that gRPC starts later reserve 8 MiB each for their stacks."""
_BADNESS: Final = 500
"""The kernel kills this process before its parent if the host runs out of memory (oom_score_adj, proc(5))."""


def main() -> None:
    """Serve until the channel ends."""
    import uvloop

    parent = os.getppid()
    # If the parent is killed, the child must end too and close its port (prctl(2)).
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    # A terminal or a service manager sends these signals to all processes. The parent decides what to do.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()
    os.umask(0o077)
    gc.set_threshold(50_000, 20, 100)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_BADNESS))
    begin = cast(ServerBegin, pickle.loads(sys.stdin.buffer.read()))  # noqa: S301 - written by our own parent
    uvloop.run(_run(begin, socket.socket(fileno=int(sys.argv[1]))))


class _Child:
    """The child's side of the channel: reports events to the parent and executes its requests."""

    channel: Channel

    def __init__(self, begin: ServerBegin) -> None:
        self._begin = begin
        self.lost = asyncio.Event()
        agents = AgentsObserver(
            self._observe, self._listens, lambda blocks: self.channel.send(KeptAway(blocks)), begin.kept_away
        )
        self._stack = Stack(begin.settings, agents=agents)

    async def run(self) -> None:
        """Serve until the parent ends or closes the channel."""
        try:
            await self._stack.start()
        except Exception as error:
            log.debug("where", exc_info=True)
            self.channel.send(Failed(str(error) or repr(error)))
            self.channel.close()
            await self.channel.closed()
            raise SystemExit(1) from None
        gc.collect()
        gc.freeze()
        reporting = asyncio.create_task(self._report())
        await self._stack.run(self.lost)
        reporting.cancel()
        await self._stack.stop()
        self.channel.close()
        await self.channel.closed()

    def _listens(self) -> None:
        if self._begin.settings.server.memory is not None:
            _limit_memory(self._begin.settings.server.memory)
        self.channel.send(Up())

    def _observe(self, activity: AgentActivity) -> None:
        if self.channel.waiting_bytes <= WAITING_BYTES:
            self.channel.send(activity)

    async def _report(self) -> None:
        reported = None
        while True:
            registry = CollectorRegistry()
            for collector in self._stack.agents_metrics:
                registry.register(collector)
            state = ServerState(self._stack.agents_note, generate_latest(registry).decode())
            if state != reported and self.channel.waiting_bytes < WAITING_BYTES:
                self.channel.send(state)
            reported = state
            await asyncio.sleep(STATE_SECONDS)

    def take(self, message: Message) -> None:
        """Execute a request of the parent."""
        match message:
            case Reread():
                if message.log_level:
                    logging.getLogger().setLevel(message.log_level)
                reread_all()
            case Ping():
                self.channel.send(Pong(message.number))


def _limit_memory(most: int) -> None:
    """Set the kernel's limit to `most` bytes of memory (RLIMIT_DATA, setrlimit(2)). Exceeding it ends this process."""
    # The kernel counts address space: the limit includes what is reserved now and not used, such as thread stacks.
    status = Path("/proc/self/status").read_text()
    reserved, used = (int(re.findall(rf"{name}:\s+(\d+) kB", status)[0]) << 10 for name in ("VmData", "RssAnon"))
    limit = most + max(0, reserved - used) + _RESERVE_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _is_own(record: logging.LogRecord) -> bool:
    if record.name.startswith(_OWN_LOGGERS):
        return True
    return record.levelno >= logging.ERROR and not record.name.startswith(_LOGGED_TWICE)


async def _run(begin: ServerBegin, sock: socket.socket) -> None:
    child = _Child(begin)
    child.channel = await Channel.open(sock, child.take, child.lost.set)
    handler = ChannelHandler(child.channel, begin.log_level)
    handler.addFilter(_is_own)
    with handler:
        await child.run()


main()
