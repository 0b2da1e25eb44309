"""The chart, as far as it can be looked at without Helm: tests/interop/test_chart.py renders it."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
import yaml

from deploy.package.chart import CHART, DEPLOY, ROLES, values_schema, webhooks
from deploy.supply.__main__ import project
from edge.cli import main
from edge.settings import key, settable

VALUES: dict[str, Any] = yaml.load((CHART / "values.yaml").read_text(), Loader=yaml.CSafeLoader)
SCHEMA: dict[str, Any] = json.loads(values_schema())
SETS = sorted((CHART / "ci").glob("*-values.yaml"))


def test_chart_is_released_with_the_program_and_its_generated_files_are_of_today():
    chart = yaml.load((CHART / "Chart.yaml").read_text(), Loader=yaml.CSafeLoader)
    assert chart["version"] == chart["appVersion"] == project().version
    assert (CHART / "values.schema.json").read_text() == values_schema(), "make chart"
    assert (CHART / "files" / "webhooks.yaml").read_text() == webhooks(), "make chart"
    for folder in ("crds", "crds/bmc", "crds/v1alpha1", "crds-metal3"):
        assert (CHART / "files" / folder).resolve() == DEPLOY / folder


def test_schema_knows_every_value_and_each_default_is_good():
    for values in (VALUES, *(yaml.load(file.read_text(), Loader=yaml.CSafeLoader) for file in SETS)):
        jsonschema.validate(values, SCHEMA)
    undocumented = [path for path in _paths(SCHEMA) if path[0] != "global" and not _there(VALUES, path)]
    assert undocumented == []


def _paths(schema: dict[str, Any], at: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Check every value that has a name of its own; settings have their names elsewhere."""
    found = []
    for name, inner in schema.get("properties", {}).items():
        if name == "settings":
            continue
        found += [(*at, name), *_paths(inner, (*at, name))]
    return found


def _there(values: Any, path: tuple[str, ...]) -> bool:
    if not path:
        return True
    # Where servers and edges stand is the edge's to say in one mode, and there is one cache: not each role has each.
    return isinstance(values, dict) and path[0] in values and _there(values[path[0]], path[1:])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"edge": {"interface": ["eth1"]}}, "'interface' was unexpected"),
        ({"edge": {"settings": {"dhcp-mode": "relay"}}}, "'relay' is not one of ['reservation',"),
        ({"edge": {"settings": {"data-dir": "/tmp"}}}, "'data-dir' was unexpected"),
        ({"edge": {"settings": {"http-port": 70000}}}, "70000 is greater than the maximum of 65535"),
        ({"edge": {"settings": {"http-port": 0}}}, "0 is less than the minimum of 1"),
        ({"server": {"settings": {"workers": 2}}}, "'workers' was unexpected"),
        ({"controller": {"settings": {"dhcp-mode": "off"}}}, "'dhcp-mode' was unexpected"),
        ({"server": {"address": "https://10.0.0.1"}}, "does not match"),
        ({"image": {"digest": "latest"}}, "does not match"),
        ({"controller": {"replicas": "2"}}, "'2' is not of type 'integer'"),
    ],
)  # fmt: skip
def test_wrong_value_is_refused_by_its_name(values, words):
    with pytest.raises(jsonschema.ValidationError) as refused:
        jsonschema.validate(values, SCHEMA)
    assert words in refused.value.message


def test_settings_that_the_chart_makes_are_options_of_their_roles():
    text = (CHART / "templates" / "_settings.tpl").read_text()
    for role in ROLES:
        made = text.partition(f'define "tinkedge.settings.{role}"')[2].partition("{{- define")[0]
        names = set(re.findall(r"^([a-z][a-z0-9-]+):", made, re.MULTILINE))
        assert names, role
        assert names <= {key(option) for option in settable(main.command_named(role))}, role


def test_dashboard_asks_for_metrics_that_there_are():
    """Those in the tables of docs/operating.md, which other tests compare with the collectors."""
    paper = (DEPLOY.parent / "docs" / "operating.md").read_text()
    known = set(re.findall(r"^\| `(tinkedge_\w+)` \|", paper, re.MULTILINE))
    dashboard = json.loads((CHART / "files" / "dashboards" / "tinkedge.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"\btinkedge_\w+?(?=_bucket|_count|_sum|\b)", target["expr"])
    }
    assert asked
    assert asked <= known
