"""Client certificates: each names the machine that it spells, or none, and never another, whatever trick it tries."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Callable

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from tests.support.objects import hardware
from tests.unit.server.conftest import Certify
from tink.kube.objects import NamespacedName
from tink.server.auth import (
    AgentAuth,
    AgentAuthorizer,
    AgentDirectory,
    Credentials,
    ForeignAgentError,
    UnknownAgentError,
    certificate_ids,
)

DNS = x509.DNSName
ODD = "\0\n\t *.:/-%\\aAkK01\u212a\u0130\u017f\uff21\u200b\u0301"
"""Separators, and letters that change in lower case or can't be seen."""
MAC = "52:54:00:00:00:01"
NAME = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")])
MACHINES = ["d/kate", "d/other", "d/a.b", "b/a", "d/a-b-c-d-e-strange", "d/twin", "e/twin"]
"""The MAC of each ends with its number, from 01 on; kate has another."""


@pytest.fixture(scope="module")
def agents() -> AgentDirectory:
    directory = AgentDirectory()
    for number, each in enumerate(MACHINES, 1):
        namespace, name = each.split("/")
        macs = [f"52:54:00:00:00:{number:02}", *(["52:54:00:00:00:11"] if name == "kate" else [])]
        directory.apply(hardware(name, namespace=namespace, interfaces={mac: {} for mac in macs}))
    return directory


@pytest.fixture(scope="module")
def speaks_for(agents: AgentDirectory, certify: Certify) -> Callable[[str], list[str]]:
    """Return the machines for which an agent with a certificate of these names may speak.

    `names` are KIND=NAME, more of them after "; ": cn is the common name, the others are alternative names.
    """
    authorizer = AgentAuthorizer(agents, AgentAuth.MTLS, None, lambda: 0.0)
    kinds = {"dns": DNS, "uri": x509.UniformResourceIdentifier, "mail": x509.RFC822Name}
    kinds["ip"] = lambda address: x509.IPAddress(ipaddress.ip_address(address))  # type: ignore[assignment]

    def may(each: str, shown: Credentials) -> bool:
        try:
            authorizer.authorise(NamespacedName(*each.split("/")), shown)
        except ForeignAgentError:
            return False
        return True

    def ask(names: str) -> list[str]:
        given = [name.partition("=")[::2] for name in names.split("; ") if name]
        alternative = [kinds[kind](name) for kind, name in given if kind != "cn"]
        pem = certify(common=dict(given).get("cn", ""), alternative=alternative).pem
        return [each for each in MACHINES if may(each, Credentials("192.0.2.66", "", pem))]

    return ask


NAMES: dict[str, list[str]] = {
    "d/kate": [
        *("dns=52-54-00-00-00-01", "dns=kate", "dns=kate.d", "dns=x; dns=KATE", "dns=Kate.D", "dns=a.b; dns=kate"),
        *("uri=tinkerbell:52:54:00:00:00:11", "uri=tinkerbell:d/kate"),
        *(f"cn={MAC}", "cn=kate", "cn=d/kate", "cn=kate; ip=192.0.2.1"),
    ],
    "d/other": ["cn=other", "cn=kate; dns=other", "uri=tinkerbell:d/other"],
    "d/a-b-c-d-e-strange": ["dns=a-b-c-d-e-strange"],  # as long as a MAC, with as many dashes
    "d/a.b": ["dns=a.b.d"],
    "b/a": ["uri=tinkerbell:b/a"],
    "d/twin": ["dns=twin.d"],
    "": [
        *("cn=nobody", "dns=kate.e", "uri=http://d/kate", "uri=d/kate", "mail=kate@example.org", ""),
        # The Hardware a.b, or the Hardware a in the namespace b: the authority meant one of them.
        *("dns=a.b", "cn=twin"),
        "cn=\u212aate",  # the Kelvin sign in lower case is a k
    ],
}
TRICKS = [
    *("kate\0", "\0kate", "kate\0.evil.example", "52-54-00-00-00-01\0", "*", "*.d", "k*", "kate.*", "*-54-00-00-00-01"),
    *("kate.", ".kate", "kate.d.", "kate..d", ".kate.d", "d.kate", "kate.d.example", "52-54-00-00-00-01.", "kate "),
    *(" kate", "kate\n", "52-54-00-00-00-01\n", "k%61te", "d%2Fkate", "tinkerbell:d/kate", ""),
]


@pytest.mark.parametrize(("names", "machine"), [(each, machine) for machine, names in NAMES.items() for each in names])
def test_certificate_speaks_for_the_machine_in_its_names(
    speaks_for: Callable[[str], list[str]], names: str, machine: str
) -> None:
    assert speaks_for(names) == [machine] * bool(machine)


@pytest.mark.parametrize("name", TRICKS)
def test_forged_names_match_no_hardware(speaks_for: Callable[[str], list[str]], name: str) -> None:
    assert [speaks_for(f"{kind}{name}") for kind in ("dns=", "uri=tinkerbell:", "cn=")] == [[], [], []]


def test_only_some_of_ten_thousand_names_are_read_and_shown(certify: Certify, agents: AgentDirectory) -> None:
    pem = certify(alternative=[DNS(f"{'n' * 50}{number}") for number in range(10_000)] + [DNS("kate")]).pem
    by_certificate = AgentAuthorizer(agents, AgentAuth.MTLS, None, lambda: 0.0)
    with pytest.raises(ForeignAgentError, match="d/kate: its certificate names ") as caught:
        by_certificate.authorise(NamespacedName("d", "kate"), Credentials("192.0.2.66", "", pem))
    assert caught.value.code is grpc.StatusCode.PERMISSION_DENIED
    assert len(certificate_ids(pem)) == 64
    assert len(str(caught.value)) < 1000, "the log gets a line, not a page"
    assert "and more" in str(caught.value)


def test_a_name_that_is_cut_off_is_no_name(certify: Certify) -> None:
    assert certificate_ids(certify(alternative=[DNS("n" * 321), DNS("n" * 320)]).pem) == (("n" * 320,),)


def broken(pem: bytes, old: bytes, new: bytes) -> bytes:
    """Return a certificate (PEM) with `new` in place of `old` in its DER. Its signature is not checked here."""
    der = x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)
    assert der.count(old) == 1
    return ssl.DER_cert_to_PEM_cert(der.replace(old, new)).encode()


def test_invalid_certificates_have_no_names(certify: Certify) -> None:
    assert certificate_ids(b"") == ()
    assert certificate_ids(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n") == ()
    twice = certify(alternative=[DNS("kate")], also=[x509.IssuerAlternativeName([DNS("other")])]).pem
    assert certificate_ids(broken(twice, b"\x55\x1d\x12", b"\x55\x1d\x11")) == ()
    tagged = NAME.public_bytes()
    old, new = (bytes([tag, len(tagged)]) + tagged for tag in (0xA4, 0xA3))  # an x400Address, which is ignored
    assert certificate_ids(broken(certify(alternative=[DNS("kate"), x509.DirectoryName(NAME)]).pem, old, new)) == ()


@given(st.text(ODD, max_size=8), st.sampled_from(["kate", "d/kate", MAC]), st.integers(0, 40))
def test_no_letter_more_is_the_same_id(agents: AgentDirectory, more: str, agent_id: str, at: int) -> None:
    changed = agent_id[:at] + more + agent_id[at:]
    if changed.lower() == agent_id:
        return
    assert ("d", "kate") not in agents.named(changed)
    if not agents.named(changed):
        with pytest.raises(UnknownAgentError):
            agents.find(changed)
