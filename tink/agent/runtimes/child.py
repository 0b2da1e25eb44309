"""Running a program as an action: its output, its end, and how it is stopped.

Used by the runtimes: `process` starts the action itself, `oci.runc` starts `runc run`; and by `agent` for the command
after a workflow. What the program prints goes to `output.lines`.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from tink.agent.output import Output
from tink.agent.runtimes.protocol import STOP_GRACE_SECONDS
from tink.waiting import done_before

_KILL_SECONDS = 5.0
"""After this the program itself gets a SIGKILL, whatever `Signals.kill` has tried."""

_DRAIN_SECONDS = 2.0
"""A daemon that the action left behind may hold its output open; the agent does not wait for it."""


@dataclass(frozen=True, slots=True)
class Signals:
    """How the program is asked to end (`terminate`), and made to (`kill`)."""

    terminate: Callable[[int], Awaitable[None]]
    kill: Callable[[int], Awaitable[None]]


async def _terminate_group(pid: int) -> None:
    _signal_group(pid, signal.SIGTERM)


async def _kill_group(pid: int) -> None:
    _signal_group(pid, signal.SIGKILL)


def _signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return  # it has just ended by itself


TO_GROUP = Signals(_terminate_group, _kill_group)
"""To the program's whole process group."""


async def run_child(
    argv: Sequence[str],
    *,
    output: Output,
    stop: asyncio.Event,
    signals: Signals = TO_GROUP,
    env: Mapping[str, str] | None = None,
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
            start_new_session=True,
        )
    except BaseException:
        reader.transport.close()
        raise
    finally:
        os.close(write_end)
    ended = asyncio.create_task(process.wait())
    try:
        if not await done_before(ended, stop):
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

    def connection_lost(self, _exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


async def _connect(read_end: int, output: Output) -> _Reader:
    file = os.fdopen(read_end, "rb", buffering=0)
    transport, reader = await asyncio.get_running_loop().connect_read_pipe(lambda: _Reader(output), file)
    reader.transport = transport
    return reader
