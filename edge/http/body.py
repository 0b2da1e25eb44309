"""Sending an artifact to a machine: `os.sendfile` from a thread, straight from the file to the socket.

Neither uvloop's missing sendfile nor asyncio's blocking one will do: a thread sends as long as the machine takes the
bytes, for a quarter of a second at most, then gives way to the next machine; a machine that takes none is waited for in
the event loop. So few threads serve many machines, slow ones hold none, and small requests are answered meanwhile.

A file that is still being downloaded is sent as far as it goes, then the next part when it has come.
"""

from __future__ import annotations

import asyncio
import os
import select
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from aiohttp import web

from edge.artifacts.cache import Artifact, StorageError
from edge.artifacts.threads import in_thread

CHUNK = 1 << 20
SLICE_SECONDS = 0.25
PATIENCE_MS = 20
"""Milliseconds that a thread waits for a machine to make room, before it leaves the waiting to the event loop."""


class MachineGoneError(Exception):
    """The machine closed the connection, or took no byte for too long. `sent` is how many it has taken."""

    def __init__(self, reason: str, sent: int) -> None:
        super().__init__(reason)
        self.sent = sent


class BodySender:
    """Sends file bodies with `threads` threads; gives a machine up that takes nothing for `idle_seconds`."""

    def __init__(self, *, threads: int = 8, idle_seconds: float = 30.0) -> None:
        self._idle_seconds = idle_seconds
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="http-body")

    def close(self) -> None:
        """Wait for the threads to end. Requests must have been ended before."""
        self._pool.shutdown(wait=True)

    async def send(self, request: web.Request, artifact: Artifact, start: int, end: int) -> None:
        """Send bytes `start` to before `end` as the body of a response whose headers were written.

        Raises MachineGoneError, and ArtifactError if the upstream fails meanwhile. Plain TCP only, no TLS.
        """
        transport = request.transport
        if transport is None or transport.is_closing():
            raise MachineGoneError("it closed the connection", 0)
        await self._headers_gone(transport)
        # A descriptor of our own: the transport may close its own at any time, and the number be used for another.
        sock = os.dup(transport.get_extra_info("socket").fileno())
        offset = start
        try:
            while offset < end:
                ready = min(await artifact.filled(offset), end)
                while offset < ready:
                    if transport.is_closing():
                        raise MachineGoneError("it closed the connection", offset - start)
                    sent = await in_thread(self._pool, send_slice, sock, artifact.fd, offset, ready)
                    offset += sent
                    if sent == 0:
                        await self._writable(sock)
        except TimeoutError:
            reason = f"it took no byte for {self._idle_seconds:g} s"
            raise MachineGoneError(reason, offset - start) from None
        except _FileEndsError:
            reason = f"the file ends before byte {offset}: it was changed while it was sent"
            raise StorageError(artifact.url, reason) from None
        except ConnectionError:
            raise MachineGoneError("it closed the connection", offset - start) from None
        except OSError as error:
            raise StorageError(artifact.url, f"can't be sent: {error.strerror}") from error
        finally:
            os.close(sock)

    async def _headers_gone(self, transport: asyncio.Transport) -> None:
        """Wait until the transport has written what it holds: the body must not overtake the headers."""
        give_up = time.monotonic() + self._idle_seconds
        pause = 0.0
        while transport.get_write_buffer_size():
            if time.monotonic() > give_up or transport.is_closing():
                raise MachineGoneError("it did not take the headers", 0)
            await asyncio.sleep(pause)
            pause = min(pause + 0.001, 0.05)

    async def _writable(self, sock: int) -> None:
        """Wait until the machine takes bytes again. Raises TimeoutError."""
        loop = asyncio.get_running_loop()
        writable = loop.create_future()
        loop.add_writer(sock, _wake, writable)
        try:
            async with asyncio.timeout(self._idle_seconds):
                await writable
        finally:
            loop.remove_writer(sock)


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


class _FileEndsError(Exception):
    """The file is shorter than it was."""


def send_slice(sock: int, file: int, offset: int, end: int, clock: Callable[[], float] = time.monotonic) -> int:
    """Send from `file` at `offset` to the non-blocking socket `sock` while it takes bytes; gives how many it took.

    Stops after `SLICE_SECONDS`. Raises ConnectionError. Runs in a thread.
    """
    stop = clock() + SLICE_SECONDS
    poll = select.poll()
    poll.register(sock, select.POLLOUT)
    sent = 0
    while offset + sent < end and clock() < stop:
        try:
            count = os.sendfile(sock, file, offset + sent, min(CHUNK, end - offset - sent))
        except BlockingIOError:
            if not poll.poll(PATIENCE_MS):
                break
            continue
        if count == 0:
            raise _FileEndsError
        sent += count
    return sent
