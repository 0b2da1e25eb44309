"""Today's agent on a machine whose inventory is a script: `scripted_agent.py FILE agent OPTIONS`.

FILE has the inventory as JSON. `-`: the agent is of a release that reported none. All machines of a test are on one
host, so the real inventory of each would have the same firmware and disks.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edge.cli import main
from tink.agent import agent


class ScriptedMachine:
    """A machine with a given inventory (`tink.agent.inventory.reporter.ReportedMachine`)."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        self._attributes = attributes

    def prepare(self) -> None:
        """Leave the network cards as they are."""

    def cards(self) -> list[str]:
        """Return no card: the neighbours are in the inventory."""
        return []

    def cards_with_link(self) -> list[str]:
        """Return no card."""
        return []

    def attributes(self, _neighbours: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inventory."""
        return self._attributes


class NoReporter:
    """The part of the agent that reports, in a release that had none."""

    def __init__(self, *_args: object, **_options: object) -> None:
        pass

    async def run(self) -> None:
        """Report nothing."""
        await asyncio.Event().wait()


if __name__ == "__main__":
    file, *words = sys.argv[1:]
    if file == "-":
        agent.InventoryReporter = NoReporter  # type: ignore[misc,assignment]
    else:
        machine = ScriptedMachine(json.loads(Path(file).read_text()))
        agent.LocalMachine = lambda **_options: machine  # type: ignore[misc,assignment]
    main(words)
