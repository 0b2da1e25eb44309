"""Settings that do not fit together, or not to this host: said before the start, with the place of each value."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from edge.cli import main
from edge.commands.serve.agreement import Finding, disagreements
from edge.commands.serve.roles import services_of
from edge.commands.serve.surroundings import Host, obstacles
from edge.configuration import place
from tink.kube.certificates import builder, common_name, new_key


def params(role: str, *words: str) -> dict[str, Any]:
    command = main.get_command(main.make_context("tinkedge", [], resilient_parsing=True), role)
    assert command is not None
    with command.make_context(role, [*words, "--config", os.devnull]) as ctx:
        return dict(ctx.params)


def found(role: str, *words: str) -> list[Finding]:
    options = params(role, *words)
    return list(disagreements(services_of(role, options), options))


def here(options: Mapping[str, Any], role: str = "up", **host: Any) -> list[Finding]:
    host.setdefault("interfaces", lambda: {"lo", "eth1"})
    return list(obstacles(services_of(role, options), options, Host(**host)))


@pytest.mark.parametrize("role", ["up", "edge", "controller", "server", "apiserver", "metal3-webhook", "metal3"])
def test_defaults_fit_together(role: str) -> None:
    assert found(role) == []


@pytest.mark.parametrize(
    ("role", "words", "keys", "said"),
    [
        ("up", "--http-port 42113", ("grpc-port", "http-port"), "both would listen on port 42113"),
        ("up", "--api-port 7081", ("admin-port", "api-port"), "both would listen on port 7081"),
        ("up", "--interface lo --api-port 7080", ("api-port", "http-port"), "port 7080"),
        ("up", "--public-ip 10.0.0.1 --admin-address 10.0.0.1 --admin-port 7080", ("admin-port", "http-port"), "7080"),
        ("up", "--admin-address 0.0.0.0 --admin-port 7080", ("admin-port", "http-port"), "port 7080"),
        ("controller", "--health-address 0.0.0.0:7091", ("metrics-address", "health-address"), "port 7091"),
        ("controller", "--health-address [::]:7091", ("metrics-address", "health-address"), "port 7091"),
        ("controller", "--webhook-service a/b --health-address 9443", ("health-address", "webhook-port"), "9443"),
        ("server", "--grpc-tls-cert c", ("grpc-tls-key", "grpc-tls-cert"), "go together"),
        ("server", "--grpc-client-ca c", ("grpc-client-ca", "grpc-tls-cert"), "needs both"),
        ("server", "--agent-auth mtls", ("grpc-client-ca", "agent-auth"), "not said whose are good"),
        ("server", "--agent-auth token", ("agent-token-key", "agent-auth"), "run apart"),
        ("server", "--peer 10.0.0.2", ("peer", "reports-key"), "a key for that"),
        ("edge", "--peer 10.0.0.2", ("peer", "metadata-token-key"), "would make its own"),
        ("up", "--peer-group rack", ("peer-group", "metadata-token-key"), "would make its own"),
        ("edge", "--upstream-edge http://10.0.0.2", ("upstream-edge", "metadata-token-key"), "would make its own"),
        ("up", "--downstream-edges", ("downstream-edges", "metadata-token-key"), "would make its own"),
        ("edge", "--checkpoint-secrets --no-checkpoint", ("checkpoint-secrets", "checkpoint"), "that is not kept"),
        ("server", "--grpc-address 0.0.0.0 --grpc-address 10.0.0.9", ("grpc-address",), "leave the others out"),
        ("up", "--interface lo --grpc-address 0.0.0.0 --http-port 42113", ("grpc-port", "http-port"), "port 42113"),
        ("up", "--default-osie hook", ("default-osie", "dhcp-mode"), "--dhcp-mode auto-proxy"),
        (
            "edge",
            "--default-osie a/hook --dhcp-mode auto-proxy --namespaces b,c",
            ("default-osie", "namespaces"),
            "b, c",
        ),
        ("up", "--interface lo --public-ipv6 fd00::1", ("public-ipv6", "ipv6"), "IPv6 is not served"),
        ("up", "--interface lo --interface e --ipv6 --public-ipv6 fd00::1", ("public-ipv6", "interface"), "single"),
        ("up", "--interface lo --ipv6-router lo", ("ipv6-router", "ipv6"), "IPv6 is not served"),
        (
            "up",
            "--interface lo --ipv6 --ipv6-router eth7",
            ("ipv6-router",),
            "eth7 is no interface that faces machines",
        ),
        ("up", "--admin-address localhost", ("admin-address",), "is no IP address"),
        ("up", "--grpc-authority https://10.0.0.1:42113", ("grpc-authority",), "not a URL: write 10.0.0.1:42113"),
        ("up", "--insecure-registry http://r:5000/x", ("insecure-registry",), "write r:5000"),
        ("controller", "--webhook-url http://a", ("webhook-url",), "must be https://HOST:PORT"),
        ("controller", "--webhook-url https://a --webhook-service a/b", ("webhook-url", "webhook-service"), "not both"),
        ("controller", "--webhook-service a", ("webhook-service",), "must be NAMESPACE/NAME"),
    ],
)
def test_what_does_not_fit_is_named_with_what_to_do(role: str, words: str, keys: tuple[str, ...], said: str) -> None:
    (finding,) = found(role, *words.split())
    assert finding.keys == keys
    assert finding.is_error
    text = finding.text(lambda key: "there")
    assert said in text
    assert text.startswith(f"--{keys[0]} (there)")


@pytest.mark.parametrize(
    ("role", "words"),
    [
        ("up", "--interface eth1 --api-port 7080"),  # on loopback, and machines on eth1
        ("edge", "--http-port 42113"),  # the server that has this port is another process, or another host
        ("controller", "--health-address 7091"),  # one listener for both
        ("controller", "--health-address [::1]:7091"),
        ("up", "--http-port 6443 --disable apiserver"),
        ("up", "--interface lo --grpc-address 10.0.0.9 --http-port 42113"),
        ("controller", "--metrics-address none --health-address 7091"),
    ],
)
def test_ports_that_do_not_meet_are_no_mistake(role: str, words: str) -> None:
    assert found(role, *words.split()) == []


@pytest.mark.parametrize(
    ("role", "words"),
    [
        ("up", "--agent-token-key k"),
        ("edge", "--checkpoint-key k"),
        ("up", "--checkpoint-secrets"),
        ("edge", "--workers 2 --disable http --disable tftp"),
    ],
)
def test_what_nobody_uses_is_a_warning(role: str, words: str) -> None:
    (finding,) = found(role, *words.split())
    assert not finding.is_error


def test_interface_that_is_not_there_is_a_warning_for_it_may_come() -> None:
    options = params("edge", "--interface", "eth1", "--interface", "eht2", "--disable", "http")
    (finding,) = here(options, "edge")
    assert "there is no interface eht2 on this host (there are: eth1, lo)" in finding.message
    assert not finding.is_error


@pytest.mark.parametrize("option", ["--grpc-tls-cert", "--grpc-tls-ca", "--kubeconfig", "--manifests"])
def test_file_that_is_not_there_is_named(option: str, tmp_path: Path) -> None:
    (finding,) = here(params("server", option, str(tmp_path / "absent")), "server")
    assert finding.keys == (option.removeprefix("--"),)
    assert f"there is no {'directory' if option == '--manifests' else 'file'} {tmp_path}/absent" in finding.message


def test_data_directory_of_another_user_is_refused_with_the_command(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    options = params("up", "--data-dir", str(tmp_path))
    assert here(options) == []
    (finding,) = here(options, user=lambda: os.geteuid() + 1)
    assert finding.keys == ("data-dir",)
    assert finding.remedy.startswith("'chown ")


def test_data_directory_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for directory, said in (("file", "is no directory"), ("file/data", "can't be made in"), ("new/data", "")):
        texts = [each.message for each in here(params("up", "--data-dir", str(tmp_path / directory)))]
        assert [said in text for text in texts] == ([True] if said else [])


def test_disk_that_is_read_only_for_now_keeps_nothing_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs(tmp_path)
    fields = [*real[:8], real.f_flag | os.ST_RDONLY, *real[9:]]
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(fields))
    (finding,) = here(params("up", "--data-dir", str(tmp_path)))
    assert "read-only" in finding.message
    assert not finding.is_error


def test_certificate_that_ends_soon_is_a_warning_and_keeps_nobody_from_starting(tmp_path: Path) -> None:
    since = datetime.now(UTC)
    key, name, file = new_key(), common_name("server"), tmp_path / "tls.crt"
    made = builder(name, name, key, since, since + timedelta(days=30)).sign(key, hashes.SHA256())
    file.write_bytes(made.public_bytes(Encoding.PEM))
    options = params("server", *("--grpc-tls-cert", str(file), "--grpc-tls-ca", str(file)))
    assert here(options, "server") == []
    later = (since + timedelta(days=20)).timestamp()
    findings = here(options, "server", now=lambda: later)
    assert [(each.keys, each.is_error) for each in findings] == [(("grpc-tls-cert",), False), (("grpc-tls-ca",), False)]
    assert "ends on" in findings[0].message
    assert "restart the edges" in findings[1].remedy


def test_finding_says_where_each_value_is_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tinkedge.yaml"
    file.write_text("data-dir: /srv\n\ngrpc-tls-cert: /c\n")
    monkeypatch.setenv("TINKEDGE_LOG_LEVEL", "debug")
    root = main.make_context("tinkedge", [], resilient_parsing=True)
    command = main.get_command(root, "up")
    assert command is not None
    with command.make_context("up", ["--http-port", "80", "--config", str(file)], parent=root) as ctx:
        asked = ("grpc-tls-cert", "log-level", "http-port", "grpc-tls-key")
        assert [place(ctx, key) for key in asked] == [f"{file}:3", "env TINKEDGE_LOG_LEVEL", "flag", "default"]


# --- the commands -----------------------------------------------------------------------------------------------------


def check(file: Path, text: str, *words: str) -> Result:
    file.write_text(text)
    return CliRunner().invoke(main, ["config", "check", str(file), *words])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tinkedge.yaml"


def test_check_names_line_and_remedy_and_fails(file: Path) -> None:
    result = check(file, "interface: [lo]\ngrpc-tls-cert: /dev/null\n")
    assert result.exit_code == 1
    assert f"error: --grpc-tls-key (default), --grpc-tls-cert ({file}:2): --grpc-tls-cert and" in result.output
    assert "(tinkedge up, server)" in result.output


def test_check_warns_of_what_only_some_services_refuse_and_fails_for_these(file: Path, tmp_path: Path) -> None:
    text = f"interface: [lo]\nagent-auth: token\ndata-dir: {tmp_path}/data\n"
    result = check(file, text)
    assert result.exit_code == 0, result.output
    assert "warning: --agent-token-key (default), --agent-auth" in result.output
    assert check(file, text, "--for", "up").output == f"{file}: good, 3 values\n"
    apart = check(file, text, "--for", "edge", "--for", "server")
    assert (apart.exit_code, apart.output.count("error:")) == (1, 1)


def test_check_warns_of_an_interface_and_does_not_fail(file: Path) -> None:
    result = check(file, "interface: [lo, absent0]\n")
    assert result.exit_code == 0
    assert f"warning: --interface ({file}:1): there is no interface absent0" in result.output


def test_check_says_nothing_of_defaults_unless_asked_for_a_service(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKEDGE_ADMIN_ADDRESS", "localhost")
    assert check(file, "log-level: debug\n").exit_code == 0
    result = check(file, "log-level: debug\n", "--for", "edge")
    assert result.exit_code == 1
    assert "error: --admin-address (env TINKEDGE_ADMIN_ADDRESS): 'localhost' is no IP address" in result.output


def test_service_refuses_at_its_start_what_the_check_refuses(file: Path) -> None:
    file.write_text("interface: [lo]\ngrpc-tls-cert: /dev/null\nhttp-port: 42113\n")
    result = subprocess.run(
        [sys.executable, "-m", "edge.cli", "up", "--config", str(file)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert f"--grpc-tls-cert ({file}:2)" in result.stderr
    assert f"--http-port ({file}:3): both would listen on port 42113" in result.stderr


# --- whose objects it is about ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "selector",
    [
        *("site=berlin", "site==berlin", "site!=berlin", "site", "!spare", "site=", "a/b=c, d in (e,f) ,!g"),
        *("example.com/site notin (berlin, ulm)", "a in ()", "x in (,a)"),
    ],
)
def test_selector_that_kubectl_takes_is_taken(selector: str) -> None:
    assert params("edge", "--hardware-selector", selector)["hardware_selector"] == selector
    assert params("server", "--hardware-selector", selector)["hardware_selector"] == selector


@pytest.mark.parametrize("selector", ["=berlin", "site in berlin", "site=a b", "a,,b", "site=(a)", "a=-", "x" * 3000])
def test_selector_that_can_not_be_is_refused_before_the_start(selector: str) -> None:
    with pytest.raises(click.BadParameter, match="is no label selector"):
        params("edge", "--hardware-selector", selector)


def test_no_controller_goes_by_labels_of_hardware() -> None:
    """It would give up the Workflows of all others."""
    assert not {"hardware_selector"} & (params("controller").keys() | params("up").keys() | params("metal3").keys())


@pytest.mark.parametrize("role", ["up", "edge", "controller", "server", "metal3"])
def test_namespaces_are_each_named_once(role: str) -> None:
    assert params(role, "--namespaces", "berlin, ulm,berlin")["namespaces"] == ("berlin", "ulm")
    assert params(role)["namespaces"] == ()
    with pytest.raises(click.BadParameter, match="is no name of a namespace"):
        params(role, "--namespaces", "Berlin")


def test_osie_of_a_namespace_that_is_looked_at_is_fine() -> None:
    assert not found("edge", *["--default-osie", "a/hook", "--dhcp-mode", "auto-proxy", "--namespaces", "b,a"])
