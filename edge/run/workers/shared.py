"""What the workers of an edge have to know of each other's doings: what was said already, and what went wrong.

Which worker a connection gets, the kernel decides. So a machine that asks twice may ask two of them: the second is not
to write the same line into its journey, and `why.ipxe` is to show what another one could not send. Each tells the main
process, which tells the others. Two requests at the very same moment may so be said twice; nothing else differs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from tink.limits.newest import Newest
from tink.limits.once_per import OncePer


class SharedOnce(OncePer):
    """Lets a key pass that has passed in no other worker either."""

    def __init__(self, interval: float, capacity: int, tell: Callable[[list[Any]], None]) -> None:
        """`tell(key)` hands on what has passed here; keys are tuples of plain values."""
        super().__init__(interval, capacity)
        self._tell = tell

    def due(self, key: Hashable, now: float, owner: Hashable = None) -> bool:
        """Whether `key` may pass at `now` (seconds)."""
        passes = super().due(key, now, owner)
        if passes:
            self._tell(list(key) if isinstance(key, tuple) else [key])
        return passes

    def heard(self, key: list[Any], now: float) -> None:
        """It has passed in another worker."""
        super().due(tuple(key), now)


class SharedFailures(Newest[str, str]):
    """Why the last file of a machine did not come, by MAC."""

    def __init__(self, most: int, tell: Callable[[str, str], None]) -> None:
        """`tell(mac, reason)` hands on what has changed here; an empty reason: the file came."""
        super().__init__(most)
        self._tell = tell

    def __setitem__(self, key: str, value: str) -> None:
        super().__setitem__(key, value)
        self._tell(key, value)

    def pop(self, key: str, default: Any = None) -> Any:
        """Forget it. Unlike a dictionary's, it does not raise."""
        if key not in self:
            return default
        self._tell(key, "")
        return super().pop(key, default)

    def heard(self, mac: str, reason: str) -> None:
        """It was another worker that knows."""
        if reason:
            super().__setitem__(mac, reason)
        elif mac in self:
            super().pop(mac)
