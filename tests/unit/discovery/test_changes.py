"""The changes between two in-band inventories, one sentence each."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tink.discovery.changes import InventoryChange, changes, keep_neighbours

Raw = dict[str, Any]
GIB = 1 << 30
MACS = "52:54:00:00:00:01", "52:54:00:00:00:02"


def disk(name: str, serial: str = "", size: int = 480 * GIB, **fields: Any) -> Raw:
    return {"name": f"/dev/{name}", "sizeBytes": size, **({"serialNumber": serial} if serial else {}), **fields}


def module(slot: str, serial: str = "", size: int = 32 * GIB) -> Raw:
    return {"slot": slot, "sizeBytes": size, **({"serialNumber": serial} if serial else {})}


def port(mac: str = MACS[0], name: str = "eno1", switch: str = "", place: str = "", **fields: Any) -> Raw:
    lldp = {"lldp": {"systemName": switch, "portID": place}} if switch else {}
    return {"name": name, "mac": mac, "linkStatus": "LinkUp", **lldp, **fields}


def adapters(*ports: Raw, **fields: Any) -> list[Raw]:
    return [{"vendor": "Intel", "model": "X710", "ports": [each], **fields} for each in ports]


def inventory(**parts: Any) -> Raw:
    return {"collectionMethod": "agent", "product": {"serialNumber": "S1"}, **parts}


def found(before: Raw, after: Raw) -> list[tuple[str, str]]:
    return [(change.reason, change.text) for change in changes(inventory(**before), inventory(**after))]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (
            {"blockDevices": [disk("sda", "A")]},
            {"blockDevices": [disk("sda", "A"), disk("nvme0n1", "B", 960 * GIB, vendor="Samsung", model="PM9A3")]},
            [("DiskAdded", "Disk /dev/nvme0n1 was added: Samsung PM9A3, 960 GiB, serial B.")],
        ),
        (
            {"blockDevices": [disk("sda", "A"), disk("sdb")]},
            {"blockDevices": [disk("sda", "A")]},
            [("DiskRemoved", "Disk /dev/sdb was removed: 480 GiB.")],
        ),
        (
            {"blockDevices": [disk("sda", "A")]},
            {},
            [("DiskRemoved", "Disk /dev/sda was removed: 480 GiB, serial A.")],
        ),
        (
            {"blockDevices": [disk("sda", "A"), disk("sdb", "B")]},
            {"blockDevices": [disk("sda", "A"), disk("sdb", "C")]},
            [("DiskReplaced", "Disk /dev/sdb was replaced: now 480 GiB, serial C; before 480 GiB, serial B.")],
        ),
        (
            {"blockDevices": [disk("vda", size=10 * GIB)]},
            {"blockDevices": [disk("vda", size=20 * GIB)]},
            [("DiskReplaced", "Disk /dev/vda was replaced: now 20 GiB; before 10 GiB.")],
        ),
        (
            {"memory": {"modules": [module("A1", "1"), module("A2", "2")]}},
            {"memory": {"modules": [module("A1", "1")]}},
            [("MemoryRemoved", "Memory module A2 was removed: 32 GiB, serial 2.")],
        ),
        (
            {"memory": {"modules": [module("A1", "1")]}},
            {"memory": {"modules": [module("A1", "9", 64 * GIB)]}},
            [
                ("MemoryRemoved", "Memory module A1 was removed: 32 GiB, serial 1."),
                ("MemoryAdded", "Memory module A1 was added: 64 GiB, serial 9."),
            ],
        ),
        (
            {"memory": {"totalBytes": 64 * GIB}},
            {"memory": {"totalBytes": 32 * GIB}},
            [("MemoryRemoved", "The size of the memory is now 32 GiB; before 64 GiB.")],
        ),
        (
            {"networkInterfaces": adapters(port())},
            {"networkInterfaces": adapters(port(MACS[1], "eno2"))},
            [
                ("NicAdded", f"Network port eno2 ({MACS[1]}) was added: Intel X710."),
                ("NicRemoved", f"Network port eno1 ({MACS[0]}) was removed: Intel X710."),
            ],
        ),
        (
            {"bios": {"firmwareVersion": "1.0"}, "networkInterfaces": adapters(port(), firmwareVersion="8.1")},
            {"bios": {"firmwareVersion": "1.1"}, "networkInterfaces": adapters(port(), firmwareVersion="8.2")},
            [
                ("FirmwareUpdated", "The machine's firmware is now 1.1; before 1.0."),
                ("FirmwareUpdated", f"The firmware of network port eno1 ({MACS[0]}) is now 8.2; before 8.1."),
            ],
        ),
        (
            {"product": {"serialNumber": "S1"}},
            {"product": {"serialNumber": "S2"}},
            [("SerialChanged", "The serial number of the machine is now S2; before S1.")],
        ),
        (
            {"networkInterfaces": adapters(port(switch="switch-7", place="Ethernet1/7"))},
            {"networkInterfaces": adapters(port(switch="switch-8", place="Ethernet1/3"))},
            [
                (
                    "CablesChanged",
                    f"Network port eno1 ({MACS[0]}) is now connected to switch-8 Ethernet1/3; "
                    "before to switch-7 Ethernet1/7.",
                )
            ],
        ),
        (
            {"firmware": {"mode": "BIOS", "secureBoot": False}},
            {"firmware": {"mode": "UEFI", "secureBoot": True}},
            [
                ("SecureBootChanged", "Secure Boot is now on; before off."),
                ("FirmwareModeChanged", "The machine now boots in mode UEFI; before in BIOS."),
            ],
        ),
    ],
    ids=lambda value: value[0][0] if isinstance(value, list) else "",
)
def test_each_change_is_one_sentence_with_old_and_new(before: Raw, after: Raw, expected: list[tuple[str, str]]) -> None:
    assert found(before, after) == expected
    assert found(after, after) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # Linux names drives in the order in which they answer.
        (
            {"blockDevices": [disk("sda", "A"), disk("sdb", "B")]},
            {"blockDevices": [disk("sda", "B"), disk("sdb", "A")]},
        ),
        (
            {"blockDevices": [disk("vda"), disk("vdb", size=GIB)]},
            {"blockDevices": [disk("vda", size=GIB), disk("vdb")]},
        ),
        # The agent could not read the serial number at one of the boots.
        ({"blockDevices": [disk("sda", "A")]}, {"blockDevices": [disk("sda")]}),
        ({"blockDevices": [disk("sda")]}, {"blockDevices": [disk("sda", "A")]}),
        ({"memory": {"modules": [module("A1")]}}, {"memory": {"modules": [module("A1", "1")]}}),
        ({"product": {}}, {"product": {"serialNumber": "S"}}),
        ({"bios": {"firmwareVersion": "1"}}, {"bios": {}}),
        ({"firmware": {"secureBoot": True}}, {"firmware": {}}),
        # Another kernel reserves another part of the memory.
        ({"memory": {"totalBytes": 64 * GIB}}, {"memory": {"totalBytes": 63 * GIB}}),
        ({"networkInterfaces": adapters(port(switch="s", place="1"))}, {"networkInterfaces": adapters(port())}),
        ({"networkInterfaces": adapters(port())}, {"networkInterfaces": adapters(port(switch="s", place="1"))}),
        ({"networkInterfaces": adapters(port(name="eth0"))}, {"networkInterfaces": adapters(port(name="eno1"))}),
    ],
)
def test_what_one_of_them_lacks_and_other_names_are_no_changes(before: Raw, after: Raw) -> None:
    assert found(before, after) == []


def test_first_inventory_and_that_of_another_kind_of_agent_change_nothing() -> None:
    after = inventory(blockDevices=[disk("sda", "A")])
    assert changes({}, after) == []
    assert changes({**inventory(), "collectionMethod": "tink-agent"}, after) == []
    assert [change.reason for change in changes(inventory(), after)] == ["DiskAdded"]


def test_a_part_that_is_gone_is_a_loss() -> None:
    before, after = inventory(blockDevices=[disk("sda", "A")]), inventory(blockDevices=[disk("sdb", "B")])
    assert [(change.reason, change.is_loss) for change in changes(before, after)] == [
        ("DiskAdded", False),
        ("DiskRemoved", True),
    ]


def test_firmware_of_an_adapter_with_two_ports_is_one_change() -> None:
    def both(version: str) -> Raw:
        return inventory(
            networkInterfaces=[{"ports": [port(), port(MACS[1], "eno2")], "firmwareVersion": version}],
        )

    assert [change.reason for change in changes(both("1"), both("2"))] == ["FirmwareUpdated"]


STORED = inventory(networkInterfaces=adapters(port(switch="s7", place="1"), port(MACS[1], "eno2", "s7", "2")))


def test_lldp_that_comes_30_s_after_the_rest_of_a_boot_makes_no_change() -> None:
    early = keep_neighbours(STORED, inventory(networkInterfaces=adapters(port(), port(MACS[1], "eno2"))))
    assert early == STORED
    late = keep_neighbours(early, STORED)
    assert (changes(STORED, early), changes(early, late)) == ([], [])


def test_moved_cable_is_a_change_when_lldp_comes() -> None:
    early = keep_neighbours(STORED, inventory(networkInterfaces=adapters(port(), port(MACS[1], "eno2"))))
    moved = inventory(networkInterfaces=adapters(port(switch="s8", place="9"), port(MACS[1], "eno2", "s7", "2")))
    assert [change.reason for change in changes(early, keep_neighbours(early, moved))] == ["CablesChanged"]


def test_port_without_a_link_and_port_of_a_silent_switch_lose_their_neighbour() -> None:
    down = inventory(networkInterfaces=adapters(port(linkStatus="LinkDown"), port(MACS[1], "eno2")))
    first, second = (each["ports"][0] for each in keep_neighbours(STORED, down)["networkInterfaces"])
    assert "lldp" not in first
    assert second["lldp"] == {"systemName": "s7", "portID": "2"}
    partly = inventory(networkInterfaces=adapters(port(), port(MACS[1], "eno2", "s7", "2")))
    assert keep_neighbours(STORED, partly) is partly


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["ports", "mac", "lldp", "name", "serialNumber", "sizeBytes", "modules", "slot", "portID"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
parts = st.dictionaries(
    st.sampled_from(["blockDevices", "networkInterfaces", "memory", "firmware", "bios", "product", "collectionMethod"]),
    anything,
)


@settings(max_examples=300, deadline=None)
@given(parts, parts)
def test_malformed_inventories_of_other_writers_raise_nothing(before: Raw, after: Raw) -> None:
    assert all(isinstance(change, InventoryChange) for change in changes(before, keep_neighbours(before, after)))
    assert changes(after, after) == []
