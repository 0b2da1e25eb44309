"""The addresses that a host's Hardware may have: a tenant's hosts can't take an address of another Hardware."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.webhooks.world import hardware
from tink.api.v1alpha2 import Raw
from tink.kube.objects import NamespacedName
from tink.metal3.addresses import Addresses, without
from tink.webhooks import ClaimKind

KEY = NamespacedName("e", "host")
LEAVING = {"deletionTimestamp": "2027-01-15T08:00:00Z", "finalizers": ["example.org/held"]}
AGENT_ID = "tinkerbell.org/agent-id"


@pytest.fixture
def addresses() -> Addresses:
    return Addresses(lambda: 0.0)


def wanted(mac: str = "m2", **dhcp: Any) -> Raw:
    made = hardware(KEY.name, (mac, "10.0.0.9"), namespace=KEY.namespace)
    made["spec"]["networkInterfaces"][mac]["dhcp"] |= dhcp
    return made


def test_hardware_that_is_being_deleted_yields_its_addresses_and_waiting_hosts_are_notified(
    addresses: Addresses,
) -> None:
    addresses.apply(hardware("a", ("m2", "")))
    assert [each.claim for each in addresses.claim(KEY, wanted(), None)] == [(ClaimKind.MAC, "m2")]
    assert addresses.apply(hardware("a", ("m2", ""), **LEAVING)) == {KEY}
    assert addresses.claim(KEY, wanted(), None) == []


def test_hardware_of_a_host_that_is_being_deleted_gains_no_address_of_another(addresses: Addresses) -> None:
    addresses.apply(hardware("a", ("m1", "10.0.0.9"), **LEAVING))
    own = hardware(KEY.name, ("m2", ""), namespace=KEY.namespace, **LEAVING)
    addresses.apply(own)
    assert [each.claim for each in addresses.claim(KEY, wanted(), own)] == [(ClaimKind.IP, "10.0.0.9")]


def test_address_that_machines_of_another_namespace_use_is_not_given_to_a_host(addresses: Addresses) -> None:
    there = hardware("a", ("m1", "10.0.0.2"))
    there["spec"]["networkInterfaces"]["m1"]["dhcp"] |= {"netmask": "255.255.255.0", "gateway": "10.0.0.9"}
    addresses.apply(there)
    (used,) = addresses.claim(KEY, wanted(), None)
    assert used.claim == (ClaimKind.IP, "10.0.0.9")
    assert addresses.remove(there) == {KEY}


def test_addresses_of_others_are_left_out_and_nothing_else() -> None:
    made = wanted(hostname="h", netmask="255.255.255.0", ipv6={"address": "fd00::0:9"})
    made["metadata"]["annotations"] = {AGENT_ID: "Rack1", "a": "b"}
    without(made, {(ClaimKind.IP, "fd00::9")})
    assert made["spec"]["networkInterfaces"]["m2"]["dhcp"] == {
        "ip": "10.0.0.9",
        "hostname": "h",
        "netmask": "255.255.255.0",
    }
    without(made, {(ClaimKind.IP, "10.0.0.9"), (ClaimKind.AGENT_ID, "rack1")})
    assert made["spec"]["networkInterfaces"]["m2"]["dhcp"] == {"hostname": "h"}
    assert made["metadata"]["annotations"] == {"a": "b"}


def test_ipv6_address_stays_where_the_ipv4_address_is_anothers() -> None:
    made = wanted(ipv6={"address": "fd00::9"})
    without(made, {(ClaimKind.IP, "10.0.0.9")})
    assert made["spec"]["networkInterfaces"]["m2"]["dhcp"] == {"ipv6": {"address": "fd00::9"}}
