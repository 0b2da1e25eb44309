"""The Workflows of each machine, in the order of their creation, and each Workflow by its uid.

Fed by an informer of Workflows. On the wire a Workflow is known by its uid: a Workflow that is deleted and created
again under the same name must not take the events of the first. One that was moved here from another API is known by
the uid that it had there (`status.id`), because its agent may know it already.

Workflows that have just ended are stored whole, because their agents may still report events. Of Workflows that ended
earlier, whose number grows each year, only the names are stored; the informer has their fields (`tink.workflow.ended`).
"""

from __future__ import annotations

import logging
import math
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from proto import workflow_pb2 as pb
from tink.api.v1alpha2 import Raw, as_mapping
from tink.errors import TinkedgeError
from tink.kube.cache import Archive
from tink.kube.objects import NamespacedName
from tink.printable import printable
from tink.workflow import events
from tink.workflow.guards import is_history, paused, unconfirmed
from tink.workflow.status import action_name, actions_of, creation_order, name_of, parse_timestamp, status_of

log = logging.getLogger(__name__)

_REMEMBERED = 4096
RECENT_SECONDS = 60.0
"""A Workflow counts as recently ended if it ended at most this many seconds before the latest end of all."""
_UNCONFIRMED = 255
"""Maximum number of unconfirmed Workflows of one Hardware, the newest: an agent runs one Workflow and knows few
others.
"""
RECENTLY_ENDED = 256
"""Maximum number of ended Workflows that are stored whole."""

Lookup = Callable[[str, str], Raw | None]
"""`lookup(namespace, name)` returns a Workflow from an informer, or None."""


@dataclass(slots=True)
class _Entry:
    workflow: Raw
    hardware: NamespacedName | None
    order: tuple[str, int, str]
    ahead: bool = False
    """True if this version is the answer to our own API call and the informer has not delivered it yet."""


class WorkflowIndex:
    """The Workflows that the server knows, by uid and by Hardware."""

    def __init__(self, lookup: Lookup | None = None) -> None:
        """`lookup` finds Workflows that ended a while ago. Without it all Workflows are stored whole."""
        self._lookup = lookup
        self._entries: dict[str, _Entry] = {}
        self._by_hardware: dict[NamespacedName, dict[str, _Entry]] = {}
        self._ids: dict[str, str] = {}
        """The uids that agents use, by the uid in the API, where the two differ."""
        self._recently_ended: OrderedDict[str, float] = OrderedDict()
        """The entries that have ended, with their end (Unix seconds), in the order in which they were added."""
        self._last_end = -math.inf
        self._ended = Archive()
        """The names of Workflows that ended earlier, by the bytes of their uids."""
        self._unconfirmed = Archive()
        """The concatenated uids of ended Workflows that agents may still run, by Hardware."""
        self._gone: OrderedDict[str, str] = OrderedDict()

    def apply(self, workflow: Raw) -> None:
        """Add or update a Workflow, unless a newer version is known."""
        uid = uid_of(workflow)
        entry = self._entries.get(uid)
        if entry is not None and entry.ahead and _newer(entry.workflow, workflow) is True:
            return
        other = self._other(uid, workflow)
        if other and uid != _own_uid(workflow):
            text = "Workflow %s: status.id is that of Workflow %s; it is ignored until that is corrected"
            log.error(text, name_of(workflow), other)
            return
        self._put(workflow, ahead=False)

    def refresh(self, workflow: Raw) -> None:
        """Update a Workflow from an answer of the API, ahead of the informer, unless it was deleted or has ended."""
        entry = self._entries.get(uid_of(workflow))
        if entry is None or _another(entry.workflow, workflow):
            return
        if _newer(workflow, entry.workflow) is not False:
            self._put(workflow, ahead=True)

    def _put(self, workflow: Raw, *, ahead: bool) -> None:
        uid, own = uid_of(workflow), _own_uid(workflow)
        hardware = hardware_of(workflow)
        before = self._ids.pop(own, own)
        if uid != own:
            self._ids[own] = uid
        known = self._entries.get(before) if before != uid else None
        if known is not None and _own_uid(known.workflow) == own:  # its status.id was set
            self._discard(before)
        self._take_out(uid, hardware)
        old = self._entries.get(uid)
        if old is not None and old.hardware == hardware:
            old.workflow, old.ahead, old.order = workflow, ahead, creation_order(workflow)
        else:
            if old is not None:
                self._discard(uid)
            entry = self._entries[uid] = _Entry(workflow, hardware, creation_order(workflow), ahead)
            if hardware is not None:
                self._by_hardware.setdefault(hardware, {})[uid] = entry
        self._recently_ended.pop(uid, None)
        if self._lookup is not None and not ahead and is_history(workflow):
            self._end(uid, parse_timestamp(status_of(workflow).get("lastTransitioned")) or 0.0)

    def remove(self, workflow: Raw) -> None:
        """Remove a deleted Workflow. A paused one continues in another API, so its agent must not stop it."""
        uid = uid_of(workflow)
        entry = self._entries.get(uid)
        if (entry is None and self._name_of_ended(uid) is None) or self._other(uid, workflow):
            return
        if entry is not None:
            self._discard(uid)
        self._take_out(uid, hardware_of(workflow))
        self._ids.pop(_own_uid(workflow), None)
        if paused(workflow):
            return
        self._gone[uid] = name_of(workflow)
        if len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)

    def get(self, uid: str) -> Raw | None:
        """Return the Workflow with this uid as last seen; the archived fields if it ended a while ago."""
        entry = self._entries.get(uid)
        return entry.workflow if entry is not None else self._archived(uid)

    def name_of_gone(self, uid: str) -> str | None:
        """Return namespace/name of a recently deleted Workflow, or None."""
        return self._gone.get(uid)

    def of(self, hardware: NamespacedName) -> list[Raw]:
        """Return the Workflows of a machine, oldest first, without those whose agent reported their end long ago."""
        entries = sorted(self._by_hardware.get(hardware, {}).values(), key=lambda entry: entry.order)
        found = [self._archived(str(uuid.UUID(bytes=key))) for key in self._unconfirmed_of(hardware)]
        return [*(workflow for workflow in found if workflow is not None), *(entry.workflow for entry in entries)]

    # --- ended Workflows ------------------------------------------------------------------------------------

    def _other(self, uid: str, workflow: Raw) -> str:
        """Return the name of another Workflow with this id, or an empty string."""
        entry = self._entries.get(uid)
        if entry is not None:
            return name_of(entry.workflow) if _another(entry.workflow, workflow) else ""
        name = self._name_of_ended(uid)
        return "" if name is None or name == name_of(workflow) else name

    def _end(self, uid: str, when: float) -> None:
        """Note that a Workflow ended at `when`; archive the oldest ended ones."""
        self._last_end = max(self._last_end, when)
        self._recently_ended[uid] = when
        if when < self._last_end - RECENT_SECONDS:
            self._recently_ended.move_to_end(uid, last=False)
        while self._recently_ended:
            oldest, end = next(iter(self._recently_ended.items()))
            if len(self._recently_ended) <= RECENTLY_ENDED and end >= self._last_end - RECENT_SECONDS:
                return
            del self._recently_ended[oldest]
            self._archive(oldest)

    def _archive(self, uid: str) -> None:
        """Reduce a Workflow to its name."""
        entry, key = self._entries[uid], _bytes(uid)
        if key is None:
            return  # the uid is not a UUID, so the Workflow is not archived
        self._discard(uid)
        self._ids.pop(_own_uid(entry.workflow), None)
        self._ended.put(key, name_of(entry.workflow).encode())
        if entry.hardware is not None and unconfirmed(entry.workflow):
            kept = self._unconfirmed_of(entry.hardware)[-_UNCONFIRMED:]
            self._unconfirmed.put(str(entry.hardware).encode(), b"".join([*kept, key]))

    def _take_out(self, uid: str, hardware: NamespacedName | None) -> None:
        """Remove a Workflow from the archive."""
        key = _bytes(uid)
        if key is None or self._ended.pop(key) is None or hardware is None:
            return
        keys = self._unconfirmed_of(hardware)
        if key in keys:
            self._unconfirmed.pop(str(hardware).encode())
        if key in keys and len(keys) > 1:
            self._unconfirmed.put(str(hardware).encode(), b"".join(each for each in keys if each != key))

    def _unconfirmed_of(self, hardware: NamespacedName) -> list[bytes]:
        uids = self._unconfirmed.get(str(hardware).encode()) or b""
        return [uids[at : at + 16] for at in range(0, len(uids), 16)]

    def _name_of_ended(self, uid: str) -> str | None:
        key = _bytes(uid)
        name = self._ended.get(key) if key is not None else None
        return None if name is None else name.decode()

    def _archived(self, uid: str) -> Raw | None:
        """Return the archived fields of a Workflow that ended a while ago, or None."""
        name = self._name_of_ended(uid)
        if name is None or self._lookup is None:
            return None
        workflow = self._lookup(*name.split("/", 1))
        return workflow if workflow is not None and uid_of(workflow) == uid else None

    def _discard(self, uid: str) -> None:
        """Remove a Workflow that is stored whole."""
        hardware = self._entries.pop(uid).hardware
        self._recently_ended.pop(uid, None)
        if hardware is not None:
            entries = self._by_hardware[hardware]
            del entries[uid]
            if not entries:
                del self._by_hardware[hardware]


def _bytes(uid: str) -> bytes | None:
    """Return the bytes of a UUID in canonical form, or None for any other text."""
    try:
        key = uuid.UUID(uid)
    except ValueError:
        return None
    return key.bytes if str(key) == uid else None


def _newer(workflow: Raw, other: Raw) -> bool | None:
    """Return True if `workflow` is a newer version of the same object than `other`.

    None if the versions are not numbers. In Kubernetes they are, and comparable within a resource type (KEP-5504).
    """
    versions = [version_of(obj) for obj in (workflow, other)]
    return int(versions[0]) > int(versions[1]) if all(version.isdecimal() for version in versions) else None


def uid_of(workflow: Raw) -> str:
    """Return the Workflow's id for agents: its uid, or its uid in the API that it was moved from."""
    moved = status_of(workflow).get("id")
    return moved if isinstance(moved, str) and moved else _own_uid(workflow)


def _own_uid(workflow: Raw) -> str:
    uid: str = workflow["metadata"]["uid"]
    return uid


def _another(workflow: Raw, other: Raw) -> bool:
    """Return True if these are different objects.

    A user who may write the status of one Workflow could give it the id of another.
    """
    return _own_uid(workflow) != _own_uid(other)


def version_of(workflow: Raw) -> str:
    """Return the resourceVersion, or an empty string."""
    return str(workflow["metadata"].get("resourceVersion", ""))


def hardware_of(workflow: Raw) -> NamespacedName | None:
    """Return the Hardware of a Workflow, or None if its spec names none."""
    name = as_mapping(as_mapping(workflow.get("spec")).get("hardwareRef")).get("name")
    return NamespacedName(workflow["metadata"].get("namespace", ""), name) if name else None


# --- Protobuf messages ---
#
# Converts Workflows to messages of `proto/workflow.proto`, and messages to events of the state machine.


_MAX_STORY = 500
"""Maximum length of a reason or message in the log and on the journey, in characters; the status contains more."""


class MalformedEventError(TinkedgeError, ValueError):
    """An event message is incomplete; the error names the missing field."""


class UnsendableError(TinkedgeError, ValueError):
    """The actions in a Workflow's status are malformed; the error names the object and the field."""


def start_command(workflow: Raw) -> pb.GetWorkflowsResponse:
    """Return StartWorkflow with all actions of a prepared Workflow. Raises UnsendableError."""
    actions = []
    for index, action in enumerate(actions_of(status_of(workflow))):
        try:
            actions.append(_action(action))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"Workflow {name_of(workflow)}: status.actions[{index}] can't be sent to an agent"
            raise UnsendableError(f"{what}: {type(error).__name__}: {error}") from error
    message = pb.Workflow(workflow_id=uid_of(workflow), actions=actions)
    return pb.GetWorkflowsResponse(start_workflow=pb.GetWorkflowsResponse.StartWorkflow(workflow=message))


def stop_command(uid: str) -> pb.GetWorkflowsResponse:
    """Return StopWorkflow for the Workflow with this uid."""
    return pb.GetWorkflowsResponse(stop_workflow=pb.GetWorkflowsResponse.StopWorkflow(workflow_id=uid))


def event_of(message: pb.Event) -> events.AgentEvent:
    """Return the event in an agent's message. Raises MalformedEventError."""
    if not message.workflow_id:
        raise MalformedEventError("event.workflow_id is missing")
    kind = message.WhichOneof("event")
    if kind == "workflow_rejected":
        rejected = message.workflow_rejected
        return events.Rejected(rejected.failure_reason, rejected.failure_message)
    if kind is None:
        raise MalformedEventError("event is of no kind that this server knows")
    action_id: str = getattr(message, kind).action_id
    if not action_id:
        raise MalformedEventError(f"event.{kind}.action_id is missing")
    if kind == "action_started":
        return events.ActionStarted(action_id)
    if kind == "action_succeeded":
        return events.ActionSucceeded(action_id)
    failed = message.action_failed
    return events.ActionFailed(action_id, failed.failure_reason, failed.failure_message)


def _action(action: dict[str, Any]) -> pb.Workflow.Action:
    rendered: Raw = action.get("rendered") or {}
    message = pb.Workflow.Action(
        id=str(action["id"]),
        name=action_name(action),
        image=str(rendered.get("image") or ""),
        args=[str(value) for value in rendered.get("args") or ()],
        env={str(key): str(value) for key, value in (rendered.get("env") or {}).items()},
        volumes=[str(value) for value in rendered.get("volumes") or ()],
    )
    if rendered.get("cmd"):
        message.cmd = str(rendered["cmd"])
    if rendered.get("networkNamespace"):
        message.ns.net = str(rendered["networkNamespace"])
    if pid := pid_namespace(rendered):
        message.ns.pid = pid
    return message


def pid_namespace(rendered: Mapping[str, Any]) -> str:
    """Return the PID namespace of a rendered action; empty for a namespace of its own."""
    # In a PID namespace of its own, reboot(2) only ends the namespace (pid_namespaces(7)), and kexec is refused.
    return "host" if rendered.get("reboots") else str(rendered.get("pidNamespace") or "")


def describe(workflow: Raw, event: events.AgentEvent) -> str:
    """Describe an event in one line, for the log and the journey."""
    if isinstance(event, events.Rejected):
        return f"rejected the Workflow: {_line(event.reason) or 'no reason given'}: {_line(event.message)}"
    actions = actions_of(status_of(workflow))
    found = next((action_name(action) for action in actions if action.get("id") == event.action_id), event.action_id)
    match event:
        case events.ActionStarted():
            return f"action {found!r} started"
        case events.ActionSucceeded():
            return f"action {found!r} succeeded"
        case events.ActionFailed():
            return f"action {found!r} failed: {_line(event.reason)}: {_line(event.message)}"


def _line(text: str) -> str:
    """Return a container's text as one line of bounded length without control characters."""
    return " ".join(printable(text[: 2 * _MAX_STORY], " ").split())[:_MAX_STORY]
