"""What an operator may set of the controller."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """All times in seconds. `action_timeout` is for actions that give none; None: they may take for ever."""

    scheduled_timeout: float = 300.0
    """How long a Workflow may be Scheduled: the agent has it and does not start."""
    cancelling_timeout: float = 300.0
    """How long an agent has to report that it stopped."""
    action_timeout: float | None = None
    reference_timeout: float = 60.0
    """How long after its creation a Workflow waits for its Hardware and Template: `kubectl apply` gives no order."""
    hardware_gone_timeout: float = 300.0
    """How long an agent may have a Workflow whose Hardware was deleted: applied again, the agent is heard again."""
    reference_note_after: float = 1.0
    """How long it waits before it says so in its conditions: mostly the next object of the same file is the one."""
    release_after: float = 10.0
    """How long after its end a Workflow keeps the finalizer, if nobody deletes it before: that write is one that others
    need not wait for."""
    history_limit: int | None = None
    """How many Workflows that have ended are kept of each Hardware, the newest; the others are deleted. None: all."""
    events: bool = True
    """Whether changes of state are told as Kubernetes Events, too."""
    event_settle: float = 1.0
    """How long nothing must have happened before Events are written: they come after the work that they tell of."""
    workers: int = 32
    """Workflows that are looked at at once. Each waits for its writes, so of hundreds that are made together so many at
    a time are stored: with four it was the controller that they waited for."""
    retry_first: float = 0.05
    retry_longest: float = 30.0
    """Delays before a Workflow is looked at again after the API refused a write."""

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
