"""Record how a real kube-apiserver serves v1alpha1 with our conversion webhook and our reviews.

    python -m tests.record v1alpha1

serves the webhooks on loopback, lets a kube-apiserver call them, plays the requests of Cluster API's provider (CAPT)
and of others, and writes `v1alpha1.json` beside this file. The tests play the same against the embedded API.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import aiohttp

from tests import recordings
from tests.interop.resources.record import install
from tests.peer import Peer
from tests.ports import free_port
from tests.support import objects
from tests.unit.versions.test_served import FINALIZER, MAC, MACHINE_LABELS, OWNER, REFERENCE, TEXT, machine
from tests.waiting import until
from tink.api.annotations import MAX_ANNOTATIONS_BYTES
from tink.api.v1alpha2 import Raw
from tink.kube.cache import Informer
from tink.kube.client import ApiError, KubeClient
from tink.kube.manifests import LAST_APPLIED
from tink.kube.resources import (
    CRD,
    HARDWARE,
    OLD_HARDWARE,
    OLD_TEMPLATE,
    OLD_WORKFLOW,
    OSIE,
    TEMPLATE,
    WORKFLOW,
)
from tink.versions import DEFINITIONS
from tink.webhooks.admission import Admission
from tink.webhooks.conversion import served_v1alpha1
from tink.webhooks.registration import CONFIGURATION, Address, configuration
from tink.webhooks.server import Hook, Webhooks

MACHINES: Final = 600
"""The number of Hardware in the list."""
OLD, NEW = (f"/apis/tinkerbell.org/{version}/namespaces/default" for version in ("v1alpha1", "v1alpha2"))
HW, TEMPLATES, WORKFLOWS = (f"{OLD}/{plural}" for plural in ("hardware", "templates", "workflows"))
MERGE, APPLY = "application/merge-patch+json", "application/apply-patch+yaml"
USER_DATA = "#cloud-config\nruncmd: [kubeadm join]\n"
Step = tuple[str, str, str, Any]
"""A title, an HTTP method (APPLY: a server-side apply), a path and a body."""


def _old(kind: str, spec: Raw) -> Raw:
    metadata = {"name": "tm1", "namespace": "default", "labels": MACHINE_LABELS, "ownerReferences": [REFERENCE]}
    return {"apiVersion": "tinkerbell.org/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


_WORKFLOW: Final = {
    "bootOptions": {"bootMode": "netboot", "toggleAllowNetboot": True},
    "hardwareMap": {"device_1": MAC},
    "hardwareRef": "hw1",
    "templateRef": "tm1",
}
_RUNNING: Final = {"status": {"state": "Running", "lastTransitioned": "2026-12-01T04:00:00Z"}}
_INVENTORY: Final = {"outOfBand": {"product": {"vendor": "HPE", "serialNumber": "C1"}}}
_REPORT: Final = {"apiVersion": "tinkerbell.org/v1alpha1", "kind": "Hardware", "metadata": {"name": "hw1"}}
_PROVISIONED: Final = {"v1alpha1.tinkerbell.org/provisioned": "true"}
_RELEASED: Final = {
    "annotations": dict.fromkeys(_PROVISIONED),
    "labels": dict.fromkeys(OWNER),
    "finalizers": None,
}
_RANDOM: Final = base64.b64encode(Random(1).randbytes(120 << 10)).decode()
"""A text of 160 KiB that no compression makes shorter."""
_LARGE: Final = _old("Template", {"data": f"#{_RANDOM}\n{TEXT}"})
_LARGE["metadata"] = {"name": "large", "namespace": "default"}
_LARGE["metadata"]["annotations"] = {LAST_APPLIED: json.dumps(_LARGE)}
_OTHER_OWNER: Final = OWNER | {"v1alpha1.tinkerbell.org/ownerName": "tm2"}
SCENARIO: list[Step] = [
    ("a machine of v1alpha1", "POST", HW, machine()),
    ("is one of v1alpha2", "GET", f"{NEW}/hardware/hw1", None),
    ("CAPT takes it", "PATCH", f"{HW}/hw1", {"metadata": {"finalizers": [FINALIZER], "labels": OWNER}}),
    ("no other machine takes it", "PATCH", f"{HW}/hw1", {"metadata": {"labels": _OTHER_OWNER}}),
    ("and gives it user-data", "PATCH", f"{HW}/hw1", {"spec": {"userData": USER_DATA}}),
    ("which v1alpha2 has, too", "GET", f"{NEW}/hardware/hw1", None),
    ("CAPT's Template", "POST", TEMPLATES, _old("Template", {"data": TEXT})),
    ("with actions in v1alpha2", "GET", f"{NEW}/templates/tm1", None),
    ("CAPT's Workflow", "POST", WORKFLOWS, _old("Workflow", _WORKFLOW)),
    ("in v1alpha2", "GET", f"{NEW}/workflows/tm1", None),
    ("the controller reports that it runs", "PATCH", f"{NEW}/workflows/tm1/status", _RUNNING),
    ("which CAPT reads", "GET", f"{WORKFLOWS}/tm1", None),
    ("the edge reports a state", "PATCH", f"{NEW}/hardware/hw1/status", {"status": {"state": "Installed"}}),
    ("Rufio applies an inventory", "APPLY", f"{HW}/hw1/status", _REPORT | {"status": {"attributes": _INVENTORY}}),
    ("and the state stays", "GET", f"{NEW}/hardware/hw1", None),
    ("an operator chooses an OSIE", "PATCH", f"{NEW}/hardware/hw1", {"spec": {"osie": {"name": "hook"}}}),
    ("CAPT marks the machine as provisioned", "PATCH", f"{HW}/hw1", {"metadata": {"annotations": _PROVISIONED}}),
    ("and the OSIE stays", "GET", f"{NEW}/hardware/hw1", None),
    ("a wrong type is refused", "PATCH", f"{HW}/hw1", {"spec": {"userData": 7}}),
    ("CAPT deletes its Template", "DELETE", f"{TEMPLATES}/tm1", None),
    ("and its Workflow", "DELETE", f"{WORKFLOWS}/tm1", None),
    ("and releases the machine", "PATCH", f"{HW}/hw1", {"metadata": _RELEASED}),
    ("which has its OSIE", "GET", f"{NEW}/hardware/hw1", None),
]
_FULL: Final = objects.hardware("full", "52:54:00:00:ff:02", "10.0.255.2", osie={"name": "hook"})
_FULL["metadata"]["annotations"] = {"example.com/note": "x" * (MAX_ANNOTATIONS_BYTES - len("example.com/note"))}
LIMITS: list[Step] = [
    ("a Hardware of v1alpha2 has no room for another annotation", "POST", f"{NEW}/hardware", _FULL),
    ("it is read in v1alpha1", "GET", f"{HW}/full", None),
    ("and breaks no list", "GET", HW, None),
    ("but not written, since its OSIE would be lost", "PATCH", f"{HW}/full", {"spec": {"userData": USER_DATA}}),
    ("it is as it was", "GET", f"{NEW}/hardware/full", None),
    ("it is not deleted in v1alpha1", "DELETE", f"{HW}/full", None),
    ("but in v1alpha2", "DELETE", f"{NEW}/hardware/full", None),
    ("a Template that could not be written in v1alpha2 is refused", "POST", TEMPLATES, _LARGE),
]
"""Requests with as many annotations as Kubernetes permits, and with more."""

OUTAGE: list[Step] = [
    ("an operator labels a machine", "PATCH", f"{NEW}/hardware/owned", {"metadata": {"labels": {"rack": "1"}}}),
    ("CAPT takes it", "PATCH", f"{NEW}/hardware/owned", {"metadata": {"labels": OWNER}}),
    ("no other machine takes it", "PATCH", f"{NEW}/hardware/owned", {"metadata": {"labels": _OTHER_OWNER}}),
    ("CAPT releases it", "PATCH", f"{NEW}/hardware/owned", {"metadata": {"labels": dict.fromkeys(OWNER)}}),
    ("another machine takes it", "PATCH", f"{NEW}/hardware/owned", {"metadata": {"labels": _OTHER_OWNER}}),
]


def fleet() -> list[Raw]:
    """Return Hardware of v1alpha2."""
    numbers = [divmod(number, 256) for number in range(MACHINES)]
    return [objects.hardware(f"m-{a}-{b}", f"52:54:00:00:{a:02x}:{b:02x}", f"10.1.{a}.{b}") for a, b in numbers]


class Player:
    """A client that plays requests and takes notes of the answers."""

    def __init__(self, client: KubeClient, headers: dict[str, str]) -> None:
        self._session: aiohttp.ClientSession = client._session
        self._url = client.url
        self._headers = headers

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Raw]:
        """Return the code and the object of an answer."""
        types = {"PATCH": MERGE, "APPLY": APPLY}
        if method == "APPLY":
            method, path, types = "PATCH", f"{path}?fieldManager=machine-controller&force=true", {"PATCH": APPLY}
        headers = {**self._headers, "Content-Type": types.get(method, "application/json")}
        data = None if body is None else json.dumps(body)
        async with self._session.request(method, self._url + path, data=data, headers=headers) as got:
            return got.status, await got.json()

    async def play(self) -> Raw:
        """Return the answers to the scenario and at the limits, and what a list of all Hardware has."""
        answers, limits = [await self._answers(steps) for steps in (SCENARIO, LIMITS)]
        for each in fleet():
            await self.ask("POST", f"{NEW}/hardware", each)
        code, listed = await self.ask("GET", HW)
        items = listed["items"]
        addresses = {each["spec"]["interfaces"][0]["dhcp"]["ip"]["address"] for each in items}
        facts = {"code": code, "kind": listed["kind"], "items": len(items), "addresses": len(addresses)}
        listed = facts | {"versions": sorted({each["apiVersion"] for each in items})}
        return {"answers": answers, "list": listed, "limits": limits}

    async def _answers(self, steps: list[Step]) -> list[Raw]:
        found = []
        for shows, method, path, body in steps:
            code, obj = await self.ask(method, path, body)
            found.append({"shows": shows, "code": code, "object": _plain(obj)})
        return found

    async def outage(self) -> list[Raw]:
        """Play the scenario in which no webhook answers: return the codes."""
        return [{"shows": shows, "code": (await self.ask(*step))[0]} for shows, *step in OUTAGE]

    async def replace(self) -> Any:
        """Replace a Hardware in v1alpha1 without the annotation; return the OSIE that it then has."""
        obj = objects.hardware("replaced", "52:54:00:00:ff:01", "10.0.255.1", osie={"name": "hook"})
        await self.ask("POST", f"{NEW}/hardware", obj)
        _, old = await self.ask("GET", f"{HW}/replaced")
        del old["metadata"]["annotations"]
        await self.ask("PUT", f"{HW}/replaced", old)
        _, new = await self.ask("GET", f"{NEW}/hardware/replaced")
        return new["spec"].get("osie")


_LONG: Final = 100 << 10
"""Characters of an annotation that is recorded as its length."""
_OF_THE_SERVER: Final = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "selfLink")


def _plain(obj: Raw) -> Raw:
    """Return an answer without the values that differ from run to run."""
    if "items" in obj:
        return {"kind": obj["kind"], "items": [each["metadata"]["name"] for each in obj["items"]]}
    if obj["kind"] == "Status":
        details = {key: value for key, value in (obj.get("details") or {}).items() if key != "uid"}
        return {key: obj.get(key) for key in ("status", "reason", "message")} | {"details": details}
    metadata = {key: value for key, value in obj["metadata"].items() if key not in _OF_THE_SERVER}
    if "annotations" in metadata:
        texts = metadata["annotations"].items()
        metadata["annotations"] = {name: text if len(text) < _LONG else len(text) for name, text in texts}
    return {**obj, "metadata": metadata}


async def player(client: KubeClient) -> Player:
    """Return a player with the credentials of a client."""
    return Player(client, dict(await client._authorize()))


@contextlib.asynccontextmanager
async def serving_webhooks(client: KubeClient, *hooks: Hook) -> AsyncIterator[Webhooks]:
    """Serve the admission webhook with its informers, and these hooks."""
    informers = {resource: Informer(client, resource) for resource in (HARDWARE, OSIE, TEMPLATE, WORKFLOW)}
    webhooks = Webhooks(client, [*hooks, Admission(client, informers)])
    tasks = [asyncio.create_task(informer.run()) for informer in informers.values()]
    try:
        await webhooks.start()
        yield webhooks
    finally:
        await webhooks.stop()
        for task in tasks:
            task.cancel()


async def break_webhooks(client: KubeClient, bundle: bytes) -> None:
    """Create a Hardware, then register admission webhooks at a port where nothing listens. `bundle` is an authority."""
    await client.create(HARDWARE, objects.hardware("owned", "52:54:00:00:fe:01", "10.0.254.1"))
    address = Address("/admission", url=f"https://127.0.0.1:{free_port()}")
    await client.create(CONFIGURATION, configuration(address, bundle, "Fail"))

    async def are_called() -> bool:
        try:
            await client.create(HARDWARE, objects.hardware("probe", "52:54:00:00:fe:02", "10.0.254.2"))
        except ApiError as error:
            return error.status == 500
        return False

    await until(are_called)


def record(kubeconfig: Path) -> None:
    """Write v1alpha1.json."""
    install(Peer(kubeconfig))
    asyncio.run(_record(kubeconfig))


async def is_served(client: KubeClient) -> bool:
    """Return True if the API serves each kind in v1alpha1."""
    try:
        for resource in (OLD_HARDWARE, OLD_TEMPLATE, OLD_WORKFLOW):
            await client.list(resource, None)
    except ApiError:
        return False
    return True


async def _record(kubeconfig: Path) -> None:
    client = await KubeClient.connect(kubeconfig)
    hook = served_v1alpha1()
    async with contextlib.AsyncExitStack() as exits:
        webhooks = await exits.enter_async_context(serving_webhooks(client, hook))
        # A kube-apiserver learns of new versions by a watch of its own.
        await until(partial(is_served, client))
        config = (await client.get(CRD, DEFINITIONS[0], None))["spec"]["conversion"]["webhook"]["clientConfig"]
        bundle = base64.b64decode(config["caBundle"])
        if await served_v1alpha1().register(client, webhooks.address(hook), bundle):
            raise SystemExit("a second replica writes definitions again: the API has changed them")
        playing = await player(client)
        played, replaced = await playing.play(), await playing.replace()
        version = await client._call("GET", "/version")
    await break_webhooks(client, bundle)
    outage = await (await player(client)).outage()
    await client.close()
    recorded = {"server": version["gitVersion"], **played, "replaced": replaced, "outage": outage}
    Path(__file__).with_name("v1alpha1.json").write_text(recordings.layout(recorded) + "\n")
