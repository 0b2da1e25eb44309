"""Who makes a request, and whether he may: before anything of it is looked at but its head.

What is open in the name of a user (a watch, a long list) ends when he has lost what it takes: each second `Sessions`
looks whether everybody still has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from aiohttp import web

from tink.kubeapi.apiserver import errors
from tink.kubeapi.apiserver.access import (
    Action,
    Authenticator,
    Caller,
    ImpersonationError,
    ImpersonationForbiddenError,
    Request,
    TokenExpiredError,
    WrongTokenError,
    allowed,
    forbidden_message,
    impersonated,
    wants_impersonation,
)
from tink.kubeapi.apiserver.errors import StatusError
from tink.kubeapi.apiserver.http.lists import token_of
from tink.kubeapi.apiserver.requests import Target, parse_bool

CALLER = web.RequestKey("caller", Caller)
"""Who makes a request, once that is known."""

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "GET": "get", "HEAD": "get"}


def authenticate(request: web.Request, authenticator: Authenticator) -> Caller:
    """Who shows the token of a request. Raises StatusError (401)."""
    scheme, _, text = request.headers.get("Authorization", "").partition(" ")
    token = text.strip().encode("utf-8", "surrogateescape") if scheme.lower() == "bearer" else token_of(request)
    if token is None:
        raise errors.unauthorized()
    try:
        return authenticator.caller(token)
    except TokenExpiredError as error:
        raise errors.unauthorized(str(error)) from error
    except WrongTokenError as error:
        raise errors.unauthorized() from error


def in_whose_name(request: web.Request, caller: Caller, authenticator: Authenticator) -> Caller:
    """The caller, or whom he impersonates. Raises StatusError (403, 400)."""
    if not wants_impersonation(request.headers):
        return caller
    try:
        return impersonated(caller, request.headers, authenticator.user)
    except ImpersonationForbiddenError as error:
        raise _refused(caller, error.wanted) from error
    except ImpersonationError as error:
        raise errors.bad_request(str(error)) from error


def wanted(method: str, path: str, target: Target | None, query: Mapping[str, str]) -> Action | Request:
    """What a request is about, in the words of Kubernetes (k8s.io/apiserver, pkg/endpoints/request/requestinfo.go)."""
    if target is None:
        return Request(method.lower(), path or "/")
    verb = _VERBS.get(method, "")
    if not target.name and verb == "get":
        verb = "watch" if parse_bool(query.get("watch", "")) else "list"
    elif not target.name and verb == "delete":
        verb = "deletecollection"
    namespace = target.namespace
    if not target.group and target.plural == "namespaces":
        namespace = target.name  # a namespace is in itself: who has a role in it may read it
    return Action(verb, target.group, target.plural, target.subresource, namespace, target.name)


def authorize(caller: Caller, action: Action | Request) -> None:
    """Raises StatusError (403)."""
    if not allowed(caller, action):
        raise _refused(caller, action)


def _refused(caller: Caller, action: Action | Request) -> StatusError:
    why = forbidden_message(caller, action)
    if isinstance(action, Request):
        return errors.not_allowed("", "", "", why)
    return errors.not_allowed(action.group, action.resource, action.name, why)


class Sessions:
    """The requests that users have open."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._open: dict[asyncio.Task[None], Caller] = {}

    def begin(self, caller: Caller) -> None:
        """The task that runs answers a request of this caller, as he was known by his token."""
        task = asyncio.current_task()
        if caller.credential and task is not None:
            self._open[task] = caller

    def end(self) -> None:
        """The task that runs has answered."""
        task = asyncio.current_task()
        if task is not None:
            self._open.pop(task, None)

    def look(self) -> None:
        """Break off what is open in the name of somebody who has lost what he had."""
        self._authenticator.look()
        for task, caller in list(self._open.items()):
            if not self._authenticator.holds(caller):
                task.cancel()
