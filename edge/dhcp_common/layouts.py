"""Layouts: packets that differ in a few values only, recognised by one comparison of numbers. Pure.

All machines with the same firmware send the same packet except for a few values: the transaction, the machine's
addresses, its UUID. A layout has the bytes that all these packets share, and the places of the values that differ. It
is learnt from one packet that was parsed and answered in full. A packet of the same length with the same bytes at the
same places parses in the same way and requests the same, so the fast path of a server answers it without parsing it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from tink.errors import TinkedgeError

NOWHERE: Final = slice(0, 0)
"""The place of a value that the packets of a layout do not have."""

MAX_LAYOUTS: Final = 256
"""Maximum number of known layouts. A rack has a handful; those that invented ones displace are learnt again."""


class NoLayoutError(TinkedgeError):
    """A packet has something that depends on more than the values of a layout."""


def vary(mask: bytearray, begin: int, end: int) -> None:
    """Let the bytes of a packet from `begin` to `end` differ: in the mask of a layout, bits that are set are fixed."""
    mask[begin:end] = bytes(end - begin)


class KnownLayout(Protocol):
    """A layout that was learnt. `used`: a packet was answered by it since layouts were displaced last."""

    used: bool


L = TypeVar("L", bound=KnownLayout)


class KnownLayouts(Generic[L]):
    """The layouts that a fast path has learnt, in lists by a number that the length of a packet determines."""

    def __init__(self, most: int, most_of_a_key: int) -> None:
        self.lists: dict[int, list[L]] = {}
        """For reading; always the same dictionary."""
        self._most = most
        self._most_of_a_key = most_of_a_key
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, key: int, make: Callable[[], L]) -> None:
        """Add the layout that `make` returns, unless it raises NoLayoutError.

        A full list drops its oldest layout. If there are more than `most` in all, those are dropped that were not used
        since the last time that this happened.
        """
        try:
            layout = make()
        except NoLayoutError:
            return
        alike = self.lists.setdefault(key, [])
        if len(alike) >= self._most_of_a_key:
            del alike[0]
            self._count -= 1
        alike.append(layout)
        self._count += 1
        if self._count > self._most:
            self._count = 0
            for key, alike in list(self.lists.items()):
                alike[:] = [known for known in alike if known.used]
                if not alike:
                    del self.lists[key]
                self._count += len(alike)
                for known in alike:
                    known.used = False
