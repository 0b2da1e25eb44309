"""A log with a limited rate, so that a repeated problem, or one of all machines at once, does not fill the disk.

repetition   a line with a `key` is written once in an interval
flood        a maximum number of lines in an interval, and of these a share for each owner (a namespace, say)
omission     the number of omitted lines is written with the first line of a later interval, with the owner of
             most of them
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from typing import Final

from tink.limits.once_per import OncePer
from tink.printable import printable

_OWNERS: Final = 64
"""Maximum number of owners whose omitted lines are counted separately."""
_NAMED: Final = 3
_MAX_NAME: Final = 64


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
        self._omitted = 0
        self._omitted_by_owner: Counter[Hashable] = Counter()
        self._omitted_since = 0.0

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
        """Write a line unless one with its `key` was written in the interval, or there are too many; return True if it
        was written.

        `fields` are structured fields for programs that read the log.
        """
        now = self._clock()
        if key is None:
            key = object()
        due = self._once.due(key, now, owner)
        self._report(now)
        if due:
            self._log.log(level, message, *args, exc_info=exc_info, extra={"fields": fields} if fields else None)
        elif key not in self._once:
            self._omitted_since = self._omitted_since if self._omitted else now
            self._omitted += 1
            if owner is not None and (owner in self._omitted_by_owner or len(self._omitted_by_owner) < _OWNERS):
                self._omitted_by_owner[owner] += 1
        return due

    def report_left_out(self) -> None:
        """Log the number of omitted lines of an interval that has ended."""
        if self._omitted:
            self._report(self._clock())

    def _report(self, now: float) -> None:
        if not self._omitted or 0 <= now - self._omitted_since < self._interval:
            return
        most = [f"{_short(owner)} {count}" for owner, count in self._omitted_by_owner.most_common(_NAMED)]
        by_owner = f" (most of them: {', '.join(most)})" if most else ""
        self._log.warning("%d more lines like the last ones were left out%s", self._omitted, by_owner)
        self._omitted = 0
        self._omitted_by_owner.clear()

    def warning(
        self,
        message: str,
        *args: object,
        key: Hashable = None,
        owner: Hashable = None,
        fields: Mapping[str, object] | None = None,
    ) -> bool:
        """Call `log` with the level WARNING."""
        return self.log(logging.WARNING, message, *args, key=key, owner=owner, fields=fields)


def _short(owner: Hashable) -> str:
    return printable(str(owner))[:_MAX_NAME]
