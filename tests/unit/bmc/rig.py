"""The whole of BMC control over the in-process API and fake BMCs, in virtual time.

    rig = Rig(machine("bmc1"), secret())
    async with rig.running():
        rig.api.put(job("j", {"powerAction": "on"}))
        await rig.until_job("j", "Completed")
    rig.bmc.resets, rig.bmc.failed_logins

The Redfish client is the real one, with a transport to the fake BMC.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from tests.support.api import InProcessApi
from tests.support.bmc import PASSWORD, USER, FakeBmc, MemoryTransport
from tests.support.informer import InMemoryInformer
from tests.support.objects import hardware
from tests.support.virtual_time import elapse
from tink.api.v1alpha2 import Raw
from tink.bmc.boot_operations import BootUrls
from tink.bmc.manager import BmcManager
from tink.bmc.model import (
    BmcConnection,
    BmcCredentials,
    BmcError,
    Boot,
    Cause,
    Observation,
    PowerState,
    Request,
    SetBoot,
)
from tink.bmc.quirks import Quirks
from tink.bmc.redfish import Answer, RedfishClient, RedfishTransport
from tink.bmc.settings import BmcSettings
from tink.kube.resources import HARDWARE, JOB, MACHINE, SECRET, TASK, WORKFLOW, ResourceType

GROUP = "bmc.tinkerbell.org/v1alpha1"
HOST = "192.0.2.10"
NOW = 1_800_000_000.0
MAC = "52:54:00:00:00:01"
NETBOOT = {"bootMode": "netboot"}


# --- objects ----------------------------------------------------------------------------------------------------------


def secret(password: str = PASSWORD, *, name: str = "bmc-auth", namespace: str = "default", **annotations: str) -> Raw:
    data = {"username": USER, "password": password}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()},
    }


def machine(name: str = "bmc1", host: str = HOST, *, namespace: str = "default", **connection: Any) -> Raw:
    reference = {"name": "bmc-auth", "namespace": namespace}
    return {
        "apiVersion": GROUP,
        "kind": "Machine",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "connection": {"host": host, "port": 623, "insecureTLS": True, "authSecretRef": reference} | connection
        },
    }


def job(name: str, *tasks: Raw, machine: str = "bmc1", namespace: str = "default", **annotations: str) -> Raw:
    reference = {"name": machine, "namespace": "default"}
    return {
        "apiVersion": GROUP,
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
        "spec": {"machineRef": reference, "tasks": list(tasks)},
    }


def power(action: str) -> Raw:
    return {"powerAction": action}


PXE = {"oneTimeBootDeviceAction": {"device": ["pxe"], "efiBoot": True}}


def computer(**interface: Any) -> Raw:
    """The Hardware `m1` with one interface, whose BMC is that of the Machine `bmc1`."""
    obj = hardware("m1", interfaces={MAC: {"dhcp": {"ip": "192.0.2.7", "netmask": "255.255.255.0"}, **interface}})
    obj["spec"]["bmcRef"] = {"name": "bmc1"}
    return obj


def workflow(name: str = "w1", options: Raw | None = None, **status: Any) -> Raw:
    """A Workflow as the controller of Workflows has prepared it: Pending, with one action."""
    prepared = {
        "state": "Pending",
        "lastTransitioned": "2027-01-15T08:00:00Z",
        "actions": [{"id": "a", "state": "Pending", "rendered": {"name": "install", "image": "i"}}],
        "dispatched": False,
    }
    spec: Raw = {"hardwareRef": {"name": "m1"}, "templateRef": {"name": "t"}}
    return {
        "apiVersion": "tinkerbell.org/v1alpha2",
        "kind": "Workflow",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec | ({"bootOptions": options} if options else {}),
        "status": prepared | status,
    }


# --- clients ----------------------------------------------------------------------------------------------------------


class FailingTransport:
    """A transport to a host that is out of reach or not trusted."""

    def __init__(self, cause: Cause) -> None:
        self._cause = cause

    async def exchange(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        if self._cause is Cause.UNREACHABLE:
            await elapse(30)
            raise BmcError(self._cause, "no answer within 30 s")
        raise BmcError(self._cause, "the certificate is not trusted")

    async def close(self) -> None:
        pass


# --- the rig ----------------------------------------------------------------------------------------------------------


class Rig:
    """The API with `objects`, a fake BMC at each host, and BMC control. Hosts in `hanging` never answer."""

    def __init__(self, *objects: Raw, bmc: FakeBmc | None = None, api: InProcessApi | None = None) -> None:
        self.bmc = bmc or FakeBmc()
        self.bmcs = {HOST: self.bmc}
        self.hanging: set[str] = set()
        self.untrusted: set[str] = set()
        """Hosts whose certificate is not trusted."""
        self.tried: list[tuple[float, str, str]] = []
        """Time, protocol and host of each connection."""
        self.urls: BootUrls | None = None
        self.seconds = 0.0
        """The time that the BMC takes for each answer."""
        self.api = api or InProcessApi()
        for obj in objects:
            self.api.put(obj)
        self.manager: BmcManager
        self.informers: dict[ResourceType, InMemoryInformer]

    def client(self, connection: BmcConnection, credentials: BmcCredentials, quirks: Quirks) -> Any:
        self.tried.append((asyncio.get_running_loop().time(), "redfish", connection.host))
        bmc = self.bmcs.setdefault(connection.host, FakeBmc())
        if connection.host in self.hanging:
            return RedfishClient(connection, credentials, transport=FailingTransport(Cause.UNREACHABLE))
        if connection.host in self.untrusted:
            return RedfishClient(connection, credentials, transport=FailingTransport(Cause.CERTIFICATE))
        return RedfishClient(connection, credentials, transport=self.transport(bmc))

    def transport(self, bmc: FakeBmc) -> RedfishTransport:
        return MemoryTransport(bmc, seconds=self.seconds)

    def ipmi_client(self, connection: BmcConnection, credentials: BmcCredentials, quirks: Quirks) -> Any:
        self.tried.append((asyncio.get_running_loop().time(), "ipmi", connection.host))
        raise BmcError(Cause.UNSUPPORTED, "ipmitool is not installed")

    @contextlib.asynccontextmanager
    async def running(self, **settings: Any) -> AsyncIterator[None]:
        """Run BMC control until the block ends; a further `running` is a restart of the process."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        self.informers = informers = {
            each: self.api.informer(each) for each in (MACHINE, JOB, TASK, HARDWARE, WORKFLOW)
        }
        self.manager = BmcManager(
            self.api,  # type: ignore[arg-type] # it has the calls of KubeClient
            informers,
            BmcSettings(**settings),
            clients={"redfish": self.client, "ipmi": self.ipmi_client},
            urls=self.urls,
            now=lambda: NOW + loop.time() - begun,
            elapsed=loop.time,
        )
        task = asyncio.create_task(self.manager.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

    def condition(self, resource: Any, name: str, kind: str, namespace: str = "default") -> Raw:
        obj = self.api.read(resource, name, namespace) or {}
        conditions = obj.get("status", {}).get("conditions", [])
        return next((each for each in conditions if each["type"] == kind), {})

    async def until(self, holds: Callable[[], Any], within: float = 3600.0) -> Any:
        """Let virtual time pass until `holds()` is true."""
        loop = asyncio.get_running_loop()
        end = loop.time() + within
        while not (value := holds()):
            assert loop.time() < end, "it did not happen"
            await elapse(0.25)
        return value

    async def until_condition(self, resource: Any, name: str, kind: str, status: str = "True") -> Raw:
        """Let virtual time pass until an object has a condition, and return that."""
        await self.until(lambda: self.condition(resource, name, kind).get("status") == status)
        return self.condition(resource, name, kind)

    def everything_written(self) -> str:
        """Return all that was written to the API, without Secrets."""
        return json.dumps([call.body for call in self.api.calls if call.resource is not SECRET])


# --- a BMC with Redfish and IPMI --------------------------------------------------------------------------------------


class Ipmi:
    """A client by IPMI for a rig: the flags and resets of a chassis. `errors` are raised by the next calls."""

    protocol = "ipmi"

    def __init__(self, *errors: BmcError) -> None:
        self.errors = list(errors)
        self.calls = 0
        self.sent: list[Request] = []
        self.boot = Boot("None", "Disabled")

    async def __aenter__(self) -> Ipmi:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def observe(self, *, boot: bool = False, media: bool = False) -> Observation:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return Observation(PowerState.ON, self.boot if boot else None)

    async def send(self, request: Request) -> None:
        self.calls += 1
        self.sent.append(request)
        if isinstance(request, SetBoot):
            self.boot = Boot(request.target, request.enabled, request.mode)


class IpmiRig(Rig):
    """A rig whose BMC answers by IPMI as well."""

    def __init__(self, bmc: FakeBmc, ipmi: Ipmi, *objects: Raw, **connection: Any) -> None:
        super().__init__(machine(**connection), secret(), *objects, bmc=bmc)
        self.ipmi = ipmi

    def ipmi_client(self, connection: BmcConnection, credentials: BmcCredentials, quirks: Quirks) -> Any:
        self.tried.append((0.0, "ipmi", connection.host))
        return self.ipmi

    async def end_of(self, name: str, task: Raw, ended: str = "Completed") -> Raw:
        """Create a Job with one task, and return the condition of that task when it has ended."""
        self.api.put(job(name, task))
        await self.until_condition(JOB, name, ended)
        return self.condition(TASK, f"{name}-task-0", ended)
