"""A finding of `tinkedge doctor`: one thing that was examined, and how serious it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Severity(IntEnum):
    """How serious a finding is.

    NOTE: not examined, or worth knowing. WARNING: may be intended. ERROR: keeps this host from serving.
    """

    OK = 0
    NOTE = 1
    WARNING = 2
    ERROR = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was examined."""

    name: str
    severity: Severity
    seen: str  # its state
    remedy: str = ""  # how to fix it; empty if nothing is wrong

    @property
    def is_fine(self) -> bool:
        """True if nothing has to be done."""
        return self.severity <= Severity.NOTE


def passed(name: str, seen: str) -> Finding:
    """Return a finding about a thing that is right."""
    return Finding(name, Severity.OK, seen)


def note(name: str, seen: str, remedy: str = "") -> Finding:
    """Return a finding about a thing that was not examined, or is worth knowing."""
    return Finding(name, Severity.NOTE, seen, remedy)


def warning(name: str, seen: str, remedy: str) -> Finding:
    """Return a finding about a thing that may be intended."""
    return Finding(name, Severity.WARNING, seen, remedy)


def problem(name: str, seen: str, remedy: str) -> Finding:
    """Return a finding about a thing that keeps this host from serving."""
    return Finding(name, Severity.ERROR, seen, remedy)
