"""Run the programs that the lab is made of: argument lists only, and none outlives the lab.

Every child is started under `setpriv --pdeathsig`, so that even a lab that is killed with SIGKILL leaves no process
behind (prctl(2), PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO


class CommandError(Exception):
    """A program ended with an error, or is not there. The message holds its name and the end of what it said."""


def _tail(text: bytes, lines: int = 15) -> str:
    return "\n".join(text.decode("utf-8", "replace").strip().splitlines()[-lines:])


async def run(
    command: Sequence[str | Path],
    *,
    timeout: float = 60,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
) -> str:
    """Run `command` to its end and give its standard output.

    `timeout` is in seconds. Raises CommandError if it can't be started, fails, or takes longer.
    """
    name = Path(command[0]).name
    try:
        process = await asyncio.create_subprocess_exec(
            *map(str, command),
            stdin=asyncio.subprocess.PIPE if stdin is not None else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **(env or {})},
        )
    except FileNotFoundError:
        raise CommandError(f"{name} is not installed; `tinkedge doctor` says which Debian package has it") from None
    try:
        async with asyncio.timeout(timeout):
            out, err = await process.communicate(stdin)
    except TimeoutError:
        raise CommandError(f"{name} did not end within {timeout:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        said = _tail(err or out)
        raise CommandError(f"{' '.join(map(str, command[:4]))}: ended with status {process.returncode}: {said}")
    return out.decode("utf-8", "replace")


class Daemon:
    """A program that runs as long as the lab: ended with SIGTERM and, if it does not listen, killed."""

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
    ) -> Daemon:
        """Start `command`; what it prints goes to the file `log`. Raises CommandError if it is not installed."""
        stream: IO[bytes]
        with log.open("ab") as stream:
            try:
                process = await asyncio.create_subprocess_exec(
                    "setpriv",
                    "--pdeathsig",
                    "TERM",
                    *map(str, command),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=stream,
                    stderr=stream,
                    env={**os.environ, **(env or {})},
                    start_new_session=True,
                )
            except FileNotFoundError:
                raise CommandError("setpriv is not installed (Debian package util-linux)") from None
        return cls(name, process, log)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """How it ended, or None while it runs."""
        return self._process.returncode

    def cpu_seconds(self) -> float:
        """Processor time used so far, user and system (proc(5), /proc/pid/stat); 0.0 when it has ended."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def said(self, lines: int = 15) -> str:
        """The end of what it printed."""
        try:
            return _tail(self.log.read_bytes()[-20_000:], lines)
        except OSError:
            return ""

    async def wait(self) -> int:
        """Wait for its end; gives the exit status."""
        return await self._process.wait()

    async def stop(self, grace: float = 10) -> int:
        """SIGTERM, then SIGKILL after `grace` seconds. Gives the exit status (negative: the signal)."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(grace):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
        return await self._process.wait()
