"""Parts of a BareMetalHost: the root disk, the network data of OpenStack, and the management controller."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tink.api.v1alpha2 import Raw
from tink.convert.fields import Fields
from tink.convert.findings import Findings, Source
from tink.convert.metal3.network_data import parsed, served
from tink.convert.metal3.root_disk import choose
from tink.convert.metal3.rufio import machine

ONE, TWO = "52:54:00:aa:00:01", "52:54:00:aa:00:02"
CASES = yaml.safe_load((Path(__file__).parent / "network_data.yaml").read_text())


def phy(name: str, mac: str) -> Raw:
    return {"id": name, "type": "phy", "ethernet_mac_address": mac}


NOWHERE = {"id": "n", "link": "nowhere", "type": "ipv4", "ip_address": "10.0.0.5"}
LINKS = [phy("eno1", ONE.upper()), phy("eno2", TWO)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["networks"])[:80])
def test_network_data_is_served_by_dhcp_or_named_with_the_reason(case: Raw) -> None:
    findings = Findings(Source("f", 1, "BareMetalHost", "m", "n"))
    document = {"links": LINKS} | {name: case[name] for name in ("networks", "links", "services") if name in case}
    found = served(document, "data", case.get("boot", ONE), findings)
    assert {mac: dhcp for mac, dhcp in found.items() if dhcp} == case.get("served", {})
    assert [f"{each.path}: {each.reason}" for each in findings] == case.get("report", [])


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
    "document",
    [
        1,
        "x",
        [],
        {"links": 1},
        {"links": [1], "networks": [None, 1]},
        {"networks": [NOWHERE]},
    ],
)
def test_odd_document_serves_nothing_and_says_so(document: Any) -> None:
    findings = Findings(Source("f", 1, "BareMetalHost", "m", "n"))
    assert served(document, "data", ONE, findings) == {}
    assert document == [] or len(findings)


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
