"""The limits that gRPC's core applies before a call reaches this program, and the number of connections.

Options of gRPC's core limit the time of a handshake, the calls of a connection, waiting calls, and the size of messages
and metadata. `tink.server.connections.accounts` has the limits for which gRPC has no option.
"""

from __future__ import annotations

import resource
from typing import Final

from tink.server.connections.accounts import PortLimits

_MAX_EVENT_BYTES: Final = 256 << 10
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
        ("grpc.max_receive_message_length", _MAX_EVENT_BYTES),
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
