"""The embedded Kubernetes API: one machine, one SQLite file, so that kubectl works without a cluster.

README.md describes its three packages. Other packages import only the names below. They are loaded when first used,
because the server needs 0.3 s to import and most commands need none of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tink.kubeapi.apiserver import (
        USERS_FILE,
        AdmissionPlugin,
        ApiServer,
        ApiServerError,
        LocalApi,
        LocalSnapshot,
        StatusError,
        UserError,
        UserFileError,
        advance_snapshot,
        change_role,
        issue_token,
        lock_state,
        newest_answered,
        read_users,
        revoke_token,
        salvage_state,
        survey_snapshot,
        take_snapshot,
        user_kubeconfig,
    )
    from tink.kubeapi.schema import Checker, CompiledSchema, Outcome, compile_definition, compile_schema, deep_copy

_SCHEMA: Final = frozenset(
    {"Checker", "CompiledSchema", "Outcome", "compile_definition", "compile_schema", "deep_copy"}
)

__all__ = [
    "USERS_FILE",
    "AdmissionPlugin",
    "ApiServer",
    "ApiServerError",
    "Checker",
    "CompiledSchema",
    "LocalApi",
    "LocalSnapshot",
    "Outcome",
    "StatusError",
    "UserError",
    "UserFileError",
    "advance_snapshot",
    "change_role",
    "compile_definition",
    "compile_schema",
    "deep_copy",
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


def __getattr__(name: str) -> object:
    """Import an exported name when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.schema" if name in _SCHEMA else f"{__name__}.apiserver"), name)
