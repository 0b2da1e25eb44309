"""Metrics and their labels, wherever the documentation and the dashboard name them, are those of docs/operating.md.

`tests/unit/run/test_graph.py` compares the tables of that page with the program.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "operating.md").read_text()
DASHBOARD = ROOT / "deploy" / "chart" / "tinkedge" / "files" / "dashboards" / "tinkedge.json"
ROWS = {
    name: (set(re.findall(r"`(\w+)`", labels)), set(re.findall(r"`([\w-]+)`", meaning)))
    for name, labels, meaning in re.findall(
        r"^\| `([a-z_]+)` \| (?:gauge|counter|histogram) \|(.*?)\| (.*) \|$", PAGE, re.MULTILINE
    )
}
METRIC = re.compile(
    r"\b((?:tinkedge|apiserver|controller_runtime|grpc_server|leader_election|rest_client|workqueue)_[a-z_]+)"
    r"(?:\{([^}]*)\})?"
)
OPTIONS_OF_KERNELS = {"tinkedge_edge", "tinkedge_sign"}
OF_TARGETS = {"job", "instance", "namespace", "pod"}
CLOSED = {"guard", "kind", "outcome", "reason", "result", "source", "state", "to", "direction"}
"""Labels whose values the tables list, where they do not refer to those of the log."""


def named() -> Iterator[tuple[str, str, str]]:
    """Each metric that a page or the dashboard names, with its matchers."""
    for page in [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]:
        for name, matchers in METRIC.findall(page.read_text()):
            yield page.name, name, matchers
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            for name, matchers in METRIC.findall(target["expr"]):
                yield DASHBOARD.name, name, matchers


@pytest.mark.parametrize(("page", "name", "matchers"), sorted(set(named())))
def test_metric_label_and_value_exist(page: str, name: str, matchers: str) -> None:
    if name in OPTIONS_OF_KERNELS:
        return
    if name.endswith("_"):
        assert any(row.startswith(name) for row in ROWS), f"{page}: no metric begins with {name}"
        return
    row = re.sub("_(bucket|sum|count)$", "", name) if name not in ROWS else name
    assert row in ROWS, f"{page}: there is no metric {name}"
    labels, values = ROWS[row]
    for label, value in re.findall(r'(\w+)(?:=~|!~|!=|=)"([^"]*)"', matchers):
        assert label in labels | OF_TARGETS, f"{page}: {name} has no label {label}"
        if label in CLOSED and row != "tinkedge_journey_events_total":
            assert set(value.split("|")) <= values, f"{page}: {name} has no such {label}"


def test_dashboard_chooses_nothing_at_first_and_every_query_fits_hosts_without_kubernetes() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    chosen = {each["name"]: each for each in dashboard["templating"]["list"] if each["type"] == "query"}
    assert {name: (each["allValue"], each["current"]["value"]) for name, each in chosen.items()} == {
        "namespace": (".*", "$__all"),
        "instance": (".*", "$__all"),
    }
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            selectors = re.findall(r"\{([^{}]*)\}", target["expr"])
            assert selectors, target["expr"]
            for selector in selectors:
                # An expression that matches the empty string also matches a label that is not there.
                assert 'namespace=~"$namespace",instance=~"$instance"' in selector, target["expr"]
