"""Lists of expected machines, as suppliers and spreadsheets write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.discovery import Site
from tink.api.v1alpha2 import FirmwareMode
from tink.discovery.expected import COLUMNS, MAX_CELL_CHARACTERS, MAX_LINES, ExpectedMachines, read_list
from tink.discovery.identity import facts_of
from tink.discovery.model import ExpectedDisk, ExpectedLink, ExpectedMachine


def one(text: str) -> ExpectedMachine:
    machines, problems = read_list(text, "default", "list")
    assert problems == []
    (machine,) = machines
    return machine


def problem(text: str) -> str:
    machines, problems = read_list(text, "default", "list")
    assert machines == []
    (found,) = problems
    return f"{found.source}: {found.text}"


def test_every_column_is_read() -> None:
    header = ",".join(COLUMNS)
    line = (
        "rack7-01,5CG1|5CG2,4c4c4544-0044-4a10-8058-b1c04f4e3333,B0-26-28-11-22-33 b026.2811.2234,b0:26:28:11:22:99,"
        "b0:26:28:11:22:33,10.7.0.11,255.255.255.0,10.7.0.1,10.7.0.1 10.7.0.2,web1.example.org,100,hook,"
        "console=ttyS0 quiet,rack=7 example.org/role=web,10.9.0.11,bmc-rack7,Dell,PowerEdge R650,32,256GB,"
        "2x480GB SSD|3.84TB NVMe,uefi,b0:26:28:11:22:33@switch7/Ethernet1/7 switch8/Gi1/0/3,7"
    )
    machine = one(f"{header}\n{line}\n")
    assert machine.source == "list line 2"
    assert str(machine.key) == "default/rack7-01"
    assert machine.serials == ("5CG1", "5CG2")
    assert machine.macs == ("b0:26:28:11:22:33", "b0:26:28:11:22:34")
    assert str(machine.address) == "10.7.0.11/24"
    assert machine.vlan == "100"
    assert machine.labels == {"rack": "7", "example.org/role": "web"}
    assert machine.memory_bytes == 256 << 30
    assert machine.disks == (ExpectedDisk(2, 480_000_000_000, "SSD"), ExpectedDisk(1, 3_840_000_000_000, "NVMe"))
    assert machine.firmware is FirmwareMode.UEFI
    assert machine.links == (
        ExpectedLink("switch7", "Ethernet1/7", "b0:26:28:11:22:33"),
        ExpectedLink("switch8", "Gi1/0/3"),
    )


@pytest.mark.parametrize(
    "text",
    [
        "name,serial\nm1,5CG1\n",
        "\ufeffName;Serial Number\r\nm1;5CG1\r\n",
        "Server\tService Tag\nm1\t5CG1\n",
        '# from the "supplier\n\nName , S/N \n\n"m1","5CG1"\n# end\n',
    ],
)
def test_spellings_of_suppliers_and_spreadsheets_are_known(text: str) -> None:
    machine = one(text)
    assert (machine.key.name, machine.serials) == ("m1", ("5CG1",))


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ("serial\nm1,To be filled by O.E.M.", "serial: 'To be filled by O.E.M.' is a placeholder"),
        ("serial\nm1,NA", "serial: 'NA' is a placeholder"),
        ("serial\nm1,0000000", "serial: '0000000' is a placeholder"),
        ("mac\nm1,b0:26:28:11:22", "mac: 'b0:26:28:11:22' is no MAC address"),
        ("mac\nm1,01:00:5e:00:00:01", "is no MAC address of a port"),
        ("uuid\nm1,00000000-0000-0000-0000-000000000000", "is no UUID that identifies a machine"),
        ("serial,ip\nm1,S1,10.0.0.5", "ip: '10.0.0.5' has no length: write it as 10.0.0.5/24"),
        ("serial,ip\nm1,S1,10.0.0.255/24", "ip: 10.0.0.255/24 is no address of a host"),
        ("serial,ip,gateway\nm1,S1,10.0.0.5/24,10.1.0.1", "gateway: 10.1.0.1 is not in 10.0.0.0/24"),
        ("serial\nM1,S1", "name: 'M1' is no name of an object"),
        ("serial\ndiscovery-1,S1", "names with discovery- are those of machines that are not approved"),
        ("serial\n,S1", "name is empty"),
        ("vendor\nm1,Dell", "the line identifies no machine: give serial, uuid, mac or bmc_mac"),
        ("serial,disks\nm1,S1,two disks", "write them as 2x480GB SSD"),
        ("serial,labels\nm1,S1,tinkerbell.org/auto-discovered=true", "are set by discovery itself"),
        ("serial\nm1,S1,S2", "the line has 3 cells and the header 2: put quotes around commas"),
        ('serial\nm1,"S1', 'a quote (") is open or in the wrong place'),
        (f"serial\nm1,{'S' * (MAX_CELL_CHARACTERS + 1)}", "longer than 4096 characters"),
    ],
)
def test_line_that_cannot_be_used_is_reported_with_its_number(cells: str, expected: str) -> None:
    found = problem(f"name,{cells}\n")
    assert found.startswith("list line 2: ")
    assert expected in found


def test_bad_line_leaves_the_others_alone() -> None:
    machines, problems = read_list("name,serial\nm1,S1\nm2,NA\nm3,S3\n", "default", "list")
    assert [each.key.name for each in machines] == ["m1", "m3"]
    assert [each.source for each in problems] == ["list line 3"]


def test_unknown_column_names_the_nearest_known_one() -> None:
    _, problems = read_list("name,serial,gatway\nm1,S1,x\n", "default", "list")
    assert [each.text for each in problems] == ["column 'gatway' is not known and not read; did you mean gateway?"]


def test_password_column_is_not_read() -> None:
    machines, problems = read_list("name,serial,BMC Password\nm1,S1,geheim\n", "default", "list")
    assert len(machines) == 1
    assert "geheim" not in str(problems) + str(machines)
    assert "put user and password into a Secret" in problems[0].text


def test_list_without_names_is_refused() -> None:
    machines, problems = read_list("serial\nS1\n", "default", "list")
    assert machines == []
    assert "there is no column name" in problems[0].text


def test_number_of_lines_is_limited() -> None:
    text = "name,serial\n" + "".join(f"m{n},S{n}\n" for n in range(MAX_LINES + 5))
    machines, problems = read_list(text, "default", "list")
    assert len(machines) == MAX_LINES
    assert len(problems) == 1


@given(st.text(max_size=300))
def test_any_text_is_read_without_an_error(text: str) -> None:
    read_list(text, "default", "list")
    read_list("name,serial,mac,ip,disks,links,labels\n" + text, "default", "list")


@pytest.mark.parametrize(
    ("second", "what"),
    [("m1,S2,10.0.0.6/24", "name m1"), ("m2,s1,10.0.0.6/24", "serial number s1"), ("m2,S2,10.0.0.5/24", "ip 10.0.0.5")],
)
def test_two_lines_of_one_machine_are_reported_at_both(second: str, what: str) -> None:
    site, expected = Site(1), ExpectedMachines()
    config_map = site.config_map() | {"data": {"a": f"name,serial,ip\nm1,S1,10.0.0.5/24\n{second}\n"}}
    expected.apply(config_map)
    assert [each.source[-6:] for each in expected.problems] == ["line 2", "line 3"]
    assert all(what.casefold() in each.text.casefold() for each in expected.problems)
    site.attributes[0] = {"product": {"serialNumber": "S1"}}
    assert expected.match(facts_of(site.hardware(0))).conflict


def test_placeholders_of_firmware_match_no_line() -> None:
    site, expected = Site(2), ExpectedMachines()
    expected.apply(site.config_map())
    site.attributes[0] = {"product": {"serialNumber": "To Be Filled By O.E.M."}}
    hardware = site.hardware(0)
    hardware["spec"]["networkInterfaces"] = {"b0:26:28:77:77:77": {}}
    assert expected.match(facts_of(hardware)).machine is None


def test_corrected_line_counts_at_once_and_a_removed_list_no_more() -> None:
    site, expected, changes = Site(1), ExpectedMachines(), list[int]()
    expected.on_change(lambda: changes.append(len(expected)))
    facts = facts_of(site.hardware(0))
    expected.apply(site.config_map({0: "rack-0000,WRONG" + 12 * ","}))
    assert expected.match(facts).machine is None
    expected.apply(site.config_map())
    assert expected.match(facts).by == "serial number SN00000"
    expected.apply(site.config_map())
    expected.remove(site.config_map())
    assert expected.match(facts).machine is None
    assert changes == [1, 1, 0]


def test_list_of_macs_alone_decides_at_the_first_packet() -> None:
    expected = ExpectedMachines()
    expected.apply(Site(1).config_map() | {"data": {"a": "name,mac\nm1,b0:26:28:00:00:01\n"}})
    assert expected.names_only_macs(["default"])
    assert expected.lists_mac("b0:26:28:00:00:01", ["default"])
    assert not expected.lists_mac("b0:26:28:00:00:02", ["default"])
    expected.apply(Site(1).config_map() | {"data": {"a": "name,mac,serial\nm1,b0:26:28:00:00:01,\nm2,,S2\n"}})
    assert not expected.names_only_macs(["default"])
