"""Which machine an agent means, and who may act for it: by address, by token, by certificate."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.objects import CREATED, hardware
from tests.unit.server.conftest import Certify
from tink.api.v1alpha2 import Raw
from tink.kube.objects import NamespacedName
from tink.server.auth import (
    AgentAuth,
    AgentAuthorizer,
    AgentDirectory,
    Credentials,
    ForeignAgentError,
    NoCredentialsError,
    RefusedCallerError,
    TokenKeys,
    TokenSettings,
    UnknownAgentError,
)
from tink.server.peer import peer_address
from tink.server.settings import ServerSettings
from tink.server.tls import TlsFiles

MAC, SECOND, OTHER, THIEF = (f"52:54:00:00:00:{last}" for last in ("01", "02", "09", "66"))
NOW = 1_800_000_000.0
KEY = ("d", "h")
AT_HOME, ELSEWHERE = Credentials("192.0.2.1"), Credentials("198.51.100.9")


def machine(
    name: str, *macs: str, namespace: str = "d", ip: str | None = "192.0.2.1", agent_id: str = "", **metadata: Any
) -> Raw:
    interface: Raw = {"dhcp": {"ip": ip}} if ip else {}
    annotations = {"tinkerbell.org/agent-id": agent_id} if agent_id else None
    interfaces = dict.fromkeys(macs, interface)
    return hardware(name, namespace=namespace, interfaces=interfaces, annotations=annotations, metadata=metadata)


def directory_of(*machines: Raw) -> AgentDirectory:
    agents = AgentDirectory()
    for each in machines:
        agents.apply(each)
    return agents


@pytest.fixture
def directory() -> AgentDirectory:
    return directory_of(machine("h", MAC, SECOND), machine("other", OTHER, ip="192.0.2.9"))


@pytest.fixture
def keys(tmp_path: Path) -> TokenKeys:
    return TokenKeys(TokenSettings(tmp_path / "key", 3600, create=True))


def authorizer(
    agents: AgentDirectory, auth: AgentAuth, keys: TokenKeys | None = None, now: float = NOW
) -> AgentAuthorizer:
    return AgentAuthorizer(agents, auth, keys, lambda: now)


# --- which machine an agent means ---


@pytest.mark.parametrize("agent_id", [MAC, SECOND, MAC.upper(), "h", "d/h"])
def test_an_agent_is_known_by_any_mac_and_by_name(directory: AgentDirectory, agent_id: str) -> None:
    assert directory.find(agent_id) == KEY


@pytest.mark.parametrize("agent_id", ["", "x", "52:54:00:00:00:03", "x/h", "h\n"])
def test_anybody_else_is_unknown_by_name(directory: AgentDirectory, agent_id: str) -> None:
    with pytest.raises(UnknownAgentError, match="no Hardware has the MAC address or name"):
        directory.find(agent_id)


def test_an_id_of_several_machines_is_of_none_until_that_is_mended(directory: AgentDirectory) -> None:
    other = machine("h", MAC, namespace="e")
    directory.apply(other)
    with pytest.raises(UnknownAgentError, match="fits several Hardware, so it is none: d/h, e/h"):
        directory.find(MAC)
    assert directory.find("e/h") == ("e", "h")
    directory.remove(other)
    assert directory.find(MAC) == KEY


def test_agent_is_found_by_the_ids_of_its_hardware_and_never_by_those_of_another(directory: AgentDirectory) -> None:
    own = machine("i", "52:54:00:00:00:0a", namespace="e", agent_id="Rack1-U7")
    for each in (
        own,
        machine("rack1-u7", "52:54:00:00:00:0b", namespace="f"),
        machine("j", "52:54:00:00:00:0c", namespace="f", agent_id=MAC),
        machine("k", "52:54:00:00:00:0d", namespace="f", agent_id="d/h"),
    ):
        directory.apply(each)
    assert directory.id_of(directory.find("e/i")) == "Rack1-U7"
    assert directory.named("rack1-u7") == {("e", "i"), ("f", "rack1-u7")}
    assert directory.named("rack1-u7", names_first=True) == {("f", "rack1-u7")}
    assert directory.named(MAC) == directory.named("d/h") == {KEY}
    assert directory.find(MAC) == KEY, "and not 'fits several'"
    directory.remove(machine("rack1-u7", namespace="f"))
    assert directory.find("rack1-u7") == ("e", "i")
    directory.remove(own)
    with pytest.raises(UnknownAgentError):
        directory.find("rack1-u7")


def test_a_hardware_that_is_being_deleted_yields_its_mac_and_its_address(directory: AgentDirectory) -> None:
    directory.apply(machine("thief", MAC, namespace="e", deletionTimestamp=CREATED))
    assert directory.find(MAC) == KEY
    assert directory.at("192.0.2.1") == KEY
    directory.remove(machine("h"))
    assert directory.find(MAC) == ("e", "thief")


def test_a_changed_machine_loses_its_old_mac(directory: AgentDirectory) -> None:
    directory.apply(machine("h", SECOND))
    with pytest.raises(UnknownAgentError):
        directory.find(MAC)
    directory.apply({"metadata": {"name": "h", "namespace": "d"}, "spec": {"networkInterfaces": 5}})
    with pytest.raises(UnknownAgentError):
        directory.find("h")


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:192.0.2.1:4711", "192.0.2.1"),
        ("ipv6:%5B2001:db8::1%5D:4711", "2001:db8::1"),
        ("ipv6:[2001:db8::1]:4711", "2001:db8::1"),
        ("ipv6:%5B::ffff:192.0.2.1%5D:4711", "192.0.2.1"),
        ("ipv6:%5Bfe80::1%25eth0%5D:4711", "fe80::1"),
        ("unix:/run/x", "unix:/run/x"),
        ("ipv4:what:1", "ipv4:what:1"),
    ],
)
def test_the_address_in_a_peer(peer: str, address: str) -> None:
    assert peer_address(peer) == address


# --- by address ---


def test_the_address_must_be_one_of_the_machine(directory: AgentDirectory) -> None:
    directory.apply(machine("bare", THIEF, ip=None))
    six = hardware("six", "52:54:00:00:00:06", None, namespace="d", dhcp={"ipv6": {"address": "fd00:0:0::6"}})
    directory.apply(six)
    by_address = authorizer(directory, AgentAuth.ADDRESS)
    assert by_address.admit("h", AT_HOME) == KEY
    assert by_address.admit("six", Credentials("fd00::6")) == ("d", "six")
    authorizer(directory, AgentAuth.NONE).authorise(KEY, ELSEWHERE)
    for name, shown, why in (
        ("h", ELSEWHERE, r"198\.51\.100\.9 may not act for Hardware d/h, which has the addresses 192\.0\.2\.1$"),
        ("six", Credentials("fd00::7"), "may not act for Hardware d/six"),
        ("bare", AT_HOME, r"no spec.networkInterfaces\[\].dhcp.ip .*another --agent-auth"),
        ("gone", AT_HOME, "Hardware d/gone, which is not there"),
    ):
        with pytest.raises(ForeignAgentError, match=why) as caught:
            by_address.authorise(NamespacedName("d", name), shown)
        assert caught.value.code is grpc.StatusCode.PERMISSION_DENIED
    for agent_id, shown in ((MAC, ELSEWHERE), ("nobody", AT_HOME)):
        with pytest.raises(RefusedCallerError):
            by_address.admit(agent_id, shown)


def test_approved_machine_may_come_from_its_address_of_the_discovery_until_another_machine_has_that() -> None:
    former = {"tinkerbell.org/discovery-address": "192.0.2.200"}
    discovered = machine("discovery-52-54-00-00-00-01", MAC, ip="192.0.2.200", deletionTimestamp=CREATED)
    agents = directory_of(discovered, machine("h", MAC, annotations=former))
    by_address, here = authorizer(agents, AgentAuth.ADDRESS), Credentials("192.0.2.200")
    assert by_address.admit(MAC, here) == KEY
    assert by_address.admit(MAC, AT_HOME) == KEY
    agents.remove(discovered)
    assert by_address.admit(MAC, here) == KEY
    following = machine("discovery-52-54-00-00-00-02", SECOND, ip="192.0.2.200")
    agents.apply(following)
    with pytest.raises(ForeignAgentError):
        by_address.admit(MAC, here)
    assert by_address.admit(SECOND, here) == ("d", "discovery-52-54-00-00-00-02")
    agents.remove(following)
    assert by_address.admit(MAC, here) == KEY
    agents.apply(machine("h", MAC))
    with pytest.raises(ForeignAgentError):
        by_address.admit(MAC, here)


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
        seen.admit("h", AT_HOME)
    assert OTHER not in caught.value.public_message
    assert asked == [("192.0.2.1", (MAC, SECOND))]
    assert seen.admit("other", Credentials("192.0.2.9")) == ("d", "other")
    AgentAuthorizer(directory, AgentAuth.NONE, None, lambda: NOW, other_host).authorise(KEY, AT_HOME)


# --- ids that several Hardware have ---


SILENCERS = {
    "a Hardware of its name": ("h", ""),
    "a Hardware named like its annotation": ("rack1-u7", ""),
    "its annotation": ("a", "rack1-u7"),
    "its name as an annotation": ("a", "h"),
    "its MAC as an annotation": ("a", MAC),
    "its full name as an annotation": ("a", "d/h"),
}
"""The name and the annotation of another tenant's Hardware."""


@pytest.fixture
def victim() -> AgentDirectory:
    return directory_of(machine("h", MAC, agent_id="rack1-u7"))


def silence(victim: AgentDirectory, silencer: str) -> str:
    """Apply the Hardware of the other tenant, and return the id that both have."""
    name, agent_id = SILENCERS[silencer]
    victim.apply(machine(name, THIEF, namespace="e", ip="192.0.2.66", agent_id=agent_id))
    return agent_id or name


@pytest.mark.parametrize("silencer", SILENCERS)
@pytest.mark.parametrize("auth", [AgentAuth.ADDRESS, AgentAuth.TOKEN, AgentAuth.NONE])
def test_names_that_another_tenant_chooses_block_no_agent(
    victim: AgentDirectory, keys: TokenKeys, auth: AgentAuth, silencer: str
) -> None:
    agent_id = silence(victim, silencer)
    shown = Credentials("192.0.2.1", keys.mint(MAC, NOW))
    assert authorizer(victim, auth, keys).admit(agent_id, shown) == KEY
    if auth is not AgentAuth.NONE:
        with pytest.raises(RefusedCallerError):
            authorizer(victim, auth, keys).admit(agent_id, Credentials("192.0.2.77", keys.mint(OTHER, NOW)))


@pytest.mark.parametrize("silencer", ["a Hardware of its name", "a Hardware named like its annotation"])
def test_names_that_another_tenant_chooses_block_no_agent_with_a_certificate(
    victim: AgentDirectory, certify: Certify, silencer: str
) -> None:
    agent_id = silence(victim, silencer)
    by_certificate = authorizer(victim, AgentAuth.MTLS)
    pem = certify(common=agent_id).pem
    assert by_certificate.admit(MAC, Credentials("192.0.2.1", "", pem)) == KEY
    assert by_certificate.admit(agent_id, Credentials("192.0.2.1", "", pem)) == KEY
    for elsewhere in ("192.0.2.66", "192.0.2.77"):
        with pytest.raises(RefusedCallerError):
            by_certificate.admit(MAC, Credentials(elsewhere, "", pem))


def test_shared_id_is_not_that_of_a_machine_at_whose_address_another_host_is(victim: AgentDirectory) -> None:
    silence(victim, "a Hardware of its name")
    seen = AgentAuthorizer(victim, AgentAuth.ADDRESS, None, lambda: NOW, lambda _address, _macs: OTHER)
    with pytest.raises(RefusedCallerError, match="fits several Hardware, so it is none: d/h, e/h") as caught:
        seen.admit("h", AT_HOME)
    assert "d/h" not in caught.value.public_message
    assert "e/h" not in caught.value.public_message


@pytest.mark.parametrize("auth", [AgentAuth.ADDRESS, AgentAuth.TOKEN, AgentAuth.NONE])
def test_hardware_that_is_being_deleted_gets_no_agent_by_what_the_victim_had_later(
    victim: AgentDirectory, keys: TokenKeys, auth: AgentAuth
) -> None:
    victim.apply(machine("rack1-u7", MAC, namespace="e", deletionTimestamp=CREATED))
    for agent_id in ("rack1-u7", MAC, "h"):
        assert authorizer(victim, auth, keys).admit(agent_id, Credentials("192.0.2.1", keys.mint(MAC, NOW))) == KEY


def test_without_credentials_a_name_comes_before_an_annotation(victim: AgentDirectory) -> None:
    silence(victim, "its name as an annotation")
    nothing = authorizer(victim, AgentAuth.NONE)
    assert nothing.admit("h", Credentials("198.51.100.1")) == KEY
    assert nothing.admit("h", Credentials("192.0.2.66")) == ("e", "a"), "it calls itself so, at its own address"


# --- by token, and without what is asked for ---


@pytest.mark.parametrize("agent_id", [MAC, SECOND, "h", "d/h"])
def test_a_token_speaks_for_its_machine_by_each_of_its_names_and_from_anywhere(
    directory: AgentDirectory, keys: TokenKeys, agent_id: str
) -> None:
    credentials = Credentials("198.51.100.9", keys.mint(SECOND, NOW))
    assert authorizer(directory, AgentAuth.TOKEN, keys).admit(agent_id, credentials) == KEY


def test_a_token_of_another_machine_is_refused_and_never_shown(directory: AgentDirectory, keys: TokenKeys) -> None:
    by_token, token = authorizer(directory, AgentAuth.TOKEN, keys), keys.mint(OTHER, NOW)
    with pytest.raises(ForeignAgentError, match=f"its token is that of {OTHER}, another machine") as caught:
        by_token.admit(MAC, Credentials("192.0.2.1", token))
    assert caught.value.code is grpc.StatusCode.PERMISSION_DENIED
    with pytest.raises(ForeignAgentError):
        by_token.authorise(NamespacedName("d", "gone"), Credentials("192.0.2.1", token))
    with pytest.raises(ForeignAgentError, match="no token keys"):
        authorizer(directory, AgentAuth.TOKEN).admit(MAC, Credentials("192.0.2.1", keys.mint(MAC, NOW)))
    for shown in (token, token[:-1] + "!", "hunter2"):
        with pytest.raises(ForeignAgentError) as caught:
            authorizer(directory, AgentAuth.TOKEN, keys, NOW + 9e9).admit(MAC, Credentials("p", shown))
        assert shown not in str(caught.value)
        assert shown not in repr(Credentials("p", shown))


@pytest.mark.parametrize(
    ("auth", "why"),
    [
        (AgentAuth.TOKEN, "its request has no token; a machine gets one as tinkerbell_token="),
        (AgentAuth.MTLS, "shows no client certificate"),
    ],
)
def test_caller_without_credentials_learns_which_are_missing(
    directory: AgentDirectory, keys: TokenKeys, auth: AgentAuth, why: str
) -> None:
    with pytest.raises(NoCredentialsError, match=why) as caught:
        authorizer(directory, auth, keys).admit(MAC, AT_HOME)
    assert caught.value.code is grpc.StatusCode.UNAUTHENTICATED


def test_a_renewed_token_lasts_longer_and_is_of_the_same_machine(directory: AgentDirectory, keys: TokenKeys) -> None:
    credentials = Credentials("p", keys.mint(SECOND, NOW))
    renewed = authorizer(directory, AgentAuth.TOKEN, keys, NOW + 1800).renewed(credentials)
    assert renewed is not None
    token, seconds = renewed
    assert keys.verify(token, NOW + 1800 + 3600).mac == SECOND
    assert seconds == 1800, "half of its life, so that an agent that can't connect for a while has the other half"
    assert authorizer(directory, AgentAuth.ADDRESS).renewed(credentials) is None


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
