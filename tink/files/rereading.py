"""Files that a running process reads again on SIGHUP: keys, tokens, certificates.

Each is also read again at its next use after a change. SIGHUP is for operators who want to know at once whether a new
file is usable.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Protocol
from weakref import WeakSet

from tink.errors import TinkedgeError

log = logging.getLogger(__name__)

_RECHECK_SECONDS = 1.0  # Minimum time between two checks of a file for changes


class Reread(Protocol):
    """An object with the content of files."""

    def reread(self) -> bool:
        """Read the files now and log the result. Return False if they are unusable; then the content stays."""


_all: WeakSet[Reread] = WeakSet()


def register(one: Reread) -> None:
    """Register an object for `reread_all`, as long as other code refers to it."""
    _all.add(one)


def reread_all() -> tuple[int, int]:
    """Read the files of all registered objects; return the number of objects, and of those with unusable files."""
    done = [one.reread() for one in list(_all)]
    return len(done), done.count(False)


class ChangingFile(ABC):
    """The content of a file that is read again within a second of a change, at its next use.

    If the new content is unusable, the previous content stays in use, and the reason is logged once.
    """

    _KEPT: ClassVar[str]  # The begin of the message about an unusable file: "the keys stay unchanged"

    def __init__(self, path: Path, monotonic: Callable[[], float]) -> None:
        """Read nothing yet: the subclass calls `_read_first`. `monotonic` returns seconds."""
        self._path = path
        self._monotonic = monotonic
        self._state: tuple[int, ...] | None = None  # None until the file has been read
        self._checked_at = monotonic()
        self._reported = ""
        register(self)

    @abstractmethod
    def _read(self) -> None:
        """Read the file and use its content. Raises TinkedgeError, OSError."""

    @abstractmethod
    def _after_change(self) -> None:
        """Log a change, whose content is in use now, and act on it."""

    def _stat(self) -> tuple[int, ...]:
        """Return values that differ after a change. Raises TinkedgeError, OSError."""
        found = self._path.stat()
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read_first(self, without: str) -> bool:
        """Read the file. If it is unusable, log the reason and the consequence `without`, and return False. Raises
        TinkedgeError and OSError instead if `without` is empty."""
        try:
            state = self._stat()
            self._read()
        except (TinkedgeError, OSError) as error:
            if not without:
                raise
            log.error("%s. Until then, %s; it is read again by itself", error, without)
            self._reported = str(error)
            return False
        self._state = state
        return True

    def reread(self) -> bool:
        """Read the file now if it has changed. Return False if it is unusable, which is logged."""
        self._reported = ""
        return self._compare()

    def recheck(self) -> None:
        """Read the file again if it has changed, unless it was checked less than a second ago."""
        now = self._monotonic()
        if not 0 <= now - self._checked_at < _RECHECK_SECONDS:
            self._checked_at = now
            self._compare()

    def _compare(self) -> bool:
        try:
            state = self._stat()
            if state == self._state:
                return True
            try:
                self._read()
            except (TinkedgeError, OSError):
                before, state = state, self._stat()
                if state == before:
                    raise
                self._read()  # the files were being replaced during the first attempt: one was old, the other new
        except (TinkedgeError, OSError) as error:
            if str(error) != self._reported:
                log.error("%s: %s", self._KEPT, error)
            self._reported = str(error)
            return False
        self._state, self._reported = state, ""
        self._after_change()
        return True
