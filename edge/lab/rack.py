"""The rack: a network namespace with a bridge, and a tap for each machine; made for one lab and removed after it.

Nothing leads out of it: no route, no uplink, no address of this host. The lab's own process moves into the namespace,
so all it starts is inside.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from edge.lab.namespaces import NAMESPACES, enter, remove_abandoned, set_namespace
from edge.lab.shell import run

PREFIX = "tinkedge-lab-"


@dataclass(frozen=True, slots=True)
class RackNetwork:
    """The addresses of the rack; the manifests in deploy/examples are written for them."""

    bridge: str = "rack0"
    address: str = "172.31.77.1"
    prefix: int = 24
    tap: str = "machine0"


class Rack:
    """A network namespace named after the process that owns it."""

    def __init__(self, network: RackNetwork) -> None:
        self.network = network
        self.namespace = f"{PREFIX}{os.getpid()}"
        self._home: int | None = None

    async def up(self) -> None:
        """Make the namespace and move this process into it. Raises CommandError, e.g. without the privilege."""
        await remove_abandoned(PREFIX)
        network = self.network
        await run(["ip", "netns", "add", self.namespace])
        self._home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        enter(NAMESPACES / self.namespace)
        ip = ["ip", "link", "set"]
        await run([*ip, "lo", "up"])
        await run(["ip", "link", "add", network.bridge, "type", "bridge", "forward_delay", "0"])
        # No duplicate address detection: the link-local address answers router solicitations at once.
        for knob, value in (("accept_dad", "0"), ("disable_ipv6", "0")):
            Path(f"/proc/sys/net/ipv6/conf/{network.bridge}/{knob}").write_text(value)
        await run(["ip", "address", "add", f"{network.address}/{network.prefix}", "dev", network.bridge])
        await run(["ip", "tuntap", "add", "dev", network.tap, "mode", "tap"])
        await run([*ip, network.tap, "master", network.bridge])
        await run([*ip, network.tap, "up"])
        await run([*ip, network.bridge, "up"])

    async def down(self) -> None:
        """Leave the namespace and remove it, with everything in it."""
        if self._home is None:
            return
        set_namespace(self._home)
        os.close(self._home)
        self._home = None
        await run(["ip", "netns", "delete", self.namespace])
