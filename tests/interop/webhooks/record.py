"""Record how a real kube-apiserver processes our admission webhooks' answers.

    python -m tests.record webhooks

serves the webhooks on loopback, lets a kube-apiserver call them, plays the scenario below and writes `answers.json`
beside this file. The tests play the same scenario against the embedded API.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp

from tests import recordings
from tests.interop.resources.record import install
from tests.peer import Peer
from tink.api.v1alpha2 import Raw
from tink.kube.cache import Informer
from tink.kube.client import KubeClient
from tink.kube.resources import HARDWARE, OSIE, TEMPLATE, WORKFLOW
from tink.webhooks.admission import Admission
from tink.webhooks.server import Webhooks

BASE = "/apis/tinkerbell.org/v1alpha2/namespaces"
MERGE = "application/merge-patch+json"
Step = tuple[str, str, str, Any]
"""Name of the step, HTTP method, path and body."""


def mac(number: int) -> str:
    return f"52:54:00:00:00:{number:02x}"


def obj(kind: str, name: str, **spec: Any) -> Raw:
    return {"apiVersion": "tinkerbell.org/v1alpha2", "kind": kind, "metadata": {"name": name}, "spec": spec}


def hardware(name: str, *interfaces: tuple[int, str], **spec: Any) -> Raw:
    nics = {mac(number): {"dhcp": {"ip": ip}} if ip else {} for number, ip in interfaces}
    return obj("Hardware", name, networkInterfaces=nics, **spec)


def template(name: str, image: str) -> Raw:
    return obj("Template", name, actions=[{"name": "a", "image": image, "env": {"A": "{{ .Params.a }}"}}])


def workflow(name: str, machine: str, steps: str) -> Raw:
    return obj("Workflow", name, hardwareRef={"name": machine}, templateRef={"name": steps})


def osie(name: str) -> Raw:
    return obj("OSIE", name, kernelUrl="http://h/k", initrdUrl="http://h/i")


def addressed(number: int, ip: str) -> Raw:
    return {"spec": {"networkInterfaces": {mac(number): {"dhcp": {"ip": ip}}}}}


OURS = f"{BASE}/default"
HW, OSIES, TEMPLATES, WORKFLOWS = f"{OURS}/hardware", f"{OURS}/osies", f"{OURS}/templates", f"{OURS}/workflows"
OTHER = f"{BASE}/other/hardware"
NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}}
BOTH = {"ipxe": {"inline": "x", "url": "http://h/x"}, "osie": {"name": "o"}}
SCENARIO: list[Step] = [
    ("a namespace to be in", "POST", "/api/v1/namespaces", NAMESPACE),
    ("a first machine", "POST", HW, hardware("a", (1, "10.0.0.1"))),
    ("a MAC address that another has", "POST", HW, hardware("b", (1, "10.0.0.2"))),
    ("an IP address that another has", "POST", HW, hardware("b", (2, "10.0.0.1"))),
    ("both, in another namespace", "POST", OTHER, hardware("a", (1, "10.0.0.1"))),
    ("a dry run claims nothing", "POST", f"{HW}?dryRun=All", hardware("dry", (9, "10.0.0.9"))),
    ("so another can have it", "POST", HW, hardware("b", (9, "10.0.0.9"))),
    ("a machine does not conflict with itself", "PATCH", f"{HW}/a", {"metadata": {"labels": {"rack": "1"}}}),
    ("taking an address by an update", "PATCH", f"{HW}/b", addressed(9, "10.0.0.1")),
    ("letting go of an address", "PATCH", f"{HW}/a", addressed(1, "10.0.0.5")),
    ("it is free at once", "PATCH", f"{HW}/b", addressed(9, "10.0.0.1")),
    ("letting go by deletion", "DELETE", f"{HW}/b", None),
    ("it is free at once, too", "POST", OTHER, hardware("c", (9, "10.0.0.1"))),
    ("both kinds of iPXE override", "POST", HW, hardware("d", (4, ""), **BOTH)),
    ("an OSIE", "POST", OSIES, osie("o")),
    ("another OSIE", "POST", OSIES, osie("unused")),
    ("deleting an OSIE that a machine netboots", "DELETE", f"{OSIES}/o", None),
    ("deleting an OSIE that nobody netboots", "DELETE", f"{OSIES}/unused", None),
    ("a template", "POST", TEMPLATES, template("t", "{{ .Params.image }}")),
    ("a template that does not parse", "POST", TEMPLATES, template("u", "x\n{{ if }}")),
    ("a function that does not exist", "PATCH", f"{TEMPLATES}/t", {"spec": {"env": {"B": "{{ nosuch 1 }}"}}}),
    ("a Workflow before its parts", "POST", WORKFLOWS, workflow("early", "nobody", "nothing")),
    ("a Workflow", "POST", WORKFLOWS, workflow("w", "a", "t")),
    ("deleting a Template that a Workflow needs", "DELETE", f"{TEMPLATES}/t", None),
    ("deleting a machine that a Workflow needs", "DELETE", f"{HW}/a", None),
]  # fmt: skip


async def play(session: aiohttp.ClientSession, server: str, headers: dict[str, str]) -> list[Raw]:
    """Return the API's answer to each step: code, the Status of a refusal, warnings."""
    answers = []
    for shows, method, path, body in SCENARIO:
        content = MERGE if method == "PATCH" else "application/json"
        data = None if body is None else json.dumps(body)
        # Deletions are warned about from what the informers know, which is a moment behind.
        await asyncio.sleep(0.25 if method == "DELETE" else 0)
        async with session.request(
            method, server + path, data=data, headers={**headers, "Content-Type": content}
        ) as got:
            status = await got.json()
            answer: Raw = {"shows": shows, "code": got.status, "warnings": got.headers.getall("Warning", [])}
        if answer["code"] >= 400:
            answer["status"] = {key: status.get(key) for key in ("reason", "message", "details")}
        answers.append(answer)
    return answers


async def serve(client: KubeClient) -> tuple[Webhooks, list[asyncio.Task[None]]]:
    """Serve the webhooks with their own informers; the caller stops and cancels."""
    informers = {resource: Informer(client, resource) for resource in (HARDWARE, OSIE, TEMPLATE, WORKFLOW)}
    admission = Admission(client, informers)
    webhooks = Webhooks(client, [admission])
    tasks = [asyncio.create_task(informer.run()) for informer in informers.values()]
    await webhooks.start()
    return webhooks, tasks


def record(kubeconfig: Path) -> None:
    install(Peer(kubeconfig))
    asyncio.run(_record(kubeconfig))


async def _record(kubeconfig: Path) -> None:
    client = await KubeClient.connect(kubeconfig)
    webhooks, tasks = await serve(client)
    await asyncio.sleep(1)  # a kube-apiserver hears of new webhooks by a watch of its own
    headers = dict(await client._authorize())
    try:
        answers = await play(client._session, client.url, headers)
        version = await client._call("GET", "/version")
    finally:
        await webhooks.stop()
        for task in tasks:
            task.cancel()
        await client.close()
    recorded = {"server": version["gitVersion"], "answers": answers}
    Path(__file__).with_name("answers.json").write_text(recordings.layout(recorded) + "\n")
