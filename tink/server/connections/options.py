"""What gRPC itself bounds before a call reaches us, and how many connections this process can have.

The least that an attacker may cost is in options of gRPC's core: handshakes in time, streams of a connection, calls
that wait, bytes of a message and of its metadata. What it has no option for is the `guard`'s.
"""

from __future__ import annotations

import resource
from typing import Final

from tink.server.connections.accounts import Limits

_MAX_EVENT_BYTES: Final = 256 << 10
_MAX_STREAMS: Final = 100
"""Calls that one connection may have at once: the least that RFC 9113 section 6.5.2 recommends. An agent has ten, and a
proxy that brings many agents opens more connections."""
_MAX_PENDING: Final = 1_500
"""Calls of a method that wait for us, from which on some are turned away, and at twice as many all. They have 40 MB,
or 90 where each has a connection of its own. Of 10,000 agents that come in one moment most have to try again, once or
twice: all of them are in within 14 s on two cores."""
_PENDING_SECONDS: Final = 10
"""How long a call waits for us."""
_MAX_METADATA_BYTES: Final = 16 << 10
_BEGINNING, _BEGINNING_TLS = 1 << 10, 8 << 10
"""Bytes before the first call: HTTP/2's settings, and with TLS a client's chain of certificates."""
_SHARE, _SMALLEST_SHARE = 512, 16
"""Connections of one address, where the operator does not say and there are many files, or very few."""


def channel_options(keepalive: float) -> list[tuple[str, int]]:
    """The options of the server; a silent agent is asked every `keepalive` seconds whether it is there."""
    keepalive_ms = int(keepalive * 1000)
    return [
        # A call that waits for us costs 13 kB, also when it was cancelled: a connection has few of them, and all
        # together have bounded memory. With gRPC's own bound a rack that powers on together loses some of its streams.
        ("grpc.max_concurrent_streams", _MAX_STREAMS),
        ("grpc.server.max_pending_requests", _MAX_PENDING),
        ("grpc.server.max_pending_requests_hard_limit", 2 * _MAX_PENDING),
        # What waited for longer is not waited for any more. (The name in seconds, and gRPC's own, for once.)
        ("grpc.server_max_unrequested_time_in_server", _PENDING_SECONDS),
        # No call of ours has more: a table of one connection's headers, and what is read of it at once.
        ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", _MAX_METADATA_BYTES),
        ("grpc.experimental.tcp_max_read_chunk_size", 64 << 10),
        ("grpc.tcp_receive_buffer_size", 128 << 10),
        # A machine that loses power says nothing: ask, and let agents ask as often as they do.
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", keepalive_ms // 2),
        # gRPC measures the answer to a keepalive's ping by this one, which is a minute otherwise.
        ("grpc.http2.ping_timeout_ms", keepalive_ms // 2),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_receive_message_length", _MAX_EVENT_BYTES),
        # Whoever connects and says nothing, or no HTTP/2, or has no call open, does not stay.
        ("grpc.server_handshake_timeout_ms", 10_000),
        # A peer is bound by our settings only after it has acknowledged them (`memory`).
        ("grpc.http2.settings_timeout", 10_000),
        ("grpc.max_connection_idle_ms", 300_000),
        # The rest of our files are for DHCP, TFTP and HTTP, which have to go on. The guard makes room before.
        ("grpc.max_allowed_incoming_connections", _affordable()),
        # A second server on the same port must fail, not share the agents at random.
        ("grpc.so_reuseport", 0),
    ]


def connection_limits(per_address: int | None, *, tls: bool = False) -> Limits:
    """The limits of connections; of one address `per_address`, None: what there are files for."""
    in_all = _affordable() * 7 // 8
    share = per_address or min(_SHARE, max(_SMALLEST_SHARE, in_all // 4))
    return Limits(in_all, share, beginning=_BEGINNING_TLS if tls else _BEGINNING)


def _affordable() -> int:
    """Connections for which there are files."""
    return max(64, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4 * 3)
