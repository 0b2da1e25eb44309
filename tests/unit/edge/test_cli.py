"""The command `tinkedge`: its imports, its options and its error messages."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result

from edge.admin_token import AdminTokenError, read
from edge.cli import COMMANDS, main
from edge.commands.agent import AgentFormatter
from edge.commands.serve import settings
from edge.http.context import MetadataSettings
from edge.machines import DhcpMode, NetbootWhen
from edge.neighbour.host import Network
from edge.run.boot_settings import Authorities, boot_settings, metadata_settings
from edge.run.process.memory import default_server_memory
from edge.settings.model import EDGE, EdgeSettings, Service, StackSettings, options_for
from ipxe.scripts import BootSettings
from tink.api.v1alpha2 import Raw
from tink.errors import TinkedgeError
from tink.files import private_files
from tink.files.key_file import KeyFileError
from tink.kubeapi import USERS_FILE, ApiServer, read_users
from tink.kubeapi.apiserver import credentials
from tink.server import AgentAuth, ServerSettings

Served = dict[str, StackSettings]

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
EACH = "write --interface NAME=IP for each"
HEAVY = ("aiohttp", "cryptography", "grpc", "jinja2", "kubernetes_asyncio", "orjson", "pydantic", "rich", "uvloop")


@pytest.fixture(autouse=True)
def _no_options_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TINKEDGE_")]:
        monkeypatch.delenv(name)


def run(*arguments: str | Path, **env: str) -> Result:
    result = CliRunner().invoke(main, list(map(str, arguments)), env=env)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    """The settings with which a command that serves would have run."""
    seen: Served = {}

    def serve(services: frozenset[Service], given: dict[str, Any]) -> None:
        seen["settings"] = settings(services, given)

    monkeypatch.setattr("edge.commands.serve.run", serve)
    return seen


def test_help_lists_every_command_and_each_command_has_help() -> None:
    for command in COMMANDS:
        result = run(command, "--help")
        assert (result.exit_code, f"Usage: main {command}" in result.output) == (0, True)
    result = run("--help")
    assert result.exit_code == 0
    listed = {line.split()[0] for line in result.output.split("Commands:")[1].splitlines() if line.startswith("  ")}
    assert set(COMMANDS) <= listed
    assert "TINKEDGE_DATA_DIR" in result.output


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ("--help", {*HEAVY, "scapy", "tftpy"}),
        ("agent --help", {*HEAVY} - {"grpc"}),
        ("agent", {*HEAVY} - {"grpc"}),
        ("doctor --help", {"scapy", "tftpy"}),
        ("watch --help", {"scapy", "tftpy"}),
        ("health --health-address 9 --config /dev/null", {*HEAVY, "yaml", "asyncio"} - {"rich", "jinja2"}),
    ],
)
def test_command_does_not_import_heavy_packages_that_it_does_not_need(words: str, refused: set[str]) -> None:
    code = (
        "import sys\nfrom edge.cli import main\ntry: main(sys.argv[1:])\n"
        "except SystemExit: print(*(name.partition('.')[0] for name in sys.modules), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *words.split()], capture_output=True, text=True, check=True)
    assert refused & set(done.stderr.splitlines()[-1].split()) == set()


def test_every_flag_is_also_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    root = click.Context(main, info_name="tinkedge")
    count = 0
    for name in COMMANDS:
        command = main.get_command(root, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=root, **command.context_settings)
        for option in (param for param in command.params if isinstance(param, click.Option)):
            flag = max(option.opts, key=len)
            variable = "TINKEDGE_" + flag.removeprefix("--").replace("-", "_").upper()
            monkeypatch.setenv(variable, "given")
            # -f/--filename and -o/--output are known by their long names only where these are the parameter's.
            # A flag that prints and exits, as --help does, is none.
            if f"--{(option.name or '').replace('_', '-')}" in option.opts and option.allow_from_autoenv:
                assert option.resolve_envvar_value(context) == "given", (name, flag)
                count += 1
            monkeypatch.delenv(variable)
    assert count > 50


# --- the commands that serve ------------------------------------------------------------------------------------------


def test_up_without_options_has_the_default_settings(served: Served) -> None:
    assert run("up", "--interface", "lo").exit_code == 0
    server = ServerSettings(memory=default_server_memory(alone=False))
    services = frozenset(Service) - {Service.CONVERSION, Service.V1ALPHA1}
    assert served["settings"] == StackSettings(services=services, server=server, server_apart=True)
    run("up", "--interface", "lo", "--kubeconfig", "k")
    without = {Service.APISERVER, Service.BMC, Service.DISCOVERY}
    assert served["settings"].services == services - without, "the cluster has an API, and maybe a Rufio"
    assert served["settings"].kubeconfig == Path("k")


def test_bmcs_are_controlled_with_the_embedded_api_or_on_request(served: Served) -> None:
    run("up", "--interface", "lo", "--no-bmc")
    assert Service.BMC not in served["settings"].services
    run("up", "--interface", "lo", "--kubeconfig", "k", "--bmc", "--bmc-poll-interval", "60")
    assert Service.BMC in served["settings"].services
    assert served["settings"].bmcs.poll_interval == 60
    run("controller", "--kubeconfig", "k")
    assert Service.BMC not in served["settings"].services
    run("controller", "--kubeconfig", "k", TINKEDGE_BMC="true")
    assert served["settings"].services == {Service.CONTROLLER, Service.WEBHOOKS, Service.BMC}


def test_machines_are_judged_with_the_embedded_api_or_on_request(served: Served) -> None:
    run("up", "--interface", "lo", "--no-discovery")
    assert Service.DISCOVERY not in served["settings"].services
    run("up", "--interface", "lo", "--kubeconfig", "k", "--discovery")
    assert Service.DISCOVERY in served["settings"].services
    run("controller", "--kubeconfig", "k")
    assert Service.DISCOVERY not in served["settings"].services
    run("controller", "--kubeconfig", "k", TINKEDGE_DISCOVERY="true")
    assert served["settings"].services == {Service.CONTROLLER, Service.WEBHOOKS, Service.DISCOVERY}


def test_conversion_of_hosts_is_served_only_on_request(served: Served) -> None:
    run("up", "--interface", "lo", "--metal3", "--empty-checksum-type", "auto")
    assert served["settings"].services == frozenset(Service) - {Service.V1ALPHA1}
    assert served["settings"].empty_checksum_type == "auto"
    run("metal3-webhook", "--webhook-service", "n/s", "--webhook-port", "9444")
    assert served["settings"].services == {Service.CONVERSION}
    assert (served["settings"].webhooks.service, served["settings"].webhooks.port) == ("n/s", 9444)
    assert "No such option" in run("metal3-webhook", "--webhook-failure-policy", "Fail").output


def test_v1alpha1_of_a_cluster_is_served_only_on_request(served: Served) -> None:
    run("controller", "--kubeconfig", "k")
    assert Service.V1ALPHA1 not in served["settings"].services
    run("controller", "--kubeconfig", "k", "--disable", "webhooks", "--serve-v1alpha1", "--webhook-service", "n/s")
    assert served["settings"].services == {Service.CONTROLLER, Service.V1ALPHA1}
    run("up", "--interface", "lo", "--kubeconfig", "k", TINKEDGE_SERVE_V1ALPHA1="true")
    assert Service.V1ALPHA1 in served["settings"].services
    run("up", "--interface", "lo", "--serve-v1alpha1")
    assert Service.V1ALPHA1 not in served["settings"].services, "the embedded API converts them itself"


def test_variables_hold_several_values_and_flags_win_over_them(served: Served) -> None:
    environment = {
        "TINKEDGE_INTERFACE": "lo eth7=10.7.0.1",
        "TINKEDGE_DISABLE": "dhcp tftp",
        "TINKEDGE_HTTP_PORT": "80",
    }
    run("up", "--http-port", "81", **environment)
    settings = served["settings"]
    assert settings.networks == (Network("lo"), Network("eth7", "10.7.0.1"))
    assert frozenset(Service) - {Service.CONVERSION, Service.V1ALPHA1} - settings.services == {
        Service.DHCP,
        Service.TFTP,
    }
    assert settings.edge.http_port == 81


def test_edge_takes_several_networks_and_the_options_of_a_proxy(served: Served, tmp_path: Path) -> None:
    given = ["--interface", "lo", "--interface", "eth7=10.7.0.1", "--cache-size", "20GB", "--tftp-dir", tmp_path]
    result = run("edge", *given, "--dhcp-mode", "auto-proxy", "--default-osie", "hook", "--netboot-when", "workflow")
    assert result.exit_code == 0, result.output
    settings = served["settings"]
    assert settings.networks == (Network("lo"), Network("eth7", "10.7.0.1"))
    modes: Any = {"dhcp_mode": DhcpMode.AUTO_PROXY, "netboot_when": NetbootWhen.WORKFLOW}
    osie = ("default", "hook")
    assert settings.edge == EdgeSettings(**modes, default_osie=osie, tftp_dir=tmp_path, cache_bytes=20 * 10**9)


def test_upstreams_are_allowed_by_flags_and_by_variables(served: Served) -> None:
    networks = [ip_network(each) for each in ("127.0.0.0/8", "10.0.0.1/32", "fd00::/64")]
    run("edge", "--interface", "lo", "--allow-upstream", "127.0.0.0/8,10.0.0.1", "--allow-upstream", "fd00::/64")
    assert list(served["settings"].edge.allowed_upstreams) == networks
    run("up", TINKEDGE_INTERFACE="lo", TINKEDGE_ALLOW_UPSTREAM="127.0.0.0/8 10.0.0.1 fd00::/64")
    assert list(served["settings"].edge.allowed_upstreams) == networks
    wrong = run("edge", "--interface", "lo", "--allow-upstream", "kernels.example")
    assert "is not a network such as 10.1.0.0/16" in wrong.output


def test_peer_without_a_port_has_the_port_of_this_edge(served: Served, tmp_path: Path) -> None:
    words = ("edge", "--interface", "lo", "--metadata-token-key", str(tmp_path), "--http-port", "8080")
    run(*words, "--peer", "10.0.0.2", "--peer", "10.0.0.3:7080", "--peer-group", "rack-7", "--lease-namespace", "ns")
    settings = served["settings"]
    assert settings.edge.peers == ("10.0.0.2:8080", "10.0.0.3:7080")
    assert (settings.edge.peer_group, settings.lease_namespace) == ("rack-7", "ns")
    run(*words, "--peer", "fd00:77:0::2", "--peer", "[fd00:77::3]:7080", "--peer", "[fd00:77::4]")
    assert served["settings"].edge.peers == ("[fd00:77::2]:8080", "[fd00:77::3]:7080", "[fd00:77::4]:8080")
    wrong = ("edge.example", "10.0.0.2:", "10.0.0.2:0", "10.0.0.2:65536", "0.0.0.0", "10.0.0.2:7080:1")
    for peer in (*wrong, "[fd00::2", "[fd00::2]7080", "[fd00::2]:", "[edge]:7080", "::", "[::]:7080"):
        assert "Invalid value for '--peer'" in run(*words, "--peer", peer).output
    assert "is not a label value" in run(*words, "--peer-group", "rack 7").output


def test_each_command_runs_its_services_only(served: Served) -> None:
    for words, services in (
        (("edge", "--interface", "lo"), EDGE),
        (("controller",), {Service.CONTROLLER, Service.WEBHOOKS}),
        (("server", "--interface", "lo"), {Service.SERVER}),
        (("apiserver",), {Service.APISERVER}),
    ):
        result = run(*words)
        assert result.exit_code == 0, result.output
        assert served["settings"].services == services


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["up", "--public-ip", "10.0.0.256"], "'--public-ip': '10.0.0.256' is not an IPv4 address"),
        (["up", "--public-ip", "0.0.0.0"], "machines must be able to reach it"),
        (["up", "--interface", "lo="], "'lo=' must be like eth1 or eth1=10.0.0.1"),
        (["up", "--interface", "eth1=WRONG"], "'--interface': 'WRONG' is not an IPv4 address"),
        (["doctor", "--interface", "eth1=WRONG"], "'--interface': 'WRONG' is not an IPv4 address"),
        (["health", "--interface", "eth1=WRONG"], "'--interface': 'WRONG' is not an IPv4 address"),
        (["health", "--public-ip", "WRONG"], "'--public-ip': 'WRONG' is not an IPv4 address"),
        (["metadata-url", "--interface", "eth1=WRONG", "m"], "'--interface': 'WRONG' is not an IPv4 address"),
        (["up", "--interface", "lo", "--interface", "lo=10.0.0.1"], "an interface is given twice: lo, lo"),
        (["up", "--interface", "lo=10.0.0.1", "--interface", "lo=10.0.0.1"], "given twice"),
        (["up", *(f"--interface={each}" for each in ("lo", "eth1=10.0.0.1")), "--public-ip", "10.0.0.2"], EACH),
        (["up", "--tftp-dir", "absent"], "Directory 'absent' does not exist"),
        (["up", "--cache-size", "0"], "no kernel fits"),
        (["up", "--cache-size", "20 parsecs"], "'20 parsecs' is not a size; 20GB and 512MiB are"),
        (["up", "--interface", "lo", "--default-osie", "hook"], "is for --dhcp-mode auto-proxy"),
        (["up", "--default-osie", "/hook"], "'/hook' must be like hook or provisioning/hook"),
        (["edge", "--dhcp-mode", "proxies"], "'proxies' is not one of 'reservation', 'proxy'"),
        (["up", "--http-port", "70800"], "'--http-port': '70800' is not a port from 1 to 65535"),
        (["up", "--disable", "dchp"], "'dchp' is not one of 'apiserver'"),
        (["up", "--interface", "lo", "--scheduled-timeout", "0"], "'0' is not a number greater than 0"),
        (["controller", "--data-dir", "d"], "No such option"),
        (["controller", "--webhook-url", "http://10.0.0.1"], "the URL of the webhooks must be https://HOST:PORT"),
        (["controller", "--webhook-service", "name"], "must be NAMESPACE/NAME"),
        (["controller", "--interface", "lo"], "No such option"),
        (["apiserver", "--kubeconfig", "k"], "No such option"),
        (["apiserver", "--api-address", "127.0.0.1"], "the API is always there on loopback"),
        (["apiserver", "--api-address", "api.example.org"], "is not an address; names are for --api-name"),
        (["apiserver", "--api-address", "::"], "is not the address of one host"),
        (["apiserver", "--api-address", "224.0.0.1"], "is not the address of one host"),
        (["apiserver", "--api-name", "a b"], "is not the name of a host"),
        (["apiserver", "--api-name", "-a"], "is not the name of a host"),
        (["server", "--interface", "lo", "--agent-auth", "token"], "give both the same file"),
        (["edge", "--interface", "lo", "--agent-auth", "token"], "give both the same file"),
        (["server", "--interface", "lo", "--agent-auth", "mtls"], "--grpc-client-ca"),
        (["server", "--interface", "lo", "--grpc-tls-cert", "c"], "go together"),
        (["server", "--interface", "lo", "--grpc-tls-key", "k"], "go together"),
        (["server", "--interface", "lo", "--grpc-client-ca", "a"], "go together"),
        *(
            (["up", "--agent-auth", "token", "--agent-token-lifetime", each], "lifetime")
            for each in ("59", "nan", "1e12")
        ),
        *(
            (["edge", flag, value], "is not a network such as")
            for flag in ("--trusted-proxies", "--metadata-nat")
            for value in ("10.0.0.1/16", "10.0.0", "proxy.example", "10.0.0.0/33", "10.0.0.1 10.0.0.2", "*")
        ),
        *(
            ([command, "--health-address", given], "like 7082, 127.0.0.1:7082 or [::1]:7082")
            for command in ("health", "controller")
            for given in ("::1:7082", "[127.0.0.1]:7082", "[::1]", "host:7082", "70000", "[::1")
        ),
    ],
)
def test_invalid_option_is_a_usage_error_that_names_it(served: Served, arguments: list[str], expected: str) -> None:
    result = run(*arguments, "--config", "/dev/null")
    assert result.exit_code == 2
    assert expected in " ".join(result.output.split())
    assert not served


# --- crds and render --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "folder", "count"),
    [((), "crds", 4), (("--bmc",), "crds/bmc", 3), (("--v1alpha1",), "crds/v1alpha1", 5)],
)
def test_crds_prints_the_files_in_deploy(tmp_path: Path, options: tuple[str, ...], folder: str, count: int) -> None:
    printed = list(yaml.safe_load_all(run("crds", *options).output))
    files = sorted((DEPLOY / folder).glob("*.yaml"))
    assert len(files) == count
    kept = [document for file in files for document in yaml.safe_load_all(file.read_text())]
    assert sorted(printed, key=str) == sorted(kept, key=str)
    assert run("crds", *options, "--out", tmp_path / "new").exit_code == 0
    assert {f.name: f.read_text() for f in (tmp_path / "new").iterdir()} == {f.name: f.read_text() for f in files}


def test_crds_prints_one_set_of_definitions_at_a_time() -> None:
    for options in (("--bmc", "--metal3"), ("--bmc", "--v1alpha1"), ("--metal3", "--v1alpha1")):
        refused = run("crds", *options)
        assert refused.exit_code == 2
        assert f"{options[0]} and {options[1]} are two sets of definitions" in refused.output


def test_crds_with_v1alpha1_name_the_webhook_that_converts_them() -> None:
    printed = run("crds", "--v1alpha1", "--webhook-service", "metal/hooks:8443").output
    assert printed.startswith("# v1alpha1 needs the conversion webhook at metal/hooks:8443:")
    found = {each["metadata"]["name"].partition(".")[0]: each["spec"] for each in yaml.safe_load_all(printed)}
    service = {"namespace": "metal", "name": "hooks", "port": 8443, "path": "/convert-v1alpha1"}
    for name in ("hardware", "templates", "workflows"):
        assert found[name]["conversion"]["webhook"]["clientConfig"] == {"service": service}
        assert [(each["name"], each["storage"]) for each in found[name]["versions"]] == [
            ("v1alpha2", True),
            ("v1alpha1", False),
        ]
    assert not any("conversion" in found[name] for name in ("osies", "workflowrulesets"))
    assert "NAMESPACE/NAME" in run("crds", "--v1alpha1", "--webhook-service", "hooks").output


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_render_prints_the_examples_actions(form: str) -> None:
    result = run("render", "-f", DEPLOY / "examples", "-o", form)
    assert result.exit_code == 0
    actions = json.loads(result.output) if form == "json" else yaml.safe_load(result.output)
    assert [action["name"] for action in actions] == ["inspect", "write-disk", "verify"]
    env = {"DEST_DISK": "/dev/vda", "IMG_URL": "http://172.31.77.1:8080/images/tiny.raw.gz", "COMPRESSED": "true"}
    image = "172.31.77.1:5000/actions/image2disk:1"
    assert actions[1] == {"name": "write-disk", "image": image, "env": env, "timeout": 600}
    if form == "yaml":
        assert run("render", "-f", DEPLOY / "examples", TINKEDGE_OUTPUT="json").output.startswith("[")


HARDWARE = """\
apiVersion: tinkerbell.org/v1alpha2
kind: Hardware
metadata: {name: h}
spec: {networkInterfaces: {52:54:00:00:00:01: {}}}
"""
TEMPLATE = """\
apiVersion: tinkerbell.org/v1alpha2
kind: Template
metadata: {name: t}
spec: {actions: [{name: a, image: "i:{{ .Params.tag }}"}]}
"""
WORKFLOW = """\
apiVersion: tinkerbell.org/v1alpha2
kind: Workflow
metadata: {name: w}
spec: {hardwareRef: {name: h}, templateRef: {name: t}, templateParams: {tag: v1}}
"""


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        ("template", ".tag", ".tug", ["template.yaml: Template t: template: spec.actions[0].image:1:", "tug"]),
        ("template", "{name: a, image", "{nam: a, image", ["template.yaml: Template t: ", "spec.actions[0].name: Req"]),
        ("template", "image: ", "imago: x, image: ", ['Template t: unknown field "spec.actions[0].imago"']),
        ("template", "{name: a, image", "{name: a, timeout: 9223372036854775808, image", ["spec.actions[0].timeout: "]),
        ("template", "[{", "[{name: a, image: i}, {", ["spec.actions[1]: Duplicate value: "]),
        ("template", "[{", "[{name: b, image: i, reboots: true}, {", ["spec.actions[0].reboots: only the last action"]),
        ("template", "name: t", "name: u", ["workflow.yaml: Workflow w: spec.templateRef.name: no Template 't'"]),
        ("hardware", "name: h", "name: h, namespace: far", ["workflow.yaml: ", "spec.hardwareRef.name: no Hardware"]),
        ("hardware", "01: {}", "01: 5", ["hardware.yaml: Hardware h: spec.networkInterfaces.52:54:00:00:00:01: "]),
        ("hardware", "00:01: {}", "00:0A: {}", ["hardware.yaml: Hardware h: spec.networkInterfaces: ", "lower case"]),
        ("workflow", "{tag: v1}", "{tag: [1]}", ["workflow.yaml: Workflow w: spec.templateParams.tag: "]),
        ("workflow", "spec: {", "spec: {{", ["workflow.yaml: not YAML: "]),
        ("workflow", "metadata: {name: w}", "metadata: w", ["workflow.yaml: Workflow: metadata.name is missing"]),
        (
            "workflow",
            "kind: Workflow",
            "kind: Workflows",
            ["there is no Workflow", "1 Hardware, 1 Template, 1 Workflows", "-f workflow.yaml"],
        ),
        ("workflow", "name: w}", "name: 7}", ["workflow.yaml: Workflow: metadata.name must be a string, not 7"]),
    ],
)
def test_render_names_the_wrong_file_and_field(
    tmp_path: Path, file: str, old: str, new: str, expected: list[str]
) -> None:
    for name, text in (("hardware", HARDWARE), ("template", TEMPLATE), ("workflow", WORKFLOW)):
        (tmp_path / f"{name}.yaml").write_text(text)
    assert run("render", "-f", tmp_path).exit_code == 0
    wrong = tmp_path / f"{file}.yaml"
    assert old in wrong.read_text()
    wrong.write_text(wrong.read_text().replace(old, new))
    result = run("render", "-f", tmp_path)
    assert result.exit_code == 1
    for words in expected:
        assert words in result.output


def test_render_adds_the_defaults_of_the_api_to_the_objects(tmp_path: Path) -> None:
    hardware = HARDWARE.replace("{}}}", "{dhcp: {ip: 10.0.0.2, netmask: 255.0.0.0}}}}")
    fields = ".hardware.metadata.namespace }}-{{ range .hardware.networkInterfaces }}{{ .dhcp.leaseTimeSeconds }}{{ end"
    template = TEMPLATE.replace(".Params.tag", fields)
    (tmp_path / "all.yaml").write_text("---\n".join((hardware, template, WORKFLOW)))
    assert "image: i:default-86400" in run("render", "-f", tmp_path).output


def test_render_names_the_files_of_two_workflows_of_one_name(tmp_path: Path) -> None:
    another = WORKFLOW.replace("metadata: {", "metadata: {namespace: other, ")
    assert another != WORKFLOW
    for name, text in (("h", HARDWARE), ("t", TEMPLATE), ("w1", WORKFLOW), ("w2", WORKFLOW), ("w3", another)):
        (tmp_path / f"{name}.yaml").write_text(text)
    result = run("render", "-f", tmp_path)
    assert result.exit_code == 1
    assert "w3.yaml" not in result.output
    for words in ("two Workflows have one name", "w1.yaml", "w2.yaml", "Leave one of them out"):
        assert words in result.output


def test_render_lists_several_workflows(tmp_path: Path) -> None:
    second = WORKFLOW.replace("name: w", "name: x").replace("v1}", "v2}")
    (tmp_path / "all.yaml").write_text("---\n".join((HARDWARE, TEMPLATE, WORKFLOW, second)))
    output = run("render", "-f", tmp_path).output
    assert all(f"default/{name} in {tmp_path}/all.yaml" in output for name in ("w", "x"))
    assert "Choose one with --workflow" in output
    assert "image: i:v2" in run("render", "-f", tmp_path, "--workflow", "x").output


OLD_HARDWARE = """\
apiVersion: tinkerbell.org/v1alpha1
kind: Hardware
metadata: {name: h}
spec:
  disks: [{device: /dev/nvme0n1}]
  interfaces:
  - {dhcp: {mac: "52:54:00:00:00:01"}, netboot: {allowPXE: true}}
  - dhcp: {mac: "52:54:00:00:00:02"}
"""
OLD_TEMPLATE = """\
apiVersion: tinkerbell.org/v1alpha1
kind: Template
metadata: {name: t}
spec:
  data: |
    name: t
    tasks:
    - name: t
      worker: "{{.device_1}}"
      actions:
      - name: a
        image: "i:{{.tag}}"
        on-failure: [x]
        environment: {PART: "{{ formatPartition (index .Hardware.Disks 0) 1 }}"}
"""
OLD_WORKFLOW = """\
apiVersion: tinkerbell.org/v1alpha1
kind: Workflow
metadata: {name: w}
spec: {hardwareRef: h, templateRef: t, hardwareMap: {tag: v1, device_1: "52:54:00:00:00:01"}}
"""


@pytest.mark.parametrize("workflow", [OLD_WORKFLOW, WORKFLOW])
def test_render_takes_objects_of_v1alpha1(tmp_path: Path, workflow: str) -> None:
    workflow = workflow.replace("{tag: v1}", "{tag: v1, device_1: m}")
    (tmp_path / "all.yaml").write_text("---\n".join((OLD_HARDWARE, OLD_TEMPLATE, workflow)))
    result = run("render", "-f", tmp_path)
    assert result.exit_code == 0
    assert yaml.safe_load(result.stdout) == [{"name": "a", "image": "i:v1", "env": {"PART": "/dev/nvme0n1p1"}}]
    assert result.stderr == "no effect: tasks[0].actions[0].on-failure: there are no reactions to failures\n"


def test_render_renders_templates_of_both_versions_for_a_hardware_of_either(tmp_path: Path) -> None:
    (tmp_path / "all.yaml").write_text("---\n".join((OLD_HARDWARE, TEMPLATE, WORKFLOW)))
    assert yaml.safe_load(run("render", "-f", tmp_path).stdout) == [{"name": "a", "image": "i:v1"}]
    hardware = HARDWARE.replace("spec: {", "spec: {storageDevices: [/dev/sda], ")
    (tmp_path / "all.yaml").write_text("---\n".join((hardware, OLD_TEMPLATE, OLD_WORKFLOW)))
    (action,) = yaml.safe_load(run("render", "-f", tmp_path).stdout)
    assert action["env"] == {"PART": "/dev/sda1"}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "{{.tag}}",
            "{{.tug}}",
            "all.yaml: Template t: error rendering template: template: workflow-template:7:",
        ),
        ("worker: ", "{}: ", "all.yaml: Template t: error rendering template: line "),
        ("data: |", "dota: |", 'all.yaml: Template t: unknown field "spec.dota"'),
        (
            "templateRef: t, ",
            "",
            "all.yaml: Workflow w: spec.templateRef.name: the v1alpha1 Workflow names no Template",
        ),
        (
            "templateRef: t",
            "templateRef: u",
            "all.yaml: Workflow w: spec.templateRef: no Template 'u' of namespace def",
        ),
        ("{tag: v1", "{tag: [1]", "all.yaml: Workflow w: spec.hardwareMap.tag: "),
        ('mac: "52:54:00:00:00:01"', "mac: 5", "all.yaml: Hardware h: spec.interfaces[0].dhcp.mac: "),
        ("kind: Workflow", "kind: WorkflowRuleSet", "1 tinkerbell.org/v1alpha1 WorkflowRuleSet. Name the files of a"),
    ],
)
def test_render_names_the_wrong_field_of_v1alpha1(tmp_path: Path, old: str, new: str, expected: str) -> None:
    text = "---\n".join((OLD_HARDWARE, OLD_TEMPLATE, OLD_WORKFLOW))
    assert old in text
    (tmp_path / "all.yaml").write_text(text.replace(old, new))
    result = run("render", "-f", tmp_path)
    assert result.exit_code == 1
    assert expected in result.output


def test_render_shows_the_scripts_of_hardware_of_v1alpha1(tmp_path: Path) -> None:
    unknown = "apiVersion: tinkerbell.org/v1alpha1\nkind: OSIE\nmetadata: {name: default}\n"
    (tmp_path / "all.yaml").write_text("---\n".join((OLD_HARDWARE, unknown)))
    output = run("render", "-f", tmp_path, "--netboot", "10.0.0.1").output
    assert "# h, 52:54:00:00:00:01: OSIE default/default\n#!ipxe" in output
    assert "# h, 52:54:00:00:00:02: no netboot.allowPXE of this interface is true" in output


# --- the agent --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "agent id: missing; give --agent-id or boot with worker_id= on the kernel command line"),
        (["--agent-id", "m"], "server: missing; give --server or boot with grpc_authority="),
        (["--agent-id", "m", "--server", "s:99999"], "'s:99999' is not host:port"),
        (
            ["--agent-id", "m", "--server", "s", "--after-workflow", "reboot '"],
            "--after-workflow: No closing quotation",
        ),
        (["--kernel-command-line", "/nonexistent"], "'/nonexistent' does not exist"),
    ],
)
def test_agent_reports_a_missing_or_invalid_setting(arguments: list[str], expected: str) -> None:
    result = run("agent", *arguments)
    assert result.exit_code == 2
    assert expected in result.output


def test_agent_takes_settings_from_the_kernel_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("tink.agent.agent.run", lambda settings: seen.append(settings) or 3)
    cmdline = tmp_path / "cmdline"
    cmdline.write_bytes(b"quiet name=\xff worker_id=52:54:00:AA:00:01 grpc_authority=10.0.0.1:1 tinkerbell_tls=true\n")
    result = run("agent", "--kernel-command-line", cmdline, "--no-tls", "--after-workflow", "sh -c 'a b'")
    assert result.exit_code == 3
    (settings,) = seen
    assert (settings.agent_id, settings.server, settings.tls) == ("52:54:00:aa:00:01", "10.0.0.1:1", False)
    assert settings.after_workflow == ("sh", "-c", "a b")


def test_agent_prints_the_inventory_without_settings_and_by_its_flag_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run("agent", "--print-inventory")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["collectionMethod"] == "agent"
    monkeypatch.setenv("TINKEDGE_PRINT_INVENTORY", "true")
    result = run("agent")
    assert result.exit_code == 2
    assert "agent id: missing" in result.output


def test_no_message_and_no_exception_of_the_agent_forges_a_line_or_moves_the_cursor() -> None:
    """Servers and registries choose parts of the lines that the agent prints on a machine's console."""
    forged = "agent: workflow lab/install succeeded"
    try:
        raise ValueError(f"the registry answered x\n{forged}\x1b[2J")
    except ValueError:
        error = sys.exc_info()
    record = logging.LogRecord("tink.agent", logging.ERROR, "f", 1, "pull of %s\tfailed", (f"a\n{forged}",), error)
    first, *rest = AgentFormatter().format(record).split("\n")
    assert first == f"agent: pull of a\\n{forged}\tfailed"
    assert {line[:4] for line in rest} == {"    "}
    assert all(line.isprintable() for line in rest)


# --- as another user than tinkedge's ----------------------------------------------------------------------------------


@pytest.fixture
def foreign_directory(tmp_path: Path) -> Iterator[Path]:
    """A data directory that this user may not read."""
    directory, us = tmp_path / "data", os.geteuid()
    directory.mkdir(mode=0)
    if us == 0:
        for each in (tmp_path, *tmp_path.parents):
            each.chmod(each.stat().st_mode | 0o055)
        os.seteuid(65534)
    yield directory
    os.seteuid(us)
    directory.chmod(0o700)


@pytest.mark.parametrize(
    "command",
    ["up", "apiserver", "backup /dev/null", "restore /dev/null", "users list", "kubeconfig --user a", "bundle load b"],
)
def test_data_directory_of_another_user_is_refused_with_the_users_name(foreign_directory: Path, command: str) -> None:
    result = run(*command.split(), "--data-dir", foreign_directory)
    assert result.exit_code == 2
    assert f"'{foreign_directory}' is for user " in result.output
    assert "alone: run this as root (sudo), or as that user" in result.output


def test_backup_into_a_missing_directory_names_it_with_the_command(tmp_path: Path) -> None:
    result = run("backup", tmp_path / "none" / "site.tgz", "--data-dir", tmp_path)
    assert result.exit_code == 1
    assert f"there is no directory {tmp_path}/none; make it ('install -d -m 700 {tmp_path}/none')" in result.output


def test_file_for_a_missing_directory_is_refused_with_the_name_of_the_directory(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught, private_files.stream(tmp_path / "none" / "file"):
        pass
    assert caught.value.filename == f"{tmp_path}/none"


@pytest.mark.parametrize("name", ["watch", "page", "doctor", "metadata-url"])
def test_commands_that_work_without_the_data_directory_accept_an_unreadable_one(name: str) -> None:
    """They can use a copy of the token or the key. (click checks as the real user: access(2).)"""
    command = main.get_command(click.Context(main), name)
    assert command is not None
    (option,) = (each for each in command.params if each.name == "data_dir")
    assert not option.type.readable  # type: ignore[attr-defined]


def test_unreadable_admin_token_is_an_error_that_mentions_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(AdminTokenError, match=r"sudo.*--admin-token-file"):
        read(tmp_path / "admin-token")


# --- options about agents and metadata, for edge and server together and apart ----------------------------------------


ALL = frozenset(Service)
SERVER = frozenset({Service.SERVER})


def settings_of(services: frozenset[Service], *words: str) -> StackSettings:
    """Return the settings that a command with the options of these services makes of `words`."""
    found: list[StackSettings] = []

    @click.command()
    def command(**options: Any) -> None:
        found.append(settings(services, options))

    for option in options_for(services):
        option(command)
    command.main(["--interface", "lo=127.0.0.1", *words], standalone_mode=False)
    return found[0]


def test_agents_prove_their_address_and_tls_is_off_by_default() -> None:
    for services in (ALL, SERVER, EDGE):
        server = settings_of(services).server
        assert (server.agent_auth, server.tokens, server.tls) == (AgentAuth.ADDRESS, None, None)
        boot = boot_of(settings_of(services), None)
        assert (boot.token, boot.tinkerbell_tls, boot.tls_ca) == (None, False, b"")


def test_edge_and_server_in_one_process_make_their_key(tmp_path: Path) -> None:
    made = settings_of(ALL, "--agent-auth", "token", "--data-dir", str(tmp_path), "--agent-token-lifetime", "600")
    tokens = made.server.tokens
    assert tokens
    assert (tokens.key, tokens.lifetime, tokens.create) == (tmp_path / "agent-token.key", 600, True)
    token = boot_of(made, None).token
    assert token
    assert token("52:54:00:00:00:01").startswith("v1.525400000001.")


@pytest.mark.parametrize("services", [SERVER, EDGE])
def test_edge_and_server_apart_do_not_make_the_key_that_they_share(
    services: frozenset[Service], tmp_path: Path
) -> None:
    tokens = settings_of(services, "--agent-auth", "token", "--agent-token-key", str(tmp_path / "key")).server.tokens
    assert tokens is not None
    assert (tokens.key, tokens.create) == (tmp_path / "key", False)


def test_only_the_server_needs_certificates_for_agents_with_mtls() -> None:
    tls = settings_of(SERVER, "--grpc-tls-cert", "c", "--grpc-tls-key", "k", "--grpc-client-ca", "a").server.tls
    assert tls is not None
    assert (tls.certificate, tls.key, tls.client_ca) == (Path("c"), Path("k"), Path("a"))
    assert settings_of(EDGE, "--agent-auth", "mtls").server.agent_auth is AgentAuth.ADDRESS


def test_address_with_many_agents_gets_more_connections_and_calls() -> None:
    settings = settings_of(SERVER, "--grpc-connections-per-address", "5000").server
    assert (settings.connections_per_address, settings.calls_per_address) == (5000, 5000)
    assert settings_of(SERVER).server.connections_per_address is None


def boot_of(made: StackSettings, metadata: MetadataSettings | None) -> BootSettings:
    return boot_settings(made, metadata, Authorities(made, lambda: None))


async def nothing(_namespace: str, _name: str) -> Raw:
    return {}


def test_no_proxy_is_trusted_and_no_token_is_given_by_default(tmp_path: Path) -> None:
    made = settings_of(EDGE, "--data-dir", str(tmp_path))
    metadata = metadata_settings(made, nothing)
    assert (metadata.trusted.proxies, metadata.trusted.nat) == ((), ())
    assert (metadata.token_lifetime, metadata.imds_required) == (0, False)
    assert boot_of(made, metadata).metadata_token is None
    assert stat.S_IMODE((tmp_path / "metadata-token.key").stat().st_mode) == 0o600


def test_options_for_proxies_and_tokens_take_effect(tmp_path: Path) -> None:
    proxies = ("--trusted-proxies", "10.0.0.1, 2001:db8::/32,", "--metadata-nat", "10.9.0.0/16")
    tokens = ("--imds-tokens", "required", "--metadata-tokens", "--metadata-token-lifetime", "60")
    made = settings_of(EDGE, "--data-dir", str(tmp_path), *proxies, *tokens)
    metadata = metadata_settings(made, nothing)
    assert [str(each) for each in metadata.trusted.proxies] == ["10.0.0.1/32", "2001:db8::/32"]
    assert [str(each) for each in metadata.trusted.nat] == ["10.9.0.0/16"]
    assert metadata.imds_required
    token = boot_of(made, metadata).metadata_token
    assert token is not None
    assert token("52:54:00:00:00:01").startswith("M1.525400000001.1")


def test_edges_that_share_a_key_file_do_not_make_it(tmp_path: Path) -> None:
    made = settings_of(EDGE, "--data-dir", str(tmp_path), "--metadata-token-key", str(tmp_path / "shared"))
    with pytest.raises(KeyFileError, match="shared"):
        metadata_settings(made, nothing)
    (tmp_path / "shared").write_text("a" * 64)
    metadata_settings(made, nothing)
    assert [each.name for each in tmp_path.iterdir()] == ["shared"]


def test_fast_path_is_on_by_default() -> None:
    assert settings_of(EDGE).edge.fast_path
    assert not settings_of(EDGE, "--no-fast-path").edge.fast_path


# --- `tinkedge kubeconfig` and `tinkedge users` -----------------------------------------------------------------------


NAME = "alice"


@pytest.fixture
async def api(tmp_path: Path) -> Any:
    """Run an API at all addresses of this host, with a certificate for one address beside that of loopback."""
    server = ApiServer(tmp_path / "data", port=0, addresses=["0.0.0.0"], names=["127.0.0.2"])
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a data directory whose API does not run."""
    (tmp_path / "data").mkdir()
    credentials.load_authority(tmp_path / "data" / "pki", datetime.now(UTC))
    return tmp_path / "data"


def run_on(data: Path, *words: str) -> Result:
    words = (*words, "--data-dir", str(data))
    words = (*words, *(() if "--config" in words else ("--config", "/dev/null")))
    return CliRunner().invoke(main, [*words])


def test_directory_without_an_embedded_api_is_refused(tmp_path: Path) -> None:
    for words in ("users list", f"kubeconfig --user {NAME} --role view --stdout"):
        for directory in (tmp_path / "absent", tmp_path):
            ran = run_on(directory, *words.split())
            assert ran.exit_code == 1
            assert "is no data directory with an embedded API: give --data-dir" in ran.stderr


def test_kubeconfig_is_readable_by_its_owner_only_and_never_overwritten(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "alice.kubeconfig"
    words = ("kubeconfig", "--user", NAME, "--role", "edit", "-n", "lab", "--out", str(out), "--server", "https://x:1")
    ran = run_on(data, *words)
    assert ran.exit_code == 0, ran.output
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    content = yaml.safe_load(out.read_text())
    assert content["clusters"][0]["cluster"]["server"] == "https://x:1"
    assert content["contexts"][0]["context"]["namespace"] == "lab"
    assert content["current-context"] == "alice@tinkedge-x"
    users = read_users(data / USERS_FILE).users
    left = (users[NAME].credentials[0].expires or datetime.now(UTC)) - datetime.now(UTC)
    assert timedelta(days=89) < left <= timedelta(days=90)
    token = content["users"][0]["user"]["token"]
    assert token not in ran.output
    assert users[NAME].credentials[0].id in token
    again = run_on(data, *words)
    assert (again.exit_code, "exists already" in again.output) == (2, True)
    assert yaml.safe_load(out.read_text()) == content
    assert len(read_users(data / USERS_FILE).users[NAME].credentials) == 1


def test_token_is_revoked_if_its_file_cannot_be_written(data: Path, tmp_path: Path) -> None:
    ran = run_on(data, "kubeconfig", "--user", NAME, "--role", "view", "--out", str(tmp_path / "no" / "where"))
    assert (ran.exit_code, "No such file" in ran.output) == (1, True)
    assert read_users(data / USERS_FILE).users[NAME].credentials == ()


@pytest.mark.parametrize(
    ("settings_", "server"),
    [
        ({}, "https://127.0.0.1:6443"),
        ({"api-address": "10.0.0.5"}, "https://10.0.0.5:6443"),
        ({"api-address": ["2001:db8::5"], "api-port": 7443}, "https://[2001:db8::5]:7443"),
        ({"api-address": "0.0.0.0", "api-name": ["api.example.org"]}, "https://api.example.org:6443"),
    ],
)
def test_kubeconfig_has_the_server_of_the_settings(
    data: Path, tmp_path: Path, settings_: dict[str, Any], server: str
) -> None:
    config = tmp_path / "tinkedge.yaml"
    config.write_text(yaml.safe_dump({"data-dir": str(data), **settings_}))
    ran = run_on(data, "kubeconfig", "--user", NAME, "--role", "view", "--stdout", "--config", str(config))
    assert f"server: {server}\n" in ran.output, ran.output


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--role", "root"), "'root' is not one of"),
        ((), "there is no user alice yet: choose a role"),
        (("--role", "view", "--expires", "1m"), "'1m' is no time such as 12h"),
        (("--role", "view", "--expires", "0d"), "is no time such as"),
        (("--role", "view", "--server", "http://10.0.0.5:6443"), "is no URL such as https://10.0.0.5:6443"),
        (("--role", "view", "--server", "https://u:p@10.0.0.5"), "is no URL such as"),
    ],
)
def test_invalid_options_are_refused_and_no_token_is_made(
    data: Path, tmp_path: Path, words: tuple[str, ...], expected: str
) -> None:
    out = tmp_path / "out"
    ran = run_on(data, "kubeconfig", "--user", NAME, "--out", str(out), *words)
    assert (ran.exit_code != 0, expected in ran.output) == (True, True), ran.output
    assert not out.exists()
    assert not (data / USERS_FILE).exists()


def test_users_are_listed_changed_and_revoked(data: Path) -> None:
    for name, role, expires in (("alice", "edit", "90d"), ("bob", "view", "never")):
        assert (
            run_on(data, "kubeconfig", "--user", name, "--role", role, "--expires", expires, "--stdout").exit_code == 0
        )
    listed = run_on(data, "users", "list").output.splitlines()
    rows = [" ".join(line.split()[:3]) for line in listed]
    assert rows == ["USER ROLE NAMESPACES", "alice edit all", "bob view all"]
    assert listed[2].endswith("never")
    assert run_on(data, "users", "role", "bob", "edit", "-n", "lab").output == "bob is edit in lab\n"
    shown = json.loads(run_on(data, "users", "list", "--json").output)
    assert (shown["bob"]["role"], shown["bob"]["namespaces"]) == ("edit", ["lab"])
    token_id = shown["alice"]["tokens"][0]["id"]
    assert "is revoked" in run_on(data, "users", "revoke", "alice", "--token", token_id).output
    assert "all of the user's tokens are revoked" in run_on(data, "users", "revoke", "bob").output
    assert list(read_users(data / USERS_FILE).users) == ["alice"]
    assert "there is no user bob; there is alice" in run_on(data, "users", "revoke", "bob").output


def test_damaged_file_of_users_is_reported(data: Path) -> None:
    (data / USERS_FILE).write_text("{")
    ran = run_on(data, "users", "list")
    assert (ran.exit_code, f"{data / USERS_FILE}: the file is cut off" in ran.output) == (1, True)


async def test_kubeconfig_warns_if_the_certificate_is_not_for_the_url(api: ApiServer, tmp_path: Path) -> None:
    port = api.url.rpartition(":")[2]

    async def output_for(server: str) -> str:
        words = ("kubeconfig", "--user", NAME, "--role", "view", "--stdout", "--server", server)
        return (await asyncio.to_thread(run_on, tmp_path / "data", *words)).output

    assert "note:" not in await output_for(f"https://127.0.0.2:{port}")
    assert "shows a certificate that is not for 127.0.0.3" in await output_for(f"https://127.0.0.3:{port}")
    assert "is not reached from here" in await output_for("https://127.0.0.1:1")


# --- contradictions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("services", "options"),
    [
        ({Service.SERVER}, {"api_address": ("10.0.0.5",)}),
        ({Service.APISERVER}, {"api_address": ("0.0.0.0",)}),
        ({Service.APISERVER}, {"api_address": ("0.0.0.0", "10.0.0.5"), "api_name": ("a",)}),
    ],
)
def test_contradicting_settings_are_refused(services: set[Service], options: dict[str, Any]) -> None:
    with pytest.raises(click.UsageError, match="--api-"):
        settings(frozenset(services), options)
    made = settings(frozenset({Service.APISERVER}), {"api_port": 6443})
    assert (made.api_addresses, made.api_names) == ((), ()), "on loopback alone unless the operator says otherwise"


# --- expected errors --------------------------------------------------------------------------------------------------


def test_expected_error_ends_a_command_with_its_message_and_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    class SpecialError(TinkedgeError):
        exit_status = 7

    def fail(**_: Any) -> None:
        raise SpecialError("the disk is on fire: use another")

    monkeypatch.setattr(main.get_command(click.Context(main), "crds"), "callback", fail)
    result = run("crds")
    assert (result.exit_code, result.output) == (7, "Error: the disk is on fire: use another\n")
