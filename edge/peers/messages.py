"""What edges say to each other: JSON, checked before anything is made of it. Pure.

POST /peers/hello                       who are you, and where are you     Edge      -> Edge
POST /peers/ask                         have you this file              CacheQuery -> CacheReply
POST /peers/happened                    this was seen of machines here        EventBatch -> BatchReceipt
POST /peers/chain                       through whom do you fetch           Chain      -> Chain
POST /peers/fetch                       get this file, and I from you       FetchQuery -> FetchReply
GET  /peers/artifacts/KEY/VERSION       its bytes, with `Range`, and a signed SHA-256 behind them
"""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from tink.net.addresses import join_host_port

MAX_MESSAGE_BYTES: Final = 16 << 10
MAX_BATCH_BYTES: Final = 256 << 10
"""Of a message that tells what happened."""
MAX_BATCH_EVENTS: Final = 1000
MAX_CHAIN: Final = 8
"""Edges that fetch through one another."""
MAX_URL: Final = 8192
MAX_PLACES: Final = 64
"""Networks of one edge."""

HELLO: Final = "/peers/hello"
ASK: Final = "/peers/ask"
HAPPENED: Final = "/peers/happened"
CHAIN: Final = "/peers/chain"
FETCH: Final = "/peers/fetch"
ARTIFACTS: Final = "/peers/artifacts"


class MessageError(ValueError):
    """A message that no edge sends; says what is wrong with it."""


def _host(value: str) -> str:
    return str(ipaddress.IPv4Address(value))


def _network(value: str) -> str:
    return str(ipaddress.IPv4Network(value))


def _host6(value: str) -> str:
    address = ipaddress.IPv6Address(value)
    if address.scope_id is not None:
        raise ValueError("a zone is of one host alone")
    return str(address)


def _network6(value: str) -> str:
    return str(ipaddress.IPv6Network(value))


Key = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Pin = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
EdgeId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Port = Annotated[int, Field(ge=0, le=65535)]
Address = Annotated[str, Field(max_length=15), AfterValidator(_host)]
Network = Annotated[str, Field(max_length=18), AfterValidator(_network)]
Address6 = Annotated[str, Field(max_length=39), AfterValidator(_host6)]
Network6 = Annotated[str, Field(max_length=43), AfterValidator(_network6)]


class _Message(BaseModel):
    # What a later version adds is passed over, so that edges of two versions can stand beside each other.
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, hide_input_in_errors=True)

    max_bytes: ClassVar[int] = MAX_MESSAGE_BYTES

    @classmethod
    def read(cls, content: bytes) -> Self:
        """One that was sent. Raises MessageError."""
        if len(content) > cls.max_bytes:
            raise MessageError(f"longer than {cls.max_bytes} bytes")
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise MessageError(f"{where}: {first['msg']}"[:200]) from None

    def encoded(self) -> bytes:
        """As it is sent."""
        return self.model_dump_json().encode()


class Place(_Message):
    """An address of an edge, and the network that it is of."""

    address: Address
    network: Network


class Place6(_Message):
    """The same of IPv6: in a field of its own, for edges of older versions take no such address in `places`."""

    address: Address6
    network: Network6


class Edge(_Message):
    """An edge of the site. `server_port` is that of the gRPC server at the same addresses; 0: agents are sent
    elsewhere. `dhcp`: it answers DHCP for the same machines.
    """

    id: EdgeId
    places: Annotated[tuple[Place, ...], Field(max_length=MAX_PLACES, strict=False)]
    places6: Annotated[tuple[Place6, ...], Field(max_length=MAX_PLACES, strict=False)] = ()
    http_port: Port
    server_port: Port = 0
    dhcp: bool = True

    @property
    def addresses(self) -> tuple[str, ...]:
        """Those of all its places, of IPv4 first."""
        return (*(place.address for place in self.places), *(place.address for place in self.places6))

    @property
    def authorities(self) -> tuple[str, ...]:
        """The same with the port of its HTTP, as they stand in URLs."""
        return tuple(join_host_port(address, self.http_port) for address in self.addresses)


class CacheQuery(_Message):
    """Have you the artifact `key` (`edge.artifacts`), or one with the SHA-256 `pin`? `claim`: may I fetch it if nobody
    has it? Asked of the one edge that decides that for this key."""

    key: Key
    pin: Pin = ""
    claim: bool = False


class HeldCopy(_Message):
    """`edge.artifacts.Copy`, as it is sent."""

    version: Annotated[str, Field(pattern=r"^[0-9a-f]{1,64}$")]
    size: Annotated[int, Field(ge=1, le=1 << 50)]
    etag: Annotated[str, Field(max_length=1024)] = ""
    last_modified: Annotated[str, Field(max_length=128)] = ""
    fresh: Annotated[float, Field(ge=0, le=86_400)] = 0.0
    sha256: Pin = ""


class CacheReply(_Message):
    """`held`: what the edge has of it; `fetching`: it is about to have it. `claimed` is the edge that may fetch it, if
    that was asked; empty if not."""

    held: HeldCopy | None = None
    fetching: bool = False
    claimed: Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")] = ""


Edges = Annotated[tuple[EdgeId, ...], Field(max_length=MAX_CHAIN, strict=False)]


class Chain(_Message):
    """The edges that one fetches through, itself first; who asks says nothing of itself."""

    edges: Edges = ()


class FetchQuery(_Message):
    """Get the artifact of `url`, with the SHA-256 `pin` if the OSIE has one."""

    url: Annotated[str, Field(min_length=8, max_length=MAX_URL)]
    pin: Pin = ""


class FetchReply(_Message):
    """`held`: it is there, or on its way; None: why not, for people. `missing`: there is no such file."""

    held: HeldCopy | None = None
    missing: bool = False
    trouble: Annotated[str, Field(max_length=200)] = ""


class EventBatch(_Message):
    """What an edge or a server has seen of machines since it told last: `edge.journey.records`, each looked at by
    itself. `name` is what people know it by; `now` its clock, in Unix seconds."""

    max_bytes: ClassVar[int] = MAX_BATCH_BYTES

    kind: Literal["edge", "server"]
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,63}$")]
    now: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    events: Annotated[list[Any], Field(max_length=MAX_BATCH_EVENTS)]


class BatchReceipt(_Message):
    """How many of them were news."""

    taken: Annotated[int, Field(ge=0)]
