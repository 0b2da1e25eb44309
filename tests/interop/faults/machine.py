"""A scripted machine with what comes after its firmware: the agent."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from tests.interop.faults.firmware import Firmware
from tests.interop.rack import Process
from tests.interop.test_agent_auth import command_line
from tests.waiting import wait_until

UPSTREAM = Path(__file__).with_name("upstream.py")
REGISTRY = "127.0.0.1:5000"


class Scripted(Firmware):
    """With what comes after the firmware. `told` is what its journey says by now."""

    told: Callable[[], str] = staticmethod(str)
    authority = Path()

    def agent(self, *, runtime: str = "process", change: Callable[[str], str] = str) -> Process:
        """Start it, with the command line that the machine's script has for its kernel, but for what `change` does."""
        file = self._rack.directory / f"{self._where}.cmdline"
        file.write_text(change(command_line(self.script_text)) if self.script_text else "")
        state = self._rack.directory / self._where
        words = ["--kernel-command-line", str(file), "--runtime", runtime, "--state-dir", str(state)]
        if not self.script_text:  # of whom the edge knows nothing, and who knows where it is all the same
            words += ["--agent-id", self.mac, "--server", f"{self.server}:42113", "--tls", "--tls-roots"]
            words += [str(self.authority)]
        return self._rack.tinkedge(self._where, "agent", *words)

    def has_its_address(self) -> None:
        """By hand, for nobody gives it one."""
        self._rack.address(self._where, f"{self.ip}/24")

    def registry(self) -> None:
        """Start one, on the machine itself."""
        self._rack.start(self._where, sys.executable, UPSTREAM, *REGISTRY.split(":"))

    def has_a_wrong_address(self) -> None:
        """One that nobody gave it."""
        host, _, last = self.ip.rpartition(".")
        self._rack.address(self._where, f"{host}.{int(last) - 90}/24")

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
        wait_until(lambda: word in self.told(), lambda: agent.err, every=0.3)
        for process in self._rack.inside(self._where):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
