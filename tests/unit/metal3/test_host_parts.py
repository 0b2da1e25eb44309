"""Parts of a BareMetalHost: the root disk, the network data of OpenStack, and the management controller."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tink.api.v1alpha2 import Raw
from tink.convert.fields import Fields
from tink.convert.findings import Findings, Source
from tink.convert.metal3.network_data import parsed, served
from tink.convert.metal3.root_disk import choose
from tink.convert.metal3.rufio import machine

ONE, TWO = "52:54:00:aa:00:01", "52:54:00:aa:00:02"
DEFAULT = {"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "10.0.0.1"}


def phy(name: str, mac: str) -> Raw:
    return {"id": name, "type": "phy", "ethernet_mac_address": mac}


def network(link: str = "eno1", address: str = "10.0.0.5", **more: Any) -> Raw:
    return {"id": "n", "link": link, "type": "ipv4", "ip_address": address, "netmask": "255.255.255.0", **more}


def serve(
    networks: list[Any], links: list[Any] | None = None, boot: str = ONE, **top: Any
) -> tuple[dict[str, Raw], list[tuple[str, str]]]:
    findings = Findings(Source("f", 1, "BareMetalHost", "m", "n"))
    links = [phy("eno1", ONE.upper()), phy("eno2", TWO)] if links is None else links
    found = served({"links": links, "networks": networks, **top}, "data", boot, findings)
    return found, [(each.path, each.reason) for each in findings]


def test_address_gateway_and_servers_are_served_to_the_link() -> None:
    services = [{"type": "dns", "address": "10.0.0.2"}, {"type": "ntp", "address": "ntp.example.org"}]
    found, said = serve([network(routes=[DEFAULT])], services=services)
    assert found == {
        ONE: {
            "ip": "10.0.0.5",
            "netmask": "255.255.255.0",
            "gateway": "10.0.0.1",
            "nameservers": ["10.0.0.2"],
            "timeservers": ["ntp.example.org"],
        },
        TWO: {},
    }
    assert said == []


def test_yaml_and_json_are_read_and_nothing_else_is_quoted() -> None:
    document = {"links": [phy("eno1", ONE)]}
    assert parsed(json.dumps(document)) == document
    assert parsed(f"links:\n- id: eno1\n  type: phy\n  ethernet_mac_address: {ONE}\n") == document
    for bad in ("a: [", "a: 1\n---\nb: 2\n", "&a [*a]", "[" * 100_000, "secret: *x"):
        with pytest.raises(ValueError) as caught:
            parsed(bad)
        assert "secret" not in str(caught.value)
        assert len(str(caught.value)) < 100
    assert parsed("") is None


@pytest.mark.parametrize(
    ("said", "netmask"),
    [("255.255.255.0", "255.255.255.0"), ("24", "255.255.255.0"), (24, "255.255.255.0"), ("/24", "255.255.255.0")],
)
def test_netmask_may_be_a_number_of_bits(said: Any, netmask: str) -> None:
    found, complaints = serve([network(netmask=said)])
    assert found[ONE]["netmask"] == netmask
    assert complaints == []
    found, _ = serve([network(address="10.0.0.5/24", netmask="")])
    assert (found[ONE]["ip"], found[ONE]["netmask"]) == ("10.0.0.5", "255.255.255.0")


@pytest.mark.parametrize("netmask", ["255.0.255.0", 0, 33, "x", [], True])
def test_bad_netmask_is_dropped_and_the_address_stays(netmask: Any) -> None:
    found, said = serve([network(netmask=netmask)])
    assert found[ONE] == {"ip": "10.0.0.5"}
    assert [path for path, _ in said] == ["data.networks[0].netmask"]


def test_second_network_of_a_link_is_dropped_and_the_one_that_leads_out_is_kept() -> None:
    found, said = serve([network(address="192.168.0.5"), network(routes=[DEFAULT])])
    assert found[ONE]["ip"] == "10.0.0.5"
    assert said == [("data.networks[0]", f"DHCP serves one address to {ONE}, and another network's is taken")]


SIX = {"id": "s", "link": "eno1", "type": "ipv6", "ip_address": "2001:DB8:0::5", "netmask": "56"}


def test_ipv6_is_served_beside_ipv4_and_other_routes_are_dropped_with_their_reason() -> None:
    other = {"network": "10.9.0.0", "netmask": "255.255.0.0", "gateway": "10.0.0.9"}
    services = [{"type": "dns", "address": "2001:DB8::2"}, {"type": "ntp", "address": "2001:db8::3"}]
    # That of IPv6 may stand before the other.
    found, said = serve([SIX, network(routes=[other, DEFAULT])], services=services)
    assert found[ONE] == {
        "ip": "10.0.0.5",
        "netmask": "255.255.255.0",
        "gateway": "10.0.0.1",
        "ipv6": {"address": "2001:db8::5", "prefixLength": 56, "nameservers": ["2001:db8::2"]},
    }
    assert [path for path, _ in said] == ["data.networks[1].routes[0]", "data.networks[0]", "data.services[1].address"]
    assert said[1][1] == "DHCPv6 serves it, where the edge is told --ipv6"


@pytest.mark.parametrize(
    ("more", "kept", "lost"),
    [
        ({"netmask": "ffff:ffff:ffff:ffff::"}, {"address": "2001:db8::5", "prefixLength": 64}, ""),
        ({"netmask": 64}, {"address": "2001:db8::5", "prefixLength": 64}, ""),
        ({"ip_address": "2001:db8::5/48", "netmask": ""}, {"address": "2001:db8::5", "prefixLength": 48}, ""),
        ({"netmask": [64]}, {"address": "2001:db8::5"}, ".netmask"),
        ({"netmask": "", "gateway": "2001:db8::1"}, {"address": "2001:db8::5"}, ".gateway"),
        ({"netmask": "", "routes": [{"network": "::"}]}, {"address": "2001:db8::5"}, ".routes"),
        ({"netmask": "", "dns_nameservers": ["fd00::3"]}, {"address": "2001:db8::5", "nameservers": ["fd00::3"]}, ""),
        ({"netmask": "", "dns_nameservers": ["fe80::3"]}, {"address": "2001:db8::5"}, ".dns_nameservers[0]"),
        ({"netmask": "", "mtu": 9000}, {"address": "2001:db8::5"}, ".mtu"),
        ({"type": "ipv6_slaac", "ip_address": ""}, None, ""),
        ({"ip_address": "fe80::5"}, None, ".ip_address"),
        ({"ip_address": "x:y"}, None, ".ip_address"),
        ({"link": "eno9"}, None, ""),
    ],
)  # fmt: skip
def test_what_dhcpv6_does_not_say_is_named(more: Raw, kept: Raw | None, lost: str) -> None:
    found, said = serve([SIX | more])
    assert found[ONE] == ({"ipv6": kept} if kept else {})
    paths = ["data.networks[0]"] if kept or not lost else []
    assert sorted(path for path, _ in said) == sorted([*paths, *([f"data.networks[0]{lost}"] if lost else [])])


def test_address_of_ipv6_is_one_to_an_interface_and_to_one_interface() -> None:
    again, elsewhere = SIX | {"ip_address": "2001:db8::6"}, SIX | {"link": "eno2"}
    found, said = serve([SIX, again, elsewhere])
    assert (found[ONE]["ipv6"]["address"], found[TWO]) == ("2001:db8::5", {})
    assert [path for path, _ in said] == [f"data.networks[{number}]" for number in range(3)]


def test_address_of_ipv6_in_a_vlan_goes_with_the_ipv4_one_of_that_vlan_only() -> None:
    links = [phy("eno1", ONE), {"id": "v", "type": "vlan", "vlan_link": "eno1", "vlan_id": 100}]
    found, _ = serve([network("v"), SIX | {"link": "v"}], links)
    assert (found[ONE]["vlanId"], found[ONE]["ipv6"]["address"]) == ("100", "2001:db8::5")
    found, said = serve([network("v"), SIX], links)
    assert "ipv6" not in found[ONE]
    assert "another one's address is taken" in said[-1][1]
    found, _ = serve([SIX | {"link": "v"}], links)
    assert found[ONE] == {"ipv6": {"address": "2001:db8::5", "prefixLength": 56}, "vlanId": "100"}


@pytest.mark.parametrize(
    ("gateway", "why"), [("10.0.1.1", "not in the subnet"), ("x", "IPv4"), ("2001:db8::1", "IPv4")]
)
def test_gateway_that_the_api_would_refuse_is_dropped(gateway: str, why: str) -> None:
    found, said = serve([network(routes=[{**DEFAULT, "gateway": gateway}])])
    assert "gateway" not in found[ONE]
    assert why in said[0][1]


def test_bond_is_served_to_the_member_that_netboots() -> None:
    bond = {
        "id": "bond0",
        "type": "bond",
        "bond_links": ["eno1", "eno2"],
        "ethernet_mac_address": ONE,
        "bond_mode": "x",
    }
    links = [phy("eno1", ONE), phy("eno2", TWO), bond]
    found, said = serve([network("bond0")], links, boot=TWO)
    assert found[TWO]["ip"] == "10.0.0.5"
    assert found[ONE] == {}
    assert [path for path, _ in said] == ["data.links[2].bond_mode", "data.networks[0]"]
    assert serve([network("bond0")], links, boot="")[0][ONE]["ip"] == "10.0.0.5"
    links[2] = {"id": "bond0", "type": "bond", "bond_links": ["eno2", "eno1"]}
    assert serve([network("bond0")], links, boot="")[0][TWO]["ip"] == "10.0.0.5"
    assert serve([network("bond0")], [{"id": "bond0", "type": "bond", "ethernet_mac_address": ONE}])[0] == {}


def test_vlan_is_served_where_nothing_untagged_is() -> None:
    vlan = {"id": "v", "type": "vlan", "vlan_link": "eno1", "vlan_id": 100, "vlan_mac_address": ONE}
    links = [phy("eno1", ONE), vlan]
    found, said = serve([network("v")], links)
    assert (found[ONE]["ip"], found[ONE]["vlanId"]) == ("10.0.0.5", "100")
    assert "VLAN 100" in said[0][1]
    found, said = serve([network("v", "10.1.0.5"), network()], links)
    assert found[ONE] == {"ip": "10.0.0.5", "netmask": "255.255.255.0"}
    assert "tagged" in said[0][1]
    for odd in ({"vlan_id": 5000}, {"vlan_link": "x"}, {"vlan_mac_address": TWO}, {"vlan_id": None}):
        found, said = serve([network("v")], [phy("eno1", ONE), {**vlan, **odd}])
        assert found[ONE] == {}
        assert said[0][0] == "data.networks[0]"


def test_one_address_is_served_once() -> None:
    found, said = serve([network("eno1"), network("eno2")])
    assert found[ONE]["ip"] == "10.0.0.5"
    assert "ip" not in found[TWO]
    assert said[0][0] == "data.networks[1].ip_address"


def test_dhcp_network_has_no_address_and_no_gateway() -> None:
    found, said = serve([{"id": "n", "link": "eno1", "type": "ipv4_dhcp", "routes": [DEFAULT]}])
    assert found[ONE] == {}
    assert said == [("data.networks[0].routes[0].gateway", "there is no address that it could be the gateway of")]


@pytest.mark.parametrize(
    "document", [1, "x", [], {"links": 1}, {"links": [1], "networks": [None, 1]}, {"networks": [network("nowhere")]}]
)
def test_odd_document_serves_nothing_and_says_so(document: Any) -> None:
    findings = Findings(Source("f", 1, "BareMetalHost", "m", "n"))
    assert served(document, "data", ONE, findings) == {}
    assert document == [] or len(findings)


def test_second_gateway_and_an_ipv6_address_called_ipv4_are_dropped() -> None:
    found, said = serve([network(routes=[DEFAULT, {**DEFAULT, "gateway": "10.0.0.254"}])])
    assert found[ONE]["gateway"] == "10.0.0.1"
    assert said == [("data.networks[0].routes[1].gateway", "DHCP serves one gateway, and 10.0.0.1 is taken")]
    found, said = serve([network(address="2001:db8::5")])
    assert found[ONE] == {"ipv6": {"address": "2001:db8::5"}}
    assert said == [
        ("data.networks[0].netmask", "must be the length of a prefix, such as 64, or its mask, ffff::"),
        ("data.networks[0]", "DHCPv6 serves it, where the edge is told --ipv6"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"links": ["x" * 100] * 3000}),
        "a: &a '" + "x" * 10_000 + "'\nlinks: [" + ",".join(["*a"] * 40) + "]\n",
        "\n".join(["a0: &a0 {k: v}", *(f"a{i + 1}: &a{i + 1} {{<<: [{','.join([f'*a{i}'] * 9)}]}}" for i in range(9))]),
    ],
    ids=["long", "aliases", "merge-keys"],
)
def test_document_of_a_tenant_that_is_or_becomes_large_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"larger than 256 KiB|neither JSON nor YAML"):
        parsed(text)


GIB = 1 << 30
SSD: Raw = {
    "name": "/dev/disk/by-path/pci-0000:00:17.0-ata-1",
    "alternateNames": ["/dev/sda", "/dev/disk/by-id/wwn-0x5000"],
    "model": "SAMSUNG MZ7LH480",
    "vendor": "ATA",
    "serialNumber": "S45PNA0M1",
    "sizeBytes": 447 * GIB,
    "wwn": "0x5002538e",
    "wwnWithExtension": "0x5002538e0x1",
    "wwnVendorExtension": "0x1",
    "hctl": "0:0:0:0",
    "type": "SSD",
}
HDD: Raw = {
    "name": "/dev/sdb",
    "model": "WD 40",
    "vendor": "Western Digital",
    "serialNumber": "wd-1",
    "sizeBytes": 3700 * GIB,
    "hctl": "1:0:0:0",
    "type": "HDD",
    "rotational": True,
}
NVME: Raw = {"name": "/dev/nvme0n1", "model": "SAMSUNG PM9A3", "sizeBytes": 900 * GIB, "type": "NVME"}
DISKS = [SSD, HDD, NVME]
FIRST, SECOND, THIRD = (disk["name"] for disk in DISKS)


@pytest.mark.parametrize(
    ("hints", "root"),
    [
        ({"hctl": "1:0:0:0"}, SECOND),
        ({"serialNumber": " s45pna0m1 "}, FIRST),
        ({"model": "mz7"}, FIRST),
        ({"modelContains": "PM9"}, THIRD),
        ({"vendorContains": "western"}, SECOND),
        ({"vendor": "Western%20Dig"}, SECOND),
        ({"wwn": "0X5002538E"}, FIRST),
        ({"wwnWithExtension": "0x5002538e0x1"}, FIRST),
        ({"wwnVendorExtension": "0x1"}, FIRST),
        ({"rotational": True}, SECOND),
        ({"rotational": False, "minSizeGigabytes": 500}, THIRD),
        ({"minSizeGigabytes": 3700}, SECOND),
        ({"modelContains": "samsung", "minSizeGigabytes": 448}, THIRD),
        (
            {"modelContains": "samsung", "hctl": "0:0:0:0", "serialNumber": "", "wwn": None, "minSizeGigabytes": 0},
            FIRST,
        ),
    ],
)
def test_hints_that_one_disk_fits_choose_it(hints: Raw, root: str) -> None:
    choice = choose(hints, DISKS)
    assert choice.devices[0] == root
    assert sorted(choice.devices) == sorted((FIRST, SECOND, THIRD))
    assert not choice.problem


@pytest.mark.parametrize(
    ("hints", "why"),
    [
        ({}, "3 disks"),
        ({"modelContains": "samsung"}, "2 disks fit: /dev/disk/by-path/pci-0000:00:17.0-ata-1, /dev/nvme0n1"),
        ({"minSizeGigabytes": 1}, "3 disks fit"),
        ({"rotational": False}, "2 disks fit"),
        ({"hctl": "0:0:0"}, "none of the host's 3 disks fits"),
        ({"serialNumber": "S45"}, "none"),
        ({"vendorContains": "SAMSUNG"}, "none"),
        ({"minSizeGigabytes": 3701}, "none"),
        ({"deviceName": "/dev/sdz"}, "none"),
        ({"deviceName": "/dev/sda", "hctl": "1:0:0:0"}, "none"),
        ({"colour": "red"}, "colour is no hint"),
        ({"hctl": 1}, "hctl must be a string"),
        ({"rotational": "true"}, "rotational must be true or false"),
        ({"minSizeGigabytes": "9"}, "minSizeGigabytes must be a number"),
        ({"minSizeGigabytes": True}, "minSizeGigabytes must be a number"),
    ],
)
def test_disk_that_would_be_a_guess_is_not_chosen(hints: Raw, why: str) -> None:
    choice = choose(hints, DISKS)
    assert choice.devices == ()
    assert why in choice.problem


def test_path_is_taken_as_it_was_written_and_not_twice() -> None:
    assert choose({"deviceName": "/dev/sda"}, DISKS).devices == ("/dev/sda", SECOND, THIRD)
    assert choose({"devicePath": FIRST}, DISKS).devices == (FIRST, SECOND, THIRD)
    by_id = choose({"devicePath": "/dev/disk/by-id/wwn-0x5000"}, DISKS)
    assert by_id.devices == ("/dev/disk/by-id/wwn-0x5000", SECOND, THIRD)


def test_two_paths_to_one_disk_are_ambiguous() -> None:
    again = {**SSD, "name": "/dev/sdc"}
    assert "2 disks fit" in choose({"serialNumber": "S45PNA0M1"}, [SSD, again]).problem


def test_without_an_inventory_only_a_path_is_taken() -> None:
    for nothing in (None, []):
        assert choose({"deviceName": "/dev/sda"}, nothing).devices == ("/dev/sda",)
        for hints in ({}, {"hctl": "0:0:0:0"}, {"deviceName": "/dev/sda", "hctl": "0:0:0:0"}):
            assert choose(hints, nothing).devices == ()
            assert "no HardwareData" in choose(hints, nothing).problem
        assert choose({"deviceName": "/dev/sda"}, nothing, verified=True).devices == ()
        assert "refused" in choose({"deviceName": "/dev/sda1"}, nothing).problem
    assert choose({"deviceName": "/dev/sda"}, DISKS, verified=True).devices[0] == "/dev/sda"


def test_only_disk_is_the_root_without_hints() -> None:
    assert choose({}, [HDD]).devices == (SECOND,)


@pytest.mark.parametrize("storage", ["sda", {"name": "/dev/sda"}, [None], ["/dev/sda"], [HDD, 1]])
def test_odd_inventory_chooses_nothing(storage: Any) -> None:
    choice = choose({}, storage)
    assert choice.devices == ()
    assert choice.problem


@pytest.mark.parametrize("name", [None, 1, "", "sda", "/dev/sda1", "/dev/" + "x" * 300])
def test_disk_whose_name_the_api_refuses_is_no_root_and_left_out_otherwise(name: Any) -> None:
    odd = {"name": name, "hctl": "9:0:0:0"}
    assert choose({"hctl": "9:0:0:0"}, [HDD, odd]).devices == ()
    choice = choose({"hctl": "1:0:0:0"}, [odd, HDD])
    assert choice.devices == (SECOND,)
    assert choice.left_out[0][0] == 0


def test_more_disks_than_the_api_takes_are_left_out() -> None:
    disks = [{"name": f"/dev/disk/by-path/p{number}", "hctl": f"{number}:0:0:0"} for number in range(300)]
    choice = choose({"hctl": "299:0:0:0"}, disks)
    assert choice.devices[0] == "/dev/disk/by-path/p299"
    assert (len(choice.devices), len(choice.left_out)) == (256, 44)


def test_disk_with_platters_is_rotational_though_only_its_type_says_so() -> None:
    disk = {"name": "/dev/sdx", "type": "HDD"}
    assert choose({"rotational": True}, [SSD, disk]).devices[0] == "/dev/sdx"
    assert choose({"rotational": False}, [NVME, disk]).devices[0] == THIRD


def test_disk_that_stands_there_twice_is_listed_once() -> None:
    assert choose({"hctl": "1:0:0:0"}, [NVME, NVME, HDD]).devices == (SECOND, THIRD)


METADATA = {"name": "n0", "namespace": "metal3", "labels": {"a": "b"}}


def made(address: Any, **more: Any) -> tuple[Raw | None, list[str]]:
    findings = Findings(Source("f", 1, "BareMetalHost", "metal3", "n0"))
    bmc = Fields({"address": address, "credentialsName": "n0-bmc", **more}, findings, "spec.bmc")
    return machine(bmc, METADATA, findings), [f"{each.path}: {each.reason}" for each in findings]


@pytest.mark.parametrize(
    ("address", "host", "port", "provider"),
    [
        ("redfish://192.0.2.7/redfish/v1", "192.0.2.7", 443, "redfish"),
        ("redfish://192.0.2.7:8000", "192.0.2.7", 8000, "redfish"),
        ("redfish+http://bmc.example.org", "bmc.example.org", 80, "redfish"),
        ("redfish-virtualmedia+https://192.0.2.7:444", "192.0.2.7", 444, "redfish"),
        ("redfish-uefihttp://192.0.2.7", "192.0.2.7", 443, "redfish"),
        ("idrac-virtualmedia://192.0.2.7", "192.0.2.7", 443, "redfish"),
        ("ilo5-redfish://[2001:db8::7]:443", "2001:db8::7", 443, "redfish"),
        ("ipmi://192.0.2.7", "192.0.2.7", 623, "ipmitool"),
        ("ipmi://192.0.2.7:6230", "192.0.2.7", 6230, "ipmitool"),
        ("libvirt://192.0.2.7:6231", "192.0.2.7", 6231, "ipmitool"),
        ("192.0.2.7", "192.0.2.7", 623, "ipmitool"),
        ("192.0.2.7:6230", "192.0.2.7", 6230, "ipmitool"),
        ("[2001:db8::7]:6230", "2001:db8::7", 6230, "ipmitool"),
        ("2001:db8::7", "2001:db8::7", 623, "ipmitool"),
    ],
)
def test_controller_is_reached_where_metal3_reaches_it(address: str, host: str, port: int, provider: str) -> None:
    found, said = made(address, disableCertificateVerification=True)
    assert said == []
    assert found is not None
    assert found["metadata"] == METADATA
    connection = found["spec"]["connection"]
    assert (connection["host"], connection["port"], connection["insecureTLS"]) == (host, port, True)
    assert connection["providerOptions"][provider] == {"port": port}
    assert connection["authSecretRef"] == {"name": "n0-bmc", "namespace": "metal3"}


@pytest.mark.parametrize(
    "address",
    ["", "ftp://x", "redfish://", "irmc://192.0.2.7", "redfish://user:pw@192.0.2.7", "redfish://x:99999", "redfish://[x",
     "redfish+ftp://192.0.2.7", "ipmi://a_b"],
)  # fmt: skip
def test_address_that_rufio_cannot_use_makes_no_machine_and_says_why(address: str) -> None:
    found, said = made(address)
    assert found is None
    assert said
    assert said[0].startswith("spec.bmc.address: ")
    assert "pw" not in said[0]


def test_system_of_a_shared_controller_is_told() -> None:
    found, said = made("redfish://192.0.2.7/redfish/v1/Systems/1")
    assert found is not None
    assert "systemName" in said[0]


def test_odd_fields_are_told_and_no_bad_reference_is_written() -> None:
    assert made("ipmi://192.0.2.7", credentialsName="Not A Name")[0] is None
    found, said = made("ipmi://192.0.2.7", credentialsName="", verbose=True)
    assert found is not None
    assert "authSecretRef" not in found["spec"]["connection"]
    assert [each.partition(":")[0] for each in said] == ["spec.bmc.verbose", "spec.bmc.credentialsName"]
