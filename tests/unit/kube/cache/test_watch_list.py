"""Lists that come as the beginning of a watch (client-go's WatchList), and collections of which a part is followed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from tests.waiting import until
from tink.api.v1alpha2 import Raw
from tink.kube.cache import Informer, reflector
from tink.kube.client import KubeClient
from tink.kube.resources import WORKFLOW
from tink.limits.backoff import Backoff

Heard = list[str]


def event(kind: str, obj: Raw) -> Raw:
    return {"type": kind, "object": obj}


def bookmark(version: int, *, initial_events_end: bool = True) -> Raw:
    annotations = {"k8s.io/initial-events-end": "true"} if initial_events_end else {"another": "true"}
    return event("BOOKMARK", {"metadata": {"resourceVersion": str(version), "annotations": annotations}})


@asynccontextmanager
async def running(
    client: KubeClient, namespaces: Sequence[str] = (), label_selector: str = ""
) -> AsyncIterator[tuple[Informer, Heard]]:
    informer = Informer(
        client, WORKFLOW, namespaces, label_selector=label_selector, backoff=partial(Backoff, 0.001, 0.01)
    )
    heard: Heard = []
    informer.add_event_handler(
        lambda new, _: heard.append(new["metadata"]["name"]), lambda old: heard.append(f"-{old['metadata']['name']}")
    )
    task = asyncio.create_task(informer.run())
    try:
        yield informer, heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_what_there_is_comes_as_a_watch_and_the_same_watch_goes_on(api, client, obj) -> None:
    api.watch_list = True
    api.script(event("ADDED", obj("a", 3)), event("ADDED", obj("b", 2)), bookmark(5), event("MODIFIED", obj("a", 6)))
    async with running(client) as (informer, heard):
        await informer.wait_for_cache_sync()
        await until(lambda: heard == ["a", "b", "a"])
    (asked,) = api.asked
    wanted = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    assert wanted.items() <= asked.query.items()
    assert asked.query["resourceVersion"] == "", "as it is now, and not as some cache remembers it"


async def test_it_is_in_sync_only_when_the_api_says_that_all_initial_events_are_there(api, client, obj) -> None:
    api.watch_list = True
    api.script(event("ADDED", obj("a", 3)), bookmark(4, initial_events_end=False))
    async with running(client) as (informer, heard):
        await until(lambda: heard == ["a"])
        assert not informer.has_synced
        api.send(bookmark(5))
        await informer.wait_for_cache_sync()


async def test_a_list_that_breaks_off_is_asked_for_from_its_beginning(api, client, obj, markers) -> None:
    api.watch_list = True
    api.script(event("ADDED", obj("a", 3)), markers[1])
    api.script(event("ADDED", obj("b", 4)), bookmark(5))
    async with running(client) as (informer, heard):
        await informer.wait_for_cache_sync()
        assert heard == ["a", "b", "-a"], "what went meanwhile is told when all is there"
    assert [asked.query["resourceVersion"] for asked in api.asked] == ["", ""]


async def test_after_gone_what_is_there_is_compared_with_what_was(api, client, obj) -> None:
    api.watch_list = True
    api.script(*(event("ADDED", obj(name, 1)) for name in ("same", "lost")), bookmark(5), bookmark(9))
    api.script(410)
    api.script(event("ADDED", obj("same", 1)), event("ADDED", obj("new", 7)), event("DELETED", obj("new", 8)))
    async with running(client) as (informer, heard):
        await informer.wait_for_cache_sync()
        api.watches[0].put_nowait(b'{"type":"ERROR","object":{"code":410}}\n')
        await until(lambda: heard[2:] == ["new", "-new"])
        assert informer.has_synced, "the copy of before is good enough to go on with"
        api.send(bookmark(20))
        await until(lambda: heard[4:] == ["-lost"])


@pytest.mark.parametrize("refusal", [400, 405, 422])
async def test_an_api_that_can_not_is_asked_page_by_page_and_not_asked_again(api, client, obj, caplog, refusal) -> None:
    api.watch_list = True
    api.lists = [(200, {"metadata": {"resourceVersion": "5"}, "items": [obj("a", 3)]})]
    api.script(refusal)
    api.script(410)
    async with running(client) as (informer, _):
        await informer.wait_for_cache_sync()
        await until(lambda: len(api.asked) >= 4)
    asked = ["sendInitialEvents" in each.query for each in api.asked]
    assert asked == [True] + [False] * (len(asked) - 1)
    assert not caplog.records, "that is nothing to worry about"


async def test_a_watch_that_never_says_that_all_is_there_is_given_up(api, client, obj, markers) -> None:
    """As of a server that knows nothing of `sendInitialEvents`, and says nothing of that either."""
    api.watch_list = True
    api.lists = [(200, {"metadata": {"resourceVersion": "5"}, "items": [obj("a", 3)]})]
    api.script(event("ADDED", obj("a", 3)), markers[0])
    async with running(client) as (informer, heard):
        await informer.wait_for_cache_sync()
        assert heard == ["a"]


async def test_each_namespace_is_followed_by_itself(api: Any, client: KubeClient) -> None:
    """What is gone from one is nothing to the other, and it is in sync when both are."""
    api.watch_list = True
    objects = {
        name: {"metadata": {"name": name, "namespace": name, "uid": name, "resourceVersion": "1"}} for name in "ab"
    }
    async with running(client, ["a", "b", "a"]) as (informer, heard):
        await until(lambda: len(api.asked) == 2)
        order = [asked.path.split("/")[-2] for asked in api.asked]
        assert sorted(order) == ["a", "b"]
        for index, name in enumerate(order):
            assert not informer.has_synced
            api.watches[index].put_nowait(event("ADDED", objects[name]))
            api.watches[index].put_nowait(bookmark(5))
            await until(lambda name=name: name in heard)  # type: ignore[misc]
        await informer.wait_for_cache_sync()
        assert (informer.covers(objects["a"]), informer.covers({"metadata": {"namespace": "c"}})) == (True, False)
        api.watches[0].put_nowait(b'{"type":"ERROR","object":{"code":410}}\n')
        await until(lambda: len(api.asked) == 3)
        api.send(bookmark(9))
        await until(lambda: heard == [*order, f"-{order[0]}"])


@pytest.mark.parametrize("watch_list", [True, False])
async def test_a_label_selector_goes_with_lists_and_watches(api: Any, client: KubeClient, watch_list: bool) -> None:
    api.watch_list = watch_list
    api.lists = [(200, {"metadata": {"resourceVersion": "5"}, "items": []})]
    api.script(bookmark(5))
    async with running(client, label_selector="site in (berlin,ulm)") as (informer, _):
        await informer.wait_for_cache_sync()
        await until(lambda: api.opened)
        assert not informer.covers({"metadata": {"namespace": "d"}}), "its labels may say otherwise"
    assert {asked.query["labelSelector"] for asked in api.asked} == {"site in (berlin,ulm)"}


async def test_a_refused_selector_is_said_with_its_name(api: Any, client: KubeClient) -> None:
    api.lists = [(400, {"message": "unable to parse requirement"})]
    async with running(client, label_selector="site=?") as (informer, _):
        await until(lambda: "'site=?'" in informer.denied and "unable to parse" in informer.denied)


async def test_an_api_that_says_when_to_come_again_is_left_alone_until_then(api, client, monkeypatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        api.lists, api.headers = [(200, {"metadata": {"resourceVersion": "5"}, "items": []})], {}

    monkeypatch.setattr(reflector, "_sleep", sleep)
    api.lists, api.headers = [(429, {"message": "busy"})], {"Retry-After": "45"}
    async with running(client) as (informer, _):
        await informer.wait_for_cache_sync()
    assert pauses[0] == 45.0


async def test_replicas_that_start_together_do_not_ask_together(api, client, monkeypatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(reflector.random, "uniform", lambda low, high: (low, high))

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        assert not api.asked

    monkeypatch.setattr(reflector, "_sleep", sleep)
    api.watch_list = True
    api.script(bookmark(5))
    informer = Informer(client, WORKFLOW, start_jitter=2.0)
    task = asyncio.create_task(informer.run())
    await informer.wait_for_cache_sync()
    task.cancel()
    assert pauses == [(0.0, 2.0)]
