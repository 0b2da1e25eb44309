"""Benchmark: the longest step of the event loop, in processor time, during a tenant's request.

DHCP waits at most that long.

An API server with its reviews runs in this process, and each step of the event loop is measured while it serves a
request of the worst kind. A client in another process sends the request.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import sys
import time
from asyncio import events
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import yaml

from tests.api import serving
from tests.bench.results import Row
from tink.api.crds import generate
from tink.api.v1alpha2 import API_VERSION, Raw
from tink.offload import TURN_SECONDS
from tink.template_process import TemplateProcess
from tink.webhooks.admission import ReviewPlugin

BOUND_MS = 5.0
JSON, YAML, APPLY = "application/json", "application/yaml", "application/apply-patch+yaml"
SMALL, LARGE = 31_000, 3_000_000
_Case = tuple[str, str, str, str, bytes]
"""Description, method, path, media type and body."""


def _object(kind: str, name: str, spec: Raw, **metadata: Any) -> Raw:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


def _template(name: str, *args: str, **metadata: Any) -> Raw:
    return _object("Template", name, {"actions": [{"name": "a", "image": "i", "args": [*args]}]}, **metadata)


def _hardware(name: str, first: int, count: int, userdata: str = "") -> Raw:
    macs = (f"52:54:00:{first:02x}:{each >> 8:02x}:{each & 255:02x}" for each in range(count))
    return _object(
        "Hardware", name, {"networkInterfaces": {mac: {} for mac in macs}, "instance": {"userdata": userdata}}
    )


def _cases() -> Iterator[_Case]:
    dumps, post = orjson.dumps, "POST"
    yield "Template of 6,000 actions", post, "templates", JSON, dumps(_template("a", "{{.}}" * (SMALL // 5)))
    yield "Template, many arguments", post, "templates", JSON, dumps(_template("b", *["x"] * (SMALL // 4)))
    labels = {f"l{number}": "" for number in range(SMALL // 12)}
    yield "labels", post, "templates", JSON, dumps(_template("c", "x", labels=labels))
    yield "many cards", post, "hardware", JSON, dumps(_hardware("d", 1, SMALL // 23))
    yield (
        "user-data",
        post,
        "hardware",
        JSON,
        dumps(_hardware("e", 2, 1, "#cloud-config\n[" + "a," * (SMALL // 2) + "]")),
    )
    args = b"x," * (SMALL // 2)
    head = b"{apiVersion: %s, kind: Template, metadata: {name: f}, spec: {actions: [{name: a, image: i, args: ["
    yield "YAML in flow style", post, "templates", YAML, head % API_VERSION.encode() + args + b"x]}]}}"
    yield "applied cards", "PATCH", "hardware/g?fieldManager=m", APPLY, dumps(_hardware("g", 3, SMALL // 23))
    yield "a million lists", post, "templates", JSON, b'{"a": [' + b"[]," * (LARGE // 3) + b"0]}"
    yield "3 MB of text", post, "hardware", JSON, dumps(_hardware("h", 4, 1, "x," * (LARGE // 2)))


def run(directory: Path) -> list[Row]:
    """Measure each kind of request three times, and take the least of the longest steps."""
    return asyncio.run(_run(directory))


async def _run(directory: Path) -> list[Row]:
    sys.setswitchinterval(TURN_SECONDS)
    templates = TemplateProcess()

    async def find(key: str, namespace: str, name: str) -> Raw | None:
        return await api.find(key, namespace, name)

    rows = []
    plugin = ReviewPlugin(find, parse=templates.parse)
    async with serving(directory / "state", generate(), plugin) as (api, _):
        for what, method, path, media, body in _cases():
            held = [await _longest_step(api.kubeconfig, directory, method, path, media, body) for _ in range(3)]
            note = f"bound: {BOUND_MS:g} ms; {len(body)} bytes"
            rows.append(Row("turns", f"event loop held by {what}", "ms", min(held), None, "", note=note))
    templates.close()
    return rows


async def _longest_step(kubeconfig: Path, directory: Path, method: str, path: str, media: str, body: bytes) -> float:
    content = yaml.safe_load(kubeconfig.read_text())
    cluster, token = content["clusters"][0]["cluster"], content["users"][0]["user"]["token"]
    authority, file = directory / "ca.pem", directory / "body"
    authority.write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    file.write_bytes(body)
    url = f"{cluster['server']}/apis/tinkerbell.org/v1alpha2/namespaces/default/{path}"
    headers = ["-H", f"Authorization: Bearer {token}", "-H", f"Content-Type: {media}", "-H", "Expect:"]
    command = ["curl", "-s", "-o", str(directory / "answer"), "--cacert", str(authority), *headers, "-X", method]
    with timed_steps() as steps:
        process = await asyncio.create_subprocess_exec(*command, "--data-binary", f"@{file}", url)
        await asyncio.sleep(0)
        steps.clear()  # the start of the process belongs to no request
        await process.wait()
    return max(steps) * 1000


@contextlib.contextmanager
def timed_steps() -> Iterator[list[float]]:
    """Return a list that receives the processor time of each step of the event loop, in seconds."""
    steps: list[float] = []
    original = events.Handle._run

    def timed(handle: events.Handle) -> None:
        begun = time.thread_time()
        original(handle)
        steps.append(time.thread_time() - begun)

    events.Handle._run = timed  # type: ignore[method-assign]
    try:
        yield steps
    finally:
        events.Handle._run = original  # type: ignore[method-assign]
