"""Authentication and authorization of a request, before anything but its head is read."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from aiohttp import web

from tink.kubeapi.apiserver import access, errors
from tink.kubeapi.apiserver.http.lists import token_of
from tink.kubeapi.apiserver.options import Target, parse_bool

CALLER = web.RequestKey("caller", access.Caller)  # The caller of a request, once it is authenticated

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "GET": "get", "HEAD": "get"}


def authenticate(request: web.Request, authenticator: access.Authenticator) -> access.Caller:
    """Return the caller whose token the request has. Raises StatusError (401)."""
    scheme, _, text = request.headers.get("Authorization", "").partition(" ")
    token = text.strip().encode("utf-8", "surrogateescape") if scheme.lower() == "bearer" else token_of(request)
    if token is None:
        raise errors.unauthorized()
    return authenticator.caller(token)


def requested_action(
    method: str, path: str, target: Target | None, query: Mapping[str, str]
) -> access.ResourceAction | access.PathAction:
    """Return the action of a request in Kubernetes' terms (k8s.io/apiserver, pkg/endpoints/request/requestinfo.go)."""
    if target is None:
        return access.PathAction(method.lower(), path or "/")
    verb = _VERBS.get(method, "")
    if not target.name and verb == "get":
        verb = "watch" if parse_bool(query.get("watch", "")) else "list"
    elif not target.name and verb == "delete":
        verb = "deletecollection"
    namespace = target.namespace
    if not target.group and target.plural == "namespaces":
        namespace = target.name  # a role in a namespace includes reading the namespace itself
    return access.ResourceAction(verb, target.group, target.plural, target.subresource, namespace, target.name)


def authorize(caller: access.Caller, action: access.ResourceAction | access.PathAction) -> None:
    """Check that the caller may do this. Raises StatusError (403)."""
    if not access.allowed(caller, action):
        raise access.forbidden(caller, action)


class Sessions:
    """The open requests of users. A watch or a long list ends when its user loses the rights."""

    def __init__(self, authenticator: access.Authenticator) -> None:
        self._authenticator = authenticator
        self._open: dict[asyncio.Task[None], access.Caller] = {}

    def begin(self, caller: access.Caller) -> None:
        """Register the running task as a request of this caller."""
        task = asyncio.current_task()
        if caller.credential and task is not None:
            self._open[task] = caller

    def end(self) -> None:
        """Remove the running task: its request has been answered."""
        task = asyncio.current_task()
        if task is not None:
            self._open.pop(task, None)

    def recheck(self) -> None:
        """Cancel the requests of users who have lost their rights. The server calls this once a second."""
        self._authenticator.recheck()
        for task, caller in list(self._open.items()):
            if not self._authenticator.holds(caller):
                task.cancel()
