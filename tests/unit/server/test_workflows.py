"""The index of Workflows, when most of them have ended."""

from __future__ import annotations

import random
import tracemalloc
import uuid
from typing import Any

import pytest

from tink.api.annotations import PAUSED_ANNOTATION
from tink.api.v1alpha2 import Raw
from tink.kube.objects import NamespacedName
from tink.server import workflows
from tink.server.workflows import WorkflowIndex, uid_of
from tink.workflow import ended
from tink.workflow.ended import MESSAGE

M1 = NamespacedName("d", "m1")


def uid(number: int) -> str:
    return str(uuid.UUID(int=random.Random(number).getrandbits(128)))


def made(number: int, state: str = "Succeeded", hardware: str = "m1", **status: Any) -> Raw:
    return {
        "apiVersion": "tinkerbell.org/v1alpha2",
        "kind": "Workflow",
        "metadata": {"namespace": "d", "name": f"w{number}", "uid": uid(number), "resourceVersion": str(number + 1)},
        "spec": {"hardwareRef": {"name": hardware}, "templateRef": {"name": "t"}},
        "status": {
            "state": state,
            "message": "m",
            "lastTransitioned": "2026-11-23T22:51:06Z",
            "actions": [{"id": "a", "state": "Succeeded", "rendered": {"name": "a", "image": "i" * 300}}],
            **status,
        },
    }


class Index(WorkflowIndex):
    """Beside a store, as that of an informer."""

    def __init__(self) -> None:
        self.store: dict[tuple[str, str], Raw] = {}
        super().__init__(lambda *key: self.store.get(key))

    def apply(self, workflow: Raw) -> None:
        key = NamespacedName.of(workflow)
        packed = ended.pack(workflow)
        self.store[key] = workflow if packed is None else ended.unpack(key, packed)
        super().apply(workflow)

    def remove(self, workflow: Raw) -> None:
        self.store.pop(NamespacedName.of(workflow))
        super().remove(workflow)


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> WorkflowIndex:
    monkeypatch.setattr(workflows, "RECENTLY_ENDED", 2)
    return Index()


def names(index: WorkflowIndex, hardware: NamespacedName = M1) -> list[str]:
    return [workflow["metadata"]["name"] for workflow in index.of(hardware)]


def test_an_event_of_one_that_ended_long_ago_still_finds_it(index: WorkflowIndex) -> None:
    for number in range(5):
        index.apply(made(number))
    old, new = index.get(uid(0)), index.get(uid(4))
    assert old is not None
    assert new is not None
    assert (old["status"]["message"], new["status"]["message"]) == (MESSAGE, "m")
    assert (uid_of(old), old["metadata"]["name"], old["spec"]["hardwareRef"]["name"]) == (uid(0), "w0", "m1")


def test_the_dispatch_does_not_look_at_those_that_ended_long_ago_by_their_agents_word(index: WorkflowIndex) -> None:
    for number in range(5):
        index.apply(made(number))
    index.apply(made(9, "Running"))
    assert names(index) == ["w3", "w4", "w9"]


def test_an_agent_that_may_run_one_still_is_told_to_stop_however_long_ago_it_ended(index: WorkflowIndex) -> None:
    lost = [{"type": "Succeeded", "status": "False", "reason": "AgentLost"}]
    index.apply(made(0, "Failed", conditions=lost))
    for number in range(1, 5):
        index.apply(made(number))
    assert names(index) == ["w0", "w3", "w4"]
    index.remove(made(0, "Failed"))
    assert names(index) == ["w3", "w4"]
    assert len(index._unconfirmed) == 0


def test_of_several_that_an_agent_may_run_each_is_stopped(index: WorkflowIndex) -> None:
    lost = [{"type": "Succeeded", "status": "False", "reason": "AgentLost"}]
    for number in range(4):
        index.apply(made(number, "Failed", conditions=lost))
    for number in (7, 8):
        index.apply(made(number))
    assert names(index) == ["w0", "w1", "w2", "w3", "w7", "w8"]
    index.remove(made(1, "Failed"))
    assert names(index) == ["w0", "w2", "w3", "w7", "w8"]


def test_what_is_gone_is_gone_also_if_it_ended_long_ago(index: WorkflowIndex) -> None:
    for number in range(5):
        index.apply(made(number))
    index.remove(made(0))
    assert (index.get(uid(0)), index.name_of_gone(uid(0))) == (None, "d/w0")
    paused = made(1)
    paused["metadata"]["annotations"] = {PAUSED_ANNOTATION: ""}
    index.remove(paused)
    assert (index.get(uid(1)), index.name_of_gone(uid(1))) == (None, None)
    assert len(index._ended) == 1


def test_one_that_changes_again_is_there_as_it_is_and_once(index: WorkflowIndex) -> None:
    for number in range(5):
        index.apply(made(number))
    changed = made(0)
    changed["metadata"]["labels"] = {"a": "b"}
    index.apply(changed)
    assert index.get(uid(0)) is changed
    assert (len(index._ended), len(index._entries)) == (3, 2)
    index.remove(changed)
    assert index.get(uid(0)) is None


def test_nobody_takes_the_id_of_one_that_ended_long_ago(index: WorkflowIndex, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(5):
        index.apply(made(number))
    index.apply(made(7, "Pending", id=uid(0)))
    assert "status.id is that of Workflow d/w0" in caplog.text
    found = index.get(uid(0))
    assert found is not None
    assert found["metadata"]["name"] == "w0"


def test_one_that_was_moved_here_is_known_by_its_former_id_after_its_end(index: WorkflowIndex) -> None:
    former = uid(99)
    index.apply(made(0, "Running"))
    index.apply(made(0, "Running", id=former))
    assert index.get(uid(0)) is None, "its id on the wire has come since"
    index.apply(made(0, id=former))
    for number in range(1, 5):
        index.apply(made(number))
    found = index.get(former)
    assert found is not None
    assert (found["metadata"]["name"], uid_of(found), index._ids) == ("w0", former, {})
    index.remove(made(0, id=former))
    assert index.get(former) is None


@pytest.mark.parametrize("odd", ["", "x", "{" + uid(0) + "}", uid(0).upper(), uid(0).replace("-", ""), "é" * 99])
def test_ids_that_agents_make_up_find_nothing(index: WorkflowIndex, odd: str) -> None:
    for number in range(5):
        index.apply(made(number))
    assert index.get(odd) is None


def test_what_ended_long_before_the_last_is_history_at_once_whatever_order_they_come_in() -> None:
    index = Index()
    for number, day in enumerate([3, 1, 2, 5, 4]):
        index.apply(made(number, lastTransitioned=f"2026-11-{day:02}T00:00:00Z"))
    index.apply(made(9, lastTransitioned="2026-11-04T23:59:30Z"))
    assert names(index) == ["w3", "w9"]


def test_without_a_store_beside_it_all_are_kept() -> None:
    index = WorkflowIndex()
    for number in range(workflows.RECENTLY_ENDED + 5):
        index.apply(made(number))
    found = index.get(uid(0))
    assert found is not None
    assert found["status"]["message"] == "m"


def test_history_takes_less_than_a_hundred_bytes_each() -> None:
    index, count = WorkflowIndex(lambda *_: None), 4000
    index.apply(made(0, lastTransitioned="2027-01-01T00:00:00Z"))
    tracemalloc.start()
    try:
        for number in range(count):
            index.apply(made(1000 + number, hardware=f"m{number}"))
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken < count * 100
