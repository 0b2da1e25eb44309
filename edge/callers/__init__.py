"""Who asks: from an address (`by_address`) and from a whole HTTP request (`by_request`) to the machine.

Spelling of addresses, and what proxies say of them: `addresses`. Tokens in paths: `metadata_tokens`.
"""

from edge.callers.addresses import FORWARDED, ForwardedError, Networks, dotted, inside
from edge.callers.by_address import NEIGHBOUR_SECONDS, UNSEEN, Callers, Neighbours
from edge.callers.by_request import NOBODY_ELSE, Asker, Asking, Rules
from edge.callers.metadata_tokens import MetadataTokenError, MetadataTokens, token_keys

__all__ = [
    "FORWARDED",
    "NEIGHBOUR_SECONDS",
    "NOBODY_ELSE",
    "UNSEEN",
    "Asker",
    "Asking",
    "Callers",
    "ForwardedError",
    "MetadataTokenError",
    "MetadataTokens",
    "Neighbours",
    "Networks",
    "Rules",
    "dotted",
    "inside",
    "token_keys",
]
