"""The Kubernetes API server on one machine: SQLite instead of etcd, one process instead of a cluster."""

from tink.kubeapi.apiserver.access import USERS_FILE as USERS_FILE
from tink.kubeapi.apiserver.access import UserError, UserFileError, change_role, read_users
from tink.kubeapi.apiserver.access import issue_token as issue_token
from tink.kubeapi.apiserver.access import revoke_token as revoke_token
from tink.kubeapi.apiserver.admission.review import AdmissionPlugin
from tink.kubeapi.apiserver.credentials import user_kubeconfig
from tink.kubeapi.apiserver.errors import ApiServerError, StatusError
from tink.kubeapi.apiserver.local import LocalApi, LocalSnapshot
from tink.kubeapi.apiserver.server import ApiServer
from tink.kubeapi.apiserver.store import (
    advance_snapshot,
    lock_state,
    newest_answered,
    salvage_state,
    survey_snapshot,
    take_snapshot,
)

__all__ = [
    "USERS_FILE",
    "AdmissionPlugin",
    "ApiServer",
    "ApiServerError",
    "LocalApi",
    "LocalSnapshot",
    "StatusError",
    "UserError",
    "UserFileError",
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
