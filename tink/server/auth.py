"""Decides which Hardware an agent may act for: looks up its id, and checks its address, token or certificate."""

from __future__ import annotations

import functools
import re
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from cryptography import x509
from cryptography.x509.oid import NameOID
from pydantic import ValidationError

from tink.api.annotations import AGENT_ID_ANNOTATION, DISCOVERY_ADDRESS_ANNOTATION
from tink.api.v1alpha2 import Hardware, Raw
from tink.errors import TinkedgeError
from tink.files.key_file import KeyFile
from tink.kube.objects import NamespacedName
from tink.mac import is_mac
from tink.server.peer import peer_address, read_call_metadata, spelled
from tink.timestamps import rfc3339

# --- Agent tokens ---
#
# A machine receives a token in its iPXE script, and its agent sends it to the server:
#
#     v1.525400000001.1800000000.<HMAC-SHA256, base64url>
#
# It contains the MAC address of the interface that booted, the Unix second at which it expires, and a signature over
# both. Edge and server share the signing key in a file. A token is valid for one machine and a limited time, so no
# component has to store the tokens that were issued.
#
# `tink.files.key_file` reads and rotates the keys. Neither keys nor tokens are logged.


CLOCK_SKEW_SECONDS = 300.0
"""Seconds that an expired token is still accepted, because the clocks of edge and server differ."""
DEFAULT_LIFETIME_SECONDS = 86_400.0

_LABEL = "tinkedge agent token"
_TOKEN = re.compile(r"(v1\.([0-9a-f]{12})\.([0-9]{1,12}))\.([A-Za-z0-9_-]{43})")


class TokenError(TinkedgeError, ValueError):
    """A token is invalid. The message explains why and does not contain the token."""


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """The file of the signing keys, and the lifetime of tokens in seconds.

    `create`: create the file with a new key if it is missing. Only for a process that both issues and checks tokens:
    two processes on two machines would each create their own key.
    """

    key: Path
    lifetime: float = DEFAULT_LIFETIME_SECONDS
    create: bool = False

    def __post_init__(self) -> None:
        if not 60 <= self.lifetime <= 10 * 365 * 86_400:
            raise ValueError(f"the lifetime of agent tokens must be from 60 s to ten years, not {self.lifetime:g} s")


@dataclass(frozen=True, slots=True)
class Token:
    """The content of a valid token: the MAC in lower case with colons, and the Unix second at which it expires."""

    mac: str
    expires: int


class TokenKeys:
    """Signs and checks tokens with the keys of a file."""

    def __init__(self, settings: TokenSettings, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`monotonic` schedules the checks for a changed key file. Raises KeyFileError."""
        self.lifetime = settings.lifetime
        self._keys = KeyFile(
            settings.key,
            "agent token key",
            create=settings.create,
            advice="give edge and server the same file",
            without="agents that show a token are refused" if settings.create else "",
            monotonic=monotonic,
        )

    def mint(self, mac: str, now: float) -> str:
        """Return a token for the interface `mac` (lower case, colons) at `now` (Unix seconds). Raises ValueError."""
        if not is_mac(mac):
            raise ValueError(f"{mac[:64]!r} is no MAC address")
        claims = f"v1.{mac.replace(':', '')}.{int(now + self.lifetime)}"
        return f"{claims}.{self._keys.sign(_LABEL, claims)}"

    def verify(self, token: str, now: float) -> Token:
        """Return the content of a token that is valid at `now` (Unix seconds). Raises TokenError."""
        match = _TOKEN.fullmatch(token)
        if match is None:
            raise TokenError("what it shows is no token")
        claims, digits, seconds, signature = match.groups()
        if not self._keys.signed(_LABEL, claims, signature):
            raise TokenError("its token is not signed with a key of this server (see --agent-token-key)")
        expires = int(seconds)
        if now > expires + CLOCK_SKEW_SECONDS:
            raise TokenError(f"its token ended at {rfc3339(expires)}; the machine gets a new one when it boots")
        return Token(":".join(digits[at : at + 2] for at in range(0, 12, 2)), expires)


# --- Agent ids ---
#
# Finds the Hardware of an agent by the agent's id: the MAC of an interface, the Hardware's name, or its annotation.
#
# The id proves nothing; AgentAuthorizer decides which of the Hardware with an id the agent may act for. The MAC of an
# interface has precedence, then NAMESPACE/NAME: names and annotations of other Hardware can't make these ambiguous. A
# Hardware that is being deleted gives up its MACs to others.


MAX_AGENT_ID = 320
"""Maximum length of an agent id in characters: a namespace, a slash and a name."""


class UnknownAgentError(TinkedgeError, LookupError):
    """No Hardware has this id, or several have. The message names them and the remedy."""


@dataclass(frozen=True, slots=True)
class _Identity:
    key: NamespacedName
    macs: tuple[str, ...]
    addresses: frozenset[str]
    given: str = ""
    """The agent id from the annotation, or empty."""
    terminating: bool = False
    discovery_address: str = ""
    """The address that the machine has from its discovery until its next boot, or empty."""


class AgentDirectory:
    """All ids that agents may use, updated by an informer of Hardware. A look-up is a dictionary access."""

    def __init__(self, scope: str = "") -> None:
        """`scope` describes, for messages, which Hardware the directory contains; empty if all."""
        self._scope = f" (only Hardware {scope} counts here)" if scope else ""
        self._machines: dict[NamespacedName, _Identity] = {}
        self._by_mac: dict[str, set[NamespacedName]] = {}
        self._by_name: dict[str, set[NamespacedName]] = {}
        self._by_annotation: dict[str, set[NamespacedName]] = {}
        self._reserved: Counter[str] = Counter()
        """The number of Hardware that reserve an address and are not being deleted."""

    def apply(self, obj: Raw) -> None:
        """Add or update a Hardware. A Hardware that can't be parsed has no agents."""
        self.remove(obj)
        try:
            hardware = Hardware.model_validate(obj)
        except ValidationError:
            return  # the API's schema rejects these, and the edge reports one that was stored nevertheless
        key = NamespacedName(hardware.metadata.namespace, hardware.metadata.name)
        interfaces = hardware.spec.network_interfaces
        reserved = [interface.dhcp for interface in interfaces.values() if interface.dhcp is not None]
        addresses = frozenset(dhcp.ip for dhcp in reserved if dhcp.ip is not None)
        addresses |= {spelled(dhcp.ipv6.address) for dhcp in reserved if dhcp.ipv6 is not None}
        given = hardware.metadata.annotations.get(AGENT_ID_ANNOTATION, "").strip()
        given = given if given.isascii() and len(given) <= MAX_AGENT_ID else ""
        terminating = hardware.metadata.deletion_timestamp is not None
        former = hardware.metadata.annotations.get(DISCOVERY_ADDRESS_ANNOTATION, "")
        identity = _Identity(key, tuple(mac.lower() for mac in interfaces), addresses, given, terminating, former)
        self._machines[key] = identity
        if not terminating:
            self._reserved.update(addresses)
        for index, ids in self._indexes(identity):
            for agent_id in ids:
                index.setdefault(agent_id, set()).add(key)

    def remove(self, obj: Raw) -> None:
        """Remove a Hardware."""
        identity = self._machines.pop(NamespacedName.of(obj), None)
        if identity is None:
            return
        for address in identity.addresses if not identity.terminating else ():
            self._reserved[address] -= 1
            if not self._reserved[address]:
                del self._reserved[address]
        for index, ids in self._indexes(identity):
            for agent_id in ids:
                index[agent_id].discard(identity.key)
                if not index[agent_id]:
                    del index[agent_id]

    def _indexes(self, identity: _Identity) -> tuple[tuple[dict[str, set[NamespacedName]], set[str]], ...]:
        names = {identity.key.name.lower(), str(identity.key).lower()}
        given = {identity.given.lower()} if identity.given else set()
        return (self._by_mac, set(identity.macs)), (self._by_name, names), (self._by_annotation, given)

    def find(self, agent_id: str) -> NamespacedName:
        """Return the Hardware with this MAC, name, namespace/name or annotation. Raises UnknownAgentError."""
        return self.only(agent_id, self.named(agent_id))

    def only(self, agent_id: str, keys: Collection[NamespacedName]) -> NamespacedName:
        """Return the one Hardware of `keys`, which all have this id. Raises UnknownAgentError.

        Of several, return the only one that is not being deleted, or the only one of these with that name.
        """
        keys = {key for key in keys if not self._machines[key].terminating} or keys
        by_name = self._by_name.get(agent_id.lower(), set()).intersection(keys)
        keys = by_name if len(by_name) == 1 else keys
        if len(keys) == 1:
            return next(iter(keys))
        if not keys:
            raise UnknownAgentError(
                f"no Hardware has the MAC address or name {agent_id!r}{self._scope}: "
                "create one, or correct the agent's id"
            )
        names = ", ".join(sorted(map(str, keys)))
        raise UnknownAgentError(f"the agent id {agent_id!r} fits several Hardware, so it is none: {names}")

    def named(self, agent_id: str, *, names_first: bool = False) -> frozenset[NamespacedName]:
        """Return all Hardware with that id, ignoring the case of ASCII letters.

        The case of other letters counts: some of them have an ASCII letter as their lower case.

        If some have the id as MAC, only these count; next, the one of that namespace and name; else those with that
        name or annotation. `names_first`: an annotation counts only if no Hardware has the name.
        """
        if not agent_id.isascii():
            return frozenset()
        spelled = agent_id.lower()
        if keys := self._by_mac.get(spelled):
            return frozenset(key for key in keys if not self._machines[key].terminating) or frozenset(keys)
        keys = self._by_name.get(spelled, set())
        if keys and (names_first or "/" in spelled):
            return frozenset(keys)
        return frozenset(keys | self._by_annotation.get(spelled, set()))

    def at(self, address: str) -> NamespacedName | None:
        """Return the only Hardware that reserves this IP address, or None. Scans all Hardware, so call it rarely."""
        found = [identity for identity in self._machines.values() if address in identity.addresses]
        found = [identity for identity in found if not identity.terminating] or found
        return found[0].key if len(found) == 1 else None

    def is_known(self, key: NamespacedName) -> bool:
        """Return True if the Hardware exists."""
        return key in self._machines

    def macs(self, key: NamespacedName) -> tuple[str, ...]:
        """Return the MACs of a Hardware's interfaces, in lower case with colons; empty for an unknown Hardware."""
        identity = self._machines.get(key)
        return identity.macs if identity is not None else ()

    def addresses(self, key: NamespacedName) -> frozenset[str]:
        """Return the IP addresses that the Hardware reserves for its machine; empty for an unknown Hardware.

        A machine that was approved after its discovery has its former address, too, until it boots. That address
        counts only while no other Hardware reserves it: the next discovered machine may get it.
        """
        identity = self._machines.get(key)
        if identity is None:
            return frozenset()
        former = identity.discovery_address
        return identity.addresses | {former} if former and former not in self._reserved else identity.addresses

    def id_of(self, key: NamespacedName) -> str:
        """Return the agent id that the Hardware implies: its annotation, else its first MAC, else its name."""
        identity = self._machines.get(key)
        if identity is not None and identity.given:
            return identity.given
        return identity.macs[0] if identity is not None and identity.macs else key.name


# --- Authorization ---
#
# Decides which machine an agent may act for, by comparing the agent's credentials with the Hardware.
#
#     address  the connection comes from a `dhcp.ip` of the Hardware, and no other machine is known to have the address
#     token    the call has a token that the machine received in its iPXE script (`tink.server.auth`)
#     mtls     the connection has a client certificate with the machine's name in it (`tink.server.tls`)
#     none     no credentials are required
#
# A client certificate names its machine by a MAC or by a Hardware:
#
#     SAN DNS   52-54-00-00-00-01 | NAME | NAME.NAMESPACE
#     SAN URI   tinkerbell:52:54:00:00:00:01 | tinkerbell:NAMESPACE/NAME
#     CN        52:54:00:00:00:01 | NAME | NAMESPACE/NAME, if the certificate has no SAN of these two kinds (RFC 6125)
#
# A name counts if exactly one Hardware matches it in all possible readings: `a.b` is the Hardware a.b as well as the
# Hardware a of the namespace b. If several Hardware match, the one counts whose address the connection comes from.
#
# Several Hardware may have the id that an agent sends, because tenants choose names. Then the id stands for the
# Hardware that the agent may act for.
#
# A rejected agent receives only a description of its own credentials and nothing about the machine, not even whether it
# exists (`public_message`). The log and the journey contain the details and the agent's address.


OtherHost = Callable[[str, Collection[str]], str | None]
"""`other_host(address, macs)` returns another host that was seen at an address than the machine with these MACs,
or None.
"""

_URI = "tinkerbell:"
_MAX_NAMES, _NAMES_SHOWN, _NAME_CHARACTERS = 64, 4, 80
"""Maximum numbers of a certificate's names that are read and that are shown, and of characters shown of each name."""
_ADDRESSES = 256
"""Maximum number of addresses whose last refusal is remembered."""
_DASHED_MAC = re.compile(r"[0-9A-Fa-f]{2}(-[0-9A-Fa-f]{2}){5}")
_UNREADABLE = (ValueError, x509.DuplicateExtension, x509.InvalidVersion, x509.UnsupportedGeneralNameType)


class AgentAuth(StrEnum):
    """The credentials that agents must show."""

    ADDRESS = "address"
    TOKEN = "token"  # noqa: S105 - a name, not a password
    MTLS = "mtls"
    NONE = "none"


class OlderAgentAuth(StrEnum):
    """Rule for older agents, which have no token and no certificate."""

    AUTO = "auto"  # allowed if AgentAuth requires no more than an address
    ADDRESS = "address"  # allowed by their address, whatever other agents must show
    OFF = "off"


class RefusedCallerError(TinkedgeError):
    """The caller may not act for the Hardware that it names.

    The message is for the operator and names the remedy. The caller receives `code` and `public_message`.
    """

    code = grpc.StatusCode.NOT_FOUND

    def __init__(self, message: str, public_message: str = "", code: grpc.StatusCode | None = None) -> None:
        super().__init__(message)
        self.public_message = public_message or message
        self.code = code or self.code


class ForeignAgentError(RefusedCallerError):
    """The agent's credentials belong to another machine."""

    code = grpc.StatusCode.PERMISSION_DENIED


class NoCredentialsError(ForeignAgentError):
    """The agent shows no credentials although they are required."""

    code = grpc.StatusCode.UNAUTHENTICATED


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of a call: the caller's IP address, its token, and its client certificate (PEM).

    The log shows the address, never the token.
    """

    peer: str
    token: str = field(default="", repr=False)
    certificate: bytes = field(default=b"", repr=False)


def credentials_of(context: grpc.aio.ServicerContext[Any, Any]) -> Credentials:
    """Return the credentials of the call with this context."""
    connection: Mapping[str, Iterable[bytes]] = context.auth_context()
    certificate = next(iter(connection.get("x509_pem_cert", ())), b"")
    token = read_call_metadata(context.invocation_metadata()).token
    return Credentials(peer_address(context.peer()), token, certificate)


class AgentAuthorizer:
    """Decides which Hardware an agent may act for."""

    def __init__(
        self,
        agents: AgentDirectory,
        auth: AgentAuth,
        tokens: TokenKeys | None,
        clock: Callable[[], float],
        other_host: OtherHost = lambda _address, _macs: None,
    ) -> None:
        """`tokens` is needed for AgentAuth.TOKEN; `clock` gives Unix seconds."""
        self._agents = agents
        self._auth = auth
        self._tokens = tokens
        self._clock = clock
        self._other_host = other_host
        self._refused: OrderedDict[str, NamespacedName] = OrderedDict()
        """The Hardware that was last refused, by address."""

    def admit(self, agent_id: str, credentials: Credentials) -> NamespacedName:
        """Return the Hardware that the agent may act for. Raises RefusedCallerError."""
        named = repr(agent_id)
        keys: Collection[NamespacedName] = self._agents.named(agent_id)
        if len(keys) > 1:
            # Names that one tenant chooses must not block the agent of another tenant, so only the Hardware counts that
            # the agent may act for; of several, the one at its address.
            allowed = {key for key in keys if self._may_speak(key, credentials)}
            here = self._here(allowed, credentials.peer)
            keys = (here if len(here) == 1 else allowed) or keys
        try:
            key = self._agents.only(agent_id, keys)
        except UnknownAgentError as error:
            # The same public message as for a foreign agent: it does not reveal which Hardware exist.
            try:
                self.authorise(NamespacedName("", ""), credentials, named)
            except ForeignAgentError as foreign:
                raise RefusedCallerError(str(error), foreign.public_message, foreign.code) from error
            raise RefusedCallerError(str(error)) from error  # no credentials are required, so there is nothing to hide
        self.authorise(key, credentials, named)
        return key

    def _may_speak(self, key: NamespacedName, credentials: Credentials) -> bool:
        if self._auth is AgentAuth.ADDRESS:
            return bool(self._here((key,), credentials.peer))
        try:
            self.authorise(key, credentials)
        except ForeignAgentError:
            return False
        return True

    def _here(self, keys: Collection[NamespacedName], peer: str) -> set[NamespacedName]:
        """Return the Hardware of `keys` that have this address, if no other machine is known to have it."""
        at_peer = {key for key in keys if peer in self._agents.addresses(key)}
        return {key for key in at_peer if self._other_host(peer, self._agents.macs(key)) is None}

    def authorise(
        self, key: NamespacedName, credentials: Credentials, named: str = "the machine of this Workflow"
    ) -> None:
        """Raise ForeignAgentError if the credentials are not for this Hardware, which public messages call `named`."""
        match self._auth:
            case AgentAuth.NONE:
                return
            case AgentAuth.ADDRESS:
                self._by_address(key, credentials, named)
                return
            case AgentAuth.TOKEN:
                why, has_shown = self._token_problem(key, credentials.token), bool(credentials.token)
            case AgentAuth.MTLS:
                why, has_shown = self._certificate_problem(key, credentials), bool(credentials.certificate)
        if why:
            public = f"{credentials.peer} may not act for {named}: {why}"
            error = ForeignAgentError if has_shown else NoCredentialsError
            raise error(f"{credentials.peer} may not act for Hardware {key}: {why}", public)

    def renewed(self, credentials: Credentials) -> tuple[str, float] | None:
        """Return a new token that replaces the caller's token, and the seconds until it should be renewed.

        Returns None if tokens are not required. Raises TokenError.
        """
        if self._auth is not AgentAuth.TOKEN or self._tokens is None:
            return None
        now = self._clock()
        mac = self._tokens.verify(credentials.token, now).mac
        return self._tokens.mint(mac, now), self._tokens.lifetime / 2

    def _by_address(self, key: NamespacedName, credentials: Credentials, named: str) -> None:
        addresses = self._agents.addresses(key)
        public = "no Hardware of that id has this address; the server's log says more"
        if credentials.peer in addresses:
            other = self._other_host(credentials.peer, self._agents.macs(key))
            if other is None:
                return
            public = "its address is that of another machine"
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
            why = f"has the addresses {', '.join(sorted(addresses))}{self._masquerade(key, credentials.peer)}"
        public_message = f"{credentials.peer} may not act for {named}: {public}"
        raise ForeignAgentError(f"{credentials.peer} may not act for Hardware {key}, which {why}", public_message)

    def _masquerade(self, key: NamespacedName, peer: str) -> str:
        """Return the remedy for an address that agents of several machines come from, or an empty string.

        Something replaces the agents' addresses by its own: Kubernetes does so in front of a Service, unless its
        externalTrafficPolicy is Local.
        """
        before = self._refused.pop(peer, key)
        self._refused[peer] = key
        if len(self._refused) > _ADDRESSES:
            self._refused.popitem(last=False)
        if before == key:
            return ""
        return (
            "; agents of several machines come from there, so something on the way replaces their addresses: give the "
            "Service externalTrafficPolicy: Local, take NAT out of the way, or use --agent-auth token"
        )

    def _token_problem(self, key: NamespacedName, token: str) -> str:
        """Return why the token does not allow to act for this Hardware; empty if it does."""
        if not token:
            return "its request has no token; a machine gets one as tinkerbell_token= when it boots from this edge"
        if self._tokens is None:
            return "this server has no token keys"
        try:
            mac = self._tokens.verify(token, self._clock()).mac
        except TokenError as error:
            return str(error)
        return "" if mac in self._agents.macs(key) else f"its token is that of {mac}, another machine"

    def _certificate_problem(self, key: NamespacedName, credentials: Credentials) -> str:
        """Return why the certificate does not allow to act for this Hardware; empty if it does."""
        if not credentials.certificate:
            return "it shows no client certificate"
        names = certificate_ids(credentials.certificate)
        if any(self._is_named(key, ids, credentials.peer) for ids in names):
            return ""
        shown = [repr(ids[0][:_NAME_CHARACTERS]) for ids in names[:_NAMES_SHOWN]] or ["no machine"]
        return f"its certificate names {', '.join(shown)}{' and more' if len(names) > _NAMES_SHOWN else ''}"

    def _is_named(self, key: NamespacedName, ids: Collection[str], peer: str) -> bool:
        """Return True if these ids match that Hardware and no other one, or no other one with the address `peer`."""
        if {found for each in ids for found in self._agents.named(each, names_first=True)} == {key}:
            return True
        return self._here({found for each in ids for found in self._agents.named(each)}, peer) == {key}


@functools.lru_cache(maxsize=4096)
def certificate_ids(pem: bytes) -> tuple[tuple[str, ...], ...]:
    """Return the names in a client certificate (PEM), each as the agent ids that it can be read as.

    Empty if the certificate can't be parsed. Only the first 64 names count, and none that is too long for an id.
    """
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        dns, uris = list[str](), list[str]()
        with suppress(x509.ExtensionNotFound):
            alternative = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            dns = alternative.get_values_for_type(x509.DNSName)
            uris = alternative.get_values_for_type(x509.UniformResourceIdentifier)
        if dns or uris:
            names = [_from_dns(name) for name in dns[:_MAX_NAMES]]
            names += [(uri.removeprefix(_URI),) for uri in uris[:_MAX_NAMES] if uri.startswith(_URI)]
        else:
            names = [(str(name.value),) for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    except _UNREADABLE:
        return ()
    return tuple(ids for ids in names[:_MAX_NAMES] if len(ids[0]) <= MAX_AGENT_ID)


def _from_dns(name: str) -> tuple[str, ...]:
    """Return the agent ids of a DNS name. DNS allows neither colons nor slashes; Kubernetes names may contain dots."""
    if _DASHED_MAC.fullmatch(name):
        return (name.replace("-", ":"),)
    hardware, dot, namespace = name.rpartition(".")
    return (name, f"{namespace}/{hardware}") if dot else (name,)
