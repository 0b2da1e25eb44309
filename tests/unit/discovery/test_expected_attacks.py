"""Lists of expected machines that a spreadsheet has damaged, or that an attacker has made."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.discovery import Site, mac, name
from tests.support.objects import hardware
from tink.api.annotations import EXPECTED_MACHINES_LABEL
from tink.api.rules import KERNEL_PARAM
from tink.api.v1alpha2 import Raw
from tink.discovery.expected import COLUMNS, MAX_LINES, MAX_PROBLEMS, ExpectedMachines, read_list, read_table
from tink.discovery.identity import facts_of
from tink.kubeapi.cel.library.named_formats import FORMATS


def read(text: str) -> tuple[list[str], list[str]]:
    """Return the names of the machines of a list, and its problems."""
    machines, problems = read_list(text, "default", "list")
    return [each.key.name for each in machines], [f"{each.source}: {each.text}" for each in problems]


def config_map(text: str, key: str = "list.csv", **fields: Any) -> Raw:
    metadata = {"name": "rack", "namespace": "default", "labels": {EXPECTED_MACHINES_LABEL: "true"}}
    return {"kind": "ConfigMap", "metadata": metadata, "data": {key: text}, **fields}


def facts(serial: str = "", uuid: str = "", own_mac: str = "52:54:00:aa:00:01") -> Any:
    product = {key: value for key, value in (("serialNumber", serial), ("uuid", uuid)) if value}
    labels = {"labels": {"tinkerbell.org/auto-discovered": "true"}}
    found = hardware("discovery-1", own_mac, metadata=labels)
    return facts_of(found | {"status": {"inventory": {"inBand": {"product": product}}}})


# --- one line harms no other ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", ['"S2', '"S2"x', 'S"2', '"', '"""', 'S2"'])
def test_quote_in_the_wrong_place_harms_its_line_alone(cell: str) -> None:
    names, problems = read(f'name,serial\nm1,S1\nm2,{cell}\nm3,"S3"\nm4,S4\n')
    assert {"m1", "m3", "m4"} <= set(names)
    assert all(each.startswith("list line 3: ") for each in problems)


def test_cell_larger_than_the_csv_module_reads_harms_its_line_alone() -> None:
    names, problems = read(f"name,serial\nm1,S1\nm2,{'S' * 200_000}\nm3,S3\n")
    assert names == ["m1", "m3"]
    assert len(problems) == 1
    assert problems[0].startswith("list line 3: ")


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("memory", "9" * 400 + "Gi"), ("disks", "9" * 400 + "TB"), ("disks", "2x" + "9" * 4000 + "GB SSD"),
        ("memory", "0Gi"), ("disks", "2x0GB"), ("cores", "0"),
    ],
)  # fmt: skip
def test_number_that_no_machine_has_is_a_problem_of_its_line(column: str, cell: str) -> None:
    names, problems = read(f"name,serial,{column}\nm1,S1,{cell}\nm2,S2,\n")
    assert names == ["m2"]
    assert len(problems) == 1
    assert f"list line 2: {column}: " in problems[0]


_NUMBERS = st.integers(0, 10**30).map(str) | st.sampled_from(["1e9", "9" * 500, "0", "1.5", "1,5", "-1", "\u0663"])
_CELLS = st.one_of(
    st.text(max_size=40),
    st.builds("{}{}".format, _NUMBERS, st.sampled_from(["", "GB", "Gi", "TB SSD", "/24", "x480GB"])),
    st.sampled_from(
        ["fe80::1%\x1b[31m", "10.0.0.1/0", "10.0.0.1/0.0.0.255", "a=b", "/x=y", "a..b/c=d", "&&", "@/", "{}"]
    ),
)


@example({"ip": "\x1b[31m"})
@example({"bmc_address": "fe80::1%\x1b[31m"})
@given(st.dictionaries(st.sampled_from(sorted(set(COLUMNS) - {"name", "serial"})), _CELLS, max_size=6))
def test_any_cells_give_a_machine_or_a_problem_in_one_printable_line(cells: dict[str, str]) -> None:
    quoted = ['"' + cell.replace('"', '""').replace("\n", " ").replace("\r", " ") + '"' for cell in cells.values()]
    machines, problems = read_list(
        ",".join(["name,serial", *cells]) + "\n" + ",".join(["m1,S1", *quoted]) + "\nm2,S2\n", "default", "list"
    )
    assert machines[-1].key.name == "m2"
    assert len(machines) == 2 or problems
    for text in [each.text for each in problems] + [
        str(value) for each in machines for value in (each.bmc_address, each.hostname)
    ]:
        assert not [each for each in text if unicodedata.category(each).startswith("C")], text
        assert len(text) < 1000


# --- what a list gives is a valid Hardware ----------------------------------------------------------------------------


@example(["a..b/c=d"])
@given(st.lists(st.text("ab/.=-_A ", min_size=1, max_size=12), max_size=4))
def test_labels_of_a_list_are_labels_for_kubernetes(labels: list[str]) -> None:
    machines, _ = read_list(f'name,serial,labels\nm1,S1,"{" ".join(labels)}"\n', "default", "list")
    for machine in machines:
        for key, value in machine.labels.items():
            assert FORMATS["qualifiedName"].check(key) == []
            assert FORMATS["labelValue"].check(value) == []


@pytest.mark.parametrize("params", ["quiet && reboot", "quiet ; reboot", "quiet || reboot", "quiet #x"])
def test_kernel_parameters_that_end_an_ipxe_command_are_refused_as_in_a_hardware(params: str) -> None:
    names, problems = read(f'name,serial,kernel_params\nm1,S1,"{params}"\nm2,S2,quiet\n')
    assert names == ["m2"]
    assert KERNEL_PARAM.message in problems[0]


def test_serial_number_that_a_spreadsheet_has_rounded_is_refused() -> None:
    names, problems = read("name,serial\nm1,1.23E+12\nm2,7E512\n")
    assert names == ["m2"]
    assert "format the column as text" in problems[0]


def test_invisible_characters_of_a_web_page_are_no_part_of_a_serial_number() -> None:
    machines, _ = read_list("name,serial\nm1,\u200b7XK2M33\u00a0\u200b\n", "default", "list")
    expected = ExpectedMachines()
    expected.apply(config_map("name,serial\nm1,\u200b7XK2M33\u00a0\u200b\n"))
    assert machines[0].serials == ("7XK2M33",)
    assert expected.match(facts("7XK2M33")).machine is not None


# --- secrets ----------------------------------------------------------------------------------------------------------

SECRET = "Xk9-Geheim!"


@pytest.mark.parametrize(
    "title",
    ["BMC Password", "iDRAC PW", "IPMI pass", "root pwd", "Passphrase", "API token", "Login", "BMC Secret Value"],
)
def test_column_of_secrets_is_reported_as_one(title: str) -> None:
    names, problems = read(f"name,serial,{title}\nm1,S1,{SECRET}\n")
    assert names == ["m1"]
    assert "into a Secret" in problems[0]


@pytest.mark.parametrize(
    "text",
    [
        f"name,serial,bmc_secret\nm1,S1,{SECRET}\n",
        f"name,serial,bmc_address\nm1,S1,root:{SECRET}@10.0.0.1\n",
        f"name,serial,bmc_address\nm1,S1,https://root:{SECRET}@bmc1/redfish\n",
        # One cell too few before the password: all later cells are one column to the left.
        f"name,serial,cores,BMC password\nm1,S1,{SECRET}\n",
        f"name,serial,ip,password\nm1,S1,{SECRET},x\n",
    ],
)
def test_password_in_the_wrong_column_is_never_repeated(text: str) -> None:
    machines, problems = read_list(text, "default", "list")
    assert problems
    assert SECRET not in f"{machines} {problems}"


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_header_has_a_largest_number_of_columns() -> None:
    table = read_table("name,serial" + ",gatewax" * 100_000 + "\nm1,S1\n", "list")
    assert len(table.problems) == 1
    assert "256" in table.problems[0].text


def test_problems_of_a_list_in_which_all_lines_are_the_same_are_few() -> None:
    expected = ExpectedMachines()
    expected.apply(config_map("name,serial\n" + "m1,S1\n" * 10_000))
    assert len(expected.problems) <= 2 * MAX_PROBLEMS
    assert "name m1" in expected.problems[0].text


@pytest.mark.parametrize("line", ['"', "x", "m1,NA"], ids=["unreadable", "short", "placeholder"])
def test_lines_that_cannot_be_used_count_against_the_limit_of_lines(line: str) -> None:
    table = read_table("name,serial\n" + f"{line}\n" * (3 * MAX_LINES), "list")
    assert len(table.rows) + len(table.problems) == MAX_LINES + 1
    assert table.problems[-1].text == f"a list has at most {MAX_LINES} machines"


def test_blank_lines_and_comments_do_not_count_against_the_limit_of_lines() -> None:
    names, problems = read("name,serial\n" + "\n \n# comment\n" * MAX_LINES + "m1,S1\n")
    assert (names, problems) == (["m1"], [])


def test_lists_of_one_namespace_do_not_crowd_out_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tink.discovery.expected.MAX_OF_NAMESPACE", 3)
    expected = ExpectedMachines()
    for namespace, rack, count in (("a", "one", 2), ("a", "two", 2), ("b", "one", 2)):
        lines = "".join(f"m-{rack}-{n},{namespace}{rack}{n}\n" for n in range(count))
        config = config_map(f"name,serial\n{lines}")
        config["metadata"] |= {"namespace": namespace, "name": rack}
        expected.apply(config)
    assert [str(each.key) for each in expected] == ["a/m-one-0", "a/m-one-1", "a/m-two-0", "b/m-one-0", "b/m-one-1"]
    assert [(each.source, "at most 3 machines: 1 of this" in each.text) for each in expected.problems] == [
        ("ConfigMap a/two", True)
    ]


@pytest.mark.parametrize("cell", ["disks", "labels", "mac", "links", "kernel_params"])
def test_values_of_a_cell_are_bounded(cell: str) -> None:
    value = {"disks": "1TB|", "labels": "a=b ", "mac": "b02628112233 ", "links": "s/1 ", "kernel_params": "a "}[cell]
    names, problems = read(f"name,serial,{cell}\nm1,S1,{value * (4096 // len(value))}\nm2,S2,\n")
    assert names == ["m2"]
    assert "at most" in problems[0]


# --- matches ----------------------------------------------------------------------------------------------------------


def test_machine_of_a_line_whose_name_another_line_has_is_a_conflict_and_not_unknown() -> None:
    expected = ExpectedMachines()
    expected.apply(config_map("name,serial\nm1,S1\nm1,S2\n"))
    for serial in ("S1", "S2"):
        match = expected.match(facts(serial))
        assert "name m1" in match.conflict, serial


@pytest.mark.parametrize("uuid", ["03000200-0400-0500-0006-000700080009", "00020003-0004-0005-0006-000700080009"])
def test_uuid_that_a_whole_series_of_boards_has_identifies_no_machine(uuid: str) -> None:
    assert facts(uuid=uuid).uuids == frozenset()
    _, problems = read(f"name,uuid\nm1,{uuid}\n")
    assert "is no UUID that identifies a machine" in problems[0]


def test_mac_of_a_port_that_is_also_the_mac_of_a_bmc_is_a_problem_of_both_lines() -> None:
    expected = ExpectedMachines()
    expected.apply(config_map(f"name,mac,bmc_mac\nm1,{mac(1)},\nm2,{mac(2)},{mac(1)}\n"))
    assert [each.source for each in expected.problems] == [f"ConfigMap default/rack, list.csv line {n}" for n in (2, 3)]


def test_machine_whose_ports_are_unknown_does_not_contradict_its_line() -> None:
    """The agent has reported a serial number alone; the MAC address of the discovered Hardware is on no list."""
    expected = ExpectedMachines()
    expected.apply(config_map(f"name,serial,mac\nm1,S1,{mac(1)}\n"))
    assert expected.match(facts("S1")).conflict == ""


def test_list_in_another_encoding_is_reported() -> None:
    """kubectl puts a file that is not UTF-8 into binaryData."""
    expected = ExpectedMachines()
    expected.apply(config_map("name,serial\nm1,S1\n", binaryData={"windows.csv": "bmFtZQ=="}))
    assert len(expected) == 1
    assert "windows.csv" in expected.problems[0].source
    assert "UTF-8" in expected.problems[0].text
    expected.apply(config_map("name,serial\nm1,S1\n"))
    assert expected.problems == ()


def test_problems_are_sorted_by_the_number_of_their_line() -> None:
    expected = ExpectedMachines()
    expected.apply(config_map("name,serial\n" + "".join(f"m{n},NA\n" for n in range(12))))
    assert [each.source.split()[-1] for each in expected.problems] == [str(n) for n in range(2, 14)]


def test_every_machine_of_a_thousand_lines_is_found_by_each_of_its_facts_alone() -> None:
    site, expected = Site(1000), ExpectedMachines()
    expected.apply(site.config_map())
    for number in range(0, 1000, 37):
        for found in (facts(f" sn{number:05} "), facts(own_mac=mac(number)), facts(own_mac=mac(number, 1))):
            machine = expected.match(found).machine
            assert machine is not None
            assert machine.key.name == name(number)


# --- spellings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header", ["MAC 1,MAC 2", "NIC1 MAC,NIC2 MAC", "mac,MAC Address", "mac_1,mac_2", "Eth0 MAC,Eth1 MAC Address"]
)
def test_columns_of_one_meaning_are_read_together(header: str) -> None:
    machines, problems = read_list(f"name,{header}\nm1,{mac(1)},{mac(2)}\nm2,,{mac(3)}\n", "default", "list")
    assert [each.macs for each in machines] == [(mac(1), mac(2)), (mac(3),)], problems


def test_two_columns_of_which_only_one_can_count_are_a_problem() -> None:
    _, problems = read("name,serial,ip,IP Address\nm1,S1,10.0.0.5/24,10.0.0.6/24\n")
    assert problems == ["list header: 'IP Address' is a second column ip: the first one counts"]


def test_machine_is_known_by_the_mac_of_its_link() -> None:
    expected = ExpectedMachines()
    expected.apply(config_map(f"name,links\nm1,{mac(1)}@switch7/Eth1/7\n"))
    assert expected.lists_mac(mac(1), ["default"])
    assert expected.names_only_macs(["default"])
    assert expected.match(facts(own_mac=mac(1))).machine is not None


@pytest.mark.parametrize(
    "text",
    [
        "NA",
        "N/A",
        "n.a.",
        "To be filled by O.E.M.",
        "To Be Filled By O.E.M",
        "TO BE FILLED BY OEM",
        "0",
        "000000000",
        "None",
        "Default string",
        "System Serial Number",
        "0123456789",
        "1234567890",
        "xxxxxxxx",
        "........",
        "Not Specified",
        " - ",
        "Invalid",
        "$(DEFAULT_STRING)",
        "Sys-1234567890",
        "SerialNumber",
        "FFFFFFFF",
        "Unknown",
        "00-00-00",
    ],
)
def test_placeholder_of_firmware_is_no_serial_number(text: str) -> None:
    assert facts(text).serials == frozenset()
    assert read(f'name,serial\nm1,"{text}"\n')[0] == []
