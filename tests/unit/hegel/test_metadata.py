"""The metadata trees, by the cases that were measured against released cloud-init (listings, newlines, slashes)."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from hegel.metadata import compile_tree, instance_id
from tink.api.v1alpha2 import Hardware

MAC = "52:54:00:00:00:01"
FULL = {
    "ip": "10.0.0.5",
    "netmask": "255.255.255.0",
    "gateway": "10.0.0.1",
    "hostname": "web-1",
    "nameservers": ["10.0.0.53", "dns.example.org"],
}


def hardware(
    *,
    interfaces: dict[str, Any] | None = None,
    annotations: dict[str, str] | None = None,
    **instance: str,
) -> Hardware:
    return Hardware.model_validate(
        {
            "metadata": {"name": "m1", "namespace": "default", "annotations": annotations or {}},
            "spec": {
                "networkInterfaces": {MAC: {"dhcp": FULL}} if interfaces is None else interfaces,
                "instance": instance or None,
            },
        }
    )


def crawl(tree: dict[str, bytes], directory: str = "meta-data") -> dict[str, Any]:
    """Walk as cloud-init's MetadataMaterializer does (cloudinit/sources/helpers/ec2.py); KeyError is its 404."""
    joined: dict[str, Any] = {}
    for line in tree[directory].decode().split("\n"):
        if line.endswith("/"):
            joined[line.rstrip("/")] = crawl(tree, f"{directory}/{line.rstrip('/')}")
            continue
        leaf = tree[f"{directory}/{line}"].decode()
        try:
            value = json.loads(leaf)
            joined[line] = value if isinstance(value, dict) else leaf
        except ValueError:
            joined[line] = leaf.split("\n") if "\n" in leaf else leaf
    return joined


def test_crawl_finds_everything_listed_and_each_value_is_one_string() -> None:
    tree = compile_tree(hardware(userdata="#cloud-config\n"))
    assert crawl(dict(tree.ec2)) == {
        "instance-id": "m1",
        "local-hostname": "web-1",
        "hostname": "web-1",
        "local-ipv4": "10.0.0.5",
        "mac": MAC,
    }


def test_listing_has_only_what_exists() -> None:
    tree = compile_tree(hardware(interfaces={MAC: {}}))
    assert tree.ec2[""] == b"meta-data/"
    assert tree.ec2["meta-data"] == b"instance-id\nmac"
    assert "user-data" not in tree.ec2
    assert "meta-data/local-hostname" not in tree.ec2


def test_root_lists_directories_with_a_slash() -> None:
    tree = compile_tree(hardware(userdata="u", vendordata="v"))
    assert tree.ec2[""] == b"meta-data/\nuser-data\nvendor-data"


def test_no_value_and_no_listing_ends_with_a_newline() -> None:
    for path, body in compile_tree(hardware()).ec2.items():
        assert body, path
        assert body == body.strip(), path


@pytest.mark.parametrize("userdata", ["#!/bin/sh\necho ü\r\n", "", "no newline"])
def test_user_data_is_served_byte_for_byte(userdata: str) -> None:
    tree = compile_tree(hardware(userdata=userdata, vendordata=userdata))
    for document in ("user-data", "vendor-data"):
        assert tree.ec2[document] == userdata.encode()
        assert tree.nocloud[document] == userdata.encode()


def test_nocloud_files_are_all_there_even_if_empty() -> None:
    tree = compile_tree(hardware(interfaces={MAC: {}}))
    assert tree.nocloud == {
        "meta-data": b"instance-id: m1\n",
        "user-data": b"",
        "vendor-data": b"",
        "network-config": b"",
    }


def test_address_is_that_of_the_first_interface_that_has_one() -> None:
    tree = compile_tree(hardware(interfaces={"52:54:00:00:00:09": {"disableDhcp": True}, MAC: {"dhcp": FULL}}))
    assert (tree.ec2["meta-data/mac"], tree.ec2["meta-data/local-ipv4"]) == (MAC.encode(), b"10.0.0.5")


# --- instance id ---


def test_annotation_gives_a_reinstalled_machine_a_new_id() -> None:
    machine = hardware(annotations={"tinkerbell.org/instance-id": "i-2\n"})
    tree = compile_tree(machine)
    assert tree.instance_id == "i-2"
    assert tree.ec2["meta-data/instance-id"] == b"i-2"
    assert yaml.safe_load(tree.nocloud["meta-data"])["instance-id"] == "i-2"


@pytest.mark.parametrize("bad", ["", " \n", "two words", "i-1\ni-2", "i-\x00"])
def test_id_that_would_break_cloud_init_is_ignored_with_a_reason(bad: str, caplog: pytest.LogCaptureFixture) -> None:
    assert instance_id(hardware(annotations={"tinkerbell.org/instance-id": bad})) == "m1"
    assert "Hardware default/m1: annotation tinkerbell.org/instance-id is ignored" in caplog.text


@pytest.mark.parametrize("odd", ["123", "0x1f", "on", "null", "1e3", "2026-11-21", "i: x"])
def test_id_stays_a_string_in_yaml(odd: str) -> None:
    identity = odd.replace(" ", "")
    tree = compile_tree(hardware(annotations={"tinkerbell.org/instance-id": identity}))
    assert yaml.safe_load(tree.nocloud["meta-data"])["instance-id"] == identity


# --- network-config ---


def network(interfaces: dict[str, Any]) -> Any:
    return yaml.safe_load(compile_tree(hardware(interfaces=interfaces)).nocloud["network-config"])


def test_network_config_is_static_and_matches_by_mac() -> None:
    assert network({MAC: {"dhcp": FULL}}) == {
        "version": 2,
        "ethernets": {
            "nic0": {
                "match": {"macaddress": MAC},
                "dhcp4": False,
                "addresses": ["10.0.0.5/24"],
                "routes": [{"to": "0.0.0.0/0", "via": "10.0.0.1"}],
                "nameservers": {"addresses": ["10.0.0.53"]},
            }
        },
    }


def test_network_config_without_netmask_leaves_it_to_dhcp() -> None:
    assert network({MAC: {"dhcp": {"ip": "10.0.0.5"}}})["ethernets"]["nic0"]["dhcp4"] is True


def test_network_config_of_a_tagged_network_has_the_vlan() -> None:
    config = network({MAC: {"dhcp": {"ip": "10.0.0.5", "netmask": "255.255.0.0", "vlanId": "100"}}})
    assert config["ethernets"] == {"nic0": {"match": {"macaddress": MAC}}}
    assert config["vlans"] == {"nic0.100": {"id": 100, "link": "nic0", "dhcp4": False, "addresses": ["10.0.0.5/16"]}}


def test_mac_of_digits_only_stays_a_string() -> None:
    mac = "10:20:30:40:50:59"
    assert network({mac: {"dhcp": FULL}})["ethernets"]["nic0"]["match"]["macaddress"] == mac
