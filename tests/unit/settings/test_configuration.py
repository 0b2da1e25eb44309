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
from edge.settings.checks import SettingsFinding, ThisHost, contradictions, obstacles
from edge.settings.model import services_of
from tink.kube.certificates import builder, common_name, new_key

ROOT = Path(__file__).resolve().parents[3]


def command_named(name: str) -> Any:
    return main.command_named(name)  # type: ignore[attr-defined]


def params(words: str, *options: str | Path) -> dict[str, Any]:
    """Return the parameters that a command gets from these options."""
    command = command_named(words.split()[0])
    for name in words.split()[1:]:
        command = command.commands[name]
    with command.make_context(words, [*map(str, options)], parent=click.Context(main)) as ctx:
        return dict(ctx.params)


def walk() -> Iterator[tuple[str, click.Command]]:
    """Yield every command that has options, with the words that call it."""
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


def test_every_option_has_the_variable_of_its_name() -> None:
    wrong = []
    for name, command in walk():
        for option in settable(command):
            flag = next(each for each in option.opts if each.startswith("--"))
            wanted = PREFIX + flag[2:].upper().replace("-", "_")
            names = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
            if not names or names[0] != wanted:
                wrong.append(f"{name} {flag}: {names}")
    assert not wrong


def test_variable_is_named_after_the_flag_and_not_the_parameter() -> None:
    assert shown("metal3", TINKEDGE_OSIE="x86_64=hook")["osie"]["value"] == ["x86_64=hook"]
    assert shown("metal3", TINKEDGE_NETBOOT_UNMANAGED="1")["netboot-unmanaged"]["where"] == "TINKEDGE_NETBOOT_UNMANAGED"


def test_every_option_of_a_service_has_a_group_in_the_help() -> None:
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


def test_help_lists_the_most_used_options_first() -> None:
    text = run("up", "--help").output
    assert text.index("First of all:") < text.index("--interface") < text.index("Network:") < text.index("Advanced:")
    assert text.index("--log-level") < text.index("Network:") < text.index("--known-by-address")


def test_flag_wins_over_variable_over_file_over_default(file: Path) -> None:
    file.write_text("http-port: 81\napi-port: 82\nadmin-port: 83\n")
    found = shown("up", "--config", file, "--http-port", "91", TINKEDGE_HTTP_PORT="92", TINKEDGE_API_PORT="93")
    assert found["http-port"] == {"value": "91", "source": "flag", "where": ""}
    assert found["api-port"] == {"value": "93", "source": "env", "where": "TINKEDGE_API_PORT"}
    assert found["admin-port"] == {"value": "83", "source": "file", "where": f"{file}:3"}
    assert found["grpc-port"] == {"value": 42113, "source": "default", "where": ""}


def test_variable_can_name_the_settings_file(file: Path) -> None:
    file.write_text("interface: [eth1, eth2=10.0.0.1]\n")
    found = shown("up", TINKEDGE_CONFIG=str(file))
    assert found["interface"] == {"value": ["eth1", "eth2=10.0.0.1"], "source": "file", "where": f"{file}:1"}


def test_section_applies_to_its_command_only(file: Path) -> None:
    file.write_text("log-level: info\nedge:\n  log-level: debug\n  disable: [tftp]\n")
    assert shown("edge", "--config", file)["log-level"]["value"] == "debug"
    assert shown("controller", "--config", file)["log-level"]["value"] == "info"
    assert shown("controller", "--config", file)["disable"]["value"] == []


def test_check_reports_all_mistakes_at_once_with_their_lines(file: Path) -> None:
    file.write_text(
        "http-port: 70800\nhtp-port: 80\nlog-level:\nresync: 0\ntoken: abc\nfast-path: perhaps\n"
        "http-port: 80\nosie-dir: {a: b}\napi-port: [1, 2]\nedge:\n  resync: 5\n"
    )
    result = run("config", "check", file)
    assert result.exit_code == 1
    reported = [line.removeprefix(f"{file}:") for line in result.output.splitlines()]
    assert [line.split(" ")[0] for line in reported] == [f"{number}:" for number in (*range(1, 10), 11)]
    assert "do you mean http-port?" in reported[1]
    assert "is a secret" in reported[4]
    assert "stands in line 1, too" in reported[6]
    assert "tinkedge edge has no such option" in reported[9]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a: [\n", "is not YAML"), ("- a\n", "must be lines"), ("? [a]\n: b\n", "a key must be a word")],
)
def test_file_that_is_not_a_yaml_mapping_is_refused(file: Path, text: str, expected: str) -> None:
    file.write_text(text)
    result = run("config", "check", file)
    assert result.exit_code == 1
    assert expected in result.output
    assert f"{file}:" in result.output


def test_service_with_a_wrong_file_reports_all_mistakes_and_does_not_start(file: Path) -> None:
    file.write_text("http-prt: 80\napi-port: 0\n")
    result = run("up", "--config", file)
    assert result.exit_code == 2
    assert f"{file}:1: http-prt: is not known; do you mean http-port?" in result.output
    assert f"{file}:2: api-port:" in result.output


def test_keys_of_other_services_are_ignored(file: Path) -> None:
    file.write_text("resync: 5\nserver: 10.0.0.1:42113\nhttp-port: 80\n")
    assert shown("controller", "--config", file)["scheduled-timeout"]["source"] == "default"
    assert run("config", "check", file).exit_code == 0


def test_values_are_texts_as_on_the_command_line_and_not_yaml_1_1(file: Path) -> None:
    file.write_text("lease-namespace: no\ngrpc-authority: 22:22\nfast-path: off\nmetadata-nat: [10.0.0.1, 10.0.0.2]\n")
    found = params("up", "--config", file)
    assert (found["lease_namespace"], found["grpc_authority"], found["fast_path"]) == ("no", "22:22", False)
    assert [str(each) for each in found["metadata_nat"]] == ["10.0.0.1/32", "10.0.0.2/32"]


def test_tools_read_from_the_file_only_how_to_find_the_service(file: Path) -> None:
    file.write_text("data-dir: /srv/t\ninterface: [eth1, eth2]\nhtp-port: 1\npassphrase-file: /srv/p\n")
    found = params("backup", "--config", file, "f")
    assert (found["data_dir"], found["passphrase_file"]) == (Path("/srv/t"), None)


@pytest.mark.parametrize(
    "words", ["users list", "users revoke alice", "users role alice view", "bundle load BUNDLE --key KEY"]
)
def test_subcommands_use_the_data_directory_of_the_service(file: Path, tmp_path: Path, words: str) -> None:
    for name in ("BUNDLE", "KEY"):
        (tmp_path / name).touch()
    file.write_text("data-dir: /srv/t\n")
    group, name, *rest = [str(tmp_path / word) if word.isupper() else word for word in words.split()]
    assert params(f"{group} {name}", "--config", file, *rest)["data_dir"] == Path("/srv/t")


def test_doctor_can_disable_the_same_services_as_up() -> None:
    commands = (command_named(name) for name in ("up", "doctor"))
    up, doctor = (next(each for each in command.params if "--disable" in each.opts) for command in commands)
    assert set(up.type.choices) == set(doctor.type.choices)


def test_doctor_checks_the_settings_of_the_service(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_example_in_deploy_is_the_generated_one_and_has_every_key_once() -> None:
    text = run("config", "init").output
    kept = ROOT / "deploy" / "systemd" / "tinkedge.yaml"
    assert kept.read_text() == text, f"tinkedge config init > {kept}"
    keys = {key(option) for name in SERVICES if name != "agent" for option in settable(command_named(name))}
    lines = [line[1:].split(":")[0] for line in text.splitlines() if line[:1] == "#" and line[1:2].isalpha()]
    assert sorted(lines) == sorted(keys)


def test_example_with_its_values_uncommented_is_valid(file: Path) -> None:
    lines = run("config", "init").output.splitlines()
    values = [line[1:] for line in lines if line[:1] == "#" and line[1:2].isalpha() and "<" not in line]
    file.write_text("\n".join(values))
    result = run("config", "check", file)
    assert result.exit_code == 0, result.output


def test_init_does_not_overwrite_a_file(file: Path) -> None:
    file.write_text("http-port: 80\n")
    assert run("config", "init", file).exit_code == 1
    assert file.read_text() == "http-port: 80\n"


def test_unknown_variable_is_reported_with_the_nearest_name() -> None:
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
def test_every_path_option_expands_a_home_directory(name: str) -> None:
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


# --- contradictions and obstacles -------------------------------------------------------------------------------------


def given(role: str, *words: str) -> dict[str, Any]:
    return params(role, *words, "--config", os.devnull)


def contradictions_of(role: str, *words: str) -> list[SettingsFinding]:
    options = given(role, *words)
    return list(contradictions(services_of(role, options), options))


def obstacles_of(options: Mapping[str, Any], role: str = "up", **host: Any) -> list[SettingsFinding]:
    host.setdefault("interfaces", lambda: {"lo", "eth1"})
    return list(obstacles(services_of(role, options), options, ThisHost(**host)))


OSIE = "--default-osie a/hook --dhcp-mode auto-proxy"
RULE = "--discover range=10.7.0.100-10.7.0.199/24,osie=a/hook"
OVERLAPPING = "--discover range=10.7.0.150-10.7.0.220/24,osie=a/hook"


@pytest.mark.parametrize("role", ["up", "edge", "controller", "server", "apiserver", "metal3-webhook", "metal3"])
def test_defaults_have_no_contradictions(role: str) -> None:
    assert contradictions_of(role) == []


@pytest.mark.parametrize(
    ("role", "words", "keys", "expected"),
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
        ("up", "--interface lo --ipv6 --ipv6-router eth7", ("ipv6-router",), "is not an interface that faces machines"),
        ("up", "--admin-address localhost", ("admin-address",), "is not an IP address"),
        ("up", "--grpc-authority https://10.0.0.1:42113", ("grpc-authority",), "not a URL: write 10.0.0.1:42113"),
        ("up", "--insecure-registry http://r:5000/x", ("insecure-registry",), "write r:5000"),
        ("controller", "--webhook-url http://a", ("webhook-url",), "must be https://HOST:PORT"),
        ("controller", "--webhook-url https://a --webhook-service a/b", ("webhook-url", "webhook-service"), "not both"),
        ("controller", "--webhook-service a", ("webhook-service",), "must be NAMESPACE/NAME"),
        ("up", f"{RULE} --dhcp-mode proxy", ("discover", "dhcp-mode"), "--dhcp-mode proxy assigns no addresses"),
        ("edge", f"{RULE} --dhcp-mode off", ("discover", "dhcp-mode"), "use --dhcp-mode reservation"),
        ("up", f"{RULE} --disable dhcp", ("discover", "dhcp-mode"), "DHCP is disabled here"),
        ("edge", f"{RULE} --hardware-selector rack=7", ("discover", "hardware-selector"), "would not have"),
        ("edge", f"{RULE} --namespaces b,c", ("discover", "namespaces"), "add a to --namespaces"),
        ("edge", f"{RULE},lists=d --namespaces a,c", ("discover", "namespaces"), "add d to --namespaces"),
        ("up", f"{RULE} {OVERLAPPING}", ("discover",), "overlap: give each rule a range of its own"),
    ],
)
def test_contradiction_is_an_error_with_its_options_and_the_remedy(
    role: str, words: str, keys: tuple[str, ...], expected: str
) -> None:
    (finding,) = contradictions_of(role, *words.split())
    assert finding.keys == keys
    assert finding.is_error
    text = finding.text(lambda key: "there")
    assert expected in text
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
        ("edge", f"{RULE} --namespaces b,a"),
        ("up", f"{RULE} {OVERLAPPING.replace('0.150-10.7.0.220', '1.100-10.7.1.199')}"),
    ],
)
def test_similar_but_compatible_settings_are_accepted(role: str, words: str) -> None:
    assert contradictions_of(role, *words.split()) == []


@pytest.mark.parametrize(
    ("role", "words"),
    [
        ("up", "--agent-token-key k"),
        ("edge", "--checkpoint-key k"),
        ("up", "--checkpoint-secrets"),
    ],
)
def test_option_without_effect_is_a_warning(role: str, words: str) -> None:
    (finding,) = contradictions_of(role, *words.split())
    assert not finding.is_error


def test_missing_interface_is_a_warning_because_it_may_appear() -> None:
    options = given("edge", "--interface", "eth1", "--interface", "eht2", "--disable", "http")
    (finding,) = obstacles_of(options, "edge")
    assert "there is no interface eht2 on this host (there are: eth1, lo)" in finding.message
    assert not finding.is_error


@pytest.mark.parametrize("option", ["--grpc-tls-cert", "--grpc-tls-ca", "--kubeconfig", "--manifests"])
def test_missing_file_is_reported(option: str, tmp_path: Path) -> None:
    (finding,) = obstacles_of(given("server", option, str(tmp_path / "absent")), "server")
    assert finding.keys == (option.removeprefix("--"),)
    assert f"there is no {'directory' if option == '--manifests' else 'file'} {tmp_path}/absent" in finding.message


def test_unreadable_authority_of_a_registry_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("no PEM")
    for name, expected in (("absent", "there is no file"), ("bad", "bad")):
        (finding, *_) = obstacles_of(given("edge", "--registry-ca", f"reg.example:5000={tmp_path}/{name}"), "edge")
        assert (finding.keys, finding.is_error) == (("registry-ca",), False), "machines boot without it"
        assert expected in finding.message
    for wrong in ("https://reg.example=file", "reg.example", "=file", "reg.example="):
        with pytest.raises(click.UsageError, match="must be like registry"):
            given("edge", "--registry-ca", wrong)


def test_data_directory_of_another_user_is_an_error_with_the_command_as_remedy(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    options = given("up", "--data-dir", str(tmp_path))
    assert obstacles_of(options) == []
    (finding,) = obstacles_of(options, user=lambda: os.geteuid() + 1)
    assert finding.keys == ("data-dir",)
    assert ("chown -R " if not os.geteuid() else "run this as ") in finding.remedy


def test_data_directory_that_can_not_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for directory, expected in (("file", "is not a directory"), ("file/data", "can't be made in"), ("new/data", "")):
        texts = [each.message for each in obstacles_of(given("up", "--data-dir", str(tmp_path / directory)))]
        assert [expected in text for text in texts] == ([True] if expected else [])


def test_read_only_disk_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(tmp_path)
    fields = [*real[:8], real.f_flag | os.ST_RDONLY, *real[9:]]
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(fields))
    (finding,) = obstacles_of(given("up", "--data-dir", str(tmp_path)))
    assert "read-only" in finding.message
    assert not finding.is_error


def test_certificate_that_ends_soon_is_a_warning(tmp_path: Path) -> None:
    since = datetime.now(UTC)
    key, name, file = new_key(), common_name("server"), tmp_path / "tls.crt"
    made = builder(name, name, key, since, timedelta(days=30)).sign(key, hashes.SHA256())
    file.write_bytes(made.public_bytes(Encoding.PEM))
    options = given("server", *("--grpc-tls-cert", str(file), "--grpc-tls-ca", str(file)))
    assert obstacles_of(options, "server") == []
    later = (since + timedelta(days=20)).timestamp()
    findings = obstacles_of(options, "server", now=lambda: later)
    assert [(each.keys, each.is_error) for each in findings] == [(("grpc-tls-cert",), False), (("grpc-tls-ca",), False)]
    assert "ends on" in findings[0].message
    assert "restart the edges" in findings[1].remedy


def test_place_names_the_origin_of_each_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_check_fails_with_line_and_remedy(file: Path) -> None:
    result = check(file, "interface: [lo]\ngrpc-tls-cert: /dev/null\n")
    assert result.exit_code == 1
    assert f"error: --grpc-tls-key (default), --grpc-tls-cert ({file}:2): --grpc-tls-cert and" in result.output
    assert "(tinkedge up, server)" in result.output


def test_check_warns_if_only_some_services_refuse_and_fails_for_those_services(file: Path, tmp_path: Path) -> None:
    text = f"interface: [lo]\nagent-auth: token\ndata-dir: {tmp_path}/data\n"
    result = check(file, text)
    assert result.exit_code == 0, result.output
    assert "warning: --agent-token-key (default), --agent-auth" in result.output
    assert check(file, text, "--for", "up").output == f"{file}: good, 3 values: interface, agent-auth, data-dir\n"
    apart = check(file, text, "--for", "edge", "--for", "server")
    assert (apart.exit_code, apart.output.count("error:")) == (1, 1)


def test_check_with_a_missing_interface_warns_and_does_not_fail(file: Path) -> None:
    result = check(file, "interface: [lo, absent0]\n")
    assert result.exit_code == 0
    assert f"warning: --interface ({file}:1): there is no interface absent0" in result.output


def test_check_reports_values_from_outside_the_file_only_for_a_given_service(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKEDGE_ADMIN_ADDRESS", "localhost")
    assert check(file, "log-level: debug\n").exit_code == 0
    result = check(file, "log-level: debug\n", "--for", "edge")
    assert result.exit_code == 1
    assert "error: --admin-address (env TINKEDGE_ADMIN_ADDRESS): 'localhost' is not an IP address" in result.output


def test_service_refuses_at_its_start_the_same_as_the_check(file: Path) -> None:
    file.write_text("interface: [lo]\ngrpc-tls-cert: /dev/null\nhttp-port: 42113\n")
    command = [sys.executable, "-m", "edge.cli", "up", "--config", file]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert f"--grpc-tls-cert ({file}:2)" in result.stderr
    assert f"--http-port ({file}:3): both would listen on port 42113" in result.stderr


# --- scope ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "selector",
    [
        *("site=berlin", "site==berlin", "site!=berlin", "site", "!spare", "site=", "a/b=c, d in (e,f) ,!g"),
        *("example.com/site notin (berlin, ulm)", "a in ()", "x in (,a)"),
    ],
)
def test_selector_of_kubectl_is_accepted(selector: str) -> None:
    assert given("edge", "--hardware-selector", selector)["hardware_selector"] == selector
    assert given("server", "--hardware-selector", selector)["hardware_selector"] == selector


@pytest.mark.parametrize("selector", ["=berlin", "site in berlin", "site=a b", "a,,b", "site=(a)", "a=-", "x" * 3000])
def test_invalid_selector_is_refused_before_the_start(selector: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a label selector"):
        given("edge", "--hardware-selector", selector)


def test_controllers_have_no_hardware_selector() -> None:
    """A controller would give up the Workflows of Hardware that it does not see."""
    assert "hardware_selector" not in (given("controller").keys() | given("up").keys() | given("metal3").keys())


@pytest.mark.parametrize("role", ["up", "edge", "controller", "server", "metal3"])
def test_repeated_namespace_counts_once(role: str) -> None:
    assert given(role, "--namespaces", "berlin, ulm,berlin")["namespaces"] == ("berlin", "ulm")
    assert given(role)["namespaces"] == ()
    with pytest.raises(click.BadParameter, match="is not the name of a namespace"):
        given(role, "--namespaces", "Berlin")


# --- common mistakes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
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
    file: Path, monkeypatch: pytest.MonkeyPatch, line: str, expected: str
) -> None:
    monkeypatch.chdir(file.parent)
    file.write_text(f"http-port: 7080\n{line}\n")
    expected = expected.format(cwd=file.parent, parent=file.parent.parent)
    for result in (run("config", "check", file), run("up", "--config", file)):
        assert result.exit_code in (1, 2)
        assert expected in result.output
        assert f"{file}:2: {line.partition(':')[0]}: " in result.output


def test_home_directory_is_valid_in_the_file_and_a_relative_path_on_the_command_line(file: Path) -> None:
    file.write_text("manifests: ~/manifests\n")
    assert params("up", "--config", file)["manifests"] == Path.home() / "manifests"
    assert params("up", "--config", "/dev/null", "--manifests", "m")["manifests"] == Path("m")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("TINKEDGE_HTTP_PORT", "abc", "'--http-port' (env TINKEDGE_HTTP_PORT): 'abc' is not a port from 1 to 65535"),
        (
            "TINKEDGE_GRPC_CONNECTIONS_PER_ADDRESS",
            "0",
            "(env TINKEDGE_GRPC_CONNECTIONS_PER_ADDRESS): '0' is not a number from 1 on",
        ),
        ("TINKEDGE_SCHEDULED_TIMEOUT", "nan", "(env TINKEDGE_SCHEDULED_TIMEOUT): 'nan' is not a number greater than 0"),
        ("TINKEDGE_ACTION_TIMEOUT", "-1", "(env TINKEDGE_ACTION_TIMEOUT): '-1' is not a number from 0 on"),
        ("TINKEDGE_DHCP_MODE", "on", "'--dhcp-mode' (env TINKEDGE_DHCP_MODE): 'on' is not one of 'reservation'"),
    ],
)
def test_refused_variable_is_reported_with_its_name_and_the_valid_values(name: str, value: str, expected: str) -> None:
    result = run("up", "--config", "/dev/null", **{name: value})
    assert (result.exit_code, expected in result.output) == (2, True), result.output


def test_removed_option_is_an_error_that_names_the_remedy(file: Path) -> None:
    remedy = "was removed: take it out: one process serves all machines"
    for result in (
        run("edge", "--config", "/dev/null", "--workers", "2"),
        run("edge", "--config", "/dev/null", TINKEDGE_WORKERS="2"),
    ):
        assert (result.exit_code, remedy in result.output) == (2, True), result.output
    file.write_text("data-dir: /x\nworkers: 2\n")
    result = run("edge", "--config", file)
    assert (result.exit_code, f"{file}:2: workers: {remedy}" in result.output) == (2, True), result.output
    assert remedy in check(file, file.read_text()).output
    (sentence,) = unknown_variables(
        {"TINKEDGE_WORKERS": "2"}, command_named("doctor"), SERVICES, command_named
    ).values()
    assert remedy in sentence


def test_refused_flag_is_reported_without_a_variable_and_refused_key_with_its_line(file: Path) -> None:
    assert "'--http-port': 'abc' is not a port from 1 to 65535" in run("up", "--http-port", "abc").output
    file.write_text("\nhttp-port: abc\n")
    assert f"{file}:2: http-port: 'abc' is not a port from 1 to 65535" in run("up", "--config", file).output


@pytest.mark.parametrize(
    ("words", "expected"),
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
def test_unknown_command_is_reported_with_the_nearest_name(words: str, expected: str) -> None:
    result = run(*words.split())
    assert (result.exit_code, expected in result.output) == (2, True), result.output


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("convert hw.yaml", "(hw.yaml): did you mean '-f hw.yaml'?"),
        ("iso node-1", "did you mean '--hardware node-1'?"),
        ("iso 52:54:00:00:00:01", "did you mean '--mac 52:54:00:00:00:01'?"),
        ("crds metal3", "crds takes options alone, which begin with '-'"),
        ("render", "Missing option '-f' / '--filename'. File or directory with the Hardware"),
    ],
)
def test_argument_instead_of_an_option_is_reported_with_the_option(words: str, expected: str) -> None:
    result = run(*words.split())
    assert (result.exit_code, expected in result.output) == (2, True), result.output


def test_check_counts_the_values_and_names_them(file: Path) -> None:
    assert check(file, "http-port: 80\n").output == f"{file}: good, 1 value: http-port\n"
    text = check(file, "http-port: 80\nedge:\n  log-level: debug\n").output
    assert text == f"{file}: good, 2 values: http-port, log-level (for edge)\n"
    assert "sets nothing; 'tinkedge config init' prints every key" in check(file, "# http-port: 80\n").output


def test_missing_settings_file_is_an_error_with_the_command_that_makes_one(file: Path) -> None:
    assert f"there is no such file; 'tinkedge config init {file}' writes one" in run("config", "check", file).output
    assert "is a directory: name the file in it" in run("config", "check", file.parent).output
    assert "is there already, and is not overwritten" in run("config", "init", file.parent).output
    assert f"there is no directory {file}" in run("config", "init", file / "x").output


def test_check_warns_of_an_unknown_variable(file: Path) -> None:
    file.write_text("http-port: 80\n")
    result = run("config", "check", file, TINKEDGE_INTERFACES="eth1")
    assert result.exit_code == 0
    assert "warning: the variable TINKEDGE_INTERFACES is not an option, and does nothing; do you mean " in result.output
    assert "TINKEDGE_INTERFACE? (the environment): correct its name, or remove it" in result.output


def variables(file: Path, text: str, **environment: str) -> list[str]:
    file.write_text(text)
    return [each.text for each in variable_problems(environment, command_named("up"), command_named, file)]


def test_variables_file_is_checked_as_systemd_reads_it(file: Path) -> None:
    good = '# TINKEDGE_OLD=1\n\nTINKEDGE_DATA_DIR="/srv/d"\nPATH=x\nTINKEDGE_PEER=10.0.0.1 10.0.0.2\n'
    assert variables(file, good) == []
    (unknown,) = variables(file, "\nTINKEDGE_INTERFACES=eth1\n")
    assert f"do you mean TINKEDGE_INTERFACE? ({file}:2)" in unknown
    (exported,) = variables(file, "export TINKEDGE_HTTP_PORT=80\n")
    assert f"systemd ignores the line of TINKEDGE_HTTP_PORT, because it begins with 'export' ({file}:1)" in exported
    (relative,) = variables(file, "TINKEDGE_DATA_DIR=state\n")
    assert "TINKEDGE_DATA_DIR: 'state' is a relative path" in relative
    (port,) = variables(file, "TINKEDGE_HTTP_PORT=abc\n")
    assert port == f"TINKEDGE_HTTP_PORT: 'abc' is not a port from 1 to 65535 ({file}:1): correct its value"


def test_missing_variables_file_is_accepted_and_a_directory_is_a_problem(tmp_path: Path) -> None:
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


def test_doctor_reads_options_of_up_from_flags_variables_and_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("syslog: 'on'\nup:\n  insecure-registry: [r.example.org]\nedge:\n  log-level: debug\n")
    monkeypatch.setenv("TINKEDGE_LOG_LEVEL", "warning")
    found = params("doctor", "--config", file, "--allow-upstream", "10.0.0.0/8")
    assert (found["syslog"], found["insecure_registry"], found["log_level"]) == ("on", ("r.example.org",), "warning")
    assert str(found["allow_upstream"][0][0]) == "10.0.0.0/8"


@pytest.mark.parametrize("name", ["probe", "json", "lab", "cache-dir"])
def test_options_of_doctor_alone_are_not_keys_of_the_file(file: Path, name: str) -> None:
    file.write_text(f"{name}: true\n")
    assert f"{name}: is not known" in run("doctor", "--config", file).output


def test_help_of_doctor_lists_its_own_options_and_refers_to_up() -> None:
    text = run("doctor", "--help").output
    assert text.index("--probe") < text.index("Options of `tinkedge up`:") < text.index("--interface")
    assert "see `tinkedge up --help`" in text
    assert "--grpc-connections-per-address" not in text
