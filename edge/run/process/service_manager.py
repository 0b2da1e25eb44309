"""The messages of a service to the manager that started it: sd_notify(3), its watchdog, and the line of its status.

Without a manager, nothing is sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from edge.neighbour.host import NetworkState
from edge.run.readiness import Readiness
from edge.settings.model import EDGE, Service, StackSettings

log = logging.getLogger(__name__)

Probe = Callable[[], Awaitable[object]]

_SEND_SECONDS: Final = 0.5  # time limit for sending a message: machines must not wait for a manager that does not read
_MICROSECONDS: Final = 1_000_000
_PROBES_PER_TIMEOUT: Final = 4
"""Number of watchdog messages within the manager's timeout; systemd recommends two at least."""
_STATUS_SECONDS: Final = 1.0
_EXTEND_EVERY_SECONDS: Final = 10.0
_EXTEND_SECONDS: Final = 60.0


@dataclass(slots=True)
class Notifier:
    """Sends datagrams of NAME=VALUE lines to the service manager (sd_notify(3)).

    `address` is a path, or `@` and an abstract name (unix(7)); empty if there is no manager. `watchdog_seconds` 0:
    there is no watchdog.
    """

    address: str = ""
    watchdog_seconds: float = 0.0
    _failed: bool = False

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] | None = None) -> Self:
        """Take NOTIFY_SOCKET and WATCHDOG_USEC (sd_watchdog_enabled(3)), and remove them: no child inherits them."""
        variables = os.environ if environment is None else environment
        address = variables.pop("NOTIFY_SOCKET", "")
        usec, pid = variables.pop("WATCHDOG_USEC", ""), variables.pop("WATCHDOG_PID", "")
        has_watchdog = usec.isdecimal() and pid in ("", str(os.getpid()))
        # Only managers of virtual machines give vsock:CID:PORT, to whole systems.
        return cls(address if address[:1] in ("/", "@") else "", int(usec) / _MICROSECONDS if has_watchdog else 0.0)

    def status(self, text: str) -> None:
        """Send the line that `systemctl status` shows."""
        self._send(f"STATUS={_one_line(text)}")

    def extend_start(self, seconds: float) -> None:
        """Ask for more time for the start, counted from now (EXTEND_TIMEOUT_USEC)."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * _MICROSECONDS)}")

    def ready(self, text: str) -> None:
        """Report the end of the start or of a reload, with a line of status."""
        self._send(f"READY=1\nSTATUS={_one_line(text)}")

    def reloading(self) -> None:
        """Report the begin of a reload, which `ready` ends. MONOTONIC_USEC tells which request it answers."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        """Report the begin of the stop."""
        self._send("STOPPING=1\nSTATUS=stopping")

    def alive(self) -> None:
        """Report to the watchdog that the process works."""
        self._send("WATCHDOG=1")

    def _send(self, text: str) -> None:
        if not self.address:
            return
        address = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.settimeout(_SEND_SECONDS)
                sock.sendto(text.encode(), address)
        except OSError as error:
            if not self._failed:
                log.warning("the service manager at %s can't be notified: %s", self.address, error)
            self._failed = True
        else:
            self._failed = False


def _one_line(text: str) -> str:
    return " ".join(text.split())


async def extend_start(notifier: Notifier) -> None:
    """Extend the manager's timeout until cancelled. A start that hangs ends by the time limits of `Stack.start`."""
    while True:
        notifier.extend_start(_EXTEND_SECONDS)
        await asyncio.sleep(_EXTEND_EVERY_SECONDS)


async def report(notifier: Notifier, not_ready: Callable[[], str], status: Callable[[], str]) -> None:
    """Notify the manager when the process is ready, and then of each change of the status, until cancelled."""
    reported, is_ready = "", False
    while notifier.address:
        text = status()
        if not is_ready and not not_ready():
            notifier.ready(text)
            is_ready = True
        elif text != reported:
            notifier.status(text)
        reported = text
        await asyncio.sleep(_STATUS_SECONDS)


def status_line(settings: StackSettings, networks: Sequence[NetworkState], readiness: Readiness, machines: int) -> str:
    """Return the line for `systemctl status`. `machines` is the number of Hardware that the edge knows."""
    if readiness.problem:
        return f"not ready: {readiness.problem}"
    services = settings.services
    parts = [", ".join(sorted(services))]
    if services & (EDGE | {Service.SERVER}):
        served = ", ".join(f"{network.interface} ({network.address})" for network in networks)
        parts.append(f"on {served}")
    if services & EDGE:
        parts.append(f"for {machines} machine{'' if machines == 1 else 's'}")
    if Service.APISERVER in services:
        parts.append(f"with the embedded API on port {settings.api_port}")
    return "; ".join((f"serving {' '.join(parts)}", *readiness.notes))


class Watchdog:
    """Reports to the manager's watchdog while the event loop and the threads that it depends on work.

    A stalled event loop reports nothing. A probe of a thread pool that does not return is logged before the manager
    kills the process with SIGABRT; `faulthandler` then writes the stack of each thread to the log.
    """

    def __init__(self, notifier: Notifier, probes: Mapping[str, Probe]) -> None:
        """`probes` by the names of what they check. The threads of `asyncio.to_thread` are always checked."""
        self._notifier = notifier
        self._probes: dict[str, Probe] = {"the threads for files": _threads, **probes}
        self._seconds = notifier.watchdog_seconds

    async def run(self) -> None:
        """Report until cancelled. Returns at once if the manager has no watchdog."""
        if not self._seconds:
            return
        every = self._seconds / _PROBES_PER_TIMEOUT
        while True:
            await self._probe_all(every)
            self._notifier.alive()
            before = time.monotonic()
            await asyncio.sleep(every)
            late = time.monotonic() - before - every
            if late > every:
                log.warning("the event loop stood still for %.1f s; after %.0f s it is ended", late, self._seconds)

    async def _probe_all(self, patience: float) -> None:
        """Return when all probes have returned. Log those that need more than `patience` seconds."""
        asked = {asyncio.ensure_future(probe()): name for name, probe in self._probes.items()}
        try:
            _, waiting = await asyncio.wait(asked, timeout=patience)
            if waiting:
                names = ", ".join(asked[one] for one in waiting)
                log.error("no answer for %.0f s from: %s; after %.0f s this is ended", patience, names, self._seconds)
                await asyncio.wait(waiting)
                log.error("answered again: %s", names)
        finally:
            for one in asked:
                one.cancel()
        for one, name in asked.items():
            if (error := one.exception()) is not None:
                log.debug("probe of %s: %s", name, error)  # an error is an answer too


async def _threads() -> None:
    await asyncio.to_thread(bool)
