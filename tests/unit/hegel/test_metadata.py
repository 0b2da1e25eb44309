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

from hegel.ec2 import ec2_tree, facts_of
from hegel.instance import SecretReference, instance_id
from hegel.metadata import compile_tree
from hegel.network import links, network_config
from tests.support import objects
from tests.support.objects import MAC
from tink.api.v1alpha2 import Hardware

SECOND = "52:54:00:00:00:02"
FULL = {
    "ip": "10.0.0.5",
    "netmask": "255.255.255.0",
    "gateway": "10.0.0.1",
    "hostname": "web-1",
    "nameservers": ["10.0.0.53", "dns.example.org", "10.0.0.53"],
}
OTHER = FULL | {"ip": "10.0.0.6"}
IPV6 = {"address": "fd00::5", "prefixLength": 56, "nameservers": ["fd00::53"]}
NO_STORAGE = "Hardware m1 has no annotation tinkerbell.org/storage, which names partitions and filesystems"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ1Pvk3mNqvWnNIdW4C6Cw3qL2vJYV7cVY5M2z5dJQ0e ops@example"


def hardware(*, interfaces=None, annotations=None, devices=None, **instance: str) -> Hardware:
    """Annotations by their names after tinkerbell.org/."""
    known = {f"tinkerbell.org/{name}": value for name, value in (annotations or {}).items()}
    interfaces = {MAC: {"dhcp": FULL}} if interfaces is None else interfaces
    spec = {"instance": instance or None, "storageDevices": devices}
    return Hardware.model_validate(objects.hardware(interfaces=interfaces, annotations=known, **spec))


def compiled(**fields: Any) -> Any:
    return compile_tree(hardware(**fields))


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
    userdata = "#!/bin/sh\necho ü\r\n"
    tree = compiled(userdata=userdata, annotations={"ssh-public-keys": KEY})
    assert tree.ec2["user-data"] == tree.nocloud["user-data"] == userdata.encode()
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
    assert tree.ec2["meta-data/network/interfaces/macs"] == f"{MAC}/".encode()  # as AWS writes it
    for path, body in compiled().ec2.items():
        assert (body, body) == (body.strip(), body or path), "no value and no listing ends with a newline"


def test_listing_has_only_what_exists_and_directories_with_a_slash():
    tree = compiled(interfaces={MAC: {}})
    assert (tree.ec2[""], tree.ec2["meta-data"]) == (b"meta-data/", b"hostname\ninstance-id\nlocal-hostname\nmac")
    assert {"user-data", "meta-data/local-ipv4"}.isdisjoint(tree.ec2)
    assert compiled(userdata="u", vendordata="v").ec2[""] == b"meta-data/\nuser-data\nvendor-data"
    # NoCloud's files are all there even if empty.
    empty = dict.fromkeys(("user-data", "vendor-data", "network-config"), b"")
    assert tree.nocloud == {"meta-data": b'instance-id: "m1"\nlocal-hostname: "m1"\n', **empty}


def test_address_and_name_are_those_of_the_first_interface_that_has_one():
    for interfaces, mac, ip, name in (
        ({"52:54:00:00:00:09": {"disableDhcp": True}, MAC: {"dhcp": FULL}}, MAC, b"10.0.0.5", b"web-1"),
        ({MAC: {"dhcp": {"ip": "10.0.0.5"}}, SECOND: {"dhcp": {"hostname": "web-2"}}}, MAC, b"10.0.0.5", b"web-2"),
        ({SECOND: {"dhcp": {"hostname": "bmc"}}, MAC: {"dhcp": FULL}}, MAC, b"10.0.0.5", b"web-1"),
    ):
        ec2 = compiled(interfaces=interfaces).ec2
        assert [ec2[f"meta-data/{key}"] for key in ("mac", "local-ipv4")] == [mac.encode(), ip]
        assert ec2["meta-data/local-hostname"] == ec2["meta-data/hostname"] == name


@pytest.mark.parametrize("interfaces", [{MAC: {}}, {MAC: {"dhcp": {"ip": "10.0.0.5"}}}])
def test_hostname_is_the_hardwares_name_if_no_interface_has_one(interfaces):
    tree = compiled(interfaces=interfaces, annotations={"instance-id": "i-2"})
    assert tree.ec2["meta-data/local-hostname"] == tree.ec2["meta-data/hostname"] == b"m1"
    assert tree.nocloud["meta-data"] == b'instance-id: "i-2"\nlocal-hostname: "m1"\n'
    assert orjson.loads(tree.legacy)["metadata"]["instance"]["hostname"] == "m1"


# --- instance id ---


@pytest.mark.parametrize("identity", ["i-2\n", "123", "0x1f", "on", "null", "1e3", "2026-11-21", "i:x"])
def test_annotation_gives_a_reinstalled_machine_a_new_id_which_stays_a_string_in_yaml(identity):
    tree = compiled(annotations={"instance-id": identity})
    assert tree.ec2["meta-data/instance-id"].decode() == tree.instance_id == identity.strip()
    assert yaml.safe_load(tree.nocloud["meta-data"])["instance-id"] == identity.strip()


@pytest.mark.parametrize("bad", ["", " \n", "two words", "i-1\ni-2", "i-\x00", '{"id":1}'])
def test_id_that_would_break_cloud_init_is_ignored_with_a_reason(bad, caplog):
    assert instance_id(hardware(annotations={"instance-id": bad})) == "m1"
    assert "Hardware default/m1: annotation tinkerbell.org/instance-id is ignored" in caplog.text


# --- network/ ---


def macs(interfaces: dict[str, Any]) -> Any:
    return crawl(compiled(interfaces=interfaces).ec2).get("network")


def test_interfaces_are_numbered_in_order_so_that_the_first_has_the_default_route():
    found = macs({SECOND: {"dhcp": FULL}, MAC: {"dhcp": OTHER}})["interfaces"]["macs"]
    assert {mac: values["device-number"] for mac, values in found.items()} == {SECOND: "0", MAC: "1"}
    # Of subnets, cloud-init would ask for leases itself.
    assert not any("subnet" in name for values in found.values() for name in values)


@pytest.mark.parametrize("unreserved", [{}, {"disableDhcp": True}, {"dhcp": {"hostname": "x"}}])
def test_interface_without_an_address_does_not_make_the_boot_wait_for_dhcp(unreserved):
    assert list(macs({MAC: {"dhcp": FULL}, SECOND: unreserved})["interfaces"]["macs"]) == [MAC]


@pytest.mark.parametrize(
    "interfaces",
    [
        {MAC: {}},
        {MAC: {"dhcp": FULL}, SECOND: {"dhcp": OTHER | {"vlanId": "7"}}},
        {MAC: {"dhcp": FULL}, SECOND: {"dhcp": OTHER, "disableDhcp": True}},
    ],
)
def test_network_is_not_listed_where_untagged_dhcp_is_not_the_whole_truth(interfaces):
    assert macs(interfaces) is None


def test_ec2_tree_sends_cloud_init_to_dhcpv6_by_the_list_of_addresses():
    found = links(hardware(interfaces={MAC: {"dhcp": {"ipv6": IPV6}}}))
    tree = ec2_tree(facts_of("i-1", "m1", found), "", found, [], {}, [], {})
    below = f"meta-data/network/interfaces/macs/{MAC}"
    assert tree[f"{below}/ipv6s"] == tree["meta-data/ipv6"] == b"fd00::5"
    assert tree[below] == b"device-number\nipv6s\nmac\nvpc-id"


# --- public-keys ---


def test_public_keys_are_listed_in_ec2s_shape_and_in_nocloud():
    tree = compiled(annotations={"ssh-public-keys": f"{KEY}\n{KEY}-2\n"})
    assert tree.ec2["meta-data/public-keys"] == b"0=ops@example\n1=ops@example-2"
    assert tree.ec2["meta-data/public-keys/1"] == b"openssh-key"
    assert tree.ec2["meta-data/public-keys/1/openssh-key"] == f"{KEY}-2".encode()
    assert yaml.safe_load(tree.nocloud["meta-data"])["public-keys"] == [KEY, f"{KEY}-2"]
    odd = f'{KEY}: "a" # \\ \U0001f511'  # its comment means nothing to YAML
    tree = compiled(annotations={"ssh-public-keys": odd})
    assert yaml.safe_load(tree.nocloud["meta-data"])["public-keys"] == [odd]


def test_bad_key_is_named_by_its_line_and_the_others_are_served(caplog):
    keys = "\n".join([KEY, "ssh-ed25519 secret-typo", *["x"] * 20])
    tree = compiled(annotations={"ssh-public-keys": keys})
    assert tree.ec2["meta-data/public-keys"] == b"0=ops@example"
    assert "Hardware default/m1: annotation tinkerbell.org/ssh-public-keys has no SSH key in line 2, 3," in caplog.text
    assert "11, ...: left out" in caplog.text
    assert "secret-typo" not in caplog.text
    none = compiled(annotations={"ssh-public-keys": "# nobody\n"})
    assert b"public-keys" not in none.ec2["meta-data"] + none.nocloud["meta-data"]


def test_document_of_a_secret_is_listed_but_the_hardwares_is_not_served(caplog):
    vendor = compiled(annotations={"vendordata-secret": "vendor/cloud.cfg\n"})
    assert vendor.secrets == {"vendor-data": SecretReference("vendor", ("cloud.cfg",))}
    assert not caplog.text
    tree = compiled(userdata="old", vendordata="v", annotations={"userdata-secret": "m1-userdata"})
    assert tree.secrets == {"user-data": SecretReference("m1-userdata", ("userData", "value"))}
    assert tree.ec2[""] == b"meta-data/\nuser-data\nvendor-data"
    assert "user-data" not in tree.ec2
    assert set(tree.nocloud) == {"meta-data", "vendor-data", "network-config"}
    assert tree.ec2["vendor-data"] == tree.nocloud["vendor-data"] == b"v"
    assert "spec.instance.userdata is not served, because annotation tinkerbell.org/userdata-secret" in caplog.text


@pytest.mark.parametrize(
    "bad", ["", "/", "a/", "/b", "A", "a/b/c", "../x", "a b", "a/..", "a/.", "a..b", "-a", "x" * 254]
)
def test_reference_that_could_name_something_else_is_ignored_with_a_reason(bad, caplog):
    tree = compiled(userdata="u", annotations={"userdata-secret": bad})
    assert not tree.secrets
    assert tree.ec2["user-data"] == b"u"
    assert "Hardware default/m1: annotation tinkerbell.org/userdata-secret is ignored" in caplog.text


@pytest.mark.parametrize(
    ("machine", "instance"),
    [
        (
            {"devices": ["/dev/sda", "/dev/nvme0n1"], "annotations": {"ssh-public-keys": KEY}},
            {
                "hostname": "web-1",
                "ips": [{"address": "10.0.0.5", "netmask": "255.255.255.0", "gateway": "10.0.0.1", "family": 4}],
                "ssh_keys": [KEY],
            },
        ),
        (
            {"interfaces": {MAC: {}, SECOND: {"dhcp": {"ip": "10.0.0.5"}}}},
            {"hostname": "m1", "ips": [{"address": "10.0.0.5", "family": 4}], "ssh_keys": []},
        ),
    ],
    ids=["whole", "with no more than an address"],
)
def test_actions_of_v1alpha1_find_disks_and_names_where_they_look_for_them(machine, instance):
    tree = compiled(**machine)
    # No success of rootio, which would empty the disks of a machine without partitions.
    instance = {"id": "m1", **instance, "storage": NO_STORAGE}
    assert orjson.loads(tree.legacy) == {"metadata": {"instance": instance}}
    assert tree.storage_problem == NO_STORAGE


STORED = {
    "facility": "ams1",
    "plan": "c3.small",
    "tags": ["db", "blue"],
    "public-ipv4": "192.0.2.5",
    "operating-system": {"distro": "ubuntu", "version": "24.04", "license_activation": {"state": "active"}},
}


def test_what_tootles_served_is_in_the_tree_and_what_is_empty_is_neither_there_nor_complained_of(caplog):
    tree = compiled(annotations={"metadata": json.dumps(STORED)}).ec2
    found = crawl(tree)
    for name in ("facility", "plan", "public-ipv4", "operating-system"):
        assert found[name] == STORED[name]
    assert tree["meta-data/tags"] == b"db\nblue"
    assert tree["meta-data/operating-system"] == b"distro\nlicense_activation/\nversion"
    empty = {"facility": "", "tags": [], "operating-system": {"slug": "", "license_activation": {"state": ""}}}
    tree = compiled(annotations={"metadata": json.dumps(empty)}).ec2
    assert not empty.keys() & set(crawl(tree))
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
    tree = compiled(annotations={"metadata": json.dumps(given)}).ec2
    assert tree["meta-data/plan"] == b"a"
    assert named.partition("/")[0] not in crawl(tree)
    assert f"annotation tinkerbell.org/metadata has values that can't be served, left out: {named}" in caplog.text


def test_rootio_finds_the_partitions_of_the_annotation_and_stops_where_it_can_not_be_read():
    storage = {"disks": [{"device": "/dev/sda", "wipe_table": True, "partitions": [{"label": "ROOT", "number": 1}]}]}

    def served(annotation: str) -> Any:
        tree = compiled(devices=["/dev/sda"], annotations={"storage": annotation})
        return orjson.loads(tree.legacy)["metadata"]["instance"]["storage"]

    assert served(json.dumps(storage)) == storage | {"filesystems": []}
    for broken in ("{", "[]", '{"disks": {}}', ""):
        # No list of disks that it could write an empty partition table on.
        assert served(broken) == "the annotation tinkerbell.org/storage of Hardware m1 can't be read"
    assert served("{}") == {"disks": [], "filesystems": []}, "who wants none can say so"


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
_names = ["instance-id", "ssh-public-keys", "userdata-secret", "vendordata-secret"]
_hardware = st.builds(
    lambda interfaces, annotations, instance: hardware(interfaces=interfaces, annotations=annotations, **instance),
    st.dictionaries(_mac | _text, _interface, min_size=1, max_size=4),
    st.dictionaries(st.sampled_from(_names), _annotation),
    st.fixed_dictionaries({}, optional={"userdata": _text, "vendordata": _text}),
)


@settings(max_examples=80, deadline=None)
@given(_hardware)
def test_whatever_the_hardware_cloud_init_finds_everything_listed_and_the_same_in_all_trees(machine):
    tree = compile_tree(machine)
    joined = crawl(tree.ec2)
    assert all(isinstance(value, str) and value for value in leaves(joined))
    assert joined["instance-id"] == tree.instance_id
    for name in tree.ec2[""].decode().splitlines():
        assert name.rstrip("/") in tree.ec2 or name in tree.secrets
    assert all(not path.startswith("/") and "//" not in path and not path.endswith("/") for path in tree.ec2)
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


# --- network-config: what all of cloud-init's renderers need ---


def text(interfaces: dict[str, Any]) -> bytes:
    return network_config(links(hardware(interfaces=interfaces)))


def network(interfaces: dict[str, Any]) -> Any:
    return yaml.safe_load(text(interfaces))


def ethernets(*interfaces: dict[str, Any]) -> list[dict[str, Any]]:
    """Those of nic0 and nic1, without their names."""
    found = network(dict(zip((MAC, SECOND), interfaces, strict=False)))["ethernets"]
    return [{key: value for key, value in link.items() if key != "match"} for link in found.values()]


ROUTE = {"to": "0.0.0.0/0", "via": "10.0.0.1"}
DNS = {"nameservers": {"addresses": ["10.0.0.53"]}}
MASKED = {"ip": "10.0.0.5", "netmask": "255.255.255.0"}
IPV6_STATIC = {"addresses": ["fd00::5/56"], "nameservers": {"addresses": ["fd00::53"]}}


def test_addresses_are_static_and_interfaces_keep_their_names():
    nic0 = {"match": {"macaddress": MAC}, "addresses": ["10.0.0.5/24"], "routes": [ROUTE], **DNS}
    assert network({MAC: {"dhcp": FULL}}) == {"version": 2, "ethernets": {"nic0": nic0}}
    digits = "10:20:30:40:50:59"  # which stays a string
    assert network({digits: {"dhcp": FULL}})["ethernets"]["nic0"]["match"]["macaddress"] == digits
    assert list(network({MAC: {}, SECOND: {"dhcp": FULL}})["ethernets"]) == ["nic1"]


def test_tagged_network_is_a_vlan_on_an_interface_that_ifupdown_can_name():
    tagged = {"ip": "10.1.0.5", "netmask": "255.255.0.0", "vlanId": "7"}
    config = network({MAC: {"dhcp": FULL}, SECOND: {"dhcp": tagged}})
    assert config["ethernets"]["nic1"] == {"match": {"macaddress": SECOND}, "set-name": "nic1"}
    assert config["vlans"] == {"nic1.7": {"id": 7, "link": "nic1", "addresses": ["10.1.0.5/16"]}}
    many = {
        f"52:54:00:00:{n >> 8:02x}:{n & 255:02x}": {
            "dhcp": tagged | {"ip": f"10.1.{n >> 8}.{n & 255}", "vlanId": "4094"}
        }
        for n in range(1000)
    }
    names = re.findall(r"^  (nic\S+\.4094):$", text(many).decode(), re.MULTILINE)
    assert max(map(len, names)) == len("nic999.4094"), "the kernel takes 15 characters"


@pytest.mark.parametrize(
    ("interface", "second", "expected"),
    [
        # netplan refuses equal metrics
        ({"dhcp": FULL}, {"dhcp": FULL | {"ip": "10.9.0.5", "gateway": "10.9.0.1"}}, [100, 200]),
        ({"dhcp": {"ip": "10.0.0.5", "gateway": "10.0.0.1"}}, {"dhcp": FULL}, [100, 200]),
        ({"dhcp": {"ip": "10.9.0.5", "netmask": "255.0.0.0"}}, {"dhcp": FULL}, [None]),
        ({"dhcp": {"gateway": "10.9.0.1"}}, {"dhcp": FULL}, [None]),
    ],
)
def test_only_a_second_default_route_needs_metrics(interface, second, expected):
    found = []
    for link in ethernets(interface, second):
        found += [route.get("metric") for route in link.get("routes", ())]
        found += [link["dhcp4-overrides"]["route-metric"]] if "dhcp4-overrides" in link else []
    assert found == expected


@pytest.mark.parametrize(
    ("interface", "expected"),
    [
        # Without a netmask, or where the gateway is outside of the subnet, DHCP knows, if it is answered.
        ({"dhcp": {"ip": "10.0.0.5"}}, {"dhcp4": True}),
        ({"dhcp": FULL | {"netmask": "255.255.255.255"}}, {"dhcp4": True}),
        (
            {"dhcp": FULL | {"netmask": "255.255.255.255"}, "disableDhcp": True},
            {"addresses": ["10.0.0.5/32"], "routes": [ROUTE | {"on-link": True}], **DNS},
        ),
        ({"dhcp": {"ip": "10.9.0.5", "netmask": "255.0.0.0"}}, {"addresses": ["10.9.0.5/8"]}),
        # An IPv6 address comes by DHCP beside a static IPv4 one or alone; it is static where DHCP is not answered.
        ({"dhcp": MASKED | {"ipv6": IPV6}}, {"addresses": ["10.0.0.5/24"], "dhcp6": True}),
        ({"dhcp": {"ipv6": IPV6}}, {"dhcp6": True}),
        ({"dhcp": {"ip": "10.0.0.5", "ipv6": IPV6}}, {"dhcp4": True, "dhcp6": True}),
        ({"dhcp": {"ipv6": IPV6}, "disableDhcp": True}, IPV6_STATIC),
        (
            {"dhcp": MASKED | {"gateway": "10.0.0.1", "ipv6": IPV6}, "disableDhcp": True},
            IPV6_STATIC | {"addresses": ["10.0.0.5/24", "fd00::5/56"], "routes": [ROUTE]},
        ),
    ],
)
def test_interface_is_configured_by_what_is_known_of_it(interface, expected):
    assert ethernets(interface) == [expected]


def test_address_that_interfaces_share_is_left_to_dhcp_which_only_one_with_a_link_asks() -> None:
    assert ethernets({"dhcp": MASKED}, {"dhcp": MASKED}) == [{"dhcp4": True}] * 2
    off = {"dhcp": MASKED, "disableDhcp": True}
    assert ethernets(off, {"dhcp": MASKED}) == [{"addresses": ["10.0.0.5/24"]}, {"dhcp4": True}]


@pytest.mark.parametrize(
    "interfaces",
    [
        {MAC: {"dhcp": {"ip": "10.0.0.5"}, "disableDhcp": True}},
        {MAC: {}, SECOND: {"dhcp": {"hostname": "x"}}},
        *({key: {"dhcp": FULL}} for key in ("eth0\nevil: true", f"{MAC}\n", "52:54:00:00:00:0G", "")),
    ],
)
def test_interface_without_a_usable_address_or_mac_is_left_to_the_image(interfaces):
    assert text(interfaces) == b""
