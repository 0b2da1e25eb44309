"""Client certificates whose names are a trick: they name the machine that they spell, or none, and never another."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from tests.support.objects import hardware
from tests.unit.server.conftest import Certify
from tink.api.v1alpha2 import Raw
from tink.kube.objects import NamespacedName
from tink.server.agents.auth import AgentAuth, AgentAuthorizer, Credentials, ForeignAgentError, certificate_ids
from tink.server.agents.directory import AgentDirectory, UnknownAgentError

DNS, URI = x509.DNSName, x509.UniformResourceIdentifier
ODD = "\0\n\t *.:/-%\\aAkK01\u212a\u0130\u017f\uff21\u200b\u0301"
"""Separators, and letters that change in lower case or can't be seen."""
MAC = "52:54:00:00:00:01"
NAME = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")])


def machine(name: str, mac: str, namespace: str = "d") -> Raw:
    return hardware(name, mac, None, namespace=namespace)


MACHINES = [
    machine("kate", MAC),
    machine("other", "52:54:00:00:00:02"),
    machine("a.b", "52:54:00:00:00:03"),
    machine("a", "52:54:00:00:00:04", "b"),
    machine("a-b-c-d-e-strange", "52:54:00:00:00:05"),
]


@pytest.fixture(scope="module")
def agents() -> AgentDirectory:
    directory = AgentDirectory()
    for each in MACHINES:
        directory.apply(each)
    return directory


@pytest.fixture(scope="module")
def speaks_for(agents: AgentDirectory) -> Callable[[bytes], set[NamespacedName]]:
    """All machines that whoever shows this certificate (PEM) may speak for."""
    authorizer = AgentAuthorizer(agents, AgentAuth.MTLS, None, lambda: 0.0)

    def ask(pem: bytes) -> set[NamespacedName]:
        may = set()
        for each in MACHINES:
            key = (each["metadata"]["namespace"], each["metadata"]["name"])
            try:
                authorizer.authorise(key, Credentials("192.0.2.66", "", pem))
            except ForeignAgentError:
                continue
            may.add(key)
        return may

    return ask


TRICKS = [
    "kate\0",
    "\0kate",
    "kate\0.evil.example",
    "52-54-00-00-00-01\0",
    "*",
    "*.d",
    "k*",
    "kate.*",
    "*-54-00-00-00-01",
    "kate.",
    ".kate",
    "kate.d.",
    "kate..d",
    ".kate.d",
    "d.kate",
    "kate.d.example",
    "52-54-00-00-00-01.",
    "kate ",
    " kate",
    "kate\n",
    "52-54-00-00-00-01\n",
    "k%61te",
    "d%2Fkate",
    "tinkerbell:d/kate",
    "",
]


@pytest.mark.parametrize("name", TRICKS)
def test_a_trick_names_nobody(certify: Certify, speaks_for: Any, name: str) -> None:
    assert speaks_for(certify(alternative=[DNS(name)]).pem) == set()
    assert speaks_for(certify(alternative=[URI(f"tinkerbell:{name}")]).pem) == set()
    assert speaks_for(certify(common=name).pem) == set()


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("KATE", ("d", "kate")),
        ("Kate.D", ("d", "kate")),
        ("52-54-00-00-00-01", ("d", "kate")),
        ("a-b-c-d-e-strange", ("d", "a-b-c-d-e-strange")),  # as long as a MAC, with as many dashes
        ("a.b.d", ("d", "a.b")),
    ],
)
def test_a_name_in_any_case_is_its_machine_alone(
    certify: Certify, speaks_for: Any, name: str, key: NamespacedName
) -> None:
    assert speaks_for(certify(alternative=[DNS(name)]).pem) == {key}


def test_letters_that_only_look_alike_name_nobody(certify: Certify, speaks_for: Any) -> None:
    """The Kelvin sign in lower case is a k."""
    assert "\u212aate".lower() == "kate"
    assert speaks_for(certify(common="\u212aate").pem) == set()


def test_a_name_that_can_be_read_as_two_machines_is_of_none(certify: Certify, speaks_for: Any) -> None:
    """`a.b` is the Hardware a.b, and the Hardware a in the namespace b: whoever signed it meant one of them."""
    assert speaks_for(certify(alternative=[DNS("a.b")]).pem) == set()
    assert speaks_for(certify(alternative=[DNS("a.b"), DNS("kate")]).pem) == {("d", "kate")}
    assert speaks_for(certify(alternative=[URI("tinkerbell:b/a")]).pem) == {("b", "a")}


def test_ten_thousand_names_are_not_all_read_nor_told(certify: Certify, agents: AgentDirectory) -> None:
    pem = certify(alternative=[DNS(f"{'n' * 50}{number}") for number in range(10_000)] + [DNS("kate")]).pem
    with pytest.raises(ForeignAgentError) as caught:
        AgentAuthorizer(agents, AgentAuth.MTLS, None, lambda: 0.0).authorise(
            ("d", "kate"), Credentials("192.0.2.66", "", pem)
        )
    assert len(certificate_ids(pem)) == 64
    assert len(str(caught.value)) < 1000, "the log gets a line, not a page"
    assert "and more" in str(caught.value)


def test_a_name_that_is_cut_off_is_no_name(certify: Certify) -> None:
    assert certificate_ids(certify(alternative=[DNS("n" * 321), DNS("n" * 320)]).pem) == (("n" * 320,),)


def made_wrong(certify: Certify, extension: x509.ExtensionType, old: bytes, new: bytes) -> bytes:
    """A certificate (PEM) that no library would make: `old` in its DER is `new`. Nobody checks the signature here."""
    made = x509.load_pem_x509_certificate(certify(alternative=[DNS("kate")], also=[extension]).pem)
    der = made.public_bytes(Encoding.DER)
    assert der.count(old) == 1
    return ssl.DER_cert_to_PEM_cert(der.replace(old, new)).encode()


def test_a_certificate_that_breaks_the_rules_names_nobody(certify: Certify) -> None:
    twice = x509.IssuerAlternativeName([DNS("other")])
    assert certificate_ids(made_wrong(certify, twice, b"\x55\x1d\x12", b"\x55\x1d\x11")) == ()
    made = x509.load_pem_x509_certificate(certify(alternative=[DNS("kate"), x509.DirectoryName(NAME)]).pem)
    der = made.public_bytes(Encoding.DER)
    tagged = NAME.public_bytes()
    old, new = (bytes([tag, len(tagged)]) + tagged for tag in (0xA4, 0xA3))  # an x400Address, which nobody reads
    assert der.count(old) == 1
    assert certificate_ids(ssl.DER_cert_to_PEM_cert(der.replace(old, new)).encode()) == ()


@given(st.text(ODD, max_size=8), st.sampled_from(["kate", "d/kate", MAC]), st.integers(0, 40))
def test_no_letter_more_is_the_same_id(agents: AgentDirectory, more: str, agent_id: str, at: int) -> None:
    changed = agent_id[:at] + more + agent_id[at:]
    if changed.lower() == agent_id:
        return
    assert ("d", "kate") not in agents.named(changed)
    if not agents.named(changed):
        with pytest.raises(UnknownAgentError):
            agents.find(changed)
