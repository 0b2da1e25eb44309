"""Who may speak for a machine: by address, by token, by certificate."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509

from tests.support.objects import hardware
from tests.unit.server.conftest import Certify
from tink.api.v1alpha2 import Raw
from tink.kube.objects import NamespacedName
from tink.server.agents.auth import (
    AgentAuth,
    AgentAuthorizer,
    Credentials,
    ForeignAgentError,
    NoCredentialsError,
    RefusedError,
    certificate_ids,
)
from tink.server.agents.directory import AgentDirectory
from tink.server.agents.tls import TlsFiles
from tink.server.agents.tokens import TokenKeys, TokenSettings
from tink.server.settings import ServerSettings

MAC, SECOND, OTHER = "52:54:00:00:00:01", "52:54:00:00:00:02", "52:54:00:00:00:09"
NOW = 1_800_000_000.0
KEY = ("d", "h")


def machine(name: str, *macs: str, namespace: str = "d", ip: str | None = "192.0.2.1") -> Raw:
    interface: Raw = {"dhcp": {"ip": ip}} if ip else {}
    return hardware(name, namespace=namespace, interfaces=dict.fromkeys(macs, interface))


@pytest.fixture
def directory() -> AgentDirectory:
    agents = AgentDirectory()
    agents.apply(machine("h", MAC, SECOND))
    agents.apply(machine("other", OTHER, ip="192.0.2.9"))
    return agents


@pytest.fixture
def keys(tmp_path: Path) -> TokenKeys:
    return TokenKeys(TokenSettings(tmp_path / "key", 3600, create=True))


def authorizer(
    agents: AgentDirectory, auth: AgentAuth, keys: TokenKeys | None = None, now: float = NOW
) -> AgentAuthorizer:
    return AgentAuthorizer(agents, auth, keys, lambda: now)


# --- by address ---


def test_the_address_must_be_one_of_the_machine(directory: AgentDirectory) -> None:
    by_address = authorizer(directory, AgentAuth.ADDRESS)
    assert by_address.admit("h", Credentials("192.0.2.1")) == KEY
    authorizer(directory, AgentAuth.NONE).authorise(KEY, Credentials("198.51.100.9"))
    with pytest.raises(
        ForeignAgentError, match=r"198\.51\.100\.9 can't speak for Hardware d/h, which has the addresses 192\.0\.2\.1$"
    ) as caught:
        by_address.admit(MAC, Credentials("198.51.100.9"))
    assert caught.value.code is grpc.StatusCode.PERMISSION_DENIED
    with pytest.raises(RefusedError):
        by_address.admit("nobody", Credentials("192.0.2.1"))


def test_the_address_may_be_the_machines_ipv6_address(directory: AgentDirectory) -> None:
    six = machine("six", "52:54:00:00:00:06", ip=None)
    six["spec"]["networkInterfaces"]["52:54:00:00:00:06"] = {"dhcp": {"ipv6": {"address": "fd00:0:0::6"}}}
    directory.apply(six)
    by_address = authorizer(directory, AgentAuth.ADDRESS)
    assert by_address.admit("six", Credentials("fd00::6")) == ("d", "six")
    with pytest.raises(ForeignAgentError):
        by_address.admit("six", Credentials("fd00::7"))


def test_service_that_masquerades_is_named_when_a_second_machine_comes_from_its_address(
    directory: AgentDirectory,
) -> None:
    by_address, node = authorizer(directory, AgentAuth.ADDRESS), Credentials("10.0.0.5")

    def refused(agent_id: str) -> str:
        with pytest.raises(ForeignAgentError) as caught:
            by_address.admit(agent_id, node)
        assert "externalTrafficPolicy" not in caught.value.public_message
        return str(caught.value)

    assert "externalTrafficPolicy" not in refused("h")
    assert "externalTrafficPolicy" not in refused("h"), "one that comes again is still one machine"
    assert "give the Service externalTrafficPolicy: Local" in refused("other")
    for last in range(300):
        with pytest.raises(ForeignAgentError):
            by_address.admit("h", Credentials(f"10.1.{last // 250}.{last % 250}"))
    assert len(by_address._refused) == 256


def test_another_machine_at_the_address_is_not_the_one(directory: AgentDirectory) -> None:
    asked: list[tuple[str, tuple[str, ...]]] = []

    def other_host(address: str, macs: Collection[str]) -> str | None:
        asked.append((address, tuple(macs)))
        return OTHER if address == "192.0.2.1" else None

    seen = AgentAuthorizer(directory, AgentAuth.ADDRESS, None, lambda: NOW, other_host)
    why = f"d/h, which has that address, as has {OTHER}, which is no MAC of it"
    with pytest.raises(ForeignAgentError, match=why) as caught:
        seen.admit("h", Credentials("192.0.2.1"))
    assert OTHER not in caught.value.public_message
    assert asked == [("192.0.2.1", (MAC, SECOND))]
    assert seen.admit("other", Credentials("192.0.2.9")) == ("d", "other")
    AgentAuthorizer(directory, AgentAuth.NONE, None, lambda: NOW, other_host).authorise(KEY, Credentials("192.0.2.1"))


# --- ids that several Hardware have ---


def annotated(name: str, mac: str, agent_id: str, ip: str, namespace: str = "d") -> Raw:
    made = machine(name, mac, namespace=namespace, ip=ip)
    made["metadata"]["annotations"] = {"tinkerbell.org/agent-id": agent_id}
    return made


THIEF = "52:54:00:00:00:66"
SILENCERS = {
    "a Hardware of its name": (machine("h", THIEF, namespace="e", ip="192.0.2.66"), "h"),
    "a Hardware named like its annotation": (machine("rack1-u7", THIEF, namespace="e", ip="192.0.2.66"), "rack1-u7"),
    "its annotation": (annotated("a", THIEF, "rack1-u7", "192.0.2.66", "e"), "rack1-u7"),
    "its name as an annotation": (annotated("a", THIEF, "h", "192.0.2.66", "e"), "h"),
    "its MAC as an annotation": (annotated("a", THIEF, MAC, "192.0.2.66", "e"), MAC),
    "its full name as an annotation": (annotated("a", THIEF, "d/h", "192.0.2.66", "e"), "d/h"),
}


@pytest.fixture
def victim() -> AgentDirectory:
    agents = AgentDirectory()
    agents.apply(annotated("h", MAC, "rack1-u7", "192.0.2.1"))
    return agents


@pytest.mark.parametrize("silencer", SILENCERS)
@pytest.mark.parametrize("auth", [AgentAuth.ADDRESS, AgentAuth.TOKEN, AgentAuth.NONE])
def test_names_that_another_tenant_chooses_block_no_agent(
    victim: AgentDirectory, keys: TokenKeys, auth: AgentAuth, silencer: str
) -> None:
    thief, agent_id = SILENCERS[silencer]
    victim.apply(thief)
    shown = Credentials("192.0.2.1", keys.mint(MAC, NOW))
    assert authorizer(victim, auth, keys).admit(agent_id, shown) == KEY
    if auth is not AgentAuth.NONE:
        with pytest.raises(RefusedError):
            authorizer(victim, auth, keys).admit(agent_id, Credentials("192.0.2.77", keys.mint(OTHER, NOW)))


@pytest.mark.parametrize("silencer", ["a Hardware of its name", "a Hardware named like its annotation"])
def test_names_that_another_tenant_chooses_block_no_agent_with_a_certificate(
    victim: AgentDirectory, certify: Certify, silencer: str
) -> None:
    thief, agent_id = SILENCERS[silencer]
    victim.apply(thief)
    by_certificate = authorizer(victim, AgentAuth.MTLS)
    pem = certify(common=agent_id).pem
    assert by_certificate.admit(MAC, Credentials("192.0.2.1", "", pem)) == KEY
    assert by_certificate.admit(agent_id, Credentials("192.0.2.1", "", pem)) == KEY
    for elsewhere in ("192.0.2.66", "192.0.2.77"):
        with pytest.raises(RefusedError):
            by_certificate.admit(MAC, Credentials(elsewhere, "", pem))


def test_shared_id_is_not_that_of_a_machine_at_whose_address_another_host_is(victim: AgentDirectory) -> None:
    victim.apply(SILENCERS["a Hardware of its name"][0])
    seen = AgentAuthorizer(victim, AgentAuth.ADDRESS, None, lambda: NOW, lambda _address, _macs: OTHER)
    with pytest.raises(RefusedError, match="fits several Hardware, so it is none: d/h, e/h") as caught:
        seen.admit("h", Credentials("192.0.2.1"))
    assert "d/h" not in caught.value.public_message
    assert "e/h" not in caught.value.public_message


@pytest.mark.parametrize("auth", [AgentAuth.ADDRESS, AgentAuth.TOKEN, AgentAuth.NONE])
def test_hardware_that_is_being_deleted_gets_no_agent_by_what_the_victim_had_later(
    victim: AgentDirectory, keys: TokenKeys, auth: AgentAuth
) -> None:
    thief = machine("rack1-u7", MAC, namespace="e", ip="192.0.2.1")
    thief["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    victim.apply(thief)
    for agent_id in ("rack1-u7", MAC, "h"):
        assert authorizer(victim, auth, keys).admit(agent_id, Credentials("192.0.2.1", keys.mint(MAC, NOW))) == KEY


def test_without_credentials_a_name_comes_before_an_annotation(victim: AgentDirectory) -> None:
    victim.apply(SILENCERS["its name as an annotation"][0])
    nothing = authorizer(victim, AgentAuth.NONE)
    assert nothing.admit("h", Credentials("198.51.100.1")) == KEY
    assert nothing.admit("h", Credentials("192.0.2.66")) == ("e", "a"), "it calls itself so, at its own address"


def test_a_machine_without_address_says_what_to_do() -> None:
    agents = AgentDirectory()
    agents.apply(machine("h", MAC, ip=None))
    with pytest.raises(ForeignAgentError, match=r"no spec.networkInterfaces\[\].dhcp.ip .*another --agent-auth"):
        authorizer(agents, AgentAuth.ADDRESS).authorise(KEY, Credentials("192.0.2.1"))
    with pytest.raises(ForeignAgentError, match="Hardware d/gone, which is not there"):
        authorizer(agents, AgentAuth.ADDRESS).authorise(NamespacedName("d", "gone"), Credentials("192.0.2.1"))


# --- by token ---


@pytest.mark.parametrize("agent_id", [MAC, SECOND, "h", "d/h"])
def test_a_token_speaks_for_its_machine_by_each_of_its_names_and_from_anywhere(
    directory: AgentDirectory, keys: TokenKeys, agent_id: str
) -> None:
    credentials = Credentials("198.51.100.9", keys.mint(SECOND, NOW))
    assert authorizer(directory, AgentAuth.TOKEN, keys).admit(agent_id, credentials) == KEY


def test_a_token_of_another_machine_is_refused(directory: AgentDirectory, keys: TokenKeys) -> None:
    credentials = Credentials("192.0.2.1", keys.mint(OTHER, NOW))
    with pytest.raises(ForeignAgentError, match=f"its token is that of {OTHER}, another machine") as caught:
        authorizer(directory, AgentAuth.TOKEN, keys).admit(MAC, credentials)
    assert caught.value.code is grpc.StatusCode.PERMISSION_DENIED
    with pytest.raises(ForeignAgentError):
        authorizer(directory, AgentAuth.TOKEN, keys).authorise(NamespacedName("d", "gone"), credentials)


def test_who_shows_no_token_is_told_that_it_is_missing(directory: AgentDirectory, keys: TokenKeys) -> None:
    with pytest.raises(NoCredentialsError, match="shows no token; a machine gets one as tinkerbell_token=") as caught:
        authorizer(directory, AgentAuth.TOKEN, keys).admit(MAC, Credentials("192.0.2.1"))
    assert caught.value.code is grpc.StatusCode.UNAUTHENTICATED


def test_a_refusal_never_shows_the_token(directory: AgentDirectory, keys: TokenKeys) -> None:
    token = keys.mint(OTHER, NOW)
    for credentials in (Credentials("p", token), Credentials("p", token[:-1] + "!"), Credentials("p", "hunter2")):
        with pytest.raises(ForeignAgentError) as caught:
            authorizer(directory, AgentAuth.TOKEN, keys, NOW + 9e9).admit(MAC, credentials)
        assert credentials.token not in str(caught.value)
        assert credentials.token not in repr(credentials)


def test_a_renewed_token_lasts_longer_and_is_of_the_same_machine(directory: AgentDirectory, keys: TokenKeys) -> None:
    credentials = Credentials("p", keys.mint(SECOND, NOW))
    renewed = authorizer(directory, AgentAuth.TOKEN, keys, NOW + 1800).renewed(credentials)
    assert renewed is not None
    token, seconds = renewed
    assert keys.verify(token, NOW + 1800 + 3600).mac == SECOND
    assert seconds == 1800, "half of its life, so that an agent that can't connect for a while has the other half"
    assert authorizer(directory, AgentAuth.ADDRESS).renewed(credentials) is None


def test_token_auth_without_keys_lets_nobody_in(directory: AgentDirectory, keys: TokenKeys) -> None:
    with pytest.raises(ForeignAgentError, match="no token keys"):
        authorizer(directory, AgentAuth.TOKEN).admit(MAC, Credentials("192.0.2.1", keys.mint(MAC, NOW)))


# --- by certificate ---

DNS, URI = x509.DNSName, x509.UniformResourceIdentifier


@pytest.mark.parametrize(
    "names",
    [
        {"alternative": [DNS("52-54-00-00-00-01")]},
        {"alternative": [DNS("h")]},
        {"alternative": [DNS("h.d")]},
        {"alternative": [DNS("x"), DNS("H")]},
        {"alternative": [URI("tinkerbell:52:54:00:00:00:02")]},
        {"alternative": [URI("tinkerbell:d/h")]},
        {"common": MAC.upper()},
        {"common": "h"},
        {"common": "d/h"},
        {"common": "h", "alternative": [x509.IPAddress(ipaddress.ip_address("192.0.2.1"))]},
    ],
)
def test_a_certificate_speaks_for_the_machine_in_its_names(
    directory: AgentDirectory, certify: Certify, names: dict[str, Any]
) -> None:
    assert authorizer(directory, AgentAuth.MTLS).admit(MAC, Credentials("p", "", certify(**names).pem)) == KEY


@pytest.mark.parametrize(
    "names",
    [
        {"common": "other"},
        {"common": "nobody"},
        {"common": "h", "alternative": [DNS("other")]},
        {"alternative": [DNS("h.e")]},
        {"alternative": [URI("http://d/h")]},
        {"alternative": [URI("d/h")]},
        {"alternative": [URI("tinkerbell:d/other")]},
        {"alternative": [x509.RFC822Name("h@example.org")]},
        {},
    ],
)
def test_a_certificate_of_anybody_else_is_refused(
    directory: AgentDirectory, certify: Certify, names: dict[str, Any]
) -> None:
    with pytest.raises(ForeignAgentError, match="d/h: its certificate names ") as caught:
        authorizer(directory, AgentAuth.MTLS).admit(MAC, Credentials("192.0.2.1", "", certify(**names).pem))
    assert caught.value.code is grpc.StatusCode.PERMISSION_DENIED


def test_a_name_that_two_machines_have_is_of_none(directory: AgentDirectory, certify: Certify) -> None:
    directory.apply(machine("h", OTHER[:-1] + "a", namespace="e"))
    with pytest.raises(ForeignAgentError):
        authorizer(directory, AgentAuth.MTLS).admit(MAC, Credentials("p", "", certify(common="h").pem))
    authorizer(directory, AgentAuth.MTLS).admit(MAC, Credentials("p", "", certify(alternative=[DNS("h.d")]).pem))


def test_who_shows_no_certificate_is_told_so(directory: AgentDirectory) -> None:
    with pytest.raises(NoCredentialsError, match="shows no client certificate"):
        authorizer(directory, AgentAuth.MTLS).admit(MAC, Credentials("192.0.2.1", "a token"))


def test_what_is_no_certificate_names_nobody() -> None:
    assert certificate_ids(b"") == ()
    assert certificate_ids(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n") == ()


# --- what fits together ---


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"agent_auth": AgentAuth.TOKEN}, "--agent-token-key"),
        ({"agent_auth": AgentAuth.MTLS}, "--grpc-client-ca"),
        ({"agent_auth": AgentAuth.MTLS, "tls": TlsFiles(Path("c"), Path("k"))}, "--grpc-client-ca"),
        ({"calls": 0}, "calls"),
        ({"calls_per_address": 0}, "calls_per_address"),
    ],
)
def test_a_way_without_what_it_needs_is_refused_at_the_start(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ServerSettings(**settings)
