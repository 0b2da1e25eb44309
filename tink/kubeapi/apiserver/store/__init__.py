"""Objects and their history, in one SQLite file: the storage of the API server, with a watch history like etcd's.

`object_store` is what everybody uses: reads and writes for the event loop, done by threads (`reader`, `writer`,
`checkpointer`) behind a cache (`object_cache`). `objects` are the values that go in and out; `database` and
`migrations` are the file. What a broken disk can do to it: `integrity`, `high_water_mark`, `read_only`. `snapshots` are
copies of it, for backups.
"""

from tink.kubeapi.apiserver.store.object_store import MemoryStore, Store
from tink.kubeapi.apiserver.store.objects import (
    Event,
    ExpiredError,
    Key,
    MismatchError,
    Owned,
    Page,
    StorageError,
    Stored,
    Write,
)
from tink.kubeapi.apiserver.store.snapshots import (
    SnapshotError,
    advance_snapshot,
    lock_state,
    newest_answered,
    salvage_state,
    survey_snapshot,
    take_snapshot,
)

__all__ = [
    "Event",
    "ExpiredError",
    "Key",
    "MemoryStore",
    "MismatchError",
    "Owned",
    "Page",
    "SnapshotError",
    "StorageError",
    "Store",
    "Stored",
    "Write",
    "advance_snapshot",
    "lock_state",
    "newest_answered",
    "salvage_state",
    "survey_snapshot",
    "take_snapshot",
]
