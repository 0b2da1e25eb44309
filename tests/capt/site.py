"""The objects of a site, and the writes of the components that the command plays."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from tests.waiting import until
from tink.api.v1alpha2 import RUFIO_GROUP, Raw
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
from tink.kube.resources import MACHINE as BMC

CORE, INFRASTRUCTURE = "cluster.x-k8s.io", "infrastructure.cluster.x-k8s.io"
CLUSTER = ResourceType(CORE, "v1beta2", "clusters", "Cluster")
MACHINE = ResourceType(CORE, "v1beta2", "machines", "Machine")
TINKERBELL_CLUSTER = ResourceType(INFRASTRUCTURE, "v1beta1", "tinkerbellclusters", "TinkerbellCluster")
TINKERBELL_MACHINE = ResourceType(INFRASTRUCTURE, "v1beta1", "tinkerbellmachines", "TinkerbellMachine")
MACHINE_TEMPLATE = ResourceType(INFRASTRUCTURE, "v1beta1", "tinkerbellmachinetemplates", "TinkerbellMachineTemplate")
PROVIDER = ResourceType("clusterctl.cluster.x-k8s.io", "v1alpha3", "providers", "Provider")
CLUSTER_API: Final = (CLUSTER, MACHINE, TINKERBELL_CLUSTER, TINKERBELL_MACHINE, MACHINE_TEMPLATE, PROVIDER)

NAMESPACE: Final = "default"
OWNER, OWNER_NAMESPACE = "v1alpha1.tinkerbell.org/ownerName", "v1alpha1.tinkerbell.org/ownerNamespace"
PROVISIONED: Final = "v1alpha1.tinkerbell.org/provisioned"
FINALIZER: Final = "infrastructure.cluster.x-k8s.io/tinkerbellmachine"
MOVED: Final = {"clusterctl.cluster.x-k8s.io": "", "clusterctl.cluster.x-k8s.io/move": ""}
PATIENCE_SECONDS: Final = 400.0
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


# --- objects ----------------------------------------------------------------------------------------------------------


def definition(resource: ResourceType) -> Raw:
    """Return a definition without a schema, with the names of Cluster API's. `clusterctl move` finds its objects."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": resource.version, "served": True, "storage": True, "subresources": {"status": {}}}
    singular = resource.kind.lower()
    names = {"plural": resource.plural, "singular": singular, "kind": resource.kind, "listKind": f"{resource.kind}List"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{resource.plural}.{resource.group}",
            "labels": {"clusterctl.cluster.x-k8s.io": ""},
            # A kube-apiserver accepts names below k8s.io with this alone (KEP-1111).
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1111"},
        },
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


def bmc(number: int) -> tuple[Raw, Raw]:
    """Return the Secret and the Machine (bmc.tinkerbell.org) of a Hardware. The labels of the Secret make it move."""
    secret = {"name": f"bmc-{number}", "namespace": NAMESPACE}
    login = {key: base64.b64encode(value).decode() for key, value in (("username", b"admin"), ("password", b"secret"))}
    connection = {"host": f"10.1.{number >> 8}.{number & 255}", "authSecretRef": secret, "insecureTLS": True}
    return (
        {"apiVersion": "v1", "kind": "Secret", "metadata": secret | {"labels": MOVED}, "data": login},
        _object(BMC, f"bmc-{number}", {"connection": connection}),
    )


def _owner(obj: Raw, *, controller: bool = False) -> Raw:
    metadata = obj["metadata"]
    reference = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "name": metadata["name"], "uid": metadata["uid"]}
    return reference | ({"controller": True} if controller else {})


def _bootstrap(name: str) -> str:
    return f"#cloud-config\nwrite_files: [{{path: /run/{name}, content: PROVIDER_ID}}]\nruncmd: [kubeadm join]\n"


def _without_defaults(spec: Raw) -> Raw:
    """Return a v1alpha1 Hardware's spec without `disableDhcp: false`, the default of its definition."""
    interfaces = [
        {key: value for key, value in each.items() if (key, value) != ("disableDhcp", False)}
        for each in spec["interfaces"]
    ]
    return spec | {"interfaces": interfaces}


# --- the site ---------------------------------------------------------------------------------------------------------


@dataclass
class Result:
    """The counts of a run."""

    installed: int = 0
    to_install: int = 0
    released: int = 0
    to_release: int = 0
    chosen: int = 0
    """TinkerbellMachines that got a Hardware while others wanted it, too."""
    trials: int = 0
    owners_at_once: list[str] = field(default_factory=list)
    """Hardware that went from one owner to another without a release, and Hardware of two machines."""
    two_hardware: list[str] = field(default_factory=list)
    """TinkerbellMachines that own two Hardware."""
    installed_again: list[str] = field(default_factory=list)
    """Workflows and Jobs after a move or for a machine that was to stay as it is."""
    faults: list[str] = field(default_factory=list)
    """Machines that differ from what they should be after a step."""

    @property
    def is_good(self) -> bool:
        """Return True if each life was complete, and no machine was in two hands."""
        complete = (self.installed, self.released) == (self.to_install, self.to_release)
        return complete and not [*self.owners_at_once, *self.two_hardware, *self.installed_again, *self.faults]


class Site:
    """The cluster `c` and its machines, as the components beside CAPT write them."""

    def __init__(self, client: KubeClient, result: Result, check_managers: Callable[[], None]) -> None:
        """`check_managers` raises AssertionError if a manager has ended."""
        self.client = client
        self.result = result
        self.own_text = False
        """True: all machines have the Template of the site."""
        self._check_managers = check_managers
        self._owners: dict[str, str] = {}
        self._touched = 0
        self._workflows: dict[str, str] = {}
        """By name, the uid of each Workflow that was ever there."""

    async def prepare(self, count: int, *, with_bmcs: bool = False) -> None:
        """Create this many Hardware and the cluster, and wait until CAPT declares the cluster ready."""
        for number in range(count):
            if with_bmcs and number % 2:
                secret, machine = bmc(number)
                await self.client.create(SECRET, secret, NAMESPACE)
                await self.client.create(BMC, machine)
            await self.client.create(OLD_HARDWARE, hardware(number))
        endpoint = {"host": "10.0.255.1", "port": 6443}
        reference = {"apiGroup": INFRASTRUCTURE, "kind": TINKERBELL_CLUSTER.kind, "name": "c"}
        spec = {"controlPlaneEndpoint": endpoint, "infrastructureRef": reference}
        self._cluster = await self.client.create(CLUSTER, _object(CLUSTER, "c", spec))
        image = {
            "imageLookupFormat": "{{.BaseRegistry}}/{{.OSDistro}}:{{.KubernetesVersion}}",
            "imageLookupBaseRegistry": "registry.example", "imageLookupOSDistro": "ubuntu",
        }  # fmt: skip
        labels, owners = {f"{CORE}/cluster-name": "c"}, [_owner(self._cluster, controller=True)]
        await self.client.create(
            TINKERBELL_CLUSTER, _object(TINKERBELL_CLUSTER, "c", image, labels=labels, ownerReferences=owners)
        )

        async def is_ready() -> Any:
            self._check_managers()
            found = await self.client.get(TINKERBELL_CLUSTER, "c", NAMESPACE)
            return bool(found.get("status", {}).get("ready"))

        await until(is_ready, "TinkerbellCluster c is not ready", within=PATIENCE_SECONDS, every=0.1)

    async def grow(self, names: Sequence[str], version: str = "v1.34.1") -> None:
        """Create these machines at once, wait until all are installed, and check them and all that were there."""
        before = await self._there()
        await self.create(names, version)
        await self.until_ready()
        await self._check_installed(names)
        await self._check_untouched(before, names)

    async def shrink(self, names: Sequence[str]) -> None:
        """Delete these machines at once, wait until they are released, and check them and all that stay."""
        before = await self._there()
        await self.delete(names)
        self.result.faults += [
            f"not deleted: {resource.kind} {name}"
            for resource in (TEMPLATE, WORKFLOW)
            for name in names
            if await self._is_there(resource, name)
        ]
        self.result.to_release += len(names)
        released = [place for place, (owner, _) in before.items() if owner in names]
        await self._check_released(released)
        await self._check_untouched(before, names)

    async def contend(self, names: Sequence[str]) -> None:
        """Create these machines at once, more than there are Hardware. Count the owners when each Hardware has one."""
        await self.create(names)

        waiting: list[str] = []

        async def is_settled() -> Any:
            self._check_managers()
            has_place = {
                name: bool(each["spec"].get("hardwareName")) for name, each in (await self._machines()).items()
            }
            places = await self._there()
            waiting[:] = [place for place, (owner, _) in places.items() if not has_place.get(owner)]
            if waiting:
                await self._touch([name for name, placed in has_place.items() if not placed])
            return not waiting

        await until(is_settled, lambda: f"without an owner: {waiting}", within=PATIENCE_SECONDS, every=0.5)
        owners = {place: owner for place, (owner, _) in (await self._there()).items()}
        places = Counter(owners.values())
        self.result.two_hardware += [f"{owner}: {number}" for owner, number in places.items() if number > 1]
        for name, machine in (await self._machines()).items():
            place = machine["spec"].get("hardwareName")
            if place and owners[place] != name:
                self.result.owners_at_once.append(f"{place}: {name} believes to have it, {owners[place]} has it")
        self.result.trials += len(names)
        self.result.chosen += len(places)
        await self.delete(names)
        for place, (owner, _) in (await self._there()).items():
            if owner:
                self.result.faults.append(f"{place} still belongs to {owner}, which was deleted")
                released = {"labels": dict.fromkeys((OWNER, OWNER_NAMESPACE)), "finalizers": None}
                await self.client.patch(OLD_HARDWARE, place, NAMESPACE, {"metadata": released})

    def owner_changed(self, new: Raw, old: Raw | None) -> None:
        """Note an owner that replaces another one. An event handler of the informer of Hardware."""
        metadata = new["metadata"]
        owner, before = metadata.get("labels", {}).get(OWNER, ""), self._owners.get(metadata["name"], "")
        if owner and before and owner != before:
            self.result.owners_at_once.append(f"{metadata['name']}: {before}, then {owner}")
        self._owners[metadata["name"]] = owner

    async def declare_running(self) -> None:
        """Write the status by which `clusterctl move` knows that nothing is being provisioned."""
        moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        initialized = {
            "type": "ControlPlaneInitialized", "status": "True", "reason": "Initialized", "lastTransitionTime": moment,
        }  # fmt: skip
        status = {"initialization": {"infrastructureProvisioned": True}, "conditions": [initialized]}
        await self.client.patch(CLUSTER, "c", NAMESPACE, {"status": status}, subresource="status")
        for name in await self._machines():
            node = {"status": {"nodeRef": {"name": name}}}
            await self.client.patch(MACHINE, name, NAMESPACE, node, subresource="status")

    async def moved(self) -> dict[str, tuple[str, Raw]]:
        """Return what a move takes along, by kind and name: the owner of a Hardware, and the object."""
        found = {f"Hardware {name}": held for name, held in (await self._there()).items()}
        for resource in (HARDWARE, BMC):
            for each in (await self.client.list(resource, NAMESPACE))["items"]:
                found[f"{resource.kind} {resource.version} {each['metadata']['name']}"] = ("", each["spec"])
        for secret in (await self.client.list(SECRET, NAMESPACE))["items"]:
            found[f"Secret {secret['metadata']['name']}"] = ("", secret["data"])
        for name, machine in (await self._machines()).items():
            found[f"TinkerbellMachine {name}"] = ("", machine["spec"])
        return found

    async def check_moved(self, before: dict[str, tuple[str, Raw]]) -> None:
        """Check that each object of the source is here, and that the owners are those of this API."""
        now = await self.moved()
        self.result.faults += [f"{name} came changed or not at all" for name in before if now.get(name) != before[name]]
        self.result.faults += [f"{name} came from nowhere" for name in now if name not in before]
        uids = {each["metadata"]["uid"] for each in (await self.client.list(MACHINE, NAMESPACE))["items"]}
        for name, machine in (await self._machines()).items():
            if {each["uid"] for each in machine["metadata"]["ownerReferences"]} - uids:
                self.result.faults.append(f"{name} belongs to a Machine of the source")

    async def check_gone(self) -> None:
        """Wait until the API has no object of the cluster any more, and none of Tinkerbell."""
        left: list[str] = []

        async def nothing_is_left() -> Any:
            left.clear()
            for resource in (CLUSTER, MACHINE, TINKERBELL_MACHINE, HARDWARE, TEMPLATE, WORKFLOW, JOB, BMC):
                listed = (await self.client.list(resource, NAMESPACE))["items"]
                left.extend(f"{resource.kind} {each['metadata']['name']}" for each in listed)
            return not left

        await until(nothing_is_left, lambda: f"still in the source: {', '.join(left)}", every=0.1)

    async def until_ready(self) -> None:
        """Install TinkerbellMachines as soon as they have a Workflow, until all are ready."""
        await self._until("not ready", lambda machine: bool(machine.get("status", {}).get("ready")), self._install)

    async def create(self, names: Sequence[str], version: str = "v1.34.1") -> None:
        """Create Machines of this Kubernetes version with their TinkerbellMachines, all at once."""
        await asyncio.gather(*(self._create_machine(name, version) for name in names))

    async def delete(self, names: Sequence[str]) -> None:
        """Delete TinkerbellMachines at once, then their Machines, when the finalizers are gone."""
        await asyncio.gather(*(self.client.delete(TINKERBELL_MACHINE, name, NAMESPACE) for name in names))
        await self._until("not deleted", lambda machine: machine["metadata"]["name"] not in names, self._power_off)
        await asyncio.gather(*(self.client.delete(MACHINE, name, NAMESPACE) for name in names))

    async def _create_machine(self, name: str, version: str) -> None:
        reference = {"apiGroup": INFRASTRUCTURE, "kind": TINKERBELL_MACHINE.kind, "name": name}
        bootstrap = {"dataSecretName": f"{name}-bootstrap"}
        spec = {"clusterName": "c", "version": version, "bootstrap": bootstrap, "infrastructureRef": reference}
        labels, owners = {f"{CORE}/cluster-name": "c"}, [_owner(self._cluster)]
        machine = await self.client.create(MACHINE, _object(MACHINE, name, spec, labels=labels, ownerReferences=owners))
        references = [_owner(machine, controller=True)]
        value = base64.b64encode(_bootstrap(name).encode()).decode()
        metadata = {"name": f"{name}-bootstrap", "ownerReferences": references}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"value": value}}
        await self.client.create(SECRET, secret, NAMESPACE)
        affinity = {"required": [{"labelSelector": {"matchLabels": {"type": "node"}}}]}
        wanted: Raw = {"hardwareAffinity": affinity, "bootOptions": {"bootMode": "netboot"}}
        if self.own_text or int(name.rpartition("-")[2]) % 2:
            wanted["templateOverride"] = TEXT
        await self.client.create(
            TINKERBELL_MACHINE,
            _object(TINKERBELL_MACHINE, name, wanted, labels=labels, ownerReferences=references),
        )

    async def _touch(self, names: Sequence[str]) -> None:
        """Write TinkerbellMachines, so that CAPT handles them now and not after its delay of up to 16 minutes."""
        self._touched += 1
        change = {"metadata": {"annotations": {"touched": str(self._touched)}}}
        await asyncio.gather(*(self.client.patch(TINKERBELL_MACHINE, name, NAMESPACE, change) for name in names))

    async def _machines(self) -> dict[str, Raw]:
        listed = (await self.client.list(TINKERBELL_MACHINE, NAMESPACE))["items"]
        return {each["metadata"]["name"]: each for each in listed}

    async def _there(self) -> dict[str, tuple[str, Raw]]:
        """Return the owner of each Hardware (v1alpha1) and the Hardware, without the parts that the server writes."""
        listed = (await self.client.list(OLD_HARDWARE, NAMESPACE))["items"]
        kept = ("labels", "annotations", "finalizers")
        return {
            each["metadata"]["name"]: (
                each["metadata"].get("labels", {}).get(OWNER, ""),
                {"spec": each["spec"], **{key: each["metadata"].get(key) for key in kept}},
            )
            for each in listed
        }

    async def _until(self, state: str, is_done: Callable[[Raw], bool], play: Callable[[], Any]) -> None:
        waiting: list[str] = []

        async def all_are_done() -> Any:
            self._check_managers()
            await play()
            waiting[:] = [name for name, machine in (await self._machines()).items() if not is_done(machine)]
            return not waiting

        await until(all_are_done, lambda: f"{state}: {', '.join(waiting)}", within=PATIENCE_SECONDS, every=0.1)

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
                with contextlib.suppress(NotFoundError):  # the garbage collector may have deleted it with its owner
                    await self.client.patch(
                        JOB, job["metadata"]["name"], NAMESPACE, {"status": status}, subresource="status"
                    )

    async def _check_installed(self, names: Sequence[str]) -> None:
        self.result.to_install += len(names)
        there, machines = await self._there(), await self._machines()
        today = {each["metadata"]["name"]: each for each in (await self.client.list(HARDWARE, NAMESPACE))["items"]}
        chosen: dict[str, str] = {}
        for name, machine in machines.items():
            place = machine["spec"]["hardwareName"]
            if place in chosen:
                self.result.owners_at_once.append(f"{place}: {chosen[place]} and {name} at the end")
            chosen[place] = name
            if name not in names:
                continue
            owner, found = there[place]
            data = _bootstrap(name).replace("PROVIDER_ID", f"tinkerbell://{NAMESPACE}/{place}")
            workflow = await self.client.get(OLD_WORKFLOW, name, NAMESPACE)
            wanted = hardware(int(place.removeprefix("hw-")))["spec"] | {"userData": data}
            held = {
                "spec": _without_defaults(found["spec"]) == wanted,
                "userdata in v1alpha2": today[place]["spec"].get("instance", {}).get("userdata") == data,
                "owner": owner == name,
                "finalizer": FINALIZER in (found["finalizers"] or []),
                "provisioned": (found["annotations"] or {}).get(PROVISIONED) == "true",
                "state": workflow["status"]["state"] == "SUCCESS",
                "rendering": workflow["status"].get("templateRendering") == "successful",
            }
            wrong = [part for part, holds in held.items() if not holds]
            self.result.faults += [f"{name} on {place}: {part}" for part in wrong]
            self.result.installed += not wrong
        places = Counter(owner for owner, _ in there.values() if owner)
        self.result.two_hardware += [f"{owner}: {number}" for owner, number in places.items() if number > 1]

    async def _check_untouched(self, before: dict[str, tuple[str, Raw]], names: Sequence[str]) -> None:
        """Check that the Hardware and the Workflows of all other machines are the same as before."""
        now = await self._there()
        self.result.faults += [
            f"{place} of {owner} has changed" for place, (owner, found) in before.items()
            if owner and owner not in names and now[place] != (owner, found)
        ]  # fmt: skip
        for workflow in (await self.client.list(WORKFLOW, NAMESPACE))["items"]:
            name, uid = workflow["metadata"]["name"], workflow["metadata"]["uid"]
            if self._workflows.setdefault(name, uid) != uid:
                self.result.installed_again.append(f"{name} has another Workflow")

    async def _check_released(self, places: Sequence[str]) -> None:
        there = await self._there()
        for name in places:
            _, found = there[name]
            spec = {key: value for key, value in _without_defaults(found["spec"]).items() if key != "userData"}
            held = {
                "spec": spec == hardware(int(name.removeprefix("hw-")))["spec"],
                "labels": found["labels"] == {"type": "node"},
                "provisioned": PROVISIONED not in (found["annotations"] or {}),
                "finalizer": FINALIZER not in (found["finalizers"] or []),
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
