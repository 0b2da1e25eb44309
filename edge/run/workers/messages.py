"""The messages between the main process and its workers: frozen dataclasses of plain values, sent as JSON.

    main -> worker    Object, Networks, Edges, Ready, Learned, Said, Failure      the state to serve from
                      Listen, Move, Unlisten                                      where to serve (with the socket)
                      ArtifactOpened, ArtifactFilled, ArtifactFailed, SecretRead  answers
                      Reread, Ping
    worker -> main    Event, LogLine, LogsWanted, Said, Failure                   reports
                      OpenArtifact, ArtifactWanted, CloseArtifact, ReadSecret     questions
                      Connection                                                  a connection of another edge
                      Up, Pong

The child process of the gRPC server (`edge.run.server_process`) receives Reread and Ping, and sends Up, Pong,
LogLine, Activity, ServerState, KeptAway and Failed.

Both sides belong to one program, so only the shape of a message is checked.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final, get_args

import orjson


class MessageError(ValueError):
    """What came is no message; says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Object:
    """An object of the Kubernetes API as it is now (`removed`: as it was last). `kind` is its plural."""

    kind: str
    content: dict[str, Any]
    removed: bool = False


@dataclass(frozen=True, slots=True)
class Networks:
    """This host's addresses that machines reach, each with the networks of its interface (CIDR)."""

    places: list[tuple[str, list[str]]]


@dataclass(frozen=True, slots=True)
class Edges:
    """The edge itself, and the living others with their authorities: `edge.peers.messages.Edge` as JSON."""

    own: str
    others: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Ready:
    """Why machines can't be served now; empty: they can."""

    problem: str


@dataclass(frozen=True, slots=True)
class Learned:
    """What DHCP said of a machine's address (`edge.callers.Callers.learn`)."""

    mac: str
    ip: str


@dataclass(frozen=True, slots=True)
class Said:
    """One worker has said this, which the others need not say again for a while; `of` names the set of keys."""

    of: str
    key: list[Any]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a machine's file did not come, by HTTP or TFTP (`of`); empty: it did."""

    of: str
    mac: str
    reason: str


@dataclass(frozen=True, slots=True)
class Listen:
    """Serve on the socket that comes with this: `protocol` is http or tftp. `place` names it."""

    place: int
    protocol: str
    interface: str
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class Move:
    """The interface of this place was made anew: go on there."""

    place: int


@dataclass(frozen=True, slots=True)
class Unlisten:
    """Serve there no more."""

    place: int


@dataclass(frozen=True, slots=True)
class OpenArtifact:
    """`ArtifactCache.open`, please."""

    number: int
    url: str
    sha256: str


@dataclass(frozen=True, slots=True)
class ArtifactOpened:
    """Here is its file. `filled`: up to where it can be read; less than `size`: the rest is told by ArtifactFilled.

    `until`: before this time (CLOCK_MONOTONIC, which all processes share) the same answer would be given again.
    """

    number: int
    size: int
    version: str
    source: str
    sha256: str
    filled: int
    until: float = 0.0
    is_paced: bool = False
    """It is told how far it can be read only in answer to ArtifactWanted."""


@dataclass(frozen=True, slots=True)
class ArtifactWanted:
    """A reader has all before `offset`, and wants what comes there."""

    number: int
    offset: int


@dataclass(frozen=True, slots=True)
class ArtifactFilled:
    """It can be read up to here now; `sha256` is that of the whole, when that is there."""

    number: int
    filled: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ArtifactFailed:
    """It can't be had, or not all of it: an error of `edge.artifacts` by the name of its class."""

    number: int
    error: str
    url: str
    reason: str


@dataclass(frozen=True, slots=True)
class CloseArtifact:
    """It is needed no more. `again`: how often it was opened beside the first time, without asking."""

    number: int
    again: int = 0


@dataclass(frozen=True, slots=True)
class ReadSecret:
    """A Secret that a Hardware names, please."""

    number: int
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class SecretRead:
    """Here it is, or what the API said (`status` 0: it did not answer)."""

    number: int
    secret: dict[str, Any] | None
    status: int = 0
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """What `edge.journey.events.Recorder` is called with; `at` is CLOCK_MONOTONIC, which all processes share."""

    at: float
    mac: str
    step: str
    outcome: str
    message: str
    detail: dict[str, Any]


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a worker's log."""

    logger: str
    level: int
    text: str
    fields: dict[str, Any]
    trace: str = ""


@dataclass(frozen=True, slots=True)
class LogsWanted:
    """A machine was told to send its log lines here."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection that begins as another edge's does, with what it has sent (Latin-1); its socket comes along."""

    received: str


@dataclass(frozen=True, slots=True)
class Up:
    """The worker has begun."""


@dataclass(frozen=True, slots=True)
class Reread:
    """SIGHUP: read keys and certificates again and log the result from `log_level` on (0: as before)."""

    log_level: int = 0


@dataclass(frozen=True, slots=True)
class Ping:
    """Are you there, and have you done what was said before?"""

    number: int


@dataclass(frozen=True, slots=True)
class Pong:
    """Yes. `dropped`: events and lines that found no room since the start."""

    number: int
    dropped: int


@dataclass(frozen=True, slots=True)
class Activity:
    """A `tink.server.AgentActivity`, field by field."""

    agent_id: str
    peer: str
    kind: str
    message: str
    hardware: str
    workflow: str
    action: str
    lines: list[str]
    dropped: int
    elsewhere: bool


@dataclass(frozen=True, slots=True)
class ServerState:
    """The gRPC server's `note` for operators, and what it counts, in the text format of Prometheus."""

    note: str
    metrics: str


@dataclass(frozen=True, slots=True)
class KeptAway:
    """The networks (CIDR) that the gRPC server blocks, each with the end of its block (CLOCK_MONOTONIC)."""

    blocks: list[tuple[str, float]]


@dataclass(frozen=True, slots=True)
class Failed:
    """Reports that the process can't start, with the reason."""

    reason: str


Message = (
    Object
    | Networks
    | Edges
    | Ready
    | Learned
    | Said
    | Failure
    | Listen
    | Move
    | Unlisten
    | OpenArtifact
    | ArtifactOpened
    | ArtifactFilled
    | ArtifactFailed
    | ArtifactWanted
    | CloseArtifact
    | ReadSecret
    | SecretRead
    | Event
    | LogLine
    | LogsWanted
    | Connection
    | Up
    | Reread
    | Ping
    | Pong
    | Activity
    | ServerState
    | KeptAway
    | Failed
)

_KINDS: Final[dict[str, Any]] = {kind.__name__: kind for kind in get_args(Message)}
_FIELDS: Final = {kind: tuple(field.name for field in fields(kind)) for kind in _KINDS.values()}


def encoded(message: Message) -> bytes:
    """As it is sent."""
    kind = type(message)
    values = [kind.__name__, *[getattr(message, name) for name in _FIELDS[kind]]]
    try:
        return orjson.dumps(values, default=str)
    except TypeError:  # half a character (PEP 383), of a name that a stranger made up
        return orjson.dumps(_whole(values), default=str)


def decoded(content: bytes) -> Message:
    """What was sent. Raises MessageError."""
    try:
        name, *values = orjson.loads(content)
        message: Message = _KINDS[name](*values)
    except (ValueError, TypeError, KeyError) as error:
        raise MessageError(f"{content[:80]!r} is no message: {error}") from None
    return message


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_whole(key): _whole(each) for key, each in value.items()}
    return [_whole(each) for each in value] if isinstance(value, (list, tuple)) else value
