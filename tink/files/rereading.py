"""Files that a running process reads again on SIGHUP: keys, tokens, certificates.

Each is also read again at its next use after a change. SIGHUP is for operators who want to know at once whether a new
file is usable.
"""

from __future__ import annotations

from typing import Protocol
from weakref import WeakSet


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
