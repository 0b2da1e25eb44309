"""Identifies the machine that sends a packet or an HTTP request.

by_request        from an HTTP request: address, proxy headers and path
by_address        from an address
metadata_tokens   tokens in paths
addresses         spelling of addresses, and X-Forwarded-For
"""

from edge.callers.addresses import FORWARDED, ForwardedError, Networks, dotted, inside
from edge.callers.by_address import NEIGHBOUR_SECONDS, UNSEEN, Callers, Neighbours
from edge.callers.by_request import TRUST_NOBODY, Caller, RequestCallers, TrustedNetworks, other_end
from edge.callers.metadata_tokens import MEDIUM_PREFIX, MediumTokens, MetadataTokenError, MetadataTokens, token_keys

__all__ = [
    "FORWARDED", "MEDIUM_PREFIX", "NEIGHBOUR_SECONDS", "TRUST_NOBODY", "UNSEEN", "Caller", "Callers", "ForwardedError",
    "MediumTokens", "MetadataTokenError", "MetadataTokens", "Neighbours", "Networks", "RequestCallers",
    "TrustedNetworks", "dotted", "inside", "other_end", "token_keys",
]  # fmt: skip
