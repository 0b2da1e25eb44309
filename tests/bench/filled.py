"""Fill a store while no server has it open, with clones of an object that a server has stored.

Run as `python -m tests.bench.filled JSON`; the JSON has the state, the `kind` of CLONES, and the number.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import orjson

from tests.bench.api_client import hardware
from tests.bench.bed import BenchError, python
from tink.api.v1alpha2 import Raw
from tink.kubeapi.apiserver.store.object_store import ObjectStore
from tink.kubeapi.apiserver.store.objects import Key, Write

MACHINES = 1000
"""The machines of the ended Workflows."""
_FILL_SECONDS = 240
_AT_ONCE = 256


def machine(number: int) -> Raw:
    """Return the Hardware numbered from 0: 2.4 kB in the API, with user data of its own."""
    hardware_object = hardware(f"seed-{number}", number)
    key = base64.b64encode(hashlib.shake_128(str(number).encode()).digest(51)).decode()
    password = hashlib.sha512(str(number).encode()).hexdigest()
    instance = hardware_object["spec"]["instance"]
    instance["userdata"] = f"{instance['userdata'][:900]}- ssh-ed25519 {key}\npassword: {password}\n"
    return hardware_object


def fill(state: Path, kind: str, objects: int) -> None:
    """Clone the existing first object of a kind until there are `objects`. Raises BenchError."""
    command = python("filled", state=str(state), kind=kind, objects=objects)
    done = subprocess.run(command, capture_output=True, text=True, timeout=_FILL_SECONDS, check=False)
    if done.returncode != 0:
        raise BenchError(f"the store could not be filled: {done.stderr[-2000:]}")


def _hardware(first: Raw, number: int) -> Raw:
    hardware_object = machine(number)
    fields = orjson.dumps(first["metadata"]["managedFields"]).decode()
    for old, new in zip(first["spec"]["networkInterfaces"], hardware_object["spec"]["networkInterfaces"], strict=True):
        fields = fields.replace(old, new)
    labels = hardware_object["metadata"]["labels"]
    metadata = first["metadata"] | {"name": f"seed-{number}", "labels": labels, "managedFields": orjson.loads(fields)}
    return first | {"metadata": metadata, "spec": hardware_object["spec"]}


def _ended(first: Raw, number: int) -> Raw:
    """Return an ended Workflow of the next machine."""
    metadata = first["metadata"] | {"name": f"install-{number}", "finalizers": []}
    reference = {"name": f"seed-{number % MACHINES}"}
    return first | {"metadata": metadata, "spec": first["spec"] | {"hardwareRef": reference}}


CLONES: dict[str, tuple[str, str, Callable[[Raw, int], Raw]]] = {
    "hardware": ("tinkerbell.org/hardware", "seed-0", _hardware),
    "ended": ("tinkerbell.org/workflows", "batch-0-0", _ended),
}
"""By kind of clone: the resource, the name of the first object, and the function that makes the clone of a number."""


async def _clone(state: Path, kind: str, objects: int) -> None:
    resource, first, make = CLONES[kind]
    store = ObjectStore(state / "state.db", lambda _: None)
    await store.open()
    stored = await store.get(Key(resource, "default", first))
    if stored is None:
        raise BenchError(f"there is no {first}")
    template = orjson.loads(stored.body)

    async def write(number: int) -> None:
        obj, version = make(template, number), store.next_version()
        obj["metadata"] |= {
            "uid": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{kind} {number}")),
            "resourceVersion": str(version),
        }
        key = Key(resource, "default", obj["metadata"]["name"])
        await store.write(Write(key, version, orjson.dumps(obj), 0))

    for start in range(1, objects, _AT_ONCE):
        await asyncio.gather(*map(write, range(start, min(start + _AT_ONCE, objects))))
    await store.close()


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    asyncio.run(_clone(Path(given["state"]), given["kind"], given["objects"]))
