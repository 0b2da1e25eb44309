"""The index of Workflows: their order, their newest versions, and those that have ended, which are most of them."""

from __future__ import annotations

import random
import tracemalloc
import uuid
from typing import Any

import pytest

from tests.support import objects
from tink.api.annotations import PAUSED_ANNOTATION
from tink.api.v1alpha2 import Raw
from tink.kube.objects import NamespacedName
from tink.server import workflows
from tink.server.workflows import WorkflowIndex, uid_of
from tink.workflow import ended
from tink.workflow.ended import MESSAGE

M1 = NamespacedName("d", "m1")
LOST = {"conditions": [{"type": "Succeeded", "status": "False", "reason": "AgentLost"}]}


def uid(number: int) -> str:
    return str(uuid.UUID(int=random.Random(number).getrandbits(128)))


def made(
    number: int, state: str = "Succeeded", hardware: str = "m1", metadata: Raw | None = None, **status: Any
) -> Raw:
    versioned = {"uid": uid(number), "resourceVersion": str(number + 1), **(metadata or {})}
    fields = {"message": "m", "lastTransitioned": "2026-11-23T22:51:06Z", **status}
    fields.setdefault("actions", [objects.action("a", "Succeeded", image="i" * 300)])
    where: Raw = {"namespace": "d", "hardware": hardware, "finalizers": (), "metadata": versioned}
    return objects.workflow(f"w{number}", state, **where, **fields)


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
        self.store.pop(NamespacedName.of(workflow), None)
        super().remove(workflow)


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Index:
    """With w0 to w4, which have ended; the first three are history."""
    monkeypatch.setattr(workflows, "RECENTLY_ENDED", 2)
    made_index = Index()
    for number in range(5):
        made_index.apply(made(number))
    return made_index


def names(index: WorkflowIndex, hardware: NamespacedName = M1) -> list[str]:
    return [workflow["metadata"]["name"] for workflow in index.of(hardware)]


def test_one_that_ended_long_ago_is_found_by_an_event_and_not_looked_at_by_the_dispatch(index: Index) -> None:
    old, new = index.get(uid(0)), index.get(uid(4))
    assert old is not None
    assert new is not None
    assert (old["status"]["message"], new["status"]["message"]) == (MESSAGE, "m")
    assert (uid_of(old), old["metadata"]["name"], old["spec"]["hardwareRef"]["name"]) == (uid(0), "w0", "m1")
    index.apply(made(9, "Running"))
    assert names(index) == ["w3", "w4", "w9"]
    for odd in ("", "x", "{" + uid(0) + "}", uid(0).upper(), uid(0).replace("-", ""), "é" * 99):
        assert index.get(odd) is None, "ids that agents make up find nothing"


def test_agent_gets_a_stop_command_for_each_workflow_that_it_may_still_run_however_long_ago_it_ended() -> None:
    index = Index()
    for number in range(4):
        index.apply(made(number, "Failed", **LOST))
    for number in range(100, 100 + workflows.RECENTLY_ENDED):
        index.apply(made(number, hardware="m2"))
    assert names(index) == ["w0", "w1", "w2", "w3"]
    index.remove(made(1, "Failed"))
    assert names(index) == ["w0", "w2", "w3"]
    for number in (0, 2, 3):
        index.remove(made(number, "Failed"))
    assert (names(index), len(index._unconfirmed)) == ([], 0)


def test_what_is_gone_is_gone_also_if_it_ended_long_ago(index: Index) -> None:
    index.remove(made(0))
    assert (index.get(uid(0)), index.name_of_gone(uid(0))) == (None, "d/w0")
    index.remove(made(1, metadata={"annotations": {PAUSED_ANNOTATION: ""}}))
    assert (index.get(uid(1)), index.name_of_gone(uid(1))) == (None, None)
    assert len(index._ended) == 1


def test_one_that_changes_again_is_there_as_it_is_and_once(index: Index) -> None:
    changed = made(0, metadata={"labels": {"a": "b"}})
    index.apply(changed)
    assert index.get(uid(0)) is changed
    assert (len(index._ended), len(index._entries)) == (3, 2)
    index.remove(changed)
    assert index.get(uid(0)) is None


def test_the_id_of_a_workflow_that_ended_long_ago_stays_its_own(index: Index, caplog: pytest.LogCaptureFixture) -> None:
    index.apply(made(7, "Pending", id=uid(0)))
    assert "status.id is that of Workflow d/w0" in caplog.text
    found = index.get(uid(0))
    assert found is not None
    assert found["metadata"]["name"] == "w0"


def test_one_that_was_moved_here_is_known_by_its_former_id_after_its_end(index: Index) -> None:
    former = uid(99)
    index.apply(made(10, "Running"))
    index.apply(made(10, "Running", id=former))
    assert index.get(uid(10)) is None, "its id on the wire has come since"
    index.apply(made(10, id=former))
    for number in range(11, 15):
        index.apply(made(number))
    found = index.get(former)
    assert found is not None
    assert (found["metadata"]["name"], uid_of(found), index._ids) == ("w10", former, {})
    index.remove(made(10, id=former))
    assert index.get(former) is None


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


# --- those that have not ended ------------------------------------------------------------------------------------


def waiting(number: int, created: str = "01", hardware: str = "m1", **metadata: Any) -> Raw:
    return made(number, "Pending", hardware, {"creationTimestamp": created, **metadata})


def test_index_has_workflows_in_the_order_of_their_creation_and_follows_changes() -> None:
    index = WorkflowIndex()
    # As an informer lists them: by name. w9 was created before w8, and its status was written after that.
    first = made(9, "Pending", metadata={"creationTimestamp": "02"}, creationVersion="3")
    for obj in (waiting(6, "00", "m2"), waiting(7), waiting(8, "02"), first):
        index.apply(obj)
    index.apply(waiting(8, "02", resourceVersion="99"))
    assert names(index) == ["w7", "w9", "w8"]
    index.apply(waiting(7, hardware="m2"))
    assert names(index) == ["w9", "w8"]
    assert names(index, NamespacedName("d", "m2")) == ["w6", "w7"]
    index.remove(waiting(7, hardware="m2"))
    index.refresh(waiting(7, hardware="m2"))
    assert names(index, NamespacedName("d", "m2")) == ["w6"], "a late answer brought a deleted Workflow back"
    assert index.get(uid(7)) is None
    assert (index.name_of_gone(uid(7)), index.name_of_gone(uid(5))) == ("d/w7", None)
    for number in range(10, 5010):
        index.apply(waiting(number))
        index.remove(waiting(number))
    assert index.name_of_gone(uid(7)) is None, "memory is bounded"


@pytest.mark.parametrize(
    "news",
    [
        # The source, the version, and the version in the index after it; a restored API starts to count again.
        "informer 9 9, api 11 11, informer 10 11, informer 12 12, api 11 12, informer 3 3",
        "informer x x, api b b, informer a a",
    ],
    ids=["late news undo nothing", "versions that are no numbers"],
)
def test_index_has_the_newest_version(news: str) -> None:
    index = WorkflowIndex()
    for who, version, has in (each.split() for each in news.split(", ")):
        {"informer": index.apply, "api": index.refresh}[who](waiting(1, resourceVersion=version))
        assert index.get(uid(1)) == waiting(1, resourceVersion=has)


@pytest.mark.parametrize("spec", [None, {}, {"hardwareRef": None}, {"hardwareRef": {}}, 5])
def test_a_workflow_that_names_no_hardware_is_of_no_machine(spec: Any) -> None:
    index = WorkflowIndex()
    index.apply({"metadata": {"name": "a", "namespace": "d", "uid": "a"}, "spec": spec})
    assert index.get("a") is not None
