"""The interfaces of a v1alpha1 Hardware: addresses, DHCP, and what the machine may boot."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.convert.v1alpha1.old_hardware import MAC, OTHER_MAC, convert, interface, machine
from tink.api.v1alpha2 import Raw
from tink.convert.run import Result

Refused = Callable[[Raw], list[str]]


def dhcp_of(**dhcp: Any) -> tuple[Raw, list[tuple[str, str]]]:
    result, found, _ = convert(machine({"interfaces": [interface(dhcp=dhcp)]}))
    return result[0]["spec"]["networkInterfaces"][MAC].get("dhcp", {}), found


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


@pytest.mark.parametrize(
    ("ip", "served", "lost"),
    [
        ({"address": "2001:db8::2", "netmask": "64"}, {"address": "2001:db8::2", "prefixLength": 64}, ""),
        ({"address": "2001:DB8:0::2/56", "family": 6}, {"address": "2001:db8::2", "prefixLength": 56}, ""),
        ({"address": "2001:db8::2", "netmask": "ffff:ffff::"}, {"address": "2001:db8::2", "prefixLength": 32}, ""),
        ({"address": "2001:db8::2", "netmask": "ffff::ffff"}, {"address": "2001:db8::2"}, "ip.netmask"),
        ({"address": "2001:db8::2", "netmask": "129"}, {"address": "2001:db8::2"}, "ip.netmask"),
        ({"address": "2001:db8::2", "netmask": "0"}, {"address": "2001:db8::2"}, "ip.netmask"),
        ({"address": "2001:db8::2", "netmask": "255.255.255.0"}, {"address": "2001:db8::2"}, "ip.netmask"),
        ({"address": "2001:db8::2", "gateway": "2001:db8::1"}, {"address": "2001:db8::2"}, "ip.gateway"),
        ({"address": "2001:db8::2", "family": 4}, {"address": "2001:db8::2"}, ""),
        ({"address": "2001:db8::2", "dns": "x"}, {"address": "2001:db8::2"}, "ip.dns"),
        ({"address": "fe80::2"}, None, "ip.address"),
        ({"address": "::1"}, None, "ip.address"),
    ],
)
def test_address_of_ipv6_is_served_by_dhcpv6_and_what_that_does_not_say_is_named(
    ip: Any, served: Any, lost: str, refused: Refused
) -> None:
    result, found, _ = convert(machine({"interfaces": [interface(dhcp={"ip": ip})]}))
    dhcp = result[0]["spec"]["networkInterfaces"][MAC].get("dhcp", {})
    assert dhcp == ({"ipv6": served} if served else {})
    said = [("changed", "spec.interfaces[0].dhcp.ip")] if served else []
    assert sorted(found) == sorted([*said, *([("dropped", f"spec.interfaces[0].dhcp.{lost}")] if lost else [])])
    assert refused(result[0]) == []


def test_name_servers_of_ipv6_go_with_its_address() -> None:
    servers = {"name_servers": ["2001:DB8::53", "10.0.0.53", "fe80::53"], "time_servers": ["2001:db8::123"]}
    dhcp, found = dhcp_of(ip={"address": "2001:db8::2"}, **servers)
    assert dhcp == {"ipv6": {"address": "2001:db8::2", "nameservers": ["2001:db8::53"]}, "nameservers": ["10.0.0.53"]}
    lost = ["name_servers[2]", "time_servers[0]"]
    assert [path for kind, path in found if kind == "dropped"] == [f"spec.interfaces[0].dhcp.{path}" for path in lost]
    dhcp, found = dhcp_of(ip={"address": "10.0.0.2"}, **servers)
    assert dhcp == {"ip": "10.0.0.2", "nameservers": ["10.0.0.53"]}
    assert len([path for kind, path in found if kind == "dropped"]) == 3


def test_address_of_ipv6_stays_with_the_first_of_two_interfaces(refused: Refused) -> None:
    interfaces = [interface(dhcp={"ip": {"address": "2001:db8::2"}})]
    interfaces.append(interface(OTHER_MAC, dhcp={"ip": {"address": "2001:DB8:0::2"}}))
    result, found, _ = convert(machine({"interfaces": interfaces}))
    assert "ipv6" not in result[0]["spec"]["networkInterfaces"][OTHER_MAC].get("dhcp", {})
    assert ("dropped", "spec.interfaces[1].dhcp.ip") in found
    assert refused(result[0]) == []


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
