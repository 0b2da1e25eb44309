"""The Workflows of each machine, in the order of their creation, and each Workflow by its uid.

Fed by an informer of Workflows. On the wire a Workflow is known by its uid: a Workflow that is deleted and created
again under the same name must not take the events of the first. One that was moved here from another API is known by
the uid that it had there (`status.id`), because its agent may know it already.

Those that have just ended are here as they are, for what their agents have still to say. Of the others, which are more
each year, here are the names alone; the informer's store has what is kept of them (`tink.workflow.ended`).
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
from tink.kube.cache import Archive
from tink.kube.objects import NamespacedName
from tink.printable import printable
from tink.workflow import ended, events
from tink.workflow.guards import paused, unconfirmed
from tink.workflow.status import action_name, actions_of, creation_order, name_of, parse_timestamp, status_of

log = logging.getLogger(__name__)

_REMEMBERED = 4096
RECENT_SECONDS = 60.0
"""For so long before the last of all ends a Workflow's end is recent."""
_UNCONFIRMED = 255
"""Of one Hardware, those are remembered that came last: an agent runs one, and has heard of few others."""
RECENTLY_ENDED = 256
"""Workflows that have ended and are here as they are, at most."""

Lookup = Callable[[str, str], Raw | None]
"""`lookup(namespace, name)`: the Workflow as an informer has it; None if there is none."""


@dataclass(slots=True)
class _Entry:
    workflow: Raw
    hardware: NamespacedName | None
    order: tuple[str, int, str]
    ahead: bool = False
    """Whether it is an answer to a call of ours, which the informer has yet to hear of."""


class WorkflowIndex:
    """What the server knows of Workflows."""

    def __init__(self, lookup: Lookup | None = None) -> None:
        """`lookup` finds those that ended a while ago; without it all are kept."""
        self._lookup = lookup
        self._entries: dict[str, _Entry] = {}
        self._by_hardware: dict[NamespacedName, dict[str, _Entry]] = {}
        self._ids: dict[str, str] = {}
        """The ids on the wire, by uid, where these differ."""
        self._recently_ended: OrderedDict[str, float] = OrderedDict()
        """Of the entries, those that are history, and when they ended; those first that came first."""
        self._last_end = -math.inf
        self._ended = Archive()
        """The names of the others, by the bytes of their uids."""
        self._unconfirmed = Archive()
        """Of these, the uids of those whose agents may run them still, one after the other, by Hardware."""
        self._gone: OrderedDict[str, str] = OrderedDict()

    def apply(self, workflow: Raw) -> None:
        """Take in a Workflow that was added or changed, unless what is known of it is newer."""
        uid = uid_of(workflow)
        entry = self._entries.get(uid)
        if entry is not None and entry.ahead and _newer(entry.workflow, workflow) is True:
            return
        other = self._other(uid, workflow)
        if other and uid != _own_uid(workflow):
            text = "Workflow %s: status.id is that of Workflow %s; it is left alone until that is mended"
            log.error(text, name_of(workflow), other)
            return
        self._put(workflow, ahead=False)

    def refresh(self, workflow: Raw) -> None:
        """Take in what the API answered to a call, ahead of the informer, unless the Workflow is gone already, or
        history."""
        entry = self._entries.get(uid_of(workflow))
        if entry is None or _another(entry.workflow, workflow):
            return
        if _newer(workflow, entry.workflow) is not False:
            self._put(workflow, ahead=True)

    def _put(self, workflow: Raw, *, ahead: bool) -> None:
        uid, own = uid_of(workflow), _own_uid(workflow)
        hardware = hardware_of(workflow)
        self._rename(own, uid)
        self._take_out(uid, hardware)
        old = self._entries.get(uid)
        if old is not None and old.hardware == hardware:
            old.workflow, old.ahead, old.order = workflow, ahead, creation_order(workflow)
        else:
            self._place(uid, workflow, hardware, old, ahead=ahead)
        self._recently_ended.pop(uid, None)
        if self._lookup is not None and not ahead and ended.is_history(workflow):
            self._end(uid, parse_timestamp(status_of(workflow).get("lastTransitioned")) or 0.0)

    def _rename(self, own: str, uid: str) -> None:
        """A Workflow is known as `uid` from now on; its status.id may have come since."""
        before = self._ids.pop(own, own)
        if uid != own:
            self._ids[own] = uid
        known = self._entries.get(before) if before != uid else None
        if known is not None and _own_uid(known.workflow) == own:
            self._discard(before, self._entries.pop(before).hardware)
            self._recently_ended.pop(before, None)

    def _place(
        self, uid: str, workflow: Raw, hardware: NamespacedName | None, old: _Entry | None, *, ahead: bool
    ) -> None:
        if old is not None:
            self._discard(uid, old.hardware)
        entry = self._entries[uid] = _Entry(workflow, hardware, creation_order(workflow), ahead)
        if hardware is not None:
            self._by_hardware.setdefault(hardware, {})[uid] = entry

    def remove(self, workflow: Raw) -> None:
        """Forget a Workflow that is gone. One that was paused lives on in another API: nobody is to stop it."""
        uid = uid_of(workflow)
        entry = self._entries.get(uid)
        if (entry is None and self._name_of_ended(uid) is None) or self._other(uid, workflow):
            return
        if entry is not None:
            del self._entries[uid]
            self._discard(uid, entry.hardware)
            self._recently_ended.pop(uid, None)
        self._take_out(uid, hardware_of(workflow))
        self._ids.pop(_own_uid(workflow), None)
        if paused(workflow):
            return
        self._gone[uid] = name_of(workflow)
        if len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)

    def get(self, uid: str) -> Raw | None:
        """The Workflow with that uid, as last seen; what is kept of it, if it ended a while ago."""
        entry = self._entries.get(uid)
        return entry.workflow if entry is not None else self._archived(uid)

    def name_of_gone(self, uid: str) -> str | None:
        """namespace/name of a Workflow that was deleted not long ago; None for any other uid."""
        return self._gone.get(uid)

    def of(self, hardware: NamespacedName) -> list[Raw]:
        """The Workflows of a machine, oldest first, without those that ended a while ago by its agent's word."""
        entries = sorted(self._by_hardware.get(hardware, {}).values(), key=lambda entry: entry.order)
        found = [self._archived(str(uuid.UUID(bytes=key))) for key in self._unconfirmed_of(hardware)]
        return [*(workflow for workflow in found if workflow is not None), *(entry.workflow for entry in entries)]

    # --- those that have ended ------------------------------------------------------------------------------------

    def _other(self, uid: str, workflow: Raw) -> str:
        """The name of another Workflow that is known by this id; empty if there is none."""
        entry = self._entries.get(uid)
        if entry is not None:
            return name_of(entry.workflow) if _another(entry.workflow, workflow) else ""
        name = self._name_of_ended(uid)
        return "" if name is None or name == name_of(workflow) else name

    def _end(self, uid: str, when: float) -> None:
        """A Workflow is history, and ended `when`: keep it as it is for a while."""
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
        """Keep the name of a Workflow alone."""
        entry, key = self._entries[uid], _bytes(uid)
        if key is None:
            return  # no UUID; it stays
        del self._entries[uid]
        self._discard(uid, entry.hardware)
        self._ids.pop(_own_uid(entry.workflow), None)
        self._ended.put(key, name_of(entry.workflow).encode())
        if entry.hardware is not None and unconfirmed(entry.workflow):
            kept = self._unconfirmed_of(entry.hardware)[-_UNCONFIRMED:]
            self._unconfirmed.put(str(entry.hardware).encode(), b"".join([*kept, key]))

    def _take_out(self, uid: str, hardware: NamespacedName | None) -> None:
        """Of the archive."""
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
        """A Workflow that ended a while ago, with what is kept of it."""
        name = self._name_of_ended(uid)
        if name is None or self._lookup is None:
            return None
        workflow = self._lookup(*name.split("/", 1))
        return workflow if workflow is not None and uid_of(workflow) == uid else None

    def _discard(self, uid: str, hardware: NamespacedName | None) -> None:
        if hardware is None:
            return
        entries = self._by_hardware[hardware]
        del entries[uid]
        if not entries:
            del self._by_hardware[hardware]


def _bytes(uid: str) -> bytes | None:
    """The bytes of a UUID in its canonical form; None of anything else that agents send."""
    try:
        key = uuid.UUID(uid)
    except ValueError:
        return None
    return key.bytes if str(key) == uid else None


def _newer(workflow: Raw, other: Raw) -> bool | None:
    """Whether `workflow` is a newer version of the same object than `other`; None where versions are no numbers, which
    Kubernetes' are (KEP-5504: those of one resource type can be compared)."""
    versions = [version_of(obj) for obj in (workflow, other)]
    return int(versions[0]) > int(versions[1]) if all(version.isdecimal() for version in versions) else None


def uid_of(workflow: Raw) -> str:
    """The Workflow's id on the wire: its uid, or the one that it had where it was moved from."""
    moved = status_of(workflow).get("id")
    return moved if isinstance(moved, str) and moved else _own_uid(workflow)


def _own_uid(workflow: Raw) -> str:
    uid: str = workflow["metadata"]["uid"]
    return uid


def _another(workflow: Raw, other: Raw) -> bool:
    """Whether these are two Workflows: whoever may write the status of one could give it the id of another's."""
    return _own_uid(workflow) != _own_uid(other)


def version_of(workflow: Raw) -> str:
    """The resourceVersion, empty if there is none."""
    return str(workflow["metadata"].get("resourceVersion", ""))


def hardware_of(workflow: Raw) -> NamespacedName | None:
    """The Hardware that a Workflow is for; None if its spec does not say."""
    name = as_mapping(as_mapping(workflow.get("spec")).get("hardwareRef")).get("name")
    return NamespacedName(workflow["metadata"].get("namespace", ""), name) if name else None


# --- Protobuf messages ---
#
# Between the messages of `proto/workflow.proto` and the Workflows and events of the state machine.


_MAX_STORY = 500
"""Characters of a reason or a message in the log and on the journey; the status has more of it."""


class MalformedEventError(ValueError):
    """An event that no Workflow could take; the message says what is missing."""


class UnsendableError(ValueError):
    """A Workflow whose actions no program of ours wrote; the message names the object and the field."""


def start_command(workflow: Raw) -> pb.GetWorkflowsResponse:
    """StartWorkflow with all actions of a prepared Workflow. Raises UnsendableError."""
    actions = []
    for index, action in enumerate(actions_of(status_of(workflow))):
        try:
            actions.append(_action(action))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UnsendableError(
                f"Workflow {name_of(workflow)}: status.actions[{index}] can't be sent to an agent:"
                f" {type(error).__name__}: {error}"
            ) from error
    message = pb.Workflow(workflow_id=uid_of(workflow), actions=actions)
    return pb.GetWorkflowsResponse(start_workflow=pb.GetWorkflowsResponse.StartWorkflow(workflow=message))


def stop_command(uid: str) -> pb.GetWorkflowsResponse:
    """StopWorkflow for the Workflow with that uid."""
    return pb.GetWorkflowsResponse(stop_workflow=pb.GetWorkflowsResponse.StopWorkflow(workflow_id=uid))


def event_of(message: pb.Event) -> events.AgentEvent:
    """What an agent reports. Raises MalformedEventError."""
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
    """In which PID namespace a rendered action runs; "" for one of its own."""
    # reboot(2) in a PID namespace of its own restarts but the container, and kexec is refused there.
    return "host" if rendered.get("reboots") else str(rendered.get("pidNamespace") or "")


def describe(workflow: Raw, event: events.AgentEvent) -> str:
    """An event in one line, for the log and the journey."""
    match event:
        case events.Rejected():
            return f"rejected the Workflow: {_line(event.reason) or 'no reason given'}: {_line(event.message)}"
        case events.ActionStarted():
            return f"action {_name(workflow, event.action_id)!r} started"
        case events.ActionSucceeded():
            return f"action {_name(workflow, event.action_id)!r} succeeded"
        case events.ActionFailed():
            return f"action {_name(workflow, event.action_id)!r} failed: {_line(event.reason)}: {_line(event.message)}"


def _line(text: str) -> str:
    """What a container wrote, one line, of bounded length, that moves no terminal's cursor."""
    return " ".join(printable(text[: 2 * _MAX_STORY], " ").split())[:_MAX_STORY]


def _name(workflow: Raw, action_id: str) -> str:
    for action in actions_of(status_of(workflow)):
        if action.get("id") == action_id:
            return action_name(action)
    return action_id
