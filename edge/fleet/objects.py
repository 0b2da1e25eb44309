"""The machines' objects in the Kubernetes API: generated for a run and removed after it, or existing ones.

All generated objects have the label `tinkedge.org/fleet` with the run's name. Only objects with that label are deleted.
Existing Hardware is only read.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Network
from typing import Final, TypeVar

from edge.dhcp.wire import options
from edge.fleet.bmc import BmcAccess
from edge.fleet.discovery import DiscoveryPlan
from edge.fleet.network import FleetError
from edge.fleet.population import Identity, Profile
from tink.api.annotations import EXPECTED_MACHINES_LABEL
from tink.api.v1alpha2 import Raw
from tink.discovery.model import condition_of
from tink.kube.cache import Informer
from tink.kube.client import ApiError, KubeClient, NotFoundError
from tink.kube.resources import CONFIG_MAP, HARDWARE, MACHINE, OSIE, SECRET, TEMPLATE, WORKFLOW, ResourceType
from tink.workflow.status import creation_order

LABEL: Final = "tinkedge.org/fleet"
_WRITERS: Final = 16
_PAGE: Final = 500
_LEASE_SECONDS: Final = 86_400
_IMAGE: Final = "fleet.invalid/pause:1"
"""Never pulled: the fleet's agents run nothing. RFC 2606 section 2."""

_Item = TypeVar("_Item")
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Boots:
    """The OSIE of generated machines: the name of an existing one, or URLs for a new one."""

    osie: str = ""
    kernel_url: str = ""
    initrd_url: str = ""


class Objects:
    """The objects of one run, in one namespace of the API."""

    def __init__(self, client: KubeClient, namespace: str, name: str, progress: Progress) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._progress = progress

    # --- generated objects ---

    async def generate(
        self,
        machines: list[Identity],
        profile: Profile,
        network: IPv4Network,
        gateway: str,
        boots: Boots,
        bmc: BmcAccess | None = None,
    ) -> None:
        """Create an OSIE (if none is named), a Template, and a Hardware and a Workflow per machine.

        With `bmc`, Hardware refer to Machines, and `request_boots` creates the Workflows. Raises FleetError.
        """
        osie = boots.osie or self._name
        try:
            if not boots.osie:
                spec: Raw = {"kernelUrl": boots.kernel_url, "initrdUrl": boots.initrd_url}
                await self._create(OSIE, osie, spec)
            actions = [{"name": name, "image": _IMAGE} for name in profile.action_names]
            await self._create(TEMPLATE, self._name, {"actions": actions})
            if bmc is not None:
                await self._put(SECRET, bmc.secret, stringData=bmc.account)
                specs = ((each.name, bmc.machine_spec(each, self._namespace)) for each in machines)
                await self._each(specs, lambda item: self._create(MACHINE, *item), "Machines created", len(machines))
            hardware = (
                (each.name, _hardware(each, network, gateway, osie, has_bmc=bmc is not None)) for each in machines
            )
            await self._each(hardware, lambda item: self._create(HARDWARE, *item), "Hardware created", len(machines))
            if bmc is None:
                workflows = ((each.name, self._workflow(each)) for each in machines)
                count = len(machines)
                await self._each(workflows, lambda item: self._create(WORKFLOW, *item), "Workflows created", count)
        except ApiError as error:
            raise FleetError(f"can't create the fleet's objects: {error}") from error

    async def generate_unknown(self, planned: DiscoveryPlan, profile: Profile, boots: Boots) -> None:
        """Create what machines without Hardware need: an OSIE, a Template, and the lists that expect them.

        `install_approved` creates the Workflows. Raises FleetError.
        """
        try:
            await self._create(OSIE, self._name, {"kernelUrl": boots.kernel_url, "initrdUrl": boots.initrd_url})
            actions = [{"name": name, "image": _IMAGE} for name in profile.action_names]
            await self._create(TEMPLATE, self._name, {"actions": actions})
            for number, text in enumerate(planned.lists()):
                labels = {LABEL: self._name, EXPECTED_MACHINES_LABEL: "true"}
                meta = {"name": f"{self._name}-{number}", "namespace": self._namespace, "labels": labels}
                body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"machines.csv": text}}
                await self._client.create(CONFIG_MAP, body)
        except ApiError as error:
            raise FleetError(f"can't create the fleet's objects: {error}") from error

    async def install_approved(self, machines: Sequence[Identity], on_change: Callable[[Raw], None]) -> None:
        """Create a Workflow for each machine as soon as its Hardware is there, until cancelled.

        `on_change` is called for each Hardware of the namespace, and after each of its changes. Raises ApiError.
        """
        missing = {each.name: each for each in machines}
        approved: asyncio.Queue[Identity] = asyncio.Queue()

        def changed(hardware: Raw) -> None:
            on_change(hardware)
            if machine := missing.pop(hardware["metadata"]["name"], None):
                approved.put_nowait(machine)

        async def create() -> None:
            while True:
                machine = await approved.get()
                await self._create(WORKFLOW, machine.name, self._workflow(machine))

        informer = Informer(self._client, HARDWARE, (self._namespace,))
        informer.add_event_handler(lambda new, _: changed(new), lambda _: None)
        async with asyncio.TaskGroup() as group:
            for _ in range(_WRITERS):
                group.create_task(create())
            group.create_task(informer.run())

    async def verdicts(self) -> dict[str, tuple[str, str]]:
        """Return reason and message of the condition AsExpected, by the name of the Hardware. Raises FleetError."""
        found = {}
        try:
            async for name, item in self._named(HARDWARE, ""):
                condition = condition_of(item)
                if condition:
                    found[name] = str(condition.get("reason") or ""), str(condition.get("message") or "")
        except ApiError as error:
            raise FleetError(f"can't read the Hardware: {error}") from error
        return found

    async def request_boots(
        self, machines: Sequence[Identity], due: Sequence[float], requesting: Callable[[int], None]
    ) -> None:
        """Create the Workflow of each machine at its time in `due` (seconds from now); BMC control then boots it.

        `requesting` is called with the machine's number before that. Raises FleetError.
        """
        began = time.monotonic()

        async def create(number: int) -> None:
            await asyncio.sleep(began + due[number] - time.monotonic())
            requesting(number)
            spec = self._workflow(machines[number]) | {"bootOptions": {"bootMode": "netboot"}}
            await self._create(WORKFLOW, machines[number].name, spec)

        try:
            await self._each(sorted(range(len(machines)), key=due.__getitem__), create, "Workflows created")
        except ApiError as error:
            raise FleetError(f"can't create a Workflow: {error}") from error

    def _workflow(self, machine: Identity) -> Raw:
        return {"hardwareRef": {"name": machine.name}, "templateRef": {"name": self._name}}

    async def remove(self, *, has_bmc: bool = False) -> None:
        """Remove the objects of this run. Raises FleetError."""
        try:
            for resource in (WORKFLOW, HARDWARE, TEMPLATE, OSIE, *((MACHINE, SECRET) if has_bmc else ())):
                names = [name async for name, _ in self._named(resource)]
                await self._each(names, partial(self._delete, resource), f"{resource.kind} removed")
        except ApiError as error:
            kinds = "workflow,hardware,template,osie" + (",machines.bmc.tinkerbell.org,secret" if has_bmc else "")
            raise FleetError(
                f"not all of the fleet's objects are removed: {error}; kubectl delete {kinds} "
                f"-n {self._namespace} -l {LABEL}={self._name}"
            ) from error

    async def _create(self, resource: ResourceType, name: str, spec: Raw) -> None:
        await self._put(resource, name, spec=spec)

    async def _put(self, resource: ResourceType, name: str, **content: Raw) -> None:
        meta = {"name": name, "namespace": self._namespace, "labels": {LABEL: self._name}}
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta, **content}
        await self._client.create(resource, body)

    async def _delete(self, resource: ResourceType, name: str) -> None:
        with contextlib.suppress(NotFoundError):  # already deleted by another client
            await self._client.delete(resource, name, self._namespace)

    async def _each(
        self, items: Iterable[_Item], do: Callable[[_Item], Awaitable[None]], what: str, count: int = 0
    ) -> None:
        """Call `do` for each item, several at a time. The first error ends it."""
        left, done = iter(items), 0

        async def work() -> None:
            nonlocal done
            for item in left:
                await do(item)
                done += 1
                self._progress(what, done, count)

        async with asyncio.TaskGroup() as group:
            for _ in range(_WRITERS):
                group.create_task(work())

    # --- existing objects ---

    async def existing(self, selector: str, most: int) -> list[Identity]:
        """Return the machines of existing Hardware, at most `most`: the first interface with an address of each.

        Raises FleetError.
        """
        found: list[Identity] = []
        try:
            async for name, item in self._named(HARDWARE, selector):
                one = identity_of(name, item)
                if one is not None:
                    found.append(one)
                if len(found) >= most:
                    return found
        except ApiError as error:
            raise FleetError(f"can't read the Hardware: {error}") from error
        if not found:
            where = f" with the labels {selector}" if selector else ""
            raise FleetError(f"no Hardware in namespace {self._namespace}{where} has an interface with dhcp.ip")
        return found

    async def states(self, selector: str | None = None) -> dict[str, str]:
        """Return the newest Workflow's state by Hardware name: of this run, or by `selector`. Raises FleetError."""
        found: dict[str, tuple[tuple[str, int, str], str]] = {}
        try:
            async for _, item in self._named(WORKFLOW, selector):
                hardware = item["spec"].get("hardwareRef", {}).get("name", "")
                created = creation_order(item)
                if hardware not in found or created > found[hardware][0]:
                    found[hardware] = created, (item.get("status") or {}).get("state", "")
        except ApiError as error:
            raise FleetError(f"can't read the Workflows: {error}") from error
        return {hardware: state for hardware, (_, state) in found.items()}

    async def _named(self, resource: ResourceType, selector: str | None = None) -> AsyncIterator[tuple[str, Raw]]:
        """Yield names and objects by label; without a selector those of this run."""
        labels = f"{LABEL}={self._name}" if selector is None else selector
        after = ""
        while True:
            page = await self._client.list(resource, self._namespace, limit=_PAGE, after=after, label_selector=labels)
            for item in page.get("items") or []:
                yield item["metadata"]["name"], item
            after = (page.get("metadata") or {}).get("continue") or ""
            if not after:
                return


def identity_of(name: str, hardware: Raw) -> Identity | None:
    """Return the machine of a Hardware; None if no interface has a MAC and an address."""
    for mac, interface in (hardware.get("spec", {}).get("networkInterfaces") or {}).items():
        address = ((interface or {}).get("dhcp") or {}).get("ip", "")
        digits = mac.replace(":", "").replace("-", "")
        if options.is_host(address) and len(digits) == 12:
            return Identity(name, bytes.fromhex(digits), address)
    return None


def _hardware(machine: Identity, network: IPv4Network, gateway: str, osie: str, *, has_bmc: bool) -> Raw:
    dhcp = {
        "ip": machine.address,
        "netmask": str(network.netmask),
        "gateway": gateway,
        "hostname": machine.name,
        "leaseTimeSeconds": _LEASE_SECONDS,
    }
    return {
        "networkInterfaces": {machine.mac_text: {"dhcp": dhcp}},
        "osie": {"name": osie},
        "storageDevices": ["/dev/sda"],
        "instance": {"userdata": f"#cloud-config\nhostname: {machine.name}\n"},
        **({"bmcRef": {"name": machine.name}} if has_bmc else {}),
    }
