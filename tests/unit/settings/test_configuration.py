"""Settings from flags, variables and the file, as `tinkedge` itself reads them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from edge.cli import COMMANDS, main
from edge.settings import (
    PREFIX,
    SERVICES,
    Group,
    group_of,
    in_file,
    key,
    place,
    settable,
    unknown_variables,
    variable,
    variable_problems,
)
from edge.settings.checks import Finding, Host, contradictions, obstacles
from edge.settings.model import services_of
from tink.kube.certificates import builder, common_name, new_key

ROOT = Path(__file__).resolve().parents[3]


def command_named(name: str) -> Any:
    return main.command_named(name)  # type: ignore[attr-defined]


def params(words: str, *options: str | Path) -> dict[str, Any]:
    """What a command makes of these options."""
    command = command_named(words.split()[0])
    for name in words.split()[1:]:
        command = command.commands[name]
    with command.make_context(words, [*map(str, options)], parent=click.Context(main)) as ctx:
        return dict(ctx.params)


def walk() -> Iterator[tuple[str, click.Command]]:
    """Every command that has options, by the words that call it."""
    for name in COMMANDS:
        command = command_named(name)
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {each}", child) for each, child in command.commands.items())


def run(*args: str | Path, **env: str) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args], env={"TINKEDGE_CONFIG": "", **env})


def shown(*args: str | Path, **env: str) -> dict[str, dict[str, object]]:
    result = run("config", "show", "-o", "json", *args, **env)
    assert result.exit_code == 0, result.output
    found: dict[str, dict[str, object]] = json.loads(result.output)
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tinkedge.yaml"


def test_every_option_of_every_command_is_the_name_its_name() -> None:
    wrong = []
    for name, command in walk():
        for option in settable(command):
            flag = next(each for each in option.opts if each.startswith("--"))
            wanted = PREFIX + flag[2:].upper().replace("-", "_")
            names = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
            if not names or names[0] != wanted:
                wrong.append(f"{name} {flag}: {names}")
    assert not wrong


def test_variables_of_options_that_python_calls_otherwise_are_heard() -> None:
    assert shown("metal3", TINKEDGE_OSIE="x86_64=hook")["osie"]["value"] == ["x86_64=hook"]
    assert shown("metal3", TINKEDGE_NETBOOT_UNMANAGED="1")["netboot-unmanaged"]["where"] == "TINKEDGE_NETBOOT_UNMANAGED"


def test_every_option_of_a_service_has_its_group_in_the_help() -> None:
    commands = {name: command_named(name) for name in SERVICES if name != "agent"}  # its help is one short list
    groups = {
        (name, key(option)): group_of(command, option)
        for name, command in commands.items()
        for option in settable(command)
    }
    assert not [each for each, group in groups.items() if group == Group.OTHER]
    assert [option for (name, option), group in groups.items() if (name, group) == ("up", Group.FIRST)] == [
        *("interface", "public-ip", "data-dir", "kubeconfig", "manifests", "dhcp-mode", "osie-dir", "disable"),
        "log-level",
    ]


def test_help_has_what_everybody_needs_first() -> None:
    text = run("up", "--help").output
    assert text.index("First of all:") < text.index("--interface") < text.index("Network:") < text.index("Advanced:")
    assert text.index("--log-level") < text.index("Network:") < text.index("--known-by-address")


def test_flag_is_stronger_than_variable_than_file_than_default(file: Path) -> None:
    file.write_text("http-port: 81\napi-port: 82\nadmin-port: 83\n")
    found = shown("up", "--config", file, "--http-port", "91", TINKEDGE_HTTP_PORT="92", TINKEDGE_API_PORT="93")
    assert found["http-port"] == {"value": "91", "source": "flag", "where": ""}
    assert found["api-port"] == {"value": "93", "source": "env", "where": "TINKEDGE_API_PORT"}
    assert found["admin-port"] == {"value": "83", "source": "file", "where": f"{file}:3"}
    assert found["grpc-port"] == {"value": 42113, "source": "default", "where": ""}


def test_variable_names_the_file(file: Path) -> None:
    file.write_text("interface: [eth1, eth2=10.0.0.1]\n")
    found = shown("up", TINKEDGE_CONFIG=str(file))
    assert found["interface"] == {"value": ["eth1", "eth2=10.0.0.1"], "source": "file", "where": f"{file}:1"}


def test_what_is_under_a_commands_name_is_for_it_alone(file: Path) -> None:
    file.write_text("log-level: info\nedge:\n  log-level: debug\n  disable: [tftp]\n")
    assert shown("edge", "--config", file)["log-level"]["value"] == "debug"
    assert shown("controller", "--config", file)["log-level"]["value"] == "info"
    assert shown("controller", "--config", file)["disable"]["value"] == []


def test_all_that_is_wrong_is_said_at_once_with_its_line(file: Path) -> None:
    file.write_text(
        "http-port: 70800\nhtp-port: 80\nlog-level:\nresync: 0\ntoken: abc\nfast-path: perhaps\n"
        "http-port: 80\nosie-dir: {a: b}\napi-port: [1, 2]\nedge:\n  resync: 5\n"
    )
    result = run("config", "check", file)
    assert result.exit_code == 1
    said = [line.removeprefix(f"{file}:") for line in result.output.splitlines()]
    assert [line.split(" ")[0] for line in said] == [f"{number}:" for number in (*range(1, 10), 11)]
    assert "do you mean http-port?" in said[1]
    assert "is a secret" in said[4]
    assert "stands in line 1, too" in said[6]
    assert "tinkedge edge has no such option" in said[9]


@pytest.mark.parametrize(
    ("text", "said"),
    [("a: [\n", "is no YAML"), ("- a\n", "must be lines"), ("? [a]\n: b\n", "a key must be a word")],
)
def test_what_is_no_file_of_settings_is_refused(file: Path, text: str, said: str) -> None:
    file.write_text(text)
    result = run("config", "check", file)
    assert result.exit_code == 1
    assert said in result.output
    assert f"{file}:" in result.output


def test_service_does_not_start_with_a_wrong_file_and_says_all_of_it(file: Path) -> None:
    file.write_text("http-prt: 80\napi-port: 0\n")
    result = run("up", "--config", file)
    assert result.exit_code == 2
    assert f"{file}:1: http-prt: is not known; do you mean http-port?" in result.output
    assert f"{file}:2: api-port:" in result.output


def test_keys_of_other_services_are_fine(file: Path) -> None:
    file.write_text("resync: 5\nserver: 10.0.0.1:42113\nhttp-port: 80\n")
    assert shown("controller", "--config", file)["scheduled-timeout"]["source"] == "default"
    assert run("config", "check", file).exit_code == 0


def test_values_are_words_as_on_the_command_line_and_not_yaml_1_1(file: Path) -> None:
    file.write_text("lease-namespace: no\ngrpc-authority: 22:22\nfast-path: off\nmetadata-nat: [10.0.0.1, 10.0.0.2]\n")
    found = params("up", "--config", file)
    assert (found["lease_namespace"], found["grpc_authority"], found["fast_path"]) == ("no", "22:22", False)
    assert [str(each) for each in found["metadata_nat"]] == ["10.0.0.1/32", "10.0.0.2/32"]


def test_tools_take_where_the_service_is_and_nothing_else(file: Path) -> None:
    file.write_text("data-dir: /srv/t\ninterface: [eth1, eth2]\nhtp-port: 1\npassphrase-file: /srv/p\n")
    found = params("backup", "--config", file, "f")
    assert (found["data_dir"], found["passphrase_file"]) == (Path("/srv/t"), None)


@pytest.mark.parametrize(
    "words", ["users list", "users revoke alice", "users role alice view", "bundle load BUNDLE --key KEY"]
)
def test_subcommands_work_in_the_data_directory_of_the_service(file: Path, tmp_path: Path, words: str) -> None:
    for name in ("BUNDLE", "KEY"):
        (tmp_path / name).touch()
    file.write_text("data-dir: /srv/t\n")
    group, name, *rest = [str(tmp_path / word) if word.isupper() else word for word in words.split()]
    assert params(f"{group} {name}", "--config", file, *rest)["data_dir"] == Path("/srv/t")


def test_doctor_takes_what_can_be_left_out() -> None:
    commands = (command_named(name) for name in ("up", "doctor"))
    up, doctor = (next(each for each in command.params if "--disable" in each.opts) for command in commands)
    assert set(up.type.choices) == set(doctor.type.choices)


def test_doctor_looks_at_what_is_set_for_the_service(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(
        "interface: [lo=127.0.0.1]\ngrpc-port: 42199\nhttp-port: 7999\ndhcp-mode: off\n"
        "disable: [tftp, controller]\nmanifests: /srv/m\nkubeconfig: /srv/k\n"
    )
    found = params("doctor", "--config", file)
    assert (found["manifests"], found["kubeconfig"]) == (Path("/srv/m"), Path("/srv/k"))
    monkeypatch.chdir(file.parent)
    result = CliRunner().invoke(main, ["doctor", "--no-lab", "--json", "--config", str(file), "--data-dir", "d"])
    names = [found["name"] for found in json.loads(result.stdout)["findings"]]
    assert [name for name in names if name.startswith("port ")][:2] == [
        "port 7999/tcp (HTTP) on lo",
        "port 42199/tcp (gRPC) on lo",
    ]


def test_secrets_are_not_shown() -> None:
    assert shown("agent", TINKEDGE_TOKEN="hidden")["token"]["value"] == "(not shown)"


def test_example_is_the_generators_and_has_every_key_once() -> None:
    text = run("config", "init").output
    kept = ROOT / "deploy" / "systemd" / "tinkedge.yaml"
    assert kept.read_text() == text, f"tinkedge config init > {kept}"
    keys = {key(option) for name in SERVICES if name != "agent" for option in settable(command_named(name))}
    lines = [line[1:].split(":")[0] for line in text.splitlines() if line[:1] == "#" and line[1:2].isalpha()]
    assert sorted(lines) == sorted(keys)


def test_example_with_its_values_uncommented_is_good(file: Path) -> None:
    lines = run("config", "init").output.splitlines()
    values = [line[1:] for line in lines if line[:1] == "#" and line[1:2].isalpha() and "<" not in line]
    file.write_text("\n".join(values))
    result = run("config", "check", file)
    assert result.exit_code == 0, result.output


def test_init_does_not_overwrite_a_file(file: Path) -> None:
    file.write_text("http-port: 80\n")
    assert run("config", "init", file).exit_code == 1
    assert file.read_text() == "http-port: 80\n"


def test_variables_that_nobody_knows_are_named_with_the_nearest() -> None:
    up = command_named("up")
    environment = {"TINKEDGE_DATA_DRI": "/x", "TINKEDGE_RESYNC": "5", "TINKEDGE_DATA_DIR": "/y", "TINKEDGE_CONFIG": "z"}
    (sentence,) = unknown_variables(environment, up, SERVICES, command_named).values()
    assert "TINKEDGE_DATA_DRI" in sentence
    assert "TINKEDGE_DATA_DIR?" in sentence
    assert variable(next(settable(up))) == "TINKEDGE_INTERFACE"


def all_params(command: click.Command) -> Iterator[click.Parameter]:
    yield from command.params
    if isinstance(command, click.Group):
        for child in command.commands.values():
            yield from all_params(child)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_path_is_of_the_type_that_expands_a_home_directory(name: str) -> None:
    for param in all_params(command_named(name)):
        kind = param.type.types if isinstance(param.type, click.Tuple) else [param.type]
        assert not any(type(each) is click.Path for each in kind), param.name


def test_home_directory_is_expanded_in_flags_variables_and_the_file(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert given("up", "--data-dir", "~/d")["data_dir"] == tmp_path / "d"
    assert given("up", "--data-dir", "~root/d")["data_dir"] == Path("/root/d")
    assert given("up", "--data-dir", "./~/d")["data_dir"] == Path("~/d")
    file.write_text("data-dir: ~/file\n")
    assert params("up", "--config", str(file))["data_dir"] == tmp_path / "file"
    monkeypatch.setenv("TINKEDGE_DATA_DIR", "~/variable")
    assert given("up")["data_dir"] == tmp_path / "variable"
    result = run("config", "check", "~nobody-of-that-name/x")
    assert "no such user's home directory" in result.output
    assert result.exit_code == 2


# --- settings that do not fit together, or not to this host


def given(role: str, *words: str) -> dict[str, Any]:
    return params(role, *words, "--config", os.devnull)


def disagreeing(role: str, *words: str) -> list[Finding]:
    options = given(role, *words)
    return list(contradictions(services_of(role, options), options))


def here(options: Mapping[str, Any], role: str = "up", **host: Any) -> list[Finding]:
    host.setdefault("interfaces", lambda: {"lo", "eth1"})
    return list(obstacles(services_of(role, options), options, Host(**host)))


OSIE = "--default-osie a/hook --dhcp-mode auto-proxy"


@pytest.mark.parametrize("role", ["up", "edge", "controller", "server", "apiserver", "metal3-webhook", "metal3"])
def test_defaults_fit_together(role: str) -> None:
    assert disagreeing(role) == []


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
        ("server", "--agent-auth mtls", ("grpc-client-ca", "agent-auth"), "no authority for them is given"),
        ("server", "--agent-auth token", ("agent-token-key", "agent-auth"), "run apart"),
        ("server", "--peer 10.0.0.2", ("peer", "reports-key"), "share a key with them"),
        ("edge", "--peer 10.0.0.2", ("peer", "metadata-token-key"), "would make its own"),
        ("up", "--peer-group rack", ("peer-group", "metadata-token-key"), "would make its own"),
        ("edge", "--upstream-edge http://10.0.0.2", ("upstream-edge", "metadata-token-key"), "would make its own"),
        ("up", "--downstream-edges", ("downstream-edges", "metadata-token-key"), "would make its own"),
        ("edge", "--checkpoint-secrets --no-checkpoint", ("checkpoint-secrets", "checkpoint"), "and there is none"),
        ("server", "--grpc-address 0.0.0.0 --grpc-address 10.0.0.9", ("grpc-address",), "leave the others out"),
        ("up", "--interface lo --grpc-address 0.0.0.0 --http-port 42113", ("grpc-port", "http-port"), "port 42113"),
        ("up", "--default-osie hook", ("default-osie", "dhcp-mode"), "--dhcp-mode auto-proxy"),
        ("edge", f"{OSIE} --namespaces b,c", ("default-osie", "namespaces"), "b, c"),
        ("up", "--interface lo --public-ipv6 fd00::1", ("public-ipv6", "ipv6"), "IPv6 is not served"),
        ("up", "--interface lo --interface e --ipv6 --public-ipv6 fd00::1", ("public-ipv6", "interface"), "single"),
        ("up", "--interface lo --ipv6-router lo", ("ipv6-router", "ipv6"), "IPv6 is not served"),
        ("up", "--interface lo --ipv6 --ipv6-router eth7", ("ipv6-router",), "is no interface that faces machines"),
        ("up", "--admin-address localhost", ("admin-address",), "is no IP address"),
        ("up", "--grpc-authority https://10.0.0.1:42113", ("grpc-authority",), "not a URL: write 10.0.0.1:42113"),
        ("up", "--insecure-registry http://r:5000/x", ("insecure-registry",), "write r:5000"),
        ("controller", "--webhook-url http://a", ("webhook-url",), "must be https://HOST:PORT"),
        ("controller", "--webhook-url https://a --webhook-service a/b", ("webhook-url", "webhook-service"), "not both"),
        ("controller", "--webhook-service a", ("webhook-service",), "must be NAMESPACE/NAME"),
    ],
)
def test_what_does_not_fit_is_named_with_what_to_do(role: str, words: str, keys: tuple[str, ...], said: str) -> None:
    (finding,) = disagreeing(role, *words.split())
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
        ("edge", f"{OSIE} --namespaces b,a"),
    ],
)
def test_ports_that_do_not_meet_and_an_osie_of_a_followed_namespace_are_no_mistake(role: str, words: str) -> None:
    assert disagreeing(role, *words.split()) == []


@pytest.mark.parametrize(
    ("role", "words"),
    [
        *(("up", "--agent-token-key k"), ("edge", "--checkpoint-key k"), ("up", "--checkpoint-secrets")),
        ("edge", "--workers 2 --disable http --disable tftp"),
    ],
)
def test_what_nobody_uses_is_a_warning(role: str, words: str) -> None:
    (finding,) = disagreeing(role, *words.split())
    assert not finding.is_error


def test_interface_that_is_not_there_is_a_warning_for_it_may_come() -> None:
    options = given("edge", "--interface", "eth1", "--interface", "eht2", "--disable", "http")
    (finding,) = here(options, "edge")
    assert "there is no interface eht2 on this host (there are: eth1, lo)" in finding.message
    assert not finding.is_error


@pytest.mark.parametrize("option", ["--grpc-tls-cert", "--grpc-tls-ca", "--kubeconfig", "--manifests"])
def test_file_that_is_not_there_is_named(option: str, tmp_path: Path) -> None:
    (finding,) = here(given("server", option, str(tmp_path / "absent")), "server")
    assert finding.keys == (option.removeprefix("--"),)
    assert f"there is no {'directory' if option == '--manifests' else 'file'} {tmp_path}/absent" in finding.message


def test_authority_of_a_registry_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("no PEM")
    for name, said in (("absent", "there is no file"), ("bad", "bad")):
        (finding, *_) = here(given("edge", "--registry-ca", f"reg.example:5000={tmp_path}/{name}"), "edge")
        assert (finding.keys, finding.is_error) == (("registry-ca",), False), "machines boot without it"
        assert said in finding.message
    for wrong in ("https://reg.example=file", "reg.example", "=file", "reg.example="):
        with pytest.raises(click.UsageError, match="must be like registry"):
            given("edge", "--registry-ca", wrong)


def test_data_directory_of_another_user_is_refused_with_the_command(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    options = given("up", "--data-dir", str(tmp_path))
    assert here(options) == []
    (finding,) = here(options, user=lambda: os.geteuid() + 1)
    assert finding.keys == ("data-dir",)
    assert ("chown -R " if not os.geteuid() else "run this as ") in finding.remedy


def test_data_directory_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for directory, said in (("file", "is no directory"), ("file/data", "can't be made in"), ("new/data", "")):
        texts = [each.message for each in here(given("up", "--data-dir", str(tmp_path / directory)))]
        assert [said in text for text in texts] == ([True] if said else [])


def test_disk_that_is_read_only_for_now_keeps_nothing_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs(tmp_path)
    fields = [*real[:8], real.f_flag | os.ST_RDONLY, *real[9:]]
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(fields))
    (finding,) = here(given("up", "--data-dir", str(tmp_path)))
    assert "read-only" in finding.message
    assert not finding.is_error


def test_certificate_that_ends_soon_is_a_warning_and_keeps_nobody_from_starting(tmp_path: Path) -> None:
    since = datetime.now(UTC)
    key, name, file = new_key(), common_name("server"), tmp_path / "tls.crt"
    made = builder(name, name, key, since, timedelta(days=30)).sign(key, hashes.SHA256())
    file.write_bytes(made.public_bytes(Encoding.PEM))
    options = given("server", *("--grpc-tls-cert", str(file), "--grpc-tls-ca", str(file)))
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
    with command_named("up").make_context("up", ["--http-port", "80", "--config", str(file)], parent=root) as ctx:
        asked = ("grpc-tls-cert", "log-level", "http-port", "grpc-tls-key")
        assert [place(ctx, key) for key in asked] == [f"{file}:3", "env TINKEDGE_LOG_LEVEL", "flag", "default"]


# --- the commands -----------------------------------------------------------------------------------------------------


def check(file: Path, text: str, *words: str) -> Result:
    file.write_text(text)
    return CliRunner().invoke(main, ["config", "check", str(file), *words])


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
    assert check(file, text, "--for", "up").output == f"{file}: good, 3 values: interface, agent-auth, data-dir\n"
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
    command = [sys.executable, "-m", "edge.cli", "up", "--config", file]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
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
    assert given("edge", "--hardware-selector", selector)["hardware_selector"] == selector
    assert given("server", "--hardware-selector", selector)["hardware_selector"] == selector


@pytest.mark.parametrize("selector", ["=berlin", "site in berlin", "site=a b", "a,,b", "site=(a)", "a=-", "x" * 3000])
def test_selector_that_can_not_be_is_refused_before_the_start(selector: str) -> None:
    with pytest.raises(click.BadParameter, match="is no label selector"):
        given("edge", "--hardware-selector", selector)


def test_no_controller_goes_by_labels_of_hardware() -> None:
    """It would give up the Workflows of all others."""
    assert "hardware_selector" not in (given("controller").keys() | given("up").keys() | given("metal3").keys())


@pytest.mark.parametrize("role", ["up", "edge", "controller", "server", "metal3"])
def test_namespaces_are_each_named_once(role: str) -> None:
    assert given(role, "--namespaces", "berlin, ulm,berlin")["namespaces"] == ("berlin", "ulm")
    assert given(role)["namespaces"] == ()
    with pytest.raises(click.BadParameter, match="is no name of a namespace"):
        given(role, "--namespaces", "Berlin")


# --- what a newcomer gets wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("data-dir: state", "'state' is a relative path, and depends on the directory in which tinkedge is started"),
        ("osie-dir: ./osies", "write all of it, such as {cwd}/osies"),
        ("kubeconfig: ../kubeconfig", "write all of it, such as {parent}/kubeconfig"),
        ("registry-ca: [r.example.org=ca.pem]", "'ca.pem' is a relative path"),
        ("kubeconfig: C:\\kube", "is a path of Windows; here, paths begin with '/'"),
        ("data-dir: ''", "the path is empty: name one, or leave the option out"),
    ],
)
def test_relative_path_in_the_file_is_refused_by_check_and_by_the_service(
    file: Path, monkeypatch: pytest.MonkeyPatch, line: str, said: str
) -> None:
    monkeypatch.chdir(file.parent)
    file.write_text(f"http-port: 7080\n{line}\n")
    said = said.format(cwd=file.parent, parent=file.parent.parent)
    for result in (run("config", "check", file), run("up", "--config", file)):
        assert result.exit_code in (1, 2)
        assert said in result.output
        assert f"{file}:2: {line.partition(':')[0]}: " in result.output


def test_path_of_a_home_directory_is_good_in_the_file_and_a_relative_one_on_the_command_line(file: Path) -> None:
    file.write_text("manifests: ~/manifests\n")
    assert params("up", "--config", file)["manifests"] == Path.home() / "manifests"
    assert params("up", "--config", "/dev/null", "--manifests", "m")["manifests"] == Path("m")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("TINKEDGE_HTTP_PORT", "abc", "'--http-port' (env TINKEDGE_HTTP_PORT): 'abc' is no port from 1 to 65535"),
        ("TINKEDGE_WORKERS", "0", "'--workers' (env TINKEDGE_WORKERS): '0' is no number from 1 to 64"),
        ("TINKEDGE_SCHEDULED_TIMEOUT", "nan", "(env TINKEDGE_SCHEDULED_TIMEOUT): 'nan' is no number greater than 0"),
        ("TINKEDGE_ACTION_TIMEOUT", "-1", "(env TINKEDGE_ACTION_TIMEOUT): '-1' is no number from 0 on"),
        ("TINKEDGE_DHCP_MODE", "on", "'--dhcp-mode' (env TINKEDGE_DHCP_MODE): 'on' is not one of 'reservation'"),
    ],
)
def test_value_of_a_variable_is_refused_with_its_name_and_what_is_valid(name: str, value: str, said: str) -> None:
    result = run("up", "--config", "/dev/null", **{name: value})
    assert (result.exit_code, said in result.output) == (2, True), result.output


def test_value_of_a_flag_is_refused_without_a_variable_and_that_of_the_file_with_its_line(file: Path) -> None:
    assert "'--http-port': 'abc' is no port from 1 to 65535" in run("up", "--http-port", "abc").output
    file.write_text("\nhttp-port: abc\n")
    assert f"{file}:2: http-port: 'abc' is no port from 1 to 65535" in run("up", "--config", file).output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("upp", "No such command 'upp'. Did you mean 'up'?"),
        ("contoller", "Did you mean 'controller' or 'convert'?"),
        ("config chek", "No such command 'chek'. Did you mean 'check'?"),
        ("users lst", "Did you mean 'list'?"),
        ("xyzzy", "No such command 'xyzzy'.\n"),
        ("start", "Did you mean 'up'?"),
        ("version", "Did you mean '--version'?"),
    ],
)
def test_unknown_command_is_named_with_the_nearest(words: str, said: str) -> None:
    result = run(*words.split())
    assert (result.exit_code, said in result.output) == (2, True), result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("convert hw.yaml", "(hw.yaml): did you mean '-f hw.yaml'?"),
        ("iso node-1", "did you mean '--hardware node-1'?"),
        ("iso 52:54:00:00:00:01", "did you mean '--mac 52:54:00:00:00:01'?"),
        ("crds metal3", "crds takes options alone, which begin with '-'"),
        ("render", "Missing option '-f' / '--filename'. File or directory with the Hardware"),
    ],
)
def test_word_in_the_place_of_an_option_is_led_to_the_option(words: str, said: str) -> None:
    result = run(*words.split())
    assert (result.exit_code, said in result.output) == (2, True), result.output


def test_check_counts_the_values_and_names_them(file: Path) -> None:
    assert check(file, "http-port: 80\n").output == f"{file}: good, 1 value: http-port\n"
    text = check(file, "http-port: 80\nedge:\n  log-level: debug\n").output
    assert text == f"{file}: good, 2 values: http-port, log-level (for edge)\n"
    assert "sets nothing; 'tinkedge config init' prints every key" in check(file, "# http-port: 80\n").output


def test_missing_file_of_settings_is_an_error_that_says_how_to_make_one(file: Path) -> None:
    assert f"there is no such file; 'tinkedge config init {file}' writes one" in run("config", "check", file).output
    assert "is a directory: name the file in it" in run("config", "check", file.parent).output
    assert "is there already, and is not overwritten" in run("config", "init", file.parent).output
    assert f"there is no directory {file}" in run("config", "init", file / "x").output


def test_check_warns_of_a_variable_that_no_command_reads(file: Path) -> None:
    file.write_text("http-port: 80\n")
    result = run("config", "check", file, TINKEDGE_INTERFACES="eth1")
    assert result.exit_code == 0
    assert "warning: the variable TINKEDGE_INTERFACES is no option, and does nothing; do you mean " in result.output
    assert "TINKEDGE_INTERFACE? (the environment): correct its name, or remove it" in result.output


def variables(file: Path, text: str, **environment: str) -> list[str]:
    file.write_text(text)
    return [each.text for each in variable_problems(environment, command_named("up"), command_named, file)]


def test_file_of_the_units_is_looked_at_as_systemd_reads_it(file: Path) -> None:
    good = '# TINKEDGE_OLD=1\n\nTINKEDGE_DATA_DIR="/srv/d"\nPATH=x\nTINKEDGE_PEER=10.0.0.1 10.0.0.2\n'
    assert variables(file, good) == []
    (unknown,) = variables(file, "\nTINKEDGE_INTERFACES=eth1\n")
    assert f"do you mean TINKEDGE_INTERFACE? ({file}:2)" in unknown
    (exported,) = variables(file, "export TINKEDGE_HTTP_PORT=80\n")
    assert f"systemd ignores the line of TINKEDGE_HTTP_PORT, because it begins with 'export' ({file}:1)" in exported
    (relative,) = variables(file, "TINKEDGE_DATA_DIR=state\n")
    assert "TINKEDGE_DATA_DIR: 'state' is a relative path" in relative
    (port,) = variables(file, "TINKEDGE_HTTP_PORT=abc\n")
    assert port == f"TINKEDGE_HTTP_PORT: 'abc' is no port from 1 to 65535 ({file}:1): correct its value"


def test_file_of_the_units_that_is_not_there_is_no_problem_and_one_that_is_no_file_is(tmp_path: Path) -> None:
    assert [*variable_problems({}, command_named("up"), command_named, tmp_path / "none")] == []
    (problem,) = variable_problems({}, command_named("up"), command_named, tmp_path)
    assert "can't be read: Is a directory" in problem.text


# --- doctor takes the options of up -----------------------------------------------------------------------------------


def test_doctor_has_every_option_of_up_with_its_variable_and_its_key() -> None:
    of_up = {key(option): option for option in settable(command_named("up"))}
    of_doctor = {key(option): option for option in settable(command_named("doctor"))}
    assert not set(of_up) - set(of_doctor)
    for name, option in of_up.items():
        assert of_doctor[name].envvar == option.envvar
        assert (of_doctor[name].multiple, of_doctor[name].default) == (option.multiple, option.default)
        assert in_file("doctor", of_doctor[name]) == in_file("up", option)


def test_doctor_takes_an_option_as_flag_variable_and_from_the_part_of_up_in_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("syslog: 'on'\nup:\n  insecure-registry: [r.example.org]\nedge:\n  log-level: debug\n")
    monkeypatch.setenv("TINKEDGE_LOG_LEVEL", "warning")
    found = params("doctor", "--config", file, "--allow-upstream", "10.0.0.0/8")
    assert (found["syslog"], found["insecure_registry"], found["log_level"]) == ("on", ("r.example.org",), "warning")
    assert str(found["allow_upstream"][0][0]) == "10.0.0.0/8"


@pytest.mark.parametrize("name", ["probe", "json", "lab", "cache-dir"])
def test_options_of_doctor_alone_are_no_settings(file: Path, name: str) -> None:
    file.write_text(f"{name}: true\n")
    assert f"{name}: is not known" in run("doctor", "--config", file).output


def test_help_of_doctor_lists_its_own_options_and_leads_to_those_of_up() -> None:
    text = run("doctor", "--help").output
    assert text.index("--probe") < text.index("Options of `tinkedge up`:") < text.index("--interface")
    assert "see `tinkedge up --help`" in text
    assert "--grpc-connections-per-address" not in text
