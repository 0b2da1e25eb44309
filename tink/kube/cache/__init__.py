"""A local copy of a collection of Kubernetes objects with a call for each change: client-go's `tools/cache`.

`Informer` is the entry point. Its reflectors list and watch the API, its `store` holds the objects.
"""

from tink.kube.cache.informer import AWAY_SECONDS, START_JITTER_SECONDS, Informer
from tink.kube.cache.store import Archive, Index, ObjectCompressor

__all__ = ["AWAY_SECONDS", "START_JITTER_SECONDS", "Archive", "Index", "Informer", "ObjectCompressor"]
