"""The embedded Kubernetes API: one machine, SQLite, so that kubectl works with no cluster (see `server`)."""

from tink.apiserver.errors import ApiServerError
from tink.apiserver.server import ApiServer
from tink.apiserver.store import (
    SnapshotError,
    advance_snapshot,
    lock_state,
    newest_answered,
    salvage_state,
    survey_snapshot,
    take_snapshot,
)

__all__ = [
    "ApiServer",
    "ApiServerError",
    "SnapshotError",
    "advance_snapshot",
    "lock_state",
    "newest_answered",
    "salvage_state",
    "survey_snapshot",
    "take_snapshot",
]
