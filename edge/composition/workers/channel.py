"""The line between the main process and one worker: messages and open files, in order, over a pair of Unix sockets.

A frame is its length (4 bytes, big-endian), the number of files that come with it (1 byte) and the message as JSON.
Files travel beside the bytes (unix(7), SCM_RIGHTS); the kernel hands them over with the bytes that they were sent with,
at the latest, so they are taken from a queue by the frame that counts them.

What is to be sent never blocks: what the other side does not take at once waits in a buffer, whose size is known
(`waiting_bytes`) and is bounded by whoever sends.
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
from typing import Final

from edge.composition.workers.messages import Message, MessageError, decoded, encoded

log = logging.getLogger(__name__)

MAX_FRAME_BYTES: Final = 64 << 20
"""Of one message. The largest object that an API server takes has 3 MiB."""
MAX_FILES: Final = 16
"""That come with one message."""
_HEAD: Final = struct.Struct(">IB")
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
        self._waiting: deque[tuple[memoryview, Sequence[int]]] = deque()
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
        if not self._closed:
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End it; what waits is lost."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        for _, files in self._waiting:
            _close(files)
        _close(self._files)
        self._waiting.clear()
        self._files.clear()
        self._written.set()

    # --- sending -----------------------------------------------------------------------------------------------------

    def send(self, message: Message, files: Sequence[int] = ()) -> None:
        """Send, at once where that can be. The files stay the caller's. On a closed line nothing happens."""
        if self._closed:
            return
        content = encoded(message)
        frame = memoryview(_HEAD.pack(len(content), len(files)) + content)
        idle = not self._waiting
        self._waiting.append((frame, [os.dup(fd) for fd in files]))
        self.waiting_bytes += len(frame)
        if idle:
            self._write()
            if self._waiting and not self._closed:
                self._written.clear()
                self._loop.add_writer(self._sock, self._write)

    async def drained(self) -> None:
        """Wait until the other side has taken everything, or the line is closed."""
        await self._written.wait()

    def _write(self) -> None:
        while self._waiting:
            frame, files = self._waiting[0]
            try:
                sent = self._send(frame, files)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self._end()
                return
            _close(files)
            self.waiting_bytes -= sent
            if sent < len(frame):
                self._waiting[0] = frame[sent:], ()
            else:
                self._waiting.popleft()
        self._loop.remove_writer(self._sock)
        self._written.set()

    def _send(self, frame: memoryview, files: Sequence[int]) -> int:
        if not files:
            return self._sock.send(frame)
        return self._sock.sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))])

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
