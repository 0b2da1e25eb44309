"""The embedded Kubernetes API: one machine, SQLite, so that kubectl works with no cluster (see `server`)."""

from tink.apiserver.access import FILE as USERS_FILE
from tink.apiserver.access import ROLES, Credential, User, UserError, UserFileError, Users, change_role, read_users
from tink.apiserver.access import issue as issue_token
from tink.apiserver.access import revoke as revoke_token
from tink.apiserver.credentials import user_kubeconfig
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
    "ROLES",
    "USERS_FILE",
    "ApiServer",
    "ApiServerError",
    "Credential",
    "SnapshotError",
    "User",
    "UserError",
    "UserFileError",
    "Users",
    "advance_snapshot",
    "change_role",
    "issue_token",
    "lock_state",
    "newest_answered",
    "read_users",
    "revoke_token",
    "salvage_state",
    "survey_snapshot",
    "take_snapshot",
    "user_kubeconfig",
]
