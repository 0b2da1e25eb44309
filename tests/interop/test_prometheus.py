"""A real Prometheus and its promtool: the alerts' own tests, and dashboard and alerts on one host without Kubernetes.

`tinkedge up` is scraped twice: as docs/operating.md has it, and with the labels that Kubernetes would add.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from tests.interop.rack import Process, clean_environment
from tests.interop.test_agents import Machine, Stack
from tests.ports import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.long

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus"
DASHBOARD = json.loads((DEPLOY / "chart" / "tinkedge" / "files" / "dashboards" / "tinkedge.json").read_text())
VARIABLES = {each["name"]: each for each in DASHBOARD["templating"]["list"] if each["type"] == "query"}
# Series that a host has only with more than one controller, webhooks of a cluster, TLS, Metal3.
NOT_HERE = {
    "controller_runtime_webhook_requests_total",
    "leader_election_master_status",
    "tinkedge_certificate_expiration_timestamp_seconds",
}
NOT_METRICS = re.compile(r"\b(without|by) \([^)]*\)|\{[^}]*\}")
SELECTOR = re.compile(r"\b((?:tinkedge|apiserver|controller_runtime|grpc|leader|rest_client|workqueue)_\w+)")


def program(name: str) -> str:
    path = shutil.which(name, path="/usr/bin:/usr/local/bin")
    assert path is not None, f"{name} of Debian's package prometheus is missing: deploy/setup.sh packages test-all"
    return path


@pytest.mark.parametrize("words", [("check", "rules", "alerts.yaml"), ("test", "rules", "alerts_test.yaml")])
def test_promtool_finds_no_fault_in_the_alerts(words: tuple[str, ...]) -> None:
    ran = subprocess.run([program("promtool"), *words], cwd=RULES, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


class Prometheus:
    """A Prometheus server that scrapes a stack every second."""

    def __init__(self, stack: Stack, directory: Path) -> None:
        self.stack = stack
        target = {"targets": [f"127.0.0.1:{stack.admin_port}"]}
        in_a_cluster = {**target, "labels": {"namespace": "tinkedge", "pod": "tinkedge-edge-abcde"}}
        settings = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES / "alerts.yaml")],
            "scrape_configs": [{"job_name": "tinkedge", "static_configs": [target, in_a_cluster]}],
        }
        config = directory / "prometheus.yml"
        config.write_text(yaml.safe_dump(settings))
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        words = [f"--config.file={config}", f"--storage.tsdb.path={directory / 'tsdb'}"]
        words.append(f"--web.listen-address=127.0.0.1:{port}")
        self.process = Process([program("prometheus"), *words], directory, clean_environment())

    def get(self, path: str, **query: str) -> Any:
        """Return the answer of the API to a path, or nothing if it does not answer yet."""
        try:
            with urlopen(f"{self.url}/api/v1/{path}?{urlencode(query)}") as answer:
                return json.load(answer)["data"]
        except HTTPError as error:
            if error.code == 503:  # Prometheus still reads its storage
                return {}
            raise AssertionError(f"{query}: {error.read().decode()}") from error
        except OSError:  # Prometheus does not listen yet
            return {}

    def query(self, expression: str) -> list[dict[str, Any]]:
        series: list[dict[str, Any]] = self.get("query", query=expression).get("result", [])
        return series

    def alerts(self) -> set[tuple[str, str]]:
        """Return the firing alerts by name and namespace label."""
        active = self.get("alerts").get("alerts", [])
        return {
            (each["labels"]["alertname"], each["labels"].get("namespace", ""))
            for each in active
            if each["state"] == "firing"
        }


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    made = Stack(tmp_path_factory.mktemp("scraped"))
    yield made
    made.process.end()


@pytest.fixture(scope="module")
def prometheus(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Start a Prometheus and install a machine while it scrapes."""
    directory = tmp_path_factory.mktemp("prometheus")
    server, machine = Prometheus(stack, directory), Machine(stack, directory)
    try:
        wait_until(lambda: server.query('up{job="tinkedge"} == 1'), lambda: server.process.err)
        machine.order("true")
        machine.agent()
        assert machine.ended() == "Succeeded"
        counted = 'tinkedge_provision_duration_seconds_count{outcome="Succeeded"} == 1'
        wait_until(lambda: server.query(counted), lambda: server.process.err)
        yield server
    finally:
        for agent in machine.agents:
            agent.end()
        server.process.end()


def filled(expression: str, **chosen: str) -> str:
    """Fill in the variables of a query as Grafana does: with the chosen values, or with that of All."""
    for name, variable in VARIABLES.items():
        expression = expression.replace(f"${name}", chosen.get(name, variable["allValue"]))
    assert "$" not in expression
    return expression


@pytest.mark.parametrize(
    "chosen", [{}, {"namespace": "tinkedge"}, {"namespace": ""}], ids=["all", "in-kubernetes", "on-a-host"]
)
def test_every_panel_of_the_dashboard_has_series(prometheus: Prometheus, chosen: dict[str, str]) -> None:
    for panel in DASHBOARD["panels"]:
        expressions = [filled(target["expr"], **chosen) for target in panel["targets"]]
        wait_until(
            lambda expressions=expressions: any(map(prometheus.query, expressions)),  # type: ignore[misc]
            lambda panel=panel, expressions=expressions: f"{panel['title']}: {expressions}",  # type: ignore[misc]
        )


def test_a_host_can_be_chosen_by_its_address(prometheus: Prometheus) -> None:
    (query,) = re.findall(r"label_values\((.*), instance\)", VARIABLES["instance"]["query"]["query"])
    (name,) = {each["metric"]["instance"] for each in prometheus.query(filled(query))}
    assert name == f"127.0.0.1:{prometheus.stack.admin_port}"
    expression = DASHBOARD["panels"][0]["targets"][0]["expr"]
    assert prometheus.query(filled(expression, instance=name))
    assert prometheus.query(filled(expression, instance="192.0.2.1:7081")) == []


def test_every_metric_of_the_alerts_exists_and_every_rule_is_evaluated(prometheus: Prometheus) -> None:
    rules = [rule for group in yaml.safe_load((RULES / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]
    names = {name for rule in rules for name in SELECTOR.findall(NOT_METRICS.sub("", rule["expr"]))}
    missing = {name for name in names if not prometheus.query(f'{name}{{namespace=""}}')}
    assert missing <= NOT_HERE

    def health() -> bool:
        groups = prometheus.get("rules").get("groups", [])
        return {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}

    wait_until(health, lambda: prometheus.get("rules"))


def test_alert_fires_on_a_host_and_in_kubernetes(prometheus: Prometheus) -> None:
    stack = prometheus.stack
    directory = stack.data_dir / "osie"
    spec = {"kernelUrl": f"file://{directory}/no-kernel", "initrdUrl": f"file://{directory}/no-initrd"}
    stack.apply("OSIE", "missing", spec)
    interface = {"dhcp": {"ip": "127.0.0.1", "netmask": "255.0.0.0"}}
    stack.apply(
        "Hardware", "booting", {"networkInterfaces": {"52:54:00:00:00:fe": interface}, "osie": {"name": "missing"}}
    )
    wait_until(lambda: prometheus.query('tinkedge_informer_objects{resource="osies"} == 1'))
    with pytest.raises(HTTPError) as refused:
        urlopen(f"http://127.0.0.1:{stack.http_port}/osie/missing/kernel")
    refused.value.close()
    expected = {("TinkedgeArtifactWrong", ""), ("TinkedgeArtifactWrong", "tinkedge")}
    wait_until(lambda: prometheus.alerts() >= expected, lambda: (prometheus.get("alerts"), stack.process.err[-2000:]))
