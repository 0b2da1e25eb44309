"""How far a download has come, for whoever shows it: the journey, metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """One download at one moment. Bytes; seconds; `size` is None if the upstream did not say it.

    `started` is on the cache's clock; `seconds` is how long it has been going on. `resumed` bytes were there before, of
    an earlier try. `waiting` counts the machines that have the artifact open or wait for it to open. `breaks` is how
    often the upstream broke off so far.
    """

    url: str
    received: int
    size: int | None
    started: float
    seconds: float
    resumed: int
    waiting: int
    breaks: int

    @property
    def bytes_per_second(self) -> float:
        """Of what this try has brought, on the average."""
        return (self.received - self.resumed) / self.seconds if self.seconds > 0 else 0.0

    @property
    def share(self) -> float | None:
        """Between 0 and 1, if the size is known."""
        return self.received / self.size if self.size else None
