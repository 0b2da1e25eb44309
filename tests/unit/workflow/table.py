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

TABLE = frozenset(
    {
        # from, cause, to, who writes it
        (None, "prepared", "Pending", "controller"),
        (None, "preparation failed", "Failed", "controller"),
        ("Pending", "dispatched", "Scheduled", "server"),
        ("Pending", "cancel requested", "Canceled", "controller"),
        ("Scheduled", "returned", "Pending", "server"),
        ("Scheduled", "started", "Running", "server"),
        ("Scheduled", "cancel requested", "Cancelling", "controller"),
        ("Scheduled", "start timed out", "Failed", "controller"),
        ("Scheduled", "ended unheard", "Failed", "server"),
        ("Running", "succeeded", "Succeeded", "server"),
        ("Running", "action failed", "Failed", "server"),
        ("Running", "run timed out", "Failed", "controller"),
        ("Running", "nothing left", "Failed", "controller"),
        ("Running", "agent lost", "Failed", "server"),
        ("Running", "ended unheard", "Failed", "server"),
        ("Running", "rebooted", "Succeeded", "server"),
        ("Running", "reboot assumed", "Succeeded", "controller"),
        ("Running", "cancel requested", "Cancelling", "controller"),
        ("Cancelling", "stopped", "Canceled", "server"),
        ("Cancelling", "nothing to stop", "Canceled", "controller"),
        ("Cancelling", "cancel timed out", "Canceled", "controller"),
    }
)

ARROWS = frozenset((before, after, author) for before, _, after, author in TABLE)

ACTION_ARROWS = frozenset({("Pending", "Running"), ("Running", "Succeeded"), ("Running", "Failed")})


def reach(start: str | None, author: str) -> set[str | None]:
    """Return the states to which arrows of `author` lead from `start`, in any number."""
    reached: set[str | None] = set()
    todo = [start]
    while todo:
        at = todo.pop()
        found = {to for source, to, who in ARROWS if source == at and who == author} - reached
        reached |= found
        todo += found
    return reached
