"""What operators see in columns: durations, and values that JSONPaths find."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tink.apiserver.tables import human, printer_column, since
from tink.schema.jsonpath import JSONPathError, compile_path

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
OBJECT = {
    "metadata": {"name": "x", "creationTimestamp": "2026-11-21T11:58:30Z", "labels": {"a.b/c": "yes"}},
    "spec": {"list": [{"n": 1, "t": "one"}, {"n": 2, "t": "two"}], "map": {"k": {"v": 1}}, "flag": False, "zero": 0},
    "status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "Done", "status": "True"}]},
}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (150, "2m30s"),
        (600, "10m"),
        (10_799, "179m"),
        (10_800, "3h"),
        (11_000, "3h3m"),
        (8 * 3600 + 60, "8h"),
        (48 * 3600, "2d"),
        (49 * 3600, "2d1h"),
        (8 * 86400, "8d"),
        (729 * 86400, "729d"),
        (730 * 86400, "2y"),
        (800 * 86400, "2y70d"),
        (9 * 365 * 86400, "9y"),
    ],
)
def test_ages_are_written_as_kubectl_writes_them(seconds: int, text: str) -> None:
    assert human(seconds) == text


def test_age_of_something_without_a_time_is_unknown() -> None:
    assert since(None, NOW) == "<unknown>"
    assert since("yesterday", NOW) == "<invalid>"
    assert since("2026-11-21T11:00:00.000000Z", NOW) == "60m"
    assert since((NOW - timedelta(hours=3)).isoformat(), NOW) == "3h"


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".metadata.name", ["x"]),
        (".metadata.nothing.below", []),
        (".spec.list[0].t", ["one"]),
        (".spec.list[-1].t", ["two"]),
        (".spec.list[5]", []),
        (".spec.list[*].n", [1, 2]),
        (".spec.list[0:1].n", [1]),
        (".spec.map.*.v", [1]),
        (".metadata.labels.a\\.b/c", ["yes"]),
        (".metadata.labels['a.b/c']", ["yes"]),
        ('.status.conditions[?(@.type=="Ready")].status', ["False"]),
        (".status.conditions[?(@.type=='Done')].status", ["True"]),
        (".spec.list[?(@.n>1)].t", ["two"]),
        (".spec.list[?(@.n>'x')].t", []),
        ("..v", [1]),
        (".", [OBJECT]),
    ],
)
def test_jsonpath(path: str, found: list[Any]) -> None:
    assert compile_path(path)(OBJECT) == found


def test_jsonpath_that_cannot_be_read_is_refused_and_cells_are_of_the_type_of_their_column() -> None:
    for path in ("spec", "", ".a[", ".a[?(@.b=1)]", ".a b", ".a[x]", ".a[::0]"):
        with pytest.raises(JSONPathError):
            compile_path(path)
    for kind, path, cell in (
        ("string", ".spec.map", '{"k":{"v":1}}'),
        ("string", ".spec.zero", "0"),
        ("string", ".nothing", None),
        ("integer", ".spec.zero", 0),
        ("integer", ".metadata.name", None),
        ("number", ".spec.zero", 0.0),
        ("boolean", ".spec.flag", False),
        ("date", ".metadata.creationTimestamp", "90s"),
    ):
        column = printer_column({"name": "X", "type": kind, "jsonPath": path})
        assert column.cell(OBJECT, NOW) == cell
