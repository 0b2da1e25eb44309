"""How far the pull of an image is, in lines at a bounded rate, for the action's output.

`images.store` counts the bytes itself, `runtimes.docker` learns them from the engine. Lines go where the action's own
output goes: to the agent's log and, by `lines.line_sink`, to the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from tink.agent.output.lines import LineSink, line_sink

log = logging.getLogger(__name__)

PROGRESS_SECONDS = 2.0
NOTES_PER_PULL = 50
SILENT_SECONDS = (5.0, 20.0, 60.0)
"""After how long a silence of the registry it is told; then each time the last of them has gone by."""
_LOOK_SECONDS = 1.0


def thread_safe_sink() -> LineSink:
    """Adds lines to the output of the action that the caller pulls for. Call it in the event loop."""
    loop, sink = asyncio.get_running_loop(), line_sink.get()

    def say(text: str) -> None:
        log.info("%s", text)
        if sink is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: a pull that was given up on ends late
                loop.call_soon_threadsafe(sink, text)

    return say


class PullProgress:
    """Tells `sink` of the pull of `image`: of bytes every two seconds at most, of what happens at most 50 times."""

    def __init__(self, image: str, sink: LineSink, clock: Callable[[], float] = time.monotonic) -> None:
        self._image = image
        self._sink = sink
        self._clock = clock
        self._next = 0.0
        self._done = -1
        self._notes = 0
        self._waits_for = ""
        self._since = 0.0
        self._silences = 0

    def waits_for(self, registry: str) -> None:
        """From now on, something of it is to come from this registry; empty: nothing is, for what came is unpacked."""
        self._waits_for, self._since, self._silences = registry, self._clock(), 0

    async def tell_silences(self) -> None:
        """Tell when nothing comes although something is to come, until it is cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Whether there is a silence to tell of."""
        silent = self._clock() - self._since
        beyond = max(0, self._silences - len(SILENT_SECONDS) + 1)
        due = SILENT_SECONDS[min(self._silences, len(SILENT_SECONDS) - 1)] + beyond * SILENT_SECONDS[-1]
        if self._waits_for and silent >= due:
            self._silences += 1
            self.note(f"{self._waits_for} has sent nothing for {silent:.0f} s")

    def bytes(self, done: int, total: int) -> None:
        """`done` of `total` bytes of all layers are here."""
        if done != self._done:
            self._since, self._silences = self._clock(), 0
        if done == self._done or (self._clock() < self._next and done != total):
            return
        self._next, self._done = self._clock() + PROGRESS_SECONDS, done
        self._sink(f"image {self._image}: {done / 1e6:.1f} of {total / 1e6:.1f} MB")

    def note(self, text: str) -> None:
        """Something happened: a transfer is tried again, the image was here already."""
        self._notes += 1
        if self._notes <= NOTES_PER_PULL:
            self._sink(f"image {self._image}: {text}")
