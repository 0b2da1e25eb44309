"""Runs the programs of the lab: argument lists only, and none outlives the lab.

`setpriv --pdeathsig` ends each child even if the lab is killed with SIGKILL (prctl(2), PR_SET_PDEATHSIG). The default
signal is SIGTERM, for programs that clean up. Each child has its own session, so that an interrupted command ends
together with its children.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import IO

import aiohttp

from tink.errors import TinkedgeError

_GRACE_SECONDS = 5.0
_POLL_SECONDS = 0.05

_Stream = int | IO[bytes]


class CommandError(TinkedgeError):
    """A program failed, or is not installed. The message has its name and the end of its output."""


def _tail(text: bytes, lines: int = 15) -> str:
    return "\n".join(text.decode("utf-8", "replace").strip().splitlines()[-lines:])


async def run(
    command: Sequence[str | Path],
    *,
    timeout: float = 60,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    progress: Callable[[str], None] | None = None,
) -> str:
    """Run `command` to its end and return its standard output. `progress` gets each line of its standard error.

    `timeout` is in seconds. Raises CommandError if the command can't be started, fails, or takes longer.
    """
    name = Path(command[0]).name
    pipe = asyncio.subprocess.PIPE
    process = await _spawn(
        command, stdin=pipe if stdin is not None else asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=env
    )
    try:
        async with asyncio.timeout(timeout):
            out, err = await _communicate(process, stdin, progress)
    except BaseException as error:  # interruption too
        await _end(process)
        if isinstance(error, TimeoutError):
            raise CommandError(f"{name} did not end within {timeout:.0f} s") from None
        raise
    if process.returncode != 0:
        tail = _tail(err or out)
        raise CommandError(f"{' '.join(map(str, command[:4]))}: ended with status {process.returncode}: {tail}")
    return out.decode("utf-8", "replace")


async def _spawn(
    command: Sequence[str | Path],
    *,
    stdin: int,
    stdout: _Stream,
    stderr: _Stream,
    env: Mapping[str, str] | None,
    death_signal: signal.Signals = signal.SIGTERM,
) -> asyncio.subprocess.Process:
    environment = {**os.environ, **(env or {})}
    for program in ("setpriv", str(command[0])):
        if shutil.which(program, path=environment.get("PATH")) is None:
            name = Path(program).name
            raise CommandError(f"{name} is not installed; `tinkedge doctor` says which Debian package has it")
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *bound_to(os.getpid(), command, death_signal),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=environment,
            start_new_session=True,
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        # asyncio would kill the leader alone, and then wait as long as its children hold the pipes.
        await _end(await starting)
        raise


def bound_to(parent: int, command: Sequence[str | Path], death_signal: signal.Signals = signal.SIGTERM) -> list[str]:
    """Return `command` wrapped so that it gets `death_signal` at the end of the process `parent`, which starts it.

    If the parent dies before the signal is set up, the signal never comes: so the shell checks that the parent still
    lives.
    """
    still = '[ "$PPID" = "$0" ] || exit 1; exec "$@"'
    return [
        "setpriv",
        "--pdeathsig",
        death_signal.name.removeprefix("SIG"),
        "sh",
        "-c",
        still,
        str(parent),
        *map(str, command),
    ]


async def _communicate(
    process: asyncio.subprocess.Process, stdin: bytes | None, progress: Callable[[str], None] | None
) -> tuple[bytes, bytes]:
    if progress is None or process.stdout is None or process.stderr is None:
        return await process.communicate(stdin)
    reading = asyncio.ensure_future(process.stdout.read())
    lines: deque[bytes] = deque(maxlen=100)
    try:
        async for line in process.stderr:
            lines.append(line)
            progress(line.decode("utf-8", "replace").rstrip())
        out = await reading
        await process.wait()
        return out, b"".join(lines)
    finally:
        reading.cancel()


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a command and its children: SIGTERM, for scripts that clean up, then SIGKILL."""
    _signal_session(process.pid, signal.SIGTERM)
    try:
        async with asyncio.timeout(_GRACE_SECONDS):
            await process.wait()
    except TimeoutError:
        pass
    finally:
        _signal_session(process.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_SECONDS):
                await process.communicate()  # this closes its pipes as well
        await process.wait()


def _signal_session(leader: int, number: signal.Signals) -> None:
    # The group's id stays in use as long as one of its processes lives.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)


def family(pid: int) -> Iterator[int]:
    """Yield a process and its descendants (/proc/PID/task/TID/children): `up` runs its gRPC server in a child."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in children.read_text().split():
                yield from family(int(child))


class Daemon:
    """A program that runs as long as the lab. It is ended with SIGTERM, then with SIGKILL."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process

    @classmethod
    async def start(
        cls,
        name: str,
        command: Sequence[str | Path],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        death_signal: signal.Signals = signal.SIGTERM,
    ) -> Daemon:
        """Start `command` with its output in the file `log`. Raises CommandError if it is not installed.

        death_signal: the signal that the program gets if this process is killed. SIGKILL is for programs whose state
        is removed with the run: no `stop` follows that would kill a program whose SIGTERM takes long.
        """
        stream: IO[bytes]
        with log.open("ab") as stream:
            process = await _spawn(
                command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=env,
                death_signal=death_signal,
            )
        return cls(name, process, log)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Return the exit status, or None while it runs."""
        return self._process.returncode

    def cpu_seconds(self) -> float:
        """Return the processor time of the process and its descendants, including ended ones; 0.0 after its end."""
        total = 0
        for pid in family(self.pid):
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                total += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime (proc(5))
        return total / os.sysconf("SC_CLK_TCK")

    async def answers(self, url: str, seconds: float) -> bool:
        """Wait until it answers a GET of `url` with 200. Return False if it has ended, or after so many seconds."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            for _ in range(int(seconds / _POLL_SECONDS)):
                if self.returncode is not None:
                    return False
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):  # not listening yet
                    async with session.get(url) as response:
                        if response.status == HTTPStatus.OK:
                            return True
                await asyncio.sleep(_POLL_SECONDS)
        return False

    def log_tail(self, lines: int = 15) -> str:
        """Return the last lines of its output."""
        try:
            return _tail(self.log.read_bytes()[-20_000:], lines)
        except OSError:
            return ""

    async def wait(self) -> int:
        """Wait for its end; return the exit status."""
        return await self._process.wait()

    async def stop(self, grace: float = 10) -> int:
        """Send SIGTERM, then SIGKILL after `grace` seconds. Return the exit status (negative: the signal)."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(grace):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
        return await self._process.wait()
