"""The options about agents and metadata: what edge and server make of them, together and apart."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import click
import pytest

from edge.commands.serve import serving, settings
from edge.composition.machine_services import _boot_settings, metadata_settings
from edge.composition.settings import EDGE, Service, StackSettings
from tink.api.v1alpha2 import Raw
from tink.files.key_file import KeyFileError
from tink.server import AgentAuth

ALL = frozenset(Service)
SERVER = frozenset({Service.SERVER})


def told(services: frozenset[Service], *words: str) -> StackSettings:
    """What a command with the options of these services makes of `words`."""
    found: list[StackSettings] = []

    @click.command()
    @serving(*services, "client", "process")
    def command(**options: Any) -> None:
        found.append(settings(services, options))

    command.main(["--interface", "lo=127.0.0.1", *words], standalone_mode=False)
    return found[0]


def test_addresses_are_asked_for_and_nothing_is_encrypted_unless_told() -> None:
    for services in (ALL, SERVER, EDGE):
        server = told(services).server
        assert (server.agent_auth, server.tokens, server.tls) == (AgentAuth.ADDRESS, None, None)
        boot = _boot_settings(told(services), None)
        assert (boot.token, boot.tinkerbell_tls, boot.tls_ca) == (None, False, b"")


def test_edge_and_server_in_one_process_make_their_key(tmp_path: Path) -> None:
    made = told(ALL, "--agent-auth", "token", "--data-dir", str(tmp_path), "--agent-token-lifetime", "600")
    tokens = made.server.tokens
    assert tokens
    assert (tokens.key, tokens.lifetime, tokens.create) == (tmp_path / "agent-token.key", 600, True)
    token = _boot_settings(made, None).token
    assert token
    assert token("52:54:00:00:00:01").startswith("v1.525400000001.")


@pytest.mark.parametrize("services", [SERVER, EDGE])
def test_edge_and_server_apart_have_to_be_given_one_key(services: frozenset[Service], tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match="give both the same file"):
        told(services, "--agent-auth", "token")
    tokens = told(services, "--agent-auth", "token", "--agent-token-key", str(tmp_path / "key")).server.tokens
    assert tokens is not None
    assert (tokens.key, tokens.create) == (tmp_path / "key", False)


def test_edge_needs_no_certificates_for_agents_that_have_them() -> None:
    assert told(EDGE, "--agent-auth", "mtls").server.agent_auth is AgentAuth.ADDRESS
    with pytest.raises(click.UsageError, match="--grpc-client-ca"):
        told(SERVER, "--agent-auth", "mtls")


@pytest.mark.parametrize("words", [["--grpc-tls-cert", "c"], ["--grpc-tls-key", "k"], ["--grpc-client-ca", "a"]])
def test_half_of_a_certificate_is_refused(words: list[str]) -> None:
    with pytest.raises(click.UsageError, match="go together"):
        told(SERVER, *words)
    tls = told(SERVER, "--grpc-tls-cert", "c", "--grpc-tls-key", "k", "--grpc-client-ca", "a").server.tls
    assert tls is not None
    assert (tls.certificate, tls.key, tls.client_ca) == (Path("c"), Path("k"), Path("a"))


@pytest.mark.parametrize("lifetime", ["59", "nan", "1e12"])
def test_lifetime_of_no_use_is_refused(lifetime: str) -> None:
    with pytest.raises(click.UsageError):
        told(ALL, "--agent-auth", "token", "--agent-token-lifetime", lifetime)


def test_address_with_many_agents_gets_more_connections_and_calls() -> None:
    settings = told(SERVER, "--grpc-connections-per-address", "5000").server
    assert (settings.connections_per_address, settings.calls_per_address) == (5000, 5000)
    assert told(SERVER).server.connections_per_address is None


async def read(_namespace: str, _name: str) -> Raw:
    return {}


def test_nobody_is_believed_and_no_token_handed_out_unless_told(tmp_path: Path) -> None:
    made = told(EDGE, "--data-dir", str(tmp_path))
    metadata = metadata_settings(made, read)
    assert (metadata.trusted.proxies, metadata.trusted.nat) == ((), ())
    assert (metadata.token_lifetime, metadata.imds_required) == (0, False)
    assert _boot_settings(made, metadata).metadata_token is None
    assert stat.S_IMODE((tmp_path / "metadata-token.key").stat().st_mode) == 0o600


def test_what_is_told_is_done(tmp_path: Path) -> None:
    proxies = ("--trusted-proxies", "10.0.0.1, 2001:db8::/32,", "--metadata-nat", "10.9.0.0/16")
    tokens = ("--imds-tokens", "required", "--metadata-tokens", "--metadata-token-lifetime", "60")
    made = told(EDGE, "--data-dir", str(tmp_path), *proxies, *tokens)
    metadata = metadata_settings(made, read)
    assert [str(each) for each in metadata.trusted.proxies] == ["10.0.0.1/32", "2001:db8::/32"]
    assert [str(each) for each in metadata.trusted.nat] == ["10.9.0.0/16"]
    assert metadata.imds_required
    token = _boot_settings(made, metadata).metadata_token
    assert token is not None
    assert token("52:54:00:00:00:01").startswith("M1.525400000001.1")


@pytest.mark.parametrize("flag", ["--trusted-proxies", "--metadata-nat"])
@pytest.mark.parametrize("value", ["10.0.0.1/16", "10.0.0", "proxy.example", "10.0.0.0/33", "10.0.0.1 10.0.0.2", "*"])
def test_network_that_is_none_is_refused_at_the_start(flag: str, value: str) -> None:
    with pytest.raises(click.BadParameter, match="is no network such as"):
        told(EDGE, flag, value)


def test_edges_that_share_a_key_file_do_not_make_it(tmp_path: Path) -> None:
    made = told(EDGE, "--data-dir", str(tmp_path), "--metadata-token-key", str(tmp_path / "shared"))
    with pytest.raises(KeyFileError, match="shared"):
        metadata_settings(made, read)
    (tmp_path / "shared").write_text("a" * 64)
    metadata_settings(made, read)
    assert [each.name for each in tmp_path.iterdir()] == ["shared"]


def test_fast_path_is_taken_unless_told() -> None:
    assert told(EDGE).edge.fast_path
    assert not told(EDGE, "--no-fast-path").edge.fast_path
