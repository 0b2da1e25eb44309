"""The chart as Helm renders it: a real API accepts the objects, and they match docs/cluster.md.

Helm itself is the oracle, built once (tests/programs). The API's schemas are recorded (tests/interop/chart/record.py).
`make test-cluster` runs the pods and boots machines from them.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from deploy.package.chart import CHART, DEPLOY, Helm, rendered
from deploy.package.target import PackageError
from edge.cli import main
from edge.settings import check
from tests.programs.build import built
from tink.webhooks.registration import Address, configuration
from tink.webhooks.server import WebhookSettings

Raw = dict[str, Any]

SCHEMAS = Path(__file__).parent / "chart" / "schemas.json"
SETS = ["default", "edges", "service", "everything"]
ELSEWHERE = {"Certificate", "PrometheusRule", "ServiceMonitor"}
"""Kinds that other projects define."""
TENANT, SITE = {"namespaces": "berlin,tinkedge"}, "site in (berlin,ulm)"


@pytest.fixture(scope="session")
def helm() -> Helm:
    return Helm(built("helm")["helm"])


def documents(text: str) -> list[Raw]:
    return [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each]


def with_values(*settings: str) -> list[str]:
    return [word for each in settings for word in ("--set", each)]


def values(name: str) -> tuple[str, ...]:
    return () if name == "default" else ("--values", str(CHART / "ci" / f"{name}-values.yaml"))


@dataclass(frozen=True)
class Objects:
    """The objects that the chart renders with a set of values."""

    all: list[Raw]

    def of(self, kind: str) -> list[Raw]:
        return [each for each in self.all if each["kind"] == kind]

    def one(self, kind: str, name: str) -> Raw:
        (match,) = [each for each in self.of(kind) if each["metadata"]["name"] == name]
        return match

    def pods(self) -> Iterator[tuple[str, Raw]]:
        """Yield each role with its pod template."""
        for workload in self.all:
            if workload["kind"] in ("Deployment", "DaemonSet"):
                role = workload["metadata"]["labels"]["app.kubernetes.io/component"]
                yield role, workload["spec"]["template"]["spec"]

    def names(self, kind: str) -> set[str]:
        return {each["metadata"]["name"] for each in self.of(kind)}

    def volumes(self, role: str) -> Raw:
        """The volumes of a role's pods, by name."""
        return {each["name"]: each for each in dict(self.pods())[role]["volumes"]}

    def settings(self, role: str) -> Raw:
        """Return the settings in a role's ConfigMap."""
        (settings,) = documents(self.one("ConfigMap", f"tinkedge-{role}")["data"]["tinkedge.yaml"])
        return settings


@pytest.fixture(scope="session")
def objects(helm: Helm) -> dict[str, Objects]:
    return {name: Objects(documents(helm.template(*values(name)))) for name in SETS}


# --- validation by a real API -----------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def schemas() -> Raw:
    """Return the recorded schemas, which reject unknown fields."""
    schemas: Raw = json.loads(SCHEMAS.read_text())
    for schema in schemas.values():
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
    return {"components": {"schemas": schemas}}


@pytest.mark.parametrize("name", SETS)
def test_helm_the_api_and_the_program_accept_the_chart(
    helm: Helm, objects: dict[str, Objects], schemas: Raw, name: str, tmp_path: Path
) -> None:
    assert "0 chart(s) failed" in helm.run("lint", "--strict", str(CHART), *values(name))
    by_kind = {
        ("/".join(filter(None, (of["group"], of["version"]))), of["kind"]): schema
        for schema, body in schemas["components"]["schemas"].items()
        for of in body.get("x-kubernetes-group-version-kind", [])
    }
    for obj in objects[name].all:
        if obj["kind"] not in ELSEWHERE:
            schema = {"$ref": f"#/components/schemas/{by_kind[obj['apiVersion'], obj['kind']]}"} | schemas
            jsonschema.Draft202012Validator(schema).validate(obj)
    keys = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects[name].all]
    assert len(keys) == len(set(keys)), "no two have one name"
    settings = [each["data"] for each in objects[name].of("ConfigMap") if "tinkedge.yaml" in each["data"]]
    assert settings
    file = tmp_path / "tinkedge.yaml"
    for each in settings:
        file.write_text(each["tinkedge.yaml"])
        check(file, main.command_named)


@pytest.mark.parametrize(
    ("values", "role", "expected"),
    [
        (
            "everything",
            "edge",
            {"metadata-tokens": True, "cache-size": "20GB", "grpc-authority": "agents.example.com:443"},
        ),
        ("everything", "server", {"peer-group": None, "reports-key": None}),
        ("edges", "edge", {"interface": ["eth1", "eth2=10.2.0.1"], "grpc-authority": None}),
        ("edges", "server", {"interface": ["eth1", "eth2=10.2.0.1"]}),
        ("service", "edge", TENANT | {"hardware-selector": SITE, "grpc-authority": "10.1.0.250:42113"}),
        ("service", "server", TENANT | {"hardware-selector": SITE}),
        (
            "service",
            "controller",
            TENANT | {"hardware-selector": None, "webhook-configuration": "tinkedge-webhooks.tinkedge"},
        ),
    ],
)
def test_settings_of_a_role_follow_the_values(
    objects: dict[str, Objects], values: str, role: str, expected: Raw
) -> None:
    settings = objects[values].settings(role)
    assert {key: settings.get(key) for key in expected} == expected


@pytest.mark.parametrize(
    ("values", "kind", "name", "expected"),
    [
        ("default", "DaemonSet", "edge", {"spec.updateStrategy.rollingUpdate": {"maxUnavailable": 1}}),
        ("service", "Deployment", "edge", {"spec.strategy.rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}),
        (
            "service",
            "Service",
            "server",  # which keeps the addresses of agents
            {
                "spec.type": "LoadBalancer",
                "spec.externalTrafficPolicy": "Local",
                "spec.loadBalancerClass": "example.com/class",
            },
        ),
        ("service", "Certificate", "server", {"spec.ipAddresses": ["10.1.0.250"]}),
        ("service", "Secret", "keys", {"metadata.annotations": {"helm.sh/resource-policy": "keep"}}),
        # The leader has the objects of the cluster; other replicas have their own.
        ("service", "ClusterRole", "webhook-registration", {"rules.0.resourceNames": ["tinkedge-webhooks.tinkedge"]}),
    ],
)
def test_object_contains_the_values(
    objects: dict[str, Objects], values: str, kind: str, name: str, expected: Raw
) -> None:
    for path, value in expected.items():
        actual: Any = objects[values].one(kind, f"tinkedge-{name}")
        for step in path.split("."):
            actual = actual[int(step) if isinstance(actual, list) else step]
        assert actual == value, path


# --- one source -------------------------------------------------------------------------------------------------------


def test_generated_files_are_up_to_date_with_the_chart(helm: Helm) -> None:
    for path, text in rendered(helm).items():
        assert path.read_text() == text, f"{path.relative_to(DEPLOY)}: make chart"


def test_kustomization_and_chart_produce_the_same_objects(objects: dict[str, Objects]) -> None:
    command = ["kubectl", "kustomize", str(DEPLOY / "kustomize")]
    built_by_kubectl = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    ours = {(each["kind"], each["metadata"]["name"]): each for each in documents(built_by_kubectl)}
    theirs = {(each["kind"], each["metadata"]["name"]): each for each in objects["default"].all}
    hooks = {key for key, each in theirs.items() if "helm.sh/hook" in each["metadata"].get("annotations", {})}
    assert ours.keys() == theirs.keys() - hooks | {("Namespace", "tinkedge")}
    for key, each in ours.items():
        assert each.get("spec") == theirs.get(key, {}).get("spec"), key


# --- rights -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETS)
def test_webhooks_match_those_that_the_controller_registers(objects: dict[str, Objects], name: str) -> None:
    (rendered,) = objects[name].of("ValidatingWebhookConfiguration")
    settings = objects[name].settings("controller")
    where = WebhookSettings(service=settings["webhook-service"])
    expected = configuration(
        Address("/admission", namespace=where.namespace, name=where.name, port=where.service_port),
        b"",
        settings["webhook-failure-policy"],
        settings["namespaces"].split(",") if "namespaces" in settings else (),
        settings["webhook-configuration"],
    )
    for webhook in expected["webhooks"]:
        del webhook["clientConfig"]["caBundle"]
    assert rendered["metadata"]["name"] == expected["metadata"]["name"]
    assert rendered["webhooks"] == expected["webhooks"]


def test_each_right_that_rbac_can_not_narrow_comes_with_its_policy(helm: Helm, objects: dict[str, Objects]) -> None:
    policies = {name: objects[name].names("ValidatingAdmissionPolicy") for name in SETS}
    registration = "tinkedge-webhook-registration.tinkedge"
    always = {registration, "tinkedge-server-inventory.tinkedge"}
    assert policies["default"] == policies["service"] == always
    assert policies["edges"] == always | {"tinkedge-edge-peers.tinkedge"}
    assert policies["everything"] == always | {
        "tinkedge-server-attributes.tinkedge",
        "tinkedge-bmc-netboot.tinkedge",
        "tinkedge-metal3-webhook.tinkedge",
        "tinkedge-v1alpha1.tinkedge",
        "tinkedge-discovery.tinkedge",
        "tinkedge-discovery-delete.tinkedge",
        "tinkedge-edge-discovery.tinkedge",
        "tinkedge-edge-discovery-delete.tinkedge",
    }
    without = helm.template("--set", "controller.webhooks.enabled=false")
    assert registration not in without
    assert "validatingwebhookconfigurations" not in without, "nor the rights"
    account = "system:serviceaccount:tinkedge:somebody"
    policy = objects["everything"].one("ValidatingAdmissionPolicy", registration)
    assert policy["spec"]["matchConditions"][0]["expression"] == f'request.userInfo.username == "{account}"'


def test_server_may_not_write_hardware_unless_agents_attributes_are_wanted(objects: dict[str, Objects]) -> None:
    for name in SETS:
        roles = [*objects[name].of("ClusterRole"), *objects[name].of("Role")]
        of_server = [each for each in roles if each["metadata"]["labels"]["app.kubernetes.io/component"] == "server"]
        rules = [rule for each in of_server for rule in each["rules"] if "hardware" in rule["resources"]]
        expected = {"list", "watch"} | ({"patch"} if name == "everything" else set())
        assert {verb for rule in rules for verb in rule["verbs"]} == expected, name


# --- contents of the objects ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETS)
def test_no_pod_has_more_than_it_needs(objects: dict[str, Objects], name: str) -> None:
    for role, pod in objects[name].pods():
        assert "initContainers" not in pod
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = pod["containers"]
        security = container["securityContext"]
        assert "privileged" not in security
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        added = {"add": ["NET_BIND_SERVICE", "NET_RAW", "NET_ADMIN"]} if role == "edge" else {}
        assert security["capabilities"] == {"drop": ["ALL"]} | added
        assert role == "edge" or pod["securityContext"]["runAsNonRoot"] is True
        assert container["resources"]["limits"].keys() == {"memory"}


def test_pods_spread_and_a_drain_leaves_one_of_each(objects: dict[str, Objects]) -> None:
    rendered = objects["service"]
    budgets = {each["metadata"]["name"]: each["spec"] for each in rendered.of("PodDisruptionBudget")}
    assert budgets.keys() == {"tinkedge-edge", "tinkedge-server", "tinkedge-controller"}
    for role in ("server", "controller"):
        workload = rendered.one("Deployment", f"tinkedge-{role}")
        assert workload["spec"]["replicas"] >= 2
        selector = workload["spec"]["selector"]
        assert budgets[f"tinkedge-{role}"]["selector"] == selector
        (spread,) = workload["spec"]["template"]["spec"]["topologySpreadConstraints"]
        assert spread["labelSelector"] == selector


def test_only_prometheus_and_the_test_of_the_release_may_reach_the_health_port(objects: dict[str, Objects]) -> None:
    for role in ("server", "controller"):
        policy = objects["service"].one("NetworkPolicy", f"tinkedge-{role}")["spec"]
        (health,) = [rule for rule in policy["ingress"] if rule["ports"] == [{"port": "health", "protocol": "TCP"}]]
        monitoring, test = health["from"]
        assert monitoring["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "monitoring"}
        labels = objects["service"].one("Pod", "tinkedge-test")["metadata"]["labels"]
        assert test["podSelector"]["matchLabels"].items() <= labels.items()


def test_servers_run_beside_edges_if_there_is_no_load_balancer(objects: dict[str, Objects]) -> None:
    pods = dict(objects["edges"].pods())
    for same in ("hostNetwork", "nodeSelector", "tolerations"):
        assert pods["edge"][same] == pods["server"][same]


def test_services_that_are_off_have_no_port(objects: dict[str, Objects]) -> None:
    for name, ports in (("service", [8080, 7082]), ("default", [67, 4011, 69, 7080, 7082])):
        edge = dict(objects[name].pods())["edge"]
        assert [port["containerPort"] for port in edge["containers"][0]["ports"]] == ports


@pytest.mark.parametrize("legacy", ["50061, 8081", ["50061", "8081"]])
def test_optional_ports_are_in_the_pod_when_enabled(helm: Helm, legacy: str | list[str], tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps({"edge": {"settings": {"syslog": "on", "legacy-ports": legacy}}}))
    text = helm.run("install", "t", str(CHART), "--dry-run=client", "--values", str(file))
    manifest, _, notes = text.partition("NOTES:")
    (edge,) = re.findall(r"kind: DaemonSet\nmetadata:\n +name: t-tinkedge-edge\n.*?\n---", manifest, re.DOTALL)
    ports = re.findall(r'"containerPort":(\d+)', edge)
    assert ports == ["67", "4011", "69", "7080", "514", "50061", "8081"]
    for line in ("514/udp           log lines of machines\n", "50061/tcp  ", "8081/tcp  "):
        assert line in notes


def test_additions_of_users_are_in_the_objects(objects: dict[str, Objects]) -> None:
    for _, pod in objects["service"].pods():
        assert pod["containers"][0]["image"] == f"registry.example/tinkedge@sha256:{'0' * 64}"
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        assert pod["priorityClassName"] == "tinkedge"
    pod = dict(objects["everything"].pods())["controller"]
    (container,) = pod["containers"]
    assert container["args"] == ["controller", "--log-level=debug"]
    assert {"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"} in container["env"]
    assert container["volumeMounts"][-1] == {"name": "more", "mountPath": "/more"}
    assert pod["volumes"][-1]["name"] == "more"
    assert pod["serviceAccountName"] == "somebody"
    assert pod["affinity"]["podAntiAffinity"]
    assert pod["tolerations"][0]["key"] == "node-role.kubernetes.io/control-plane"


@pytest.mark.parametrize(("name", "secret"), [("service", "tinkedge-server-tls"), ("everything", "server-tls")])
@pytest.mark.parametrize("role", ["edge", "server"])
def test_tls_files_are_mounted_at_the_configured_paths(
    objects: dict[str, Objects], name: str, secret: str, role: str
) -> None:
    place = "/run/secrets/tinkedge/"
    (container,) = dict(objects[name].pods())[role]["containers"]
    mounts = {each["mountPath"] for each in container["volumeMounts"] if each["mountPath"].startswith(place)}
    files = [value for value in objects[name].settings(role).values() if str(value).startswith(place)]
    assert {str(Path(file).parent) for file in files} == mounts
    volumes = objects[name].volumes(role)
    assert volumes["ca"]["secret"]["secretName"] == secret
    # Only the authority's certificate: an edge does not need the server's key.
    assert volumes["ca"]["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
    assert ("tls" in volumes) == (role == "server")


def test_alerts_equal_those_for_prometheus_without_the_chart(objects: dict[str, Objects]) -> None:
    rule = objects["service"].one("PrometheusRule", "tinkedge")["spec"]
    assert [rule] == documents((DEPLOY / "prometheus" / "alerts.yaml").read_text())


def test_keys_are_generated_once_and_each_role_mounts_only_its_own(objects: dict[str, Objects]) -> None:
    keys = objects["service"].one("Secret", "tinkedge-keys")["data"]
    assert keys.keys() == {"agent-token.key", "metadata-token.key", "reports.key", "admin-token"}
    assert len(set(keys.values())) == 4
    assert objects["default"].names("Secret") == {"tinkedge-webhooks-ca"}
    webhooks = {"tinkedge-webhooks-ca", "tinkedge-metal3-webhook-ca"}
    assert objects["everything"].names("Secret") == webhooks, "an existing one is named"
    volumes = {role: objects["everything"].volumes(role) for role in ("edge", "server", "controller")}
    assert volumes["server"]["keys"]["secret"]["items"] == [{"key": "agent-token.key", "path": "agent-token.key"}]
    assert "items" not in volumes["edge"]["keys"]["secret"]
    signing = [{"key": "metadata-token.key", "path": "metadata-token.key"}]
    assert volumes["controller"]["keys"]["secret"]["items"] == signing, "for the URLs of boot media"
    assert "keys" not in objects["service"].volumes("controller")


def test_controller_gives_bmcs_signed_urls_of_an_edge_only_if_one_is_named(
    helm: Helm, objects: dict[str, Objects]
) -> None:
    controller, edge = (objects["everything"].settings(role) for role in ("controller", "edge"))
    assert controller["bmc-edge-url"] == "http://192.0.2.1:7080"
    assert controller["metadata-token-key"] == edge["metadata-token-key"], "the edges check what the controller signs"
    assert not {"bmc-edge-url", "metadata-token-key"} & objects["default"].settings("controller").keys()
    without = helm.template(*with_values("bmc.enabled=true"))
    assert "bmc-edge-url" not in without
    assert "metadata-token.key" not in without
    alone = helm.template(*with_values("bmc.enabled=true", "bmc.edgeURL=http://192.0.2.1:7080"))
    assert alone.count("metadata-token.key") >= 3, "the Secret, and the settings of both roles"


def test_separate_server_sends_events_of_agents_to_the_edges(objects: dict[str, Objects]) -> None:
    edge, server = (objects["edges"].settings(role) for role in ("edge", "server"))
    names = ("peer-group", "lease-namespace", "reports-key")
    assert {name: server[name] for name in names} == {name: edge[name] for name in names}
    files = {each["path"] for each in objects["edges"].volumes("server")["keys"]["secret"]["items"]}
    assert files == {"agent-token.key", "reports.key"}
    may = [role["rules"] for role in objects["edges"].of("Role") if role["metadata"]["name"] == "tinkedge-server-peers"]
    assert may == [[{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["list"]}]]


def test_definitions_equal_the_programs_and_are_kept_by_default(objects: dict[str, Objects]) -> None:
    for name, keep, count in (("default", "keep", 4), ("everything", None, 10)):
        definitions = objects[name].of("CustomResourceDefinition")
        assert len(definitions) == count
        for each in definitions:
            assert each["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == keep
            folders = {"metal3.io": "crds-metal3", "bmc.tinkerbell.org": "crds/bmc"}
            own_folder = "crds/v1alpha1" if name == "everything" else "crds"
            folder = folders.get(each["spec"]["group"], own_folder)
            (own,) = documents((DEPLOY / folder / f"{each['spec']['names']['plural']}.yaml").read_text())
            assert each["spec"] == own["spec"]


def test_v1alpha1_is_converted_behind_the_service_of_the_release_with_or_without_reviews(helm: Helm) -> None:
    for reviews in ("true", "false"):
        options = with_values("v1alpha1.enabled=true", f"controller.webhooks.enabled={reviews}")
        made = Objects(documents(helm.template(*options, namespace="ns")))
        settings = made.settings("controller")
        assert (settings["serve-v1alpha1"], settings["webhook-service"]) == (True, "ns/tinkedge-webhooks")
        assert "tinkedge-webhooks-ca" in made.names("Secret")
        assert made.one("Service", "tinkedge-webhooks")["spec"]["ports"][0]["targetPort"] == 9443
        assert bool(made.of("ValidatingWebhookConfiguration")) == (reviews == "true")
        for plural in ("hardware", "templates", "workflows"):
            definition = made.one("CustomResourceDefinition", f"{plural}.tinkerbell.org")["spec"]
            service = {"namespace": "ns", "name": "tinkedge-webhooks", "port": 443, "path": "/convert-v1alpha1"}
            assert definition["conversion"]["webhook"]["clientConfig"] == {"service": service}
        roles = [each for each in made.of("Role") if "tinkedge-webhooks-ca" in str(each["rules"])]
        assert len(roles) == 1
        (policy,) = [
            each for each in made.of("ValidatingAdmissionPolicy") if each["metadata"]["name"] == "tinkedge-v1alpha1.ns"
        ]
        assert '.orValue("") == "tinkedge-webhooks"' in str(policy["spec"]["validations"])


def test_notes_name_the_addresses_to_open(helm: Helm) -> None:
    def notes(name: str) -> str:
        words = ["install", "tinkedge", str(CHART), "-n", "tinkedge", "--dry-run=client"]
        return helm.run(*words, *values(name)).partition("NOTES:")[2]

    edges, service = notes("edges"), notes("service")
    for line in ("67/udp, 4011/udp", "69/udp", "7080/tcp", "42113/tcp", "on eth1, eth2=10.2.0.1", "9443/tcp"):
        assert line in edges
    for line in ("8080/tcp", "10.1.0.250:42113", "agents (TLS)", "deployment/tinkedge-edge"):
        assert line in service
    assert "67/udp" not in service
    assert "69/udp" not in service


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["server.mode=service"], "server.address: with server.mode service"),
        (["edge.enabled=false"], "server.mode: edges needs edge.enabled"),
        (["discovery.rules={x}"], "discovery.rules: needs discovery.enabled"),
        (["edge.hostNetwork=false"], "server.mode: edges needs edge.hostNetwork"),
        (["server.healthPort=7082"], "server.healthPort"),
        (["edge.cache.existingClaim=c"], "edge.kind Deployment with replicas 1"),
        (["server.tls.certManager.enabled=true"], "issuerRef.name"),
        (["edge.settings.dhcp-mode=relay"], "dhcp-mode"),
        (["edge.interface=eth1"], "interface"),
        (["scope.namespaces={Berlin}"], "/scope/namespaces/0"),
        (
            ["scope.hardwareSelector=site in ("],
            r'scope.hardwareSelector: "site in \(" is not a label selector such as site=berlin',
        ),
        (["settings.namespaces=a"], "namespaces"),
        (
            ["server.serviceAccount.name=a", "edge.serviceAccount.name=a"],
            'edge and server have the account "a" in common',
        ),
        (["edge.settings.workers=2"], "edge.settings.workers was removed: take it out"),
        (["settings.workers=2"], "settings.workers was removed: take it out"),
    ],
)
def test_impossible_values_are_rejected_with_a_reason(helm: Helm, options: list[str], words: str) -> None:
    with pytest.raises(PackageError, match=words):
        helm.template(*with_values(*options))


@pytest.mark.parametrize("selector", ["site in (berlin,ulm),!spare", "example.com/site != a, rack", "x notin ( a , )"])
def test_chart_accepts_the_selectors_of_edges(helm: Helm, selector: str, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps({"scope": {"hardwareSelector": selector}}))
    text = helm.template("--values", str(file), "--show-only", "templates/settings.yaml")
    edge = Objects(documents(text)).one("ConfigMap", "tinkedge-edge")
    file.write_text(edge["data"]["tinkedge.yaml"])
    check(file, main.command_named)
    assert yaml.safe_load(file.read_text())["hardware-selector"] == selector


def test_second_site_contains_no_cluster_scoped_objects(helm: Helm) -> None:
    options = with_values("crds.install=false", "controller.enabled=false")
    site = documents(helm.run("template", "berlin", str(CHART), *options))
    names = {each["metadata"]["name"] for each in site}
    assert all(name.startswith("berlin-tinkedge-") for name in names), names
    kinds = {each["kind"] for each in site}
    assert not kinds & {"CustomResourceDefinition", "ValidatingWebhookConfiguration", "Deployment"}


# --- tenants ----------------------------------------------------------------------------------------------------------


def test_tenant_has_rights_in_its_namespaces_only(objects: dict[str, Objects]) -> None:
    everywhere, tenant = objects["default"], objects["service"]
    assert tenant.names("ClusterRole") == {"tinkedge-webhook-registration"}
    assert tenant.names("ValidatingWebhookConfiguration") == {"tinkedge-webhooks.tinkedge"}
    for role in ("controller", "webhooks", "server", "edge"):
        name = f"tinkedge-{role}-objects"
        kinds = ("Role", "RoleBinding")
        objects_by_kind = {
            kind: [each for each in tenant.of(kind) if each["metadata"]["name"] == name] for kind in kinds
        }
        for each in objects_by_kind.values():
            assert [obj["metadata"]["namespace"] for obj in each] == ["berlin", "tinkedge"]
        for obj in objects_by_kind["Role"]:
            assert obj["rules"] == everywhere.one("ClusterRole", f"tinkedge-{role}")["rules"]
        for obj in objects_by_kind["RoleBinding"]:
            assert obj["roleRef"] == {**obj["roleRef"], "kind": "Role", "name": name}
            assert obj["subjects"][0]["namespace"] == "tinkedge"


def test_tenant_with_hosts_of_metal3_needs_no_cluster_role_for_them(helm: Helm) -> None:
    options = with_values("scope.namespaces={a,b}", "metal3.enabled=true", "metal3.settings.bmc=true")
    options += with_values("metal3.secretsNamespaces={a}")
    rendered = documents(helm.template(*options, "--show-only", "templates/rbac-metal3.yaml"))
    assert {each["kind"] for each in rendered} == {"Role", "RoleBinding"}
    places = sorted(
        f"{each['metadata']['name']} {each['metadata']['namespace']}" for each in rendered if "rules" in each
    )
    expected = [" tinkedge", "-bmc-objects a", "-bmc-objects b", "-objects a", "-objects b", "-secrets a"]
    assert places == [f"tinkedge-metal3{each}" for each in expected]


def test_bmcs_are_controlled_and_their_secrets_read_only_if_enabled(objects: dict[str, Objects], helm: Helm) -> None:
    assert not [name for name in objects["default"].names("ClusterRole") if "bmc" in name]
    assert "bmc" not in objects["default"].settings("controller")
    everything = objects["everything"]
    assert everything.settings("controller")["bmc"] is True
    assert "tinkedge-bmc" in everything.names("ClusterRole")
    places = [
        each["metadata"]["namespace"] for each in everything.of("Role") if "bmc-secrets" in each["metadata"]["name"]
    ]
    assert places == ["bmcs"]
    options = with_values("scope.namespaces={a,b}", "bmc.enabled=true")
    tenant = documents(helm.template(*options, "--show-only", "templates/rbac-bmc.yaml"))
    policy = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    assert {each["kind"] for each in tenant} == {"Role", "RoleBinding"} | policy
    places = sorted(f"{each['metadata']['name']} {each['metadata']['namespace']}" for each in tenant if "rules" in each)
    expected = [" tinkedge", "-objects a", "-objects b", "-secrets-objects a", "-secrets-objects b"]
    assert places == [f"tinkedge-bmc{each}" for each in expected]


def test_discovered_machines_are_approved_and_config_maps_are_read_only_if_enabled(
    objects: dict[str, Objects], helm: Helm
) -> None:
    assert not [name for name in objects["default"].names("ClusterRole") if "discovery" in name]
    assert "discovery" not in objects["default"].settings("controller")
    assert objects["everything"].settings("controller")["discovery"] is True
    options = with_values("scope.namespaces={a,b}", "discovery.enabled=true")
    tenant = documents(helm.template(*options, "--show-only", "templates/rbac-discovery.yaml"))
    policy = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    assert {each["kind"] for each in tenant} == {"Role", "RoleBinding"} | policy
    places = sorted(f"{each['metadata']['name']} {each['metadata']['namespace']}" for each in tenant if "rules" in each)
    assert places == [f"tinkedge-discovery{each}" for each in (" tinkedge", "-objects a", "-objects b")]


def test_servers_behind_a_service_serve_until_it_routes_no_agent_to_them(objects: dict[str, Objects]) -> None:
    # Beside an edge, agents connect to the node's address.
    for name, stopping in (("default", {}), ("service", {"preStop": {"exec": {"command": ["sleep", "5"]}}})):
        hooks = {role: pod["containers"][0].get("lifecycle", {}) for role, pod in objects[name].pods()}
        assert hooks == {"edge": {}, "controller": {}, "server": stopping}
