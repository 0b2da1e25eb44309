"""The stored part of an ended Workflow gives the same answers as the whole Workflow."""

from __future__ import annotations

import sys
import uuid
from typing import Any

import pytest

from tests.support import objects
from tests.unit.workflow.cases import LETTERS
from tink.api.annotations import HOLD_ANNOTATION, PAUSED_ANNOTATION
from tink.api.v1alpha2 import FINALIZER, Raw
from tink.kube.objects import NamespacedName
from tink.workflow import ended
from tink.workflow.guards import has_ended, is_history, unconfirmed
from tink.workflow.status import REASON_CANCELED, REASON_DEFAULT_FAILURE, WITHOUT_AGENTS_WORD, state_of

KEY = NamespacedName("default", "install-m1")
STAMP = "2026-11-23T22:51:06.123Z"


def made(state: str = "Succeeded", actions: str = "", reason: str = "", **metadata: Any) -> Raw:
    """`actions`: the first letters of their states."""
    listed = [objects.action(str(at), LETTERS[each], image="i" * 200) for at, each in enumerate(actions)]
    fields = {"conditions": [{"type": "Succeeded", "status": "False", "reason": reason}] if reason else []}
    fields |= {"message": "all is well", "lastTransitioned": STAMP, "actions": listed}
    identity = {"uid": str(uuid.UUID(int=5)), "resourceVersion": "123456", **metadata}
    spec = {"templateParams": {"a": "b" * 500}}
    return objects.workflow(KEY.name, state, metadata=identity, finalizers=(), spec=spec, **fields)


def kept(workflow: Raw) -> Raw:
    packed = ended.pack(workflow)
    assert packed is not None
    return ended.unpack(KEY, packed)


@pytest.mark.parametrize("state", ["Succeeded", "Failed", "Canceled"])
@pytest.mark.parametrize("actions", ["", "S", "SSS", "SF", "SFP", "SRP", "PPP"])
@pytest.mark.parametrize("reason", ["", REASON_DEFAULT_FAILURE, REASON_CANCELED, *sorted(WITHOUT_AGENTS_WORD)])
def test_archived_workflow_keeps_whether_its_agent_confirmed_the_end(state: str, actions: str, reason: str) -> None:
    whole = made(state, actions, reason)
    short = kept(whole)
    assert (state_of(short), unconfirmed(short)) == (state_of(whole), unconfirmed(whole))


def test_archived_workflow_keeps_identity_hardware_and_time() -> None:
    whole = made(actions="SS", reason="AgentLost")
    whole["spec"]["ttlSecondsAfterFinished"] = 0
    whole["status"]["id"] = "another"
    short = kept(whole)
    identity = {field: whole["metadata"][field] for field in ("namespace", "name", "uid", "resourceVersion")}
    assert short == {
        "apiVersion": "tinkerbell.org/v1alpha2",
        "kind": "Workflow",
        "metadata": identity,
        "spec": {"hardwareRef": {"name": "m1"}, "ttlSecondsAfterFinished": 0},
        "status": {
            "state": "Succeeded",
            "id": "another",
            "message": "ended; its details are in the API",
            "lastTransitioned": STAMP,
            "actions": [{"id": "", "state": "Succeeded"}],
            "conditions": [{"type": "Succeeded", "status": "False", "reason": "AgentLost"}],
        },
    }
    assert "ttlSecondsAfterFinished" not in kept(made())["spec"]
    assert has_ended(short)
    assert ended.pack(short) is not None, "what is left of it is history, too"
    assert sys.getsizeof(ended.pack(made(actions="SSSSS"))) < 90


def without(field: str) -> Raw:
    workflow = made()
    del workflow["status"][field]
    return workflow


def on(hardware: str) -> Raw:
    workflow = made()
    workflow["spec"]["hardwareRef"] = {"name": hardware}
    return workflow


@pytest.mark.parametrize(
    "workflow",
    [
        *(made("Running"), made("Odd"), made(finalizers=[FINALIZER]), made(deletionTimestamp=STAMP)),
        *(made(annotations={HOLD_ANNOTATION: ""}), made(annotations={PAUSED_ANNOTATION: ""})),
        *(without("message"), without("lastTransitioned"), without("state")),
        *(made(uid="not-a-uuid"), made(uid=str(uuid.UUID(int=0xABC)).upper())),
        *(on("a\0b"), on("x" * 10_000)),
    ],
)
def test_unfinished_or_unusual_workflow_is_not_archived(workflow: Raw) -> None:
    assert ended.pack(workflow) is None


def test_another_finalizer_keeps_nothing_of_ours() -> None:
    assert is_history(made(finalizers=["somebody/else"]))
