"""The metadata trees and network-config, by the cases that were measured against released cloud-init."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hegel.annotations import instance_id
from hegel.ec2 import ec2_tree, facts_of
from hegel.interfaces import links
from hegel.metadata import compile_tree
from hegel.network import network_config
from hegel.secret import SecretReference
from tink.api.v1alpha2 import Hardware

MAC = "52:54:00:00:00:01"
SECOND = "52:54:00:00:00:02"
FULL = {
    "ip": "10.0.0.5",
    "netmask": "255.255.255.0",
    "gateway": "10.0.0.1",
    "hostname": "web-1",
    "nameservers": ["10.0.0.53", "dns.example.org"],
}
NO_STORAGE = "Hardware m1 has no annotation tinkerbell.org/storage, which names partitions and filesystems"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ1Pvk3mNqvWnNIdW4C6Cw3qL2vJYV7cVY5M2z5dJQ0e ops@example"


def hardware(
    *,
    interfaces: dict[str, Any] | None = None,
    annotations: dict[str, str] | None = None,
    devices: list[str] | None = None,
    **instance: str,
) -> Hardware:
    return Hardware.model_validate(
        {
            "metadata": {"name": "m1", "namespace": "default", "annotations": annotations or {}},
            "spec": {
                "networkInterfaces": {MAC: {"dhcp": FULL}} if interfaces is None else interfaces,
                "instance": instance or None,
                "storageDevices": devices,
            },
        }
    )


def crawl(tree: Mapping[str, bytes], directory: str = "meta-data") -> dict[str, Any]:
    """Walk as cloud-init's MetadataMaterializer does (cloudinit/sources/helpers/ec2.py); KeyError is its 404."""
    joined: dict[str, Any] = {}
    for line in tree[directory].decode().splitlines():
        if line.endswith("/"):
            joined[line.rstrip("/")] = crawl(tree, f"{directory}/{line.rstrip('/')}")
            continue
        name, path = line, line
        number, equals, rest = line.partition("=")
        if equals and number.isdigit():
            name, path = rest, f"{number}/openssh-key"
        assert name not in joined, "cloud-init keeps one of two values with one name"
        leaf = tree[f"{directory}/{path}"].decode()
        if leaf.strip().startswith("{") and leaf.strip().endswith("}"):
            joined[name] = json.loads(leaf)
        else:
            joined[name] = leaf.splitlines() if "\n" in leaf else leaf
    return joined


def leaves(joined: dict[str, Any]) -> Iterator[Any]:
    for value in joined.values():
        if isinstance(value, dict):
            yield from leaves(value)
        else:
            yield value


def test_crawl_finds_everything_listed_and_each_value_is_one_string():
    tree = compile_tree(hardware(userdata="#cloud-config\n", annotations={"tinkerbell.org/ssh-public-keys": KEY}))
    interface = {"device-number": "0", "local-ipv4s": "10.0.0.5", "mac": MAC, "vpc-id": "default"}
    assert crawl(tree.ec2) == {
        "instance-id": "m1",
        "local-hostname": "web-1",
        "hostname": "web-1",
        "local-ipv4": "10.0.0.5",
        "mac": MAC,
        "network": {"interfaces": {"macs": {MAC: interface}}},
        "public-keys": {"ops@example": KEY},
    }


def test_listing_has_only_what_exists():
    tree = compile_tree(hardware(interfaces={MAC: {}}))
    assert tree.ec2[""] == b"meta-data/"
    assert tree.ec2["meta-data"] == b"instance-id\nmac"
    assert "user-data" not in tree.ec2
    assert "meta-data/local-hostname" not in tree.ec2


def test_root_lists_directories_with_a_slash():
    tree = compile_tree(hardware(userdata="u", vendordata="v"))
    assert tree.ec2[""] == b"meta-data/\nuser-data\nvendor-data"


def test_no_value_and_no_listing_ends_with_a_newline():
    for path, body in compile_tree(hardware()).ec2.items():
        assert body, path
        assert body == body.strip(), path


@pytest.mark.parametrize("userdata", ["#!/bin/sh\necho ü\r\n", "", "no newline"])
def test_user_data_is_served_byte_for_byte(userdata):
    tree = compile_tree(hardware(userdata=userdata, vendordata=userdata))
    for document in ("user-data", "vendor-data"):
        assert tree.ec2[document] == userdata.encode()
        assert tree.nocloud[document] == userdata.encode()


def test_nocloud_files_are_all_there_even_if_empty():
    tree = compile_tree(hardware(interfaces={MAC: {}}))
    assert tree.nocloud == {
        "meta-data": b'instance-id: "m1"\n',
        "user-data": b"",
        "vendor-data": b"",
        "network-config": b"",
    }


def test_address_is_that_of_the_first_interface_that_has_one():
    tree = compile_tree(hardware(interfaces={"52:54:00:00:00:09": {"disableDhcp": True}, MAC: {"dhcp": FULL}}))
    assert (tree.ec2["meta-data/mac"], tree.ec2["meta-data/local-ipv4"]) == (MAC.encode(), b"10.0.0.5")


def test_machine_has_a_name_even_if_another_interface_than_the_first_with_an_address_says_it():
    unnamed = {"dhcp": {"ip": "10.0.0.5"}}
    tree = compile_tree(hardware(interfaces={MAC: unnamed, SECOND: {"dhcp": {"hostname": "web-2"}}}))
    assert tree.ec2["meta-data/local-hostname"] == tree.ec2["meta-data/hostname"] == b"web-2"
    both = {SECOND: {"dhcp": {"hostname": "bmc"}}, MAC: {"dhcp": FULL}}
    assert compile_tree(hardware(interfaces=both)).ec2["meta-data/hostname"] == b"web-1"


# --- instance id ---


def test_annotation_gives_a_reinstalled_machine_a_new_id():
    machine = hardware(annotations={"tinkerbell.org/instance-id": "i-2\n"})
    tree = compile_tree(machine)
    assert tree.instance_id == "i-2"
    assert tree.ec2["meta-data/instance-id"] == b"i-2"
    assert yaml.safe_load(tree.nocloud["meta-data"])["instance-id"] == "i-2"


@pytest.mark.parametrize("bad", ["", " \n", "two words", "i-1\ni-2", "i-\x00", '{"id":1}'])
def test_id_that_would_break_cloud_init_is_ignored_with_a_reason(bad, caplog):
    assert instance_id(hardware(annotations={"tinkerbell.org/instance-id": bad})) == "m1"
    assert "Hardware default/m1: annotation tinkerbell.org/instance-id is ignored" in caplog.text


@pytest.mark.parametrize("odd", ["123", "0x1f", "on", "null", "1e3", "2026-11-21", "i: x"])
def test_id_stays_a_string_in_yaml(odd):
    identity = odd.replace(" ", "")
    tree = compile_tree(hardware(annotations={"tinkerbell.org/instance-id": identity}))
    assert yaml.safe_load(tree.nocloud["meta-data"])["instance-id"] == identity


# --- network/ ---


def macs(interfaces: dict[str, Any]) -> Any:
    return crawl(compile_tree(hardware(interfaces=interfaces)).ec2).get("network")


def test_interfaces_are_numbered_in_order_so_that_the_first_has_the_default_route():
    network = macs({SECOND: {"dhcp": FULL}, MAC: {"dhcp": FULL | {"ip": "10.0.0.6"}}})
    numbers = {mac: values["device-number"] for mac, values in network["interfaces"]["macs"].items()}
    assert numbers == {SECOND: "0", MAC: "1"}


def test_cloud_init_is_not_told_of_subnets_for_it_would_ask_for_leases_itself():
    network = macs({MAC: {"dhcp": FULL}, SECOND: {"dhcp": FULL | {"ip": "10.0.0.6"}}})
    assert not any("subnet" in name for values in network["interfaces"]["macs"].values() for name in values)


@pytest.mark.parametrize("unreserved", [{}, {"disableDhcp": True}, {"dhcp": {"hostname": "x"}}])
def test_interface_without_an_address_does_not_make_the_boot_wait_for_dhcp(unreserved):
    assert list(macs({MAC: {"dhcp": FULL}, SECOND: unreserved})["interfaces"]["macs"]) == [MAC]


@pytest.mark.parametrize("other", [{"dhcp": FULL | {"vlanId": "7"}}, {"dhcp": FULL, "disableDhcp": True}])
def test_network_is_not_listed_where_untagged_dhcp_is_not_the_whole_truth(other):
    assert macs({MAC: {"dhcp": FULL}, SECOND: other | {"dhcp": other["dhcp"] | {"ip": "10.0.0.6"}}}) is None


def test_network_is_not_listed_without_an_address():
    assert macs({MAC: {}}) is None


def test_listing_writes_macs_as_aws_does():
    tree = compile_tree(hardware())
    assert tree.ec2["meta-data/network/interfaces/macs"] == f"{MAC}/".encode()


# --- public-keys ---


def test_public_keys_are_listed_in_ec2s_shape_and_in_nocloud():
    tree = compile_tree(hardware(annotations={"tinkerbell.org/ssh-public-keys": f"{KEY}\n{KEY}-2\n"}))
    assert tree.ec2["meta-data/public-keys"] == b"0=ops@example\n1=ops@example-2"
    assert tree.ec2["meta-data/public-keys/1"] == b"openssh-key"
    assert tree.ec2["meta-data/public-keys/1/openssh-key"] == f"{KEY}-2".encode()
    assert yaml.safe_load(tree.nocloud["meta-data"])["public-keys"] == [KEY, f"{KEY}-2"]


def test_comment_of_a_key_means_nothing_to_yaml():
    odd = f'{KEY}: "a" # \\ \U0001f511'
    tree = compile_tree(hardware(annotations={"tinkerbell.org/ssh-public-keys": odd}))
    assert yaml.safe_load(tree.nocloud["meta-data"])["public-keys"] == [odd]


def test_bad_key_is_named_by_its_line_and_the_others_are_served(caplog):
    keys = "\n".join([KEY, "ssh-ed25519 secret-typo", *["x"] * 20])
    tree = compile_tree(hardware(annotations={"tinkerbell.org/ssh-public-keys": keys}))
    assert tree.ec2["meta-data/public-keys"] == b"0=ops@example"
    assert "Hardware default/m1: annotation tinkerbell.org/ssh-public-keys has no SSH key in line 2, 3," in caplog.text
    assert "11, ...: left out" in caplog.text
    assert "secret-typo" not in caplog.text


def test_annotation_without_any_key_lists_none():
    tree = compile_tree(hardware(annotations={"tinkerbell.org/ssh-public-keys": "# nobody\n"}))
    assert b"public-keys" not in tree.ec2["meta-data"]
    assert b"public-keys" not in tree.nocloud["meta-data"]


# --- documents of Secrets ---


def test_document_of_a_secret_is_listed_but_the_hardwares_is_not_served(caplog):
    annotations = {"tinkerbell.org/userdata-secret": "m1-userdata"}
    tree = compile_tree(hardware(userdata="old", vendordata="v", annotations=annotations))
    assert tree.secrets == {"user-data": SecretReference("m1-userdata", ("userData", "value"))}
    assert tree.ec2[""] == b"meta-data/\nuser-data\nvendor-data"
    assert "user-data" not in tree.ec2
    assert set(tree.nocloud) == {"meta-data", "vendor-data", "network-config"}
    assert tree.ec2["vendor-data"] == tree.nocloud["vendor-data"] == b"v"
    assert "spec.instance.userdata is not served, because annotation tinkerbell.org/userdata-secret" in caplog.text


def test_vendor_data_of_a_secret_with_a_key_warns_of_nothing(caplog):
    tree = compile_tree(hardware(annotations={"tinkerbell.org/vendordata-secret": "vendor/cloud.cfg\n"}))
    assert tree.secrets == {"vendor-data": SecretReference("vendor", ("cloud.cfg",))}
    assert not caplog.text


@pytest.mark.parametrize(
    "bad", ["", "/", "a/", "/b", "A", "a/b/c", "../x", "a b", "a/..", "a/.", "a..b", "-a", "x" * 254]
)
def test_reference_that_could_name_something_else_is_ignored_with_a_reason(bad, caplog):
    tree = compile_tree(hardware(userdata="u", annotations={"tinkerbell.org/userdata-secret": bad}))
    assert not tree.secrets
    assert tree.ec2["user-data"] == b"u"
    assert "Hardware default/m1: annotation tinkerbell.org/userdata-secret is ignored" in caplog.text


# --- the old /metadata ---


def test_actions_of_v1alpha1_find_disks_and_names_where_they_look_for_them():
    tree = compile_tree(
        hardware(devices=["/dev/sda", "/dev/nvme0n1"], annotations={"tinkerbell.org/ssh-public-keys": KEY})
    )
    assert orjson.loads(tree.legacy) == {
        "metadata": {
            "instance": {
                "id": "m1",
                "hostname": "web-1",
                "ips": [{"address": "10.0.0.5", "netmask": "255.255.255.0", "gateway": "10.0.0.1", "family": 4}],
                "ssh_keys": [KEY],
                "storage": NO_STORAGE,
            }
        }
    }


STORED = {
    "facility": "ams1",
    "plan": "c3.small",
    "tags": ["db", "blue"],
    "public-ipv4": "192.0.2.5",
    "operating-system": {"distro": "ubuntu", "version": "24.04", "license_activation": {"state": "active"}},
}


def test_what_tootles_served_is_in_the_tree_and_every_listed_name_is_there():
    tree = compile_tree(hardware(annotations={"tinkerbell.org/metadata": json.dumps(STORED)})).ec2
    found = crawl(tree)
    assert {name: found[name] for name in ("facility", "plan", "public-ipv4")} == {
        name: STORED[name] for name in ("facility", "plan", "public-ipv4")
    }
    assert tree["meta-data/tags"] == b"db\nblue"
    assert found["operating-system"] == STORED["operating-system"]
    assert tree["meta-data/operating-system"] == b"distro\nlicense_activation/\nversion"


def test_what_is_empty_is_neither_there_nor_complained_of(caplog):
    empty = {"facility": "", "tags": [], "operating-system": {"slug": "", "license_activation": {"state": ""}}}
    tree = compile_tree(hardware(annotations={"tinkerbell.org/metadata": json.dumps(empty)})).ec2
    assert not {"facility", "tags", "operating-system"} & set(crawl(tree))
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"unheard-of": "x", "plan": "a"}, "unheard-of"),
        ({"facility": "a\nb\x1b", "plan": "a"}, "facility"),
        ({"tags": ["a", "b\nc"], "plan": "a"}, "tags"),
        ({"iqn": "{}", "plan": "a"}, "iqn"),
        ({"operating-system": {"slug": 5}, "plan": "a"}, "operating-system/slug"),
    ],
)
def test_what_can_not_be_served_is_left_out_and_named(given, named, caplog):
    tree = compile_tree(hardware(annotations={"tinkerbell.org/metadata": json.dumps(given)})).ec2
    assert tree["meta-data/plan"] == b"a"
    assert named.partition("/")[0] not in crawl(tree)
    assert f"annotation tinkerbell.org/metadata has what can't be served, left out: {named}" in caplog.text


def test_rootio_finds_the_partitions_of_the_annotation_and_stops_where_it_can_not_be_read():
    storage = {"disks": [{"device": "/dev/sda", "wipe_table": True, "partitions": [{"label": "ROOT", "number": 1}]}]}

    def served(annotation: str) -> Any:
        tree = compile_tree(hardware(devices=["/dev/sda"], annotations={"tinkerbell.org/storage": annotation}))
        return orjson.loads(tree.legacy)["metadata"]["instance"]["storage"]

    assert served(json.dumps(storage)) == storage | {"filesystems": []}
    for broken in ("{", "[]", '{"disks": {}}', ""):
        # No list of disks that it could write an empty partition table on.
        assert served(broken) == "the annotation tinkerbell.org/storage of Hardware m1 can't be read"
    assert served("{}") == {"disks": [], "filesystems": []}, "who wants none can say so"


def test_machine_without_partitions_is_no_success_of_rootio_which_would_empty_its_disks():
    tree = compile_tree(hardware(devices=["/dev/sda"]))
    assert orjson.loads(tree.legacy)["metadata"]["instance"]["storage"] == tree.storage_problem == NO_STORAGE


def test_old_metadata_says_nothing_that_the_hardware_does_not():
    document = orjson.loads(compile_tree(hardware(interfaces={MAC: {}, SECOND: {"dhcp": {"ip": "10.0.0.5"}}})).legacy)
    ips = [{"address": "10.0.0.5", "family": 4}]
    assert document == {"metadata": {"instance": {"id": "m1", "ips": ips, "ssh_keys": [], "storage": NO_STORAGE}}}


# --- whatever the Hardware ---

_mac = st.integers(0, (1 << 48) - 1).map(lambda n: n.to_bytes(6).hex(":"))
_ip = st.integers(0, (1 << 32) - 1).map(lambda n: ".".join(map(str, n.to_bytes(4))))
_netmask = st.integers(0, 32).map(lambda n: ".".join(map(str, ((1 << 32) - (1 << 32 - n)).to_bytes(4))))
_hostname = st.sampled_from(["web-1", "a.example.org", "on", "1e3", "0x1f", "null", "1", "a" * 63])
_dhcp = st.fixed_dictionaries(
    {},
    optional={
        "ip": _ip,
        "netmask": _netmask,
        "gateway": _ip,
        "hostname": _hostname,
        "vlanId": st.integers(1, 4094).map(str),
        "nameservers": st.lists(_ip | st.just("dns.example.org"), max_size=3),
    },
)
_interface = st.fixed_dictionaries({}, optional={"dhcp": _dhcp, "disableDhcp": st.booleans()})
_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
_annotation = st.one_of(
    _text,
    st.lists(st.sampled_from([KEY, KEY + "2", KEY + " a b", 'from="a b" ' + KEY, "x"]) | _text).map("\n".join),
    st.sampled_from(["name", "name/key", "on", "{}", "1:30"]),
)
_names = [
    f"tinkerbell.org/{name}" for name in ("instance-id", "ssh-public-keys", "userdata-secret", "vendordata-secret")
]
_hardware = st.builds(
    lambda interfaces, annotations, instance: hardware(interfaces=interfaces, annotations=annotations, **instance),
    st.dictionaries(_mac | _text, _interface, min_size=1, max_size=4),
    st.dictionaries(st.sampled_from(_names), _annotation),
    st.fixed_dictionaries({}, optional={"userdata": _text, "vendordata": _text}),
)


@settings(max_examples=60, deadline=None)
@given(_hardware)
def test_whatever_the_hardware_cloud_init_finds_everything_listed(machine):
    tree = compile_tree(machine)
    joined = crawl(tree.ec2)
    assert all(isinstance(value, str) and value for value in leaves(joined))
    assert joined["instance-id"] == tree.instance_id
    for name in tree.ec2[""].decode().splitlines():
        assert name.rstrip("/") in tree.ec2 or name in tree.secrets
    assert all(not path.startswith("/") and "//" not in path and not path.endswith("/") for path in tree.ec2)


@settings(max_examples=60, deadline=None)
@given(_hardware)
def test_whatever_the_hardware_nocloud_says_what_the_ec2_tree_says(machine):
    tree = compile_tree(machine)
    joined = crawl(tree.ec2)
    facts = yaml.safe_load(tree.nocloud["meta-data"])
    assert facts.pop("public-keys", []) == list(joined.get("public-keys", {}).values())
    assert facts == {name: joined[name] for name in ("instance-id", "local-hostname") if name in joined}
    assert {*tree.nocloud, *tree.secrets} == {"meta-data", "user-data", "vendor-data", "network-config"}
    assert orjson.loads(tree.legacy)["metadata"]["instance"]["id"] == tree.instance_id


@settings(max_examples=60, deadline=None)
@given(_hardware)
def test_whatever_the_hardware_each_address_is_configured_once(machine):
    config = yaml.safe_load(compile_tree(machine).nocloud["network-config"]) or {"ethernets": {}}
    ethernets, vlans = config["ethernets"], config.get("vlans", {})
    known = machine.spec.network_interfaces
    for name, link in ethernets.items():
        dhcp = known[link["match"]["macaddress"]].dhcp
        assert dhcp.ip is not None
        carrier = link if dhcp.vlan_id is None else vlans[f"{name}.{dhcp.vlan_id}"]
        assert carrier.get("dhcp4") or [one.partition("/")[0] for one in carrier["addresses"]] == [dhcp.ip]
        assert ("set-name" in link) == (dhcp.vlan_id is not None)
    metrics = [
        (one.get("routes") or [one.get("dhcp4-overrides", {})])[0] for one in (*ethernets.values(), *vlans.values())
    ]
    chosen = [metric.get("metric") or metric.get("route-metric") for metric in metrics if metric]
    assert len(set(chosen)) == len(chosen)


STATIC = {
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


def test_addresses_are_static_and_interfaces_keep_their_names():
    assert network({MAC: {"dhcp": STATIC}}) == {
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


def test_tagged_network_is_a_vlan_on_an_interface_that_ifupdown_can_name():
    config = network(
        {MAC: {"dhcp": STATIC}, SECOND: {"dhcp": {"ip": "10.1.0.5", "netmask": "255.255.0.0", "vlanId": "7"}}}
    )
    assert config["ethernets"]["nic1"] == {"match": {"macaddress": SECOND}, "set-name": "nic1"}
    assert config["vlans"] == {"nic1.7": {"id": 7, "link": "nic1", "addresses": ["10.1.0.5/16"]}}


def test_name_of_a_vlan_fits_into_the_kernels_15_characters():
    vlan = {"netmask": "255.255.0.0", "vlanId": "4094"}
    many = {
        f"52:54:00:00:{n >> 8:02x}:{n & 255:02x}": {"dhcp": vlan | {"ip": f"10.1.{n >> 8}.{n & 255}"}}
        for n in range(1000)
    }
    assert max(map(len, re.findall(r"^  (nic\S+\.4094):$", text(many).decode(), re.MULTILINE))) == len("nic999.4094")


def test_second_default_route_has_a_higher_metric_for_netplan_refuses_equal_ones():
    second = STATIC | {"ip": "10.9.0.5", "gateway": "10.9.0.1"}
    config = network({SECOND: {"dhcp": STATIC}, MAC: {"dhcp": second}})["ethernets"]
    assert [config[name]["routes"][0]["metric"] for name in ("nic0", "nic1")] == [100, 200]


def test_lone_default_route_needs_no_metric_beside_a_network_without_gateway():
    config = network({SECOND: {"dhcp": {"ip": "10.9.0.5", "netmask": "255.0.0.0"}}, MAC: {"dhcp": STATIC}})["ethernets"]
    assert config["nic0"] == {"match": {"macaddress": SECOND}, "addresses": ["10.9.0.5/8"]}
    assert config["nic1"]["routes"] == [{"to": "0.0.0.0/0", "via": "10.0.0.1"}]


def test_gateway_of_an_interface_that_is_not_configured_needs_no_metric():
    config = network({SECOND: {"dhcp": {"gateway": "10.9.0.1"}}, MAC: {"dhcp": STATIC}})["ethernets"]
    assert config["nic1"]["routes"] == [{"to": "0.0.0.0/0", "via": "10.0.0.1"}]


def test_without_a_netmask_only_dhcp_can_tell():
    assert network({MAC: {"dhcp": {"ip": "10.0.0.5"}}})["ethernets"]["nic0"] == {
        "match": {"macaddress": MAC},
        "dhcp4": True,
    }
    config = network({MAC: {"dhcp": {"ip": "10.0.0.5", "gateway": "10.0.0.1"}}, SECOND: {"dhcp": STATIC}})["ethernets"]
    assert config["nic0"]["dhcp4-overrides"] == {"route-metric": 100}
    assert config["nic1"]["routes"][0]["metric"] == 200


def test_address_that_neither_dhcp_nor_a_netmask_completes_is_left_alone():
    assert text({MAC: {"dhcp": {"ip": "10.0.0.5"}, "disableDhcp": True}}) == b""


def test_gateway_outside_the_subnet_is_left_to_dhcp_where_it_is_answered():
    host_route = STATIC | {"netmask": "255.255.255.255"}
    assert network({MAC: {"dhcp": host_route}})["ethernets"]["nic0"] == {"match": {"macaddress": MAC}, "dhcp4": True}
    static = network({MAC: {"dhcp": host_route, "disableDhcp": True}})["ethernets"]["nic0"]
    assert static["addresses"] == ["10.0.0.5/32"]
    assert static["routes"] == [{"to": "0.0.0.0/0", "via": "10.0.0.1", "on-link": True}]


def test_interfaces_without_an_address_are_left_to_the_image():
    assert text({MAC: {}, SECOND: {"dhcp": {"hostname": "x"}}}) == b""
    assert list(network({MAC: {}, SECOND: {"dhcp": STATIC}})["ethernets"]) == ["nic1"]


def test_mac_of_digits_only_stays_a_string():
    mac = "10:20:30:40:50:59"
    assert network({mac: {"dhcp": STATIC}})["ethernets"]["nic0"]["match"]["macaddress"] == mac


def test_key_that_is_no_mac_matches_no_interface():
    assert text({one: {"dhcp": STATIC} for one in ("eth0\nevil: true", f"{MAC}\n", "52:54:00:00:00:0G", "")}) == b""


IPV6 = {"address": "fd00::5", "prefixLength": 56, "nameservers": ["fd00::53"]}


def test_ipv6_address_comes_by_dhcp_beside_a_static_ipv4_one_or_alone():
    match = {"match": {"macaddress": MAC}}
    both = network({MAC: {"dhcp": {"ip": "10.0.0.5", "netmask": "255.255.255.0", "ipv6": IPV6}}})["ethernets"]["nic0"]
    assert both == match | {"addresses": ["10.0.0.5/24"], "dhcp6": True}
    assert network({MAC: {"dhcp": {"ipv6": IPV6}}})["ethernets"]["nic0"] == match | {"dhcp6": True}
    leased = network({MAC: {"dhcp": {"ip": "10.0.0.5", "ipv6": IPV6}}})["ethernets"]["nic0"]
    assert leased == match | {"dhcp4": True, "dhcp6": True}


def test_ipv6_address_is_static_where_dhcp_is_not_answered():
    addressed = {"ip": "10.0.0.5", "netmask": "255.255.255.0", "gateway": "10.0.0.1", "ipv6": IPV6}
    assert network({MAC: {"dhcp": addressed, "disableDhcp": True}})["ethernets"]["nic0"] == {
        "match": {"macaddress": MAC},
        "addresses": ["10.0.0.5/24", "fd00::5/56"],
        "routes": [{"to": "0.0.0.0/0", "via": "10.0.0.1"}],
        "nameservers": {"addresses": ["fd00::53"]},
    }
    alone = network({MAC: {"dhcp": {"ipv6": IPV6}, "disableDhcp": True}})["ethernets"]["nic0"]
    assert (alone["addresses"], "routes" in alone) == (["fd00::5/56"], False)


def test_ec2_tree_sends_cloud_init_to_dhcpv6_by_the_list_of_addresses():
    machine = Hardware.model_validate({"spec": {"networkInterfaces": {MAC: {"dhcp": {"ipv6": IPV6}}}}})
    tree = ec2_tree(facts_of("m1", links(machine)), "", links(machine), [], {}, [], {})
    below = f"meta-data/network/interfaces/macs/{MAC}"
    assert tree[f"{below}/ipv6s"] == b"fd00::5"
    assert tree[below] == b"device-number\nipv6s\nmac\nvpc-id"
    assert tree["meta-data/ipv6"] == b"fd00::5"
