"""The one command: what it loads, what it takes, and what it says when it can't."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result

from edge.cli import COMMANDS, main
from edge.commands.agent import AgentFormatter
from edge.commands.serve import settings
from edge.composition.admin_token import AdminTokenError, read
from edge.composition.host import Network
from edge.composition.processors import default_server_memory
from edge.composition.settings import EDGE, ON_REQUEST, EdgeSettings, Service, StackSettings
from edge.machines import DhcpMode, NetbootWhen
from tink.server import ServerSettings

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
    """What the commands that serve would have run."""
    seen: Served = {}

    def serve(services: frozenset[Service], given: dict[str, Any]) -> None:
        seen["settings"] = settings(services, given)

    for module in ("up", "services"):
        monkeypatch.setattr(f"edge.commands.serve.{module}.run", serve)
    return seen


def test_help_lists_every_command_with_what_it_does_and_each_has_its_own() -> None:
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
        ("doctor --help", {*HEAVY, "scapy", "tftpy"}),
        ("watch --help", {"scapy", "tftpy"}),
        ("health --health-address 9 --config /dev/null", {*HEAVY, "yaml", "asyncio"} - {"rich", "jinja2"}),
    ],
)
def test_slow_machines_and_those_without_an_extra_load_nothing_of_it(words: str, refused: set[str]) -> None:
    code = (
        "import sys\nfrom edge.cli import main\ntry: main(sys.argv[1:])\n"
        "except SystemExit: print(*(name.partition('.')[0] for name in sys.modules), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *words.split()], capture_output=True, text=True, check=True)
    assert refused & set(done.stderr.splitlines()[-1].split()) == set()


def test_unknown_command_is_named() -> None:
    result = run("sevre")
    assert result.exit_code == 2
    assert "No such command 'sevre'" in result.output


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
            if f"--{(option.name or '').replace('_', '-')}" in option.opts:
                assert option.resolve_envvar_value(context) == "given", (name, flag)
                count += 1
            monkeypatch.delenv(variable)
    assert count > 50


# --- the commands that serve ------------------------------------------------------------------------------------------


def test_up_without_options_is_what_the_stack_defaults_to(served: Served) -> None:
    assert run("up", "--interface", "lo").exit_code == 0
    server = ServerSettings(memory=default_server_memory(alone=False))
    services = frozenset(Service) - ON_REQUEST
    assert served["settings"] == StackSettings(services=services, server=server, server_apart=True)
    run("up", "--interface", "lo", "--kubeconfig", "k")
    assert served["settings"].services == services - {Service.APISERVER}, "the cluster has an API"
    assert served["settings"].kubeconfig == Path("k")


def test_conversion_of_hosts_is_served_only_on_request(served: Served) -> None:
    run("up", "--interface", "lo", "--metal3", "--empty-checksum-type", "auto")
    assert served["settings"].services == frozenset(Service)
    assert served["settings"].empty_checksum_type == "auto"
    run("metal3-webhook", "--webhook-service", "n/s", "--webhook-port", "9444")
    assert served["settings"].services == {Service.CONVERSION}
    assert (served["settings"].webhooks.service, served["settings"].webhooks.port) == ("n/s", 9444)
    assert "No such option" in run("metal3-webhook", "--webhook-failure-policy", "Fail").output


def test_environment_names_several_interfaces_and_services_and_flags_win_over_it(served: Served) -> None:
    environment = {
        "TINKEDGE_INTERFACE": "lo eth7=10.7.0.1",
        "TINKEDGE_DISABLE": "dhcp tftp",
        "TINKEDGE_HTTP_PORT": "80",
    }
    run("up", "--http-port", "81", **environment)
    settings = served["settings"]
    assert settings.networks == (Network("lo"), Network("eth7", "10.7.0.1"))
    assert frozenset(Service) - ON_REQUEST - settings.services == {Service.DHCP, Service.TFTP}
    assert settings.edge.http_port == 81


def test_edge_takes_every_network_and_what_a_proxy_needs(served: Served, tmp_path: Path) -> None:
    given = ["--interface", "lo", "--interface", "eth7=10.7.0.1", "--cache-size", "20GB", "--tftp-dir", tmp_path]
    result = run("edge", *given, "--dhcp-mode", "auto-proxy", "--default-osie", "hook", "--netboot-when", "workflow")
    assert result.exit_code == 0, result.output
    settings = served["settings"]
    assert settings.networks == (Network("lo"), Network("eth7", "10.7.0.1"))
    modes: Any = {"dhcp_mode": DhcpMode.AUTO_PROXY, "netboot_when": NetbootWhen.WORKFLOW}
    osie = ("default", "hook")
    assert settings.edge == EdgeSettings(**modes, default_osie=osie, tftp_dir=tmp_path, cache_bytes=20 * 10**9)


def test_upstreams_are_allowed_by_flags_and_by_the_environment(served: Served) -> None:
    networks = [ip_network(each) for each in ("127.0.0.0/8", "10.0.0.1/32", "fd00::/64")]
    run("edge", "--interface", "lo", "--allow-upstream", "127.0.0.0/8,10.0.0.1", "--allow-upstream", "fd00::/64")
    assert list(served["settings"].edge.allowed_upstreams) == networks
    run("up", TINKEDGE_INTERFACE="lo", TINKEDGE_ALLOW_UPSTREAM="127.0.0.0/8 10.0.0.1 fd00::/64")
    assert list(served["settings"].edge.allowed_upstreams) == networks
    wrong = run("edge", "--interface", "lo", "--allow-upstream", "kernels.example")
    assert "is no network such as 10.1.0.0/16" in wrong.output


def test_other_edges_are_at_the_port_of_this_one_unless_said_otherwise(served: Served, tmp_path: Path) -> None:
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
    assert "is no value of a label" in run(*words, "--peer-group", "rack 7").output


def test_single_service_serves_just_itself(served: Served) -> None:
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
    ("arguments", "said"),
    [
        (["up", "--public-ip", "10.0.0.256"], "'--public-ip': '10.0.0.256' is no IPv4 address"),
        (["up", "--public-ip", "0.0.0.0"], "machines must be able to reach it"),
        (["up", "--interface", "lo="], "'lo=' must be like eth1 or eth1=10.0.0.1"),
        (["up", "--interface", "eth1=WRONG"], "'--interface': 'WRONG' is no IPv4 address"),
        (["doctor", "--interface", "eth1=WRONG"], "'--interface': 'WRONG' is no IPv4 address"),
        (["health", "--interface", "eth1=WRONG"], "'--interface': 'WRONG' is no IPv4 address"),
        (["health", "--public-ip", "WRONG"], "'--public-ip': 'WRONG' is no IPv4 address"),
        (["metadata-url", "--interface", "eth1=WRONG", "m"], "'--interface': 'WRONG' is no IPv4 address"),
        (["up", "--interface", "lo", "--interface", "lo=10.0.0.1"], "an interface is given twice: lo, lo"),
        (["up", "--interface", "lo=10.0.0.1", "--interface", "lo=10.0.0.1"], "given twice"),
        (["up", *(f"--interface={each}" for each in ("lo", "eth1=10.0.0.1")), "--public-ip", "10.0.0.2"], EACH),
        (["up", "--tftp-dir", "absent"], "Directory 'absent' does not exist"),
        (["up", "--cache-size", "0"], "no kernel fits"),
        (["up", "--cache-size", "20 parsecs"], "'20 parsecs' is no size; 20GB and 512MiB are"),
        (["up", "--interface", "lo", "--default-osie", "hook"], "is for --dhcp-mode auto-proxy"),
        (["up", "--default-osie", "/hook"], "'/hook' must be like hook or provisioning/hook"),
        (["edge", "--dhcp-mode", "proxies"], "'proxies' is not one of 'reservation', 'proxy'"),
        (["up", "--http-port", "70800"], "'--http-port': 70800 is not in the range"),
        (["up", "--disable", "dchp"], "'dchp' is not one of 'apiserver'"),
        (["up", "--interface", "lo", "--scheduled-timeout", "0"], "scheduled_timeout must be a number of seconds"),
        (["controller", "--data-dir", "d"], "No such option"),
        (["controller", "--webhook-url", "http://10.0.0.1"], "the URL of the webhooks must be https://HOST:PORT"),
        (["controller", "--webhook-service", "name"], "must be NAMESPACE/NAME"),
        (["controller", "--interface", "lo"], "No such option"),
        (["apiserver", "--kubeconfig", "k"], "No such option"),
    ],
)
def test_what_can_not_be_is_a_usage_error_that_names_it(served: Served, arguments: list[str], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.output
    assert not served


# --- crds and render --------------------------------------------------------------------------------------------------


def test_crds_prints_what_is_in_deploy(tmp_path: Path) -> None:
    printed = list(yaml.safe_load_all(run("crds").output))
    files = sorted((DEPLOY / "crds").glob("*.yaml"))
    assert len(files) == 4
    kept = [document for file in files for document in yaml.safe_load_all(file.read_text())]
    assert sorted(printed, key=str) == sorted(kept, key=str)
    assert run("crds", "--out", tmp_path / "new").exit_code == 0
    assert {f.name: f.read_text() for f in (tmp_path / "new").iterdir()} == {f.name: f.read_text() for f in files}


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
    ("file", "old", "new", "said"),
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
        ("workflow", "kind: Workflow", "kind: Workflows", ["one Workflow is needed; there are: none"]),
        ("workflow", "name: w}", "name: 7}", ["workflow.yaml: Workflow: metadata.name must be a string, not 7"]),
    ],
)
def test_render_names_the_file_and_the_field_that_are_wrong(
    tmp_path: Path, file: str, old: str, new: str, said: list[str]
) -> None:
    for name, text in (("hardware", HARDWARE), ("template", TEMPLATE), ("workflow", WORKFLOW)):
        (tmp_path / f"{name}.yaml").write_text(text)
    assert run("render", "-f", tmp_path).exit_code == 0
    wrong = tmp_path / f"{file}.yaml"
    assert old in wrong.read_text()
    wrong.write_text(wrong.read_text().replace(old, new))
    result = run("render", "-f", tmp_path)
    assert result.exit_code == 1
    for words in said:
        assert words in result.output


def test_render_finds_in_the_objects_what_the_api_would_have_put_there(tmp_path: Path) -> None:
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


def test_render_asks_which_of_several_workflows(tmp_path: Path) -> None:
    second = WORKFLOW.replace("name: w", "name: x").replace("v1}", "v2}")
    (tmp_path / "all.yaml").write_text("---\n".join((HARDWARE, TEMPLATE, WORKFLOW, second)))
    said = run("render", "-f", tmp_path).output
    assert all(f"default/{name} in {tmp_path}/all.yaml" in said for name in ("w", "x"))
    assert "Choose with --workflow" in said
    assert "image: i:v2" in run("render", "-f", tmp_path, "--workflow", "x").output


# --- the agent --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
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
def test_agent_says_what_it_is_not_told(arguments: list[str], said: str) -> None:
    result = run("agent", *arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_agent_takes_what_the_kernel_command_line_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("edge.commands.agent.run", lambda settings: seen.append(settings) or 3)
    cmdline = tmp_path / "cmdline"
    cmdline.write_bytes(b"quiet name=\xff worker_id=52:54:00:AA:00:01 grpc_authority=10.0.0.1:1 tinkerbell_tls=true\n")
    result = run("agent", "--kernel-command-line", cmdline, "--no-tls", "--after-workflow", "sh -c 'a b'")
    assert result.exit_code == 3
    (settings,) = seen
    assert (settings.agent_id, settings.server, settings.tls) == ("52:54:00:aa:00:01", "10.0.0.1:1", False)
    assert settings.after_workflow == ("sh", "-c", "a b")


def test_no_message_and_no_exception_of_the_agent_forges_a_line_or_moves_the_cursor() -> None:
    """Its lines on a machine's console contain text that others choose."""
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


# --- as somebody else than tinkedge's user ----------------------------------------------------------------------------


@pytest.fixture
def not_ours(tmp_path: Path) -> Iterator[Path]:
    """A data directory of somebody else, for whoever this is."""
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
def test_who_may_not_look_into_the_data_directory_is_told_who_may(not_ours: Path, command: str) -> None:
    result = run(*command.split(), "--data-dir", not_ours)
    assert result.exit_code == 2
    assert f"'{not_ours}' is for user " in result.output
    assert "alone: run this as root (sudo), or as that user" in result.output


@pytest.mark.parametrize("name", ["watch", "page", "doctor", "metadata-url"])
def test_what_works_without_the_data_directory_does_not_insist_on_it(name: str) -> None:
    """With a copy of the token, or the key. (click asks as the real user: access(2).)"""
    command = main.get_command(click.Context(main), name)
    assert command is not None
    (option,) = (each for each in command.params if each.name == "data_dir")
    assert not option.type.readable  # type: ignore[attr-defined]


def test_who_may_not_read_the_admin_token_is_told_of_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(AdminTokenError, match=r"sudo.*--admin-token-file"):
        read(tmp_path / "admin-token")
