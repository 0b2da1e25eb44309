"""Objects and their history in one SQLite file, with a watch history like etcd's.

`object_store` is the entry: reads and writes for the event loop, done by threads (`history`) behind a cache. `objects`
are the values that go in and out. `database` opens the file and creates its tables. `integrity` finds damage, and reads
files that can't be written. `snapshots` are copies for backups.
"""

from tink.kubeapi.apiserver.store.object_store import MemoryStore, Store
from tink.kubeapi.apiserver.store.objects import (
    Event,
    ExpiredError,
    Key,
    MismatchError,
    OwnedObject,
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
    "OwnedObject",
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
