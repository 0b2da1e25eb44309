"""Layouts: packets that differ in a few values only, recognised by one comparison of numbers. Pure.

All machines with the same firmware send the same packet except for a few values: the transaction, the machine's
addresses, its UUID. A layout has the bytes that all these packets share, and the places of the values that differ. It
is learnt from one packet that was parsed and answered in full. A packet of the same length with the same bytes at the
same places parses in the same way and requests the same, so the fast path of a server answers it without parsing it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Final, TypeVar

from tink.errors import TinkedgeError
from tink.limits.newest import UsedLists

NOWHERE: Final = slice(0, 0)
"""The place of a value that the packets of a layout do not have."""

MAX_LAYOUTS: Final = 256
"""Maximum number of known layouts. A rack has a handful; those that invented ones displace are learnt again."""


class NoLayoutError(TinkedgeError):
    """A packet has something that depends on more than the values of a layout."""


class Mask:
    """The bits of a packet that its layout fixes; all of them at first."""

    def __init__(self, packet: bytes) -> None:
        self._packet = packet
        self._bits = bytearray(b"\xff" * len(packet))

    def vary(self, begin: int, end: int) -> None:
        """Let the bytes from `begin` to `end` differ."""
        self._bits[begin:end] = bytes(end - begin)

    def fix(self, begin: int, bits: bytes) -> None:
        """Fix these bits of the bytes from `begin` on, and let the other bits differ."""
        self._bits[begin : begin + len(bits)] = bits

    def runs(self, begin: int) -> Iterator[tuple[bool, int]]:
        """Yield the runs of bytes from `begin` on that are fixed (True) or may differ (False), with their lengths."""
        for is_fixed, run in groupby(self._bits[begin:], bool):
            yield is_fixed, len(list(run))

    def numbers(self) -> tuple[int, int]:
        """Return `mask` and `expected`: packets fulfil `int.from_bytes(packet, "big") & mask == expected`."""
        mask = int.from_bytes(self._bits, "big")
        return mask, int.from_bytes(self._packet, "big") & mask


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
