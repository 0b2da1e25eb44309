"""The embedded Kubernetes API: one machine, one SQLite file, so that kubectl works without a cluster.

README.md describes its three packages. Other packages import only the names below. They are loaded when first used,
because the server needs 0.3 s to import and most commands need none of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tink.kubeapi.apiserver.access import (
        USERS_FILE,
        UserError,
        UserFileError,
        change_role,
        issue_token,
        read_users,
        revoke_token,
    )
    from tink.kubeapi.apiserver.admission.review import AdmissionPlugin
    from tink.kubeapi.apiserver.credentials import user_kubeconfig
    from tink.kubeapi.apiserver.errors import ApiServerError, StatusError
    from tink.kubeapi.apiserver.local import LocalApi, LocalSnapshot
    from tink.kubeapi.apiserver.server import ApiServer
    from tink.kubeapi.apiserver.store.snapshots import (
        advance_snapshot,
        lock_state,
        newest_answered,
        salvage_state,
        survey_snapshot,
        take_snapshot,
    )
    from tink.kubeapi.schema.checker import Checker, compile_definition
    from tink.kubeapi.schema.field_errors import CompiledSchema, WalkResult
    from tink.kubeapi.schema.shapes import deep_copy
    from tink.kubeapi.schema.structural import compile_schema

_MODULES: Final = {
    "apiserver.access": (
        *("USERS_FILE", "UserError", "UserFileError", "change_role", "issue_token", "read_users", "revoke_token"),
    ),
    "apiserver.admission.review": ("AdmissionPlugin",),
    "apiserver.credentials": ("user_kubeconfig",),
    "apiserver.errors": ("ApiServerError", "StatusError"),
    "apiserver.local": ("LocalApi", "LocalSnapshot"),
    "apiserver.server": ("ApiServer",),
    "apiserver.store.snapshots": (
        *("advance_snapshot", "lock_state", "newest_answered", "salvage_state", "survey_snapshot", "take_snapshot"),
    ),
    "schema.checker": ("Checker", "compile_definition"),
    "schema.field_errors": ("CompiledSchema", "WalkResult"),
    "schema.shapes": ("deep_copy",),
    "schema.structural": ("compile_schema",),
}
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "USERS_FILE", "AdmissionPlugin", "ApiServer", "ApiServerError", "Checker", "CompiledSchema", "LocalApi",
    "LocalSnapshot", "StatusError", "UserError", "UserFileError", "WalkResult", "advance_snapshot", "change_role",
    "compile_definition", "compile_schema", "deep_copy", "issue_token", "lock_state", "newest_answered", "read_users",
    "revoke_token", "salvage_state", "survey_snapshot", "take_snapshot", "user_kubeconfig",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Import an exported name when it is first used."""
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
