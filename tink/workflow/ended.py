"""Packs Workflows that have ended and need no more work: about 100 bytes each instead of 10,000.

A site accumulates ended Workflows for years. A process only needs their name, uid, Hardware, end, state, and whether
the agent reported the end.
"""

from __future__ import annotations

import struct
import uuid
from typing import Final

from tink.api.v1alpha2 import API_VERSION, ActionState, Raw, WorkflowState, as_mapping
from tink.kube.objects import NamespacedName
from tink.workflow.guards import is_history
from tink.workflow.status import (
    WITHOUT_AGENTS_WORD,
    ConditionType,
    InvalidStatusError,
    action_state,
    actions_of,
    condition,
    parse_timestamp,
    status_of,
    timestamp,
)

_STATES: Final = tuple(state for state in WorkflowState if state.terminal)
_ACTION_STATES: Final = tuple(ActionState)
_HEAD: Final = struct.Struct(">16sBd")  # uid, place of the state, end in seconds since the epoch
_SEPARATOR: Final = "\0"
MESSAGE: Final = "ended; its details are in the API"
"""`status.message` of an unpacked Workflow."""


def pack(workflow: Raw) -> bytes | None:
    """Return the packed Workflow, or None if it is not history or does not fit the format."""
    status, spec, metadata = status_of(workflow), as_mapping(workflow.get("spec")), workflow["metadata"]
    end = parse_timestamp(status.get("lastTransitioned"))
    ttl = spec.get("ttlSecondsAfterFinished")
    if end is None or not isinstance(ttl, int | None) or not is_history(workflow):
        return None
    try:
        uid = uuid.UUID(metadata["uid"])
        # The set of action states is enough: no reader needs the number of actions.
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
    """Return the Workflow with the fields that were packed, which is enough for all readers of ended Workflows."""
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
