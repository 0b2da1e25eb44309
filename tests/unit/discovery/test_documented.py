"""docs/discovery.md has every column of a list, every reason of a verdict, every key of a rule and every planted error.

`python -m tests.record discovery` writes the table of planted errors.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path

from edge.fleet.discovery import COLUMNS as LISTED
from edge.fleet.discovery import ERRORS
from tests.support.discovery import Site, plant
from tests.unit.discovery.test_verdict import reasons, verdicts
from tink.api.inventory import disk_size
from tink.api.v1alpha2 import Raw
from tink.discovery.admission import read_rule
from tink.discovery.expected import COLUMNS, read_list
from tink.discovery.identity import ports_of
from tink.discovery.model import VerdictReason

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "discovery.md"
TEXT = PAGE.read_text()
WATCH = "tinkedge watch <MAC>"
PRODUCT = "kubectl get hw NAME -o jsonpath='{.status.inventory.inBand.product}'"
RACK = ROOT / "deploy" / "examples" / "discovery" / "rack7.csv"


def section(title: str) -> str:
    """Return the text of a section."""
    found = PAGE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0].strip()
    assert found, title
    return found


def write_section(title: str, text: str) -> None:
    """Replace the text of a section, which must be there."""
    before, heading, rest = PAGE.read_text().partition(f"\n## {title}\n")
    assert heading, title
    PAGE.write_text(f"{before}{heading}\n{text.strip()}\n\n## {rest.partition(chr(10) + '## ')[2]}")


_TO_TYPE = re.compile(r"^ {4,7}((?:tinkedge|kubectl|ssh) .*)$", re.MULTILINE)


def lines_of(title: str) -> list[str]:
    """Return the lines to type in a section: those of its indented blocks."""
    return _TO_TYPE.findall(section(title))


def rows(title: str) -> dict[str, list[str]]:
    """Return the cells of the first table of a section by the code in the first cell, without that cell."""
    lines = re.findall(r"^\| `([^`]+)`(?:, `[^`]+`)* \| (.*) \|$", section(title), re.MULTILINE)
    return {name: [cell.replace("\\|", "|").strip() for cell in re.split(r" \| ", rest)] for name, rest in lines}


def test_columns_of_a_list_are_documented_as_the_code_describes_them() -> None:
    assert {name: cells[0] for name, cells in rows("Lists of expected machines").items()} == dict(COLUMNS)


def test_each_reason_of_a_verdict_has_a_meaning_and_each_false_one_a_remedy() -> None:
    found = rows("Is it the right machine?")
    assert found
    assert set(found) == {reason.value for reason in VerdictReason}
    for name, cells in found.items():
        is_true = name in (VerdictReason.MATCHES, VerdictReason.NO_EXPECTATIONS)
        assert cells[0]
        assert is_true or cells[1], name


def test_rules_of_the_documentation_are_rules() -> None:
    rules = set(re.findall(r"--discover (\S+=\S+)", TEXT))
    assert len(rules) == 2
    for each in rules:
        read_rule(each)
    for key in ("range", "osie", "gateway", "mac", "relay", "only=listed", "lists", "name"):
        assert key in rows("Rules"), key


def test_each_command_of_the_page_is_run() -> None:
    """tests/interop/test_discovery_documented.py types the lines of these sections in order, and the other commands.

    The others are in tests/boot/test_lab.py and tests/interop/test_fleet.py. A further section or command needs a test.
    """
    page = re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)
    headings = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert {each for each in headings if lines_of(each)} == {
        "One machine", "A rack of 40 machines", "Is it the right machine?", "Adoption"
    }  # fmt: skip
    within = set(re.findall(r"`((?:kubectl|tinkedge|make|LAB=)[ \"][^`]+)`", page))
    lab = {text for text in within if "LAB=" in text}
    boots = (ROOT / "tests" / "boot" / "test_lab.py").read_text()
    for text in lab:
        words = text.partition('"')[2].strip('"').split()
        assert f"lab({', '.join(json.dumps(word) for word in words)}, " in boots, text
    assert within - lab - {"tinkedge fleet --unknown --planted N"} == {
        "tinkedge up", "tinkedge watch", WATCH, PRODUCT,
        *(f"tinkedge discover {name}" for name in ("approve", "import", "list")),
    }  # fmt: skip


def test_list_of_the_documentation_names_its_machines() -> None:
    text = TEXT.partition("```csv\n")[2].partition("```")[0].replace("\n   ", "\n").strip()
    machines, problems = read_list(text, "default", "list")
    assert [each.key.name for each in machines] == ["rack7-01", "rack7-02"]
    assert text == "\n".join(RACK.read_text().splitlines()[:3])
    assert all("bmc_secret" in each.text for each in problems)


def test_list_of_the_rack_has_forty_machines_of_different_identifiers() -> None:
    machines, problems = read_list(RACK.read_text(), "default", RACK.name)
    assert len(machines) == 40
    assert all("bmc_secret" in each.text for each in problems)
    for field in ("serials", "macs", "bmc_macs", "links", "address"):
        assert len({getattr(each, field) for each in machines}) == 40, field


# --- planted errors ---------------------------------------------------------------------------------------------------

PLANTED = "Planted errors"
_MACHINES, _EACH = 1000, 5
_PREFACE = f"""\
{_MACHINES:,} machines have introduced themselves, and each has a line on a list. {_EACH} errors of each kind are
planted. An error is found if the verdict on each affected machine has its reason. A verdict is false if a machine has
the reason without the error. `tinkedge fleet --unknown --planted N` ([fleet.md](fleet.md)) plants the same errors in
machines that boot. `python -m tests.record discovery` writes this section.

| error | the list has | the machine reports | reason and sentence | planted | found | false |
|---|---|---|---|---|---|---|
"""


def planted_errors() -> str:
    """Return the section about planted errors, from a run with verdicts of the product."""
    site = Site(_MACHINES)
    planted: dict[str, list[int]] = {error: [] for error in ERRORS}
    wanted: dict[int, VerdictReason] = {}
    for index in range(_EACH * len(ERRORS)):
        error = list(ERRORS)[index % len(ERRORS)]
        planted[error].append(index * (_MACHINES // (_EACH * len(ERRORS))))
        wanted |= plant(site, error, planted[error][-1])
    results = verdicts(site)

    def row(kind: str) -> Iterator[object]:
        error, (number, *_) = ERRORS[kind], planted[kind]
        yield kind
        yield dict(zip(LISTED.split(","), next(csv.reader([site.line(number)])), strict=True)).get(error.column, "")
        yield reported(site.attributes[number], error.column)
        yield f"`{error.reason}`: {dict(results[number].findings)[error.reason]}"
        yield len(planted[kind])
        yield sum(all(error.reason in reasons(results[at + each]) for each in error.affected) for at in planted[kind])
        named = {at for at, result in enumerate(results) if error.reason in reasons(result)}
        yield len(named - {at for at, reason in wanted.items() if reason is error.reason})

    rows = ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row(kind)) + " |" for kind in ERRORS]
    others = {at for at, result in enumerate(results) if not result.is_expected} - wanted.keys()
    count = _MACHINES - len(wanted)
    return "\n".join(
        [_PREFACE + rows[0], *rows[1:], "", f"Of the {count} other machines, {len(others)} have a difference."]
    )


def reported(attributes: Raw, column: str) -> str:
    """Return the fact of a machine that a column of a list is compared with; without a column its clock."""
    port, memory = next(ports_of(attributes)), attributes["memory"]["totalBytes"]
    disks = (f"{disk_size(each['sizeBytes'])} {each['controllerType']}" for each in attributes["blockDevices"])
    found = {
        "links": f"{port['mac']} at {port['lldp']['systemName']}/{port['lldp']['portID']}",
        "disks": ", ".join(disks),
        "memory": f"{memory >> 30} GiB",
        "serial": attributes["product"]["serialNumber"],
        "firmware": attributes["firmware"]["mode"],
        "access_vlan": f"VLAN {port['lldp']['vlanID']}",
        "bmc_mac": attributes["bmc"]["nic"]["ports"][0]["mac"],
        "model": attributes["product"]["model"],
        "": f"a clock that differs by {attributes.get('clockOffsetSeconds')} s",
    }
    return str(found[column])


def test_planted_errors_are_found_as_documented() -> None:
    assert section(PLANTED) == planted_errors()


def record() -> None:
    """Write the section about planted errors."""
    write_section(PLANTED, planted_errors())


# --- attacks ----------------------------------------------------------------------------------------------------------


def test_each_attack_of_the_documentation_has_its_test() -> None:
    named = re.findall(r"\[(\w+)\]\(\.\./(tests/unit/\S+\.py)\)", section("Attacks"))
    assert len(named) >= 10
    for test, file in named:
        assert f"def {test}(" in (ROOT / file).read_text(), test
