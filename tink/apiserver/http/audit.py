"""Who did what, in the log: a line for each write of a user, and for what he may not.

    alice from 10.0.0.7: delete workflows.tinkerbell.org default/install: 200
    admin as bob from 127.0.0.1: ...

Reads are not in it, nor is what our own components write: the journey and Events tell that. There are no bodies and no
tokens in it. So many lines a minute at most, and of one user no more than a share: the log says how many were left out.
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
        place = f"{action.namespace}/{name}" if action.resource != "namespaces" else name
        tried = " (dry run)" if "dryRun" in request.query else ""
        self._log.log(
            logging.INFO,
            "%s from %s: %s %s%s %s%s: %d",
            _who(caller),
            request.remote,
            action.verb,
            action.combined,
            f".{action.group}" if action.group else "",
            place.strip("/"),
            tried,
            response.status,
            owner=caller.name,
        )

    def refused(self, caller: Caller, address: str, why: str) -> None:
        """A request was forbidden: the same once a minute."""
        self._log.log(logging.INFO, "%s from %s: refused: %s", _who(caller), address, why, key=why, owner=caller.name)


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
