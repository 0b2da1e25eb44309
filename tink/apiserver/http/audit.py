"""Who did what, in the log: a line for each write of a user, and for what he may not.

    alice from 10.0.0.7: delete workflows.tinkerbell.org default/install: 200
    admin as bob from 127.0.0.1: ...

Reads are not in it, nor is what our own components write: the journey and Events tell that. There are no bodies and no
tokens in it. So many lines a minute at most, and of one user no more than a share: the log says how many were left out.

Each line has fields beside it: who (`user`, `by`, `address`) did what (`verb`, `resource`) to which object (`object`,
and `workflow` where it is one), and with which `status`; `outcome` is refused where he may not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import orjson
from aiohttp import web

from tink.apiserver.access import ADMIN, Action, Caller, Request
from tink.limits.log import LimitedLog

log = logging.getLogger(__name__)

CAPACITY: Final = 1000
SHARE: Final = 500
"""Lines in a minute: in all, and of one user."""
_READS: Final = frozenset({"get", "list", "watch", "head", ""})
_OURS: Final = "tinkedge"
"""How our components call themselves (User-Agent)."""
_CREATED: Final = 201
_LONG: Final = 64 << 10
_WORKFLOWS: Final = ("tinkerbell.org", "workflows")
_QUESTIONS: Final = frozenset({"authorization.k8s.io", "authentication.k8s.io"})


class Audit:
    """Writes the lines. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = LimitedLog(log, clock, capacity=CAPACITY, share=SHARE)

    def answered(
        self, request: web.Request, caller: Caller, action: Action | Request, response: web.StreamResponse
    ) -> None:
        """A request was answered."""
        if isinstance(action, Request) or action.verb in _READS or action.group in _QUESTIONS:
            return
        if _is_ours(caller, request):
            return
        name = action.name or _created(response)
        address = request.remote or ""
        fields = _fields(caller, address, action, name) | {"status": response.status}
        tried = " (dry run)" if "dryRun" in request.query else ""
        self._log.log(
            logging.INFO,
            "%s from %s: %s %s %s%s: %d",
            _who(caller),
            address,
            action.verb,
            fields["resource"],
            _place(action, name),
            tried,
            response.status,
            owner=caller.name,
            fields=fields | ({"dry_run": True} if tried else {}),
        )

    def refused(self, caller: Caller, address: str, wanted: Action | Request, why: str) -> None:
        """A request was forbidden: the same once a minute."""
        fields = _fields(caller, address, wanted, getattr(wanted, "name", "")) | {"outcome": "refused"}
        line = "%s from %s: refused: %s"
        self._log.log(logging.INFO, line, _who(caller), address, why, key=why, owner=caller.name, fields=fields)


def _fields(caller: Caller, address: str, wanted: Action | Request, name: str) -> dict[str, object]:
    """What a line says, by itself; what is empty is not there."""
    said = {"user": caller.name, "by": caller.by, "address": address, "verb": wanted.verb}
    if isinstance(wanted, Request):
        return _given(said | {"path": wanted.path})
    place = _place(wanted, name)
    said |= {"resource": f"{wanted.combined}.{wanted.group}".rstrip("."), "object": place}
    if name and (wanted.group, wanted.resource) == _WORKFLOWS:
        said["workflow"] = place
    return _given(said)


def _given(fields: dict[str, str]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value}


def _place(action: Action, name: str) -> str:
    return (f"{action.namespace}/{name}" if action.resource != "namespaces" else name).strip("/")


def _is_ours(caller: Caller, request: web.Request) -> bool:
    """Whether a component of ours asks, on this host or another."""
    agent = request.headers.get("User-Agent", "").partition("/")[0]
    return caller.role.startswith(f"{_OURS}-") or (caller == ADMIN and agent == _OURS)


def _who(caller: Caller) -> str:
    return f"{caller.by} as {caller.name}" if caller.by else caller.name


def _created(response: web.StreamResponse) -> str:
    """The name of what was created; "" where the answer is long, or in another form."""
    body = response.body if isinstance(response, web.Response) and response.status == _CREATED else None
    if not isinstance(body, bytes) or len(body) > _LONG:
        return ""
    with suppress(orjson.JSONDecodeError, LookupError, TypeError):
        return str(orjson.loads(body)["metadata"]["name"])
    return ""
