"""Measurements of an API server, ours or the peer's: each runs as a process of its own and prints its figures.

Run as `python -m tests.bench.api_client JSON`; the JSON has the measurement in `do`, the kubeconfig, and parameters.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

import orjson
import uvloop

from tests.bench import kubernetes
from tests.bench.wire import Account, Connection, WireError
from tink.api.crds import generate
from tink.api.v1alpha2 import Raw
from tink.kubeapi.apiserver.store.object_store import ObjectStore
from tink.kubeapi.apiserver.store.objects import Key, Write

GROUP = "/apis/tinkerbell.org/v1alpha2"
HARDWARE = f"{GROUP}/namespaces/default/hardware"
WORKFLOWS = f"{GROUP}/namespaces/default/workflows"
MERGE = "application/merge-patch+json"
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_USERDATA = "#cloud-config\nssh_authorized_keys:\n- ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA {0}\n" + "".join(
    f"# line {number} of what an operator tells cloud-init about this machine\n" for number in range(12)
)


def hardware(name: str, number: int) -> Raw:
    """Return a Hardware with two interfaces, 1.5 kB as a client sends it."""
    number = number % 0x7FFFF0 + 1
    ports: Raw = {}
    for port in (0, 1):
        ports[f"52:5{port}:00:{number.to_bytes(3, 'big').hex(':')}"] = {
            "dhcp": {
                "ip": f"10.{port << 7 | number >> 16}.{number >> 8 & 255}.{number & 255}",
                "netmask": "255.0.0.0",
                "gateway": "10.255.255.254",
                "hostname": name,
                "nameservers": ["10.255.255.253", "10.255.255.252"],
                "leaseTimeSeconds": 3600,
            }
        }
    return {
        "apiVersion": "tinkerbell.org/v1alpha2",
        "kind": "Hardware",
        "metadata": {"name": name, "namespace": "default", "labels": {"rack": f"r{number % 40}"}},
        "spec": {
            "networkInterfaces": ports,
            "osie": {"name": "lab"},
            "kernelParams": ["console=ttyS0"],
            "storageDevices": ["/dev/sda"],
            "instance": {"userdata": _USERDATA.format(name)},
        },
    }


def _workflow(name: str) -> Raw:
    return {
        "apiVersion": "tinkerbell.org/v1alpha2",
        "kind": "Workflow",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"hardwareRef": {"name": name}, "templateRef": {"name": "debian"}},
    }


async def define(account: Account) -> dict[str, float]:
    """Create the CustomResourceDefinitions and wait until the API serves them."""
    wire = await Connection.open(account)
    for definition in generate():
        status, body = await wire.ask(account.request("POST", _DEFINITIONS, orjson.dumps(definition)))
        if status not in (201, 409):
            raise WireError(f"{status} {body[:500]!r}")
    give_up = time.monotonic() + 20
    for path in (HARDWARE, WORKFLOWS):
        while (await wire.ask(account.request("GET", path + "?limit=1")))[0] != 200:
            if time.monotonic() > give_up:
                raise WireError(f"{path} is not served")
            await asyncio.sleep(0.05)
    wire.close()
    return {}


async def make(account: Account, names: list[str]) -> dict[str, float]:
    """Create Hardware."""
    wire = await Connection.open(account)
    for number, name in enumerate(names):
        await wire.must(account.request("POST", HARDWARE, orjson.dumps(hardware(name, number))))
    wire.close()
    return {}


async def fill(directory: str, first: str, count: int) -> None:
    """Clone the Hardware `first` into the store of a server that does not run, then die as by kill -9."""
    store = ObjectStore(Path(directory) / "state.db", lambda _: None)
    await store.open()
    resource = "tinkerbell.org/hardware"
    stored = await store.get(Key(resource, "default", first))
    if stored is None:
        raise WireError(f"there is no {first}")
    stem = first.rpartition("-")[0]

    async def clone(number: int) -> None:
        key = Key(resource, "default", f"{stem}-{number}")
        there = await store.get(key)
        version = store.next_version()
        obj = orjson.loads(stored.body)
        obj["metadata"] |= {"name": key.name, "uid": str(uuid.uuid4()), "resourceVersion": str(version)}
        obj["spec"] = hardware(key.name, number)["spec"]
        await store.write(Write(key, version, orjson.dumps(obj), there.version if there else 0))

    for start in range(1, count, 256):
        await asyncio.gather(*map(clone, range(start, min(start + 256, count))))
    os.kill(os.getpid(), signal.SIGKILL)


async def rates(account: Account, prefix: str, workers: int, count: int) -> dict[str, float]:
    """Measure creates, gets, updates and status patches a second, `workers` at a time."""
    wires = [await Connection.open(account) for _ in range(workers)]
    names = [f"{prefix}-{number}" for number in range(count)]

    async def load(requests: list[bytes]) -> float:
        todo = iter(requests)

        async def work(wire: Connection) -> None:
            for request in todo:
                await wire.must(request)

        start = time.perf_counter()
        await asyncio.gather(*map(work, wires))
        return count / (time.perf_counter() - start)

    start, used = time.perf_counter(), time.process_time()
    posts = [account.request("POST", HARDWARE, orjson.dumps(hardware(name, n))) for n, name in enumerate(names)]
    figures = {"create": await load(posts)}
    figures["get"] = await load([account.request("GET", f"{HARDWARE}/{name}") for name in names])
    changes = [orjson.dumps({"spec": {"kernelParams": [f"console=ttyS{n}"]}}) for n in range(count)]
    patches = zip(names, changes, strict=True)
    figures["patch"] = await load(
        [account.request("PATCH", f"{HARDWARE}/{name}", body, MERGE) for name, body in patches]
    )
    await load([account.request("POST", WORKFLOWS, orjson.dumps(_workflow(name))) for name in names])
    status = orjson.dumps({"status": {"state": "Scheduled"}})
    figures["status"] = await load([account.request("PATCH", f"{WORKFLOWS}/{n}/status", status, MERGE) for n in names])
    figures["busy"] = (time.process_time() - used) / (time.perf_counter() - start)
    for wire in wires:
        wire.close()
    return figures


async def single(account: Account, count: int, names: list[str]) -> dict[str, float]:
    """Measure the milliseconds of one get and of one update (get, change, put), one after the other."""
    wire = await Connection.open(account)
    gets, puts = [], []
    for number, name in enumerate(islice(cycle(names), count)):
        path = f"{HARDWARE}/{name}"
        start = time.perf_counter()
        answer = await wire.must(account.request("GET", path))
        gets.append(time.perf_counter() - start)
        obj = orjson.loads(answer)
        obj["spec"]["kernelParams"] = [f"console=ttyS{number}"]
        request = account.request("PUT", path, orjson.dumps(obj))
        start = time.perf_counter()
        await wire.must(request)
        puts.append(time.perf_counter() - start)
    wire.close()
    return {"get": median(gets) * 1e3, "update": median(puts) * 1e3}


async def watched(account: Account, watchers: int, writes: int, name: str) -> dict[str, float]:
    """Measure the median milliseconds from a write until the first watcher has it, and until the last one has it."""
    writer = await Connection.open(account)
    body = await writer.must(account.request("GET", f"{HARDWARE}?limit=1"))
    version = orjson.loads(body)["metadata"]["resourceVersion"]
    arrivals: list[float] = []
    everybody = asyncio.Event()

    def on_event(data: bytes) -> None:
        if b'"kind":"Hardware"' in data:
            arrivals.append(time.perf_counter())
            if len(arrivals) == watchers:
                everybody.set()

    wires = [await Connection.open(account) for _ in range(watchers)]
    request = account.request("GET", f"{GROUP}/hardware?watch=true&resourceVersion={version}&allowWatchBookmarks=true")
    for wire in wires:
        wire.watch(request, on_event)
    await asyncio.sleep(1)
    one, last = [], []
    for number in range(writes):
        arrivals.clear()
        everybody.clear()
        change = orjson.dumps({"metadata": {"labels": {"written": f"w{number}"}}})
        patch = account.request("PATCH", f"{HARDWARE}/{name}", change, MERGE)
        start = time.perf_counter()
        await writer.must(patch)
        async with asyncio.timeout(20):
            await everybody.wait()
        one.append((median(arrivals) - start) * 1e3)
        last.append((max(arrivals) - start) * 1e3)
        await asyncio.sleep(0.02)
    for wire in (writer, *wires):
        wire.close()
    return {"one": median(one), "last": median(last)}


async def whole_list(account: Account, path: str) -> dict[str, float]:
    """Measure MB and MB/s of a list of all objects; its bytes are discarded."""

    def read() -> dict[str, float]:
        with (
            socket.create_connection((account.host, account.port)) as plain,
            account.context.wrap_socket(plain, server_hostname=account.host) as secure,
        ):
            start = time.perf_counter()
            secure.sendall(account.request("GET", path).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
            room = memoryview(bytearray(1 << 20))
            size = first = 0.0
            while received := secure.recv_into(room):
                if not size:
                    first = time.perf_counter() - start
                    if room[9:12] != b"200":
                        raise WireError(bytes(room[:500]).decode(errors="replace"))
                size += received
            seconds = time.perf_counter() - start
        return {"mb": size / 1e6, "rate": size / 1e6 / seconds, "first": first * 1e3, "seconds": seconds}

    return await asyncio.to_thread(read)


async def ready(account: Account, name: str) -> dict[str, float]:
    """Wait until an object can be read."""
    while True:
        try:
            wire = await Connection.open(account)
            await wire.must(account.request("GET", f"{HARDWARE}/{name}"))
        except (OSError, WireError):
            await asyncio.sleep(0.005)
        else:
            wire.close()
            return {"at": time.time()}


def main(arguments: dict[str, Any]) -> dict[str, float]:
    """Run the measurement that `do` names and return its figures."""
    measurements: dict[str, Callable[..., Awaitable[dict[str, float]]]] = {
        "define": define,
        "make": make,
        "rates": rates,
        "single": single,
        "watched": watched,
        "list": whole_list,
        "ready": ready,
    }

    if arguments["do"] == "fill_etcd":
        return kubernetes.fill(arguments["first"], arguments["count"])

    async def run() -> dict[str, float]:
        if arguments["do"] == "fill":
            await fill(arguments["directory"], arguments["first"], arguments["count"])
        account = Account.of(Path(arguments.pop("kubeconfig")))
        return await measurements[arguments.pop("do")](account, **arguments)

    return uvloop.run(run())


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
