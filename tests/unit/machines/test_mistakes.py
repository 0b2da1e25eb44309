"""The condition Misconfigured: what can't work of a Hardware is on it while it is so, whatever other edges say."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ipaddress import IPv4Address, IPv4Network
from typing import Any, cast

import pytest

from edge.machines import Inventory, Machine, MistakeWriter
from ipxe.binaries import BootPath
from tests.waiting import until
from tink.api import mistakes
from tink.api.mistakes import NetworkSet, Reason, Site, hardware_mistakes, osie_mistakes
from tink.api.v1alpha2 import Raw
from tink.kube.cache import Informer
from tink.kube.client import KubeClient
from tink.kube.objects import NamespacedName

MAC = "52:54:00:12:34:56"
HERE = IPv4Network("10.0.0.0/24")
SUM = "0" * 64


def hardware(ip: str = "10.0.0.5", *, annotations: Any = None, osie: str = "", **dhcp: str) -> Raw:
    reserved = {"ip": ip, "netmask": "255.255.255.0", **dhcp} if ip else {}
    spec = {"networkInterfaces": {MAC: {"dhcp": reserved}}, **({"osie": {"name": osie}} if osie else {})}
    return {"metadata": {"name": "a", "namespace": "d", "annotations": annotations or {}}, "spec": spec}


def machine(obj: Raw) -> Machine:
    inventory = Inventory()
    inventory.apply(obj)
    (found,) = inventory.machines()
    return found


def site(*networks: str, name: str = "the edge here", addresses: tuple[str, ...] = ("10.0.0.1",)) -> Site:
    return Site(tuple(map(IPv4Network, networks or ("10.0.0.0/24",))), (), frozenset(addresses), name)


def test_boot_paths_that_are_taken_are_those_that_there_are() -> None:
    assert set(mistakes._BOOT_PATHS) == set(BootPath)


@pytest.mark.parametrize(
    ("obj", "reason", "said"),
    [
        (hardware("10.0.0.1"), "ServerAddress", "dhcp.ip: 10.0.0.1 is the address of the edge here itself"),
        (hardware(gateway="10.0.1.1"), "GatewayOutsideNetwork", "10.0.1.1 is not in the network 10.0.0.0/24"),
        (hardware(""), "NoAddress", "dhcp.ip: is not set"),
        (hardware("10.9.0.5"), "NetworkNotServed", "10.9.0.5 is in 10.9.0.0/24, and the edge here is on 10.0.0.0/24"),
        (hardware(osie="none"), "OSIENotFound", "spec.osie.name: there is no OSIE d/none yet"),
        (hardware(osie="bad"), "InvalidChecksum", "OSIE d/bad: metadata.annotations[tinkerbell.org/kernel-sha256]: a "),
        (
            hardware(annotations={"tinkerbell.org/initrd-sha256": SUM}),
            "InvalidChecksum",
            "metadata.annotations[tinkerbell.org/initrd-sha256]: nothing reads it on a Hardware",
        ),
        (
            hardware(annotations={"tinkerbell.org/boot-path": "lilo"}),
            "UnknownBootPath",
            "metadata.annotations[tinkerbell.org/boot-path]: is none of ipxe, grub, auto, uki, and ignored",
        ),
    ],
)
def test_each_mistake_is_named_with_its_field(obj: Raw, reason: str, said: str) -> None:
    osies = {"bad": {"metadata": {"annotations": {"tinkerbell.org/kernel-sha256": "sha256:12"}}}}
    (found,) = hardware_mistakes(obj, site(), lambda _, name: osies.get(name))
    assert found.reason == reason
    assert said in str(found)


def test_machine_with_an_ipv6_address_alone_is_no_mistake_but_for_the_servers_own() -> None:
    alone = {"spec": {"networkInterfaces": {"m": {"dhcp": {"ipv6": {"address": "fd00:0::5"}}}}}}
    assert hardware_mistakes(alone, site()) == []
    (mistake,) = hardware_mistakes(alone, site(addresses=("10.0.0.1", "fd00::5")))
    assert mistake.reason is Reason.SERVER_ADDRESS
    assert mistake.field.endswith(".dhcp.ipv6.address")


def test_what_works_is_no_mistake() -> None:
    good = {"metadata": {"annotations": {"tinkerbell.org/kernel-sha256": f"sha256:{SUM}"}}}
    assert hardware_mistakes(hardware(gateway="10.0.0.1", osie="good"), site(), lambda *_: good) == []
    assert osie_mistakes(good) == []
    assert hardware_mistakes(hardware("10.9.0.5"), Site()) == [], "whoever knows no networks says nothing of them"
    off = hardware("")
    off["spec"]["networkInterfaces"][MAC]["disableDhcp"] = True
    assert hardware_mistakes(off, site()) == []
    proxy = Site((HERE,), (), frozenset({"10.0.0.1"}), gives_addresses=False)
    assert hardware_mistakes(hardware("10.9.0.5"), proxy) == []
    for odd in (None, 7, {"spec": 7}, {"spec": {"networkInterfaces": {MAC: {"dhcp": {"ip": 7, "netmask": []}}}}}):
        hardware_mistakes(odd, site(), lambda *_: None)


def test_networks_are_found_as_by_comparing_with_each() -> None:
    given = [IPv4Network(each) for each in ("10.0.0.0/8", "10.1.0.0/16", "192.0.2.64/26", "198.51.100.7/32")]
    lookup = NetworkSet(given)
    for address in (
        "9.255.255.255",
        "10.0.0.0",
        "10.255.255.255",
        "11.0.0.0",
        "192.0.2.63",
        "192.0.2.64",
        "198.51.100.7",
    ):
        at = IPv4Address(address)
        assert (at in lookup) == any(at in each for each in given), address
        for length in range(33):
            network = IPv4Network(f"{address}/{length}", strict=False)
            assert lookup.overlaps(network) == any(network.overlaps(each) for each in given), network
    assert IPv4Address("0.0.0.0") in NetworkSet([IPv4Network("0.0.0.0/0")])
    assert IPv4Address("0.0.0.0") not in NetworkSet(())


async def test_hardware_of_many_cards_is_read_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 64 interfaces was compared with each of 1,024 relayed networks, and all were read for each mistake."""
    read: list[str] = []
    monkeypatch.setattr("edge.machines.mistakes.network_of", lambda dhcp: read.append(dhcp["ip"]))
    compared: list[IPv4Network] = []
    contains = IPv4Network.__contains__

    def compare(network: IPv4Network, address: object) -> bool:
        compared.append(network)
        return contains(network, address)

    monkeypatch.setattr(IPv4Network, "__contains__", compare)
    obj = hardware()
    reserved = ({"ip": f"10.8.{card}.5", "netmask": "255.255.255.0"} for card in range(64))
    obj["spec"]["networkInterfaces"] = {
        f"52:54:00:00:00:{card:02x}": {"dhcp": each} for card, each in enumerate(reserved)
    }
    known = Site((HERE,), tuple(IPv4Network(f"10.9.{each}.0/24") for each in range(200)))
    assert len(hardware_mistakes(obj, known)) == 64
    api, osies = Api(), Api()
    async with edge(api, osies, known):
        api.put(obj)
        await until(lambda: api.condition() == ("Unknown", "NetworkNotServed"))
    assert len(read) < 4 * 64
    assert compared == []


async def test_status_without_a_network_does_not_count_as_an_edges() -> None:
    api, osies = Api(), Api()
    obj = hardware("10.9.0.5")
    condition = {"type": "Misconfigured", "status": "False", "reason": "NetworkKnown"}
    for message in ("10.9.0.5/24 is reached through a relay", "999.9.9.9/99 is a network of mine"):
        api.put(obj | {"status": {"conditions": [condition | {"message": message}]}})
        async with edge(api, osies, site()) as writer:
            await until(lambda: api.condition() == ("Unknown", "NetworkNotServed"))
            assert writer.relayed == ()


class Api:
    """Objects with their informer: what is written comes back."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Raw] = {}
        self.handlers: list[tuple[Callable[..., object], Callable[..., object]]] = []
        self.patches: list[Raw] = []

    def add_event_handler(
        self, changed: Callable[..., object], deleted: Callable[..., object], *, can_wait: bool = False
    ) -> None:
        self.handlers.append((changed, deleted))

    def get(self, namespace: str, name: str) -> Raw | None:
        return self.objects.get((namespace, name))

    def told(self) -> list[NamespacedName]:
        return [NamespacedName(*key) for key in self.objects]

    def put(self, obj: Raw) -> None:
        obj = copy.deepcopy(obj)
        key = (obj["metadata"]["namespace"], obj["metadata"]["name"])
        obj["metadata"]["resourceVersion"] = str(len(self.patches))
        old = self.objects.get(key)
        self.objects[key] = obj
        for changed, _ in self.handlers:
            changed(obj, old)

    def delete(self, name: str) -> None:
        old = self.objects.pop(("d", name))
        for _, deleted in self.handlers:
            deleted(old)

    async def patch(self, _resource: Any, name: str, namespace: str, patch: Raw, *, subresource: str) -> Raw:
        assert subresource == "status"
        self.patches.append(patch)
        obj = copy.deepcopy(self.objects[namespace, name])
        obj["status"] = patch["status"]
        self.put(obj)
        return obj

    def condition(self) -> tuple[str, str]:
        """Its status and reason."""
        conditions = self.objects["d", "a"].get("status", {}).get("conditions", [])
        return (conditions[0]["status"], conditions[0]["reason"]) if conditions else ("", "")


@asynccontextmanager
async def edge(api: Api, osies: Api, known: Site) -> AsyncIterator[MistakeWriter]:
    def now() -> Site:
        return Site(known.networks, writer.relayed, known.addresses, known.name)

    client, informers = cast(KubeClient, api), (cast(Informer, api), cast(Informer, osies))
    writer = MistakeWriter(client, *informers, now, settle_seconds=0.001)
    for obj in [*api.objects.values()]:
        for changed, _ in api.handlers[-1:]:
            changed(obj, None)
    task = asyncio.create_task(writer.run())
    try:
        yield writer
    finally:
        del api.handlers[-1], osies.handlers[-1]
        task.cancel()


async def test_mistake_is_shown_until_it_is_mended_and_a_good_hardware_is_never_written() -> None:
    api, osies = Api(), Api()
    async with edge(api, osies, site()):
        api.put(hardware())
        await asyncio.sleep(0.05)
        assert api.patches == []
        api.put(hardware(osie="late"))
        await until(lambda: api.condition() == ("True", "OSIENotFound"))
        osies.put({"metadata": {"name": "late", "namespace": "d"}})
        await until(lambda: api.condition() == ("False", "Mended"))
        osies.delete("late")
        await until(lambda: api.condition() == ("True", "OSIENotFound"))


async def test_network_behind_a_relay_is_unknown_until_the_relay_is_heard_and_known_after_a_restart() -> None:
    api, osies = Api(), Api()
    api.put(hardware("10.9.0.5"))
    async with edge(api, osies, site()) as writer:
        await until(lambda: api.condition() == ("Unknown", "NetworkNotServed"))
        writer.relay_heard(machine(hardware("10.8.0.5")), "10.8.0.1")
        writer.relay_heard(machine(hardware("10.9.0.5")), "10.9.0.1")
        await until(lambda: api.condition() == ("False", "NetworkKnown"))
        assert writer.relayed == (IPv4Network("10.8.0.0/24"), IPv4Network("10.9.0.0/24"))
    written = len(api.patches)
    async with edge(api, osies, site()) as again:
        await asyncio.sleep(0.05)
        assert again.relayed == (IPv4Network("10.9.0.0/24"),)
        assert len(api.patches) == written


async def test_edge_that_has_the_network_is_believed_by_the_others() -> None:
    api, osies = Api(), Api()
    api.put(hardware("10.9.0.5"))
    async with edge(api, osies, site()):
        await until(lambda: api.condition() == ("Unknown", "NetworkNotServed"))
        async with edge(api, osies, site("10.9.0.0/24", name="the edge there", addresses=("10.9.0.1",))):
            await until(lambda: api.condition() == ("False", "NetworkKnown"))
            await asyncio.sleep(0.05)
            assert len(api.patches) == 2, "they do not take turns"


async def test_address_of_one_edge_is_not_cleared_by_another() -> None:
    api, osies = Api(), Api()
    api.put(hardware("10.0.0.1"))
    async with edge(api, osies, site()), edge(api, osies, site(name="the edge there", addresses=("10.0.0.2",))):
        await until(lambda: api.condition() == ("True", "ServerAddress"))
        await asyncio.sleep(0.05)
        assert len(api.patches) == 1
        changed = copy.deepcopy(api.objects["d", "a"])
        changed["spec"] = hardware("10.0.0.7")["spec"]
        api.put(changed)
        await until(lambda: api.condition() == ("False", "Mended"))
