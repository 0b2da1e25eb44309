"""Log lines of machines: who sends them, how many may be, and where they go.

    datagram -> the machine at its address, or nobody's -> so many lines a machine -> its file, and its journey

What a stranger sends goes nowhere. A machine's lines stand in its file one by one; its journey, which shows some
hundred steps, has an entry for those of some time together: at once after a silence, then in growing intervals. Both
are bounded, and what is left out is counted where it would have been.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from edge.journey.events import MAX_DETAIL, Outcome, Recorder, Step, Value
from edge.syslog.files import LogFiles
from edge.syslog.message import parse
from tink.limits.once_per import OncePer
from tink.limits.token_bucket import TokenBuckets
from tink.timestamps import rfc3339

log = logging.getLogger(__name__)

LINES_A_SECOND: Final = 100.0
BURST_LINES: Final = 1000.0
"""Of one machine: a kernel's whole log at once, and then what a busy installation prints."""
MAX_WAITING_BYTES: Final = 32 << 20
"""Of all lines that wait to be written, while the disk is slow."""
FLUSH_SECONDS: Final = 0.5
FIRST_PAUSE, LONGEST_PAUSE, QUIET_SECONDS = 1.0, 10.0, 30.0
"""Between two entries of a machine's journey; after so long a silence the first comes at once again."""
_SAY_AGAIN_SECONDS: Final = 600.0


@dataclass(slots=True)
class _Talk:
    """What a machine has logged since its last entry on the journey, and when the next is due."""

    due: float
    pause: float = FIRST_PAUSE
    last: float = 0.0
    lines: list[str] = field(default_factory=list)
    characters: int = 0
    omitted: int = 0
    """Lines for which the entry has no room; the file has them."""
    dropped: int = 0
    """Lines that are nowhere."""


class MachineLogs:
    """Takes datagrams; `run` writes what has come. Belongs to one event loop."""

    def __init__(
        self,
        mac_at: Callable[[str, str], str | None],
        record: Recorder,
        files: LogFiles,
        clock: Callable[[], float],
        now: Callable[[], float],
    ) -> None:
        """`mac_at(ip, interface)` returns the MAC of the registered machine at an address.

        `interface` is the one that received the packet (empty: any). `clock` gives monotonic seconds, `now` Unix
        seconds.
        """
        self._mac_at = mac_at
        self._record = record
        self._files = files
        self._clock = clock
        self._now = now
        self._buckets = TokenBuckets(BURST_LINES, LINES_A_SECOND)
        self._talks: dict[str, _Talk] = {}
        self._waiting: dict[str, list[bytes]] = {}
        self._waiting_bytes = 0
        self._said = OncePer(_SAY_AGAIN_SECONDS, 64)
        self.kept = 0
        self.dropped = 0
        self.of_strangers = 0

    def take(self, datagram: bytes, ip: str, interface: str = "") -> None:
        """Store the lines of a datagram from this address on this interface."""
        mac, now = self._mac_at(ip, interface), self._clock()
        if mac is None:
            self.of_strangers += 1
            if self._said.due("stranger", now):
                log.warning("syslog: %s sends lines, and no Hardware is known to be there: they are dropped", ip)
            return
        talk = self._talks.get(mac)
        if talk is None:
            talk = self._talks[mac] = _Talk(now)
        talk.last = now
        if not self._buckets.allows(mac, now) or self._waiting_bytes > MAX_WAITING_BYTES:
            talk.dropped += 1
            self.dropped += 1
            return
        self.kept += 1
        line = parse(datagram).line
        entry = f"{rfc3339(self._now(), 'milliseconds')} {line}\n".encode()
        self._waiting.setdefault(mac, []).append(entry)
        self._waiting_bytes += len(entry)
        if talk.characters + len(line) < MAX_DETAIL:
            talk.lines.append(line)
            talk.characters += len(line) + 1
        else:
            talk.omitted += 1

    async def run(self) -> None:
        """Write what comes, until it is cancelled."""
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        """Write what has come, and put on the journey what is due."""
        self._tell()
        waiting, self._waiting = self._waiting, {}
        if not waiting:
            return
        batch = {mac: b"".join(entries) for mac, entries in waiting.items()}
        try:
            await asyncio.to_thread(self._files.append, batch)
        except OSError as error:
            if self._said.due(("file", error.errno), self._clock()):
                log.error("syslog: lines are not kept: %s: %s", error.filename, error.strerror)
        finally:
            self._waiting_bytes -= sum(map(len, batch.values()))

    def _tell(self) -> None:
        now = self._clock()
        for mac, talk in list(self._talks.items()):
            if (talk.lines or talk.dropped) and now >= talk.due:
                self._tell_of(mac, talk, now)
            elif not talk.lines and now - talk.last > QUIET_SECONDS:
                del self._talks[mac]

    def _tell_of(self, mac: str, talk: _Talk, now: float) -> None:
        detail: dict[str, Value] = {"lines": "\n".join(talk.lines)}
        count = len(talk.lines) + talk.omitted
        newest = talk.lines[-1] if talk.lines else "too many lines"
        message = newest if count == 1 else f"{newest} ({count} lines)"
        if talk.omitted:
            detail["omitted_lines"] = talk.omitted
        if talk.dropped:
            detail["dropped_lines"] = talk.dropped
            message += f" ({talk.dropped} more were too many, and are lost)"
        self._record(mac, Step.LOG, Outcome.INFO, message, **detail)
        self._talks[mac] = _Talk(now + talk.pause, min(talk.pause * 2, LONGEST_PAUSE), talk.last)
