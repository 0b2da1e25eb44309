"""Metadata at fe80::a9fe:a9fe: requests of cloud-init and curl on machines with a link-local address only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from ipaddress import IPv6Address
from pathlib import Path

import pytest

from edge.journey.events import Notice
from edge.neighbour.host import NetworkState
from edge.neighbour.links import AddressState, address_state, look
from edge.run.networks.link_metadata import LinkMetadata
from tests.interop.cloud_init.computer import Computer, release, releases, version
from tests.interop.cloud_init.rack import MetadataRack, Registered
from tests.interop.conftest import in_namespace
from tests.interop.rack import IN_EDGE, TINKEDGE, ip
from tests.waiting import wait_until

WELL_KNOWN = IPv6Address("fe80::a9fe:a9fe")
URL = "http://[fe80::a9fe:a9fe%25eth0]"
OWNER = Registered("owner", "52:54:00:00:0c:01", "172.31.77.51", userdata="#!/bin/sh\n: secret of the owner\n")
THIEF = Registered("thief", "52:54:00:00:0c:02", "172.31.77.52")
STRANGER = "stranger"
OF_OWNER = "fe80::5054:ff:fe00:c01"


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MetadataRack]:
    with MetadataRack(tmp_path_factory.mktemp("rack")) as running:
        running.add(IN_EDGE)
        running.bridge("rack1", "172.31.78.1/24")
        alone = ("--disable", "dhcp", "--disable", "tftp", "--link-metadata")
        running.up("--interface", "rack1", *alone)
        running.register(OWNER, THIEF, namespaces=False)
        for name, mac, bridge in (
            (OWNER.name, OWNER.mac, "rack0"),
            (THIEF.name, THIEF.mac, "rack1"),
            (STRANGER, "52:54:00:00:0c:03", "rack0"),
        ):
            running.add(name)
            running.card(name, "eth0", mac, bridge)
        for name in (OWNER.name, THIEF.name, STRANGER):  # until duplicate address detection has ended on both sides
            wait_until(lambda name=name: get(running, name, "/latest/"), lambda: running.process.err[-2000:])
        yield running


def get(rack: MetadataRack, where: str, path: str, *options: str) -> str:
    return rack.run(where, "curl", "-sg", "--max-time", "5", *options, f"{URL}{path}").out


def test_machine_is_known_by_the_mac_of_its_link_local_address(rack: MetadataRack) -> None:
    assert get(rack, OWNER.name, "/latest/meta-data/instance-id") == "owner"
    assert get(rack, OWNER.name, "/latest/user-data") == OWNER.userdata
    assert "no Hardware has the address fe80::5054:ff:fe00:c03%rack0" in get(rack, STRANGER, "/latest/user-data")


def test_owners_address_on_another_link_is_not_the_owner(rack: MetadataRack) -> None:
    """A host with that address on another link gets its own metadata, in either order of requests."""
    thief = rack.namespaces[THIEF.name]
    ip("-6", "-n", thief, "address", "flush", "dev", "eth0")
    ip("-n", thief, "address", "add", f"{OF_OWNER}/64", "dev", "eth0", "nodad")
    for _ in range(2):
        assert get(rack, OWNER.name, "/latest/meta-data/instance-id") == "owner"
        wait_until(lambda: get(rack, THIEF.name, "/latest/meta-data/instance-id") == "thief", "the thief is not known")
        assert "secret" not in get(rack, THIEF.name, "/latest/user-data")
    forged = ("-H", f"X-Forwarded-For: {OWNER.address}", "-H", "Host: owner")
    for path in ("/latest/user-data", f"/nocloud/{OWNER.mac}/user-data", f"/machine/{OWNER.mac}/latest/user-data"):
        assert "secret" not in get(rack, THIEF.name, path, *forged)


def test_gateway_of_the_edge_with_the_owners_global_address_is_not_the_owner(rack: MetadataRack) -> None:
    """Answers to fe80::a9fe:a9fe leave by the link of the request, whatever the route to the client is."""
    address, default = "fd77:1::51", ("default", "via", "fe80::99", "dev", "rack1")
    given = [(IN_EDGE, "rack0", "fd77:1::1/64"), (THIEF.name, "eth0", "fe80::99/64")]
    given += [(OWNER.name, "eth0", f"{address}/64"), (THIEF.name, "eth0", f"{address}/128")]
    with ExitStack() as exits:
        for where, card, one in given:
            ip("-n", rack.namespaces[where], "address", "add", one, "dev", card, "nodad")
            exits.callback(ip, "-n", rack.namespaces[where], "address", "del", one, "dev", card)
        ip("-n", rack.namespaces[IN_EDGE], "route", "add", *default)
        exits.callback(ip, "-n", rack.namespaces[IN_EDGE], "route", "del", *default)
        rack.run(OWNER.name, "curl", "-sg", "--max-time", "5", "--interface", address, "http://[fd77:1::1]/")
        assert OWNER.mac in rack.run(IN_EDGE, "ip", "neigh", "show", address, "dev", "rack0").out
        assert get(rack, THIEF.name, "/latest/user-data", "--interface", address) == ""
        assert get(rack, THIEF.name, "/latest/meta-data/instance-id") == "thief"


def test_only_metadata_is_served_there(rack: MetadataRack) -> None:
    for path in ("/auto.ipxe", "/v2/", "/osie/lab/kernel", "/healthz", "/peers/hello"):
        assert get(rack, OWNER.name, path) == "here is metadata alone (--link-metadata)\n", path


@pytest.mark.parametrize("source", ["Ec2", "NoCloud"])
@pytest.mark.parametrize("name", releases())
def test_cloud_init_finds_its_instance_without_an_address_of_its_own(
    rack: MetadataRack, tmp_path: Path, name: str, source: str
) -> None:
    computer = Computer(rack, OWNER.name, release(name), tmp_path)
    ec2 = {"metadata_urls": [URL], "strict_id": False, "max_wait": 3, "timeout": 2}
    settings = {"Ec2": ec2, "NoCloud": {"seedfrom": f"{URL}/nocloud/{OWNER.name}/"}}
    computer.configure("90_link", json.dumps({"datasource_list": [source], "datasource": settings}))
    boot = computer.boot(stages=("cloud-init init",))
    if source == "Ec2" and version(release(name)) < (23, 1):
        assert f"Removed the following from metadata urls: ['{URL}']" in computer.log(), "it can do it now: docs"
        return
    assert boot.hostname == "owner", computer.log()
    assert computer.read("var/lib/cloud/data/instance-id").strip() == "owner"


def test_doctor_recognises_this_edge_and_another_edge(rack: MetadataRack) -> None:
    def findings(where: str, interface: str, *options: str) -> dict[str, tuple[str, str]]:
        words = ["doctor", "--no-lab", "--json", "--link-metadata", "--interface", interface, *options]
        document = json.loads(rack.run(where, *TINKEDGE, *words).out)
        return {one["name"]: (one["severity"], one["seen"]) for one in document["findings"]}

    name = "metadata at [fe80::a9fe:a9fe%{}]:80"
    assert findings(IN_EDGE, "rack0")[name.format("rack0")] == ("ok", "metadata is served there")
    link = in_namespace(rack.namespaces[IN_EDGE], lambda: look("rack0"))
    assert link is not None
    there, mac = findings(STRANGER, "eth0", "--probe"), link.mac.hex(":")
    expected = ("ok", f"the edge at {mac}, which serves metadata there")
    assert there["who has fe80::a9fe:a9fe on eth0"] == expected
    waits = ("warning", f"another host on eth0, {mac}, has the address: this edge waits for it")
    assert there[name.format("eth0")] == waits


class Site:
    """Replaces a web site; records its addresses instead of listening."""

    def __init__(self, open_: list[str], address: str) -> None:
        self._open, self._address = open_, address

    async def start(self) -> None:
        self._open.append(self._address)

    async def stop(self) -> None:
        self._open.remove(self._address)


def test_second_edge_on_a_link_waits_until_the_first_has_gone(rack: MetadataRack) -> None:
    rack.add("edge2")
    rack.card("edge2", "eth0", "52:54:00:00:0c:04", "rack0")
    where, sites, notices = rack.namespaces["edge2"], list[str](), list[Notice]()
    link = in_namespace(where, lambda: look("eth0"))
    assert link is not None
    now = [0.0]
    second = LinkMetadata(
        lambda: [NetworkState("eth0", index=link.index, carrier=True)],
        lambda address, port: Site(sites, f"{address} {port}"),
        notices.append,
        lambda: now[0],
    )

    def turn() -> None:
        now[0] += 1.0
        in_namespace(where, lambda: asyncio.run(second.update()))

    def refused() -> bool:
        turn()
        return any("another host on eth0 has fe80::a9fe:a9fe" in notice.message for notice in notices)

    def serves() -> bool:
        turn()
        return sites == ["fe80::a9fe:a9fe%eth0 80"]

    wait_until(refused, lambda: str(notices), every=0.2)
    assert not sites
    first = in_namespace(rack.namespaces[IN_EDGE], lambda: look("rack0"))
    assert first is not None
    rack.process.popen.kill()
    rack.process.status()
    wait_until(serves, lambda: str(notices), every=0.2)
    state = in_namespace(rack.namespaces[IN_EDGE], lambda: address_state(first.index, WELL_KNOWN))
    assert state is AddressState.ABSENT, "the kernel has removed it after the end of the killed edge"
    in_namespace(where, lambda: asyncio.run(second.stop()))
    assert not sites
    assert in_namespace(where, lambda: address_state(link.index, WELL_KNOWN)) is AddressState.ABSENT
