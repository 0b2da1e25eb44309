"""The agent's gRPC channel to the server: how it is kept alive, encrypted, and who the agent says it is."""

from __future__ import annotations

from pathlib import Path

import grpc
import grpc.aio

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    # A machine in a rack loses its switch without a FIN: ask every 20 s whether the server is still there.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # gRPC's own reconnecting; its "min" is also how long one attempt to connect may take.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 10_000),
    ("grpc.min_reconnect_backoff_ms", 10_000),
    # The server is on the machine's own network; a proxy in the environment is for images.
    ("grpc.enable_http_proxy", 0),
)


def open_channel(server: str, tls_roots: Path | None) -> grpc.aio.Channel:
    """A channel to `server` (host:port); encrypted when `tls_roots` is given, a missing file meaning gRPC's roots."""
    if tls_roots is None:
        return grpc.aio.insecure_channel(server, options=CHANNEL_OPTIONS)
    roots = tls_roots.read_bytes() if tls_roots.exists() else None
    return grpc.aio.secure_channel(server, grpc.ssl_channel_credentials(roots), options=CHANNEL_OPTIONS)
