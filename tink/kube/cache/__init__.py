"""A local copy of a collection, and a call for each of its changes: client-go's `tools/cache`.

`Informer` is the whole: a `reflector` lists and watches, a `store` holds the objects, `compression` makes them small.
`Index` answers which keys have a value.
"""

from tink.kube.cache.compression import ObjectCompressor
from tink.kube.cache.informer import AWAY_SECONDS, Informer
from tink.kube.cache.store import Index

__all__ = ["AWAY_SECONDS", "Index", "Informer", "ObjectCompressor"]
