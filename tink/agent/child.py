"""Running a program as an action: its output line by line, its end, and how it is stopped.

Used by the runtimes: `process` starts the action itself, `oci.runc` starts `runc run`. Output goes to the agent's log,
where the machine's console and the OSIE's syslog show it, to the server (`output`), and the last of it is kept for the
failure message.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

from tink.agent.runtime import STOP_GRACE_SECONDS

log = logging.getLogger(__name__)

TAIL_LIMIT_BYTES = 2048
LINE_LIMIT_BYTES = 4096
LINES_PER_SECOND = 100
"""More than that is counted, not logged: a serial console carries about as much."""

lines_to: ContextVar[Callable[[str], None] | None] = ContextVar("lines_to", default=None)
"""Where an `Output` made in this context hands its lines to, beside the log: `agent` knows whose they are, a runtime
need not. What it calls must neither block nor raise."""

_KILL_SECONDS = 5.0
"""After this the program itself gets a SIGKILL, whatever `Signals.kill` has tried."""

_DRAIN_SECONDS = 2.0
"""A daemon that the action left behind may hold its output open; the agent does not wait for it."""


class Output:
    """The output of one action: logged by line under the action's `name`; `tail` is the last of it.

    A carriage return ends a line too, as progress bars use it. Lines are cut at 4 KiB.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._hand_over = lines_to.get()
        self._partial = b""
        self._tail = bytearray()
        self._window = 0.0
        self._logged = 0
        self._dropped = 0

    @property
    def tail(self) -> str:
        """The last lines, at most 2 KiB."""
        return self._tail.decode(errors="replace").strip()

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes that the action wrote."""
        *lines, self._partial = re.split(rb"\r\n|\n|\r", self._partial + chunk)
        for line in lines:
            self._line(line)
        while len(self._partial) > LINE_LIMIT_BYTES:
            self._line(self._partial[:LINE_LIMIT_BYTES])
            self._partial = self._partial[LINE_LIMIT_BYTES:]

    def finish(self) -> None:
        """There is no more."""
        self._line(self._partial)
        self._partial = b""
        self._report_dropped()

    def _line(self, line: bytes) -> None:
        text = line[:LINE_LIMIT_BYTES].decode(errors="replace").strip()
        if not text:
            return
        self._tail += text.encode() + b"\n"
        del self._tail[:-TAIL_LIMIT_BYTES]
        if self._hand_over is not None:
            self._hand_over(text)
        now = self._clock()
        if now - self._window >= 1.0:
            self._report_dropped()
            self._window, self._logged = now, 0
        if self._logged >= LINES_PER_SECOND:
            self._dropped += 1
            return
        self._logged += 1
        log.info("%s: %s", self._name, _printable(text))

    def _report_dropped(self) -> None:
        if self._dropped:
            log.info("%s: (%d more lines in that second)", self._name, self._dropped)
            self._dropped = 0


@dataclass(frozen=True, slots=True)
class Signals:
    """How the program is asked to end (`terminate`), and made to (`kill`)."""

    terminate: Callable[[int], Awaitable[None]]
    kill: Callable[[int], Awaitable[None]]


async def run_child(
    argv: Sequence[str],
    *,
    output: Output,
    stop: asyncio.Event,
    signals: Signals,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    grace_seconds: float = STOP_GRACE_SECONDS,
) -> int:
    """Run `argv` to its end and return its exit code, 128 + n for signal n as a shell has it.

    When `stop` is set: `signals.terminate`, a grace, `signals.kill`; both get the process id of `argv`, which leads a
    process group of its own. Raises OSError when `argv` cannot be started, ValueError for a NUL byte in an argument.
    """
    # Our own pipe, not asyncio's: whether its wait() also waits for the pipe to close depends on the Python release.
    read_end, write_end = os.pipe()
    reader = await _connect(read_end, output)
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=write_end,
            stderr=write_end,
            env=env,
            cwd=cwd,
            start_new_session=True,
        )
    except BaseException:
        reader.transport.close()
        raise
    finally:
        os.close(write_end)
    ended = asyncio.create_task(process.wait())
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            await signals.terminate(process.pid)
            await asyncio.wait({ended}, timeout=grace_seconds)
        if not ended.done():
            await signals.kill(process.pid)
            await asyncio.wait({ended}, timeout=_KILL_SECONDS)
        if not ended.done():
            process.kill()
        code = await ended
        await asyncio.wait({reader.closed}, timeout=_DRAIN_SECONDS)
    finally:
        stopped.cancel()
        reader.transport.close()
        output.finish()
        if process.returncode is None:
            process.kill()
            await ended
    return code if code >= 0 else 128 - code


class _Reader(asyncio.Protocol):
    """Hands what comes through a pipe to `Output`, as it comes: nothing piles up."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self.transport: asyncio.ReadTransport
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self._output.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


async def _connect(read_end: int, output: Output) -> _Reader:
    file = os.fdopen(read_end, "rb", buffering=0)
    transport, reader = await asyncio.get_running_loop().connect_read_pipe(lambda: _Reader(output), file)
    reader.transport = transport
    return reader


def _printable(text: str) -> str:
    # An action's output must not move the cursor of whoever reads the log.
    return "".join(character if character.isprintable() or character == "\t" else "?" for character in text)
