"""Root device hints: the disk that Metal3 would take, or none where it would only guess."""

from __future__ import annotations

from typing import Any

import pytest

from tink.api.v1alpha2 import Raw
from tink.convert.metal3.root_disk import choose

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
