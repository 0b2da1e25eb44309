"""A log at a bounded rate: what goes wrong all the time, or for everybody at once, must not fill the disk.

the same            a line with a `key` is written once in an interval
too much            so many lines in an interval, and no more of one owner (a namespace, say) than its share
what is left out    lines that nothing was written of are counted; the first line of an interval after that says
                    how many they were
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping

from tink.limits.once_per import OncePer


class LimitedLog:
    """Writes at most `capacity` lines to `log` in `interval` seconds of `clock`, `share` of them of one owner."""

    def __init__(
        self,
        log: logging.Logger,
        clock: Callable[[], float],
        *,
        capacity: int,
        interval: float = 60.0,
        share: int | None = None,
    ) -> None:
        self._log = log
        self._clock = clock
        self._interval = interval
        self._once = OncePer(interval, capacity, share)
        self._left_out = 0
        self._left_out_since = 0.0

    def log(
        self,
        level: int,
        message: str,
        *args: object,
        key: Hashable = None,
        owner: Hashable = None,
        exc_info: bool = False,
        fields: Mapping[str, object] | None = None,
    ) -> bool:
        """Write a line unless it was written lately (`key`; None: it is like no other), or there are too many.

        `fields` go beside it, for those who read logs with programs. Whether it was written.
        """
        now = self._clock()
        if key is None:
            key = object()
        due = self._once.due(key, now, owner)
        if self._left_out and not 0 <= now - self._left_out_since < self._interval:
            self._log.warning("%d more lines like the last ones were left out", self._left_out)
            self._left_out = 0
        if due:
            self._log.log(level, message, *args, exc_info=exc_info, extra={"fields": fields} if fields else None)
        elif key not in self._once:
            self._left_out_since = self._left_out_since if self._left_out else now
            self._left_out += 1
        return due

    def warning(
        self,
        message: str,
        *args: object,
        key: Hashable = None,
        owner: Hashable = None,
        fields: Mapping[str, object] | None = None,
    ) -> bool:
        """As `log`, on that level."""
        return self.log(logging.WARNING, message, *args, key=key, owner=owner, fields=fields)
