"""Verdicts on generated machines: a machine as ordered matches its line, and each error gives its own reason alone."""

from __future__ import annotations

import copy
import random
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.fleet.discovery import ERRORS
from tests.support.discovery import Site, mac, name, plant
from tink.api.v1alpha2 import Raw
from tink.discovery.expected import ExpectedMachines
from tink.discovery.identity import FactsIndex, facts_of
from tink.discovery.model import MachineVerdict, VerdictReason
from tink.discovery.verdict import fact_labels, verdict
from tink.kubeapi.cel.library.named_formats import FORMATS

GIB = 1 << 30
R = VerdictReason


def judge(objects: list[Raw], *config_maps: Raw) -> list[MachineVerdict]:
    """Return the verdicts on all Hardware of a site with these lists."""
    expected, index = ExpectedMachines(), FactsIndex()
    for each in config_maps:
        expected.apply(each)
    for each in objects:
        index.apply(each)
    found = [verdict(facts, expected.match(facts), index, expected) for facts in map(facts_of, objects)]
    assert None not in found
    return [each for each in found if each is not None]


def reasons(result: MachineVerdict) -> set[VerdictReason]:
    return {reason for reason, _ in result.findings}


def config_map(text: str) -> Raw:
    found = Site(0).config_map()
    return found | {"data": {"list.csv": text}}


def machine(number: int = 0, *, discovered: bool = True, out_of_band: Raw | None = None, **changes: Any) -> Raw:
    """Return the Hardware of a machine whose inventory has these parts in place of the usual ones; None removes one."""
    site = Site(number + 1, discovered=discovered)
    site.attributes[number] = {
        key: value for key, value in (site.attributes[number] | changes).items() if value is not None
    }
    if out_of_band is not None:
        site.out_of_band[number] = out_of_band
    return site.hardware(number)


def only(text: str, **changes: Any) -> set[VerdictReason]:
    """Return the reasons of one machine with a list of one line: `text` follows its name and serial number."""
    header, cells = text.split("\n")
    return reasons(judge([machine(**changes)], config_map(f"name,serial,{header}\nm1,SN00000,{cells}\n"))[0])


# --- no false sentence ------------------------------------------------------------------------------------------------


def shuffled(value: Any, rng: random.Random) -> Any:
    """Return an inventory whose lists and keys have another order."""
    if isinstance(value, list):
        items = [shuffled(each, rng) for each in value]
        return rng.sample(items, len(items))
    if isinstance(value, dict):
        return {key: shuffled(value[key], rng) for key in rng.sample(sorted(value), len(value))}
    return value


DISK = st.tuples(
    st.sampled_from(["SSD", "HDD", "NVMe", ""]), st.sampled_from([240, 480, 500, 960, 1000, 1920, 2000, 3840, 7680])
)


def device(at: int, kind: str, gigabytes: int) -> Raw:
    found = {"name": f"/dev/d{at}", "sizeBytes": gigabytes * 10**9 + 103_981_056, "serialNumber": f"D{at}"}
    if kind:
        found |= {
            "driveType": "HDD" if kind == "HDD" else "SSD",
            "controllerType": "NVMe" if kind == "NVMe" else "SATA",
        }
    return found


@given(
    disks=st.lists(DISK, min_size=1, max_size=8),
    extra=st.lists(DISK, max_size=3),
    rng=st.randoms(use_true_random=False),
)
def test_machine_with_the_disks_of_its_line_matches_in_every_order(
    disks: list[tuple[str, int]], extra: list[tuple[str, int]], rng: random.Random
) -> None:
    """Lines may leave the type out, sort groups in any way, and say SSD of an NVMe drive."""
    written = [
        f"1x{size}GB {rng.choice([kind, '', 'SSD' if kind == 'NVMe' else kind]) if kind else ''}".strip()
        for kind, size in disks
    ]
    devices = [device(at, *each) for at, each in enumerate(disks + extra)]
    text = "|".join(rng.sample(written, len(written)))
    found = machine(blockDevices=rng.sample(devices, len(devices)))
    (result,) = judge([found], config_map(f"name,serial,disks\nm1,SN00000,{text}\n"))
    assert result.is_expected, (text, result)


@given(st.randoms(use_true_random=False), st.booleans())
def test_machines_of_a_site_match_in_every_order_of_lines_objects_and_parts(
    rng: random.Random, discovered: bool
) -> None:
    site = Site(12, discovered=discovered)
    site.attributes = [shuffled(each, rng) for each in site.attributes]
    header, *lines = site.text().splitlines()
    columns = rng.sample(range(len(header.split(","))), len(header.split(",")))
    text = "\n".join(
        ",".join(row.split(",")[column] for column in columns) for row in (header, *rng.sample(lines, len(lines)))
    )
    objects = [site.hardware(number) for number in rng.sample(range(12), 12)]
    for result in judge(objects, config_map(text)):
        assert result.reason is R.MATCHES, result


@given(st.randoms(use_true_random=False))
def test_machine_with_a_part_of_its_inventory_has_no_difference(rng: random.Random) -> None:
    """An agent reports what it can: each missing field is unknown, not wrong."""
    site = Site(3)

    def thinned(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: thinned(each) for key, each in value.items() if rng.random() < 0.6}

    attributes = thinned(site.attributes[1])
    for adapter in attributes.get("networkInterfaces", []):
        adapter["ports"] = [thinned(port) for port in adapter["ports"] if rng.random() < 0.8]
    site.attributes[1] = attributes | {"product": site.attributes[1]["product"]}
    for result in judge([site.hardware(number) for number in range(3)], site.config_map()):
        assert result.is_expected, result


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("discovered", [True, False])
def test_each_error_gives_its_own_reason_and_no_other_kind(error: str, discovered: bool) -> None:
    site = Site(20, discovered=discovered)
    wanted = plant(site, error, 7)
    for number, result in enumerate(judge([site.hardware(each) for each in range(20)], site.config_map())):
        assert reasons(result) == ({wanted[number]} if number in wanted else set()), (number, result)


@given(
    st.lists(st.tuples(st.sampled_from(sorted(ERRORS)), st.integers(0, 9)), max_size=5, unique_by=lambda each: each[1])
)
def test_several_errors_of_a_site_give_their_reasons_and_no_others(planted: list[tuple[str, int]]) -> None:
    site, wanted = Site(100), dict[int, VerdictReason]()
    for error, place in planted:
        wanted |= plant(site, error, place * 10)
    results = judge([site.hardware(number) for number in range(100)], site.config_map())
    assert {at: reasons(each) for at, each in enumerate(results) if each.findings} == {
        at: {r} for at, r in wanted.items()
    }


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.just("\x1b[31m"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
def test_inventory_of_any_shape_gives_a_verdict_in_one_printable_line(data: st.DataObject) -> None:
    """Old objects, and objects that were written by hand, are not what the schema asks for."""
    site = Site(2)

    def spoiled(value: Any) -> Any:
        if data.draw(st.integers(0, 9)) == 0:
            return data.draw(_JSON)
        if isinstance(value, dict):
            return {key: spoiled(each) for key, each in value.items()}
        return [spoiled(each) for each in value] if isinstance(value, list) else value

    found = machine(out_of_band={"product": {"serialNumber": "SN00000"}})
    found["status"] = spoiled(found["status"])
    found["spec"] = spoiled(found["spec"] | {"storageDevices": ["/dev/sda"]})
    facts, expected, index = facts_of(found), ExpectedMachines(), FactsIndex()
    expected.apply(site.config_map())
    index.apply(site.hardware(1))
    index.apply(found)
    result = verdict(facts, expected.match(facts), index, expected)
    assert all(isinstance(each, str) for each in fact_labels(facts).values())
    if result is not None:
        for text in (result.message, *(each for _, each in result.findings)):
            assert not [each for each in text if unicodedata.category(each).startswith("C")], text
            assert len(text) <= 4096


# --- words of vendors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listed", "found", "is_same"),
    [
        ("Supermicro", "Super Micro Computer, Inc.", True),
        ("HPE", "Hewlett Packard Enterprise", True),
        ("HP", "HPE", True),
        ("Hewlett-Packard", "HP", True),
        ("Dell", "Dell Inc.", True),
        ("Dell EMC", "Dell Inc.", True),
        ("LENOVO", "Lenovo", True),
        ("Dell", "HPE", False),
        ("Supermicro", "Dell Inc.", False),
        ("Dell", "Intel", False),
    ],
)
def test_vendor_has_several_spellings(listed: str, found: str, is_same: bool) -> None:
    product = {"serialNumber": "SN00000", "vendor": found}
    assert only(f"vendor\n{listed}", product=product) == (set() if is_same else {R.WRONG_MODEL})


@pytest.mark.parametrize(
    ("listed", "found", "is_same"),
    [
        ("R650", "PowerEdge R650", True),
        ("Dell PowerEdge R650", "PowerEdge R650", True),
        ("R650", "PowerEdge R650xs", False),
        ("PowerEdge R740", "PowerEdge R740xd", False),
        ("DL360Gen10", "ProLiant DL360 Gen10", True),
        ("SYS-1029U-TR4", "SYS-1029U-TR4", True),
        ("sys 1029u", "SYS-1029U-TR4", True),
        ("SR650", "ThinkSystem SR650 V2", True),
        ("DL380 Gen10", "ProLiant DL360 Gen10", False),
    ],
)
def test_model_is_compared_by_words(listed: str, found: str, is_same: bool) -> None:
    product = {"serialNumber": "SN00000", "model": found}
    assert only(f"model\n{listed}", product=product) == (set() if is_same else {R.WRONG_MODEL})


# --- disks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listed", "size", "is_same"),
    [
        ("480GB", 480_103_981_056, True),
        ("480GB", 456_000_000_000, False),
        ("447GiB", 480_103_981_056, True),
        ("20GB", 20 * GIB, True),
        ("1TB", 1 << 40, True),
        ("480GB", 479_559_942_144, True),
        ("480GB", 960_197_124_096, False),
        ("3.84TB", 3_840_755_982_336, True),
        ("1TB", 1_920_383_410_176, False),
    ],
)
def test_size_of_a_disk_is_compared_as_manufacturers_and_hypervisors_count(
    listed: str, size: int, is_same: bool
) -> None:
    found = only(f"disks\n1x{listed}", blockDevices=[{"name": "/dev/sda", "sizeBytes": size}])
    assert found == (set() if is_same else {R.DISK_SIZE})


def test_drives_behind_a_raid_controller_are_not_missing() -> None:
    """The agent sees the volume; the BMC sees the two drives of it."""
    volume = {"name": "/dev/sda", "sizeBytes": 480 * 10**9, "model": "PERC H755 Front", "driveType": "HDD"}
    drives = [{"serialNumber": f"Z{n}", "sizeBytes": 480 * 10**9, "driveType": "SSD"} for n in range(2)]
    text = "disks\n2x480GB SSD"
    assert only(text, blockDevices=[volume]) == set()
    assert only(text, blockDevices=[volume], out_of_band={"blockDevices": drives}) == set()
    assert only(text, blockDevices=[volume], out_of_band={"blockDevices": drives[:1]}) == {R.DISK_MISSING}


def test_disk_that_the_bmc_still_lists_is_missing_if_the_agent_does_not_see_it() -> None:
    drives = [device(at, "SSD", 480) for at in range(2)]
    assert only("disks\n2x480GB SSD", blockDevices=drives[:1], out_of_band={"blockDevices": drives}) == {R.DISK_MISSING}


def test_drive_that_the_agent_and_the_bmc_list_counts_once_beside_a_volume() -> None:
    volume = {"name": "/dev/sda", "sizeBytes": 240 * 10**9, "model": "MR9361-8i"}
    drive = device(1, "SSD", 480)
    found = only("disks\n2x480GB SSD", blockDevices=[volume, drive], out_of_band={"blockDevices": [drive]})
    assert found == {R.DISK_MISSING}


@pytest.mark.parametrize(
    ("listed", "found", "is_same"),
    [
        ("NVMe", {"driveType": "HDD"}, False),
        ("NVMe", {"driveType": "SSD"}, True),
        ("NVMe", {"driveType": "SSD", "controllerType": "SATA"}, False),
        ("HDD", {"controllerType": "NVMe"}, False),
        ("HDD", {}, True),
        ("SSD", {"driveType": "SSD", "controllerType": "NVMe"}, True),
    ],
)
def test_type_of_a_drive_is_compared_if_it_is_known(listed: str, found: Raw, is_same: bool) -> None:
    drive = {"name": "/dev/x", "sizeBytes": 480 * 10**9} | found
    assert only(f"disks\n1x480GB {listed}", blockDevices=[drive]) == (set() if is_same else {R.DISK_MISSING})


def test_drive_of_unknown_size_may_be_the_expected_one() -> None:
    drives = [device(0, "SSD", 480), {"name": "/dev/sdb"}]
    assert only("disks\n2x480GB SSD", blockDevices=drives) == set()


# --- cables -----------------------------------------------------------------------------------------------------------


def cabled(*ports: tuple[str, str], **fields: Any) -> list[Raw]:
    """Return the network adapters of a machine whose ports are at these ports of switches."""
    return [
        {"ports": [
            {"mac": mac(0, at), "linkStatus": "LinkUp", "lldp": {"systemName": switch, "portID": port}} | fields
            for at, (switch, port) in enumerate(ports)
        ]}
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("link", "switch", "port"),
    [
        ("switch7/Eth1/7", "switch7", "Ethernet1/7"),
        ("switch7/Ethernet1/7", "switch7", "Eth1/7"),
        ("switch7/Gi1/0/7", "SWITCH7", "GigabitEthernet1/0/7"),
        ("switch7/1/7", "switch7", "Ethernet1/7"),
        ("switch7.example.org/Eth1/7", "switch7", "Eth1/7"),
        ("switch7/Eth1/7", "switch7.example.org", "Eth1/7"),
        ("switch7/xe-0/0/7", "switch7", "xe-0/0/7"),
        ("switch7/swp7", "switch7", "swp7"),
    ],
)
def test_switch_port_has_several_spellings(link: str, switch: str, port: str) -> None:
    assert only(f"links\n{mac(0)}@{link}", networkInterfaces=cabled((switch, port))) == set()
    assert only(f"links\n{link}", networkInterfaces=cabled((switch, port))) == set()


@pytest.mark.parametrize(
    ("switch", "port"), [("switch7", "Ethernet1/17"), ("switch8", "Ethernet1/7"), ("switch7", "xe-1/7")]
)
def test_other_port_and_other_switch_are_wrong(switch: str, port: str) -> None:
    assert only("links\nswitch7/Eth1/7", networkInterfaces=cabled((switch, port))) == {R.WRONG_PORT}


def test_switches_of_one_name_in_two_domains_are_two() -> None:
    adapters = cabled(("sw1.b.example", "Eth1/7"))
    assert only("links\nsw1.a.example/Eth1/7", networkInterfaces=adapters) == {R.WRONG_PORT}


@pytest.mark.parametrize(
    "lldp",
    [
        {"systemName": "switch7", "portID": "507"},
        {"systemName": "switch7", "portID": "507", "portDescription": "to rack 7, slot 1"},
        {"systemName": "switch7", "portID": "00:1c:73:00:00:07"},
        {"chassisID": "00:1c:73:00:00:01", "portID": "xe-0/0/7"},
    ],
)
def test_name_that_the_switch_does_not_send_is_unknown(lldp: Raw) -> None:
    adapters = [{"ports": [{"mac": mac(0), "linkStatus": "LinkUp", "lldp": lldp}]}]
    assert only("links\nswitch7/xe-0/0/7", networkInterfaces=adapters) == set()


def test_machine_at_the_port_of_another_line_has_swapped_cables_alone() -> None:
    lines = config_map("name,serial,links\nm1,SN00000,sw/1\nm2,SN00001,sw/2\n")
    (result,) = judge([machine(networkInterfaces=cabled(("sw", "2")))], lines)
    assert reasons(result) == {R.SWAPPED_CABLES}
    assert "m2" in result.message


def test_port_whose_link_is_unknown_may_be_the_expected_one() -> None:
    adapters = cabled(("storage-1", "Eth1/1"))
    adapters[0]["ports"].append({"mac": mac(0, 1)})
    assert only("links\nswitch7/Eth1/7", networkInterfaces=adapters) == set()


def test_cables_of_one_machine_that_are_swapped_are_so_called() -> None:
    links = f"{mac(0)}@sw/1 {mac(0, 1)}@sw/2"
    assert only(f"links\n{links}", networkInterfaces=cabled(("sw", "2"), ("sw", "1"))) == {R.SWAPPED_CABLES}


def test_second_interface_of_a_hardware_may_be_in_another_vlan() -> None:
    adapters = cabled(("sw", "1"), ("sw", "2"))
    for port, vlan in zip(adapters[0]["ports"], (7, 300), strict=True):
        port["lldp"]["vlanID"] = vlan
    found = machine(discovered=False, networkInterfaces=adapters)
    found["spec"]["networkInterfaces"] = {mac(0): {}, mac(0, 1): {}}
    lines = config_map(f"name,serial,access_vlan\n{name(0)},SN00000,7\n")
    assert judge([found], lines)[0].is_expected
    adapters[0]["ports"][0]["lldp"]["vlanID"] = 1
    wrong = copy.deepcopy(found)
    wrong["status"]["inventory"]["inBand"]["networkInterfaces"] = adapters
    assert reasons(judge([wrong], lines)[0]) == {R.WRONG_VLAN}


def test_vlan_is_that_of_the_interface_which_the_machine_booted_from() -> None:
    adapters = cabled(("sw", "1"), ("sw", "2"))
    for port, vlan in zip(adapters[0]["ports"], (7, 300), strict=True):
        port["lldp"]["vlanID"] = vlan
    found = machine(discovered=False, networkInterfaces=adapters)
    found["spec"]["networkInterfaces"] = {mac(0): {}, mac(0, 1): {}}
    found["status"]["lastBoot"] = {"mac": mac(0, 1)}
    assert reasons(judge([found], config_map(f"name,serial,access_vlan\n{name(0)},SN00000,7\n"))[0]) == {R.WRONG_VLAN}


@pytest.mark.parametrize(("offset", "is_wrong"), [(300, False), (-300, False), (301, True), (-301, True)])
def test_clock_may_differ_by_five_minutes(offset: int, is_wrong: bool) -> None:
    assert only("vendor\nDell", clockOffsetSeconds=offset) == ({R.CLOCK_WRONG} if is_wrong else set())


# --- BMCs -------------------------------------------------------------------------------------------------------------


def test_bmc_that_reports_another_serial_number_and_the_same_uuid_is_the_own_one() -> None:
    """Supermicro's Redfish has the serial number of the chassis where SMBIOS has that of the system."""
    outside = {"product": {"serialNumber": "C8150LI", "uuid": "4c4c4544-0000-1000-8000-000000000000"}}
    assert only("vendor\nDell", out_of_band=outside) == set()


def test_bmc_that_reports_the_serial_number_of_the_board_is_the_own_one() -> None:
    outside = {"product": {"serialNumber": "CN7016377"}}
    assert only("vendor\nDell", out_of_band=outside, baseboard={"serialNumber": "CN7016377"}) == set()


def test_bmc_of_another_node_in_the_same_chassis_is_another_ones() -> None:
    outside = {"product": {"serialNumber": "SN00001"}, "chassis": {"serialNumber": "C1"}}
    assert only("vendor\nDell", out_of_band=outside, chassis={"serialNumber": "C1"}) == {R.OTHER_BMC}


def test_bmc_whose_system_has_the_serial_number_of_the_chassis_is_the_own_one() -> None:
    outside = {"product": {"serialNumber": "C1"}}
    assert only("vendor\nDell", out_of_band=outside, chassis={"serialNumber": "C1"}) == set()


def test_nodes_of_one_chassis_share_its_manager() -> None:
    """`systemName` of a Machine: several Systems behind one BMC. The agents have not reported yet."""
    nodes = []
    for number in (0, 1):
        found = machine(number)
        manager = {"nic": {"ports": [{"mac": "b0:26:28:ff:00:01"}]}}
        found["status"]["inventory"] = {"outOfBand": {"product": {"serialNumber": f"SN{number:05}"}, "bmc": manager}}
        nodes.append(found)
    assert all(each.is_expected for each in judge(nodes))


# --- which machine it is ----------------------------------------------------------------------------------------------


def test_machine_with_the_serial_number_of_another_one_is_not_compared_with_its_line() -> None:
    """The list names serial numbers alone, so that nothing tells which of the two machines the line describes."""
    lines = config_map("name,serial,cores,model\nm1,SN00000,128,PowerEdge R940\n")
    one, other = machine(0), machine(1, product={"serialNumber": "SN00000", "model": "PowerEdge R650"})
    for result in judge([one, other], lines):
        assert reasons(result) == {R.DUPLICATE_SERIAL}


def test_hardware_with_the_name_of_another_machine_is_a_conflict_alone() -> None:
    """Parts are not compared with a line that does not describe this machine."""
    lines = config_map("name,serial,cores,memory,model\nrack-0000,SN77777,128,1024Gi,PowerEdge R940\n")
    (result,) = judge([machine(discovered=False)], lines)
    assert reasons(result) == {R.CONFLICT}
    assert "SN77777" in result.message
    assert "SN00000" in result.message


def test_unlisted_machine_reads_that_a_list_has_lines_that_are_not_read() -> None:
    lines = config_map("name,serial\nm1,SN00000 or so,x\nm2,S2\n")
    (result,) = judge([machine()], lines)
    assert result.reason is R.NOT_EXPECTED
    assert "1 problem" in result.message


def test_disk_that_the_spec_names_and_the_machine_lacks_is_missing() -> None:
    found = machine(discovered=False)
    found["spec"]["storageDevices"] = ["/dev/sda", "/dev/sdz", "/dev/disk/by-id/x"]
    (result,) = judge([found], Site(1).config_map())
    assert reasons(result) == {R.DISK_MISSING}
    assert "/dev/sdz" in result.message
    assert "by-id" not in result.message


def test_interface_that_the_spec_names_and_the_machine_lacks_is_missing() -> None:
    found = machine(discovered=False)
    found["spec"]["networkInterfaces"]["b0:26:28:77:00:01"] = {}
    (result,) = judge([found], Site(1).config_map())
    assert reasons(result) == {R.INTERFACE_MISSING}
    assert "b0:26:28:77:00:01" in result.message


def test_interface_that_has_sent_packets_is_not_missing() -> None:
    found = machine(discovered=False)
    found["spec"]["networkInterfaces"]["b0:26:28:77:00:01"] = {}
    found["status"]["lastBoot"] = {"mac": "b0:26:28:77:00:01"}
    assert judge([found], Site(1).config_map())[0].is_expected


def test_interface_may_be_an_infiniband_port() -> None:
    """Hardware has a MAC address that is derived from the GUID; the inventory has Ethernet ports."""
    found = machine(discovered=False, pciDevices=[{"classCode": "0x020700"}])
    found["spec"]["networkInterfaces"]["b0:26:28:77:00:01"] = {}
    assert judge([found], Site(1).config_map())[0].is_expected


@given(st.text(max_size=100))
def test_labels_of_any_texts_are_valid(text: str) -> None:
    product = {"vendor": text, "model": text[::-1], "serialNumber": text * 3}
    found = machine(product=product, networkInterfaces=cabled((text, text + "x")))
    for key, value in fact_labels(facts_of(found)).items():
        assert value
        assert FORMATS["labelValue"].check(value) == [], (key, value)


# --- the index of all machines ----------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.booleans(), st.booleans()), max_size=20))
def test_index_after_any_changes_is_that_of_the_hardware_that_are_left(
    steps: list[tuple[int, int, bool, bool]],
) -> None:
    """Sharing is mutual, and `apply` and `remove` name everything whose verdict changes."""
    index, objects = FactsIndex(), dict[str, Raw]()
    for number, serial, is_removed, is_going in steps:
        found = machine(number, product={"serialNumber": f"S{serial}"})
        if is_going:
            found["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
        before = {key: index.sharing(facts_of(each)) for key, each in objects.items()}
        if is_removed:
            objects.pop(found["metadata"]["name"], None)
            affected = index.remove(found)
        else:
            objects[found["metadata"]["name"]] = found
            affected = index.apply(found)
        fresh = FactsIndex()
        for each in objects.values():
            fresh.apply(each)
        for key, each in objects.items():
            facts = facts_of(each)
            assert index.sharing(facts) == fresh.sharing(facts)
            if key in before and before[key] != index.sharing(facts) and key != found["metadata"]["name"]:
                assert facts.key in affected
