"""`kubectl --as`: a request in another's name, for those who may do everything. Pure.

What the headers say is never passed over: who asks to be somebody else and is taken for himself might do what he only
wanted to try (k8s.io/apiserver, pkg/endpoints/filters/impersonation.go).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from multidict import MultiMapping

from tink.kubeapi.apiserver.access.authorizer import Action, allowed
from tink.kubeapi.apiserver.access.callers import AUTHENTICATED, MASTERS, Caller

_PREFIX: Final = "impersonate-"


class ImpersonationError(Exception):
    """The headers make no sense; the message says why."""


class ImpersonationForbiddenError(Exception):
    """The caller may not be somebody else."""

    def __init__(self, wanted: Action) -> None:
        super().__init__(wanted.name)
        self.wanted = wanted


def wants_impersonation(headers: Mapping[str, str]) -> bool:
    """Whether a request asks for it."""
    return any(name.lower().startswith(_PREFIX) for name in headers)


def impersonated(caller: Caller, headers: MultiMapping[str], user: Callable[[str], Caller]) -> Caller:
    """Who the caller wants to be; `user` gives a user by name.

    Raises ImpersonationForbiddenError, ImpersonationError.
    """
    name, groups = headers.get("Impersonate-User", ""), headers.getall("Impersonate-Group", [])
    for wanted in (Action("impersonate", "", "users", name=name), *(_group(each) for each in groups)):
        if not allowed(caller, wanted):
            raise ImpersonationForbiddenError(wanted)
    others = {each.lower() for each in headers if each.lower().startswith(_PREFIX)}
    if others - {"impersonate-user", "impersonate-group"}:
        raise ImpersonationError("only Impersonate-User and Impersonate-Group are known here")
    if not name:
        raise ImpersonationError("requested groups without impersonating a user")
    known = user(name)
    return Caller(
        name,
        tuple(dict.fromkeys((*groups, AUTHENTICATED))),
        "cluster-admin" if MASTERS in groups else known.role,
        () if MASTERS in groups else known.namespaces,
        caller.credential,
        caller.name,
    )


def _group(name: str) -> Action:
    return Action("impersonate", "", "groups", name=name)
