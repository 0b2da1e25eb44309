"""What is kept of a Workflow that has ended and that nothing is to be done about: a hundred bytes of ten thousand.

A site ends Workflows for years, and its API keeps them until somebody deletes them. What a process still has to know of
one: which it is, whose machine it was for, how and when it ended, and whether its agent had a word in that.
"""

from __future__ import annotations

import struct
import uuid
from typing import Final

from tink.api.v1alpha2 import API_VERSION, ActionState, Raw, WorkflowState, as_mapping
from tink.kube.objects import NamespacedName
from tink.workflow.guards import hold_of, paused, protected
from tink.workflow.status import (
    WITHOUT_AGENTS_WORD,
    ConditionType,
    InvalidStatusError,
    action_state,
    actions_of,
    condition,
    deleted,
    parse_timestamp,
    state_of,
    status_of,
    timestamp,
)

_STATES: Final = tuple(state for state in WorkflowState if state.terminal)
_ACTION_STATES: Final = tuple(ActionState)
_HEAD: Final = struct.Struct(">16sBd")  # uid, place of the state, end in seconds since the epoch
_SEPARATOR: Final = "\0"
MESSAGE: Final = "ended; its details are in the API"
"""`status.message` of what was unpacked."""


def has_ended(workflow: Raw) -> bool:
    """Whether the Workflow is in an end state; not one whose status can't be read."""
    try:
        state = state_of(workflow)
    except InvalidStatusError:
        return False
    return state is not None and state.terminal


def is_history(workflow: Raw) -> bool:
    """Whether it has ended and nothing is left to be done about it but to delete it one day.

    Not what is on its way out, or to another API, or what somebody holds, or what has not got all that the controller
    writes.
    """
    return (
        has_ended(workflow)
        and not deleted(workflow)
        and not protected(workflow)
        and not paused(workflow)
        and hold_of(workflow) is None
        and bool(status_of(workflow).get("message"))
    )


def pack(workflow: Raw) -> bytes | None:
    """What is kept of a Workflow that is history; None of any other, and of one that this does not fit."""
    status, spec, metadata = status_of(workflow), as_mapping(workflow.get("spec")), workflow["metadata"]
    end = parse_timestamp(status.get("lastTransitioned"))
    ttl = spec.get("ttlSecondsAfterFinished")
    if end is None or not isinstance(ttl, int | None) or not is_history(workflow):
        return None
    try:
        uid = uuid.UUID(metadata["uid"])
        # Which states there are says enough: nobody asks how many actions there were.
        states = "".join(sorted({str(_ACTION_STATES.index(action_state(action))) for action in actions_of(status)}))
    except (InvalidStatusError, ValueError, KeyError):
        return None
    reason = condition(status, ConditionType.SUCCEEDED).get("reason")
    fields = [
        str(metadata.get("resourceVersion", "")),
        str(as_mapping(spec.get("hardwareRef")).get("name") or ""),
        states,
        reason if isinstance(reason, str) and reason in WITHOUT_AGENTS_WORD else "",
        "" if ttl is None else str(ttl),
        str(status.get("id") or ""),
    ]
    text = _SEPARATOR.join(fields)
    if str(uid) != metadata["uid"] or text.count(_SEPARATOR) != len(fields) - 1 or len(text) > 8192:
        return None
    return _HEAD.pack(uid.bytes, _STATES.index(status["state"]), end) + text.encode()


def unpack(key: NamespacedName, packed: bytes) -> Raw:
    """The Workflow, with what was kept of it: enough for all that asks about Workflows that have ended."""
    uid, state, end = _HEAD.unpack_from(packed)
    version, hardware, states, reason, ttl, moved = packed[_HEAD.size :].decode().split(_SEPARATOR)
    spec: Raw = {"hardwareRef": {"name": hardware}}
    if ttl:
        spec["ttlSecondsAfterFinished"] = int(ttl)
    status: Raw = {"state": _STATES[state].value, "lastTransitioned": timestamp(end), "message": MESSAGE}
    if moved:
        status["id"] = moved
    if states:
        status["actions"] = [{"id": "", "state": _ACTION_STATES[int(place)].value} for place in states]
    if reason:
        status["conditions"] = [{"type": ConditionType.SUCCEEDED.value, "status": "False", "reason": reason}]
    metadata = {"name": key.name, "uid": str(uuid.UUID(bytes=uid)), "resourceVersion": version}
    if key.namespace:
        metadata["namespace"] = key.namespace
    return {"apiVersion": API_VERSION, "kind": "Workflow", "metadata": metadata, "spec": spec, "status": status}
