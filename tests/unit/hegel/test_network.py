"""NoCloud's network-config: what all of cloud-init's renderers need."""

from __future__ import annotations

import re
from typing import Any

import yaml

from hegel.ec2 import ec2_tree, facts_of
from hegel.interfaces import links
from hegel.network import network_config
from tink.api.v1alpha2 import Hardware

MAC = "52:54:00:00:00:01"
SECOND = "52:54:00:00:00:02"
FULL = {
    "ip": "10.0.0.5",
    "netmask": "255.255.255.0",
    "gateway": "10.0.0.1",
    "hostname": "web-1",
    "nameservers": ["10.0.0.53", "dns.example.org", "10.0.0.53"],
}


def text(interfaces: dict[str, Any]) -> bytes:
    return network_config(links(Hardware.model_validate({"spec": {"networkInterfaces": interfaces}})))


def network(interfaces: dict[str, Any]) -> Any:
    return yaml.safe_load(text(interfaces))


def test_addresses_are_static_and_interfaces_keep_their_names() -> None:
    assert network({MAC: {"dhcp": FULL}}) == {
        "version": 2,
        "ethernets": {
            "nic0": {
                "match": {"macaddress": MAC},
                "addresses": ["10.0.0.5/24"],
                "routes": [{"to": "0.0.0.0/0", "via": "10.0.0.1"}],
                "nameservers": {"addresses": ["10.0.0.53"]},
            }
        },
    }


def test_tagged_network_is_a_vlan_on_an_interface_that_ifupdown_can_name() -> None:
    config = network(
        {MAC: {"dhcp": FULL}, SECOND: {"dhcp": {"ip": "10.1.0.5", "netmask": "255.255.0.0", "vlanId": "7"}}}
    )
    assert config["ethernets"]["nic1"] == {"match": {"macaddress": SECOND}, "set-name": "nic1"}
    assert config["vlans"] == {"nic1.7": {"id": 7, "link": "nic1", "addresses": ["10.1.0.5/16"]}}


def test_name_of_a_vlan_fits_into_the_kernels_15_characters() -> None:
    vlan = {"netmask": "255.255.0.0", "vlanId": "4094"}
    many = {
        f"52:54:00:00:{n >> 8:02x}:{n & 255:02x}": {"dhcp": vlan | {"ip": f"10.1.{n >> 8}.{n & 255}"}}
        for n in range(1000)
    }
    assert max(map(len, re.findall(r"^  (nic\S+\.4094):$", text(many).decode(), re.MULTILINE))) == len("nic999.4094")


def test_second_default_route_has_a_higher_metric_for_netplan_refuses_equal_ones() -> None:
    second = FULL | {"ip": "10.9.0.5", "gateway": "10.9.0.1"}
    config = network({SECOND: {"dhcp": FULL}, MAC: {"dhcp": second}})["ethernets"]
    assert [config[name]["routes"][0]["metric"] for name in ("nic0", "nic1")] == [100, 200]


def test_lone_default_route_needs_no_metric_beside_a_network_without_gateway() -> None:
    config = network({SECOND: {"dhcp": {"ip": "10.9.0.5", "netmask": "255.0.0.0"}}, MAC: {"dhcp": FULL}})["ethernets"]
    assert config["nic0"] == {"match": {"macaddress": SECOND}, "addresses": ["10.9.0.5/8"]}
    assert config["nic1"]["routes"] == [{"to": "0.0.0.0/0", "via": "10.0.0.1"}]


def test_gateway_of_an_interface_that_is_not_configured_needs_no_metric() -> None:
    config = network({SECOND: {"dhcp": {"gateway": "10.9.0.1"}}, MAC: {"dhcp": FULL}})["ethernets"]
    assert config["nic1"]["routes"] == [{"to": "0.0.0.0/0", "via": "10.0.0.1"}]


def test_without_a_netmask_only_dhcp_can_tell() -> None:
    assert network({MAC: {"dhcp": {"ip": "10.0.0.5"}}})["ethernets"]["nic0"] == {
        "match": {"macaddress": MAC},
        "dhcp4": True,
    }
    config = network({MAC: {"dhcp": {"ip": "10.0.0.5", "gateway": "10.0.0.1"}}, SECOND: {"dhcp": FULL}})["ethernets"]
    assert config["nic0"]["dhcp4-overrides"] == {"route-metric": 100}
    assert config["nic1"]["routes"][0]["metric"] == 200


def test_address_that_neither_dhcp_nor_a_netmask_completes_is_left_alone() -> None:
    assert text({MAC: {"dhcp": {"ip": "10.0.0.5"}, "disableDhcp": True}}) == b""


def test_gateway_outside_the_subnet_is_left_to_dhcp_where_it_is_answered() -> None:
    host_route = FULL | {"netmask": "255.255.255.255"}
    assert network({MAC: {"dhcp": host_route}})["ethernets"]["nic0"] == {"match": {"macaddress": MAC}, "dhcp4": True}
    static = network({MAC: {"dhcp": host_route, "disableDhcp": True}})["ethernets"]["nic0"]
    assert static["addresses"] == ["10.0.0.5/32"]
    assert static["routes"] == [{"to": "0.0.0.0/0", "via": "10.0.0.1", "on-link": True}]


def test_interfaces_without_an_address_are_left_to_the_image() -> None:
    assert text({MAC: {}, SECOND: {"dhcp": {"hostname": "x"}}}) == b""
    assert list(network({MAC: {}, SECOND: {"dhcp": FULL}})["ethernets"]) == ["nic1"]


def test_mac_of_digits_only_stays_a_string() -> None:
    mac = "10:20:30:40:50:59"
    assert network({mac: {"dhcp": FULL}})["ethernets"]["nic0"]["match"]["macaddress"] == mac


def test_key_that_is_no_mac_matches_no_interface() -> None:
    assert text({one: {"dhcp": FULL} for one in ("eth0\nevil: true", f"{MAC}\n", "52:54:00:00:00:0G", "")}) == b""


IPV6 = {"address": "fd00::5", "prefixLength": 56, "nameservers": ["fd00::53"]}


def test_ipv6_address_comes_by_dhcp_beside_a_static_ipv4_one_or_alone() -> None:
    match = {"match": {"macaddress": MAC}}
    both = network({MAC: {"dhcp": {"ip": "10.0.0.5", "netmask": "255.255.255.0", "ipv6": IPV6}}})["ethernets"]["nic0"]
    assert both == match | {"addresses": ["10.0.0.5/24"], "dhcp6": True}
    assert network({MAC: {"dhcp": {"ipv6": IPV6}}})["ethernets"]["nic0"] == match | {"dhcp6": True}
    leased = network({MAC: {"dhcp": {"ip": "10.0.0.5", "ipv6": IPV6}}})["ethernets"]["nic0"]
    assert leased == match | {"dhcp4": True, "dhcp6": True}


def test_ipv6_address_is_static_where_dhcp_is_not_answered() -> None:
    addressed = {"ip": "10.0.0.5", "netmask": "255.255.255.0", "gateway": "10.0.0.1", "ipv6": IPV6}
    assert network({MAC: {"dhcp": addressed, "disableDhcp": True}})["ethernets"]["nic0"] == {
        "match": {"macaddress": MAC},
        "addresses": ["10.0.0.5/24", "fd00::5/56"],
        "routes": [{"to": "0.0.0.0/0", "via": "10.0.0.1"}],
        "nameservers": {"addresses": ["fd00::53"]},
    }
    alone = network({MAC: {"dhcp": {"ipv6": IPV6}, "disableDhcp": True}})["ethernets"]["nic0"]
    assert (alone["addresses"], "routes" in alone) == (["fd00::5/56"], False)


def test_ec2_tree_sends_cloud_init_to_dhcpv6_by_the_list_of_addresses() -> None:
    hardware = Hardware.model_validate({"spec": {"networkInterfaces": {MAC: {"dhcp": {"ipv6": IPV6}}}}})
    tree = ec2_tree(facts_of("m1", links(hardware)), "", links(hardware), [], {}, [], {})
    below = f"meta-data/network/interfaces/macs/{MAC}"
    assert tree[f"{below}/ipv6s"] == b"fd00::5"
    assert tree[below] == b"device-number\nipv6s\nmac\nvpc-id"
    assert tree["meta-data/ipv6"] == b"fd00::5"
