"""Threads that send parts of files to sockets: `os.sendfile`, straight from the page cache to the network.

    event loop -> Part -> SendThread: epoll waits for machines that take bytes, each gets a piece in turn -> event loop

Neither uvloop's missing sendfile nor asyncio's blocking one will do. One thread serves thousands of machines: whoever
is ready gets up to `PIECE_BYTES` bytes, then it is the next one's turn, so all get their share, and one that takes
nothing costs nothing. Python's own work is a few microseconds for a piece; the kernel's part is done with the
interpreter's lock released. A file that is not in memory makes its thread wait for the disk, but for a piece only, then
the others have theirs.

The threads run at a lower priority than the event loop, so that small requests do not wait for kernels and initrds
where they share a processor.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
import time
from collections import deque
from contextlib import suppress

PIECE_BYTES = 8 << 20
"""Bytes that a machine gets before it is the next one's turn: what comes between two pieces costs as much as 40 KiB."""

NICENESS = 10
"""Added to the nice value that the process has (setpriority(2), which ends at 19)."""

_SWEEP_SECONDS = 0.5


class IdleError(Exception):
    """The machine took no byte for too long."""


class FileEndsError(Exception):
    """The file is shorter than it was."""


class StoppedError(Exception):
    """The threads were stopped."""


class Part:
    """Bytes `offset` to before `end` of the file `file`, on their way to the non-blocking socket `sock`.

    It has descriptors of its own, which its thread closes: the connection and the file may be closed by their owners
    at any time, and the numbers be used for others. `offset` grows as bytes are taken. `done` gets no result, or the
    exception: ConnectionError, IdleError, FileEndsError, StoppedError, OSError.
    """

    __slots__ = ("done", "dropped", "end", "file", "loop", "moved", "offset", "sock", "waiting")

    def __init__(self, sock: int, file: int, offset: int, end: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self.loop.create_future()
        self.sock = os.dup(sock)
        try:
            self.file = os.dup(file)
        except OSError:
            os.close(self.sock)
            raise
        self.offset = offset
        self.end = end
        self.moved = 0.0
        self.waiting = False
        self.dropped = False

    def settle(self, error: Exception | None) -> None:
        """Tell whoever waits for it. In the event loop."""
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


class SendThread:
    """One thread and the parts that it sends. `send` and `stop` are called in the event loop."""

    def __init__(self, name: str, *, idle_seconds: float) -> None:
        self._idle_seconds = idle_seconds
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._arrived: deque[Part] = deque()
        self._dropped: deque[Part] = deque()
        self._waiting: dict[int, Part] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def load(self) -> int:
        """How many parts it has."""
        return len(self._waiting) + len(self._arrived)

    async def send(self, part: Part) -> None:
        """Send it all. Raises what `Part` says; when cancelled, the thread lets go of it at once."""
        self._arrived.append(part)
        self._awake()
        try:
            await part.done
        except asyncio.CancelledError:
            part.dropped = True
            self._dropped.append(part)
            self._awake()
            raise

    def stop(self) -> None:
        """Give up every part, and wait for the thread to end."""
        if not self._stopping:
            self._stopping = True
            self._awake()
            self._thread.join()
            self._epoll.close()
            os.close(self._wake)
        # What came since: nobody else will close it.
        self._give_up_all()

    def _awake(self) -> None:
        if self._thread.is_alive():
            os.eventfd_write(self._wake, 1)
        else:
            self._give_up_all()

    # --- in the thread ---

    def _run(self) -> None:
        own = threading.get_native_id()
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + NICENESS)
        sweep = time.monotonic() + _SWEEP_SECONDS
        while not self._stopping:
            ready = self._epoll.poll(_SWEEP_SECONDS if self._waiting else None)
            now = time.monotonic()
            for descriptor, _ in ready:
                if descriptor == self._wake:
                    self._welcome(now)
                elif (part := self._waiting.get(descriptor)) is not None:
                    self._push(part, now)
            if now >= sweep:
                self._sweep(now)
                sweep = now + _SWEEP_SECONDS
        self._give_up_all()

    def _welcome(self, now: float) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while self._arrived:
            part = self._arrived.popleft()
            part.moved = now
            if not part.dropped:
                self._push(part, now)
            else:
                self._close(part)
        while self._dropped:
            part = self._dropped.popleft()
            if part.waiting:
                self._close(part)

    def _push(self, part: Part, now: float) -> None:
        """A piece for this machine."""
        try:
            sent = os.sendfile(part.sock, part.file, part.offset, min(PIECE_BYTES, part.end - part.offset))
        except BlockingIOError:
            sent = -1
        except OSError as error:
            self._end(part, error)
            return
        if sent == 0:
            self._end(part, FileEndsError())
            return
        if sent > 0:
            part.offset += sent
            part.moved = now
            if part.offset == part.end:
                self._end(part, None)
                return
        if not part.waiting:
            part.waiting = True
            self._waiting[part.sock] = part
            self._epoll.register(part.sock, select.EPOLLOUT)

    def _sweep(self, now: float) -> None:
        late = [part for part in self._waiting.values() if now - part.moved > self._idle_seconds]
        for part in late:
            self._end(part, IdleError())

    def _end(self, part: Part, error: Exception | None) -> None:
        self._close(part)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            part.loop.call_soon_threadsafe(part.settle, error)

    def _close(self, part: Part) -> None:
        if part.waiting:
            part.waiting = False
            self._epoll.unregister(part.sock)
            del self._waiting[part.sock]
        os.close(part.sock)
        os.close(part.file)

    def _give_up_all(self) -> None:
        for part in [*self._waiting.values()]:
            self._end(part, StoppedError())
        while self._arrived:
            self._end(self._arrived.popleft(), StoppedError())
