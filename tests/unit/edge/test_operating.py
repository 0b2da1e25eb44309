"""docs/operating.md and the alerts go together, and with the names and values that there are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from edge.artifacts.errors import KINDS
from edge.journey.events import Outcome, Step
from tink.api.v1alpha2 import WorkflowState

ROOT = Path(__file__).resolve().parents[3]
PAPER = (ROOT / "docs" / "operating.md").read_text()
_PREFIXES = ("tinkedge_", "apiserver_", "controller_runtime_", "grpc_", "leader_", "rest_client_", "workqueue_")


def metrics() -> dict[str, tuple[str, set[str]]]:
    """Type and labels by name, from the tables; that these are true, `tests/unit/composition/test_stack.py` sees."""
    rows = re.findall(r"^\| `([a-z_]+)` \| (gauge|counter|histogram) \| (.*?) \|", PAPER, re.MULTILINE)
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_the_alerts_ask_for_metrics_and_labels_that_there_are() -> None:
    known = metrics()
    for rule in rules():
        expression = re.sub(r"\b(without|by) \([^)]*\)", "", rule["expr"])
        asked = re.findall(r"\b([a-z]+_[a-z_]+)\b(?:\{([^}]*)\})?", expression)
        found = {
            re.sub("_(bucket|sum|count)$", "", name): matchers for name, matchers in asked if name.startswith(_PREFIXES)
        }
        assert found or "up{" in rule["expr"], rule["alert"]
        for name, matchers in found.items():
            assert name in known, f"{rule['alert']}: there is no {name}"
            assert set(re.findall(r"(\w+)!?=", matchers)) <= known[name][1] | {"job"}, rule["alert"]
    asked = " ".join(rule["expr"] for rule in rules())
    kinds = {kind for found in re.findall(r'kind=~"([\w|]+)"', asked) for kind in found.split("|")}
    assert kinds <= {kind.replace(" ", "_") for kind in KINDS}
    assert set(re.findall(r'step="(\w+)"', asked)) <= {step.value for step in Step}
    states = set(map(str, WorkflowState))
    assert set(re.findall(r'outcome="(\w+)"', asked)) <= {outcome.value for outcome in Outcome} | states
    assert set(re.findall(r'to="(\w+)"', asked)) <= states


def test_the_paper_says_what_to_do_about_every_alert() -> None:
    (table,) = re.findall(r"^\| alert \| look at \|\n(.*?)\n\n", PAPER, re.MULTILINE | re.DOTALL)
    said = [name for row in table.splitlines()[1:] for name in re.findall(r"\bTinkedge\w+", row.split("|")[1])]
    assert said == [rule["alert"] for rule in rules() if rule["alert"] in said]
    assert set(said) == {rule["alert"] for rule in rules()}


def test_labels_are_all_listed() -> None:
    (kinds,) = re.findall(r"^\| `tinkedge_artifact_failures_total` .*: (.*) \|$", PAPER, re.MULTILINE)
    assert kinds.split(", ") == [kind.replace(" ", "_") for kind in KINDS]
    (steps,) = re.findall(r"`step`: ([\w, ]+);", PAPER)
    assert set(steps.split(", ")) == {step.value for step in Step}
