"""The watchdog: the service manager is told that the process lives, as long as what serves in it does.

What serves is the event loop, and the threads that it waits for. Each has a probe, which returns when it works. A loop
that stands still tells nothing; a probe that does not return is said in the log before the manager ends the process,
which then leaves the stack of each thread there (SIGABRT, `faulthandler`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from edge.run.process.notify import Notifier

log = logging.getLogger(__name__)

Probe = Callable[[], Awaitable[object]]

_TIMES: Final = 4
"""So often within the manager's patience; systemd recommends twice at least."""

_EXTEND_EVERY_SECONDS: Final = 10.0
_EXTEND_SECONDS: Final = 60.0


class Watchdog:
    """Runs beside what it watches until it is cancelled."""

    def __init__(self, notifier: Notifier, probes: Mapping[str, Probe]) -> None:
        """`probes` by what they ask, for people; the threads of `asyncio.to_thread` are always among them."""
        self._notifier = notifier
        self._probes: dict[str, Probe] = {"the threads for files": _threads, **probes}
        self._seconds = notifier.watchdog_seconds

    async def run(self) -> None:
        """Returns at once where no manager asks."""
        if not self._seconds:
            return
        every = self._seconds / _TIMES
        while True:
            await self._probe_all(every)
            self._notifier.alive()
            before = time.monotonic()
            await asyncio.sleep(every)
            late = time.monotonic() - before - every
            if late > every:
                log.warning("the event loop stood still for %.1f s; after %.0f s it is ended", late, self._seconds)

    async def _probe_all(self, patience: float) -> None:
        """Return when all have answered; who does not within `patience` seconds is named."""
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
                log.debug("probe of %s: %s", name, error)  # an error is an answer


async def _threads() -> None:
    await asyncio.to_thread(bool)


async def starting(notifier: Notifier) -> None:
    """Have the manager wait while the start goes on, until it is cancelled: an API may list for minutes.

    What hangs is not waited for: `Stack.start` has its own limits for a start that does not get on.
    """
    while True:
        notifier.extend_start(_EXTEND_SECONDS)
        await asyncio.sleep(_EXTEND_EVERY_SECONDS)
