"""Columns of tables: durations, and values of JSONPaths."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tink.kubeapi.apiserver.tables import human, printer_column, since
from tink.kubeapi.schema.jsonpath import JSONPathError

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


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


COLUMNS = json.loads((Path(__file__).parent / "data" / "columns.json").read_text())


@pytest.mark.parametrize("case", COLUMNS["cases"], ids=lambda case: f"{case['type']} {case['jsonPath']}")
def test_column_shows_what_a_real_api_server_shows(case: dict[str, Any]) -> None:
    """`python -m tests.record columns` records the answers."""
    definition = {"name": "X", "type": case["type"], "jsonPath": case["jsonPath"]}
    if case["readable"]:
        assert printer_column(definition).cell(COLUMNS["object"], NOW) == case["cell"]
    else:
        with pytest.raises(JSONPathError):
            printer_column(definition)


def test_date_column_shows_the_age_and_a_column_without_description_its_path() -> None:
    column = printer_column({"name": "X", "type": "date", "jsonPath": ".metadata.creationTimestamp"})
    assert column.cell({"metadata": {"creationTimestamp": "2026-11-21T11:58:30Z"}}, NOW) == "90s"
    assert column.description == "Custom resource definition column (in JSONPath format): .metadata.creationTimestamp"


@pytest.mark.parametrize(
    "path", ["." + "..*" * 300, ".list" + "[*]" * 50, ".list[?(@..x)]", ".list..", "." + "a" * 5000, ".text" + ".*" * 9]
)
def test_expensive_path_ends(path: str) -> None:
    """A cell that would take more than 10,000 steps stays empty."""
    deep: Any = {"n": 1}
    for _ in range(90):
        deep = [deep] * 3 + [{"x": "y" * 99}] * 99
    try:
        column = printer_column({"name": "X", "type": "integer", "jsonPath": path})
    except JSONPathError:
        return
    assert column.cell({"list": deep, "text": "x" * 100_000}, NOW) is None
