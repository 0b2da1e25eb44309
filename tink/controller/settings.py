"""The operator's settings of the controller."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Settings of the controller. All times are in seconds."""

    scheduled_timeout: float = 300.0
    """Maximum time in Scheduled: the agent has the Workflow and does not start it."""
    cancelling_timeout: float = 300.0
    """Maximum time in Cancelling, until the agent reports that it stopped."""
    action_timeout: float | None = None
    """Timeout of actions without one of their own; None: no limit."""
    reference_timeout: float = 60.0
    """Time after its creation that a Workflow waits for its Hardware and Template: `kubectl apply` has no order."""
    hardware_gone_timeout: float = 300.0
    """Time that a Workflow continues after its Hardware was deleted, which may be applied again."""
    reference_note_after: float = 1.0
    """Delay before a condition reports a missing reference: it is usually the next object of the same file."""
    release_after: float = 10.0
    """Time after its end until a Workflow loses its finalizer, unless it is deleted before. It is not urgent."""
    history_limit: int | None = None
    """Number of ended Workflows kept of each Hardware; older ones are deleted. None: all are kept."""
    events: bool = True
    """Record changes of state as Kubernetes Events."""
    event_settle: float = 1.0
    """Time without changes after which Events are written, so that they don't delay the work."""
    workers: int = 32
    """Number of Workflows that are reconciled at once.

    Each waits for its writes. With four workers, hundreds of Workflows that were created together waited for the
    controller.
    """
    retry_first: float = 0.05
    retry_longest: float = 30.0
    """First and longest delay before a Workflow is reconciled again after a failed write."""

    def __post_init__(self) -> None:
        timeouts = ("scheduled_timeout", "cancelling_timeout", "reference_timeout", "hardware_gone_timeout")
        for name in (*timeouts, "retry_first", "retry_longest"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be a number of seconds above 0, not {getattr(self, name)}")
        if self.action_timeout is not None and not self.action_timeout > 0:
            raise ValueError(f"action_timeout must be a number of seconds above 0, or None, not {self.action_timeout}")
        if self.history_limit is not None and self.history_limit < 1:
            raise ValueError(f"history_limit must be at least 1, or None, not {self.history_limit}")
        if self.workers < 1:
            raise ValueError(f"workers must be at least 1, not {self.workers}")
