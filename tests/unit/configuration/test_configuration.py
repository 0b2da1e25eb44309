"""Settings from flags, variables and the file, as `tinkedge` itself reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from edge.cli import COMMANDS, LazyGroup, main
from edge.configuration import GROUPS, REST, SERVICES, group_of, key, settable, variable
from edge.configuration.options import PREFIX

ROOT = Path(__file__).resolve().parents[3]


def walk() -> Iterator[tuple[str, click.Command]]:
    """Every command that has options, by the words that call it."""
    assert isinstance(main, LazyGroup)
    for name in COMMANDS:
        command = main.command_named(name)
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


def test_every_option_of_every_command_is_the_variable_of_its_name() -> None:
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
    assert isinstance(main, LazyGroup)
    keys = {key(option) for name in SERVICES for option in settable(main.command_named(name))}
    assert not [name for name in sorted(keys) if group_of(name) == REST]
    assert len(GROUPS["First of all"]) == 10


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
    assert [line.split(" ")[0] for line in said] == [
        *("1:", "2:", "3:", "4:", "5:", "6:", "7:", "8:", "9:", "11:"),
    ]
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
    assert isinstance(main, LazyGroup)
    command = main.command_named("up")
    with command.make_context("up", ["--config", str(file)], parent=click.Context(main)) as ctx:
        assert ctx.params["lease_namespace"] == "no"
        assert ctx.params["grpc_authority"] == "22:22"
        assert ctx.params["fast_path"] is False
        assert [str(each) for each in ctx.params["metadata_nat"]] == ["10.0.0.1/32", "10.0.0.2/32"]


def test_tools_take_where_the_service_is_and_nothing_else(file: Path) -> None:
    file.write_text("data-dir: /srv/t\ninterface: [eth1, eth2]\nhtp-port: 1\npassphrase-file: /srv/p\n")
    assert isinstance(main, LazyGroup)
    backup = main.command_named("backup")
    with backup.make_context("backup", ["--config", str(file), "f"], parent=click.Context(main)) as ctx:
        assert ctx.params["data_dir"] == Path("/srv/t")
        assert ctx.params["passphrase_file"] is None


@pytest.mark.parametrize(
    "words", ["users list", "users revoke alice", "users role alice view", "bundle load BUNDLE --key KEY"]
)
def test_subcommands_work_in_the_data_directory_of_the_service(file: Path, tmp_path: Path, words: str) -> None:
    for name in ("BUNDLE", "KEY"):
        (tmp_path / name).touch()
    file.write_text("data-dir: /srv/t\n")
    assert isinstance(main, LazyGroup)
    group, name, *rest = [str(tmp_path / word) if word.isupper() else word for word in words.split()]
    found = main.command_named(group)
    assert isinstance(found, click.Group)
    options = ["--config", str(file), *rest]
    with found.commands[name].make_context(name, options, parent=click.Context(main)) as ctx:
        assert ctx.params["data_dir"] == Path("/srv/t")


def test_doctor_takes_what_can_be_left_out() -> None:
    assert isinstance(main, LazyGroup)
    up, doctor = (
        next(each for each in main.command_named(name).params if "--disable" in each.opts) for name in ("up", "doctor")
    )
    assert isinstance(up.type, click.Choice)
    assert isinstance(doctor.type, click.Choice)
    assert set(up.type.choices) == set(doctor.type.choices)


def test_doctor_looks_at_what_is_set_for_the_service(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(
        "interface: [lo=127.0.0.1]\ngrpc-port: 42199\nhttp-port: 7999\ndhcp-mode: off\n"
        "disable: [tftp, controller]\nmanifests: /srv/m\nkubeconfig: /srv/k\n"
    )
    assert isinstance(main, LazyGroup)
    doctor = main.command_named("doctor")
    with doctor.make_context("doctor", ["--config", str(file)], parent=click.Context(main)) as ctx:
        assert (ctx.params["manifests"], ctx.params["kubeconfig"]) == (Path("/srv/m"), Path("/srv/k"))
    monkeypatch.chdir(file.parent)
    result = CliRunner().invoke(main, ["doctor", "--no-lab", "--json", "--config", str(file), "--data-dir", "d"])
    ports = [found["name"] for found in json.loads(result.stdout)["findings"] if found["name"].startswith("port ")]
    assert ports[:2] == ["port 7999/tcp (HTTP) on lo", "port 42199/tcp (gRPC) on lo"]


def test_secrets_are_not_shown() -> None:
    assert shown("agent", TINKEDGE_TOKEN="hidden")["token"]["value"] == "(not shown)"


def test_example_is_the_generators_and_has_every_key_once() -> None:
    text = run("config", "init").output
    kept = ROOT / "deploy" / "systemd" / "tinkedge.yaml"
    assert kept.read_text() == text, f"tinkedge config init > {kept}"
    assert isinstance(main, LazyGroup)
    keys = {key(option) for name in SERVICES if name != "agent" for option in settable(main.command_named(name))}
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
    from edge.configuration import unknown_variables

    assert isinstance(main, LazyGroup)
    up = main.command_named("up")
    environment = {"TINKEDGE_DATA_DRI": "/x", "TINKEDGE_RESYNC": "5", "TINKEDGE_DATA_DIR": "/y", "TINKEDGE_CONFIG": "z"}
    said = list(unknown_variables(environment, up, SERVICES, main.command_named))
    assert len(said) == 1
    assert "TINKEDGE_DATA_DRI" in said[0]
    assert "TINKEDGE_DATA_DIR?" in said[0]
    assert variable(next(settable(up))) == "TINKEDGE_INTERFACE"
