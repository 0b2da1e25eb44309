"""Metal3's hosts and their Hardware on the embedded API: the controller as a process that is killed, with its role,
with kubectl; and as a part of the test where the order of its writes matters."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
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
from tink.api.metal3.crds import generate as generate_metal3
from tink.api.v1alpha2 import API_VERSION, Raw
from tink.convert.metal3 import HOST_LABEL, REFUSED_ANNOTATION, SECURED_ANNOTATION, HostOptions
from tink.kube.client import KubeClient, NotFoundError
from tink.kube.manifests import apply_object
from tink.kube.resources import CRD, HARDWARE, HARDWARE_DATA, MACHINE, SECRET, WORKFLOW
from tink.metal3.following import HOSTS, Follower
from tink.metal3.ownership import MANAGER, SAFETY_MANAGER
from tink.metal3.settings import Metal3Settings

__all__ = ["site"]

# --- as a process ----------------------------------------------------------------------------------------------------


@pytest.mark.since(30)
async def test_hosts_applied_by_kubectl_are_in_step_before_and_after_a_kill(site: Site, program: Program) -> None:
    process = site.start("--no-leader-elect", "--osie", "x86_64=hook")
    manifest = site.directory / "hosts.yaml"
    manifest.write_text(yaml.safe_dump_all([host(f"n{number}", number, architecture="x86_64") for number in range(4)]))
    command = [program.path, "--kubeconfig", str(site.api.kubeconfig), "apply", "-f", str(manifest)]
    ran = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    for number in range(4):
        await site.becomes(f"n{number}", False, process)  # nobody has said that it is free
    for number in range(3):
        await site.state(f"n{number}", "available")
        await site.becomes(f"n{number}", True, process)
    made = await site.hardware("n0")
    assert made is not None
    assert made["spec"]["osie"] == {"name": "hook"}
    assert made["metadata"]["labels"][HOST_LABEL] == f"{NAMESPACE}.n0"

    process.popen.send_signal(signal.SIGKILL)
    process.status()
    await site.state("n0", "provisioned")
    await site.client.delete(HOST, "n1", NAMESPACE)
    await site.state("n3", "available")
    await site.client.patch(
        HOST, "n2", NAMESPACE, {"metadata": {"annotations": {"baremetalhost.metal3.io/paused": ""}}}
    )
    again = site.start("--no-leader-elect", "--osie", "x86_64=hook")
    for name, netboots in (("n0", False), ("n1", None), ("n2", False), ("n3", True)):
        await site.becomes(name, netboots, again)
    assert again.terminate() == 0
    assert "Traceback" not in process.err + again.err


async def test_controller_works_with_its_role_and_needs_all_of_it(site: Site) -> None:
    await apply_object(site.client, CRD, RUFIO, "test")
    gate = await site.gate("tinkedge-metal3-secrets", "tinkedge-metal3-bmc")
    process = site.start("--lease-namespace", HOME, "--bmc", kubeconfig=gate.kubeconfig)
    await site.secret("net", networkData=NETWORK % mac(1).encode())
    bmc = {"address": "redfish://192.0.2.7", "credentialsName": "bmc"}
    await site.host("n0", 1, networkData={"name": "net"}, userData={"name": "user"}, bmc=bmc)
    await site.becomes("n0", True, process)
    made = await site.hardware("n0")
    assert made is not None
    assert made["spec"]["networkInterfaces"][mac(1)]["dhcp"]["ip"] == "10.0.0.5"
    assert made["metadata"]["annotations"]["tinkerbell.org/userdata-secret"] == "user"

    async def machine_gone() -> bool:
        with contextlib.suppress(NotFoundError):
            await site.client.get(MACHINE, "n0", NAMESPACE)
            return False
        return True

    async def machine_there() -> bool:
        return not await machine_gone()

    await site.until(machine_there, process)
    machine = await site.client.get(MACHINE, "n0", NAMESPACE)
    assert machine["spec"]["connection"]["authSecretRef"] == {"name": "bmc", "namespace": NAMESPACE}
    await site.state("n0", "provisioned")
    await site.becomes("n0", False, process)
    await site.is_told("n0", "NetbootRefused", "provisioned")
    await site.client.delete(HOST, "n0", NAMESPACE)
    await site.becomes("n0", None, process)
    await site.until(machine_gone, process)
    assert await asyncio.to_thread(process.terminate) == 0
    assert gate.refused == []
    assert {wish.name for wish in gate.wishes if wish.resource == "secrets"} == {"net"}
    # An API asks for `create` besides `patch` where what is applied is not there; who waits to lead watches the Lease.
    unused = {("create", "hardware"), ("create", "machines"), ("watch", "leases")}
    assert {(grant.verb, grant.resource) for grant in gate.unused()} == unused


async def test_once_brings_all_in_step_and_says_if_it_could_not(site: Site) -> None:
    await site.host("good", 1)
    await site.host("waits", 2, networkData={"name": "missing"})
    ran = site.start("--once")
    assert await asyncio.to_thread(ran.status) == 1
    assert "Secret metal3/missing does not exist: create it" in ran.err
    assert await site.netboots("good") is True
    assert await site.netboots("waits") is None
    await site.is_told("waits", "NotInStep", "missing")
    await site.secret("missing", value=NETWORK % mac(2).encode())
    ran = site.start("--once")
    assert await asyncio.to_thread(ran.status) == 0, ran.err
    assert await site.netboots("waits") is True


# --- what is whose ---------------------------------------------------------------------------------------------------


async def test_hardware_that_somebody_else_made_is_left_alone(site: Site) -> None:
    theirs = {
        "apiVersion": API_VERSION, "kind": "Hardware", "metadata": {"name": "n0", "namespace": NAMESPACE},
        "spec": {"networkInterfaces": {mac(1): {}}},
    }  # fmt: skip
    before = await site.client.create(HARDWARE, theirs)
    await site.host("n0", 1, "provisioned")
    await site.follow()
    await site.is_told("n0", "NotOurs", "left alone")
    await site.client.delete(HOST, "n0", NAMESPACE)
    await site.host("n1", 2)
    await site.becomes("n1", True)
    after = await site.hardware("n0")
    assert after is not None
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


async def test_field_that_a_user_sets_stays_and_is_told_but_no_user_lets_a_provisioned_host_netboot(site: Site) -> None:
    await site.host("n0", 1, architecture="x86_64")
    await site.follow(Metal3Settings(HostOptions({"x86_64": "hook"})))
    await site.becomes("n0", True)
    patch = {"spec": {"osie": {"name": "theirs"}, "networkInterfaces": {mac(9): {"disableNetboot": False}}}}
    await site.client.patch(HARDWARE, "n0", NAMESPACE, patch)
    await site.is_told("n0", "NotInStep", "osie")
    await site.state("n0", "provisioned")
    await site.becomes("n0", False)
    interfaces = {each: {"disableNetboot": False} for each in (mac(1), mac(9))}
    await site.client.patch(HARDWARE, "n0", NAMESPACE, {"spec": {"networkInterfaces": interfaces}})
    await site.becomes("n0", False)
    made = await site.hardware("n0")
    assert made is not None
    assert made["spec"]["osie"] == {"name": "theirs"}
    await site.client.patch(HARDWARE, "n0", NAMESPACE, {"spec": {"osie": {"name": "hook"}}})
    await site.state("n0", "available")

    async def free() -> bool:
        found = await site.hardware("n0")
        assert found is not None
        interface = found["spec"]["networkInterfaces"][mac(1)]
        return not interface.get("disableNetboot") and REFUSED_ANNOTATION not in found["metadata"]["annotations"]

    await site.until(free)
    made = await site.hardware("n0")
    assert made is not None
    assert SECURED_ANNOTATION not in made["metadata"]["annotations"]


async def test_hardware_of_a_deleted_host_stays_until_no_workflow_runs_on_it(site: Site) -> None:
    await site.host("n0", 1)
    await site.follow()
    await site.becomes("n0", True)
    work = {
        "apiVersion": API_VERSION, "kind": "Workflow", "metadata": {"name": "w", "namespace": NAMESPACE},
        "spec": {"hardwareRef": {"name": "n0"}, "templateRef": {"name": "t"}},
    }  # fmt: skip
    await site.client.create(WORKFLOW, work)
    await site.client.patch(WORKFLOW, "w", NAMESPACE, {"status": {"state": "Running"}}, subresource="status")
    await site.client.delete(HOST, "n0", NAMESPACE)
    await site.is_told("n0", "DeletionWaits", ": w")
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
    await site.client.patch(HOST, "n0", NAMESPACE, {"spec": consumer})
    await site.becomes("n0", False)

    async def says_who() -> bool:
        found = await site.hardware("n0")
        assert found is not None
        return "Metal3Machine m" in found["metadata"]["annotations"].get(REFUSED_ANNOTATION, "")

    await site.until(says_who)
    await site.is_told("n1", "NotCarriedOver", "--consumed")
    assert await site.hardware("n1") is None


async def test_host_whose_secret_goes_keeps_its_address_and_still_stops_netbooting(site: Site) -> None:
    await site.secret("net", networkData=NETWORK % mac(1).encode())
    await site.host("n0", 1, networkData={"name": "net"})
    await site.follow(Metal3Settings(resync=1.0))
    await site.becomes("n0", True)
    await site.client.delete(SECRET, "net", NAMESPACE)
    await site.is_told("n0", "NotInStep", "net")
    await site.state("n0", "provisioned")
    await site.becomes("n0", False)
    made = await site.hardware("n0")
    assert made is not None
    assert made["spec"]["networkInterfaces"][mac(1)]["dhcp"]["ip"] == "10.0.0.5"
    await site.secret("net", networkData=NETWORK.replace(b"10.0.0.5", b"10.0.0.6") % mac(1).encode())

    async def moved() -> bool:
        found = await site.hardware("n0")
        return found is not None and found["spec"]["networkInterfaces"][mac(1)]["dhcp"]["ip"] == "10.0.0.6"

    await site.until(moved)


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
            await site.client.patch(HOST, name, NAMESPACE, {"metadata": {"labels": {"changed": "yes"}}})
    written: list[tuple[str, str]] = []
    apply = KubeClient.apply

    async def recorded(self: KubeClient, *words: Any, **options: Any) -> Raw:
        written.append((words[1], options["manager"]))
        return await apply(self, *words, **options)

    monkeypatch.setattr(KubeClient, "apply", recorded)
    await site.follow()
    await site.becomes("n39", True)
    await site.until(lambda: _all_applied(written, 40))
    assert sorted(written[:5]) == [(name, SAFETY_MANAGER) for name in unsafe]
    assert {name for name, manager in written if manager == SAFETY_MANAGER} == set(unsafe)
    assert {name for name, manager in written if manager == MANAGER} == {f"n{number:02}" for number in range(40)}


async def _all_applied(written: list[tuple[str, str]], count: int) -> bool:
    return len({name for name, manager in written if manager == MANAGER}) == count


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
    new = HOSTS[1]
    body = {**host("n1", 2), "apiVersion": new.api_version}
    body["spec"] = {"poweredOn": True, "bootMACAddress": mac(2), "rootDeviceHints": {"devicePath": "/dev/sdb"}}
    await site.client.create(new, body)
    await site.client.patch(new, "n1", NAMESPACE, {"status": status("available")}, subresource="status")
    await site.becomes("n1", True)
    made = await site.hardware("n1")
    assert made is not None
    assert made["spec"]["storageDevices"] == ["/dev/sdb"]
    details = {
        "apiVersion": HARDWARE_DATA.api_version, "kind": "HardwareData",
        "metadata": {"name": "n1", "namespace": NAMESPACE},
        "spec": {"hardware": {"nics": [{"mac": mac(3)}], "storage": [{"name": "/dev/sdb"}, {"name": "/dev/sdc"}]}},
    }  # fmt: skip
    await site.client.create(HARDWARE_DATA, details)

    async def inspected() -> bool:
        found = await site.hardware("n1")
        return found is not None and found["spec"].get("storageDevices") == ["/dev/sdb", "/dev/sdc"]

    await site.until(inspected)


def test_account_of_the_role_is_bound_where_it_is() -> None:
    objects = list(yaml.safe_load_all(ROLES.read_text()))
    bound = {subject["name"] for obj in objects for subject in obj.get("subjects", [])}
    assert bound == {ACCOUNT}
    for obj in objects:
        for rule in obj.get("rules", []):
            assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]
