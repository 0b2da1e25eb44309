"""The fast path: answers messages of a known layout by a look-up, with the same bytes as `edge.dhcp6.responder`."""

from edge.dhcp6.fast_path.answers import FastPath6

__all__ = ["FastPath6"]
