"""The informer in memory, which is the real one without its client."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.api import InProcessApi
from tests.support.informer import InMemoryInformer
from tests.support.objects import hardware, workflow
from tink.kube.resources import HARDWARE, WORKFLOW


@pytest.fixture
def seen() -> list[str]:
    return []


def _watch(informer: InMemoryInformer, seen: list[str]) -> None:
    informer.add_event_handler(
        lambda new, old: seen.append(f"{'new' if old is None else 'changed'} {new['metadata']['name']}"),
        lambda old: seen.append(f"gone {old['metadata']['name']}"),
    )


def test_handlers_see_objects_of_the_test_at_once(seen: list[str]) -> None:
    informer = InMemoryInformer(HARDWARE, [hardware("a")])
    _watch(informer, seen)
    first = informer.put(hardware("b"))
    second = informer.put(hardware("b"))
    informer.remove("a")
    assert seen == ["new a", "new b", "changed b", "gone a"]
    assert int(second["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])
    assert informer.get("default", "b") == second
    assert len(informer) == 1


async def test_informer_of_the_api_sees_each_change_before_the_call_returns(seen: list[str]) -> None:
    api = InProcessApi(workflow("a"), workflow("other", namespace="elsewhere"))
    informer = api.informer(WORKFLOW, namespaces=("default",))
    _watch(informer, seen)
    created = await api.create(WORKFLOW, workflow("b"))
    informed = informer.get("default", "b")
    assert informed is not None
    assert informed["metadata"] == {k: v for k, v in created["metadata"].items() if k != "managedFields"}
    api.change(WORKFLOW, "b", status={"state": "Running"})
    await api.create(HARDWARE, hardware())
    await api.delete(WORKFLOW, "a", "default")
    assert seen == ["new a", "new b", "changed b", "gone a"]


def test_held_changes_are_seen_when_they_are_released(seen: list[str]) -> None:
    api = InProcessApi(workflow("a"))
    informer = api.informer(WORKFLOW)
    _watch(informer, seen)
    informer.hold()
    api.put(workflow("b"))
    api.remove(WORKFLOW, "a")
    assert seen == ["new a"]
    assert informer.get("default", "b") is None
    informer.release()
    assert seen == ["new a", "new b", "gone a"]


async def test_first_list_comes_when_the_test_says_so() -> None:
    informer = InMemoryInformer(HARDWARE, synced=False)
    waiting = asyncio.create_task(informer.wait_for_cache_sync())
    assert not informer.has_synced
    informer.listed()
    await waiting
    assert informer.has_synced
