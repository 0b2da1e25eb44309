"""The line between the main process and one worker: messages and open files, in order, over a pair of Unix sockets.

A frame is its length (4 bytes, big-endian), the number of files that come with it (1 byte) and the message as JSON.
Files travel beside the bytes (unix(7), SCM_RIGHTS); the kernel hands them over with the bytes that they were sent with,
at the latest, so they are taken from a queue by the frame that counts them.

What is to be sent never blocks: what the other side does not take at once waits in a buffer, whose size is known
(`waiting_bytes`) and is bounded by whoever sends.

What nobody waits for may gather: being woken for one message costs the other side more than the message. The first
ALONE of them in GATHER_SECONDS are sent at once, so nothing is late while little happens; the others of that time are
sent together at its end, or with the next message that can't wait. The order stays.
"""

from __future__ import annotations

import array
import asyncio
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice, takewhile
from typing import Final

from edge.run.workers.messages import Message, MessageError, decoded, encoded

log = logging.getLogger(__name__)

MAX_FRAME_BYTES: Final = 64 << 20
"""Of one message. The largest object that an API server takes has 3 MiB."""
MAX_FILES: Final = 16
"""That come with one message."""
GATHER_SECONDS: Final = 0.01
ALONE: Final = 4
_HEAD: Final = struct.Struct(">IB")
_MAX_FRAMES: Final = 256
"""That are handed to the kernel with one call; IOV_MAX is 1024."""
_READ_BYTES: Final = 256 << 10
_READS_PER_TURN: Final = 16

Heard = Callable[[Message, list[int]], None]
"""A message has come, with these file descriptors, which are the hearer's from now on."""


class Channel:
    """One side of the line. Needs a running loop; `start` hears, `close` ends it."""

    def __init__(self, sock: socket.socket, heard: Heard, lost: Callable[[], None]) -> None:
        """Takes over `sock`. `lost()` is called once when the other side has closed, or said what nobody says."""
        sock.setblocking(False)
        self._sock = sock
        self._heard = heard
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._files: deque[int] = deque()
        self._waiting: deque[tuple[bytes | memoryview, Sequence[int]]] = deque()
        self._gathering: asyncio.TimerHandle | None = None
        self._window, self._alone = 0.0, 0
        self._written = asyncio.Event()
        self._written.set()
        self._closed = False
        self._over = False
        self.waiting_bytes = 0
        """Of messages that the other side has not taken yet."""

    def start(self) -> None:
        """Hear what comes."""
        self._loop.add_reader(self._sock, self._readable)

    def finish(self) -> None:
        """Say that no more will be said; what the other side still says is heard."""
        self._flush()
        if not self._closed:
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End it; what the other side does not take now is lost."""
        self._flush()
        if self._closed:
            return
        self._closed = True
        if self._gathering is not None:
            self._gathering.cancel()
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        self._lose_waiting()
        _close(self._files)
        self._files.clear()
        self._written.set()

    def _lose_waiting(self) -> None:
        for _, files in self._waiting:
            _close(files)
        self._waiting.clear()

    # --- sending -----------------------------------------------------------------------------------------------------

    def send(self, message: Message, files: Sequence[int] = (), *, can_wait: bool = False) -> None:
        """Send, at once where that can be; one that `can_wait` gathers with others where there are many.

        The files stay the caller's. On a closed line nothing happens.
        """
        if self._closed:
            return
        content = encoded(message)
        frame = _HEAD.pack(len(content), len(files)) + content
        self._waiting.append((frame, [os.dup(fd) for fd in files]))
        self.waiting_bytes += len(frame)
        if not self._blocked and not (can_wait and self._gathers()):
            self._write()

    async def drained(self) -> None:
        """Wait until the other side has taken everything, or the line is closed."""
        self._flush()
        await self._written.wait()

    def _gathers(self) -> bool:
        """Whether a message that can wait does so, for there were ALONE already."""
        if self._gathering is not None:
            return True
        now = self._loop.time()
        if now - self._window >= GATHER_SECONDS:
            self._window, self._alone = now, 0
        self._alone += 1
        if self._alone <= ALONE:
            return False
        self._gathering = self._loop.call_at(self._window + GATHER_SECONDS, self._gathered)
        return True

    def _gathered(self) -> None:
        self._gathering = None
        self._flush()

    def _flush(self) -> None:
        if self._waiting and not self._blocked and not self._closed:
            self._write()

    def _write(self) -> None:
        while self._waiting:
            try:
                sent = self._send_some()
            except (BlockingIOError, InterruptedError):
                self._block()
                return
            except OSError:
                self._end()
                return
            self.waiting_bytes -= sent
            self._took(sent)
        if self._blocked:
            self._loop.remove_writer(self._sock)
            self._written.set()

    @property
    def _blocked(self) -> bool:
        """Whether the other side does not take more now."""
        return not self._written.is_set()

    def _block(self) -> None:
        if not self._blocked:
            self._written.clear()
            self._loop.add_writer(self._sock, self._write)

    def _send_some(self) -> int:
        """Bytes that the kernel took: of the first message, if it has files, else of as many as have none."""
        frame, files = self._waiting[0]
        if files:
            return self._sock.sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))])
        if len(self._waiting) == 1:
            return self._sock.send(frame)
        without = takewhile(lambda each: not each[1], islice(self._waiting, _MAX_FRAMES))
        return self._sock.sendmsg([each for each, _ in without])

    def _took(self, sent: int) -> None:
        """The other side has these bytes, and the files of the message in which they begin."""
        while sent:
            frame, files = self._waiting.popleft()
            _close(files)
            if sent < len(frame):
                self._waiting.appendleft((memoryview(frame)[sent:], ()))
                return
            sent -= len(frame)

    # --- hearing -----------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        for _ in range(_READS_PER_TURN):
            if self._closed:
                return
            more = self._read()
            self._take()
            if not more:
                return

    def _read(self) -> bool:
        """Whether there may be more; if so after all, the event loop says so in its next turn."""
        try:
            content, files = self._receive()
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            content, files = b"", []
        self._files.extend(files)
        self._received += content
        if not content:
            self._hear_no_more()
        return len(content) == _READ_BYTES or bool(files)  # the kernel does not read on past files (unix(7))

    def _receive(self) -> tuple[bytes, list[int]]:
        space = socket.CMSG_SPACE(MAX_FILES * array.array("i").itemsize)
        content, extra, _flags, _address = self._sock.recvmsg(_READ_BYTES, space, socket.MSG_CMSG_CLOEXEC)
        files = array.array("i")
        for level, kind, data in extra:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                files.frombytes(data[: len(data) - len(data) % files.itemsize])
        return content, list(files)

    def _take(self) -> None:
        """Hand on all messages that are whole."""
        at = 0
        while len(self._received) - at >= _HEAD.size and not self._closed:
            size, count = _HEAD.unpack_from(self._received, at)
            if size > MAX_FRAME_BYTES or count > MAX_FILES:
                self._end()
                return
            end = at + _HEAD.size + size
            if len(self._received) < end:
                break
            content, at = bytes(self._received[at + _HEAD.size : end]), end
            self._hand_on(content, [self._files.popleft() for _ in range(min(count, len(self._files)))])
        del self._received[:at]

    def _hand_on(self, content: bytes, files: list[int]) -> None:
        try:
            message = decoded(content)
        except MessageError as error:
            log.error("between the main process and its workers: %s", error)
            _close(files)
            self._end()
            return
        try:
            self._heard(message, files)
        except Exception:
            log.exception("between the main process and its workers: %s", type(message).__name__)

    def _end(self) -> None:
        self._lose_waiting()
        self.close()
        self._hear_no_more()

    def _hear_no_more(self) -> None:
        if not self._closed:
            self._loop.remove_reader(self._sock)
        if not self._over:
            self._over = True
            self._lost()


def pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a line, with room for what comes in bursts."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    return ends


def _close(files: Sequence[int] | deque[int]) -> None:
    for fd in files:
        os.close(fd)
