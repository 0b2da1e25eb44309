"""Options of earlier releases that are gone, each with what to do instead. Using one is an error."""

from __future__ import annotations

import os
from typing import Final

import click

from edge.settings.options import PREFIX

REMOVED: Final = {
    "workers": "take it out: one process serves all machines. If that is not enough, run a second edge (docs/edges.md)",
}
"""The remedy, by the option's name without dashes (its key in the file)."""


def was_removed(key: str) -> str:
    """Return what to do about a removed option, as the rest of a sentence; empty if no such option was removed."""
    return f"was removed: {REMOVED[key]}" if key in REMOVED else ""


def refuse_removed_variables(ctx: click.Context) -> None:
    """Raise click.UsageError if a variable of the environment belongs to a removed option."""
    for key in REMOVED:
        name = PREFIX + key.upper().replace("-", "_")
        if name in os.environ:
            raise click.UsageError(f"the variable {name} {was_removed(key)}", ctx)
