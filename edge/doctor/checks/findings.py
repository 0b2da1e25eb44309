"""One thing that was looked at, and how bad it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Severity(IntEnum):
    """OK and NOTE (not looked at, worth knowing) are fine; a WARNING may be meant so; an ERROR keeps from serving."""

    OK = 0
    NOTE = 1
    WARNING = 2
    ERROR = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: `ok`, what was seen, and, where it is not ok, how to mend it.

    `severity` says it more finely; by default it is that of `ok`.
    """

    name: str
    ok: bool
    seen: str
    remedy: str = ""
    severity: Severity | None = None

    @property
    def how_bad(self) -> Severity:
        """The severity."""
        if self.severity is not None:
            return self.severity
        return Severity.OK if self.ok else Severity.ERROR


def note(name: str, seen: str, remedy: str = "") -> Finding:
    """Something that was not looked at, or is worth knowing."""
    return Finding(name, True, seen, remedy, Severity.NOTE)


def warning(name: str, seen: str, remedy: str) -> Finding:
    """Something that may be meant so."""
    return Finding(name, False, seen, remedy, Severity.WARNING)
