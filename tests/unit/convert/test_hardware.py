"""Hardware of v1alpha1: what a machine keeps, what it loses, and that nothing is lost in silence."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tink.api.v1alpha2 import Hardware, Raw
from tink.convert import hardware
from tink.convert.documents import read
from tink.convert.report import Findings, Kind, Source
from tink.convert.run import Result, convert_documents

CORPORA = Path(__file__).parent / "corpora" / "hardware"
MAC = "52:54:00:12:34:56"
OTHER_MAC = "52:54:00:12:34:57"
SOURCE = Source("in.yaml", 1, "Hardware", "", "node-1")

Refused = Callable[[Raw], list[str]]


def machine(spec: Any = None, **metadata: Any) -> Raw:
    spec = {"interfaces": [interface()]} if spec is None else spec
    metadata = {"name": "node-1", **metadata}
    return {"apiVersion": "tinkerbell.org/v1alpha1", "kind": "Hardware", "metadata": metadata, "spec": spec}


def interface(mac: Any = MAC, *, netboot: Any = None, dhcp: Raw | None = None, **more: Any) -> Raw:
    netboot = {"allowPXE": True, "allowWorkflow": True} if netboot is None else netboot
    return {"dhcp": {"mac": mac, **(dhcp or {})}, "netboot": netboot, **more}


def convert(obj: Raw) -> tuple[list[Raw], list[tuple[str, str]], dict[str, str]]:
    """The result, (kind, path) of the findings, and their reasons by path."""
    before = copy.deepcopy(obj)
    findings = Findings(SOURCE)
    result = hardware.convert(obj, findings)
    assert obj == before, "a converter changes nothing in what it reads"
    return result, [(str(each.kind), each.path) for each in findings], {each.path: each.reason for each in findings}


def spec_of(obj: Raw) -> Raw:
    result, _, _ = convert(obj)
    spec: Raw = result[0]["spec"]
    return spec


def dhcp_of(**dhcp: Any) -> tuple[Raw, list[tuple[str, str]]]:
    result, found, _ = convert(machine({"interfaces": [interface(dhcp=dhcp)]}))
    return result[0]["spec"]["networkInterfaces"][MAC].get("dhcp", {}), found


def run(file: str) -> Result:
    return convert_documents(read(file, (CORPORA / file).read_bytes()))


# --- as users have it


def test_playground_machine_comes_through_with_its_osie_keys_and_bmc(refused: Refused) -> None:
    result = run("playground.yaml")
    osie, machine, bmc, secret = result.objects
    assert osie["spec"] == {
        "kernelUrl": "http://172.20.0.2:7173/hook/vmlinuz-lts-x86_64",
        "initrdUrl": "http://172.20.0.2:7173/hook/initramfs-lts-x86_64",
    }
    assert osie["metadata"]["namespace"] == "tink-system"
    assert machine == {
        "apiVersion": "tinkerbell.org/v1alpha2",
        "kind": "Hardware",
        "metadata": {
            "name": "rack1-u07",
            "namespace": "tink-system",
            "labels": {"rack": "1"},
            "annotations": {
                "tinkerbell.org/instance-id": "3c:ec:ef:00:07:01",
                "tinkerbell.org/ssh-public-keys": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE7 ops@lab",
            },
        },
        "spec": {
            "networkInterfaces": {
                "3c:ec:ef:00:07:01": {
                    "dhcp": {
                        "ip": "172.20.1.7",
                        "netmask": "255.255.0.0",
                        "gateway": "172.20.0.1",
                        "hostname": "rack1-u07",
                        "vlanId": "120",
                        "nameservers": ["172.20.0.1", "9.9.9.9"],
                        "timeservers": ["ntp.lab.example"],
                        "leaseTimeSeconds": 86400,
                    }
                },
                "3c:ec:ef:00:07:02": {
                    "dhcp": {"ip": "172.21.1.7", "netmask": "255.255.0.0"},
                    "disableNetboot": True,
                },
            },
            "osie": {"name": osie["metadata"]["name"]},
            "kernelParams": ["console=ttyS1", "tink_worker_image=registry.lab.example/tink-agent"],
            "instance": {"userdata": "#cloud-config\n# our defaults\npackage_update: true\n"},
            "storageDevices": ["/dev/nvme0n1", "/dev/sda"],
            "bmcRef": {"name": "rack1-u07"},
        },
    }
    assert (bmc["kind"], secret["kind"]) == ("Machine", "Secret")
    assert [(str(each.kind), each.path) for each in result.findings] == [
        ("dropped", "spec.interfaces[0].dhcp.arch"),
        ("dropped", "spec.interfaces[0].dhcp.uefi"),
        ("changed", "spec.interfaces[1].dhcp.mac"),
        ("dropped", "spec.metadata.facility"),
    ]
    assert refused(osie) == refused(machine) == []


def test_eksa_machine_comes_through(refused: Refused) -> None:
    result = run("eksa.yaml")
    (machine,) = result.objects
    assert machine["spec"]["networkInterfaces"]["0c:c4:7a:10:20:01"]["dhcp"]["leaseTimeSeconds"] == 4294967294
    assert machine["spec"]["bmcRef"] == {"name": "bmc-eksa-a01"}
    assert "instance" not in machine["spec"]
    assert [(str(each.kind), each.path) for each in result.findings] == [
        ("dropped", "spec.interfaces[0].dhcp.arch"),
        ("dropped", "spec.interfaces[0].dhcp.uefi"),
        ("dropped", "spec.metadata.instance.ips[0].public"),
        ("dropped", "spec.metadata.instance.allow_pxe"),
        ("dropped", "spec.metadata.instance.always_pxe"),
        ("dropped", "spec.metadata.facility"),
    ]
    assert refused(machine) == []


def test_capt_dump_leaves_behind_what_the_old_api_server_wrote(refused: Refused) -> None:
    result = run("capt.json")
    osie, machine = result.objects
    assert machine["metadata"] == {
        "name": "node-3",
        "namespace": "capt",
        "labels": {
            "v1alpha1.tinkerbell.org/ownerName": "cluster-a-md-0-xyz",
            "v1alpha1.tinkerbell.org/ownerNamespace": "capt",
        },
        "annotations": {
            "v1alpha1.tinkerbell.org/provisioned": "true",
            "tinkerbell.org/instance-id": "dc:a6:32:aa:00:03",
        },
    }
    assert "status" not in machine
    assert osie["spec"]["kernelUrl"] == "https://images.example.org/hook/vmlinuz-aarch64"
    paths = {each.path: str(each.kind) for each in result.findings}
    assert paths["items[0].metadata.finalizers"] == "dropped"
    assert paths["items[0].status"] == "changed"
    assert paths["items[0].spec.interfaces[0].netboot.osie"] == "changed"
    assert paths["items[0].spec.metadata.instance.storage"] == "dropped"
    assert refused(osie) == refused(machine) == []


# --- interfaces


def test_mac_in_capitals_or_with_dashes_is_found_again() -> None:
    result, found, _ = convert(machine({"interfaces": [interface("52-54-00-AB-CD-EF")]}))
    assert list(result[0]["spec"]["networkInterfaces"]) == ["52:54:00:ab:cd:ef"]
    assert found == [("changed", "spec.interfaces[0].dhcp.mac")]


@pytest.mark.parametrize("mac", ["52:54:00:12:34", "x", "52:54:00:12:34:5g", "5254.0012.3456", MAC + "\n\n:"])
def test_mac_that_is_none_is_an_error_and_no_machine_comes_of_it(mac: str) -> None:
    result, found, _ = convert(machine({"interfaces": [interface(), interface(mac)]}))
    assert result == []
    assert found == [("error", "spec.interfaces[1].dhcp.mac")]


def test_one_mac_on_two_interfaces_is_an_error_that_names_both() -> None:
    result, found, reasons = convert(machine({"interfaces": [interface(), interface(MAC.upper())]}))
    assert result == []
    assert found == [("error", "spec.interfaces[1].dhcp.mac")]
    assert "spec.interfaces[0].dhcp.mac" in reasons["spec.interfaces[1].dhcp.mac"]


@pytest.mark.parametrize("broken", [{}, {"dhcp": {"hostname": "x"}}, {"dhcp": None}, {"dhcp": {"mac": ""}}])
def test_interface_without_mac_is_dropped_and_the_others_stay(broken: Raw) -> None:
    result, found, _ = convert(machine({"interfaces": [broken, interface()]}))
    assert list(result[0]["spec"]["networkInterfaces"]) == [MAC]
    assert found == [("dropped", "spec.interfaces[0]")]


@pytest.mark.parametrize("spec", [{}, {"interfaces": []}, {"interfaces": [{"netboot": {}}]}, {"interfaces": "x"}])
def test_machine_without_any_interface_is_an_error(spec: Raw) -> None:
    result, found, _ = convert(machine(spec))
    assert result == []
    assert ("error", "spec.interfaces") in found


def test_object_without_spec_is_an_error_and_not_a_traceback() -> None:
    obj = machine()
    del obj["spec"]
    assert convert(obj)[1] == [("error", "spec.interfaces")]


@pytest.mark.parametrize(
    ("netboot", "disabled", "changed"),
    [
        ({"allowPXE": True, "allowWorkflow": True}, False, []),
        ({"allowPXE": True}, False, []),
        ({"allowPXE": True, "allowWorkflow": False}, False, ["allowWorkflow"]),
        ({"allowPXE": False, "allowWorkflow": True}, True, ["allowWorkflow"]),
        ({"allowPXE": False}, True, []),
        ({"allowWorkflow": True}, True, ["allowPXE", "allowWorkflow"]),
        ({"allowPXE": None, "osie": {}}, True, ["allowPXE"]),
    ],
)
def test_netboot_is_allowed_only_where_v1alpha1_allowed_it(netboot: Raw, disabled: bool, changed: list[str]) -> None:
    result, found, _ = convert(machine({"interfaces": [interface(netboot=netboot)]}))
    assert result[0]["spec"]["networkInterfaces"][MAC].get("disableNetboot", False) is disabled
    assert found == [("changed", f"spec.interfaces[0].netboot.{key}") for key in changed]


@pytest.mark.parametrize("netboot", [{}, None])
def test_interface_without_netboot_gets_no_netboot_and_its_owner_is_told(netboot: Any) -> None:
    result, found, _ = convert(machine({"interfaces": [{"dhcp": {"mac": MAC}, "netboot": netboot}]}))
    assert result[0]["spec"]["networkInterfaces"] == {MAC: {"disableNetboot": True}}
    assert found == [("changed", "spec.interfaces[0].netboot")]


def test_disabled_dhcp_stays_disabled() -> None:
    result, found, _ = convert(machine({"interfaces": [interface(disableDhcp=True)]}))
    assert result[0]["spec"]["networkInterfaces"][MAC] == {"disableDhcp": True}
    assert found == [("changed", "spec.interfaces[0].disableDhcp")]
    result, found, _ = convert(machine({"interfaces": [{"dhcp": {"mac": MAC}, "disableDhcp": True}]}))
    assert result[0]["spec"]["networkInterfaces"][MAC] == {"disableDhcp": True, "disableNetboot": True}
    assert found == []


# --- DHCP


@pytest.mark.parametrize(
    ("ip", "kept", "lost"),
    [
        ({"address": "10.0.0.2", "netmask": "255.0.0.0", "gateway": "10.9.9.9", "family": 4}, "ip netmask gateway", ""),
        ({"address": "2001:db8::2", "netmask": "64", "gateway": "2001:db8::1"}, "", "ip"),
        ({"address": "10.0.0.2", "family": 6}, "", "ip"),
        ({"address": "10.0.0.300", "netmask": "255.0.0.0"}, "netmask", "ip.address"),
        ({"address": "10.0.0.2\n"}, "", "ip.address"),
        ({"address": "10.0.0.2", "netmask": "255.0.255.0"}, "ip", "ip.netmask"),
        ({"address": "10.0.0.2", "netmask": "24"}, "ip", "ip.netmask"),
        ({"address": "10.0.0.2", "netmask": "255.255.255.0", "gateway": "10.0.1.1"}, "ip netmask", "ip.gateway"),
        ({"address": "10.0.0.2", "netmask": "255.255.255.255", "gateway": "10.0.1.1"}, "ip netmask gateway", ""),
        ({"address": "10.0.0.2", "gateway": "fe80::1"}, "ip", "ip.gateway"),
        ({"address": "10.0.0.2", "gateway": "10.1"}, "ip", "ip.gateway"),
        ({"address": "10.0.0.2", "dns": "10.0.0.1"}, "ip", "ip.dns"),
        ({"address": 10}, "", "ip.address"),
        ({"address": "10.0.0.2", "family": 5}, "ip", "ip.family"),
        ("10.0.0.2", "", "ip"),
    ],
)
def test_address_that_v1alpha2_cannot_serve_is_named(ip: Any, kept: str, lost: str) -> None:
    dhcp, found = dhcp_of(ip=ip)
    assert list(dhcp) == kept.split()
    assert found == ([("dropped", f"spec.interfaces[0].dhcp.{lost}")] if lost else [])


def test_address_of_two_interfaces_stays_with_the_first(refused: Refused) -> None:
    ip = {"ip": {"address": "10.0.0.2", "netmask": "255.255.255.0"}}
    result, found, reasons = convert(machine({"interfaces": [interface(dhcp=ip), interface(OTHER_MAC, dhcp=ip)]}))
    assert result[0]["spec"]["networkInterfaces"][OTHER_MAC]["dhcp"] == {"netmask": "255.255.255.0"}
    assert found == [("dropped", "spec.interfaces[1].dhcp.ip.address")]
    assert "spec.interfaces[0].dhcp.ip.address" in reasons["spec.interfaces[1].dhcp.ip.address"]
    assert refused(result[0]) == []


@pytest.mark.parametrize(
    ("seconds", "served", "finding"),
    [
        (3600, 3600, None),
        (0, None, "changed"),
        (-1, None, "dropped"),
        (4294967295, 4294967295, None),
        (4294967296, 4294967295, "changed"),
        ("3600", None, "dropped"),
        (True, None, "dropped"),
        (1.5, None, "dropped"),
    ],
)
def test_lease_time_is_one_that_dhcp_can_say(seconds: Any, served: int | None, finding: str | None) -> None:
    dhcp, found = dhcp_of(lease_time=seconds)
    assert dhcp.get("leaseTimeSeconds") == served
    assert found == ([(finding, "spec.interfaces[0].dhcp.lease_time")] if finding else [])


@pytest.mark.parametrize(
    ("vlan", "kept"),
    [("100", "100"), (100, "100"), ("4094", "4094"), ("4095", None), ("0", None), ("100,200", None), (True, None)],
)
def test_vlan_is_one_that_there_is(vlan: Any, kept: str | None) -> None:
    dhcp, found = dhcp_of(vlan_id=vlan)
    assert dhcp.get("vlanId") == kept
    assert found == ([] if kept else [("dropped", "spec.interfaces[0].dhcp.vlan_id")])


def test_servers_that_cannot_be_served_are_named_one_by_one() -> None:
    servers = ["1.1.1.1", "2606:4700::1", "10.0.0.256", "dns.example.org", "", 8, None, "bad name"]
    dhcp, found = dhcp_of(name_servers=servers, time_servers=["x" * 64])
    assert dhcp == {"nameservers": ["1.1.1.1", "dns.example.org"]}
    wrong = [f"name_servers[{index}]" for index in (5, 1, 2, 7)] + ["time_servers[0]"]
    assert found == [("dropped", f"spec.interfaces[0].dhcp.{path}") for path in wrong]


def test_servers_beyond_the_thirty_second_are_named(refused: Refused) -> None:
    result, found, _ = convert(machine({"interfaces": [interface(dhcp={"name_servers": ["1.1.1.1"] * 33})]}))
    assert found == [("dropped", "spec.interfaces[0].dhcp.name_servers[32]")]
    assert refused(result[0]) == []


@pytest.mark.parametrize(
    "field",
    ["arch", "uefi", "iface_name", "domain_name", "classless_static_routes", "tftp_server_name", "boot_file_name", "x"],
)
def test_dhcp_field_without_a_place_is_named(field: str) -> None:
    dhcp, found = dhcp_of(**{field: [{"a": "b"}]})
    assert dhcp == {}
    assert found == [("dropped", f"spec.interfaces[0].dhcp.{field}")]


def test_fields_that_say_nothing_are_not_lost() -> None:
    dhcp, found = dhcp_of(arch="", uefi=False, iface_name=None, name_servers=[], ip={}, hostname="", odd={"a": []})
    assert (dhcp, found) == ({}, [])


# --- what the machine boots


OSIE = {"baseURL": "http://10.0.0.1/osie", "kernel": "k", "initrd": "i"}


def booting(*netboots: Raw) -> Raw:
    macs = (MAC, OTHER_MAC)
    return machine({"interfaces": [interface(mac, netboot=each) for mac, each in zip(macs, netboots, strict=False)]})


def test_hardware_with_the_same_urls_shares_one_osie(converting: Callable[..., Result]) -> None:
    one, two, three = (machine(name=name) for name in ("a", "b", "c"))
    for obj in (one, two, three):
        obj["spec"] = booting({"allowPXE": True, "osie": OSIE})["spec"]
    three["spec"]["interfaces"][0]["netboot"]["osie"]["baseURL"] += "/"
    one["spec"]["interfaces"][0]["dhcp"]["mac"] = "52:54:00:00:00:01"
    elsewhere = {**three, "metadata": {"name": "c", "namespace": "elsewhere"}}
    result = converting(one, two, three, elsewhere)
    assert [obj["kind"] for obj in result.objects] == ["OSIE", "OSIE", "Hardware", "Hardware", "Hardware", "Hardware"]
    here, there = result.objects[:2]
    assert (here["metadata"].get("namespace"), there["metadata"]["namespace"]) == (None, "elsewhere")
    names = {obj["spec"]["osie"]["name"] for obj in result.objects[2:]}
    assert names == {here["metadata"]["name"]}


def test_machines_that_differ_in_the_initrd_alone_do_not_share_an_osie() -> None:
    names = set()
    for initrd in ("i", "j"):
        result, _, _ = convert(booting({"allowPXE": True, "osie": {**OSIE, "initrd": initrd}}))
        assert result[0]["spec"]["osie"] == {"name": result[1]["metadata"]["name"]}
        names.add(result[1]["metadata"]["name"])
    assert len(names) == 2


def test_osie_without_file_names_has_those_of_the_architecture() -> None:
    base = {"baseURL": "http://10.0.0.1"}
    for arch, name in (("x86_64", "x86_64"), ("arm64", "aarch64"), (None, "x86_64"), (7, "x86_64")):
        obj = booting({"allowPXE": True, "osie": base})
        obj["spec"]["interfaces"][0]["dhcp"]["arch"] = arch
        result, found, _ = convert(obj)
        assert result[1]["spec"]["kernelUrl"] == f"http://10.0.0.1/vmlinuz-{name}"
        assert result[1]["spec"]["initrdUrl"] == f"http://10.0.0.1/initramfs-{name}"
        assert ("changed", "spec.interfaces[0].netboot.osie") in found


def test_osie_files_without_their_base_are_named() -> None:
    result, found, _ = convert(booting({"allowPXE": True, "osie": {"kernel": "k", "initrd": "i"}}))
    assert len(result) == 1
    assert found == [("dropped", f"spec.interfaces[0].netboot.osie.{key}") for key in ("kernel", "initrd")]


@pytest.mark.parametrize("base", ["ftp://x", "http://", "http://a b", "no url", "http:///x"])
def test_osie_that_nobody_could_fetch_is_named(base: str) -> None:
    result, found, _ = convert(booting({"allowPXE": True, "osie": {**OSIE, "baseURL": base}}))
    assert len(result) == 1
    assert "osie" not in result[0]["spec"]
    assert found == [("dropped", "spec.interfaces[0].netboot.osie")]


def test_interface_that_netboots_decides_what_the_machine_boots() -> None:
    other = {**OSIE, "baseURL": "http://10.0.0.9", "kernelParams": ["b"]}
    first = {"allowPXE": False, "osie": {**OSIE, "kernelParams": ["a"]}, "ipxe": {"url": "http://10.0.0.1/a"}}
    second = {"allowPXE": True, "osie": other, "ipxe": {"url": "http://10.0.0.1/b"}}
    result, found, _ = convert(booting(first, second))
    spec = result[0]["spec"]
    assert result[1]["spec"]["kernelUrl"] == "http://10.0.0.9/k"
    assert (spec["kernelParams"], spec["ipxe"]) == (["b"], {"url": "http://10.0.0.1/b"})
    lost = [f"spec.interfaces[0].netboot.{key}" for key in ("ipxe", "osie", "osie.kernelParams")]
    assert found == [("dropped", path) for path in lost]


def test_interfaces_that_agree_lose_nothing() -> None:
    netboot = {"allowPXE": True, "osie": {**OSIE, "kernelParams": ["a"]}, "ipxe": {"contents": "#!ipxe\nshell"}}
    result, found, _ = convert(booting(netboot, copy.deepcopy(netboot)))
    assert result[0]["spec"]["ipxe"] == {"inline": "#!ipxe\nshell"}
    assert found == []


def test_script_of_a_machine_with_url_and_contents_is_the_one_that_it_ran(refused: Refused) -> None:
    result, found, _ = convert(booting({"allowPXE": True, "ipxe": {"url": "http://a/b", "contents": "shell"}}))
    assert result[0]["spec"]["ipxe"] == {"url": "http://a/b"}
    assert found == [("dropped", "spec.interfaces[0].netboot.ipxe.contents")]
    assert refused(result[0]) == []


@pytest.mark.parametrize(
    ("key", "value", "path"),
    [
        ("ipxe", {"binary": "ipxe.efi"}, ".ipxe.binary"),
        ("ipxe", {"url": "tftp://x/y"}, ".ipxe.url"),
        ("ipxe", {"contents": "a\0b"}, ".ipxe.contents"),
        ("ipxe", {"contents": "x" * ((1 << 20) + 1)}, ".ipxe.contents"),
        ("osie", {"kernelParams": ["a && shell"]}, ".osie.kernelParams[0]"),
        ("osie", {"kernelParams": [1]}, ".osie.kernelParams[0]"),
        ("osie", {"kernelParams": "a b"}, ".osie.kernelParams"),
        ("osie", {"iso": "x"}, ".osie.iso"),
        ("pxelinux", {"config": "x"}, ".pxelinux"),
        ("rpi", {"serialNum": "x"}, ".rpi"),
        ("tootles", 1, ".tootles"),
    ],
)
def test_netboot_field_without_a_place_is_named(key: str, value: Any, path: str) -> None:
    result, found, _ = convert(booting({"allowPXE": True, key: value}))
    assert list(result[0]["spec"]) == ["networkInterfaces"]
    assert found == [("dropped", f"spec.interfaces[0].netboot{path}")]


# --- the instance


def instance(**fields: Any) -> Raw:
    return machine({"interfaces": [interface()], "metadata": {"instance": fields}})


@pytest.mark.parametrize(
    "field",
    [
        "state", "allow_pxe", "rescue", "operating_system", "always_pxe", "ipxe_script_url", "userdata",
        "crypted_root_password", "tags", "storage", "network_ready", "unheard_of",
    ],
)  # fmt: skip
def test_instance_field_without_a_place_is_named(field: str) -> None:
    result, found, _ = convert(instance(**{field: "x"}))
    assert list(result[0]["spec"]) == ["networkInterfaces"]
    assert found == [("dropped", f"spec.metadata.instance.{field}")]


@pytest.mark.parametrize("field", ["state", "bonding_mode", "manufacturer", "custom", "facility", "unheard_of"])
def test_metadata_field_without_a_place_is_named(field: str) -> None:
    _, found, _ = convert(machine({"interfaces": [interface()], "metadata": {field: "x"}}))
    assert found == [("dropped", f"spec.metadata.{field}")]


@pytest.mark.parametrize("field", ["tinkVersion", "resources", "references", "unheardOf"])
def test_spec_field_without_a_place_is_named(field: str) -> None:
    _, found, _ = convert(machine({"interfaces": [interface()], field: 3}))
    assert found == [("dropped", f"spec.{field}")]


def test_annotation_that_is_there_is_kept() -> None:
    obj = instance(id="new", ssh_keys=["a b"])
    obj["metadata"]["annotations"] = {"tinkerbell.org/instance-id": "old", "tinkerbell.org/ssh-public-keys": "a b"}
    result, found, _ = convert(obj)
    assert result[0]["metadata"]["annotations"]["tinkerbell.org/instance-id"] == "old"
    assert found == [("dropped", "spec.metadata.instance.id")]


def test_key_of_two_lines_does_not_become_two_keys() -> None:
    result, found, _ = convert(instance(ssh_keys=["ssh-rsa A a\n", "ssh-rsa B b\nssh-rsa C c", "", "ssh-rsa D"]))
    assert result[0]["metadata"]["annotations"]["tinkerbell.org/ssh-public-keys"] == "ssh-rsa A a\nssh-rsa D"
    assert found == [("dropped", "spec.metadata.instance.ssh_keys[1]")]


def test_hostname_of_the_instance_becomes_that_of_dhcp_if_there_is_none() -> None:
    result, found, _ = convert(instance(hostname="db.example"))
    assert result[0]["spec"]["networkInterfaces"][MAC]["dhcp"] == {"hostname": "db.example"}
    assert found == [("changed", "spec.metadata.instance.hostname")]
    assert convert(instance(hostname="not a name"))[1] == [("dropped", "spec.metadata.instance.hostname")]
    obj = instance(hostname="db")
    obj["spec"]["interfaces"][0]["dhcp"]["hostname"] = "other"
    result, found, _ = convert(obj)
    assert result[0]["spec"]["networkInterfaces"][MAC]["dhcp"] == {"hostname": "other"}
    assert found == [("dropped", "spec.metadata.instance.hostname")]


def test_addresses_of_the_instance_are_lost_only_where_no_interface_has_them() -> None:
    obj = instance(
        ips=[
            {"address": "10.0.0.2", "netmask": "255.0.0.0", "family": 4},
            {"address": "10.0.0.2", "netmask": "255.255.0.0"},
            {"address": "10.0.0.3", "public": True},
            {"address": "10.0.0.2", "management": True, "cidr": 8},
            {},
        ]
    )
    obj["spec"]["interfaces"][0]["dhcp"]["ip"] = {"address": "10.0.0.2", "netmask": "255.0.0.0"}
    assert convert(obj)[1] == [
        ("dropped", f"spec.metadata.instance.ips{path}") for path in ("[1]", "[2]", "[3].management", "[3].cidr")
    ]


def test_user_data_and_vendor_data_come_through_and_too_much_is_named() -> None:
    obj = machine({"interfaces": [interface()], "userData": "#cloud-config\n", "vendorData": "v" * ((1 << 20) + 1)})
    result, found, _ = convert(obj)
    assert result[0]["spec"]["instance"] == {"userdata": "#cloud-config\n"}
    assert found == [("dropped", "spec.vendorData")]


# --- disks, BMC, metadata


@pytest.mark.parametrize("device", ["/dev/sda1", "sda", "/dev/nvme0n1p2", "/dev/s da", 5, "/dev/disk/by-id/x-part1"])
def test_disk_that_is_no_whole_disk_is_named(device: Any) -> None:
    result, found, _ = convert(
        machine({"interfaces": [interface()], "disks": [{"device": device}, {"device": "/dev/sdb"}]})
    )
    assert result[0]["spec"]["storageDevices"] == ["/dev/sdb"]
    assert found == [("dropped", "spec.disks[0].device")]


@pytest.mark.parametrize(
    ("reference", "path"),
    [
        ({"name": "x", "kind": "BaseboardManagement"}, ""),
        ({"name": "x", "apiGroup": "example.org", "kind": "Machine"}, ""),
        ({"name": "X y"}, ".name"),
        ("x", ""),
    ],
)
def test_reference_to_no_machine_of_rufio_is_named(reference: Any, path: str) -> None:
    result, found, _ = convert(machine({"interfaces": [interface()], "bmcRef": reference}))
    assert "bmcRef" not in result[0]["spec"]
    assert found == [("dropped", f"spec.bmcRef{path}")]


def test_owners_and_finalizers_are_named_and_left_behind() -> None:
    obj = machine(
        finalizers=["x/y"],
        ownerReferences=[{"uid": "u"}],
        uid="u",
        resourceVersion="1",
        labels={"n": 1, "a": [], "b": "c"},
    )
    result, found, _ = convert(obj)
    assert result[0]["metadata"] == {"name": "node-1", "labels": {"n": "1", "b": "c"}}
    assert found == [
        ("changed", "metadata.labels.n"),
        ("dropped", "metadata.labels.a"),
        ("dropped", "metadata.ownerReferences"),
        ("dropped", "metadata.finalizers"),
    ]


def test_status_is_not_carried_over_and_that_is_no_loss() -> None:
    obj = machine() | {"status": {"state": "Ready"}, "extra": 1}
    assert convert(obj)[1] == [("changed", "status"), ("dropped", "extra")]


# --- anything

_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 2**33),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)
_ANY = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def either(good: Any, *others: Any) -> Any:
    """Mostly what belongs there."""
    return st.one_of(good, good, *others, _ANY)


_NAMES = st.sampled_from(["node-1", "db.example.org", "", "BAD_", "x" * 64])
_ADDRESSES = st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.1.1", "10.0.0.256", "fe80::1", "", "1.2.3.4\n", "01.2.3.4"])
_IP = st.fixed_dictionaries(
    {},
    optional={
        "address": either(_ADDRESSES),
        "gateway": either(_ADDRESSES),
        "netmask": either(st.sampled_from(["255.255.255.0", "255.255.255.255", "0.0.0.0", "255.0.255.0", "24"])),
        "family": either(st.sampled_from([4, 6, 0])),
    },
)
_DHCP = st.fixed_dictionaries(
    {"mac": either(st.sampled_from([MAC, OTHER_MAC, MAC.upper(), "52:54:00:12:34:58", "52:54:00:12:34:59"]))},
    optional={
        "hostname": either(_NAMES),
        "ip": either(_IP),
        "lease_time": either(st.integers(-1, 2**33)),
        "name_servers": either(st.lists(either(_ADDRESSES | _NAMES), max_size=3)),
        "time_servers": either(st.lists(either(_ADDRESSES | _NAMES), max_size=3)),
        "vlan_id": either(st.sampled_from(["1", "4094", "4095", "007", 12])),
        "arch": either(st.sampled_from(["x86_64", "arm64"])),
    },
)
_URLS = st.sampled_from(["http://10.0.0.1", "https://x/y?z#q", "file:///a", "http://", "http://a\u00a0b/", "x"])
_NETBOOT = st.fixed_dictionaries(
    {},
    optional={
        "allowPXE": either(st.booleans()),
        "allowWorkflow": either(st.booleans()),
        "ipxe": either(
            st.fixed_dictionaries({}, optional={"url": either(_URLS), "contents": either(st.text(max_size=9))})
        ),
        "osie": either(
            st.fixed_dictionaries(
                {},
                optional={
                    "baseURL": either(_URLS),
                    "kernel": either(st.sampled_from(["k", "/k", "k k"])),
                    "initrd": either(st.sampled_from(["i"])),
                    "kernelParams": either(
                        st.lists(either(st.sampled_from(["a=b", "#x", "a ; b", "\x85", "\u2028#"])))
                    ),
                },
            )
        ),
    },
)
_INTERFACE = st.fixed_dictionaries(
    {"dhcp": either(_DHCP)}, optional={"netboot": either(_NETBOOT), "disableDhcp": either(st.booleans())}
)
_DEVICES = st.sampled_from(
    ["/dev/sda", "/dev/sda1", "/dev/disk/by-id/x\n-part1", "/dev/x/", "/", "/dev/\u00a0", "/dev/mapper/a-part2"]
)
_SPEC = st.fixed_dictionaries(
    {"interfaces": either(st.lists(either(_INTERFACE), max_size=3))},
    optional={
        "disks": either(st.lists(either(st.fixed_dictionaries({"device": either(_DEVICES)})), max_size=3)),
        "metadata": either(
            st.fixed_dictionaries(
                {},
                optional={
                    "instance": either(
                        st.fixed_dictionaries(
                            {},
                            optional={
                                "id": either(st.text(max_size=9)),
                                "hostname": either(_NAMES),
                                "ssh_keys": either(st.lists(either(st.text(max_size=9)), max_size=2)),
                                "ips": either(st.lists(either(_IP), max_size=2)),
                            },
                        )
                    )
                },
            )
        ),
        "bmcRef": either(st.fixed_dictionaries({"name": either(st.sampled_from(["bmc-1", "B", "a..", "-"]))})),
        "userData": either(st.text()),
        "status": _ANY,
    },
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spec=_SPEC)
def test_whatever_a_machine_says_the_result_is_one_that_the_api_takes(refused: Refused, spec: Raw) -> None:
    findings = Findings(SOURCE)
    obj = machine(spec)
    before = copy.deepcopy(obj)
    result = hardware.convert(obj, findings)
    assert obj == before
    assert bool(result) != findings.failed
    for made in result:
        assert refused(made) == []
    if result:
        Hardware.model_validate(result[0])


@settings(max_examples=100, deadline=None)
@given(_ANY, _ANY)
def test_no_object_brings_the_converter_down(spec: Any, metadata: Any) -> None:
    obj = machine() | {"spec": spec, "metadata": metadata}
    findings = Findings(SOURCE)
    hardware.convert(obj, findings)
    assert findings.failed
    assert all(each.reason for each in findings if each.kind is Kind.ERROR)
