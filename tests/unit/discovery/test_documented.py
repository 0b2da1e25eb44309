"""docs/discovery.md has every column of a list, every reason of a verdict and every key of a rule, as the code has."""

from __future__ import annotations

import re
from pathlib import Path

from tink.discovery.admission import read_rule
from tink.discovery.expected import COLUMNS, read_list
from tink.discovery.model import VerdictReason

TEXT = (Path(__file__).parents[3] / "docs" / "discovery.md").read_text()


def section(title: str) -> str:
    """Return the text of a section."""
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


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
    rules = re.findall(r"--discover (\S+=\S+)", TEXT)
    assert len(rules) == 2
    for each in rules:
        read_rule(each)
    for key in ("range", "osie", "gateway", "mac", "relay", "only=listed", "lists", "name"):
        assert key in rows("Rules"), key


def test_list_of_the_documentation_names_its_machines() -> None:
    text = TEXT.partition("```csv\n")[2].partition("```")[0].replace("\n   ", "\n").strip()
    machines, problems = read_list(text, "default", "list")
    assert [each.key.name for each in machines] == ["rack7-01", "rack7-02"]
    assert all("bmc_secret" in each.text for each in problems)
