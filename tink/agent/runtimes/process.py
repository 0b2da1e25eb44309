"""Runs actions as processes of the host, and any program to its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tink.agent.model import ActionError, Reason, RenderedAction, RunResult
from tink.agent.output import Output
from tink.agent.runtimes.runtime import STOP_GRACE_SECONDS, FailureFiles
from tink.waiting import done_before

# --- Programs ---
#
# Runs a program as an action, reads its output, and stops it.
#
# Used by the runtimes: ProcessRuntime runs the action itself, `oci` runs `runc run`. `agent` uses it for the
# after-workflow command.


_KILL_SECONDS = 5.0
"""Seconds after `Signals.kill` until the program itself gets a SIGKILL."""

_DRAIN_SECONDS = 2.0
"""Seconds that the agent waits for the output to close: a daemon that the action left behind may hold it open."""


@dataclass(frozen=True, slots=True)
class Signals:
    """The functions that ask the program to end (`terminate`) and force it (`kill`)."""

    terminate: Callable[[int], Awaitable[None]]
    kill: Callable[[int], Awaitable[None]]


def to_group(number: signal.Signals) -> Callable[[int], Awaitable[None]]:
    """Return a function that sends this signal to the process group of a program."""

    async def send(pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
            os.killpg(pid, number)

    return send


TO_GROUP = Signals(to_group(signal.SIGTERM), to_group(signal.SIGKILL))
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
    """Run `argv` to its end and return its exit code; 128 + n for signal n, as in a shell.

    When `stop` is set: `signals.terminate`, a grace period, `signals.kill`; both get the process id of `argv`, which
    leads a process group of its own. Raises OSError if `argv` can't be started, ValueError for a NUL byte.
    """
    # Our own pipe, not asyncio's: whether its wait() also waits for the pipe to close depends on the Python release.
    read_end, write_end = os.pipe()
    file, loop = os.fdopen(read_end, "rb", buffering=0), asyncio.get_running_loop()
    transport, reader = await loop.connect_read_pipe(lambda: _Reader(output), file)
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stdout=write_end, stderr=write_end, env=env, start_new_session=True
        )
    except BaseException:
        transport.close()
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
        transport.close()
        output.finish()
        if process.returncode is None:
            process.kill()
            await ended
    return code if code >= 0 else 128 - code


class _Reader(asyncio.Protocol):
    """Feeds the bytes of a pipe to an `Output` at once."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self._output.feed(data)

    def connection_lost(self, _exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


# --- Runtime ---
#
# Actions as processes of the host: for tests and for simulated machines; nothing is isolated.
#
# `cmd` is the program and `args` its arguments; the image is only a name. The environment is the action's own plus PATH
# and, because there is no container to mount them in, the paths of the failure files: TINKERBELL_FAILURE_REASON and
# TINKERBELL_FAILURE_MESSAGE. An action that needs volumes or namespaces fails.


class ProcessRuntime:
    """A `Runtime` without containers. `state_dir` contains the failure files while an action runs."""

    def __init__(self, state_dir: Path, *, grace_seconds: float = STOP_GRACE_SECONDS) -> None:
        self._state_dir = state_dir
        self._grace_seconds = grace_seconds

    async def prepare(self, _held: str = "") -> None:
        self._state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def pull(self, _image: str, _stop: asyncio.Event) -> None:
        """Do nothing: there are no images."""

    def check(self, action: RenderedAction) -> None:
        if not action.cmd:
            raise ActionError(Reason.INVALID_ACTION, f"action {action.name}: cmd: the process runtime needs one")
        # "host" is what a process has anyway.
        if action.volumes or {action.pid_namespace, action.network_namespace} - {"", "host"}:
            message = f"action {action.name}: the process runtime has neither volumes nor namespaces of its own"
            raise ActionError(Reason.INVALID_ACTION, message)

    async def run(self, action: RenderedAction, stop: asyncio.Event) -> RunResult:
        self.check(action)
        output = Output(action.name)
        with tempfile.TemporaryDirectory(dir=self._state_dir, prefix="process-") as directory:
            files = FailureFiles(Path(directory))
            files.create()
            env = {
                "PATH": os.environ.get("PATH", os.defpath),
                **action.env,
                "TINKERBELL_FAILURE_REASON": str(files.reason),
                "TINKERBELL_FAILURE_MESSAGE": str(files.message),
            }
            try:
                argv, grace = [action.cmd, *action.args], self._grace_seconds
                code = await run_child(argv, output=output, stop=stop, env=env, grace_seconds=grace)
            except OSError as error:
                message = f"action {action.name}: {action.cmd}: {error.strerror}"
                raise ActionError(Reason.RUNTIME_ERROR, message) from error
            return files.judge(code, output.tail)

    async def resume(self, _action: RenderedAction, _stop: asyncio.Event) -> RunResult | None:
        """Return None: the end of a process is unknown after its parent has died."""
        return None
