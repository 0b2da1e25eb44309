"""The whole of BMC control over the in-process API and fake BMCs, in virtual time.

    rig = Rig(machine("bmc1"), secret())
    async with rig.running():
        rig.api.put(job("j", {"powerAction": "on"}))
        await rig.until_job("j", "Completed")
    rig.bmc.resets, rig.bmc.failed_logins

`InProcessClient` sends the requests of power and boot to `FakeBmc.handle`, without sockets, which virtual time lacks.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from tests.support.api import InProcessApi
from tests.support.bmc import PASSWORD, RESET, SESSIONS, SYSTEM, USER, FakeBmc
from tink.api.v1alpha2 import Raw
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
    Reset,
    SetBoot,
)
from tink.bmc.settings import BmcSettings
from tink.kube.resources import HARDWARE, JOB, MACHINE, SECRET, TASK

GROUP = "bmc.tinkerbell.org/v1alpha1"
HOST = "192.0.2.10"
NOW = 1_800_000_000.0


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
        "spec": {"connection": {"host": host, "port": 623, "insecureTLS": True, "authSecretRef": reference} | connection},
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


# --- clients ----------------------------------------------------------------------------------------------------------


class InProcessClient:
    """A Redfish client without sockets, for the power and the boot override of a `FakeBmc`."""

    protocol = "redfish"

    def __init__(self, bmc: FakeBmc, credentials: BmcCredentials) -> None:
        self._bmc = bmc
        self._credentials = credentials
        self._token = self._session = ""

    async def __aenter__(self) -> InProcessClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session:
            self._request("DELETE", self._session)

    async def observe(self, *, boot: bool = False, media: bool = False) -> Observation:
        await asyncio.sleep(0.1)
        system = self.read(SYSTEM)
        found = system["Boot"]
        override = Boot(
            found["BootSourceOverrideTarget"], found["BootSourceOverrideEnabled"], found["BootSourceOverrideMode"]
        )
        return Observation(PowerState(system["PowerState"].lower()), override, last_reset=system["LastResetTime"])

    async def send(self, request: Request) -> None:
        await asyncio.sleep(0.1)
        if isinstance(request, Reset):
            self._request("POST", RESET, {"ResetType": request.type.value})
        elif isinstance(request, SetBoot):
            names = {"Target": request.target, "Enabled": request.enabled, "Mode": request.mode}
            boot = {f"BootSourceOverride{name}": value for name, value in names.items() if value is not None}
            self._request("PATCH", SYSTEM, {"Boot": boot})

    async def get(self, path: str) -> dict[str, Any]:
        await asyncio.sleep(0.1)
        return self.read(path)

    def read(self, path: str) -> dict[str, Any]:
        document: dict[str, Any] = self._request("GET", path)
        return document

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        if not self._token:
            login = {"UserName": self._credentials.username, "Password": self._credentials.password}
            answer = self._handle("POST", SESSIONS, login)
            self._token, self._session = answer.headers["X-Auth-Token"], answer.headers["Location"]
        answer = self._handle(method, path, body)
        return json.loads(answer.body) if answer.body else {}

    def _handle(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        headers = {"X-Auth-Token": self._token} if self._token else {}
        content = json.dumps(body).encode() if body is not None else b""
        answer = self._bmc.handle(method, path, headers, content, asyncio.get_running_loop().time())
        if answer.status == 401:
            raise BmcError(Cause.CREDENTIALS_REFUSED, "the BMC refuses the user or the password", status=401)
        if answer.status == 503:
            raise BmcError(Cause.BUSY, "the BMC has no session left", status=503)
        if answer.status >= 400:
            raise BmcError(Cause.REFUSED, f"the BMC answers {answer.status}", status=answer.status)
        return answer


class HangingClient:
    """A client of a BMC that never answers."""

    protocol = "redfish"

    async def __aenter__(self) -> HangingClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def observe(self, *, boot: bool = False, media: bool = False) -> Observation:
        await asyncio.sleep(30)
        raise BmcError(Cause.UNREACHABLE, "no answer within 30 s")


# --- the rig ----------------------------------------------------------------------------------------------------------


class Rig:
    """The API with `objects`, a fake BMC at each host, and BMC control. Hosts in `hanging` never answer."""

    def __init__(self, *objects: Raw, bmc: FakeBmc | None = None, api: InProcessApi | None = None) -> None:
        self.bmc = bmc or FakeBmc()
        self.bmcs = {HOST: self.bmc}
        self.hanging: set[str] = set()
        self.tried: list[tuple[float, str, str]] = []
        """Time, protocol and host of each connection."""
        self.api = api or InProcessApi()
        for obj in objects:
            self.api.put(obj)
        self.manager: BmcManager

    def client(self, connection: BmcConnection, credentials: BmcCredentials) -> Any:
        self.tried.append((asyncio.get_running_loop().time(), "redfish", connection.host))
        if connection.host in self.hanging:
            return HangingClient()
        return InProcessClient(self.bmcs.setdefault(connection.host, FakeBmc()), credentials)

    def ipmi_client(self, connection: BmcConnection, credentials: BmcCredentials) -> Any:
        self.tried.append((asyncio.get_running_loop().time(), "ipmi", connection.host))
        raise BmcError(Cause.UNSUPPORTED, "ipmitool is not installed")

    @contextlib.asynccontextmanager
    async def running(self, **settings: Any) -> AsyncIterator[None]:
        """Run BMC control until the block ends; a further `running` is a restart of the process."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        informers = {each: self.api.informer(each) for each in (MACHINE, JOB, TASK, HARDWARE)}
        self.manager = BmcManager(
            self.api,  # type: ignore[arg-type] # it has the calls of KubeClient
            informers,
            BmcSettings(**settings),
            clients={"redfish": self.client, "ipmi": self.ipmi_client},
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
            await asyncio.sleep(0.05)
        return value

    async def until_condition(self, resource: Any, name: str, kind: str, status: str = "True") -> Raw:
        """Let virtual time pass until an object has a condition, and return that."""
        await self.until(lambda: self.condition(resource, name, kind).get("status") == status)
        return self.condition(resource, name, kind)

    def everything_written(self) -> str:
        """Return all that was written to the API, without Secrets."""
        return json.dumps([call.body for call in self.api.calls if call.resource is not SECRET])
