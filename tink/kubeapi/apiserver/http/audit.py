"""The audit log: a line for each written object, and for each rejected request.

    alice from 10.0.0.7: delete workflows.tinkerbell.org default/install: deleted
    alice from 10.0.0.7: patch hardware.tinkerbell.org default/m1: spec, metadata changed
    alice from 10.0.0.7: patch hardware.tinkerbell.org default/m1: 200 (dry run)
    admin as bob from 127.0.0.1: ...

A line about a write is made from the change on the disk, not from the request or its answer. So it names the object
that was written, and it exists even if the client has hung up or the answer has failed. These lines are never left out.
Requests that wrote nothing (dry runs, repeated states) and rejections have lines of their own. Their number in a minute
is limited, in all and for one user, and the lines beyond are counted. A flood of them hides no write.

Reads are not logged. Statuses, Events and Leases that our own components and the server write are not logged either:
the journey and Events show those. The log contains no bodies and no tokens.

Each line has structured fields: the caller (`user`, `by`, `address`), the action (`verb`, `resource`) and the object
(`object`, and `workflow` for a Workflow). `outcome` is created, changed, marked (for deletion), deleted or refused;
`changed` names the parts of the object that differ. A request that wrote nothing has its `status`, and `dry_run` if it
is one.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import orjson
from aiohttp import web

from tink.kubeapi.apiserver.access import ADMIN, Caller, PathAction, ResourceAction
from tink.kubeapi.apiserver.store.objects import Event
from tink.kubeapi.schema.field_errors import quote
from tink.limits import LimitedLog
from tink.net.addresses import is_loopback

log = logging.getLogger(__name__)

MAX_LINES: Final = 300
MAX_USER_LINES: Final = 100
"""Maximum lines in a minute about requests that wrote nothing, and about rejections: in all, and of one user."""
_READS: Final = frozenset({"get", "list", "watch", "head", ""})
_OURS: Final = "tinkedge"
"""The beginning of our components' User-Agent and of their roles."""
_CREATED: Final = 201
_MAX_ANSWER_BYTES: Final = 64 << 10
_WORKFLOWS: Final = "tinkerbell.org/workflows"
_QUESTIONS: Final = frozenset({"authorization.k8s.io", "authentication.k8s.io"})
_MAX_COMPARED_BYTES: Final = 128 << 10
"""Maximum size of both states of an object that are compared, in bytes: the comparison runs on the event loop."""
_ROUTINE: Final = frozenset({"/events", "events.k8s.io/events", "coordination.k8s.io/leases"})
"""Resources that components write all the time."""
_KEPT_BY_SERVER: Final = frozenset({"managedFields", "resourceVersion", "generation"})
_PLAIN: Final = re.compile(r"[A-Za-z0-9._@:/+-]+")
_VERBS: Final = {"ADDED": "create", "MODIFIED": "update", "DELETED": "delete"}


@dataclass(slots=True)
class RequestOrigin:
    """The request that causes a write: its caller and its action. `is_ours`: the caller is one of our own components.

    `dry_run` is the value in the request's options, and `writes` counts the writes of the request.
    """

    caller: Caller
    address: str
    action: ResourceAction | PathAction
    is_ours: bool
    dry_run: bool = False
    writes: int = 0

    @classmethod
    def of(cls, request: web.Request, caller: Caller, action: ResourceAction | PathAction) -> RequestOrigin:
        """Make the origin of a request."""
        return cls(caller, request.remote or "", action, _is_ours(caller, request))


class Audit:
    """Writes the audit lines. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._idle = LimitedLog(log, clock, capacity=MAX_LINES, share=MAX_USER_LINES)
        self._refusals = LimitedLog(log, clock, capacity=MAX_LINES, share=MAX_USER_LINES)

    def committed(self, event: Event) -> None:
        """Log a change that is on the disk."""
        origin = event.origin if isinstance(event.origin, RequestOrigin) else None
        if origin is not None:
            origin.writes += 1
        is_own = origin is None or origin.is_ours
        if is_own and event.key.resource in _ROUTINE:
            return
        outcome, changed = _outcome(event)
        if is_own and changed in (("status",), ("managedFields",)):
            return
        fields = _write_fields(origin, event) | {"outcome": outcome}
        text = "marked for deletion" if outcome == "marked" else outcome
        if changed:
            fields["changed"] = ", ".join(changed)
            text = f"{fields['changed']} changed"
        head = (_caller_text(origin), fields["verb"], fields["resource"], fields["object"], text)
        log.info("%s: %s %s %s: %s", *head, extra={"fields": fields, "reserved": True})
        for others in (self._idle, self._refusals):
            others.report_left_out()

    def answered(self, origin: RequestOrigin, response: web.StreamResponse) -> None:
        """Log an answered request that has written nothing."""
        action = origin.action
        if isinstance(action, PathAction) or action.verb in _READS or action.group in _QUESTIONS:
            return
        if origin.is_ours or origin.writes:
            return
        fields = _request_fields(origin, action.name or _created_name(response)) | {"status": response.status}
        text = " (dry run)" if origin.dry_run else ", nothing changed"
        self._idle.log(
            logging.INFO,
            "%s: %s %s %s: %d%s",
            *(_caller_text(origin), action.verb, fields["resource"], fields.get("object", ""), response.status, text),
            # A user who impersonates many others has the share of one user.
            owner=origin.caller.by or origin.caller.name,
            fields=fields | ({"dry_run": True} if origin.dry_run else {}),
        )

    def refused(self, caller: Caller, address: str, wanted: ResourceAction | PathAction, why: str) -> None:
        """Log a forbidden request. Repetitions are logged once a minute."""
        origin = RequestOrigin(caller, address, wanted, is_ours=False)
        fields = _request_fields(origin, getattr(wanted, "name", "")) | {"outcome": "refused"}
        actor = caller.by or caller.name
        self._refusals.log(
            logging.INFO, "%s: refused: %s", _caller_text(origin), why, key=(actor, why), owner=actor, fields=fields
        )


# --- who ----------------------------------------------------------------------------------------------------------


def _is_ours(caller: Caller, request: web.Request) -> bool:
    """Return True if the caller is one of our own components: by its role, or with the token of this host's files."""
    if caller.by:
        return False
    if caller != ADMIN:
        return caller.role.startswith(f"{_OURS}-")
    return request.headers.get("User-Agent", "").partition("/")[0] == _OURS and is_loopback(request.remote or "")


def _caller_text(origin: RequestOrigin | None) -> str:
    if origin is None:
        return "the API server"
    caller = origin.caller
    names = [caller.by, caller.name] if caller.by else [caller.name]
    # A quoted name cannot imitate other words of the line.
    quoted = " as ".join(name if _PLAIN.fullmatch(name) else quote(name) for name in names)
    return f"{quoted} from {origin.address}"


# --- what ---------------------------------------------------------------------------------------------------------


def _outcome(event: Event) -> tuple[str, tuple[str, ...]]:
    """Return the outcome, and the parts of the object that differ: none if they were not compared."""
    if event.type != "MODIFIED":
        return ("created" if event.type == "ADDED" else "deleted"), ()
    if len(event.body) + len(event.prior or b"") > _MAX_COMPARED_BYTES:
        return "changed", ()
    before, after = event.before or {"metadata": {}}, event.object
    if "deletionTimestamp" in after["metadata"] and "deletionTimestamp" not in before["metadata"]:
        return "marked", ()
    parts = [name for name in (before | after) if name != "metadata" and before.get(name) != after.get(name)]
    metadata = [{k: v for k, v in obj["metadata"].items() if k not in _KEPT_BY_SERVER} for obj in (before, after)]
    if metadata[0] != metadata[1]:
        parts.append("metadata")
    return "changed", tuple(parts or ["managedFields"])


def _write_fields(origin: RequestOrigin | None, event: Event) -> dict[str, Any]:
    """Return the fields of a line about a write. The object is the stored one."""
    group, _, plural = event.key.resource.rpartition("/")
    action = origin.action if origin is not None else None
    verb, shown = _VERBS[event.type], plural
    if isinstance(action, ResourceAction):
        verb = action.verb
        if (action.group, action.resource) == (group, plural):
            shown = action.combined
    place = f"{event.key.namespace}/{event.key.name}".lstrip("/")
    return _fields(origin, verb, f"{shown}.{group}", place, event.key.resource == _WORKFLOWS)


def _request_fields(origin: RequestOrigin, name: str) -> dict[str, Any]:
    wanted = origin.action
    if isinstance(wanted, PathAction):
        return _fields(origin, wanted.verb) | {"path": wanted.path}
    place = (f"{wanted.namespace}/{name}" if wanted.resource != "namespaces" else name).strip("/")
    is_workflow = bool(name) and f"{wanted.group}/{wanted.resource}" == _WORKFLOWS
    return _fields(origin, wanted.verb, f"{wanted.combined}.{wanted.group}", place, is_workflow)


def _fields(
    origin: RequestOrigin | None, verb: str, resource: str = "", place: str = "", is_workflow: bool = False
) -> dict[str, Any]:
    caller = origin.caller if origin is not None else None
    found = {
        **({"user": caller.name, "by": caller.by} if caller is not None else {}),
        "address": origin.address if origin is not None else "",
        "verb": verb,
        "resource": resource.rstrip("."),
        "object": place,
        "workflow": place if is_workflow else "",
    }
    return {name: value for name, value in found.items() if value}


def _created_name(response: web.StreamResponse) -> str:
    """Return the name in the answer to a dry run, or "" if the answer is long or in another form."""
    body = response.body if isinstance(response, web.Response) and response.status == _CREATED else None
    if not isinstance(body, bytes) or len(body) > _MAX_ANSWER_BYTES:
        return ""
    with suppress(orjson.JSONDecodeError, LookupError, TypeError):
        return str(orjson.loads(body)["metadata"]["name"])
    return ""
