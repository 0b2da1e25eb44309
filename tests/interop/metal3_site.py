"""A site of Metal3's for tests: the embedded API with the definitions of both worlds, and the controller on it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.api import serving
from tests.interop.privileges import Gate, Grant, Upstream
from tests.interop.rack import Process, tinkedge
from tests.waiting import PATIENCE_SECONDS, until
from tink.api.crds import generate
from tink.api.metal3.crds import generate as generate_metal3
from tink.api.v1alpha2 import Raw
from tink.kube.client import KubeClient, NotFoundError
from tink.kube.resources import EVENT, HARDWARE, SECRET, ResourceType
from tink.kubeapi import ApiServer
from tink.metal3.controller import HOSTS, Follower
from tink.metal3.settings import Metal3Settings

ROLES = Path(__file__).parents[2] / "deploy" / "rbac-metal3.yaml"
ACCOUNT = "tinkedge-metal3"
HOME, NAMESPACE = "tinkedge", "metal3"
HOST = HOSTS[0]
NETWORK = (
    b'{"links": [{"id": "a", "ethernet_mac_address": "%s"}], "networks": [{"link": "a", "ip_address": "10.0.0.5"}]}'
)
RUFIO: Raw = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "machines.bmc.tinkerbell.org"},
    "spec": {
        "group": "bmc.tinkerbell.org", "scope": "Namespaced",
        "names": {"plural": "machines", "singular": "machine", "kind": "Machine", "listKind": "MachineList"},
        "versions": [{
            "name": "v1alpha1", "served": True, "storage": True,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        }],
    },
}  # fmt: skip


def mac(number: int) -> str:
    return f"52:54:00:00:{number >> 8:02x}:{number & 255:02x}"


def host(name: str, number: int, **spec: Any) -> Raw:
    return {
        "apiVersion": HOST.api_version, "kind": HOST.kind, "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"online": True, "bootMACAddress": mac(number).upper(), **spec},
    }  # fmt: skip


def status(state: str) -> Raw:
    return {
        "provisioning": {"state": state, "ID": ""}, "operationalStatus": "OK", "errorMessage": "", "poweredOn": True,
        "errorCount": 0,
    }  # fmt: skip


class Site:
    """An API with our definitions and Metal3's."""

    def __init__(self, api: ApiServer, client: KubeClient, directory: Path, exits: contextlib.AsyncExitStack) -> None:
        self.api = api
        self.client = client
        self.directory = directory
        self._exits = exits

    async def gate(self, *bound: str) -> Gate:
        """Start a gate with the rights of the controller's account and of the roles bound to it."""
        objects = [obj for obj in yaml.load_all(ROLES.read_text(), Loader=yaml.CSafeLoader) if "rules" in obj]
        upstream = Upstream.read(self.api.kubeconfig)
        made = Gate(ACCOUNT, upstream, self.directory)
        made.allow({
            Grant(verb, group, resource, obj["metadata"].get("namespace", ""), name)
            for obj in objects if obj["metadata"]["name"] in (ACCOUNT, *bound)
            for rule in obj["rules"] for verb in rule["verbs"] for group in rule["apiGroups"]
            for resource in rule["resources"] for name in rule.get("resourceNames", [""])
        })  # fmt: skip
        self._exits.push_async_callback(made.stop)
        await made.start()
        return made

    def start(self, *words: str | Path, kubeconfig: Path | None = None) -> Process:
        options = ["metal3", "--kubeconfig", str(kubeconfig or self.api.kubeconfig), *map(str, words)]
        process = tinkedge(self.directory, *options)
        self._exits.callback(process.end)
        return process

    async def follow(self, settings: Metal3Settings | None = None) -> None:
        """Run the controller in this process."""
        follower = Follower(self.api.kubeconfig, None, (), settings or Metal3Settings(), None, check_seconds=0.3)
        self.keep(follower.run())

    def keep(self, running: Coroutine[Any, Any, None]) -> None:
        """Run something for as long as the test."""
        task = asyncio.create_task(running)

        async def stop() -> None:
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled(), task.exception()

        self._exits.push_async_callback(stop)

    async def host(self, name: str, number: int, state: str = "available", **spec: Any) -> None:
        await self.client.create(HOST, host(name, number, **spec))
        if state:
            await self.state(name, state)

    async def state(self, name: str, state: str) -> None:
        await self.client.patch(HOST, name, NAMESPACE, {"status": status(state)}, subresource="status")

    async def change(self, name: str, **fields: Any) -> None:
        await self.client.patch(HOST, name, NAMESPACE, fields)

    async def pause(self, name: str) -> None:
        await self.change(name, metadata={"annotations": {"baremetalhost.metal3.io/paused": ""}})

    async def hardware(self, name: str) -> Raw | None:
        try:
            return await self.client.get(HARDWARE, name, NAMESPACE)
        except NotFoundError:
            return None

    async def netboots(self, name: str) -> bool | None:
        """Return True if the Hardware netboots; None if there is no Hardware."""
        found = await self.hardware(name)
        if found is None:
            return None
        interfaces = found["spec"]["networkInterfaces"].values()
        return any(each.get("disableNetboot") is not True for each in interfaces)

    async def until(
        self, holds: Callable[[], Awaitable[Any]], *processes: Process, within: float = PATIENCE_SECONDS
    ) -> None:
        await until(holds, lambda: "\n".join(process.err for process in processes), within=within, every=0.05)

    async def becomes(
        self, name: str, netboots: bool | None, *processes: Process, within: float = PATIENCE_SECONDS
    ) -> Raw:
        """Its Hardware then; empty if there is none."""

        async def holds() -> bool:
            return await self.netboots(name) is netboots

        await self.until(holds, *processes, within=within)
        return await self.hardware(name) or {}

    async def shows(self, name: str, holds: Callable[[Raw], bool]) -> None:
        """Wait until its Hardware is so."""

        async def is_so() -> bool:
            found = await self.hardware(name)
            return found is not None and holds(found)

        await self.until(is_so)

    async def event_messages(self, name: str, reason: str) -> str:
        """Return the messages of a host's Events with this reason."""
        events = (await self.client.list(EVENT, NAMESPACE))["items"]
        return " | ".join(
            event["message"] for event in events
            if event["reason"] == reason and event["involvedObject"]["name"] == name
        )  # fmt: skip

    async def wait_for_event(self, name: str, reason: str, part: str = "") -> None:
        async def holds() -> bool:
            messages = await self.event_messages(name, reason)
            return bool(messages) and part in messages

        await self.until(holds)

    async def secret(self, name: str, **values: bytes) -> None:
        data = {key: base64.b64encode(value).decode() for key, value in values.items()}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": NAMESPACE}, "data": data}
        await self.client.create(SECRET, body)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with contextlib.AsyncExitStack() as exits:
        definitions = [*generate(), *generate_metal3()]
        api, client = await exits.enter_async_context(serving(tmp_path / "api", definitions))
        for namespace in (HOME, NAMESPACE):
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            await client.create(ResourceType("", "v1", "namespaces", "Namespace", namespaced=False), body)
        yield Site(api, client, tmp_path, exits)
