"""Who may speak for a machine: what an agent shows, held against the machine that it names.

    address  the connection comes from a `dhcp.ip` of the Hardware, and by no other machine that is seen to have it
    token    the call has a token that the machine was given in its iPXE script (`tink.server.tokens`)
    mtls     the connection has a client certificate with the machine's name in it (`tink.server.tls`)
    none     nothing is asked

A client certificate names its machine by a MAC or by a Hardware:

    SAN DNS   52-54-00-00-00-01 | NAME | NAME.NAMESPACE
    SAN URI   tinkerbell:52:54:00:00:00:01 | tinkerbell:NAMESPACE/NAME
    CN        52:54:00:00:00:01 | NAME | NAMESPACE/NAME, where the certificate has no SAN of these two kinds (RFC 6125)

A name counts only while it is that of one Hardware alone, in all ways to read it: `a.b` is the Hardware a.b as well as
the Hardware a of the namespace b.

Who may not speak for a machine is told what it showed, and nothing of that machine: not whether there is one, either
(`told`). The log and the journey have the rest, and who asked.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import grpc
import grpc.aio
from cryptography import x509
from cryptography.x509.oid import NameOID

from tink.server.agents import MAX_AGENT_ID, AgentDirectory, HardwareKey, UnknownAgentError, peer_address
from tink.server.hello import hello_of
from tink.server.tokens import TokenError, TokenKeys

Stranger = Callable[[str, Collection[str]], str | None]
"""`stranger(address, macs)`: who else than the machine with these MACs is seen at an address; None: nobody else is."""

_URI = "tinkerbell:"
_MOST_NAMES, _NAMES_TOLD, _NAME_TOLD = 64, 4, 80
"""Names of a certificate that are read, and told; and the characters that are told of one."""
_DASHED_MAC = re.compile(r"[0-9A-Fa-f]{2}(-[0-9A-Fa-f]{2}){5}")
_UNREADABLE = (ValueError, x509.DuplicateExtension, x509.InvalidVersion, x509.UnsupportedGeneralNameType)


class AgentAuth(StrEnum):
    """How an agent shows that it may speak for its machine."""

    ADDRESS = "address"
    TOKEN = "token"  # noqa: S105 - the name of a way
    MTLS = "mtls"
    NONE = "none"


class ForeignAgentError(PermissionError):
    """What the agent shows is not its machine's; the message says what would be. `told`: what the caller is told."""

    code = grpc.StatusCode.PERMISSION_DENIED

    def __init__(self, message: str, told: str = "") -> None:
        super().__init__(message)
        self.told = told or message


class HiddenAgentError(UnknownAgentError):
    """No Hardware, or several, has the id; whoever asks is told (`code`, `told`) what a foreign agent would be."""

    def __init__(self, message: str, code: grpc.StatusCode, told: str) -> None:
        super().__init__(message)
        self.code = code
        self.told = told


class NothingShownError(ForeignAgentError):
    """The agent shows nothing at all where something is asked for."""

    code = grpc.StatusCode.UNAUTHENTICATED


@dataclass(frozen=True, slots=True)
class Shown:
    """What a call shows of who makes it: its IP address, its token and its client's certificate (PEM) if it has them.

    The address stands for it in the log; the token never does.
    """

    peer: str
    token: str = field(default="", repr=False)
    certificate: bytes = field(default=b"", repr=False)


def shown_by(context: grpc.aio.ServicerContext[Any, Any]) -> Shown:
    """What the call of this context shows."""
    connection: Mapping[str, Iterable[bytes]] = context.auth_context()
    certificate = next(iter(connection.get("x509_pem_cert", ())), b"")
    return Shown(peer_address(context.peer()), hello_of(context.invocation_metadata()).token, certificate)


class Door:
    """Lets agents speak for machines."""

    def __init__(
        self,
        agents: AgentDirectory,
        auth: AgentAuth,
        tokens: TokenKeys | None,
        clock: Callable[[], float],
        stranger: Stranger = lambda _address, _macs: None,
    ) -> None:
        """`tokens` is needed for AgentAuth.TOKEN; `clock` gives Unix seconds."""
        self._agents = agents
        self._auth = auth
        self._tokens = tokens
        self._clock = clock
        self._stranger = stranger

    def admit(self, agent_id: str, shown: Shown) -> HardwareKey:
        """The machine that the agent speaks for. Raises UnknownAgentError, ForeignAgentError."""
        named = repr(agent_id)
        try:
            key = self._agents.find(agent_id)
        except UnknownAgentError as error:
            if self._auth is AgentAuth.NONE:
                raise
            try:
                self.authorise(("", ""), shown, named)
            except ForeignAgentError as foreign:
                raise HiddenAgentError(str(error), foreign.code, foreign.told) from error
            raise
        self.authorise(key, shown, named)
        return key

    def authorise(self, key: HardwareKey, shown: Shown, named: str = "the machine of this Workflow") -> None:
        """Raises ForeignAgentError if whoever shows this may not speak for that Hardware, which they call `named`."""
        match self._auth:
            case AgentAuth.NONE:
                return
            case AgentAuth.ADDRESS:
                self._by_address(key, shown, named)
            case AgentAuth.TOKEN:
                self._by_token(key, shown, named)
            case AgentAuth.MTLS:
                self._by_certificate(key, shown, named)

    def renewed(self, shown: Shown) -> tuple[str, float] | None:
        """A new token in place of the one that is shown, and in how many seconds to ask for the next.

        None where tokens are not asked for. Raises TokenError.
        """
        if self._auth is not AgentAuth.TOKEN or self._tokens is None:
            return None
        now = self._clock()
        mac = self._tokens.verify(shown.token, now).mac
        return self._tokens.mint(mac, now), self._tokens.lifetime / 2

    def _by_address(self, key: HardwareKey, shown: Shown, named: str) -> None:
        addresses = self._agents.addresses(key)
        said = "no Hardware of that id has this address; the server's log says more"
        if shown.peer in addresses:
            other = self._stranger(shown.peer, self._agents.macs(key))
            if other is None:
                return
            said = "its address is that of another machine"
            why = (
                f"has that address, as has {other}, which is no MAC of it (add it to spec.networkInterfaces, or name "
                "the network in --known-by-address)"
            )
        elif not self._agents.is_known(key):
            why = "is not there"
        elif not addresses:
            why = (
                "has no spec.networkInterfaces[].dhcp.ip to know its agent by (give it one, or run the server with "
                "another --agent-auth)"
            )
        else:
            why = f"has the addresses {', '.join(sorted(addresses))}"
        told = f"{shown.peer} can't speak for {named}: {said}"
        raise ForeignAgentError(f"{_refusal(key, shown)}, which {why}", told)

    def _by_token(self, key: HardwareKey, shown: Shown, named: str) -> None:
        if not shown.token:
            why = "it shows no token; a machine gets one as tinkerbell_token= when it boots from this edge"
            raise NothingShownError(*_both(key, shown, named, why))
        if self._tokens is None:
            raise ForeignAgentError(*_both(key, shown, named, "this server has no token keys"))
        try:
            token = self._tokens.verify(shown.token, self._clock())
        except TokenError as error:
            raise ForeignAgentError(*_both(key, shown, named, str(error))) from error
        if token.mac not in self._agents.macs(key):
            raise ForeignAgentError(*_both(key, shown, named, f"its token is that of {token.mac}, another machine"))

    def _by_certificate(self, key: HardwareKey, shown: Shown, named: str) -> None:
        if not shown.certificate:
            raise NothingShownError(*_both(key, shown, named, "it shows no client certificate"))
        names = certificate_ids(shown.certificate)
        if not any(self._is_alone(key, ids) for ids in names):
            told = [repr(ids[0][:_NAME_TOLD]) for ids in names[:_NAMES_TOLD]] or ["no machine"]
            more = " and more" if len(names) > _NAMES_TOLD else ""
            raise ForeignAgentError(*_both(key, shown, named, f"its certificate names {', '.join(told)}{more}"))

    def _is_alone(self, key: HardwareKey, ids: Iterable[str]) -> bool:
        """Whether these are ids of that Hardware, and of no other."""
        return {found for each in ids for found in self._agents.named(each)} == {key}


@functools.lru_cache(maxsize=4096)
def certificate_ids(pem: bytes) -> tuple[tuple[str, ...], ...]:
    """The names in a client certificate (PEM), each as the agent ids that it can be read as.

    None of a certificate that can't be read; of one with more than 64, the first. Names too long to be an id are none.
    """
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        dns, uris = _alternative_names(certificate)
        if dns or uris:
            names = [_from_dns(name) for name in dns[:_MOST_NAMES]]
            names += [(uri.removeprefix(_URI),) for uri in uris[:_MOST_NAMES] if uri.startswith(_URI)]
        else:
            names = [(str(name.value),) for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    except _UNREADABLE:
        return ()
    return tuple(ids for ids in names[:_MOST_NAMES] if len(ids[0]) <= MAX_AGENT_ID)


def _alternative_names(certificate: x509.Certificate) -> tuple[list[str], list[str]]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return [], []
    return (
        names.get_values_for_type(x509.DNSName),
        names.get_values_for_type(x509.UniformResourceIdentifier),
    )


def _from_dns(name: str) -> tuple[str, ...]:
    """A DNS name as agent ids: colons are no part of DNS, nor is the slash. Kubernetes names may have dots in them."""
    if _DASHED_MAC.fullmatch(name):
        return (name.replace("-", ":"),)
    hardware, dot, namespace = name.rpartition(".")
    return (name, f"{namespace}/{hardware}") if dot else (name,)


def _both(key: HardwareKey, shown: Shown, named: str, why: str) -> tuple[str, str]:
    """What the operator is told, and the caller."""
    return f"{_refusal(key, shown)}: {why}", f"{shown.peer} can't speak for {named}: {why}"


def _refusal(key: HardwareKey, shown: Shown) -> str:
    return f"{shown.peer} can't speak for Hardware {'/'.join(key)}"
