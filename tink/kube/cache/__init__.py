"""A local copy of a collection, and a call for each of its changes: client-go's `tools/cache`.

`Informer` is the whole: a `reflector` lists and watches, a `store` holds the objects, `compression` makes them small,
and of those that are history the `archive` has what is still of use.
`Index` answers which keys have a value.
"""

from tink.kube.cache.archive import Archive
from tink.kube.cache.compression import ObjectCompressor
from tink.kube.cache.informer import AWAY_SECONDS, START_JITTER_SECONDS, Informer
from tink.kube.cache.store import Index, Packed

__all__ = [
    "AWAY_SECONDS",
    "START_JITTER_SECONDS",
    "Archive",
    "Index",
    "Informer",
    "ObjectCompressor",
    "Packed",
]
