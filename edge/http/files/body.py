"""Sending an artifact to a machine, as the body of a response: as far as the file goes, then the rest when it has come.

`edge.http.files.sendfile` does the sending, in threads. The response's head goes through aiohttp; TCP_CORK (tcp(7))
keeps it back for the first bytes of the body, and keeps the body in full segments.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from edge.artifacts import Artifact, StorageError
from edge.http.files.sendfile import FileEndsError, IdleError, Part, SendThread, StoppedError
from edge.http.transport.connections import has_ended

MAX_THREADS = 4
"""A processor sends more than a 25 Gbit/s network takes. A second thread on the same one only costs small requests."""

GONE_SECONDS = 1.0
"""How often it is looked whether a machine is still there, while it waits for the upstream."""


class MachineGoneError(Exception):
    """The machine closed the connection, or took no byte for too long. `sent` is how many it has taken.

    `waited` is for how many seconds it had waited then for bytes that the upstream did not send; 0: for none.
    """

    def __init__(self, reason: str, sent: int, waited: float = 0.0) -> None:
        super().__init__(reason)
        self.sent = sent
        self.waited = waited


class BodySender:
    """Sends file bodies; gives a machine up that takes nothing for `idle_seconds`."""

    def __init__(self, *, threads: int | None = None, idle_seconds: float = 30.0) -> None:
        """`threads` None: one for each processor that this process may use, up to MAX_THREADS."""
        count = threads or min(MAX_THREADS, len(os.sched_getaffinity(0)))
        self._idle_seconds = idle_seconds
        self._threads = [SendThread(f"http-body-{n}", idle_seconds=idle_seconds) for n in range(count)]

    def close(self) -> None:
        """Give up what is being sent, and wait for the threads to end."""
        for thread in self._threads:
            thread.stop()

    async def send(
        self,
        request: web.Request,
        response: web.StreamResponse,
        artifact: Artifact,
        start: int,
        *,
        trailer: tuple[int, Callable[[], Awaitable[bytes]]] | None = None,
    ) -> None:
        """Send `response`, whose body is its Content-Length bytes of `artifact` from `start` on; of these, the last may
        be a `trailer`: how many bytes, and what gives them in the end.

        Raises MachineGoneError, and ArtifactError if the upstream fails meanwhile. Plain TCP only, no TLS.
        """
        transport = request.transport
        if transport is None or transport.is_closing():
            raise MachineGoneError("it closed the connection", 0)
        offset, end = start, start + (response.content_length or 0) - (trailer[0] if trailer is not None else 0)
        thread = min(self._threads, key=lambda thread: thread.load)
        try:
            # A socket of our own: the transport may close its one at any time.
            sock = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        except OSError as error:  # too many open files
            raise StorageError(artifact.url, f"can't be sent: {error.strerror}") from error
        waiting_since = 0.0
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
            await response.prepare(request)
            await self._headers_gone(transport)
            while offset < end:
                waiting_since = time.monotonic()
                ready = min(await _filled(artifact, offset, transport, request), end)
                waiting_since = 0.0
                part = Part(sock.fileno(), artifact.fd, offset, ready)
                try:
                    await thread.send(part)
                finally:
                    offset = part.offset
            if trailer is not None:
                await response.write(await trailer[1]())
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
        except IdleError:
            raise MachineGoneError(f"it took no byte for {self._idle_seconds:g} s", offset - start) from None
        except StoppedError:
            raise MachineGoneError("the edge is stopping", offset - start) from None
        except FileEndsError:
            reason = f"the file ends before byte {offset}: it was changed while it was sent"
            raise StorageError(artifact.url, reason) from None
        except (ConnectionError, _ClosedError):
            waited = time.monotonic() - waiting_since if waiting_since else 0.0
            raise MachineGoneError("it closed the connection", offset - start, waited) from None
        except OSError as error:
            raise StorageError(artifact.url, f"can't be sent: {error.strerror}") from error
        finally:
            sock.close()

    async def _headers_gone(self, transport: asyncio.Transport) -> None:
        """Wait until the transport has written what it holds: the body must not overtake the headers."""
        give_up = time.monotonic() + self._idle_seconds
        pause = 0.0
        while transport.get_write_buffer_size():
            if time.monotonic() > give_up or transport.is_closing():
                raise MachineGoneError("it did not take the headers", 0)
            await asyncio.sleep(pause)
            pause = min(pause + 0.001, 0.05)


class _ClosedError(Exception):
    """The connection is closed."""


async def _filled(artifact: Artifact, offset: int, transport: asyncio.Transport, request: web.Request) -> int:
    """Up to where the file can be sent. Raises _ClosedError, ArtifactError."""
    if transport.is_closing():
        raise _ClosedError
    if artifact.progress is None:
        return await artifact.filled(offset)
    waiting = asyncio.ensure_future(artifact.filled(offset))
    try:
        while not (await asyncio.wait([waiting], timeout=GONE_SECONDS))[0]:
            # Whoever has closed its side can still take a file that is there, but is rather gone than waiting for one.
            if transport.is_closing() or has_ended(request):
                raise _ClosedError
        return waiting.result()
    finally:
        waiting.cancel()
