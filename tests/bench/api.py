"""The embedded API: create, get and patch of the status, through our client and TLS.

Nobody else's API server stands beside it. The yardstick is a physical one: how many transactions a second SQLite can
put on this disk, one after the other, in write-ahead mode with synchronous=FULL. One client that waits for each answer
can't be faster than that; many that wait together can, because their writes share a transaction.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import uvloop

from tests.bench.bed import Cable, Server, cores, measured, pinned, python
from tests.bench.results import Row, Sample, alternate, row, say
from tink.api.crds import generate
from tink.api.v1alpha2 import Raw
from tink.kube.client import KubeClient
from tink.kube.resources import CRD, HARDWARE, WORKFLOW

COUNT = 2000
ROUNDS = 3
CONCURRENCY = (1, 32)
PORT = 6443
FLOOR = "SQLite commits, FULL"

# --- the subject ---------------------------------------------------------------------------------------------------


def run(directory: Path) -> list[Row]:
    """All rows of this subject."""
    home = directory / "state"
    with Cable() as cable:
        kubeconfig = home / "kubeconfig"
        command = python("ours", server="api", directory=str(home))
        server = cable.serve(command, directory / "ours.log", port=PORT, ready=kubeconfig.exists)
        measured(cable.neighbour(python("api", do="define", kubeconfig=str(kubeconfig))))
        return [found for workers in CONCURRENCY for found in _rows(cable, server, kubeconfig, directory, workers)]


def _rows(cable: Cable, server: Server, kubeconfig: Path, directory: Path, workers: int) -> list[Row]:
    say(f"api: {COUNT} objects, {workers} at a time")
    turn = iter(range(ROUNDS))

    def ours() -> Sample:
        before = server.cpu_seconds()
        prefix = f"{workers}-{next(turn)}"
        command = python("api", do="load", kubeconfig=str(kubeconfig), prefix=prefix, workers=workers)
        found: dict[str, float] = measured(cable.neighbour(command))
        return {**found, "cpu": (server.cpu_seconds() - before) * 1e6 / (4 * COUNT)}

    def floor() -> Sample:
        found: dict[str, float] = measured(pinned(cores()[0], python("api", do="floor", directory=str(directory))))
        return {"create": found["rate"], "patch": found["rate"]}

    rounds = alternate(ROUNDS, ours, floor)
    alone = [found._replace(peer=None) for found in rounds]
    how = f"{workers} at a time" if workers > 1 else "one at a time"
    note = "the peer is no server but the disk's floor: the same number of single commits in one process"
    busy = f"the client, which is ours too, kept its core {max(found.ours['busy'] for found in rounds):.0%} busy"
    return [
        row("api", f"create {COUNT:,} Hardware, {how}", "1/s", rounds, "create", FLOOR, note=note),
        row("api", f"patch the status of {COUNT:,} Workflows, {how}", "1/s", rounds, "patch", FLOOR, note=note),
        row("api", f"get {COUNT:,} Hardware, {how}", "1/s", alone, "get", "", note=busy if workers > 1 else ""),
        row("api", f"CPU of the server for a request, {how}", "us", alone, "cpu", ""),
    ]


# --- clients and floor, processes of their own ---------------------------------------------------------------------


def _hardware(name: str, number: int) -> Raw:
    dhcp = {"ip": f"10.67.{number // 200}.{2 + number % 200}", "netmask": "255.255.0.0", "gateway": "10.67.0.1"}
    return {
        "apiVersion": HARDWARE.api_version,
        "kind": HARDWARE.kind,
        "metadata": {"name": name, "namespace": "default", "labels": {"rack": f"r{number % 40}"}},
        "spec": {
            "networkInterfaces": {
                f"52:54:00:{number.to_bytes(3, 'big').hex(':')}": {
                    "dhcp": {**dhcp, "hostname": name, "nameservers": ["10.67.0.1"], "leaseTimeSeconds": 3600}
                }
            },
            "osie": {"name": "lab"},
            "kernelParams": ["console=ttyS0"],
            "storageDevices": ["/dev/sda"],
            "instance": {"userdata": "#cloud-config\npackages: [curl]\n"},
        },
    }


def _workflow(name: str) -> Raw:
    return {
        "apiVersion": WORKFLOW.api_version,
        "kind": WORKFLOW.kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"hardwareRef": {"name": name}, "templateRef": {"name": "debian"}},
    }


async def _define(kubeconfig: str) -> dict[str, float]:
    """The CustomResourceDefinitions, and a wait until they are served."""
    client = await KubeClient.connect(Path(kubeconfig))
    for definition in generate():
        await client.create(CRD, definition)
    await client.list(WORKFLOW)
    await client.close()
    return {}


async def _load(kubeconfig: str, prefix: str, workers: int) -> dict[str, float]:
    """Requests a second of each kind."""
    client = await KubeClient.connect(Path(kubeconfig))
    names = [f"{prefix}-{number}" for number in range(COUNT)]

    async def create(number: int) -> object:
        return await client.create(HARDWARE, _hardware(names[number], number))

    async def get(number: int) -> object:
        return await client.get(HARDWARE, names[number], "default")

    async def create_workflow(number: int) -> object:
        return await client.create(WORKFLOW, _workflow(names[number]))

    async def patch(number: int) -> object:
        status = {"status": {"state": "Scheduled"}}
        return await client.patch(WORKFLOW, names[number], "default", status, subresource="status")

    start, used = time.perf_counter(), time.process_time()
    found = {
        "create": await _rate(create, workers),
        "get": await _rate(get, workers),
        "create workflow": await _rate(create_workflow, workers),
        "patch": await _rate(patch, workers),
    }
    busy = (time.process_time() - used) / (time.perf_counter() - start)
    await client.close()
    return {**found, "busy": busy}


async def _rate(call: Callable[[int], Awaitable[object]], workers: int) -> float:
    numbers = iter(range(COUNT))

    async def work() -> None:
        for number in numbers:
            await call(number)

    start = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(workers)))
    return COUNT / (time.perf_counter() - start)


def _floor(directory: str) -> dict[str, float]:
    """Commits a second of as many objects of the same size, each in a transaction of its own."""
    path = Path(directory) / "floor.db"
    bodies = [orjson.dumps(_hardware(f"floor-{number}", number)) for number in range(COUNT)]
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE objects (name TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID")
    start = time.perf_counter()
    for number, body in enumerate(bodies):
        db.execute("INSERT INTO objects VALUES (?, ?)", (f"floor-{number}", body))
    seconds = time.perf_counter() - start
    db.close()
    path.unlink()
    return {"rate": COUNT / seconds}


def _client(arguments: dict[str, Any]) -> dict[str, float]:
    do = arguments.pop("do")
    if do == "floor":
        return _floor(**arguments)
    return uvloop.run((_define if do == "define" else _load)(**arguments))


if __name__ == "__main__":
    print(json.dumps(_client(json.loads(sys.argv[1]))))
