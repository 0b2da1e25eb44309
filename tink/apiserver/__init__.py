"""The embedded Kubernetes API: one machine, SQLite, so that kubectl works with no cluster (see `server`)."""

from tink.apiserver.errors import ApiServerError
from tink.apiserver.server import ApiServer
from tink.apiserver.store import snapshots

__all__ = ["ApiServer", "ApiServerError", "snapshots"]
