"""A link that has no edge: a router between it and the rack, with dnsmasq's DHCPv6 relay and router advertisements.

    machine0 - link1 (bridge, no address) - down1 [router: dnsmasq] up1 - rack0 (the edge)
               fd31:78::/64                  ::1                fd31:77::2   fd31:77::1

The router is in a network namespace of its own and forwards IPv6. The edge's host has a route to the link behind it but
receives no multicast from there: link1 is only a switch.
"""

from __future__ import annotations

import asyncio
import shlex
from contextlib import AsyncExitStack
from pathlib import Path

from edge.building.shell import Daemon, run
from edge.lab.rack import Rack

LINK, ROUTER, ROUTER_ON_RACK = "link1", "fd31:78::1", "fd31:77::2"
ADDRESS = "fd31:78::10"
"""The machine's address."""


async def start_relay(rack: Rack, directory: Path, stack: AsyncExitStack) -> None:
    """Put the machine's port behind the router, and start that. Raises CommandError."""
    network = rack.network
    ip = ["ip", "link", "set"]
    await run(["ip", "link", "add", LINK, "type", "bridge", "forward_delay", "0"])
    for port in (LINK, network.tap):
        _without_ipv6(port)
    await run([*ip, network.tap, "master", LINK])
    await run([*ip, LINK, "up"])
    rack.count_ipv4(LINK)
    router = await _namespace(_router(network.address, directory / "router.leases"), directory, stack)
    for here, there, bridge in (("up0", "up1", network.bridge), ("down0", "down1", LINK)):
        await run(["ip", "link", "add", here, "type", "veth", "peer", "name", there])
        await run([*ip, there, "netns", str(router.pid)])
        _without_ipv6(here)
        await run([*ip, here, "master", bridge, "up"])
    await run(["ip", "route", "add", "fd31:78::/64", "via", ROUTER_ON_RACK, "dev", network.bridge])


def _without_ipv6(interface: str) -> None:
    """A port of a switch: it asks for no router, and obeys none."""
    Path(f"/proc/sys/net/ipv6/conf/{interface}/disable_ipv6").write_text("1")


def _router(edge: str, leases: Path) -> str:
    """Return the shell commands that run in the router's namespace once its two ports exist.

    A `static` range without hosts makes dnsmasq set the M and O flags in its advertisements. It relays DHCPv6
    requests. Port 0: no DNS.
    """
    serve = [
        *("dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--user=root", "--interface=down1"),
        *("--enable-ra", "--dhcp-range=fd31:78::,static,64", f"--dhcp-relay={ROUTER},{edge}"),
        *("--log-dhcp", "--log-facility=-", f"--dhcp-leasefile={leases}"),
    ]
    lines = [
        "until [ -e /sys/class/net/up1 ] && [ -e /sys/class/net/down1 ]; do sleep 0.05; done",
        "sysctl -q net.ipv6.conf.all.forwarding=1",
        *(f"sysctl -q net.ipv6.conf.{port}.accept_dad=0" for port in ("up1", "down1")),
        f"ip address add {ROUTER_ON_RACK}/64 dev up1",
        f"ip address add {ROUTER}/64 dev down1",
        *(f"ip link set {port} up" for port in ("lo", "up1", "down1")),
        f"exec {shlex.join(serve)}",
    ]
    # A mount of sysfs shows the network namespace of the process that mounted it.
    return "mount -t sysfs sysfs /sys && " + "; ".join(lines)


async def _namespace(script: str, directory: Path, stack: AsyncExitStack) -> Daemon:
    command = ["unshare", "--net", "--mount", "sh", "-c", script]
    router = await Daemon.start("router", command, directory / "router.log")
    stack.push_async_callback(router.stop)
    while Path(f"/proc/{router.pid}/ns/net").readlink() == Path("/proc/self/ns/net").readlink():
        await asyncio.sleep(0.01)
    return router
