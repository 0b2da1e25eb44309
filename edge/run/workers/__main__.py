"""`python -m edge.run.workers FD`: a worker, at the end of the channel that is open as FD. No user starts it.

What it begins with comes on standard input, from the process that has started it.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import os
import pickle
import signal
import socket
import sys
from typing import cast

from edge.run.workers.channel import Channel
from edge.run.workers.log_lines import LogLines
from edge.run.workers.messages import Message
from edge.run.workers.serve import ServingWorker
from edge.run.workers.worker import Begin

log = logging.getLogger("edge.run.workers")


def main() -> None:
    """Serve until the channel ends."""
    import uvloop

    # A terminal, or a service manager, sends them to all; the main process tells what they mean.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()
    os.umask(0o077)
    gc.set_threshold(50_000, 20, 100)
    begin = cast(Begin, pickle.loads(sys.stdin.buffer.read()))  # noqa: S301 - of our own parent, by a file of its own
    uvloop.run(_run(begin, socket.socket(fileno=int(sys.argv[1]))))


async def _run(begin: Begin, sock: socket.socket) -> None:
    lost = asyncio.Event()
    worker = ServingWorker(begin)

    def heard(message: Message, files: list[int]) -> None:
        worker.take(message, files)

    channel = Channel(sock, heard, lost.set)
    with LogLines(channel, begin.log_level):
        try:
            await worker.start(channel)
        except Exception as error:
            log.error("worker %d can't begin: %s", begin.number, error)
            raise SystemExit(1) from None
        channel.start()
        await lost.wait()
        await worker.stop()
    channel.close()


main()
