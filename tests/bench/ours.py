"""Our servers, each in a process of its own as in production: uvloop, the journey and its log, a filled cache.

Run as `python -m tests.bench.ours JSON`; the JSON has the server's name and its parameters (see the functions).
"""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from ipaddress import IPv6Address, IPv6Network, ip_network
from pathlib import Path
from typing import Any

import uvloop
from aiohttp import web

from edge.artifacts.artifact import Source
from edge.artifacts.cache import ArtifactCache
from edge.callers import Callers, token_keys
from edge.dhcp import DhcpServer, DhcpSettings, Responder
from edge.dhcp6 import Dhcp6Server, Responder6, Settings6, server_duid
from edge.dhcp_common import DhcpSite
from edge.http.app import MachineApp, machine_runner
from edge.http.context import HttpServices, MetadataSettings
from edge.journey.events import Milestone
from edge.journey.expectations import Expectations, Facts, Story
from edge.journey.recorder import Journey
from edge.machines import Inventory, MachineScripts, NetbootPolicy, OsieFiles
from edge.neighbour.table import NeighbourTable, neighbour_changes
from edge.run.logs import set_up
from edge.run.process.memory import settle
from edge.tftp import BootFiles, TftpServer
from ipxe.binaries import BootBinaries
from ipxe.scripts import BootSettings, Scripts
from tests.bench.bed import CLIENTS, HTTP_PORT, NETMASK, NETWORK6, SERVER_IP, SERVER_IP6, machine_ip, machine_ip6
from tink.kubeapi import ApiServer
from tink.net.outbound import Reach

_HTTP_URL = f"http://{SERVER_IP}:{HTTP_PORT}"
UPSTREAM_PORT = 7090
"""The upstream of the OSIEs called fresh-..., on loopback of the server's namespace."""


def machine(number: int) -> dict[str, Any]:
    """Return the Hardware of a machine, numbered from 0."""
    return {
        "metadata": {"name": f"machine-{number}", "namespace": "default"},
        "spec": {
            "networkInterfaces": {
                mac(number): {
                    "dhcp": {
                        "ip": machine_ip(number),
                        "netmask": NETMASK,
                        "gateway": SERVER_IP,
                        "hostname": f"machine-{number}",
                        "leaseTimeSeconds": 3600,
                    }
                }
            },
            "osie": {"name": "lab"},
            "instance": {"userdata": "#cloud-config\n"},
        },
    }


def mac(number: int) -> str:
    """Return the MAC address of a machine, numbered from 0."""
    return f"52:54:00:{number.to_bytes(3, 'big').hex(':')}"


def inventory(numbers: range) -> Inventory:
    """Return an inventory of these machines."""
    machines = Inventory()
    for number in numbers:
        machines.apply(machine(number))
    return machines


async def http(exit_stack: AsyncExitStack, journey: Journey, *, directory: str) -> None:
    """Start the machines' HTTP server. The cache fetches the initrd from `directory` first."""
    reach = Reach(allowed=(ip_network("127.0.0.0/8"),))  # the address of the benchmark's upstream
    cache = ArtifactCache(Path(directory) / "cache", revalidate_after=24 * 3600, reach=reach)
    await cache.start()
    exit_stack.push_async_callback(cache.stop)
    upstream = web.Application()
    upstream.router.add_static("/", directory)
    runner = web.AppRunner(upstream, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/initrd"
    source = Source.UPSTREAM
    while source is not Source.CACHE:  # until the file is whole and has its name
        with await cache.open(url) as artifact:
            source = artifact.source
            filled = 0
            while filled < artifact.size:
                filled = await artifact.filled(filled)
        await asyncio.sleep(0.01)
    await runner.cleanup()

    def osie(namespace: str, name: str) -> dict[str, Any]:
        where = f"http://127.0.0.1:{UPSTREAM_PORT}/{name}" if name.startswith("fresh-") else url
        return {"metadata": {"name": name, "namespace": namespace}, "spec": {"kernelUrl": where, "initrdUrl": where}}

    machines_known = inventory(range(CLIENTS))
    policy = NetbootPolicy()
    scripts = Scripts(BootSettings(http_port=HTTP_PORT))
    app = MachineApp(
        HttpServices(
            inventory=machines_known,
            callers=Callers(machines_known),
            policy=policy,
            scripts=MachineScripts(machines_known, policy, osie, scripts, journey.record, take=journey.note),
            osie_files=OsieFiles(osie, cache),
            binaries=_binaries(directory),
            record=journey.record,
            metadata=MetadataSettings(token_keys(Path(directory), None, create=True)),
        )
    )
    machines = machine_runner(app)
    await machines.setup()
    exit_stack.push_async_callback(machines.cleanup)
    await web.TCPSite(machines, SERVER_IP, HTTP_PORT).start()


async def metadata(exit_stack: AsyncExitStack, journey: Journey, *, directory: str, count: int) -> None:
    """Start the machines' HTTP server for `count` machines, with an empty cache: they request metadata only."""
    cache = ArtifactCache(Path(directory) / "cache")
    await cache.start()
    exit_stack.push_async_callback(cache.stop)
    known = inventory(range(count))
    settle(huge_pages=True)
    table = NeighbourTable(["srv0"])
    exit_stack.callback(table.close)
    callers = Callers(known, neighbours=table)
    exit_stack.callback(neighbour_changes(callers.changed).close)

    def osie(_namespace: str, _name: str) -> dict[str, Any] | None:
        return None

    policy = NetbootPolicy()
    scripts = Scripts(BootSettings(http_port=HTTP_PORT))
    app = MachineApp(
        HttpServices(
            inventory=known,
            callers=callers,
            policy=policy,
            scripts=MachineScripts(known, policy, osie, scripts, journey.record, take=journey.note),
            osie_files=OsieFiles(osie, cache),
            binaries=_binaries(directory),
            record=journey.record,
            metadata=MetadataSettings(token_keys(Path(directory), None, create=True)),
        )
    )
    callers.on_change(app.callers_changed)
    machines = machine_runner(app)
    await machines.setup()
    exit_stack.push_async_callback(machines.cleanup)
    await web.TCPSite(machines, SERVER_IP, HTTP_PORT, backlog=1024).start()


async def tftp(exit_stack: AsyncExitStack, journey: Journey, *, directory: str, clients: int = CLIENTS) -> None:
    """Start the TFTP server with the boot files of `directory`."""
    machines = inventory(range(clients))
    files = BootFiles(_binaries(directory), machines, Callers(machines), NetbootPolicy())
    server = TftpServer(files, journey.record, host=SERVER_IP, interface="srv0")
    await server.start()
    exit_stack.push_async_callback(server.stop)


async def dhcp(exit_stack: AsyncExitStack, journey: Journey, *, directory: str, first: int, count: int) -> None:
    """Start the DHCP server with reservations for `count` machines from `first` on."""
    settings = DhcpSettings(SERVER_IP, SERVER_IP, _HTTP_URL)
    # As in `edge.run`: the responder exists first, and compiles each reservation when its Hardware arrives.
    machines, binaries = Inventory(), _binaries(directory)
    site = DhcpSite(machines, NetbootPolicy(), binaries, journey.record, time.monotonic, journey.note)
    responder = Responder(site, settings)
    machines.on_change(responder.machine_changed)
    for number in range(first, first + count):
        machines.apply(machine(number))
    settle(huge_pages=True)
    server = DhcpServer(responder, "srv0")
    await server.start()
    exit_stack.push_async_callback(server.stop)


async def dhcp6(exit_stack: AsyncExitStack, journey: Journey, *, directory: str, count: int) -> None:
    """Start the DHCPv6 server with reservations for the first `count` machines."""
    settings = Settings6(
        IPv6Address(SERVER_IP6),
        f"http://[{SERVER_IP6}]:{HTTP_PORT}",
        server_duid(b"\2bench"),
        (IPv6Network(NETWORK6),),
    )
    machines, binaries = Inventory(), _binaries(directory)
    site = DhcpSite(machines, NetbootPolicy(), binaries, journey.record, time.monotonic, journey.note)
    responder = Responder6(site, settings)
    machines.on_change(responder.machine_changed)
    for number in range(count):
        hardware = machine(number)
        ipv6 = {"address": machine_ip6(number), "nameservers": [SERVER_IP6]}
        hardware["spec"]["networkInterfaces"][mac(number)]["dhcp"]["ipv6"] = ipv6
        machines.apply(hardware)
    settle(huge_pages=True)
    server = Dhcp6Server(responder, "srv0")
    await server.start()
    exit_stack.push_async_callback(server.stop)


async def tftp_and_dhcp(
    exit_stack: AsyncExitStack, journey: Journey, *, directory: str, clients: int, first: int, count: int
) -> None:
    """Start TFTP and DHCP on one event loop, as `tinkedge up` does."""
    await tftp(exit_stack, journey, directory=directory, clients=clients)
    await dhcp(exit_stack, journey, directory=directory, first=first, count=count)


async def api(exit_stack: AsyncExitStack, _journey: Journey, *, directory: str) -> None:
    """Start the embedded API on loopback."""
    server = ApiServer(Path(directory))
    await server.start()
    exit_stack.push_async_callback(server.stop)


def _binaries(directory: str) -> BootBinaries:
    boot = Path(directory) / "boot"
    boot.mkdir(exist_ok=True)
    if not any(boot.iterdir()):
        (boot / "snponly.efi").write_bytes(b"MZ" + bytes(1000))
    return BootBinaries(boot)


async def _serve(start: Callable[..., Awaitable[None]], arguments: dict[str, Any]) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with AsyncExitStack() as exit_stack:
        journey = Journey(time.time)
        await start(exit_stack, journey, **arguments)
        expecting = asyncio.create_task(_expect(journey))
        await stop.wait()
        expecting.cancel()


async def _expect(journey: Journey) -> None:
    """Check every second which machines are late, as the edge does."""

    def facts(_story: Story, now: float, limit: Callable[[Milestone], float]) -> Facts:
        return Facts(now=now, limit=limit)

    expectations = Expectations(journey, facts, lambda _mac, _finding: None, time.time)
    while True:
        await asyncio.sleep(1)
        for _ in expectations.sweep():
            await asyncio.sleep(0)


def main(arguments: dict[str, Any]) -> None:
    """Serve until SIGTERM. Standard error is the log, at the default level."""
    set_up("info", "text")
    servers: dict[str, Callable[..., Awaitable[None]]] = {
        "http": http,
        "metadata": metadata,
        "tftp": tftp,
        "dhcp": dhcp,
        "dhcp6": dhcp6,
        "tftp_and_dhcp": tftp_and_dhcp,
        "api": api,
    }
    gc.set_threshold(50_000, 20, 100)  # as `tinkedge` does
    uvloop.run(_serve(servers[arguments.pop("server")], arguments))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
