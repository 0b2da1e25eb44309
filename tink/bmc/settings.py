"""The operator's settings of BMC control."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BmcSettings:
    """Settings of BMC control. All times are in seconds."""

    poll_interval: float = 300.0
    """Time between two reads of a machine's power state."""
    poll_workers: int = 50
    """Number of BMCs that are polled at once."""
    task_workers: int = 150
    """Number of Tasks that run at once, each on another BMC."""
    max_connections: int = 200
    """Number of BMCs that are connected at once. An open TLS connection takes 73 kB (uvloop)."""
    inventory_interval: float = 86_400.0
    """Time between two inventories of a machine; each is up to a tenth sooner or later."""
    secret_interval: float = 30.0
    """Time between two reads of a Secret whose password a BMC has refused."""
    boot_named_after: float = 60.0
    """Time from power-on after which the cause of a missing DISCOVER is named."""
    boot_next_after: float = 300.0
    """Time from power-on after which the next way of booting is tried. Servers take minutes for their self-test."""
    edge_url: str = ""
    """URL of the edge from which firmware and BMCs fetch, such as http://192.0.2.1:7080. Empty: this process's own."""
    retry_first: float = 0.2
    retry_longest: float = 60.0
    """First and longest delay after a failed write to the API."""
    lease_duration: float = 30.0
    """Time after which another replica takes over from one that has stopped without releasing the Lease."""

    def __post_init__(self) -> None:
        for name in (
            "poll_interval",
            "inventory_interval",
            "secret_interval",
            "boot_named_after",
            "boot_next_after",
            "retry_first",
            "retry_longest",
        ):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be a number of seconds above 0, not {getattr(self, name)}")
        for name in ("poll_workers", "task_workers", "max_connections"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
