"""`tinkedge ...`: the one command; every service and tool of the stack is a subcommand."""

from __future__ import annotations

import click


@click.group()
def main() -> None:
    """The Tinkerbell v1alpha2 stack: netboot, metadata and workflows for bare metal."""
