"""What an operator may set of the controller of Metal3's hosts."""

from __future__ import annotations

from dataclasses import dataclass, field

from tink.convert.metal3 import HostOptions

SAFETY_WORKERS = 2
"""Of all workers: those that do nothing but turn netboot off."""


@dataclass(frozen=True, slots=True)
class Metal3Settings:
    """All times in seconds."""

    hosts: HostOptions = field(default_factory=HostOptions)
    resync: float = 300.0
    """How often a host is looked at though nothing has changed: its Secrets may have."""
    workers: int = 8
    retry_first: float = 0.2
    retry_longest: float = 60.0

    def __post_init__(self) -> None:
        for name in ("resync", "retry_first", "retry_longest"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be a number of seconds above 0, not {getattr(self, name)}")
        if self.workers <= SAFETY_WORKERS:
            raise ValueError(f"workers must be at least {SAFETY_WORKERS + 1}, not {self.workers}")
