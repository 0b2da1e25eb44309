"""The fast path: answers packets of a known layout by a look-up, with the same bytes as `edge.dhcp.replies`."""

from edge.dhcp.fast_path.answers import FastPath

__all__ = ["FastPath"]
