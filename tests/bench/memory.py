"""Memory: the whole edge with 100,000 Hardware of two interfaces each, against Kea with the same reservations.

Ours is `tinkedge edge` as it is run: DHCP, TFTP, HTTP and the admin pages, with everything that it keeps of the
Hardware of the embedded API, which is another process. Kea keeps its reservations in memory, from its configuration
file; what else ours has of a machine (user data, OSIE, kernel parameters) Kea has no place for. Both are looked at when
they serve.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import orjson

from tests.bench.api_client import hardware
from tests.bench.bed import SERVER_IP, BenchError, Cable, Server, installed, measured, python
from tests.bench.results import Round, Row, Sample, row, say
from tink.api.v1alpha2 import Raw
from tink.apiserver.store import Key, Store, Write

OBJECTS = 100_000
API_PORT = 6443
DHCP_PORT = 67
PEER = "Kea"
_FILL_SECONDS = 120


def run(directory: Path, objects: int = OBJECTS) -> list[Row]:
    """All rows of this subject."""
    ours = _ours(directory / "ours", objects)
    peer = None
    if kea := installed("kea-dhcp4"):
        peer = _kea(kea, directory / "kea", objects)
    rounds = [Round(ours, peer)]
    what = f"edge with {objects:,} Hardware"
    note = "Kea: the same addresses and host names as reservations, from its configuration file"
    return [
        row("memory", f"{what}: resident", "MB", rounds, "resident", PEER, less_is_better=True, note=note),
        row("memory", f"{what}: most ever", "MB", rounds, "most", PEER, less_is_better=True, note=note),
        row("memory", f"{what}: start until it serves", "s", rounds, "start", PEER, less_is_better=True, note=note),
    ]


def machine(number: int) -> Raw:
    """The Hardware numbered from 0: 2.4 kB as the API gives it, with user data that no other has."""
    made = hardware(f"seed-{number}", number)
    key = base64.b64encode(hashlib.shake_128(str(number).encode()).digest(51)).decode()
    password = hashlib.sha512(str(number).encode()).hexdigest()
    instance = made["spec"]["instance"]
    instance["userdata"] = f"{instance['userdata'][:900]}- ssh-ed25519 {key}\npassword: {password}\n"
    return made


# --- ours ----------------------------------------------------------------------------------------------------------


def _ours(home: Path, objects: int) -> Sample:
    state = home / "state"
    home.mkdir()
    (home / "ipxe").mkdir()
    (home / "ipxe" / "snponly.efi").write_bytes(b"MZ" + bytes(1000))
    with ExitStack() as stack:
        cable = stack.enter_context(Cable())
        _start_api(stack, cable, state)
        kubeconfig = {"kubeconfig": str(state / "kubeconfig")}
        for step in ({"do": "define"}, {"do": "make", "names": ["seed-0"]}):
            measured(cable.neighbour(python("api_client", **step, **kubeconfig)))
    say(f"memory: {objects:,} Hardware are made")
    _fill(state, objects)
    with ExitStack() as stack:
        cable = stack.enter_context(Cable())
        _start_api(stack, cable, state)
        edge = [sys.executable, "-m", "edge.cli", "edge", "--interface", f"srv0={SERVER_IP}"]
        edge += ["--kubeconfig", str(state / "kubeconfig"), "--data-dir", str(home), "--ipxe-dir", str(home / "ipxe")]
        return _sample(lambda: cable.serve(edge, home / "edge.log", port=DHCP_PORT, protocol="udp"))


def _start_api(stack: ExitStack, cable: Cable, state: Path) -> None:
    """On the clients' core, so that it does not take the edge's time."""
    command = cable.neighbour(python("ours", server="api", directory=str(state)))
    kubeconfig = state / "kubeconfig"
    kubeconfig.unlink(missing_ok=True)
    server = Server(command, state.parent / "api.log", lambda _: kubeconfig.exists())
    stack.callback(server.stop)


def _fill(state: Path, objects: int) -> None:
    command = [sys.executable, "-m", "tests.bench.memory", json.dumps({"state": str(state), "objects": objects})]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_FILL_SECONDS, check=False)
    if done.returncode != 0:
        raise BenchError(f"memory: the store could not be filled: {done.stderr[-2000:]}")


async def _clone(state: Path, objects: int) -> None:
    """Put the Hardware into the store of a server that does not run, each made of the first as the server stored it."""
    store = Store(state / "state.db", lambda _: None)
    await store.open()
    resource = "tinkerbell.org/hardware"
    found = await store.get(Key(resource, "default", "seed-0"))
    if found is None:
        raise BenchError("memory: there is no seed-0")
    first = orjson.loads(found.body)
    managed = orjson.dumps(first["metadata"]["managedFields"]).decode()
    macs = list(first["spec"]["networkInterfaces"])

    async def write(number: int) -> None:
        made = machine(number)
        fields = managed
        for old, new in zip(macs, made["spec"]["networkInterfaces"], strict=True):
            fields = fields.replace(old, new)
        key, version = Key(resource, "default", f"seed-{number}"), store.next_version()
        metadata = first["metadata"] | {"name": key.name, "uid": str(uuid.UUID(int=number)), "managedFields": None}
        metadata |= {"resourceVersion": str(version), "managedFields": orjson.loads(fields)}
        await store.write(Write(key, version, orjson.dumps(first | {"metadata": metadata, "spec": made["spec"]}), 0))

    for start in range(1, objects, 256):
        await asyncio.gather(*map(write, range(start, min(start + 256, objects))))
    await store.close()


# --- the peer ------------------------------------------------------------------------------------------------------


def _kea(program: str, home: Path, objects: int) -> Sample:
    home.mkdir()
    reservations = []
    for number in range(objects):
        spec = machine(number)["spec"]
        for mac, interface in spec["networkInterfaces"].items():
            dhcp = interface["dhcp"]
            reservations.append({"hw-address": mac, "ip-address": dhcp["ip"], "hostname": dhcp["hostname"]})
    options = [{"name": "routers", "data": "10.255.255.254"}, {"name": "domain-name-servers", "data": "10.255.255.253"}]
    subnet = {"id": 1, "subnet": "10.0.0.0/8", "reservations": reservations, "option-data": options}
    config = {
        "interfaces-config": {"interfaces": ["srv0"], "dhcp-socket-type": "udp"},
        "lease-database": {"type": "memfile", "persist": False},
        "host-reservation-identifiers": ["hw-address"],
        "reservations-out-of-pool": True,
        "subnet4": [subnet],
    }
    path = home / "kea.json"
    path.write_text(json.dumps({"Dhcp4": config}))
    where = [f"KEA_{name}_DIR={home}" for name in ("PIDFILE", "LOCKFILE")]
    with Cable() as cable:
        command = ["env", *where, program, "-c", str(path)]
        return _sample(lambda: cable.serve(command, home / "kea.log", port=DHCP_PORT, protocol="udp"))


def _sample(start: Callable[[], Server]) -> Sample:
    begin = time.monotonic()
    server = start()
    took = time.monotonic() - begin
    time.sleep(1)  # what was only needed for starting goes
    return {"resident": server.memory("VmRSS"), "most": server.memory("VmHWM"), "start": took}


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    asyncio.run(_clone(Path(given["state"]), given["objects"]))
