"""Who asks: from an address (`by_address`) and from a whole HTTP request (`by_request`) to the machine.

Spelling of addresses, and what proxies say of them: `addresses`; of the ends of sockets: `ends`.
Tokens in paths: `metadata_tokens`.
"""

from edge.callers.addresses import FORWARDED, ForwardedError, Networks, dotted, inside
from edge.callers.by_address import NEIGHBOUR_SECONDS, UNSEEN, Callers, Neighbours
from edge.callers.by_request import TRUST_NOBODY, Caller, RequestCallers, TrustedNetworks
from edge.callers.ends import other_end
from edge.callers.metadata_tokens import MEDIUM_PREFIX, MediumTokens, MetadataTokenError, MetadataTokens, token_keys

__all__ = [
    "FORWARDED",
    "MEDIUM_PREFIX",
    "NEIGHBOUR_SECONDS",
    "TRUST_NOBODY",
    "UNSEEN",
    "Caller",
    "Callers",
    "ForwardedError",
    "MediumTokens",
    "MetadataTokenError",
    "MetadataTokens",
    "Neighbours",
    "Networks",
    "RequestCallers",
    "TrustedNetworks",
    "dotted",
    "inside",
    "other_end",
    "token_keys",
]
