"""Who may speak for a machine: what an agent shows, held against the machine that it names.

    address  the connection comes from a `dhcp.ip` of the Hardware
    token    the call has a token that the machine was given in its iPXE script (`tink.server.tokens`)
    mtls     the connection has a client certificate with the machine's name in it (`tink.server.tls`)
    none     nothing is asked

A client certificate names its machine by a MAC or by a Hardware:

    SAN DNS   52-54-00-00-00-01 | NAME | NAME.NAMESPACE
    SAN URI   tinkerbell:52:54:00:00:00:01 | tinkerbell:NAMESPACE/NAME
    CN        52:54:00:00:00:01 | NAME | NAMESPACE/NAME, where the certificate has no SAN of these two kinds (RFC 6125)

A bare NAME counts only while one Hardware alone has it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import grpc
import grpc.aio
from cryptography import x509
from cryptography.x509.oid import NameOID

from tink.server.agents import AgentDirectory, HardwareKey, UnknownAgentError, peer_address
from tink.server.hello import hello_of
from tink.server.tokens import TokenError, TokenKeys

_URI = "tinkerbell:"
_MOST_NAMES = 64


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
        self, agents: AgentDirectory, auth: AgentAuth, tokens: TokenKeys | None, clock: Callable[[], float]
    ) -> None:
        """`tokens` is needed for AgentAuth.TOKEN; `clock` gives Unix seconds."""
        self._agents = agents
        self._auth = auth
        self._tokens = tokens
        self._clock = clock

    def admit(self, agent_id: str, shown: Shown) -> HardwareKey:
        """The machine that the agent speaks for. Raises UnknownAgentError, ForeignAgentError."""
        key = self._agents.find(agent_id)
        self.authorise(key, shown)
        return key

    def authorise(self, key: HardwareKey, shown: Shown) -> None:
        """Raises ForeignAgentError if whoever shows this may not speak for that Hardware."""
        match self._auth:
            case AgentAuth.NONE:
                return
            case AgentAuth.ADDRESS:
                self._by_address(key, shown)
            case AgentAuth.TOKEN:
                self._by_token(key, shown)
            case AgentAuth.MTLS:
                self._by_certificate(key, shown)

    def renewed(self, shown: Shown) -> tuple[str, float] | None:
        """A new token in place of the one that is shown, and in how many seconds to ask for the next.

        None where tokens are not asked for. Raises TokenError.
        """
        if self._auth is not AgentAuth.TOKEN or self._tokens is None:
            return None
        now = self._clock()
        mac = self._tokens.verify(shown.token, now).mac
        return self._tokens.mint(mac, now), self._tokens.lifetime / 2

    def _by_address(self, key: HardwareKey, shown: Shown) -> None:
        addresses = self._agents.addresses(key)
        if shown.peer in addresses:
            return
        said = _refusal(key, shown)
        if not self._agents.is_known(key):
            raise ForeignAgentError(f"{said}: there is no such Hardware")
        if not addresses:
            raise ForeignAgentError(
                f"{said}: it has no spec.networkInterfaces[].dhcp.ip to know its agent by (give it one, or run the "
                "server with another --agent-auth)"
            )
        raise ForeignAgentError(
            f"{said}, whose addresses are {', '.join(sorted(addresses))}",
            told=f"{said}, whose addresses are others: the server's log names them",
        )

    def _by_token(self, key: HardwareKey, shown: Shown) -> None:
        said = _refusal(key, shown)
        if not shown.token:
            raise NothingShownError(
                f"{said}: it shows no token; a machine gets one as tinkerbell_token= when it boots from this edge"
            )
        if self._tokens is None:
            raise ForeignAgentError(f"{said}: this server has no token keys")
        try:
            token = self._tokens.verify(shown.token, self._clock())
        except TokenError as error:
            raise ForeignAgentError(f"{said}: {error}") from error
        if token.mac not in self._agents.macs(key):
            raise ForeignAgentError(f"{said}: its token is that of {token.mac}, another machine")

    def _by_certificate(self, key: HardwareKey, shown: Shown) -> None:
        said = _refusal(key, shown)
        if not shown.certificate:
            raise NothingShownError(f"{said}: it shows no client certificate")
        ids = certificate_ids(shown.certificate)
        if key not in {found for found in map(self._find, ids) if found is not None}:
            names = ", ".join(repr(name) for name in ids) or "no machine"
            raise ForeignAgentError(f"{said}: its certificate names {names}")

    def _find(self, agent_id: str) -> HardwareKey | None:
        try:
            return self._agents.find(agent_id)
        except UnknownAgentError:
            return None


@functools.lru_cache(maxsize=4096)
def certificate_ids(pem: bytes) -> tuple[str, ...]:
    """The agent ids that a client certificate (PEM) may use; none of one that can't be read."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        dns, uris = _alternative_names(certificate)
        if dns or uris:
            ids = [spelled for name in dns for spelled in _from_dns(name)]
            ids += [uri.removeprefix(_URI) for uri in uris if uri.startswith(_URI)]
        else:
            ids = [str(name.value) for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    except ValueError:
        return ()
    return tuple(name[:320] for name in ids[:_MOST_NAMES])


def _alternative_names(certificate: x509.Certificate) -> tuple[list[str], list[str]]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return [], []
    return (
        names.get_values_for_type(x509.DNSName),
        names.get_values_for_type(x509.UniformResourceIdentifier),
    )


def _from_dns(name: str) -> list[str]:
    """A DNS name as agent ids: colons are no part of DNS, nor is the slash. Kubernetes names may have dots in them."""
    ids = [name.replace("-", ":") if len(name) == 17 and name.count("-") == 5 else name]
    hardware, dot, namespace = name.rpartition(".")
    return [*ids, f"{namespace}/{hardware}"] if dot else ids


def _refusal(key: HardwareKey, shown: Shown) -> str:
    return f"{shown.peer} can't speak for Hardware {'/'.join(key)}"
