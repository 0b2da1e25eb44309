"""The operator's settings of the server, and the limits that follow from them for its connections."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tink.server.auth import AgentAuth, OlderAgentAuth, TokenSettings
from tink.server.connections.accounts import PortLimits
from tink.server.tls import TlsFiles


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of the server. All times are in seconds. Raises ValueError if they contradict each other."""

    agent_auth: AgentAuth = AgentAuth.ADDRESS
    older_agents: OlderAgentAuth = OlderAgentAuth.AUTO
    tokens: TokenSettings | None = None
    """Required for AgentAuth.TOKEN."""
    tls: TlsFiles | None = None
    """The server listens without encryption if None. AgentAuth.MTLS requires it, with an authority for clients."""
    tls_ca: Path | None = None
    """The authority that the edge gives to agents for verifying the server; the last certificate of `tls` if None."""
    calls: int = 50_000
    calls_per_address: int = 512
    """Maximum number of simultaneous calls, including command streams: in total, and for one address except
    loopback.
    """
    connections_per_address: int | None = None
    """Maximum number of connections of one address except loopback. None: 512, or a quarter of the file descriptors."""
    rejection_first: float = 5.0
    rejection_longest: float = 300.0
    """First and longest delay before a rejected Workflow is offered again."""
    reboot_grace: float = 30.0
    """Seconds without the agent after which a last action that reboots the machine counts as succeeded."""
    keepalive: float = 20.0
    """Seconds between pings of a silent agent; without an answer within half of that the connection is closed."""
    memory: int | None = None
    """Maximum memory of the server's process in bytes; None: the memory is not watched."""
    stop_grace: float = 2.0
    """Seconds that running calls may take when the server stops."""

    def __post_init__(self) -> None:
        for name in ("rejection_first", "rejection_longest", "reboot_grace", "keepalive", "stop_grace"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be a number of seconds above 0, not {getattr(self, name)}")
        for name in ("calls", "calls_per_address", "connections_per_address"):
            given = getattr(self, name)
            if given is not None and given < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.agent_auth is AgentAuth.TOKEN and self.tokens is None:
            raise ValueError("agent auth by token needs --agent-token-key")
        if self.agent_auth is AgentAuth.MTLS and (self.tls is None or self.tls.client_ca is None):
            raise ValueError("agent auth by mtls needs --grpc-tls-cert, --grpc-tls-key and --grpc-client-ca")


# --- limits of connections --------------------------------------------------------------------------------------------
#
# Options of gRPC's core limit the time of a handshake, the calls of a connection, waiting calls, and the size of
# messages and metadata, before a call reaches this program. `tink.server.connections.accounts` has the limits for which
# gRPC has no option.

_MAX_MESSAGE_BYTES: Final = 272 << 10
"""Maximum size of a message: an inventory of 256 KiB (`tink.server.inventory`) and its other fields."""
_MAX_STREAMS: Final = 100
"""Number of calls that one connection may have at once: the minimum that RFC 9113 section 6.5.2 recommends. An agent
has ten. A proxy for many agents opens more connections."""
_MAX_PENDING: Final = 1_500
"""Number of waiting calls of a method from which on gRPC rejects some, and at twice as many all.

They use 40 MB, or 90 MB if each has its own connection. If 10,000 agents connect at the same moment, most have to try
again once or twice: all of them are connected within 14 s on two cores.
"""
_PENDING_SECONDS: Final = 10
"""Time that a call may wait."""
_MAX_METADATA_BYTES: Final = 16 << 10
_BEGINNING, _BEGINNING_TLS = 1 << 10, 8 << 10
"""Bytes before the first call: HTTP/2's settings, and with TLS the client's certificates."""
_MEASURING_SHARE, _SMALLEST_SHARE = 512, 16
"""Number of connections of one address by default, with many or very few available files."""


def channel_options(keepalive: float) -> list[tuple[str, int]]:
    """Return the options of the server. A silent agent gets a ping every `keepalive` seconds."""
    keepalive_ms = int(keepalive * 1000)
    return [
        # A waiting call costs 13 kB, even after it was cancelled. These limits bound the memory of one connection and
        # of all. With gRPC's defaults, a rack that powers on together loses some of its streams.
        ("grpc.max_concurrent_streams", _MAX_STREAMS),
        ("grpc.server.max_pending_requests", _MAX_PENDING),
        ("grpc.server.max_pending_requests_hard_limit", 2 * _MAX_PENDING),
        # Calls that waited longer are dropped. The unit is seconds, unlike in all other options.
        ("grpc.server_max_unrequested_time_in_server", _PENDING_SECONDS),
        # No honest call has more metadata. These also limit a connection's header table and its read buffer.
        ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", _MAX_METADATA_BYTES),
        ("grpc.experimental.tcp_max_read_chunk_size", 64 << 10),
        ("grpc.tcp_receive_buffer_size", 128 << 10),
        # A machine that loses power closes nothing, so send pings, and accept the agents' pings.
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", keepalive_ms // 2),
        # gRPC uses this timeout for keepalive pings. Its default is a minute.
        ("grpc.http2.ping_timeout_ms", keepalive_ms // 2),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
        # Close connections that send nothing, do not speak HTTP/2, or have no call.
        ("grpc.server_handshake_timeout_ms", 10_000),
        # A peer has to obey our settings only after it has acknowledged them (see `accounts`, "Memory").
        ("grpc.http2.settings_timeout", 10_000),
        ("grpc.max_connection_idle_ms", 300_000),
        # Leave files for DHCP, TFTP and HTTP. The guard closes connections before this limit is reached.
        ("grpc.max_allowed_incoming_connections", _affordable()),
        # A second server on the same port must fail, not share the agents at random.
        ("grpc.so_reuseport", 0),
    ]


def connection_limits(per_address: int | None, *, tls: bool = False) -> PortLimits:
    """Return the limits of connections. `per_address` None: as many as the limit of open files allows."""
    in_all = _affordable() * 7 // 8
    share = per_address or min(_MEASURING_SHARE, max(_SMALLEST_SHARE, in_all // 4))
    return PortLimits(in_all, share, beginning=_BEGINNING_TLS if tls else _BEGINNING)


def _affordable() -> int:
    """Return the number of connections that the limit of open files leaves room for."""
    return max(64, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4 * 3)
