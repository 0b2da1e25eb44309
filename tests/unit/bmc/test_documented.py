"""docs/bmc.md: its manifests are accepted, and it has every way, every reason and every known fault."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
import yaml

from tink.api.crds import generate, generate_bmc
from tink.api.v1alpha2 import BootMode, BootWay
from tink.bmc.boot import BootReason
from tink.bmc.model import Cause
from tink.bmc.quirks import QUIRKS, Quirk
from tink.kubeapi.schema.checker import compile_definition

PAGE = (Path(__file__).parents[3] / "docs" / "bmc.md").read_text()
BLOCKS = [textwrap.dedent(block) for block in re.findall(r"^ *```yaml\n(.*?)^ *```$", PAGE, re.DOTALL | re.MULTILINE)]
CHECKERS = {
    definition["spec"]["names"]["kind"]: checker
    for definition in [*generate_bmc(), *generate()]
    for checker in compile_definition(definition).values()
}


@pytest.mark.parametrize("block", BLOCKS)
def test_manifests_are_accepted_without_unknown_fields(block: str) -> None:
    documents = list(yaml.safe_load_all(block))
    kinds = [document["kind"] for document in documents]
    assert set(kinds) <= {"Secret", *CHECKERS}
    for document in documents:
        document["metadata"]["namespace"] = "default"
        if document["kind"] in CHECKERS:
            assert CHECKERS[document["kind"]].check(document).problems == []
        else:
            assert set(document["stringData"]) == {"username", "password"}


def test_there_are_manifests_of_a_machine_by_each_protocol_of_jobs_and_of_a_workflow() -> None:
    kinds = [document["kind"] for block in BLOCKS for document in yaml.safe_load_all(block)]
    assert kinds == ["Secret", "Machine", "Machine", "Job", "Job", "Workflow"]


@pytest.mark.parametrize("cause", Cause)
def test_each_reason_has_its_meaning_and_remedy(cause: Cause) -> None:
    (row,) = re.findall(rf"^\| `{cause.value}` \| (.+) \| (.+) \|$", PAGE, re.MULTILINE)
    assert all(row)


def section(heading: str) -> str:
    """Return the text below a heading."""
    text = re.split(r"^#+ ", PAGE.partition(f" {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    assert text, heading
    return text


def test_each_reason_of_a_boot_has_its_meaning_and_what_to_do() -> None:
    rows = re.findall(r"^\| (`.+`) \| (.+) \| (.+) \|$", section("Reasons of BootPrepared"), re.MULTILINE)
    assert sorted(name for names, *_ in rows for name in re.findall(r"`(\w+)`", names)) == sorted(BootReason)


def test_each_way_and_mode_of_a_boot_is_described() -> None:
    ways = re.findall(r"^\| `(\w+)`", section("The ways of a netboot"), re.MULTILINE)
    assert list(dict.fromkeys(ways)) == [each for each in BootWay if each not in (BootWay.ISO, BootWay.CUSTOM)]
    modes = re.findall(r"^\| `bootMode: (\w+)`", section("Boot before a Workflow"), re.MULTILINE)
    assert modes == list(BootMode)


VENDORS = {
    "Dell": "dell",
    "HPE": "hpe",
    "AMI": "ami",
    "Cisco": "cisco",
    "Huawei": "huawei",
    **{name: name.lower() for name in ("Supermicro", "Lenovo", "Gigabyte", "OpenBMC", "IBM", "NVIDIA", "Nokia")},
}
"""Beginning of a row in the table of vendors, and the word of the vendor's name in the table of known faults."""


def test_each_vendor_has_the_numbers_of_its_known_faults() -> None:
    rows = re.findall(r"^\| (\w+)[^|]* \| ([\d, ]+) \|", section("What is known of each vendor"), re.MULTILINE)
    assert {name for name, _ in rows} == VENDORS.keys()
    for name, numbers in rows:
        of_vendor = [each.number for each in QUIRKS if VENDORS[name] in each.vendors]
        assert [int(number) for number in numbers.split(", ")] == of_vendor, name
    named = {VENDORS[name] for name, _ in rows}
    assert all(named & set(each.vendors) for each in QUIRKS if each.vendors), "each vendor has a row"


@pytest.mark.parametrize("quirk", QUIRKS, ids=lambda quirk: f"row-{quirk.number}")
def test_each_known_fault_is_listed_with_symptom_remedy_and_source(quirk: Quirk) -> None:
    (row,) = re.findall(rf"^\| {quirk.number} \| (.+) \|$", PAGE, re.MULTILINE)
    vendor, *rest = row.split(" | ")
    assert rest == [quirk.symptom, quirk.remedy, quirk.source]
    assert (vendor == "all") == (not quirk.vendors)
    assert vendor == "all" or vendor.lower().split(",")[0] in quirk.vendors
