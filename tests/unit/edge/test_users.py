"""`tinkedge kubeconfig` and `tinkedge users`: who gets which file, what is said, and what is refused before."""

from __future__ import annotations

import asyncio
import json
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result

from edge.cli import main
from edge.commands.serve.stack_settings import settings
from edge.composition.settings import Service
from tink.apiserver import USERS_FILE, ApiServer, credentials, read_users

NAME = "alice"


@pytest.fixture
async def api(tmp_path: Path) -> Any:
    """An API at all addresses of this host, with a certificate for one more than loopback's usual one."""
    server = ApiServer(tmp_path / "data", port=0, addresses=["0.0.0.0"], names=["127.0.0.2"])
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory whose API does not run."""
    (tmp_path / "data").mkdir()
    credentials.load_authority(tmp_path / "data" / "pki", datetime.now(UTC))
    return tmp_path / "data"


def run(data: Path, *words: str) -> Result:
    words = (*words, "--data-dir", str(data))
    words = (*words, *(() if "--config" in words else ("--config", "/dev/null")))
    return CliRunner().invoke(main, [*words])


def test_directory_without_an_api_is_refused_and_not_one_without_users(tmp_path: Path) -> None:
    for words in ("users list", f"kubeconfig --user {NAME} --role view --stdout"):
        for directory in (tmp_path / "absent", tmp_path):
            ran = run(directory, *words.split())
            assert ran.exit_code == 1
            assert "is no data directory with an embedded API: give --data-dir" in ran.stderr


def test_kubeconfig_is_for_its_owner_alone_and_never_written_over(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "alice.kubeconfig"
    words = ("kubeconfig", "--user", NAME, "--role", "edit", "-n", "lab", "--out", str(out), "--server", "https://x:1")
    ran = run(data, *words)
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
    again = run(data, *words)
    assert (again.exit_code, "is there already" in again.output) == (2, True)
    assert yaml.safe_load(out.read_text()) == content
    assert len(read_users(data / USERS_FILE).users[NAME].credentials) == 1


def test_token_whose_file_cannot_be_written_is_taken_back(data: Path, tmp_path: Path) -> None:
    ran = run(data, "kubeconfig", "--user", NAME, "--role", "view", "--out", str(tmp_path / "no" / "where"))
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
def test_server_is_where_the_settings_have_it(
    data: Path, tmp_path: Path, settings_: dict[str, Any], server: str
) -> None:
    config = tmp_path / "tinkedge.yaml"
    config.write_text(yaml.safe_dump({"data-dir": str(data), **settings_}))
    ran = run(data, "kubeconfig", "--user", NAME, "--role", "view", "--stdout", "--config", str(config))
    assert f"server: {server}\n" in ran.output, ran.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--role", "root"), "'root' is not one of"),
        ((), "there is no user alice yet: say what alice may do"),
        (("--role", "view", "--expires", "1m"), "'1m' is no time such as 12h"),
        (("--role", "view", "--expires", "0d"), "is no time such as"),
        (("--role", "view", "--server", "http://10.0.0.5:6443"), "is no URL such as https://10.0.0.5:6443"),
        (("--role", "view", "--server", "https://u:p@10.0.0.5"), "is no URL such as"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nobody_gets_a_token(
    data: Path, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    out = tmp_path / "out"
    ran = run(data, "kubeconfig", "--user", NAME, "--out", str(out), *words)
    assert (ran.exit_code != 0, said in ran.output) == (True, True), ran.output
    assert not out.exists()
    assert not (data / USERS_FILE).exists()


def test_users_are_listed_changed_and_revoked(data: Path) -> None:
    for name, role, expires in (("alice", "edit", "90d"), ("bob", "view", "never")):
        assert run(data, "kubeconfig", "--user", name, "--role", role, "--expires", expires, "--stdout").exit_code == 0
    listed = run(data, "users", "list").output.splitlines()
    rows = [" ".join(line.split()[:3]) for line in listed]
    assert rows == ["USER ROLE NAMESPACES", "alice edit all", "bob view all"]
    assert listed[2].endswith("never")
    assert run(data, "users", "role", "bob", "edit", "-n", "lab").output == "bob is edit in lab\n"
    shown = json.loads(run(data, "users", "list", "--json").output)
    assert (shown["bob"]["role"], shown["bob"]["namespaces"]) == ("edit", ["lab"])
    token_id = shown["alice"]["tokens"][0]["id"]
    assert "is revoked" in run(data, "users", "revoke", "alice", "--token", token_id).output
    assert "all of the user's tokens are revoked" in run(data, "users", "revoke", "bob").output
    assert list(read_users(data / USERS_FILE).users) == ["alice"]
    assert "there is no user bob; there is alice" in run(data, "users", "revoke", "bob").output


def test_garbled_file_of_users_is_named(data: Path) -> None:
    (data / USERS_FILE).write_text("{")
    ran = run(data, "users", "list")
    assert (ran.exit_code, f"{data / USERS_FILE}: does not end with its line" in ran.output) == (1, True)


async def test_it_is_said_if_the_certificate_is_not_for_that_url(api: ApiServer, tmp_path: Path) -> None:
    port = api.url.rpartition(":")[2]

    async def said(server: str) -> str:
        words = ("kubeconfig", "--user", NAME, "--role", "view", "--stdout", "--server", server)
        return (await asyncio.to_thread(run, tmp_path / "data", *words)).output

    assert "note:" not in await said(f"https://127.0.0.2:{port}")
    assert "shows a certificate that is not for 127.0.0.3" in await said(f"https://127.0.0.3:{port}")
    assert "is not reached from here" in await said("https://127.0.0.1:1")


# --- the settings of who serves


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--api-address", "127.0.0.1"], "the API is always there on loopback"),
        (["--api-address", "api.example.org"], "is no address; names are for --api-name"),
        (["--api-address", "::"], "is not the address of one host"),
        (["--api-address", "224.0.0.1"], "is not the address of one host"),
        (["--api-name", "a b"], "is no name of a host"),
        (["--api-name", "-a"], "is no name of a host"),
    ],
)
def test_addresses_that_make_no_sense_are_refused(options: list[str], said: str) -> None:
    ran = CliRunner().invoke(main, ["apiserver", "--config", "/dev/null", *options])
    assert (ran.exit_code, said in " ".join(ran.output.split())) == (2, True), ran.output


@pytest.mark.parametrize(
    ("services", "options"),
    [
        ({Service.SERVER}, {"api_address": ("10.0.0.5",)}),
        ({Service.APISERVER}, {"api_address": ("0.0.0.0",)}),
        ({Service.APISERVER}, {"api_address": ("0.0.0.0", "10.0.0.5"), "api_name": ("a",)}),
    ],
)
def test_settings_that_do_not_go_together_are_refused(services: set[Service], options: dict[str, Any]) -> None:
    with pytest.raises(click.UsageError, match="--api-"):
        settings(frozenset(services), options)
    made = settings(frozenset({Service.APISERVER}), {"api_port": 6443})
    assert (made.api_addresses, made.api_names) == ((), ()), "on loopback alone unless the operator says otherwise"
