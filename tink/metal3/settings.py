"""The settings of the host controller."""

from __future__ import annotations

from dataclasses import dataclass, field

from tink.convert.metal3.to_hardware import HostOptions

SAFETY_WORKERS = 2
"""The number of workers that only turn netboot off."""


@dataclass(frozen=True, slots=True)
class Metal3Settings:
    """All times are in seconds."""

    hosts: HostOptions = field(default_factory=HostOptions)
    resync: float = 300.0
    """The interval between reconciliations of an unchanged host: its Secrets may have changed."""
    workers: int = 8
    retry_first: float = 0.2
    retry_longest: float = 60.0

    def __post_init__(self) -> None:
        for name in ("resync", "retry_first", "retry_longest"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be a number of seconds above 0, not {getattr(self, name)}")
        if self.workers <= SAFETY_WORKERS:
            raise ValueError(f"workers must be at least {SAFETY_WORKERS + 1}, not {self.workers}")
