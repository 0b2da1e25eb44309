"""The options about agents: what edge and server make of them, together and apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from edge.commands.serve import serving, settings
from edge.composition.machine_services import _boot_settings
from edge.composition.settings import EDGE, Service, StackSettings
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
    assert tokens is not None
    assert (tokens.key, tokens.lifetime, tokens.create) == (tmp_path / "agent-token.key", 600, True)
    boot = _boot_settings(made, None)
    assert boot.token is not None
    assert boot.token("52:54:00:00:00:01").startswith("v1.525400000001.")


@pytest.mark.parametrize("services", [SERVER, EDGE])
def test_edge_and_server_apart_have_to_be_given_one_key(services: frozenset[Service], tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match="give both the same file"):
        told(services, "--agent-auth", "token")
    tokens = told(services, "--agent-auth", "token", "--agent-token-key", str(tmp_path / "key")).server.tokens
    assert tokens is not None
    assert (tokens.key, tokens.create) == (tmp_path / "key", False)


def test_an_edge_needs_no_certificates_for_agents_that_have_them() -> None:
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
def test_a_lifetime_of_no_use_is_refused(lifetime: str) -> None:
    with pytest.raises(click.UsageError):
        told(ALL, "--agent-auth", "token", "--agent-token-lifetime", lifetime)


def test_an_address_with_many_agents_gets_more_connections_and_calls() -> None:
    settings = told(SERVER, "--grpc-connections-per-address", "5000").server
    assert (settings.connections_per_address, settings.calls_per_address) == (5000, 5000)
    assert told(SERVER).server.connections_per_address is None
