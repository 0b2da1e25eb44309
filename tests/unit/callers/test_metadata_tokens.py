"""Tokens of metadata URLs, the key file behind them, and the command that prints them."""

from __future__ import annotations

import json
import logging
import os
import stat
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from edge.callers import MetadataTokenError, MetadataTokens, token_keys
from edge.cli import main
from tests.support.api import InProcessApi
from tests.support.objects import OTHER_MAC, hardware
from tink.files.key_file import KeyFile, KeyFileError

MAC = "52:54:00:00:00:01"
NEVER = 0.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    return token_keys(tmp_path, None, create=True)


# --- tokens ---------------------------------------------------------------------------------------------------------


def test_token_says_its_mac_for_ever_unless_it_has_a_lifetime(keys: KeyFile) -> None:
    clock = Clock()
    lasting, ending = MetadataTokens(keys, NEVER, clock), MetadataTokens(keys, 60, clock)
    token, short = lasting.mint(MAC), ending.mint(MAC)
    assert lasting.mac(token) == lasting.mac(short) == ending.mac(token) == MAC
    clock.now += 60
    assert ending.mac(token) == MAC
    with pytest.raises(MetadataTokenError, match="it ended at 1970-01-01T00:17:40Z"):
        lasting.mac(short)
    clock.now = 1e12 - 1
    assert lasting.mac(token) == MAC
    clock.now = 1e11
    assert len(ending.mint(MAC)) <= 72, "it fits where there is room for one"
    for other in ("", "m1", "52-54-00-00-00-01", "52:54:00:00:00:0A", f"{MAC}\n"):
        with pytest.raises(ValueError, match="is no MAC address"):
            lasting.mint(other)


@given(position=st.integers(0, 60), character=st.characters(min_codepoint=33, max_codepoint=126))
def test_token_with_one_wrong_character_is_worth_nothing(
    tmp_path_factory: pytest.TempPathFactory, position: int, character: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "one.key"
    tokens = MetadataTokens(KeyFile(path, "key", create=True))
    token = tokens.mint(MAC)
    changed = token[:position] + character + token[position + 1 :]
    if changed != token:
        with pytest.raises(MetadataTokenError) as caught:
            tokens.mac(changed)
        assert changed[20:] not in str(caught.value)


# --- the key file ---------------------------------------------------------------------------------------------------


def test_key_file_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    first = token_keys(tmp_path / "new", None, create=True)
    path = tmp_path / "new" / "metadata-token.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    second = token_keys(tmp_path / "new", None, create=True)
    assert MetadataTokens(second).mac(MetadataTokens(first).mint(MAC)) == MAC
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_named_key_file_is_never_made(tmp_path: Path) -> None:
    # Of several edges, each would make its own.
    with pytest.raises(KeyFileError, match="openssl rand -hex 32"):
        token_keys(tmp_path, tmp_path / "shared.key", create=True)
    with pytest.raises(KeyFileError, match=r"metadata-token\.key: No such file"):
        token_keys(tmp_path, None, create=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(KeyFileError, match="can't be made"):
        token_keys(tmp_path / "file" / "below", None, create=True)


def test_new_key_signs_and_the_old_one_is_still_good(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now, path = Clock(), tmp_path / "key"
    path.write_text("a" * 64 + "\n")
    path.chmod(0o644)
    file = KeyFile(path, "key", monotonic=now)
    assert "chmod 600" in caplog.text, "all users of the host can read it"
    old = file.sign("l", "c")
    path.write_text(f"# new\n{'b' * 64}\n\n{'a' * 64}\n")
    assert file.sign("l", "c") == old  # not looked at yet
    now.now += 1
    assert file.sign("l", "c") == old, "others may not have it yet"
    now.now += 120
    assert file.sign("l", "c") != old
    assert file.signed("l", "c", old)
    path.write_text("b" * 64 + "\n")
    now.now += 1
    assert not file.signed("l", "c", old)


def test_key_file_that_breaks_changes_nothing_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now, path = Clock(), tmp_path / "key"
    file = KeyFile(path, "key", create=True, monotonic=now)
    signature = file.sign("l", "c")
    path.write_text("short\n")
    for _ in range(3):
        now.now += 1
        assert file.sign("l", "c") == signature
    path.unlink()
    now.now += 1
    assert file.sign("l", "c") == signature
    assert [record.levelno for record in caplog.records].count(logging.ERROR) == 2
    assert "short" not in caplog.text.replace("has less", "")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "no key"),
        ("# only\n", "no key"),
        ("x" * 31, "less than 32"),
        ("x" * 40 + "\ny", "less than 32"),
        (("k" * 40 + "\n") * 17, "more than 16"),
        ("z" * 70_000, "more than 16"),
    ],
)
def test_key_file_that_is_none_is_named_with_what_is_wrong(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "key"
    path.write_text(content)
    with pytest.raises(KeyFileError, match=problem) as caught:
        KeyFile(path, "some key")
    assert str(path) in str(caught.value)


GARBLED = [b"\xff\xfe" * 40, b"\0" * 65, b"a" * 40 + b"\n" + b"\x01" * 40 + b"\n"]


def test_key_of_ours_that_is_cut_off_or_garbled_is_refused_and_kept(tmp_path: Path) -> None:
    token_keys(tmp_path, None, create=True)
    path = tmp_path / "metadata-token.key"
    whole = path.read_bytes()
    again = "put the right one back, or remove the file to get a new one"
    for content, said in (*((whole[:cut], again) for cut in range(64)), *((each, "is garbled") for each in GARBLED)):
        path.write_bytes(content)
        with pytest.raises(KeyFileError, match=said):
            token_keys(tmp_path, None, create=True)
        assert path.read_bytes() == content
    with pytest.raises(KeyFileError, match="is garbled"):
        token_keys(tmp_path, path, create=False)


def test_signature_for_one_purpose_is_none_for_another(keys: KeyFile) -> None:
    assert not keys.signed("one", "c", keys.sign("other", "c"))
    assert keys.sign("a", "b") != keys.sign("ab", "")


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_options_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TINKEDGE_")]:
        monkeypatch.delenv(name)


def run(*arguments: str | Path, **env: str) -> Result:
    return CliRunner().invoke(main, ["metadata-url", *map(str, arguments)], env=env)


def test_urls_are_printed_with_a_token_that_the_edge_takes(tmp_path: Path, keys: KeyFile) -> None:
    result = run("52-54-00-00-00-01", "--data-dir", tmp_path, "--public-ip", "10.0.0.1", "-o", "json")
    (urls,) = json.loads(result.output)
    token = urls["ec2"].removeprefix("http://10.0.0.1:7080/machine/")
    assert MetadataTokens(keys).mac(token) == MAC
    assert urls["nocloud"] == f"http://10.0.0.1:7080/nocloud/{token}/"
    assert urls["phone_home"] == f"http://10.0.0.1:7080/phone-home/{token}"
    text = run(MAC, "--data-dir", tmp_path, "--public-ip", "10.0.0.1").output
    assert all(url in text for url in urls.values())
    key = (tmp_path / "metadata-token.key").read_text().strip()
    snippet = run(MAC, "--data-dir", tmp_path, "--public-ip", "10.0.0.1", "-o", "cloud-init").output
    assert key not in result.output + text + snippet


def test_edges_own_settings_are_read_from_its_environment(tmp_path: Path, keys: KeyFile) -> None:
    env = {"TINKEDGE_DATA_DIR": str(tmp_path), "TINKEDGE_INTERFACE": "a=10.0.0.1 lo", "TINKEDGE_HTTP_PORT": "80"}
    urls = json.loads(run(MAC, "-o", "json", **env, TINKEDGE_METADATA_TOKEN_LIFETIME="60").output)
    assert [url["ec2"].partition("/machine/")[0] for url in urls] == ["http://10.0.0.1:80", "http://127.0.0.1:80"]
    assert MetadataTokens(keys, clock=lambda: 0).mac(urls[0]["ec2"].rpartition("/")[2]) == MAC
    assert ".0." not in urls[0]["ec2"].rpartition("/")[2]


def test_cloud_init_snippet_is_what_its_name_says(tmp_path: Path, keys: KeyFile) -> None:
    result = run(MAC, "--data-dir", tmp_path, "--public-ip", "10.0.0.1", "-o", "cloud-init")
    config = yaml.safe_load(result.output)
    token = MetadataTokens(keys).mint(MAC)
    assert config["datasource_list"] == ["NoCloud"]
    assert config["datasource"]["NoCloud"]["seedfrom"] == f"http://10.0.0.1:7080/nocloud/{token}/"
    assert config["phone_home"]["url"] == f"http://10.0.0.1:7080/phone-home/{token}"
    two = run(MAC, "--data-dir", tmp_path, "--interface", "a=10.0.0.1", "--interface", "b=10.1.0.1", "-o", "cloud-init")
    assert two.exit_code == 2
    assert "--public-ip" in two.output


def test_name_of_a_hardware_becomes_its_first_mac(
    tmp_path: Path, keys: KeyFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    interfaces = {"no-mac": {}, MAC: {}, OTHER_MAC: {}}
    apis: dict[Path, InProcessApi] = {}
    closed: list[InProcessApi] = []

    class Api(InProcessApi):
        async def close(self) -> None:
            closed.append(self)
            await super().close()

    async def connect(kubeconfig: Path) -> InProcessApi:
        made = (hardware("m1", namespace="rack", interfaces=interfaces), hardware("m2", interfaces={}))
        return apis.setdefault(kubeconfig, Api(*made))

    monkeypatch.setattr("tink.kube.client.KubeClient.connect", connect)
    result = run("m1", "-n", "rack", "--data-dir", tmp_path, "--public-ip", "10.0.0.1", "-o", "json")
    token = json.loads(result.output)[0]["ec2"].rpartition("/")[2]
    assert MetadataTokens(keys).mac(token) == MAC
    empty = run("m2", "--data-dir", tmp_path, "--public-ip", "10.0.0.1", "--kubeconfig", tmp_path / "k")
    assert empty.exit_code == 1
    assert "Hardware default/m2: spec.networkInterfaces has no MAC address" in empty.output
    assert [*apis] == [tmp_path / "kubeconfig", tmp_path / "k"]
    assert closed == [*apis.values()]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["m1"], 1, "no such file"),
        ([MAC, "--public-ip", "x"], 2, "--public-ip"),
        ([MAC, "--interface", "nosuch"], 2, "no interface nosuch"),
        ([MAC, "--metadata-token-key", "/nonexistent/key"], 1, "The edge makes it at its start"),
    ],
)
def test_what_is_missing_is_said_with_what_to_do(
    tmp_path: Path, keys: KeyFile, arguments: list[str], code: int, said: str
) -> None:
    result = run(*arguments, "--data-dir", tmp_path, *([] if code == 2 else ["--public-ip", "10.0.0.1"]))
    assert result.exit_code == code
    assert said in result.output
    assert "Traceback" not in result.output
