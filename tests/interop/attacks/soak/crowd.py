"""The load of a memory limit: everything at once, from many machines, as fast as this program can.

    python -m tests.interop.attacks.soak.crowd JSON

Runs in the edge's namespace, until SIGTERM. In the namespace `crowd` one card has the addresses of all machines; from
there come agents, downloads (some of them slow), metadata and a flood of DISCOVERs with made-up addresses. In the
namespace `one` is a machine that wants leases meanwhile. Operators write large objects and list everything. Prints
what was done, as a line of JSON each second.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.bench.wire import Account
from tests.interop.attacks.soak.boot import DISCOVER, Card, NotServedError, fetch, lease, packet
from tests.interop.attacks.soak.machines import Operator, Scripted
from tests.interop.conftest import in_namespace

FLOOD_PER_SECOND = 5000
DOWNLOADS, SLOW, METADATA, WRITERS, RUNNERS = 30, 10, 4, 6, 8
_LARGE = "x" * 60_000


def address(number: int) -> str:
    return f"172.31.{100 + (number >> 8)}.{number & 255}"


def mac(number: int) -> str:
    return f"52:54:02:{number.to_bytes(3, 'big').hex(':')}"


class Crowd:
    def __init__(self, given: dict[str, Any]) -> None:
        self.server_ip: str = given["server_ip"]
        self.count: int = given["machines"]
        self.namespace: str = given["crowd"]
        self.operator = Operator(Account.of(Path(given["kubeconfig"])))
        self.one = Card(given["one"], self.server_ip, mac="52:54:03:00:00:01")
        self.files = {"kernelUrl": "file://" + given["kernel"], "initrdUrl": "file://" + given["initrd"]}
        self.rng = random.Random(1)
        self.done: Counter[str] = Counter()
        self.agents: list[Scripted] = []
        self.stopping = threading.Event()

    def socket(self, number: int) -> socket.socket:
        made = in_namespace(self.namespace, lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        made.setblocking(False)
        made.bind((address(number), 0))
        return made

    async def register(self) -> None:
        """Hardware for all, a Template, an OSIE."""
        await self.operator.create("osies", "OSIE", "crowd", self.files)
        action = {"name": "a", "image": "none", "cmd": "/bin/sleep", "args": ["0.1"]}
        await self.operator.create("templates", "Template", "crowd", {"actions": [action, {**action, "name": "b"}]})
        numbers = iter(range(self.count))

        async def some() -> None:
            for number in numbers:
                await self.hardware(f"crowd-{number}", mac(number), address(number))

        await asyncio.gather(*(some() for _ in range(8)), self.hardware("one", self.one.mac, "172.31.90.1"))

    async def hardware(self, name: str, its_mac: str, ip: str) -> None:
        dhcp = {"ip": ip, "netmask": "255.255.0.0", "hostname": name}
        spec = {
            "networkInterfaces": {its_mac: {"dhcp": dhcp}},
            "osie": {"name": "crowd"},
            "instance": {"userdata": "#cloud-config\n" + "# as long as such files are\n" * 40},
        }
        await self.operator.create("hardware", "Hardware", name, spec)

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        for number in range(self.count):
            sock = self.socket(number)
            await loop.sock_connect(sock, (self.server_ip, 42113))
            _, agent = await loop.create_connection(lambda number=number: Scripted(mac(number)), sock=sock)  # type: ignore[misc]
            await agent.connected
            self.agents.append(agent)

    # --- what happens all the time ------------------------------------------------------------------------------------

    def flood(self) -> None:
        """DISCOVERs of machines that are made up, in a thread of its own."""
        card = Card(self.namespace, self.server_ip)
        messages = [packet(DISCOVER, f"02:{self.rng.randbytes(5).hex(':')}", number) for number in range(2000)]
        with card.socket(socket.SOCK_DGRAM) as sock:
            sock.setblocking(True)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            while not self.stopping.is_set():
                begin = time.monotonic()
                for message in self.rng.sample(messages, FLOOD_PER_SECOND // 20):
                    sock.sendto(message, ("255.255.255.255", 67))
                    self.done["discovers"] += 1
                time.sleep(max(0.0, begin + 1 / 20 - time.monotonic()))

    async def leases(self, _: int) -> None:
        await lease(self.one, self.rng)
        await asyncio.sleep(0.1)

    async def downloads(self, _: int) -> None:
        await self._download("initrd")

    async def slow(self, _: int) -> None:
        await self._download("initrd", pause=0.05)

    async def metadata(self, _: int) -> None:
        await self._download("", path="/2009-04-04/user-data")

    async def _download(self, name: str, pause: float = 0.0, path: str = "") -> None:
        number = self.rng.randrange(self.count)
        path = path or f"/osie/crowd/{name}"
        loop = asyncio.get_running_loop()
        with self.socket(number) as sock:
            await loop.sock_connect(sock, (self.server_ip, 7080))
            head = f"GET {path} HTTP/1.1\r\nHost: {self.server_ip}:7080\r\nConnection: close\r\n\r\n"
            await loop.sock_sendall(sock, head.encode())
            first = b""
            while piece := await loop.sock_recv(sock, 1 << 18):
                first = first or piece
                if pause:
                    await asyncio.sleep(pause)
        if not first.startswith(b"HTTP/1.1 200"):
            raise NotServedError(f"{path}: {first[:200]!r}")

    async def writes(self, number: int) -> None:
        """A large object that comes, changes and goes; and lists of everything."""
        name = f"large-{number}-{self.done['writes']}"
        spec = {"actions": [{"name": "a", "image": "none"}]}
        await self.operator.create("templates", "Template", name, spec, annotations={"large": _LARGE})
        status, answer = await self.operator.ask("GET", "/hardware")
        if status != 200:
            raise NotServedError(f"GET /hardware: {status} {answer}")
        await self.operator.delete("templates", name)

    async def workflows(self, number: int) -> None:
        machine = number + RUNNERS * (self.done["workflows"] % (self.count // RUNNERS))
        name = f"run-{number}-{self.done['workflows']}"
        references = {"hardwareRef": {"name": f"crowd-{machine}"}, "templateRef": {"name": "crowd"}}
        await self.operator.create("workflows", "Workflow", name, references)
        await self.operator.ended(name)
        await self.operator.delete("workflows", name)

    async def repeat(self, what: Callable[[int], Awaitable[None]], number: int) -> None:
        """Again and again; one failure ends it all."""
        while True:
            await what(number)
            self.done[what.__name__] += 1


async def main(given: dict[str, Any]) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    crowd = Crowd(given)
    await crowd.register()
    await crowd.connect()
    await asyncio.to_thread(crowd.one.become, crowd.one.mac)
    await fetch(Card(crowd.namespace, crowd.server_ip), "/healthz")
    works = (
        (crowd.leases, 1),
        (crowd.downloads, DOWNLOADS),
        (crowd.slow, SLOW),
        (crowd.metadata, METADATA),
        (crowd.writes, WRITERS),
        (crowd.workflows, RUNNERS),
    )
    tasks = [asyncio.create_task(crowd.repeat(work, number)) for work, count in works for number in range(count)]
    flood = threading.Thread(target=crowd.flood, daemon=True)
    flood.start()
    stopped = asyncio.create_task(stop.wait())
    while not stop.is_set():
        done, _ = await asyncio.wait([*tasks, stopped], timeout=1, return_when="FIRST_COMPLETED")
        for task in done - {stopped}:
            task.result()
        lost = [agent.failure for agent in crowd.agents if agent.failure]
        counts = {"done": crowd.done, "agents": len(crowd.agents) - len(lost), "lost": lost[:3]}
        print(json.dumps(counts), flush=True)
    crowd.stopping.set()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
