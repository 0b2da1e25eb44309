"""The report: each loss with its place; for people once, for programs all; and the cursor that notices them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tink.convert.documents import Converted
from tink.convert.fields import Fields, join
from tink.convert.findings import Findings, Kind, Source
from tink.convert.report import as_json, as_table, summary
from tink.convert.run import Result

SOURCE = Source("rack.yaml", 2, "Hardware", "lab", "node-1")


def fields(value: Any) -> tuple[Fields, Findings]:
    findings = Findings(SOURCE)
    return Fields(value, findings, "spec"), findings


def said(findings: Findings) -> list[tuple[str, str]]:
    return [(each.path, each.reason) for each in findings]


# --- the cursor


def test_what_nobody_looked_at_is_named_and_what_says_nothing_is_not() -> None:
    cursor, findings = fields({"a": 1, "b": {"c": 2}, "d": None, "e": {"f": [{}, ""]}, "g": False, "h/i": 0})
    cursor.take("a")
    cursor.rest("why")
    assert said(findings) == [("spec.b", "why"), ("spec.g", "why"), ('spec["h/i"]', "why")]
    cursor.rest("why")
    assert len(findings) == 3, "once"


@pytest.mark.parametrize(
    ("read", "value", "good"),
    [
        (Fields.text, "x", True),
        (Fields.text, 1, False),
        (Fields.flag, True, True),
        (Fields.flag, "true", False),
        (Fields.integer, 5, True),
        (Fields.integer, True, False),
        (Fields.integer, 1.0, False),
        (Fields.array, [1], True),
        (Fields.array, {}, False),
        (Fields.mapping, {"a": 1}, True),
        (Fields.mapping, [], False),
        (Fields.fields, {"a": 1}, True),
        (Fields.fields, "x", False),
    ],
)
def test_field_of_the_wrong_type_is_named_and_counts_as_absent(read: Any, value: Any, good: bool) -> None:
    cursor, findings = fields({"f": value})
    assert bool(read(cursor, "f")) is good
    assert [path for path, _ in said(findings)] == ([] if good else ["spec.f"])
    cursor.rest()
    assert len(findings) == (0 if good else 1), "said once"
    empty, findings = fields({"f": None})
    assert not read(empty, "f")
    assert not read(empty, "absent")
    assert said(findings) == []


def test_items_of_the_wrong_type_are_named_with_their_index() -> None:
    cursor, findings = fields({"l": [{}, 1, None, "x"]})
    assert [each.path for each in cursor.each("l")] == ["spec.l[0]"]
    assert said(findings) == [
        ("spec.l[1]", "must be an object, is a number"),
        ("spec.l[3]", "must be an object, is a string"),
    ]
    assert cursor.texts("l") == [("spec.l[3]", "x")]


@pytest.mark.parametrize(("value", "named"), [(0, 0), (False, 0), ("", 0), ({}, 0), (1, 1), (True, 1), ([0], 1)])
def test_zero_values_are_as_good_as_absent_where_go_left_them_out(value: Any, named: int) -> None:
    cursor, findings = fields({"f": value})
    cursor.drop("f", "why")
    cursor.rest()
    assert len(findings) == named


@given(st.text(max_size=200))
def test_path_of_any_key_is_one_short_line(key: str) -> None:
    path = join("a", key)
    assert path.isprintable()
    assert len(path) < 1000


def test_item_of_a_list_is_named_by_its_place_in_the_list() -> None:
    findings = Findings(SOURCE, "items[3]")
    findings.error("spec.x", "why")
    findings.dropped("", "why")
    assert [path for path, _ in said(findings)] == ["items[3].spec.x", "items[3]"]
    assert findings.failed


# --- the table


def result(*findings: Findings) -> Result:
    return Result([Converted({"kind": "x"})] * 3, [each for some in findings for each in some])


def some(index: int) -> Findings:
    findings = Findings(Source("rack.yaml", index + 1, "Hardware", "lab", f"node-{index}"))
    findings.changed("spec.c", "another form")
    findings.dropped(f"spec.interfaces[{index}].dhcp.arch", "no place")
    findings.dropped(f"spec.interfaces[{index + 1}].dhcp.arch", "no place")
    return findings


def test_same_loss_of_a_thousand_machines_is_one_row() -> None:
    lines = list(as_table(result(*(some(index) for index in range(1000))).findings, 100))
    text = "\n".join(lines)
    assert text.count("dhcp.arch") == 1
    assert "1000 objects, the first Hardware lab/node-0" in text
    assert text.index("dropped") < text.index("changed")
    assert all(len(line) <= 100 for line in lines)


def test_error_comes_first_and_says_where() -> None:
    findings = some(0)
    findings.error("spec.y", "broken " * 30 + "\x1b[31m")
    lines = list(as_table(result(findings).findings, 60))
    assert lines[1].startswith("error   spec.y")
    assert "(rack.yaml, document 1: Hardware lab/node-0)" in " ".join(" ".join(lines).split())
    assert all(line.isprintable() for line in lines), "an outsider's text moves no cursor"


def test_lone_finding_has_its_whole_path() -> None:
    findings = Findings(SOURCE, "items[3]")
    findings.dropped("spec.disks[2].device", "no place")
    (_, row, *_) = as_table(findings, 100)
    assert "items[3].spec.disks[2].device" in row


def test_lines_of_an_api_servers_message_stay_words() -> None:
    findings = Findings(SOURCE)
    findings.error("", "conflicts:\n- .spec.a\n- .spec.b")
    assert "conflicts: - .spec.a - .spec.b" in "".join(as_table(findings, 100))


def test_table_of_many_different_losses_ends() -> None:
    findings = Findings(SOURCE)
    for index in range(1000):
        findings.dropped(f"spec.f{index}" * 10, "no place")
    lines = list(as_table(findings, 80))
    assert lines[-1] == "... and 800 rows more: --report json has all of them"
    assert list(as_table([], 80)) == []


def test_json_has_every_finding_with_all_that_a_program_needs() -> None:
    found = json.loads(as_json(result(some(0), some(1))))
    assert found["objects"] == 3
    assert len(found["findings"]) == 6
    assert found["findings"][1] == {
        "finding": "dropped",
        "file": "rack.yaml",
        "document": 1,
        "kind": "Hardware",
        "namespace": "lab",
        "name": "node-0",
        "path": "spec.interfaces[0].dhcp.arch",
        "reason": "no place",
    }


def test_summary_counts() -> None:
    assert summary(result(some(0), some(1))) == "3 objects written; 0 errors, 4 fields dropped, 2 changed"
    findings = Findings(SOURCE)
    findings.error("", "x")
    findings.dropped("", "x")
    assert summary(Result([Converted({})], list(findings))) == "1 object written; 1 error, 1 field dropped, 0 changed"
    assert [each.kind for each in findings] == [Kind.ERROR, Kind.DROPPED]


def test_what_was_not_applied_is_not_counted_as_done() -> None:
    some = Result([Converted({})] * 3, [], lost=1)
    assert summary(some, "applied").startswith("2 of 3 objects applied; ")
    assert json.loads(as_json(some))["objects"] == 2
