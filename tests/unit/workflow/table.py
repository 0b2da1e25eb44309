"""The table of the design, written down again by hand: what the program is held against."""

from __future__ import annotations

STATES: tuple[str | None, ...] = (
    None,
    "Pending",
    "Scheduled",
    "Running",
    "Cancelling",
    "Succeeded",
    "Failed",
    "Canceled",
)
TERMINAL = frozenset({"Succeeded", "Failed", "Canceled"})

ARROWS = frozenset(
    {
        # from, to, who writes it
        (None, "Pending", "controller"),  # prepared
        (None, "Failed", "controller"),  # can't be prepared
        ("Pending", "Scheduled", "server"),  # dispatched
        ("Pending", "Canceled", "controller"),  # deleted
        ("Scheduled", "Pending", "server"),  # rejected
        ("Scheduled", "Running", "server"),  # the first action started
        ("Scheduled", "Cancelling", "controller"),  # deleted, or the user asks for it
        ("Scheduled", "Failed", "controller"),  # did not start in time
        ("Scheduled", "Failed", "server"),  # the agent ended it before, and its reports never came
        ("Running", "Succeeded", "server"),  # the last action succeeded
        ("Running", "Succeeded", "controller"),  # the time of a last action that reboots the machine was up
        ("Running", "Failed", "server"),  # an action failed, or the agent has lost it, or its reports
        ("Running", "Failed", "controller"),  # the Workflow or an action took too long
        ("Running", "Cancelling", "controller"),  # deleted, or the user asks for it
        ("Cancelling", "Canceled", "server"),  # the agent has stopped
        ("Cancelling", "Canceled", "controller"),  # forced
    }
)

ACTION_ARROWS = frozenset({("Pending", "Running"), ("Running", "Succeeded"), ("Running", "Failed")})
