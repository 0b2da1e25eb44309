"""Hosts, HardwareData and Secrets of a tenant who tries to stop, slow or take over the machines of another."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.interop.metal3_site import HOST, NAMESPACE, Site, host, mac, site, status
from tests.waiting import until
from tink.api.v1alpha2 import API_VERSION, Raw
from tink.convert.metal3.safety import SECURED_ANNOTATION
from tink.kube.client import NotFoundError
from tink.kube.resources import EVENT, HARDWARE, HARDWARE_DATA, SECRET, ResourceType
from tink.metal3.hosts import netboots
from tink.metal3.settings import Metal3Settings

__all__ = ["site"]

TENANT = "hostile"


class Tenant:
    """A user who may write BareMetalHosts in one namespace, and nothing elsewhere."""

    def __init__(self, site: Site) -> None:
        self.site = site

    async def move_in(self) -> None:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TENANT}}
        await self.site.client.create(ResourceType("", "v1", "namespaces", "Namespace", namespaced=False), body)

    async def host(self, name: str, number: int, state: str = "available", **spec: Any) -> None:
        body = host(name, number, **spec)
        annotations = body["spec"].pop("annotations", {})
        body["metadata"] |= {"namespace": TENANT, "annotations": annotations}
        await self.site.client.create(HOST, body)
        await self.state(name, state)

    async def state(self, name: str, state: str) -> None:
        await self.site.client.patch(HOST, name, TENANT, {"status": status(state)}, subresource="status")

    async def inspected(self, name: str, hardware: Raw) -> None:
        body = {
            "apiVersion": HARDWARE_DATA.api_version, "kind": HARDWARE_DATA.kind,
            "metadata": {"name": name, "namespace": TENANT}, "spec": {"hardware": hardware},
        }  # fmt: skip
        await self.site.client.create(HARDWARE_DATA, body)

    async def secret(self, name: str, key: str, value: str) -> None:
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": TENANT}}
        await self.site.client.create(SECRET, {**body, "stringData": {key: value}})

    async def hardware(self, name: str) -> Raw | None:
        try:
            return await self.site.client.get(HARDWARE, name, TENANT)
        except NotFoundError:
            return None

    async def netboots(self, name: str) -> Raw:
        """Wait until the host has a Hardware that netboots, and return it."""

        async def holds() -> Raw | None:
            hardware = await self.hardware(name)
            return hardware if hardware is not None and netboots(hardware) else None

        return await until(holds, f"{name} does not netboot", every=0.05)

    async def wait_for_event(self, name: str, reason: str) -> str:
        messages: list[str] = []

        async def holds() -> bool:
            events = (await self.site.client.list(EVENT, TENANT))["items"]
            messages[:] = [
                e["message"] for e in events if e["reason"] == reason and e["involvedObject"]["name"] == name
            ]
            return bool(messages)

        await self.site.until(holds)
        return messages[0]


@pytest.fixture
async def tenant(site: Site) -> Tenant:
    new_tenant = Tenant(site)
    await new_tenant.move_in()
    return new_tenant


# --- slow conversions ------------------------------------------------------------------------------------------------


async def test_host_whose_conversion_is_made_expensive_does_not_hold_up_the_safety_of_others(
    site: Site, tenant: Tenant
) -> None:
    """Each hint is compared with each disk of the inventory: this once took minutes, in which nothing else ran."""
    await site.host("victim", 1)
    await site.follow()
    await site.becomes("victim", True)
    disks = [{"name": f"/dev/s{number}", "vendor": "x", "sizeBytes": 1} for number in range(4_500)]
    await tenant.inspected("slow", {"storage": disks})
    await tenant.host("slow", 2, rootDeviceHints={"vendor": "%20" * 10_000})
    links: list[Raw] = [{"id": "b", "type": "bond", "bond_links": ["a"] * 100_000}]
    links.append({"id": "a", "ethernet_mac_address": mac(3)})
    networks = [{"link": "b", "ip_address": f"10.0.1.{number}"} for number in range(250)]
    await tenant.secret("net", "networkData", json.dumps({"links": links, "networks": networks}))
    await tenant.host("bond", 3, networkData={"name": "net"})
    await site.state("victim", "provisioned")
    await site.becomes("victim", False)
    for name in ("slow", "bond"):
        await until(lambda name=name: tenant.hardware(name), f"no Hardware {name}", every=0.05)


async def test_other_machines_stop_netbooting_however_many_hosts_of_a_tenant_change_all_the_time(
    site: Site, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller handles one host of a tenant after the other, so a slow tenant delays only its own hosts."""
    names = [f"flaps{number}" for number in range(60)]
    for number, name in enumerate(names):
        await tenant.host(name, 100 + number)
    await site.host("victim", 1)
    await site.follow()
    await site.becomes("victim", True)
    for name in names:
        await tenant.netboots(name)
    order: list[str] = []
    apply = type(site.client).apply

    async def slow(client: Any, resource: ResourceType, name: str, *words: Any, **options: Any) -> Raw:
        order.append(name)
        await asyncio.sleep(0.02)
        return await apply(client, resource, name, *words, **options)

    monkeypatch.setattr(type(site.client), "apply", slow)
    for name in names:
        await tenant.state(name, "provisioned")
    await site.state("victim", "provisioned")
    seen = len(order)
    await site.becomes("victim", False)
    assert order.index("victim") - seen <= 8, "it waited for the hosts of another"


# --- other tenants' machines -----------------------------------------------------------------------------------------


async def test_host_with_the_mac_of_anothers_machine_gets_no_hardware_until_the_other_is_gone(
    site: Site, tenant: Tenant
) -> None:
    """If two Hardware have one MAC address, the edge serves neither: any tenant could switch a machine off."""
    await site.host("victim", 1)
    await site.follow(Metal3Settings(retry_longest=0.3))
    await site.becomes("victim", True)
    for number in range(20):
        await tenant.host(f"thief{number}", 1)
    message = await tenant.wait_for_event("thief0", "AddressTaken")
    assert mac(1) in message
    assert "victim" not in message, "whose it is, is none of the tenant's business"
    assert [each["metadata"]["name"] for each in (await site.client.list(HARDWARE, None))["items"]] == ["victim"]
    await site.client.delete(HOST, "victim", NAMESPACE)

    async def one_has_it() -> bool:
        there = (await site.client.list(HARDWARE, None))["items"]
        return [each["metadata"]["namespace"] for each in there] == [TENANT]

    await site.until(one_has_it)


async def test_addresses_of_anothers_machine_and_of_no_machine_are_not_taken_over(site: Site, tenant: Tenant) -> None:
    spec = {"networkInterfaces": {mac(1): {"dhcp": {"ip": "10.0.0.5"}}}}
    body = {"apiVersion": API_VERSION, "kind": "Hardware", "metadata": {"name": "victim", "namespace": NAMESPACE}}
    await site.client.create(HARDWARE, {**body, "spec": spec})
    for number, address in enumerate(("10.0.0.5", "127.0.0.1", "224.0.0.1", "255.255.255.255", "0.0.0.0")):
        network = {
            "links": [{"id": "a", "ethernet_mac_address": mac(10 + number)}],
            "networks": [{"link": "a", "ip_address": address}],
        }
        await tenant.secret(f"net{number}", "networkData", json.dumps(network))
        await tenant.host(f"thief{number}", 10 + number, networkData={"name": f"net{number}"})
    await site.follow()
    for number in range(5):
        made = await tenant.netboots(f"thief{number}")
        assert "ip" not in made["spec"]["networkInterfaces"][mac(10 + number)]["dhcp"]
    assert "10.0.0.5" in await tenant.wait_for_event("thief0", "AddressTaken")


# --- text from hosts in a Hardware -----------------------------------------------------------------------------------


UNSAFE = ("/dev/sda;reboot", "/dev/$(reboot)", "/dev/`id`", '/dev/"', "/dev/{{.Hardware}}")
"""Names of disks that a shell would run: Templates put storageDevices into scripts."""


async def test_hardware_and_log_have_no_control_characters_of_a_host(
    site: Site, tenant: Tenant, caplog: pytest.LogCaptureFixture
) -> None:
    for number, name in enumerate(UNSAFE):
        storage = {"storage": [{"name": name}, {"name": "/dev/sdb", "model": "x"}]}
        for kind, first, hints in (("named", 10, {"deviceName": name}), ("found", 20, {"model": "x"})):
            await tenant.inspected(f"{kind}{number}", storage)
            await tenant.host(f"{kind}{number}", first + number, rootDeviceHints=hints)
    # Only the controller may write that netboot was turned off for safety.
    await tenant.host("secured", 1, annotations={SECURED_ANNOTATION: "true", "example.org/mine": "yes"})
    forged = "x\n2027-01-15 08:00:00,000 ERROR edge.journey: all is lost\x1b[2J"
    await tenant.secret("meta", "metaData", json.dumps({forged: "v"}))
    await tenant.host("logs", 2, metaData={"name": "meta"})
    await site.follow()
    for number in range(len(UNSAFE)):
        for kind, disks in (("named", None), ("found", ["/dev/sdb"])):
            made = await tenant.netboots(f"{kind}{number}")
            assert made["spec"].get("storageDevices") == disks, UNSAFE[number]
    annotations = (await tenant.netboots("secured"))["metadata"]["annotations"]
    assert SECURED_ANNOTATION not in annotations
    assert annotations["example.org/mine"] == "yes"
    message = await tenant.wait_for_event("logs", "NotCarriedOver")
    assert "all is lost" in message
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("tink.metal3")]
    assert not any("\n" in line or "\x1b" in line for line in (*lines, message))
