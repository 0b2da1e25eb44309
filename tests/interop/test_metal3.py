"""Metal3's hosts and their Hardware on the embedded API: the controller as a process that is killed, with its role, and
with kubectl; and as a part of the test where the order of its writes matters.

At no moment may a machine netboot that must not, however slow the API is and however long the queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml

from tests.interop.conftest import Program
from tests.interop.metal3_site import (
    ACCOUNT,
    HOME,
    HOST,
    NAMESPACE,
    NETWORK,
    ROLES,
    RUFIO,
    Site,
    host,
    mac,
    site,
    status,
)
from tests.support import objects
from tests.waiting import until
from tink.api.metal3.crds import generate as generate_metal3
from tink.api.v1alpha2 import Raw
from tink.convert.metal3.safety import HOST_LABEL, REFUSED_ANNOTATION, SECURED_ANNOTATION
from tink.convert.metal3.to_hardware import HostOptions
from tink.kube.cache import Informer
from tink.kube.client import ApiError, KubeClient, NotFoundError
from tink.kube.manifests import apply_object
from tink.kube.resources import CRD, HARDWARE, HARDWARE_DATA, MACHINE, SECRET, WORKFLOW, ResourceType
from tink.metal3.controller import HOSTS, Follower
from tink.metal3.hosts import MANAGER, SAFETY_MANAGER, netboots
from tink.metal3.settings import Metal3Settings

__all__ = ["site"]

# --- as a process ----------------------------------------------------------------------------------------------------


@pytest.mark.since(30)
async def test_hosts_applied_by_kubectl_are_synchronised_before_and_after_a_kill(site: Site, program: Program) -> None:
    process = site.start("--no-leader-elect", "--osie", "x86_64=hook")
    manifest = site.directory / "hosts.yaml"
    manifest.write_text(yaml.safe_dump_all([host(f"n{number}", number, architecture="x86_64") for number in range(4)]))
    command = [program.path, "--kubeconfig", str(site.api.kubeconfig), "apply", "-f", str(manifest)]
    ran = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    for number in range(4):
        await site.becomes(f"n{number}", False, process)  # no object says that the host is free
    for number in range(3):
        await site.state(f"n{number}", "available")
        hardware = await site.becomes(f"n{number}", True, process)
    assert hardware["spec"]["osie"] == {"name": "hook"}
    assert hardware["metadata"]["labels"][HOST_LABEL] == f"{NAMESPACE}.n2"

    process.popen.send_signal(signal.SIGKILL)
    process.status()
    await site.state("n0", "provisioned")
    await site.client.delete(HOST, "n1", NAMESPACE)
    await site.state("n3", "available")
    await site.pause("n2")
    again = site.start("--no-leader-elect", "--osie", "x86_64=hook")
    for name, does in (("n0", False), ("n1", None), ("n2", False), ("n3", True)):
        await site.becomes(name, does, again)
    assert again.terminate() == 0
    assert "Traceback" not in process.err + again.err


async def test_controller_works_with_its_role_and_needs_every_rule(site: Site) -> None:
    await apply_object(site.client, CRD, RUFIO, "test")
    gate = await site.gate("tinkedge-metal3-secrets", "tinkedge-metal3-bmc")
    process = site.start("--lease-namespace", HOME, "--bmc", kubeconfig=gate.kubeconfig)
    await site.secret("net", networkData=NETWORK % mac(1).encode())
    bmc = {"address": "redfish://192.0.2.7", "credentialsName": "bmc"}
    await site.host("n0", 1, networkData={"name": "net"}, userData={"name": "user"}, bmc=bmc)
    hardware = await site.becomes("n0", True, process)
    assert hardware["spec"]["networkInterfaces"][mac(1)]["dhcp"]["ip"] == "10.0.0.5"
    assert hardware["metadata"]["annotations"]["tinkerbell.org/userdata-secret"] == "user"

    async def machine() -> Raw | None:
        with contextlib.suppress(NotFoundError):
            return await site.client.get(MACHINE, "n0", NAMESPACE)
        return None

    machine_object: Raw = await until(machine, lambda: process.err)
    assert machine_object["spec"]["connection"]["authSecretRef"] == {"name": "bmc", "namespace": NAMESPACE}
    await site.state("n0", "provisioned")
    await site.becomes("n0", False, process)
    await site.wait_for_event("n0", "NetbootRefused", "provisioned")
    await site.client.delete(HOST, "n0", NAMESPACE)
    await site.becomes("n0", None, process)

    async def is_gone() -> bool:
        return await machine() is None

    await site.until(is_gone, process)
    assert await asyncio.to_thread(process.terminate) == 0
    assert gate.refused == []
    assert {wish.name for wish in gate.wishes if wish.resource == "secrets"} == {"net"}
    # Apply needs `create` besides `patch` if the object does not exist. A standby controller watches the Lease.
    unused = {("create", "hardware"), ("create", "machines"), ("watch", "leases")}
    assert {(grant.verb, grant.resource) for grant in gate.unused()} == unused


async def test_once_synchronises_all_hosts_and_reports_failures(site: Site) -> None:
    await site.host("good", 1)
    await site.host("waits", 2, networkData={"name": "missing"})
    ran = site.start("--once")
    assert await asyncio.to_thread(ran.status) == 1
    assert "Secret metal3/missing does not exist: create it" in ran.err
    assert await site.netboots("good") is True
    assert await site.netboots("waits") is None
    await site.wait_for_event("waits", "NotInStep", "missing")
    await site.secret("missing", value=NETWORK % mac(2).encode())
    ran = site.start("--once")
    assert await asyncio.to_thread(ran.status) == 0, ran.err
    assert await site.netboots("waits") is True


# --- ownership -------------------------------------------------------------------------------------------------------


async def test_hardware_of_another_owner_is_left_alone(site: Site) -> None:
    theirs = objects.hardware("n0", mac(1), None, namespace=NAMESPACE)
    before = await site.client.create(HARDWARE, theirs)
    await site.host("n0", 1, "provisioned")
    await site.follow()
    await site.wait_for_event("n0", "NotOurs", "left alone")
    await site.client.delete(HOST, "n0", NAMESPACE)
    await site.host("n1", 2)
    await site.becomes("n1", True)
    assert await site.hardware("n0") == before


async def test_field_that_a_user_sets_stays_and_is_reported_but_no_user_lets_a_provisioned_host_netboot(
    site: Site,
) -> None:
    await site.host("n0", 1, architecture="x86_64")
    await site.follow(Metal3Settings(HostOptions({"x86_64": "hook"})))
    await site.becomes("n0", True)
    patch = {"spec": {"osie": {"name": "theirs"}, "networkInterfaces": {mac(9): {"disableNetboot": False}}}}
    await site.client.patch(HARDWARE, "n0", NAMESPACE, patch)
    await site.wait_for_event("n0", "NotInStep", "osie")
    await site.state("n0", "provisioned")
    await site.becomes("n0", False)
    interfaces = {each: {"disableNetboot": False} for each in (mac(1), mac(9))}
    await site.client.patch(HARDWARE, "n0", NAMESPACE, {"spec": {"networkInterfaces": interfaces}})
    hardware = await site.becomes("n0", False)
    assert hardware["spec"]["osie"] == {"name": "theirs"}
    await site.client.patch(HARDWARE, "n0", NAMESPACE, {"spec": {"osie": {"name": "hook"}}})
    await site.state("n0", "available")

    def is_free(current: Raw) -> bool:
        metadata, interface = current["metadata"], current["spec"]["networkInterfaces"][mac(1)]
        notes = {REFUSED_ANNOTATION, SECURED_ANNOTATION}
        return not interface.get("disableNetboot") and not notes & {*metadata["annotations"]}

    await site.shows("n0", is_free)


async def test_hardware_of_a_deleted_host_stays_until_no_workflow_runs_on_it(site: Site) -> None:
    await site.host("n0", 1)
    await site.follow()
    await site.becomes("n0", True)
    await site.client.create(WORKFLOW, objects.workflow(hardware="n0", namespace=NAMESPACE))
    await site.client.patch(WORKFLOW, "w", NAMESPACE, {"status": {"state": "Running"}}, subresource="status")
    await site.client.delete(HOST, "n0", NAMESPACE)
    await site.wait_for_event("n0", "DeletionWaits", ": w")
    assert await site.netboots("n0") is False
    await site.client.patch(WORKFLOW, "w", NAMESPACE, {"status": {"state": "Failed"}}, subresource="status")
    await site.becomes("n0", None)


async def test_host_that_cluster_api_takes_keeps_its_hardware_and_gets_none_if_it_had_none(site: Site) -> None:
    consumer = {
        "consumerRef": {"kind": "Metal3Machine", "name": "m", "apiVersion": "infrastructure.cluster.x-k8s.io/v1"}
    }
    await site.host("n0", 1)
    await site.host("n1", 2, **consumer)
    await site.follow()
    await site.becomes("n0", True)
    await site.change("n0", spec=consumer)
    await site.becomes("n0", False)

    taken = "Metal3Machine m"
    await site.shows("n0", lambda found: taken in found["metadata"]["annotations"].get(REFUSED_ANNOTATION, ""))
    await site.wait_for_event("n1", "NotCarriedOver", "--consumed")
    assert await site.hardware("n1") is None


async def test_host_whose_secret_is_deleted_keeps_its_address_and_still_stops_netbooting(site: Site) -> None:
    await site.secret("net", networkData=NETWORK % mac(1).encode())
    await site.host("n0", 1, networkData={"name": "net"})
    await site.follow(Metal3Settings(resync=1.0))
    await site.becomes("n0", True)
    await site.client.delete(SECRET, "net", NAMESPACE)
    await site.wait_for_event("n0", "NotInStep", "net")
    await site.state("n0", "provisioned")
    hardware = await site.becomes("n0", False)
    assert hardware["spec"]["networkInterfaces"][mac(1)]["dhcp"]["ip"] == "10.0.0.5"
    await site.secret("net", networkData=NETWORK.replace(b"10.0.0.5", b"10.0.0.6") % mac(1).encode())

    def address(current: Raw) -> Any:
        return current["spec"]["networkInterfaces"][mac(1)]["dhcp"]["ip"]

    await site.shows("n0", lambda current: address(current) == "10.0.0.6")


# --- order, versions -------------------------------------------------------------------------------------------------


async def test_machines_that_must_not_netboot_come_first_at_the_start(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        await site.host(f"n{number:02}", number)
    assert await Follower(site.api.kubeconfig, None, (), Metal3Settings(), None).once() == 0
    unsafe = [f"n{number:02}" for number in range(30, 35)]
    for number in range(40):
        name = f"n{number:02}"
        if name in unsafe:
            await site.state(name, "provisioned")
        else:
            await site.change(name, metadata={"labels": {"changed": "yes"}})
    written: list[tuple[str, str]] = []
    apply = KubeClient.apply

    async def recorded(self: KubeClient, *words: Any, **options: Any) -> Raw:
        written.append((words[1], options["manager"]))
        return await apply(self, *words, **options)

    monkeypatch.setattr(KubeClient, "apply", recorded)
    await site.follow()
    await site.becomes("n39", True)
    await until(lambda: len({name for name, manager in written if manager == MANAGER}) == 40)
    assert sorted(written[:5]) == [(name, SAFETY_MANAGER) for name in unsafe]
    assert {name for name, manager in written if manager == SAFETY_MANAGER} == set(unsafe)
    assert {name for name, manager in written if manager == MANAGER} == {f"n{number:02}" for number in range(40)}


async def test_hosts_are_followed_in_the_version_that_is_served_and_in_the_other_one_after_that(site: Site) -> None:
    await site.host("n0", 1)
    await site.follow()
    await site.becomes("n0", True)
    hosts = generate_metal3()[0]
    await site.client.delete(HOST, "n0", NAMESPACE)
    await site.becomes("n0", None)
    versions = [
        {**each, "served": each["name"] == "v1beta1", "storage": each["name"] == "v1beta1"}
        for each in hosts["spec"]["versions"]
    ]
    await site.client.patch(CRD, hosts["metadata"]["name"], None, {"spec": {"versions": versions}})
    await create_new(site, "n1", 2, rootDeviceHints={"devicePath": "/dev/sdb"})
    hardware = await site.becomes("n1", True)
    assert hardware["spec"]["storageDevices"] == ["/dev/sdb"]
    details = {
        "apiVersion": HARDWARE_DATA.api_version, "kind": "HardwareData",
        "metadata": {"name": "n1", "namespace": NAMESPACE},
        "spec": {"hardware": {"nics": [{"mac": mac(3)}], "storage": [{"name": "/dev/sdb"}, {"name": "/dev/sdc"}]}},
    }  # fmt: skip
    await site.client.create(HARDWARE_DATA, details)

    await site.shows("n1", lambda found: found["spec"].get("storageDevices") == ["/dev/sdb", "/dev/sdc"])


async def create_new(site: Site, name: str, number: int, **spec: Any) -> None:
    """Create an available host of the new version."""
    new = HOSTS[1]
    spec = {"poweredOn": True, "bootMACAddress": mac(number), **spec}
    await site.client.create(new, {**host(name, number), "apiVersion": new.api_version, "spec": spec})
    await site.client.patch(new, name, NAMESPACE, {"status": status("available")}, subresource="status")


# --- never netboot by mistake ----------------------------------------------------------------------------------------


class Slow:
    """Delays the API's answers for Secrets until the test releases them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests = 0
        self._answering = asyncio.Event()
        self._answering.set()
        get = KubeClient.get

        async def delayed(client: KubeClient, resource: ResourceType, name: str, namespace: str | None) -> Raw:
            if resource is SECRET:
                self.requests += 1
                await self._answering.wait()
            return await get(client, resource, name, namespace)

        monkeypatch.setattr(KubeClient, "get", delayed)

    def stop(self) -> None:
        self.requests = 0
        self._answering.clear()

    def release(self) -> None:
        self._answering.set()

    async def wait_for_requests(self, times: int) -> None:
        await until(lambda: self.requests >= times)


async def record_netboots(site: Site, name: str) -> list[bool]:
    """Return a list that grows with each change of a Hardware: True if it then netboots."""
    seen: list[bool] = []
    informer = Informer(site.client, HARDWARE, [NAMESPACE])
    informer.add_event_handler(lambda new, _: seen.append(netboots(new)) if new["metadata"]["name"] == name else None)
    site.keep(informer.run())
    await informer.wait_for_cache_sync()
    return seen


async def test_hosts_stop_netbooting_although_every_check_hangs(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await site.secret("net", networkData=b"{}")
    for number in range(12):
        await site.host(f"n{number}", number, networkData={"name": "net"})
    slow = Slow(monkeypatch)
    await site.follow()
    for number in range(12):
        await site.becomes(f"n{number}", True)
    slow.stop()
    for number in range(12):
        await site.change(f"n{number}", metadata={"labels": {"changed": "yes"}})
    await slow.wait_for_requests(6)
    for number in range(12):
        await site.state(f"n{number}", "provisioned")
    for number in range(12):
        await site.becomes(f"n{number}", False)
    slow.release()


async def test_host_provisioned_behind_the_informer_gets_a_hardware_that_does_not_netboot(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = KubeClient.watch

    @contextlib.asynccontextmanager
    async def silent(client: KubeClient, resource: ResourceType, *words: Any, **more: Any) -> AsyncIterator[Any]:
        if resource.plural == "baremetalhosts" and not more["send_initial_events"]:
            await asyncio.Event().wait()
        if resource.plural == "baremetalhosts":
            raise ApiError(422, "Invalid", "this one lists, and then watches")
        async with watch(client, resource, *words, **more) as stream:
            yield stream

    monkeypatch.setattr(KubeClient, "watch", silent)
    await site.host("n0", 1, networkData={"name": "net"})
    await site.follow(Metal3Settings(retry_longest=0.3))
    await site.wait_for_event("n0", "NotInStep", "net")
    await site.state("n0", "provisioned")
    seen = await record_netboots(site, "n0")
    await site.secret("net", networkData=b"{}")
    await site.becomes("n0", False)
    assert set(seen) <= {False}


async def test_host_that_is_taken_while_its_secret_is_read_does_not_netboot_for_a_moment(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.secret("net", networkData=b"{}")
    await site.host("n0", 1, networkData={"name": "net"})
    await site.host("n1", 2)
    slow = Slow(monkeypatch)
    await site.follow()
    for name in ("n0", "n1"):
        await site.becomes(name, True)
    await site.state("n0", "provisioned")
    await site.becomes("n0", False)
    await site.wait_for_event("n0", "NetbootRefused", "provisioned")
    seen = await record_netboots(site, "n0")
    slow.stop()
    await site.state("n0", "available")
    await slow.wait_for_requests(1)
    await site.pause("n0")
    await site.state("n1", "provisioned")
    await site.becomes("n1", False)  # so the informer has seen the earlier changes
    slow.release()
    await site.wait_for_event("n0", "NetbootRefused", "paused")
    assert set(seen) == {False}


async def test_netboot_is_turned_off_soon_after_an_api_that_refused_it_for_long(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tink.metal3.controller._SAFETY_RETRY_SECONDS", 0.5)
    await site.host("n0", 1)
    await site.follow(Metal3Settings(retry_first=30.0, retry_longest=60.0))
    await site.becomes("n0", True)
    apply = KubeClient.apply

    async def refused(*_: Any, **__: Any) -> Raw:
        raise ApiError(503, "ServiceUnavailable", "the API is not well")

    monkeypatch.setattr(KubeClient, "apply", refused)
    await site.state("n0", "provisioned")
    await site.wait_for_event("n0", "NotInStep", "not well")
    monkeypatch.setattr(KubeClient, "apply", apply)
    await site.becomes("n0", False)


async def test_hosts_are_followed_as_they_are_stored_when_the_webhook_that_converts_them_dies(site: Site) -> None:
    old, new = HOSTS
    hosts = generate_metal3(storage="v1beta1")[0]
    await site.client.patch(CRD, hosts["metadata"]["name"], None, {"spec": {"versions": hosts["spec"]["versions"]}})
    await create_new(site, "n0", 1)
    await site.follow()
    await site.becomes("n0", False)  # read as v1alpha1 without a webhook: the object lacks `online`
    dead = {"strategy": "Webhook", "webhook": {
        "conversionReviewVersions": ["v1"], "clientConfig": {"url": "https://127.0.0.1:1/convert"},
    }}  # fmt: skip
    await site.client.patch(CRD, hosts["metadata"]["name"], None, {"spec": {"conversion": dead}})
    with pytest.raises(ApiError, match="webhook"):
        await site.client.list(old)
    await site.becomes("n0", True)
    await site.client.patch(new, "n0", NAMESPACE, {"status": status("provisioned")}, subresource="status")
    await site.becomes("n0", False)


def test_role_is_bound_to_its_service_account() -> None:
    objects = list(yaml.safe_load_all(ROLES.read_text()))
    bound = {subject["name"] for obj in objects for subject in obj.get("subjects", [])}
    assert bound == {ACCOUNT}
    for obj in objects:
        for rule in obj.get("rules", []):
            assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]
