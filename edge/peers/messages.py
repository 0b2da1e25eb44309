"""The messages between edges (validated JSON) and their signatures. Pure.

    POST /peers/hello                  who and where an edge is                  Edge       -> Edge
    POST /peers/ask                    query for a file in the cache             CacheQuery -> CacheReply
    POST /peers/happened               journey events                            EventBatch -> BatchReceipt
    POST /peers/chain                  the edges that an edge fetches through    UpstreamChain -> UpstreamChain
    POST /peers/fetch                  have the upstream edge fetch a file       FetchQuery -> FetchReply
    GET  /peers/artifacts/KEY/VERSION  a file's bytes, with `Range`, followed by its signed SHA-256

Edges of one site share a key and sign every message with it:

    Tinkedge-Peer: v1 <edge> <milliseconds> <nonce> <HMAC-SHA256, base64url>

The edge is a random id of the process; the time is Unix time. The signature of a request covers the method, the
address that it is sent to, target, range, body and the header's fields. So a copied request is rejected by any other
edge, after `SKEW_SECONDS`, and when it is repeated: nonces are stored as long as they are valid. The signature of an
answer covers the request's nonce, the status and the content, so it fits that request only.

The files are not encrypted: every machine that may netboot can read them.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from tink.errors import TinkedgeError
from tink.files.key_file import KeyFile
from tink.net.addresses import join_host_port

MAX_MESSAGE_BYTES: Final = 16 << 10
MAX_BATCH_BYTES: Final = 256 << 10
"""Maximum size of an event batch."""
MAX_BATCH_EVENTS: Final = 1000
MAX_CHAIN: Final = 8
"""Maximum number of edges that fetch through one another."""
MAX_URL: Final = 8192
MAX_PLACES: Final = 64
"""Maximum number of networks of one edge."""

HELLO: Final = "/peers/hello"
ASK: Final = "/peers/ask"
HAPPENED: Final = "/peers/happened"
CHAIN: Final = "/peers/chain"
FETCH: Final = "/peers/fetch"
ARTIFACTS: Final = "/peers/artifacts"


class MessageError(TinkedgeError, ValueError):
    """A message is not valid; the text names the field and the problem."""


def _ipv6(value: str) -> str:
    address = ipaddress.IPv6Address(value)
    if address.scope_id is not None:
        raise ValueError("a zone is of one host alone")
    return str(address)


Key = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Pin = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
EdgeId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Port = Annotated[int, Field(ge=0, le=65535)]
Address = Annotated[str, Field(max_length=15), AfterValidator(lambda text: str(ipaddress.IPv4Address(text)))]
Network = Annotated[str, Field(max_length=18), AfterValidator(lambda text: str(ipaddress.IPv4Network(text)))]
Address6 = Annotated[str, Field(max_length=39), AfterValidator(_ipv6)]
Network6 = Annotated[str, Field(max_length=43), AfterValidator(lambda text: str(ipaddress.IPv6Network(text)))]


class PeerMessage(BaseModel):
    # Unknown fields of a later version are ignored, so that edges of two versions can work together.
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, hide_input_in_errors=True)

    max_bytes: ClassVar[int] = MAX_MESSAGE_BYTES

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Parse a received message. Raises MessageError."""
        if len(content) > cls.max_bytes:
            raise MessageError(f"longer than {cls.max_bytes} bytes")
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise MessageError(f"{where}: {first['msg']}"[:200]) from None

    def encoded(self) -> bytes:
        """Return the message as JSON to send."""
        return self.model_dump_json().encode()


class Place(PeerMessage):
    """An IPv4 address of an edge, and its network."""

    address: Address
    network: Network


class Place6(PeerMessage):
    """An IPv6 address of an edge, and its network. Older versions reject such addresses in `places`."""

    address: Address6
    network: Network6


class Edge(PeerMessage):
    """An edge of the site.

    `server_port` is the port of the gRPC server at the same addresses, 0 if there is none. `dhcp`: the edge answers
    DHCP for the same machines.
    """

    id: EdgeId
    places: Annotated[tuple[Place, ...], Field(max_length=MAX_PLACES, strict=False)]
    places6: Annotated[tuple[Place6, ...], Field(max_length=MAX_PLACES, strict=False)] = ()
    http_port: Port
    server_port: Port = 0
    dhcp: bool = True

    @property
    def addresses(self) -> tuple[str, ...]:
        """All addresses, IPv4 first."""
        return (*(place.address for place in self.places), *(place.address for place in self.places6))

    @property
    def authorities(self) -> tuple[str, ...]:
        """All addresses with the HTTP port, in the form for URLs."""
        return tuple(join_host_port(address, self.http_port) for address in self.addresses)


class CacheQuery(PeerMessage):
    """Query for a copy of the artifact `key` (`edge.artifacts`), or of one with the SHA-256 `pin`.

    `claim`: the sender wants to fetch the file if no edge has it; only the arbiter of the key gets this.
    """

    key: Key
    pin: Pin = ""
    claim: bool = False


class HeldCopy(PeerMessage):
    """A copy in an edge's cache (`edge.artifacts.Copy`)."""

    version: Annotated[str, Field(pattern=r"^[0-9a-f]{1,64}$")]
    size: Annotated[int, Field(ge=1, le=1 << 50)]
    etag: Annotated[str, Field(max_length=1024)] = ""
    last_modified: Annotated[str, Field(max_length=128)] = ""
    fresh: Annotated[float, Field(ge=0, le=86_400)] = 0.0
    sha256: Pin = ""


class CacheReply(PeerMessage):
    """Answer to a CacheQuery.

    `held`: the copy of the edge; `fetching`: the edge is fetching the file. `claimed` is the edge that may fetch it,
    or empty if the query made no claim.
    """

    held: HeldCopy | None = None
    fetching: bool = False
    claimed: Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")] = ""


Edges = Annotated[tuple[EdgeId, ...], Field(max_length=MAX_CHAIN, strict=False)]


class UpstreamChain(PeerMessage):
    """The edges that an edge fetches through, itself first. Empty in the request."""

    edges: Edges = ()


class FetchQuery(PeerMessage):
    """Request to fetch the artifact of `url`, with the SHA-256 `pin` if the OSIE has one."""

    url: Annotated[str, Field(min_length=8, max_length=MAX_URL)]
    pin: Pin = ""


class FetchReply(PeerMessage):
    """Answer to a FetchQuery.

    `held`: the copy, complete or in transfer; None: `trouble` says why not. `missing`: the file does not exist.
    """

    held: HeldCopy | None = None
    missing: bool = False
    trouble: Annotated[str, Field(max_length=200)] = ""


class EventBatch(PeerMessage):
    """New journey events of an edge or a server, in the format of `edge.journey.history`, which checks each of them.

    `name` is the sender's name for people; `now` is its clock in Unix seconds.
    """

    max_bytes: ClassVar[int] = MAX_BATCH_BYTES

    kind: Literal["edge", "server"]
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,63}$")]
    now: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    events: Annotated[list[Any], Field(max_length=MAX_BATCH_EVENTS)]


class BatchReceipt(PeerMessage):
    """Answer to an EventBatch: the number of events that were new."""

    taken: Annotated[int, Field(ge=0)]


HEADER: Final = "Tinkedge-Peer"
SKEW_SECONDS: Final = 60.0
"""Maximum difference between the clocks of two edges."""
MAX_NONCES: Final = 65_536
"""Maximum number of stored nonces: 500 requests a second, more than 32 edges send."""

_REQUEST: Final = "tinkedge peer request"
_ANSWER: Final = "tinkedge peer answer"
_DIGEST: Final = "tinkedge peer digest"
_SIGNED = re.compile(
    r"v1 (?P<edge>[0-9a-f]{32}) (?P<at>[0-9]{1,15}) (?P<nonce>[A-Za-z0-9_-]{22}) (?P<signature>[A-Za-z0-9_-]{43})",
    re.ASCII,
)


class StrangerReason(StrEnum):
    """Why a request is rejected."""

    UNSIGNED = "unsigned"
    FORGED = "forged"
    STALE = "stale"
    REPLAYED = "replayed"
    FULL = "full"


class StrangerError(TinkedgeError):
    """A request is not from an edge of this site, or can't be accepted now; the message says why."""

    def __init__(self, refusal: StrangerReason, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """The signed parts of a request. `authority` is the receiver's `address:port`, `range` the header's value."""

    method: str
    authority: str
    target: str
    body: bytes = b""
    range: str = ""

    @property
    def claims(self) -> str:
        """The text to sign: one line for each part."""
        digest = hashlib.sha256(self.body).hexdigest()
        return "\n".join((self.method, self.authority, self.target, self.range, digest))


@dataclass(frozen=True, slots=True)
class VerifiedRequest:
    """A valid request: the edge that sent it, and the nonce and the key that its answer is signed with."""

    edge: str
    nonce: str
    signatures: Signatures = field(repr=False)

    def sign_response(self, status: int, content: bytes) -> str:
        """Return the signed header of an answer."""
        return self.signatures.keys.sign(_ANSWER, _answer(self.nonce, status, content))

    def sign_digest(self, sha256: str) -> bytes:
        """Return the trailer of a file that was sent: its signed checksum."""
        return (sha256 + self.signatures.keys.sign(_DIGEST, f"{self.nonce}\n{sha256}")).encode()


class Signatures:
    """Signs the messages of one edge, whose id is `edge`, and checks those of others."""

    def __init__(self, keys: KeyFile, clock: Callable[[], float], edge: str = "") -> None:
        """`clock` returns Unix seconds."""
        self.edge = edge or secrets.token_hex(16)
        self.keys = keys
        self._clock = clock
        self._nonces: OrderedDict[str, float] = OrderedDict()

    def request(self, request: SignedRequest) -> tuple[str, str]:
        """Return the signed header of a request, and its nonce."""
        nonce = secrets.token_urlsafe(16)
        words = f"v1 {self.edge} {int(self._clock() * 1000)} {nonce}"
        signature = self.keys.sign(_REQUEST, f"{words}\n{request.claims}")
        return f"{words} {signature}", nonce

    def is_response(self, nonce: str, status: int, content: bytes, signature: str) -> bool:
        """Return True if an edge of this site signed this answer."""
        return signature.isascii() and self.keys.signed(_ANSWER, _answer(nonce, status, content), signature)

    def is_digest(self, nonce: str, sha256: str, signature: str) -> bool:
        """Return True if an edge of this site signed this checksum of the file that it sent."""
        return signature.isascii() and self.keys.signed(_DIGEST, f"{nonce}\n{sha256}", signature)

    def check(self, header: str, request: SignedRequest) -> VerifiedRequest:
        """Check a request, and accept its nonce only once. Raises StrangerError."""
        match = _SIGNED.fullmatch(header)
        if match is None:
            raise StrangerError(StrangerReason.UNSIGNED, "only edges of this site may ask here")
        words = header.rpartition(" ")[0]
        if not self.keys.signed(_REQUEST, f"{words}\n{request.claims}", match["signature"]):
            advice = "give all edges of a site the same --metadata-token-key"
            raise StrangerError(StrangerReason.FORGED, f"not signed with a key of this edge, or not for it: {advice}")
        now = self._clock()
        ahead = int(match["at"]) / 1000 - now
        if abs(ahead) > SKEW_SECONDS:
            raise StrangerError(StrangerReason.STALE, f"its clock is {ahead:+.0f} s off this one's: set both by NTP")
        # Drop the nonces of requests that are too old to be accepted.
        while self._nonces and not now - 2 * SKEW_SECONDS <= next(iter(self._nonces.values())) <= now:
            self._nonces.popitem(last=False)
        nonce = match["nonce"]
        if nonce in self._nonces:
            raise StrangerError(StrangerReason.REPLAYED, "this request has been made before")
        if len(self._nonces) >= MAX_NONCES:
            raise StrangerError(StrangerReason.FULL, "too many requests at once: try again")
        self._nonces[nonce] = now
        return VerifiedRequest(match["edge"], nonce, self)


def _answer(nonce: str, status: int, content: bytes) -> str:
    return f"{nonce}\n{status}\n{hashlib.sha256(content).hexdigest()}"
