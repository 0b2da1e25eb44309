"""An address with a port, as text."""

from __future__ import annotations


def join_host_port(host: str, port: int) -> str:
    """`host:port`, and `[host]:port` of an IPv6 address (RFC 3986, section 3.2.2)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
