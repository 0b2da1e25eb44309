"""A scripted machine with what comes after its firmware: the agent."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from tests.interop.faults.firmware import Firmware
from tests.interop.rack import ADDRESS, Process
from tests.waiting import wait_until

UPSTREAM = Path(__file__).with_name("upstream.py")
REGISTRY = "127.0.0.1:5000"


class Scripted(Firmware):
    """With what comes after the firmware. `told` is what its journey says by now."""

    told: Callable[[], str] = staticmethod(str)

    def get_tcp(self, port: int, seconds: int) -> None:
        """Knock at a port that does not answer."""
        words = ["curl", "-s", "--max-time", str(seconds), f"http://{ADDRESS}:{port}/"]
        self._rack.start(self._where, *words).status(60)

    def agent(self, *options: str, runtime: str = "process") -> Process:
        """Start it."""
        state = self._rack.directory / self._where
        words = [
            "--agent-id",
            self.mac,
            "--server",
            f"{ADDRESS}:42113",
            "--runtime",
            runtime,
            "--state-dir",
            str(state),
        ]
        return self._rack.tinkedge(self._where, "agent", *words, *options)

    def has_its_address(self) -> None:
        """By hand, for nobody gives it one."""
        self._rack.address(self._where, f"{self.ip}/24")

    def registry(self) -> None:
        """Start one, on the machine itself."""
        self._rack.start(self._where, sys.executable, UPSTREAM, *REGISTRY.split(":"))

    def somebody_has_its_address(self) -> None:
        """Another machine, which answers ARP."""
        where = f"{self._where}x"
        self._rack.add(where)
        self._rack.card(where, "eth0", "02:20:00:00:00:01", "rack0")
        self._rack.address(where, f"{self.ip}/24")

    def works(self, word: str) -> None:
        """To an OSIE whose agent works, until its journey says `word`; then the power is lost."""
        self.to_osie()
        agent = self.agent()
        wait_until(lambda: word in self.told(), lambda: agent.err, within=60, every=0.3)
        for process in self._rack.inside(self._where):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
