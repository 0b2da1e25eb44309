"""The machines' side of the wire, in a network namespace: all addresses of their network are local there, however many.

`prepare` is called inside of that namespace. Behind a relay one route is all that it takes; packets for the machines
come by whatever route leads here. On the server's own link more is needed, so that each machine is seen with its MAC:

    ARP      the kernel says nothing for those addresses; `edge.fleet.network.port` answers with each machine's MAC
    frames   to other MACs than the interface's are taken all the same: nftables calls them the host's own
    server   its MAC is fixed, for the kernel would ask in a machine's name with the interface's MAC
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Network
from pathlib import Path
from typing import Final

from edge.building.shell import CommandError, run
from edge.fleet.network.port import resolve

_TABLE: Final = "tinkedge-fleet"
_RULES: Final = """
table netdev {table} {{
  chain frames {{
    type filter hook ingress device "{interface}" priority 0
    meta pkttype set host
  }}
}}
"""
_RESOLVE_SECONDS: Final = 3.0
_SETTINGS: Final = Path("/proc/sys/net/ipv4/conf")


class Link(StrEnum):
    """Where the machines are, as the server sees it."""

    RELAY = "relay"
    DIRECT = "direct"


class AttachmentError(Exception):
    """The machines can't be attached; the text says why."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """`interface`: towards the server. `network`: of the machines. `server`: the edge's address."""

    link: Link
    interface: str
    network: IPv4Network
    server: str

    async def prepare(self, stack: AsyncExitStack) -> None:
        """Make it so; `stack` undoes it. Raises AttachmentError."""
        try:
            if self.link is Link.DIRECT:
                await self._see_each_mac(stack)
            await run(["ip", "route", "add", "local", str(self.network), "dev", "lo"])
            stack.push_async_callback(run, ["ip", "route", "delete", "local", str(self.network), "dev", "lo"])
        except (CommandError, OSError) as error:
            raise AttachmentError(f"can't attach machines to {self.interface}: {error}") from error

    async def _see_each_mac(self, stack: AsyncExitStack) -> None:
        server = resolve(self.interface, self.server, _RESOLVE_SECONDS)
        if server is None:
            raise AttachmentError(f"nobody on {self.interface} answers ARP for {self.server}")
        neighbour = [self.server, "lladdr", server.hex(":"), "nud", "permanent", "dev", self.interface]
        await run(["ip", "neighbour", "replace", *neighbour])
        # Before the machines' network, which is local: the server's address is in it.
        route = ["unicast", f"{self.server}/32", "dev", self.interface, "table", "local"]
        await run(["ip", "route", "add", *route])
        stack.push_async_callback(run, ["ip", "route", "delete", *route])
        answers = _SETTINGS / self.interface / "arp_ignore"
        stack.callback(answers.write_text, answers.read_text())
        answers.write_text("8")
        await run(["nft", "-f", "-"], stdin=_RULES.format(table=_TABLE, interface=self.interface).encode())
        stack.push_async_callback(run, ["nft", "delete", "table", "netdev", _TABLE])
