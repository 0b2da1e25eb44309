"""A client for QMP, QEMU's machine protocol: control of a running virtual machine (docs/interop/qmp-spec of QEMU).

QEMU listens on a Unix socket (`-qmp unix:PATH,server=on,wait=off`). Each message is a JSON object on a line: a
greeting, then answers to commands by their id, and events at any time.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge.building.shell import CommandError

Event = Callable[[str, dict[str, Any]], None]

_MAX_LINE_BYTES = 1 << 20
_SECONDS = 20.0
"""Limit for a connection and for an answer. Both take long on a busy host."""
_POLL_SECONDS = 0.02


class QmpError(CommandError):
    """QEMU refuses a command, does not answer, or is gone. The message names the command and the reason."""


class QmpClient:
    """A connection to the QMP socket of one QEMU. `connect` makes it; `close` ends it, and the machine goes on.

    Commands may be sent at the same time. All methods must be called in one event loop.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, on_event: Event, seconds: float
    ) -> None:
        self._reader, self._writer, self._on_event, self._seconds = reader, writer, on_event, seconds
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._lost = ""
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def connect(
        cls,
        path: Path,
        on_event: Event = lambda _name, _data: None,
        *,
        is_alive: Callable[[], bool] = lambda: True,
        seconds: float = _SECONDS,
    ) -> QmpClient:
        """Connect to the socket at `path` and negotiate. QEMU may still be about to create the socket.

        `on_event` gets the name and the data of each event. The wait ends as soon as `is_alive` returns False.
        `seconds` limits the connection, and later each command. Raises QmpError.
        """
        try:
            async with asyncio.timeout(seconds):
                while True:
                    with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                        reader, writer = await asyncio.open_unix_connection(path, limit=_MAX_LINE_BYTES)
                        break
                    if not is_alive():
                        raise QmpError("QEMU ended before it listened on its QMP socket")
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise QmpError(f"QEMU does not listen on its QMP socket after {seconds:.0f} s") from None
        client = cls(reader, writer, on_event, seconds)
        client._reading = asyncio.create_task(client._read(), name="QMP")
        try:
            # QEMU accepts no other command before this one.
            await client.execute("qmp_capabilities")
        except BaseException:
            await client.close()
            raise
        return client

    async def execute(self, command: str, **arguments: Any) -> Any:
        """Execute a command of QMP and return its result. `_` in the name of an argument stands for `-`.

        Raises QmpError.
        """
        if self._lost:
            raise QmpError(f"QMP {command}: {self._lost}")
        number = next(self._numbers)
        message: dict[str, Any] = {"execute": command, "id": number}
        if arguments:
            message["arguments"] = {name.replace("_", "-"): value for name, value in arguments.items()}
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._seconds):
                self._writer.write(json.dumps(message).encode() + b"\n")
                await self._writer.drain()
                result = await answer
        except TimeoutError:
            raise QmpError(f"QMP {command}: QEMU does not answer within {self._seconds:.0f} s") from None
        except OSError as error:
            raise QmpError(f"QMP {command}: {error.strerror or error}") from None
        finally:
            self._waiting.pop(number, None)
        if "error" in result:
            raise QmpError(f"QMP {command}: {_described(result['error'])}")
        return result.get("return")

    async def wait_closed(self) -> None:
        """Wait until QEMU has closed the connection and all its messages are received."""
        if self._reading is not None:
            await asyncio.wait([self._reading])

    async def close(self) -> None:
        """Close the connection. Commands without an answer fail with QmpError."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _read(self) -> None:
        """Read messages until the connection ends."""
        why = "the connection to QEMU is closed"
        try:
            while line := await self._reader.readline():
                self._receive(json.loads(line))
        except (ValueError, RecursionError):  # StreamReader reports a line above its limit as a ValueError, too
            why = f"QEMU sends a line that is not JSON or longer than {_MAX_LINE_BYTES} bytes"
        except OSError as error:
            why = f"the connection to QEMU is broken: {error.strerror or error}"
        finally:
            self._lost = why
            for number, answer in self._waiting.items():
                if not answer.done():
                    answer.set_result({"id": number, "error": {"desc": why}})

    def _receive(self, message: object) -> None:
        if not isinstance(message, dict):
            return
        if isinstance(name := message.get("event"), str):
            data = message.get("data")
            self._on_event(name, data if isinstance(data, dict) else {})
        elif isinstance(number := message.get("id"), int) and number in self._waiting:
            answer = self._waiting[number]
            if not answer.done():
                answer.set_result(message)


def _described(error: object) -> str:
    return str(error.get("desc") or error.get("class")) if isinstance(error, dict) else str(error)
