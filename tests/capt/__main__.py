"""`python -m tests.capt --manager FILE`: the manager of Cluster API's provider (CAPT) against the embedded API.

FILE is the manager program of a CAPT release, such as the one in its container image. This script builds and downloads
nothing. It needs root, because the manager runs in a network namespace of its own, where only loopback exists.

The script plays everything around the manager:

- Cluster API: it creates the Cluster, the bootstrap Secrets, the Machines and the TinkerbellMachines, and deletes them.
- Tinkerbell: the real API server with its admission reviews, and the real Workflow controller, run in this process. The
  script writes the states that a server and an agent would write, and the condition that ends a Job of a BMC.

It prints how many machines were installed and released, how often a Hardware changed its owner without a release, and
the errors. It exits with 1 if a life was incomplete, or a Hardware belonged to two machines. `--record` writes the
writes to `tinkerbell.org` and `bmc.tinkerbell.org`, which `tests/unit/versions/test_capt.py` replays.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml
from aiohttp import web
from cryptography import x509

from tests.api import serving
from tests.interop.authority import Authority
from tests.interop.privileges import Upstream
from tests.waiting import until
from tink import versions
from tink.api.crds import generate, generate_bmc
from tink.api.v1alpha2 import GROUP, RUFIO_GROUP, Raw
from tink.controller.controller import WorkflowController
from tink.kube.cache import Informer
from tink.kube.client import KubeClient, NotFoundError
from tink.kube.resources import (
    HARDWARE,
    JOB,
    OLD_HARDWARE,
    OLD_WORKFLOW,
    SECRET,
    TEMPLATE,
    WORKFLOW,
    ResourceType,
)
from tink.webhooks.admission import ReviewPlugin

CORE, INFRASTRUCTURE = "cluster.x-k8s.io", "infrastructure.cluster.x-k8s.io"
CLUSTER = ResourceType(CORE, "v1beta2", "clusters", "Cluster")
MACHINE = ResourceType(CORE, "v1beta2", "machines", "Machine")
TINKERBELL_CLUSTER = ResourceType(INFRASTRUCTURE, "v1beta1", "tinkerbellclusters", "TinkerbellCluster")
TINKERBELL_MACHINE = ResourceType(INFRASTRUCTURE, "v1beta1", "tinkerbellmachines", "TinkerbellMachine")
MACHINE_TEMPLATE = ResourceType(INFRASTRUCTURE, "v1beta1", "tinkerbellmachinetemplates", "TinkerbellMachineTemplate")

NAMESPACE: Final = "default"
OWNER: Final = "v1alpha1.tinkerbell.org/ownerName"
PROVISIONED: Final = "v1alpha1.tinkerbell.org/provisioned"
FINALIZER: Final = "infrastructure.cluster.x-k8s.io/tinkerbellmachine"
PATIENCE_SECONDS: Final = 200.0
"""Limit for one step of all machines. CAPT tries again after up to 16 minutes, but a refused machine sooner."""
TEXT: Final = """version: "0.1"
name: install
global_timeout: 6000
tasks:
  - name: "install"
    worker: "{{.device_1}}"
    volumes:
      - /dev:/dev
    actions:
      - name: "stream image"
        image: quay.io/tinkerbell/actions/oci2disk
        timeout: 1200
        environment:
          IMG_URL: registry.example/ubuntu:v1.34.1
          DEST_DISK: {{ index .Hardware.Disks 0 }}
"""
"""The Template of a site. Each second machine has it; CAPT writes its built-in Template for the others."""
VARYING: Final = re.compile(
    r"\b(tm|hw)-?[\d-]+(-poweroff)?|[\da-f]{8}-[\da-f-]{27}|\d{4}-\d\d-\d\dT[\d:.]+Z?|0x[\da-f]+"
)


# --- recording --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exchange:
    """A request through the recorder, in the order of the answers. `by` is the client: `capt` or `tinkedge`."""

    by: str
    method: str
    path: str
    query: dict[str, str]
    content_type: str
    body: Any
    status: int
    message: str


@dataclass
class Recorder:
    """A proxy between one client and the API that records requests. `kubeconfig` is its file for the client.

    `in_turn` makes writes wait for each other, so that the records of all clients have the order of the store.
    """

    by: str
    upstream: Upstream
    kubeconfig: Path
    records: list[Exchange]
    in_turn: asyncio.Lock | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve on loopback, and write the kubeconfig."""
        connector = aiohttp.TCPConnector(ssl=self.upstream.trust, limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
            self._session = session
            app = web.Application(client_max_size=2**23)
            app.router.add_route("*", "/{path:.*}", self._forward)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
            await runner.setup()
            try:
                site = web.TCPSite(runner, "127.0.0.1", 0)
                await site.start()
                self.kubeconfig.write_text(yaml.safe_dump(_kubeconfig(f"http://127.0.0.1:{runner.addresses[0][1]}")))
                yield
            finally:
                await runner.cleanup()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        content = await request.read()
        waits = self.in_turn is not None and request.method != "GET"
        async with self.in_turn if waits and self.in_turn is not None else contextlib.nullcontext():
            headers = {name: request.headers[name] for name in ("Accept", "Content-Type") if name in request.headers}
            headers["Authorization"] = f"Bearer {self.upstream.token}"
            url = self.upstream.url + request.path_qs
            async with self._session.request(request.method, url, data=content, headers=headers) as answer:
                if request.query.get("watch") == "true":
                    self._record(request, content, answer.status, b"")
                    return await _stream(request, answer)
                body = await answer.read()
                self._record(request, content, answer.status, body)
                return web.Response(status=answer.status, body=body, headers=_content_type(answer))

    def _record(self, request: web.Request, content: bytes, status: int, answer: bytes) -> None:
        kind = request.headers.get("Content-Type", "")
        body = json.loads(content) if content.startswith((b"{", b"[")) else None
        message = str(json.loads(answer).get("message", "")) if status >= 400 and answer.startswith(b"{") else ""
        self.records.append(
            Exchange(self.by, request.method, request.path, dict(request.query), kind, body, status, message)
        )


def _content_type(answer: aiohttp.ClientResponse) -> dict[str, str]:
    """Return the header with its parameters: by them, client-go tells the two forms of discovery apart."""
    return {name: answer.headers[name] for name in ("Content-Type", "Warning") if name in answer.headers}


async def _stream(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, headers=_content_type(answer))
    await response.prepare(request)
    with contextlib.suppress(ConnectionError, aiohttp.ClientError):
        async for piece in answer.content.iter_any():
            await response.write(piece)
    return response


def _kubeconfig(url: str) -> Raw:
    return {
        "apiVersion": "v1", "kind": "Config", "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {}}], "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    }  # fmt: skip


# --- objects ----------------------------------------------------------------------------------------------------------


def definition(resource: ResourceType) -> Raw:
    """Return a definition without a schema, with the names of Cluster API's."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": resource.version, "served": True, "storage": True, "subresources": {"status": {}}}
    singular = resource.kind.lower()
    names = {"plural": resource.plural, "singular": singular, "kind": resource.kind, "listKind": f"{resource.kind}List"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{resource.group}"},
        "spec": {
            "group": resource.group, "scope": "Namespaced", "names": names,
            "versions": [version | {"schema": {"openAPIV3Schema": schema}}],
        },
    }  # fmt: skip


def _object(resource: ResourceType, name: str, spec: Raw, **metadata: Any) -> Raw:
    return {
        "apiVersion": resource.api_version, "kind": resource.kind,
        "metadata": {"name": name, "namespace": NAMESPACE, **metadata}, "spec": spec,
    }  # fmt: skip


def hardware(number: int) -> Raw:
    """Return a Hardware of v1alpha1 as sites of CAPT write it. Those with an odd number have a BMC."""
    mac = f"52:54:00:00:{number >> 8:02x}:{number & 255:02x}"
    ip = {"address": f"10.0.{number >> 8}.{number & 255}", "gateway": "10.0.255.254", "netmask": "255.255.0.0"}
    dhcp = {"arch": "x86_64", "hostname": f"hw-{number}", "ip": ip, "lease_time": 86400, "mac": mac, "uefi": True}
    bmc = {"apiGroup": RUFIO_GROUP, "kind": "Machine", "name": f"bmc-{number}"}
    spec = {
        "disks": [{"device": "/dev/nvme0n1"}],
        "interfaces": [{"dhcp": dhcp, "netboot": {"allowPXE": True, "allowWorkflow": True}}],
        "metadata": {"facility": {"facility_code": "lab"}, "instance": {"hostname": f"hw-{number}", "id": mac}},
    }
    return _object(
        OLD_HARDWARE, f"hw-{number}", spec | ({"bmcRef": bmc} if number % 2 else {}), labels={"type": "node"}
    )


def _owner(obj: Raw, *, controller: bool = False) -> Raw:
    metadata = obj["metadata"]
    reference = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "name": metadata["name"], "uid": metadata["uid"]}
    return reference | ({"controller": True} if controller else {})


# --- the site ---------------------------------------------------------------------------------------------------------


@dataclass
class Result:
    """The counts of a run."""

    installed: int = 0
    released: int = 0
    owners_at_once: list[str] = field(default_factory=list)
    """Hardware that went from one owner to another without a release, and Hardware of two machines."""
    faults: list[str] = field(default_factory=list)
    """Machines that differ from what they should be after a step."""


class Site:
    """The API, the Workflow controller, CAPT's manager, and the writes of the components that the script plays."""

    def __init__(self, client: KubeClient, count: int, *, own_text: bool) -> None:
        self.client = client
        self.manager: asyncio.subprocess.Process | None = None
        self.result = Result()
        self._count = count
        self._own_text = own_text
        self._owners: dict[str, str] = {}

    async def prepare(self) -> None:
        """Create the Hardware and the cluster, and wait until CAPT declares the cluster ready."""
        for number in range(self._count):
            await self.client.create(OLD_HARDWARE, hardware(number))
        endpoint = {"host": "10.0.255.1", "port": 6443}
        reference = {"apiGroup": INFRASTRUCTURE, "kind": TINKERBELL_CLUSTER.kind, "name": "c"}
        spec = {"controlPlaneEndpoint": endpoint, "infrastructureRef": reference}
        cluster = await self.client.create(CLUSTER, _object(CLUSTER, "c", spec))
        image = {
            "imageLookupFormat": "{{.BaseRegistry}}/{{.OSDistro}}:{{.KubernetesVersion}}",
            "imageLookupBaseRegistry": "registry.example", "imageLookupOSDistro": "ubuntu",
        }  # fmt: skip
        labels = {f"{CORE}/cluster-name": "c"}
        await self.client.create(
            TINKERBELL_CLUSTER,
            _object(TINKERBELL_CLUSTER, "c", image, labels=labels, ownerReferences=[_owner(cluster, controller=True)]),
        )

        async def is_ready() -> Any:
            self._check_manager()
            found = await self.client.get(TINKERBELL_CLUSTER, "c", NAMESPACE)
            return bool(found.get("status", {}).get("ready"))

        await until(is_ready, "TinkerbellCluster c is not ready", within=PATIENCE_SECONDS, every=0.1)

    async def life(self, life: int) -> None:
        """Create all machines at once, wait until they are installed, delete them, and wait until all are released."""
        names = [f"tm-{life}-{number}" for number in range(self._count)]
        await asyncio.gather(*(self._create_machine(name, number) for number, name in enumerate(names)))
        await self._until("not ready", lambda machine: bool(machine.get("status", {}).get("ready")), self._install)
        await self._check_installed(names)
        await asyncio.gather(*(self.client.delete(TINKERBELL_MACHINE, name, NAMESPACE) for name in names))
        await self._until("not deleted", lambda _: False, self._power_off)
        await self._check_released(names)

    def owner_changed(self, new: Raw, old: Raw | None) -> None:
        """Note an owner that replaces another one. An event handler of the informer of Hardware."""
        metadata = new["metadata"]
        owner, before = metadata.get("labels", {}).get(OWNER, ""), self._owners.get(metadata["name"], "")
        if owner and before and owner != before:
            self.result.owners_at_once.append(f"{metadata['name']}: {before}, then {owner}")
        self._owners[metadata["name"]] = owner

    async def _create_machine(self, name: str, number: int) -> None:
        value = base64.b64encode(_bootstrap(name).encode()).decode()
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"{name}-bootstrap"}}
        await self.client.create(SECRET, secret | {"data": {"value": value}}, NAMESPACE)
        reference = {"apiGroup": INFRASTRUCTURE, "kind": TINKERBELL_MACHINE.kind, "name": name}
        bootstrap = {"dataSecretName": f"{name}-bootstrap"}
        spec = {"clusterName": "c", "version": "v1.34.1", "bootstrap": bootstrap, "infrastructureRef": reference}
        labels = {f"{CORE}/cluster-name": "c"}
        machine = await self.client.create(MACHINE, _object(MACHINE, name, spec, labels=labels))
        affinity = {"required": [{"labelSelector": {"matchLabels": {"type": "node"}}}]}
        wanted: Raw = {"hardwareAffinity": affinity, "bootOptions": {"bootMode": "netboot"}}
        if self._own_text or number % 2:
            wanted["templateOverride"] = TEXT
        references = [_owner(machine, controller=True)]
        await self.client.create(
            TINKERBELL_MACHINE,
            _object(TINKERBELL_MACHINE, name, wanted, labels=labels, ownerReferences=references),
        )

    async def _until(self, state: str, is_done: Callable[[Raw], bool], play: Callable[[], Any]) -> None:
        waiting: list[str] = []

        async def all_are_done() -> Any:
            self._check_manager()
            await play()
            machines = (await self.client.list(TINKERBELL_MACHINE, NAMESPACE))["items"]
            waiting[:] = [machine["metadata"]["name"] for machine in machines if not is_done(machine)]
            return not waiting

        await until(all_are_done, lambda: f"{state}: {', '.join(waiting)}", within=PATIENCE_SECONDS, every=0.1)

    def _check_manager(self) -> None:
        assert self.manager is None or self.manager.returncode is None, "the manager ended: see its log"

    async def _install(self) -> None:
        """Write what the server and the agent would write: each prepared Workflow takes one step."""
        steps = {"Pending": "Scheduled", "Scheduled": "Running", "Running": "Succeeded"}
        for workflow in (await self.client.list(WORKFLOW, NAMESPACE))["items"]:
            status = workflow.get("status", {})
            state = status.get("state")
            if state not in steps or "actions" not in status:  # without actions, the controller has not prepared it
                continue
            after = {"Scheduled": "Pending"}.get(steps[state], steps[state])
            actions = [{**action, "state": after} for action in status["actions"]]
            moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            written = {"state": steps[state], "actions": actions, "lastTransitioned": moment}
            name = workflow["metadata"]["name"]
            await self.client.patch(WORKFLOW, name, NAMESPACE, {"status": written}, subresource="status")

    async def _power_off(self) -> None:
        """Write what BMC control would write: each Job completes."""
        for job in (await self.client.list(JOB, NAMESPACE))["items"]:
            if not job.get("status", {}).get("conditions"):
                status = {"conditions": [{"type": "Completed", "status": "True"}]}
                await self.client.patch(
                    JOB, job["metadata"]["name"], NAMESPACE, {"status": status}, subresource="status"
                )

    async def _check_installed(self, names: Sequence[str]) -> None:
        listed = {each["metadata"]["name"]: each for each in (await self.client.list(OLD_HARDWARE, NAMESPACE))["items"]}
        today = {each["metadata"]["name"]: each for each in (await self.client.list(HARDWARE, NAMESPACE))["items"]}
        chosen: dict[str, str] = {}
        for name in names:
            machine = await self.client.get(TINKERBELL_MACHINE, name, NAMESPACE)
            place = machine["spec"]["hardwareName"]
            if place in chosen:
                self.result.owners_at_once.append(f"{place}: {chosen[place]} and {name} at the end")
            chosen[place] = name
            found, metadata = listed[place], listed[place]["metadata"]
            data = _bootstrap(name).replace("PROVIDER_ID", f"tinkerbell://{NAMESPACE}/{place}")
            workflow = await self.client.get(OLD_WORKFLOW, name, NAMESPACE)
            wanted = hardware(int(place.removeprefix("hw-")))["spec"] | {"userData": data}
            held = {
                "spec": _without_defaults(found["spec"]) == wanted,
                "userdata in v1alpha2": today[place]["spec"].get("instance", {}).get("userdata") == data,
                "owner": metadata["labels"].get(OWNER) == name,
                "finalizer": FINALIZER in metadata.get("finalizers", []),
                "provisioned": metadata.get("annotations", {}).get(PROVISIONED) == "true",
                "state": workflow["status"]["state"] == "SUCCESS",
                "rendering": workflow["status"].get("templateRendering") == "successful",
            }
            wrong = [part for part, holds in held.items() if not holds]
            self.result.faults += [f"{name} on {place}: {part}" for part in wrong]
            self.result.installed += not wrong

    async def _check_released(self, names: Sequence[str]) -> None:
        left = [
            f"{resource.kind} {name}"
            for resource in (TEMPLATE, WORKFLOW)
            for name in names
            if await self._is_there(resource, name)
        ]
        self.result.faults += [f"not deleted: {each}" for each in left]
        for found in (await self.client.list(OLD_HARDWARE, NAMESPACE))["items"]:
            metadata, name = found["metadata"], found["metadata"]["name"]
            spec = {key: value for key, value in _without_defaults(found["spec"]).items() if key != "userData"}
            held = {
                "spec": spec == hardware(int(name.removeprefix("hw-")))["spec"],
                "labels": metadata["labels"] == {"type": "node"},
                "provisioned": PROVISIONED not in metadata.get("annotations", {}),
                "finalizer": FINALIZER not in metadata.get("finalizers", []),
            }
            wrong = [part for part, holds in held.items() if not holds]
            self.result.faults += [f"{name} released: {part}" for part in wrong]
            self.result.released += not wrong

    async def failed_workflows(self) -> list[str]:
        """Return the status of each failed Workflow."""
        listed = (await self.client.list(WORKFLOW, NAMESPACE))["items"]
        return [
            f"{each['metadata']['name']}: {json.dumps(each['status'])[:1500]}"
            for each in listed
            if each.get("status", {}).get("state") == "Failed"
        ]

    async def _is_there(self, resource: ResourceType, name: str) -> bool:
        try:
            await self.client.get(resource, name, NAMESPACE)
        except NotFoundError:
            return False
        return True


def _bootstrap(name: str) -> str:
    return f"#cloud-config\nwrite_files: [{{path: /run/{name}, content: PROVIDER_ID}}]\nruncmd: [kubeadm join]\n"


def _without_defaults(spec: Raw) -> Raw:
    """Return a v1alpha1 Hardware's spec without `disableDhcp: false`, the default of its definition."""
    interfaces = [
        {key: value for key, value in each.items() if (key, value) != ("disableDhcp", False)}
        for each in spec["interfaces"]
    ]
    return spec | {"interfaces": interfaces}


# --- a run ------------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def running_manager(
    program: Path, kubeconfig: Path, directory: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the manager. Its log is the file `manager.log` of the directory."""
    certificates = directory / "k8s-webhook-server" / "serving-certs"
    certificates.mkdir(parents=True)
    chain, key = Authority(directory).sign("webhook", x509.DNSName("localhost"))
    shutil.copy(chain, certificates / "tls.crt")
    shutil.copy(key, certificates / "tls.key")
    # Each flag of the manager is also a variable of the environment, so it gets no other variables than these.
    environment = {"KUBECONFIG": str(kubeconfig), "TMPDIR": str(directory), "HOME": str(directory)}
    flags = ["--metrics-bind-addr=127.0.0.1:0", "--health-addr=127.0.0.1:0"]
    with (directory / "manager.log").open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            str(program), *flags, env=environment, stdout=output, stderr=output, cwd=directory
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def run(options: argparse.Namespace, directory: Path) -> tuple[Result, list[Exchange], str]:
    """Run all lives. Returns the counts, the requests, and the manager's log."""
    records: list[Exchange] = []
    in_turn = asyncio.Lock() if options.record else None
    async with contextlib.AsyncExitStack() as exits:

        async def find(key: str, namespace: str, name: str) -> Raw | None:
            return await api.find(key, namespace, name)

        cluster_api = (CLUSTER, MACHINE, TINKERBELL_CLUSTER, TINKERBELL_MACHINE, MACHINE_TEMPLATE)
        api, _ = await exits.enter_async_context(
            serving(
                directory / "api",
                [*generate(serve_v1alpha1=True), *generate_bmc(), *map(definition, cluster_api)],
                None if options.without_review else ReviewPlugin(find),
                converters=dict.fromkeys(versions.DEFINITIONS, versions),
            )
        )
        upstream = Upstream.read(api.kubeconfig)
        recorders = [
            Recorder(by, upstream, directory / f"kubeconfig-{by}", records, in_turn) for by in ("capt", "tinkedge")
        ]
        for recorder in recorders:
            await exits.enter_async_context(recorder.running())
        client = await exits.enter_async_context(await KubeClient.connect(recorders[1].kubeconfig))
        site = Site(client, options.machines, own_text=bool(options.record))
        await _start_controller(client, site, exits)
        site.manager = await exits.enter_async_context(
            running_manager(options.manager.resolve(), recorders[0].kubeconfig, directory)
        )
        try:
            await site.prepare()
            for life in range(options.lives):
                began = time.monotonic()
                await site.life(life)
                print(f"life {life + 1}: {options.machines} machines in {time.monotonic() - began:.1f} s", flush=True)
        except AssertionError as error:
            site.result.faults.append(str(error))
            site.result.faults += await site.failed_workflows()
        return site.result, records, (directory / "manager.log").read_text()


async def _start_controller(client: KubeClient, site: Site, exits: contextlib.AsyncExitStack) -> None:
    informers = {resource: Informer(client, resource) for resource in (WORKFLOW, HARDWARE, TEMPLATE)}
    informers[HARDWARE].add_event_handler(site.owner_changed)
    controller = WorkflowController(
        client, workflows=informers[WORKFLOW], hardware=informers[HARDWARE], templates=informers[TEMPLATE]
    )
    work = [*(informer.run() for informer in informers.values()), controller.run()]
    tasks = [asyncio.create_task(each) for each in work]

    async def stop() -> None:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    exits.push_async_callback(stop)


def is_ours(exchange: Exchange) -> bool:
    """Return True for a request to one of the groups that this project serves."""
    return exchange.path.startswith((f"/apis/{GROUP}/", f"/apis/{RUFIO_GROUP}/"))


def recorded(exchange: Exchange) -> Raw:
    """Return a write as the recording has it: without empty fields, and without the version it was decided from."""
    body = exchange.body
    if exchange.method == "PATCH":
        metadata = {key: value for key, value in body.get("metadata", {}).items() if key != "resourceVersion"}
        body = {key: value for key, value in {**body, "metadata": metadata}.items() if key != "metadata" or value}
    return {key: value for key, value in {**asdict(exchange), "body": body}.items() if value}


def report(result: Result, records: Sequence[Exchange], log: str, options: argparse.Namespace) -> None:
    """Print the counts."""
    total = options.machines * options.lives
    sent = Counter(each.by for each in records)
    print(f"installed {result.installed} of {total}, released {result.released} of {total}")
    print(f"Hardware with two owners: {len(result.owners_at_once)}")
    for line in [*result.owners_at_once[:5], *result.faults[:20]]:
        print(f"  {line}")
    ours = [each for each in records if each.by == "capt" and is_ours(each)]
    print(f"requests of CAPT: {sent['capt']}, {len(ours)} of them to our groups; answers with an error:")
    answers = Counter((each.method, _shape(each.path), each.status, _shape(each.message)) for each in ours)
    for (method, path, status, message), number in sorted(answers.items()):
        if status >= 400:
            print(f"  {number} {method} {path} {status} {message}")
    print("errors in the manager's log:")
    for text, number in Counter(_error(line) for line in log.splitlines() if _error(line)).most_common():
        print(f"  {number} {text}")


def _shape(text: str) -> str:
    return VARYING.sub("*", text)


def _error(line: str) -> str:
    if line.startswith(("panic", "E")):
        return _shape(line)[:300]
    with contextlib.suppress(ValueError):
        entry = json.loads(line)
        if entry.get("level") == "error":
            return _shape(f"{entry.get('message')}: {entry.get('error')}")[:300]
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.capt", description=__doc__)
    parser.add_argument("--manager", type=Path, required=True, help="the manager program of a CAPT release")
    parser.add_argument("--machines", type=int, default=3, help="machines that are created at once")
    parser.add_argument("--lives", type=int, default=1, help="how often all machines are created and deleted")
    parser.add_argument("--without-review", action="store_true", help="without admission reviews: CAPT alone")
    parser.add_argument("--record", type=Path, help="write the requests to this file; writes then take turns")
    parser.add_argument("--log", type=Path, help="write the manager's log to this file")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.inside:
        # The manager's webhooks listen on all addresses; in the namespace that is loopback alone.
        command = ["unshare", "--net", sys.executable, "-m", "tests.capt", *sys.argv[1:], "--inside"]
        os.execvp(command[0], command)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with tempfile.TemporaryDirectory(prefix="capt-") as directory:
        result, records, log = asyncio.run(run(options, Path(directory)))
    report(result, records, log, options)
    if options.log:
        options.log.write_text(log)
    if options.record:
        lines = (json.dumps(recorded(each)) for each in records if is_ours(each) and each.method != "GET")
        options.record.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    total = options.machines * options.lives
    complete = (result.installed, result.released) == (total, total)
    return 0 if complete and not result.owners_at_once and not result.faults else 1


if __name__ == "__main__":
    sys.exit(main())
