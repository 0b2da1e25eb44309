"""Files that a running process reads again when it is asked to (SIGHUP): keys, tokens, certificates.

Each is read again by itself when it changes, too, the next time that somebody needs it. To ask is for those who want
to know now whether what they have put there is good.
"""

from __future__ import annotations

from typing import Protocol
from weakref import WeakSet


class Reread(Protocol):
    """Something made of files."""

    def reread(self) -> bool:
        """Read them now and say in the log what came of it. False: they can't be used, and what was good stays."""


_all: WeakSet[Reread] = WeakSet()


def register(one: Reread) -> None:
    """For as long as it is used by others."""
    _all.add(one)


def reread_all() -> tuple[int, int]:
    """Read all that is registered: how many there are, and how many of them can't be used."""
    done = [one.reread() for one in list(_all)]
    return len(done), done.count(False)
