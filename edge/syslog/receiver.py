"""Stores the log lines of machines: each line in the machine's file, and groups of lines on its journey.

    datagram -> the machine at its source address -> rate limit of this machine -> its file and its journey

Lines from addresses of no registered machine are dropped. The journey shows some hundred steps, so it gets one step for
the lines of an interval: at once after a silence, then in growing intervals. Both outputs are limited, and the lines
that are left out are counted there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.core import Metric

from edge.journey.events import MAX_DETAIL, Outcome, Recorder, Step, Value
from edge.syslog.files import LogFiles
from edge.syslog.message import parse
from tink.limits import OncePer, TokenBuckets
from tink.metrics.families import counter
from tink.timestamps import rfc3339

log = logging.getLogger(__name__)

MAX_LINES_A_SECOND: Final = 100.0
MAX_BURST_LINES: Final = 1000.0
"""Maximum rate of one machine: a kernel's whole log at once, and then the output of a busy installation."""
MAX_WAITING_BYTES: Final = 32 << 20  # maximum size of all lines that wait for a slow disk
FLUSH_SECONDS: Final = 0.5
FIRST_PAUSE, MAX_PAUSE = 1.0, 10.0  # seconds between two steps of a machine's journey
QUIET_SECONDS: Final = 30.0  # after a silence of this duration the next line is reported at once again
_LOG_AGAIN_SECONDS: Final = 600.0


@dataclass(slots=True)
class _Pending:
    """The lines of a machine since its last step on the journey."""

    due: float  # the time of the next step
    pause: float = FIRST_PAUSE
    last: float = 0.0  # the time of the last line
    lines: list[str] = field(default_factory=list)
    characters: int = 0
    omitted: int = 0  # the number of lines for which the step has no room; the file has them
    dropped: int = 0  # the number of lines that are in neither


@dataclass(eq=False)
class MachineLogs:
    """Receives datagrams by `take`; `run` writes their lines. It belongs to one event loop.

    `mac_at(ip, interface)` returns the MAC of the registered machine at an address; an empty `interface` is any.
    `clock` returns monotonic seconds, `now` Unix seconds.
    """

    mac_at: Callable[[str, str], str | None]
    record: Recorder
    files: LogFiles
    clock: Callable[[], float]
    now: Callable[[], float]

    def __post_init__(self) -> None:
        self._buckets = TokenBuckets(MAX_BURST_LINES, MAX_LINES_A_SECOND)
        self._pending: dict[str, _Pending] = {}
        self._waiting: dict[str, list[bytes]] = {}
        self._waiting_bytes = 0
        self._log_once = OncePer(_LOG_AGAIN_SECONDS, 64)
        self.kept = 0
        self.dropped = 0
        self.of_strangers = 0

    def take(self, datagram: bytes, ip: str, interface: str = "") -> None:
        """Store the lines of a datagram from this address on this interface."""
        mac, now = self.mac_at(ip, interface), self.clock()
        if mac is None:
            self.of_strangers += 1
            if self._log_once.due("stranger", now):
                log.warning("syslog: %s sends lines, and no Hardware is known to be there: they are dropped", ip)
            return
        pending = self._pending.get(mac)
        if pending is None:
            pending = self._pending[mac] = _Pending(now)
        pending.last = now
        if not self._buckets.allows(mac, now) or self._waiting_bytes > MAX_WAITING_BYTES:
            pending.dropped += 1
            self.dropped += 1
            return
        self.kept += 1
        line = parse(datagram).line
        entry = f"{rfc3339(self.now(), 'milliseconds')} {line}\n".encode()
        self._waiting.setdefault(mac, []).append(entry)
        self._waiting_bytes += len(entry)
        if pending.characters + len(line) < MAX_DETAIL:
            pending.lines.append(line)
            pending.characters += len(line) + 1
        else:
            pending.omitted += 1

    async def run(self) -> None:
        """Write the lines regularly, until the task is cancelled."""
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        """Write the waiting lines, and report the steps that are due."""
        self._report_due()
        waiting, self._waiting = self._waiting, {}
        if not waiting:
            return
        batch = {mac: b"".join(entries) for mac, entries in waiting.items()}
        try:
            await asyncio.to_thread(self.files.append, batch)
        except OSError as error:
            if self._log_once.due(("file", error.errno), self.clock()):
                log.error("syslog: lines are not kept: %s: %s", error.filename, error.strerror)
        finally:
            self._waiting_bytes -= sum(map(len, batch.values()))

    def _report_due(self) -> None:
        now = self.clock()
        for mac, pending in list(self._pending.items()):
            if (pending.lines or pending.dropped) and now >= pending.due:
                self._report(mac, pending, now)
            elif not pending.lines and now - pending.last > QUIET_SECONDS:
                del self._pending[mac]

    def _report(self, mac: str, pending: _Pending, now: float) -> None:
        detail: dict[str, Value] = {"lines": "\n".join(pending.lines)}
        count = len(pending.lines) + pending.omitted
        newest = pending.lines[-1] if pending.lines else "too many lines"
        message = newest if count == 1 else f"{newest} ({count} lines)"
        if pending.omitted:
            detail["omitted_lines"] = pending.omitted
        if pending.dropped:
            detail["dropped_lines"] = pending.dropped
            message += f" ({pending.dropped} more were too many, and are lost)"
        self.record(mac, Step.LOG, Outcome.INFO, message, **detail)
        self._pending[mac] = _Pending(now + pending.pause, min(pending.pause * 2, MAX_PAUSE), pending.last)


def syslog_metrics(logs: MachineLogs) -> Iterator[Metric]:
    """Yield the number of lines by outcome, for Prometheus."""
    lines = {("kept",): logs.kept, ("dropped",): logs.dropped, ("stranger",): logs.of_strangers}
    text = "Log lines that were received, by what became of them."
    yield counter("tinkedge_syslog_lines", text, ["outcome"], lines)
