"""The rack: a network namespace with a bridge and a tap for each machine, and the services of the rack's operator.

Nothing leads out of the namespace: no route, no uplink, no address of this host. The lab's own process moves into it,
so everything that it starts is inside, except what it builds before. The rack is removed after the lab.

The registry with the action images is Debian's `docker-registry`, filled with skopeo. The web server (the "depot") has
the OSIE and the disk images; the OSIE's URLs and the image URL of the Template point at it. Both listen on the rack's
own address only.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from edge.building.builder import Artifacts, recipes
from edge.building.shell import CommandError, Daemon, run
from edge.lab.namespaces import NAMESPACES, enter, remove_abandoned, set_namespace
from tink.net.addresses import join_host_port

PREFIX = "tinkedge-lab-"
HTTP_PORT = 7080
"""HTTP port of the edge in the rack."""
_ETH_P_IP, _ETH_P_ARP = 0x0800, 0x0806  # linux/if_ether.h
_SOL_PACKET, _PACKET_STATISTICS = 263, 6  # linux/if_packet.h


@dataclass(frozen=True, slots=True)
class RackNetwork:
    """The addresses of the rack, as in the manifests in deploy/examples.

    `address6` is an IPv6 address with a prefix of 64 bits beside an IPv4 `address`; empty: none.
    """

    bridge: str = "rack0"
    address: str = "172.31.77.1"
    prefix: int = 24
    tap: str = "machine0"
    address6: str = ""

    @property
    def host(self) -> str:
        """Return the address in the notation of URLs."""
        return f"[{self.address}]" if ":" in self.address else self.address

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return all addresses of the edge's host in the rack."""
        return tuple(filter(None, (self.address, self.address6)))


IPV6 = RackNetwork(address="fd31:77::1", prefix=64)
"""A rack without IPv4; the manifests in deploy/examples/ipv6 are written for it."""

DUAL_STACK = RackNetwork(address6="fd31:77::1")
"""A rack with both; the manifests in deploy/examples/dual-stack are written for it."""


class Rack:
    """A network namespace named after the process that owns it."""

    def __init__(self, network: RackNetwork) -> None:
        self.network = network
        self.namespace = f"{PREFIX}{os.getpid()}"
        self._home: int | None = None
        self._counters: list[socket.socket] = []

    async def up(self) -> None:
        """Create the namespace and move this process into it.

        Raises CommandError, for example without the privilege.
        """
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
        if network.address6:
            await run(["ip", "address", "add", f"{network.address6}/64", "dev", network.bridge])
        await run(["ip", "tuntap", "add", "dev", network.tap, "mode", "tap"])
        await run([*ip, network.tap, "master", network.bridge])
        await run([*ip, network.tap, "up"])
        await run([*ip, network.bridge, "up"])
        if ":" in network.address:
            self.count_ipv4(network.bridge)

    async def add_tap(self, name: str) -> None:
        """Create a tap for a further network card, on a cable that leads to no other host. Raises CommandError."""
        await run(["ip", "tuntap", "add", "dev", name, "mode", "tap"])
        await run(["ip", "link", "set", name, "up"])

    def count_ipv4(self, bridge: str) -> None:
        """Count the packets that this bridge receives, for `ipv4_packets`."""
        for protocol in (_ETH_P_IP, _ETH_P_ARP):
            self._counters.append(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
            self._counters[-1].bind((bridge, protocol))

    def ipv4_packets(self) -> int:
        """Return the number of IPv4 and ARP packets since the last call, for a rack with IPv6 only."""
        # The kernel counts packets even if it drops them: tpacket_stats, packets and drops.
        found = [sock.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8) for sock in self._counters]
        return sum(struct.unpack("=II", each)[0] for each in found)

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        """Run a block in the host's network: this process and its new children. Older children stay inside."""
        assert self._home is not None  # noqa: S101 - for the type checker; up() has set it
        set_namespace(self._home)
        try:
            yield
        finally:
            enter(NAMESPACES / self.namespace)

    async def down(self) -> None:
        """Leave the namespace and remove it, with everything in it."""
        if self._home is None:
            return
        while self._counters:
            self._counters.pop().close()
        set_namespace(self._home)
        os.close(self._home)
        self._home = None
        await run(["ip", "netns", "delete", self.namespace])


REGISTRY_PORT = 5000
DEPOT_PORT = 8080


async def start_registry(
    stack: AsyncExitStack, address: str, storage: Path, directory: Path, artifacts: Artifacts
) -> str:
    """Start a private container registry at `address`:5000 and fill it with the action images.

    Its images stay in `storage` for the next lab; `directory` gets its configuration and log. `stack` stops it. Return
    its host and port for pushes. Raises CommandError.
    """
    storage.mkdir(parents=True, exist_ok=True)
    listening = authority = join_host_port(address, REGISTRY_PORT)
    if ":" in address:  # skopeo of Debian 12 accepts no IPv6 address as a registry, so it is filled over loopback.
        listening, authority = f":{REGISTRY_PORT}", f"localhost:{REGISTRY_PORT}"
    config = directory / "registry.yml"
    config.write_text(
        "version: 0.1\n"
        "log: {level: info, accesslog: {disabled: true}}\n"
        f"storage: {{filesystem: {{rootdirectory: {storage}}}, delete: {{enabled: true}}}}\n"
        f"http: {{addr: '{listening}'}}\n"
    )
    daemon = await Daemon.start("registry", ["docker-registry", "serve", config], directory / "registry.log")
    stack.push_async_callback(daemon.stop)
    if not await daemon.answers(f"http://{authority}/v2/", 10):
        ended = "ended" if daemon.returncode is not None else f"does not answer on {authority}"
        raise CommandError(f"docker-registry {ended}: {daemon.log_tail(5)}")
    filled = storage / "made-from"
    if not filled.is_file() or filled.read_text() != artifacts.actions_digest:
        push = recipes() / "actions" / "push.sh"
        await run(["bash", push, artifacts.actions, authority], timeout=120)
        filled.write_text(artifacts.actions_digest)
    return authority


async def start_depot(stack: AsyncExitStack, address: str, artifacts: Artifacts) -> None:
    """Start a web server at `address`:8080 with `/osie/kernel`, `/osie/initrd` and `/images/<name>`.

    `stack` stops it. Raises OSError if the port is taken.
    """
    app = web.Application()
    app.router.add_get("/osie/kernel", _file(artifacts.kernel))
    app.router.add_get("/osie/initrd", _file(artifacts.initrd))
    app.router.add_static("/images", artifacts.image.parent)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, address, DEPOT_PORT).start()


def _file(path: Path) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def serve(_: web.Request) -> web.StreamResponse:
        return web.FileResponse(path)

    return serve
