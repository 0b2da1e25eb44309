"""How far a download has come, for whoever shows it: the journey, metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """One download at one moment. Bytes; `size` is None if the upstream did not say it.

    `waiting` counts the machines that have the artifact open or wait for it to open.
    """

    url: str
    received: int
    size: int | None
    waiting: int
