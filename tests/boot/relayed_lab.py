"""`tinkedge lab` with its machine behind a router (tests/boot/relayed.py): takes the options of `tinkedge lab`."""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from unittest.mock import patch

from edge.commands.lab import lab
from edge.lab import run
from edge.lab.rack import Rack, RackNetwork
from tests.boot.relayed import start_relay


class RelayedRack(Rack):
    """A rack whose machine's port is on a link that has no edge."""

    def __init__(self, network: RackNetwork) -> None:
        super().__init__(network)
        self._router = AsyncExitStack()

    async def up(self) -> None:
        await super().up()
        directory = self._router.enter_context(tempfile.TemporaryDirectory(prefix="relayed-"))
        await start_relay(self, Path(directory), self._router)

    async def down(self) -> None:
        await self._router.aclose()
        await super().down()


if __name__ == "__main__":
    with patch.object(run, "Rack", RelayedRack):
        lab()
