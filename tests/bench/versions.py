"""Lists in v1alpha1, which the embedded API converts of v1alpha2 in its process, and how long they hold the event loop.

The peer is the same list in v1alpha2, the version that is stored: it is sent as it is. The first list converts each
object, since conversions are kept only for some thousand objects. The server runs in this process, so that each step of
its event loop can be measured; the client is another process.
"""

from __future__ import annotations

import asyncio
import base64
import sys
import time
from pathlib import Path
from typing import Any

import orjson
import yaml

from tests.api import serving
from tests.bench.bed import BenchError
from tests.bench.convert import MACHINE
from tests.bench.results import Round, Row, Sample, row, say
from tests.bench.turns import timed_steps
from tink import versions
from tink.api.crds import generate
from tink.api.v1alpha2 import Raw
from tink.api.yaml import read
from tink.kube.resources import NAMESPACE, OLD_HARDWARE, OLD_TEMPLATE, OLD_WORKFLOW, TEMPLATE, ResourceType
from tink.kubeapi.apiserver.store.object_store import ObjectStore
from tink.kubeapi.apiserver.store.objects import Key, StoredObject, Write
from tink.offload import TURN_SECONDS

OBJECTS = 10_000
ROUNDS = 3
PEER = "the same list in v1alpha2"
_TEXT = """\
# machine-00000
version: "0.1"
name: ubuntu
global_timeout: 1800
tasks:
  - name: "ubuntu"
    worker: "{{.device_1}}"
    volumes: [/dev:/dev, /dev/console:/dev/console]
    actions:
      - name: stream-image
        image: quay.io/tinkerbell/actions/image2disk:latest
        timeout: 9600
        environment:
          DEST_DISK: {{ index .Hardware.Disks 0 }}
          IMG_URL: http://10.0.0.1:8080/jammy.raw.gz
          COMPRESSED: true
      - name: write-netplan
        image: quay.io/tinkerbell/actions/writefile:latest
        timeout: 90
        environment:
          DEST_DISK: {{ formatPartition ( index .Hardware.Disks 0 ) 1 }}
          FS_TYPE: ext4
          DEST_PATH: /etc/netplan/config.yaml
          CONTENTS: |
            network:
              version: 2
              ethernets:
                id0: {match: {name: en*}, dhcp4: true}
      - name: reboot
        image: ghcr.io/jacobweinstock/waitdaemon:latest
        timeout: 90
        pid: host
        command: [reboot]
        environment: {IMAGE: alpine, WAIT_SECONDS: "10"}
        volumes: [/var/run/docker.sock:/var/run/docker.sock]
"""


def _named(kind: str, spec: Raw, api_version: str = versions.OLD) -> Raw:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": NAME}, "spec": spec}


NAME, MAC = "machine-00000", "52:54:00:00:00:00"
"""The name of the first object of each kind, and of what is named like it; its MAC address."""
_HARDWARE = next(read(MACHINE.format(number=0, mac=MAC, high=0, low=2).replace("node-0", NAME)))["spec"]
_NEW = versions.convert(_named("Template", {"data": _TEXT}), versions.NEW)["spec"]
_WORKFLOW = {"hardwareRef": NAME, "templateRef": NAME, "hardwareMap": {"device_1": MAC}}
_CASES: list[tuple[str, ResourceType, ResourceType, Raw]] = [
    ("Hardware", OLD_HARDWARE, OLD_HARDWARE, _named("Hardware", _HARDWARE)),
    ("Templates of v1alpha1", OLD_TEMPLATE, OLD_TEMPLATE, _named("Template", {"data": _TEXT})),
    (
        "Templates of v1alpha2",
        TEMPLATE,
        OLD_TEMPLATE,
        _named("Template", {**_NEW, "env": {"NAME": NAME}}, versions.NEW),
    ),
    ("Workflows", OLD_WORKFLOW, OLD_WORKFLOW, _named("Workflow", _WORKFLOW)),
]
"""Names for the table, the versions in which the objects are written and listed, and the first object."""


def run(directory: Path) -> list[Row]:
    """Measure lists of each kind, each in a namespace of its own."""
    return asyncio.run(_run(directory))


async def _run(directory: Path) -> list[Row]:
    sys.setswitchinterval(TURN_SECONDS)
    state = directory / "state"
    converters = dict.fromkeys(versions.DEFINITIONS, versions)
    async with serving(state, generate(serve_v1alpha1=True), converters=converters) as (_, client):
        for number, (_, written, _, first) in enumerate(_CASES):
            await client.create(
                NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"n{number}"}}
            )
            await client.create(written, {**first, "metadata": {"name": NAME, "namespace": f"n{number}"}})
    say(f"versions: {OBJECTS:,} objects of each kind are made")
    await _fill(state / "state.db")
    rows = []
    async with serving(state, converters=converters) as (api, _):
        lists = _Lists(api.kubeconfig, directory)
        for number, (title, _, listed, _) in enumerate(_CASES):
            rounds, steps = [], []
            for _ in range(ROUNDS):
                old, held = await lists.measure(listed.path(f"n{number}"))
                new, _ = await lists.measure(listed.path(f"n{number}").replace("v1alpha1", "v1alpha2"))
                rounds.append(Round(old, new))
                steps.append(held)
            what = f"{OBJECTS:,} {title} listed in v1alpha1"
            rows.append(row("versions", what, "s", rounds, "seconds", PEER, less_is_better=True))
            rows.append(Row("versions", f"event loop held by {what}", "ms", min(steps) * 1000, None, ""))
    return rows


async def _fill(database: Path) -> None:
    """Write the other objects of each kind into the store of a server that does not run."""
    store = ObjectStore(database, lambda _: None)
    await store.open()
    for number, (_, written, _, _) in enumerate(_CASES):
        resource, namespace = f"tinkerbell.org/{written.plural}", f"n{number}"
        first = await store.get(Key(resource, namespace, NAME))
        if first is None:
            raise BenchError(f"versions: the first object of {resource} is not there")
        for start in range(1, OBJECTS, 500):
            numbers = range(start, min(start + 500, OBJECTS))
            await asyncio.gather(*(store.write(_clone(store, resource, namespace, first, each)) for each in numbers))
    await store.close()


def _clone(store: ObjectStore, resource: str, namespace: str, first: StoredObject, number: int) -> Write:
    """Return the write of an object like the first one. A v1alpha1 text has the name in a comment."""
    version, name = store.next_version(), f"{NAME[:-5]}{number:05}"
    body = first.body.replace(NAME.encode(), name.encode())
    body = body.replace(MAC.encode(), f"{MAC[:-5]}{number >> 8:02x}:{number & 255:02x}".encode())
    obj = orjson.loads(body)
    obj["metadata"] |= {"uid": f"{namespace}-{name}", "resourceVersion": str(version)}
    return Write(Key(resource, namespace, name), version, orjson.dumps(obj), 0)


class _Lists:
    """Lists that curl requests."""

    def __init__(self, kubeconfig: Path, directory: Path) -> None:
        content: Any = yaml.safe_load(kubeconfig.read_text())
        cluster, token = content["clusters"][0]["cluster"], content["users"][0]["user"]["token"]
        authority, self._answer, self._server = directory / "ca.pem", directory / "answer", cluster["server"]
        authority.write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
        headers = ["-H", f"Authorization: Bearer {token}"]
        self._command = ["curl", "-s", "-o", str(self._answer), "--cacert", str(authority), *headers]

    async def measure(self, path: str) -> tuple[Sample, float]:
        """Return the seconds of a list, and the longest step of the event loop in seconds."""
        with timed_steps() as steps:
            process = await asyncio.create_subprocess_exec(*self._command, f"{self._server}{path}")
            await asyncio.sleep(0)
            steps.clear()  # the start of the process belongs to no request
            begun = time.monotonic()
            await process.wait()
            seconds = time.monotonic() - begun
            longest = max(steps)
        found = len(orjson.loads(self._answer.read_bytes()).get("items", ()))
        if found != OBJECTS:
            raise BenchError(f"versions: {found} objects were listed")
        return {"seconds": seconds}, longest
