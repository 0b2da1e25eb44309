"""docs/operating.md names the metrics that there are, and no others."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml
from prometheus_client import CollectorRegistry

from edge.artifacts.errors import KINDS
from edge.artifacts.metrics import CacheMetrics, Counts
from edge.composition.networks import NetworkMetrics
from edge.journey.events import Outcome, Step
from edge.journey.metrics import JourneyMetrics

PAPER = (Path(__file__).resolve().parents[3] / "docs" / "operating.md").read_text()


# Dashboards and alerts of others ask for these names: one that is renamed is a change for users.
NAMES = {
    "tinkedge_artifact_downloads_expected_bytes",
    "tinkedge_artifact_downloads_in_progress",
    "tinkedge_artifact_downloads_received_bytes",
    "tinkedge_artifact_downloads_total",
    "tinkedge_artifact_evictions_total",
    "tinkedge_artifact_failures_total",
    "tinkedge_artifact_fetched_bytes_total",
    "tinkedge_artifact_machines_waiting",
    "tinkedge_artifact_opens_total",
    "tinkedge_artifact_resumptions_total",
    "tinkedge_artifact_revalidations_total",
    "tinkedge_artifact_stored_bytes",
    "tinkedge_artifact_stored_files",
    "tinkedge_journey_events_total",
    "tinkedge_journey_kept_bytes",
    "tinkedge_machines",
    "tinkedge_network_carrier",
    "tinkedge_network_ready",
    "tinkedge_sent_bytes_total",
}


def metrics() -> set[str]:
    """Names as they are scraped, from the collectors themselves."""
    cache: Any = SimpleNamespace(counts=Counts(), downloads=list, stored_bytes=0, stored_files=0)
    journey: Any = SimpleNamespace(counts=dict, sent_bytes=dict, kept_bytes=0)
    networks: Any = SimpleNamespace(states=[])
    inventory: Any = []
    registry = CollectorRegistry()
    for collector in (CacheMetrics(cache), JourneyMetrics(journey, inventory), NetworkMetrics(networks)):
        registry.register(collector)
    return {
        family.name + ("_total" if family.type == "counter" else "")
        for family in registry.collect()
    }  # fmt: skip


def test_metrics_keep_their_names() -> None:
    assert metrics() == NAMES


def test_the_table_has_every_metric_and_no_other() -> None:
    assert set(re.findall(r"^\| `(tinkedge_\w+)` \|", PAPER, re.MULTILINE)) == metrics()


def test_the_alerts_ask_for_metrics_and_labels_that_there_are() -> None:
    (text,) = re.findall(r"^```yaml\n(groups:.*?)^```", PAPER, re.MULTILINE | re.DOTALL)
    (group,) = yaml.safe_load(text)["groups"]
    asked = " ".join(rule["expr"] for rule in group["rules"])
    assert set(re.findall(r"tinkedge_\w+", asked)) <= metrics()
    kinds = {kind for found in re.findall(r'kind=~"([\w|]+)"', asked) for kind in found.split("|")}
    assert kinds <= {kind.replace(" ", "_") for kind in KINDS}
    assert set(re.findall(r'step="(\w+)"', asked)) <= {step.value for step in Step}
    assert set(re.findall(r'outcome="(\w+)"', asked)) <= {outcome.value for outcome in Outcome}


def test_labels_are_all_listed() -> None:
    (kinds,) = re.findall(r"^\| `tinkedge_artifact_failures_total` .*: (.*) \|$", PAPER, re.MULTILINE)
    assert kinds.split(", ") == [kind.replace(" ", "_") for kind in KINDS]
    (steps,) = re.findall(r"`step`: ([\w, ]+);", PAPER)
    assert set(steps.split(", ")) == {step.value for step in Step}
