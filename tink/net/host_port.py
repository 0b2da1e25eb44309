"""An address with a port, as text."""

from __future__ import annotations


def join_host_port(host: str, port: int) -> str:
    """`host:port`, and `[host]:port` of an IPv6 address (RFC 3986, section 3.2.2)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reachable_host(host: str) -> str:
    """Return the address at which this host itself reaches a server that listens at `host`: loopback for a wildcard."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - nothing listens here
