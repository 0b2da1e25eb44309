"""Layouts: packets that differ in a few values only, recognised by one comparison of numbers. Pure.

All machines with the same firmware send the same packet except for a few values: the transaction, the machine's
addresses, its UUID. A layout has the bytes that all these packets share, and the places of the values that differ. It
is learnt from one packet that was parsed and answered in full. A packet of the same length with the same bytes at the
same places parses in the same way and requests the same, so the fast path of a server answers it without parsing it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, TypeVar

from tink.errors import TinkedgeError
from tink.limits.newest import UsedLists

NOWHERE: Final = slice(0, 0)
"""The place of a value that the packets of a layout do not have."""

MAX_LAYOUTS: Final = 256
"""Maximum number of known layouts. A rack has a handful; those that invented ones displace are learnt again."""


class NoLayoutError(TinkedgeError):
    """A packet has something that depends on more than the values of a layout."""


def vary(mask: bytearray, begin: int, end: int) -> None:
    """Let the bytes of a packet from `begin` to `end` differ: in the mask of a layout, bits that are set are fixed."""
    mask[begin:end] = bytes(end - begin)


class KnownLayout(ABC):
    """A layout that was learnt. `used`: a packet was answered by it since layouts were displaced last."""

    __slots__ = ("used",)

    def __init__(self) -> None:
        self.used = False

    @abstractmethod
    def fits(self, packet: bytes) -> bool:
        """Return True if the packet, which has the right length, is of this layout."""


L = TypeVar("L", bound=KnownLayout)


class KnownLayouts(UsedLists[int, L]):
    """The layouts that a fast path has learnt, in lists by a number that the length of a packet determines."""

    def learn(self, key: int, packet: bytes, make: Callable[[], L]) -> None:
        """Add the layout that `make` returns, unless one of this key fits the packet or `make` raises NoLayoutError."""
        if any(known.fits(packet) for known in self.lists.get(key, ())):
            return
        try:
            self.add(key, make())
        except NoLayoutError:
            return
