"""Informers: calls of handlers when lists, watches and connections fail; stores, archives and indexes."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.api import InProcessApi
from tests.support.informer import InMemoryInformer
from tests.support.objects import workflow
from tests.support.virtual_time import elapse, turns
from tests.unit.kube.conftest import CUT, END
from tests.waiting import until
from tink.api.v1alpha2 import Raw
from tink.kube.cache import Index, Informer, ObjectCompressor
from tink.kube.cache import informer as informer_module
from tink.kube.cache.store import MAX_LENGTH, Archive, InformerStore, strip
from tink.kube.client import ApiError, KubeClient
from tink.kube.objects import NamespacedName
from tink.kube.resources import WORKFLOW
from tink.limits import Backoff

GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}


def obj(name: str, version: int, uid: str = "", **fields: Any) -> Raw:
    metadata = {"name": name, "namespace": "d", "uid": uid or name, "resourceVersion": str(version)}
    return {"metadata": metadata, **fields}


def listed(version: int, *items: Raw, more: str = "") -> tuple[int, Raw]:
    return 200, {"metadata": {"resourceVersion": str(version), "continue": more}, "items": list(items)}


def added(name: str, version: int) -> Raw:
    return event("ADDED", obj(name, version))


def changed(name: str, version: int, **more: Any) -> Raw:
    return event("MODIFIED", obj(name, version, **more))


def deleted(name: str, version: int) -> Raw:
    return event("DELETED", obj(name, version))


def event(kind: str, obj: Raw) -> Raw:
    return {"type": kind, "object": obj}


def bookmark(version: int, *, initial_events_end: bool = True) -> Raw:
    annotations = {"k8s.io/initial-events-end": "true"} if initial_events_end else {"another": "true"}
    return event("BOOKMARK", {"metadata": {"resourceVersion": str(version), "annotations": annotations}})


class Recorder:
    """Records the calls of event handlers, one line each."""

    def __init__(self, informer: Informer) -> None:
        self.calls: list[str] = []
        informer.add_event_handler(self._change, self._delete)

    def _change(self, new: Raw, old: Raw | None) -> None:
        before = old["metadata"]["resourceVersion"] if old is not None else "-"
        self.calls.append(f"{new['metadata']['name']} {before}>{new['metadata']['resourceVersion']}")

    def _delete(self, old: Raw) -> None:
        self.calls.append(f"{old['metadata']['name']} gone")

    async def until(self, count: int) -> list[str]:
        await until(lambda: len(self.calls) >= count, lambda: self.calls)
        return self.calls


@asynccontextmanager
async def started(informer: Informer) -> AsyncIterator[Informer]:
    task = asyncio.create_task(informer.run())
    try:
        yield informer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def running(client: KubeClient, *namespaces: str, **options: Any) -> AsyncIterator[tuple[Informer, Recorder]]:
    informer = Informer(client, WORKFLOW, namespaces, backoff=lambda: Backoff(0.001, 0.01), **options)
    recorder = Recorder(informer)
    async with started(informer):
        yield informer, recorder


@pytest.mark.looptime
async def test_refused_token_is_logged_repeatedly_and_cleared_after_success(caplog) -> None:
    api: Any = InProcessApi(workflow("a"))
    api.fail("watch", *[ApiError(401, "Unauthorized", "Unauthorized")] * 40)
    async with started(Informer(api, WORKFLOW)) as informer:
        await elapse(1)
        assert "workflows" in informer.denied
        assert informer.failing_for == pytest.approx(1, abs=0.1), "since the first failure"
        await informer.wait_for_cache_sync()
        assert (informer.denied, informer.failing_for) == ("", 0.0)
    lines = [record.message for record in caplog.records if "can't follow" in record.message]
    assert "--kubeconfig" in lines[0]
    assert 2 <= len(lines) <= 8, lines
    assert "still trying" in lines[1]


@dataclass
class Story:
    """The answers of the API to lists and watches, and the resulting calls of handlers."""

    lists: list[tuple[int, Any]]
    watches: list[list[Any]]
    calls: str
    asked: list[tuple[str | None, str | None]] | None = None
    """The first requests: `continue` and `resourceVersion` of each."""
    watch_list: bool = False


LIST_LATER = [listed(5), listed(8, obj("b", 7))]
BEFORE = [obj("same", 1), obj("changed", 2), obj("lost", 3), obj("anew", 4, uid="first")]
AFTER = [obj("same", 1), obj("changed", 20), obj("anew", 40, uid="second"), obj("new", 30)]
MISSED = "same ->1, changed ->2, lost ->3, anew ->4, changed 2>20, anew gone, anew ->40, new ->30, lost gone"
STORIES = {
    "list, then watch from its version": Story(
        [listed(5, obj("a", 3), obj("b", 4))],
        [[changed("a", 6), added("c", 7), deleted("b", 8)]],
        "a ->3, b ->4, a 3>6, c ->7, b gone",
        [(None, None), (None, "5")],
    ),
    **{
        f"watch goes on from the last version after it {how}": Story(
            [listed(5)],
            [[added("a", 6), event("BOOKMARK", obj("", 9)), end], [changed("a", 10)]],
            "a ->6, a 6>10",
            [(None, None), (None, "5"), (None, "9")],
        )
        for how, end in {"ends": END, "breaks": CUT}.items()
    },
    **{
        f"error {error} in a watch costs one reconnect": Story(
            [listed(5)], [[added("a", 6), event("ERROR", error)], [added("b", 7)]], "a ->6, b ->7"
        )
        for error in ({"code": 500}, 7)
    },
    **{
        f"new list after {how} shows what was missed": Story(
            [listed(5, *BEFORE), listed(50, *AFTER)], [[refusal]], MISSED
        )
        for how, refusal in {"Expired in a watch": GONE, "the status 410": 410}.items()
    },
    "recreated object is deleted first": Story(
        [listed(5, obj("a", 3, uid="first"))], [[changed("a", 6, uid="second")]], "a ->3, a gone, a ->6"
    ),
    # a watch from the same version would send it again and again
    **{
        f"malformed event {garbage[:30]!r} is made up for by a list": Story(
            LIST_LATER, [[added("a", 6), garbage + b"\n"]], "a ->6, b ->7, a gone"
        )
        for garbage in (
            b"not json",
            b"[]",
            b"{}",
            b'{"type":"ADDED","object":{}}',
            b'{"type":"ADDED","object":5}',
            b'{"type":"ODD","object":{"metadata":{"resourceVersion":"9"}}}',
        )
    },
    **{
        f"malformed list {page} is requested again": Story(
            [(200, {"metadata": {"resourceVersion": "4"}, "items": page}), listed(5, obj("a", 3))], [], "a ->3"
        )
        for page in ([5], [{}], None, [{"metadata": 5}])
    },
    # in one answer, 100,000 objects would be in memory three times over
    "list of two pages": Story(
        [listed(5, obj("a", 3), more="there"), listed(5, obj("b", 4))],
        [[added("c", 6)]],
        "a ->3, b ->4, c ->6",
        [(None, None), ("there", None), (None, "5")],
    ),
    "list starts over when its continue token has expired": Story(
        [listed(5, obj("a", 3), obj("b", 4), more="there"), (410, {}), listed(9, obj("b", 4), obj("c", 8))],
        [],
        "a ->3, b ->4, c ->8, a gone",
    ),
    "watch list gives initial events and goes on as the watch": Story(
        [],
        [[added("a", 3), added("b", 2), bookmark(5), changed("a", 6)]],
        "a ->3, b ->2, a 3>6",
        [(None, "")],  # as it is now, and not as some cache remembers it
        watch_list=True,
    ),
    "watch list that breaks off begins again, and what went is known at its end": Story(
        [],
        [[added("a", 3), CUT], [added("b", 4), bookmark(5)]],
        "a ->3, b ->4, a gone",
        [(None, ""), (None, "")],
        watch_list=True,
    ),
    # an API that does not know sendInitialEvents ignores it
    "watch list without a bookmark falls back to a list": Story(
        [listed(5, obj("a", 3))], [[added("a", 3), END]], "a ->3", [(None, ""), (None, None)], watch_list=True
    ),
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
async def test_handlers_and_store_follow_what_the_api_sends(api: Any, client: KubeClient, story: Story) -> None:
    api.answers, api.watch_list = [*story.lists], story.watch_list
    for script in story.watches:
        api.script(*script)
    lines = story.calls.split(", ")
    now = {name: change.partition(">")[2] for name, change in (line.split(" ") for line in lines)}
    left = {name: version for name, version in now.items() if version}
    async with running(client) as (informer, recorder):
        assert await recorder.until(len(lines)) == lines
        await informer.wait_for_cache_sync()
        await until(lambda: len(api.asked) >= len(story.asked or ()))
        stored = {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in informer.list()}
        assert (stored, len(informer)) == (left, len(left))
        assert {name for name in now if informer.get("d", name) is not None} == left.keys()
        assert sorted(Recorder(informer).calls) == sorted(f"{name} ->{version}" for name, version in left.items())
    if story.asked is not None:
        found = [(each.query.get("continue"), each.query.get("resourceVersion")) for each in api.asked]
        assert found[: len(story.asked)] == story.asked
    for query in (each.query for each in api.asked):
        assert int(query["timeoutSeconds"] if "watch" in query else query["limit"]) > 0
        assert "watch" not in query or query["allowWatchBookmarks"] == "true"
        assert "sendInitialEvents" not in query or query["resourceVersionMatch"] == "NotOlderThan"


async def test_listed_objects_of_a_namespace_have_kind_and_version_like_watched_ones(api, client) -> None:
    api.answers = [listed(5, obj("a", 3))]
    async with running(client, "lab") as (informer, _):
        await informer.wait_for_cache_sync()
        (found,) = informer.list()
        assert (found["kind"], found["apiVersion"]) == ("Workflow", "tinkerbell.org/v1alpha2")
    assert api.asked[0].path == "/apis/tinkerbell.org/v1alpha2/namespaces/lab/workflows"


async def test_an_api_that_is_away_is_asked_again_and_logged_once(api, client, caplog) -> None:
    caplog.set_level(logging.INFO)
    api.answers = [(503, {}), (500, b"?"), (200, {"items": 5}), (403, {"message": "no"}), listed(5, obj("a", 3))]
    async with running(client) as (_, recorder):
        assert await recorder.until(1) == ["a ->3"]
    first, second = [r.getMessage() for r in caplog.records if r.name == "tink.kube.cache.informer"]
    assert first.startswith("can't follow workflows")
    assert second == "watching workflows again"


async def test_events_may_be_cut_anywhere_into_chunks(api: Any, client: KubeClient) -> None:
    events = [event("ADDED", obj(f"o{i}", 10 + i, note="é" * 700)) for i in range(40)]
    stream = b"".join(json.dumps(each).encode() + b"\n" for each in events)
    api.answers = [listed(5)]
    api.script(*(stream[i : i + 997] for i in range(0, len(stream), 997)))
    async with running(client) as (_, recorder):
        assert await recorder.until(40) == [f"o{i} ->{10 + i}" for i in range(40)]


async def test_error_of_a_handler_is_logged_and_other_handlers_are_called(caplog) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("oh")

    informer = InMemoryInformer(WORKFLOW)
    informer.add_event_handler(fail, fail)
    recorder = Recorder(informer)
    informer.feed("ADDED", obj("a", 3))
    informer.feed("DELETED", obj("a", 6))
    assert recorder.calls == ["a ->3", "a gone"]
    assert [r.getMessage() for r in caplog.records if r.exc_info] == ["a handler failed for Workflow d/a"] * 2


def test_backoff_grows_to_its_bound_and_starts_over() -> None:
    backoff = Backoff(1, 8, uniform=lambda low, high: high)
    assert [backoff.next() for _ in range(5)] == [1, 2, 4, 8, 8]
    backoff.reset()
    assert backoff.next() == 1
    assert 0.5 <= Backoff(1, 8).next() <= 1


PAGE = 500
NO_WATCH_LIST = ApiError(422, "Invalid", "sendInitialEvents is forbidden for watch")


def api_of_pages(count: int) -> Any:
    """Return an API with `count` pages of objects that supports no watch lists."""
    api = InProcessApi(*(workflow(f"o{number:04}") for number in range(count * PAGE)))
    api.fail("watch", NO_WATCH_LIST)
    return api


async def test_next_page_is_requested_while_one_is_processed_and_other_tasks_get_their_turn() -> None:
    """The API and this process work at the same time, and at most two pages are in memory."""
    api = api_of_pages(3)
    informer = Informer(api, WORKFLOW)
    asked: list[int] = []
    informer.add_event_handler(lambda new, _: asked.append(api.count("list")))
    seen = set()
    async with started(informer):
        while not informer.has_synced:
            seen.add(len(informer))
            await turns()
    assert [asked[page * PAGE - 1] for page in (1, 2, 3)] == [2, 3, 3]
    assert any(0 < count < PAGE for count in seen)


async def test_request_for_the_next_page_is_cancelled_after_a_malformed_page(monkeypatch, caplog) -> None:
    api = api_of_pages(3)
    intact = api.list

    async def broken(*asked: Any, **more: Any) -> Raw:
        page: Raw = await intact(*asked, **more)
        page["items"][50] = 5
        api.hold("list")  # the next page does not arrive
        return page

    monkeypatch.setattr(api, "list", broken)
    async with started(Informer(api, WORKFLOW, backoff=lambda: Backoff(60.0, 60.0))):
        await until(lambda: caplog.records)
        assert len(asyncio.all_tasks()) == 2, "no request is left"
    assert api.count("list") == 2
    assert ["not a List" in record.getMessage() for record in caplog.records] == [True]


async def test_objects_are_stripped_of_managed_fields_and_last_applied(api, client) -> None:
    last = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}

    def full(name: str, version: int, **annotations: str) -> Raw:
        made = obj(name, version)
        made["metadata"] |= {"managedFields": [{"manager": "x"}], "annotations": last | annotations}
        return made

    api.answers = [listed(5, full("a", 3))]
    api.script(event("ADDED", full("b", 6, mine="1")), event("DELETED", full("b", 7, mine="1")))
    async with running(client) as (informer, recorder):
        gone: list[Raw] = []
        informer.add_event_handler(on_delete=gone.append)
        await recorder.until(3)
        (found,) = informer.list()
        assert found["metadata"].keys() == {"name", "namespace", "uid", "resourceVersion"}
        assert gone[0]["metadata"]["annotations"] == {"mine": "1"}
        assert "managedFields" not in gone[0]["metadata"]


@pytest.mark.parametrize("shared", [True, False])
def test_every_object_is_returned_in_its_last_state(monkeypatch: pytest.MonkeyPatch, shared: bool) -> None:
    """There are more objects than a store keeps uncompressed, and each has different content."""
    monkeypatch.setattr("tink.kube.cache.store._RECENT_SHARED", 100)
    monkeypatch.setattr("tink.kube.cache.store._RECENT", 150)
    informer = InMemoryInformer(WORKFLOW, compressor=ObjectCompressor() if shared else None)
    specs = {f"o{i}": {"n": i, "text": "é" * i} for i in range(600)}
    for name, spec in specs.items():
        informer.feed("ADDED", obj(name, 1, spec=spec))
    informer.feed("MODIFIED", obj("o0", 2, spec={}))
    informer.feed("DELETED", obj("o599", 3))
    informer.feed("MODIFIED", obj("o300", 4, spec=specs["o300"]))
    assert all(informer._store._objects.values()) is shared, "a shared compressor compresses at once"
    for i in (*range(1, 599), *range(598, 0, -1)):
        found = informer.get("d", f"o{i}")
        assert found["spec"] == specs[f"o{i}"]
        assert found is informer.get("d", f"o{i}")
    assert len(informer._store._recent) <= (100 if shared else 150)
    assert (informer.get("d", "o599"), informer.get("d", "o600")) == (None, None)
    assert (informer.get("d", "o0") or obj("o0", 0, spec=1))["spec"] == {}
    assert len(informer) == 599
    assert {each["metadata"]["name"]: each["spec"] for each in informer.list()} == {
        name: spec for name, spec in (specs | {"o0": {}}).items() if name != "o599"
    }


async def test_list_replaces_restored_objects(api, client) -> None:
    """Also if the API has lost its history and given a version of that to another object."""
    api.answers = [listed(5, obj("same", 3), obj("other", 4))]
    informer = Informer(client, WORKFLOW, backoff=lambda: Backoff(0.001, 0.01))
    for each in (obj("same", 3), obj("other", 2), obj("gone", 1)):
        informer.restore(each)
    assert (informer.has_synced, len(informer)) == (False, 3)
    recorder = Recorder(informer)
    assert len(recorder.calls) == 3, "those that are here already"
    async with started(informer):
        assert (await recorder.until(6))[3:] == ["same 3>3", "other 2>4", "gone gone"]
        assert len(informer) == 2


def test_restore_does_not_overwrite_listed_objects() -> None:
    """One namespace was listed and another was not when the API went away."""
    two = InMemoryInformer(WORKFLOW, namespaces=["one", "two"], synced=False)
    two._reflectors[0].synced.set()
    for namespace in ("one", "two", "three"):
        restored = obj("a", 3)
        restored["metadata"]["namespace"] = namespace
        two.restore(restored)
    assert [each["metadata"]["namespace"] for each in two.list()] == ["two"]
    for synced in (True, False):  # False: the first page has arrived
        informer = InMemoryInformer(WORKFLOW, synced=synced)
        informer.feed("ADDED", obj("a", 8))
        recorder = Recorder(informer)
        informer.restore(obj("a", 3))
        informer.restore(obj("b", 2))
        assert recorder.calls == (["a ->8"] if synced else ["a ->8", "b ->2"])


# --- lists that come as the beginning of a watch (client-go's WatchList), and parts of a collection ---


def bookmark(version: int, *, initial_events_end: bool = True) -> Raw:
    annotations = {"k8s.io/initial-events-end": "true"} if initial_events_end else {"another": "true"}
    return event("BOOKMARK", {"metadata": {"resourceVersion": str(version), "annotations": annotations}})


async def test_informer_is_synced_at_the_initial_events_end_bookmark(api, client) -> None:
    api.watch_list = True
    api.script(added("a", 3), bookmark(4, initial_events_end=False))
    async with running(client) as (informer, recorder):
        await until(lambda: recorder.calls == ["a ->3"])
        assert not informer.has_synced
        api.send(bookmark(5))
        await informer.wait_for_cache_sync()


async def test_object_restored_during_a_list_is_removed_if_the_api_does_not_list_it(api, client) -> None:
    api.watch_list = True
    api.script(added("a", 3), added("deleted", 4), deleted("deleted", 5))
    async with running(client) as (informer, recorder):
        await until(lambda: "deleted gone" in recorder.calls)
        for name in ("a", "deleted", "unknown"):
            informer.restore(obj(name, 1))
        # A handler may look for the object, which restores what was known of it.
        informer.add_event_handler(on_delete=informer.restore)
        assert recorder.calls[3:] == ["deleted ->1", "unknown ->1"]
        api.send(bookmark(9))
        await informer.wait_for_cache_sync()
        assert recorder.calls[5:] == ["deleted gone", "unknown gone"]
        assert list(informer) == [NamespacedName("d", "a")]


async def test_watch_list_after_410_reports_missed_deletions(api, client) -> None:
    api.watch_list = True
    api.script(added("same", 1), added("lost", 1), bookmark(5), bookmark(9))
    api.script(410)
    api.script(added("same", 1), added("new", 7), deleted("new", 8))
    async with running(client) as (informer, recorder):
        await informer.wait_for_cache_sync()
        api.watches[0].put_nowait(GONE)
        await until(lambda: recorder.calls[2:] == ["new ->7", "new gone"])
        assert informer.has_synced, "the copy of before is good enough to go on with"
        api.send(bookmark(20))
        await until(lambda: recorder.calls[4:] == ["lost gone"])


@pytest.mark.parametrize("refusal", [400, 405, 422])
async def test_api_without_watch_lists_is_asked_once_for_one(api, client, caplog, refusal) -> None:
    api.watch_list = True
    api.answers = [listed(5, obj("a", 3))]
    api.script(refusal)
    api.script(410)
    async with running(client) as (informer, _):
        await informer.wait_for_cache_sync()
        await until(lambda: len(api.asked) >= 4)
    asked = ["sendInitialEvents" in each.query for each in api.asked]
    assert asked == [True] + [False] * (len(asked) - 1)
    assert not caplog.records, "this is no problem to report"


async def test_list_comes_page_by_page_after_a_failed_watch_list_and_the_next_as_a_watch_again(api, client) -> None:
    """Kubernetes 1.34 to 1.36 over etcd before 3.4.31: 500, "RequestWatchProgress is disabled"."""
    api.watch_list = True
    api.answers = [listed(5, obj("a", 3))]
    api.script(500)
    api.script(410)
    async with running(client) as (informer, _):
        await informer.wait_for_cache_sync()
        await until(lambda: len(api.asked) >= 4)
    asked = [(each.query.get("watch") == "true", "sendInitialEvents" in each.query) for each in api.asked]
    assert asked[:4] == [(True, True), (False, False), (True, False), (True, True)]


async def test_each_namespace_is_followed_by_itself(api: Any, client: KubeClient) -> None:
    """A deletion in one does not affect the other; the informer is in sync when both are."""
    api.watch_list = True
    objects = {name: obj(name, 1) for name in "ab"}
    for name, one in objects.items():
        one["metadata"]["namespace"] = name
    async with running(client, "a", "b", "a") as (informer, recorder):
        await until(lambda: len(api.asked) == 2)
        order = [asked.path.split("/")[-2] for asked in api.asked]
        assert sorted(order) == ["a", "b"]
        for index, name in enumerate(order):
            assert not informer.has_synced
            api.watches[index].put_nowait(event("ADDED", objects[name]))
            api.watches[index].put_nowait(bookmark(5))
            await recorder.until(index + 1)
        await informer.wait_for_cache_sync()
        assert (informer.covers(objects["a"]), informer.covers({"metadata": {"namespace": "c"}})) == (True, False)
        api.watches[0].put_nowait(GONE)
        await until(lambda: len(api.asked) == 3)
        api.send(bookmark(9))
        await until(lambda: recorder.calls == [*(f"{name} ->1" for name in order), f"{order[0]} gone"])


@pytest.mark.parametrize("watch_list", [True, False])
async def test_a_label_selector_goes_with_lists_and_watches(api: Any, client: KubeClient, watch_list: bool) -> None:
    api.watch_list = watch_list
    api.answers = [listed(5)]
    api.script(bookmark(5))
    async with running(client, label_selector="site in (berlin,ulm)") as (informer, _):
        await informer.wait_for_cache_sync()
        await until(lambda: api.opened)
        assert not informer.covers({"metadata": {"namespace": "d"}}), "its labels may say otherwise"
    assert {asked.query["labelSelector"] for asked in api.asked} == {"site in (berlin,ulm)"}


async def test_refused_selector_is_named(api: Any, client: KubeClient) -> None:
    api.answers = [(400, {"message": "unable to parse requirement"})]
    async with running(client, label_selector="site=?") as (informer, _):
        await until(lambda: "'site=?'" in informer.denied and "unable to parse" in informer.denied)


@pytest.mark.looptime
@pytest.mark.parametrize("jitter", [0.0, 2.0])
async def test_start_jitter_and_retry_after_of_the_api_are_respected(monkeypatch, jitter: float) -> None:
    monkeypatch.setattr(informer_module.random, "uniform", lambda low, high: low + 0.9 * (high - low))
    api: Any = InProcessApi()
    api.fail("watch", ApiError(429, "TooManyRequests", "busy", retry_after=45.0))
    async with started(Informer(api, WORKFLOW, start_jitter=jitter)) as informer:
        if jitter:
            await elapse(1.79)  # replicas that start together do not ask together
            assert not api.calls
            await elapse(0.02)
        await elapse(44.9)
        assert len(api.calls) == 1
        await elapse(0.2)
        assert informer.has_synced


# --- the archive, compared with a plain dictionary, and the store with an archive ---


def test_archive_equals_a_dictionary_after_any_changes() -> None:
    archive, plain, lot = Archive(), dict[bytes, bytes](), random.Random(7)
    for _ in range(20_000):
        key = str(lot.randrange(700)).encode()  # one key is the beginning of another
        if lot.random() < 0.6:
            value = lot.randbytes(lot.randrange(12)) + key
            archive.put(key, value)
            plain[key] = value
        else:
            assert archive.pop(key) == plain.pop(key, None)
        assert len(archive) == len(plain)
    assert dict(archive.items()) == plain
    assert all(archive.get(key) == value for key, value in plain.items())
    assert archive.get(b"another") is None


def test_archive_takes_values_of_any_length_and_hardly_more_than_their_bytes() -> None:
    archive = Archive()
    for key in (b"", bytes(MAX_LENGTH)):
        archive.put(key, bytes(MAX_LENGTH))
        assert archive.pop(key) == bytes(MAX_LENGTH)
        with pytest.raises(OverflowError):
            archive.put(key, bytes(MAX_LENGTH + 1))
    assert len(archive) == 0
    archive = Archive()
    for number in range(10_000):
        archive.put(f"default/w{number:05}".encode(), bytes(46))
    assert sum(map(sys.getsizeof, archive._blocks)) + sys.getsizeof(archive._blocks) < 10_000 * (14 + 46 + 20)


class Short:
    """An archive format that keeps the metadata of `old` objects."""

    def pack(self, obj: Raw) -> bytes | None:
        return orjson.dumps(obj["metadata"]) if obj.get("old") else None

    def unpack(self, key: NamespacedName, packed: bytes) -> Raw:
        metadata = orjson.loads(packed)
        assert (metadata["namespace"], metadata["name"]) == key
        return {"metadata": metadata, "short": True}


def test_object_that_enters_and_leaves_the_archive_is_stored_once_and_as_the_format_keeps_it() -> None:
    store, key = InformerStore(archive_format=Short()), NamespacedName("d", "w")
    store.put(NamespacedName("d", "new"), obj("new", 1, spec={"n": 1}))
    for version, old in enumerate([False, True, False, True], start=1):
        store.put(key, obj("w", version, old=old))
        for found in (store.get(key), next(each for each in store.list() if each["metadata"]["name"] == "w")):
            assert (found.get("short", False), found["metadata"]["resourceVersion"]) == (old, str(version))
        assert (len(store), sorted(each.name for each in store)) == (2, ["new", "w"])
    store.delete(key)
    assert (len(store), store.get(key)) == (1, None)


# --- compressed objects ---

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abäö.~", max_size=5), inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text("abc", max_size=3), VALUES, max_size=5)


@given(st.lists(OBJECTS, min_size=1, max_size=5))
def test_compressed_objects_are_decompressed_unchanged(objects: list[dict[str, Any]]) -> None:
    compressor = ObjectCompressor()
    packed = [compressor.compress(obj) for obj in objects]
    assert [compressor.decompress(one) for one in packed] == objects


def test_objects_like_the_first_take_few_bytes_and_large_objects_are_restored() -> None:
    compressor = ObjectCompressor()

    def machine(number: int) -> dict[str, Any]:
        return {"name": f"machine-{number}", "spec": {f"field-{i}": f"what all machines say {i}" for i in range(50)}}

    one = machine(0)
    first = compressor.compress(one)
    assert compressor.compress(one) is first, "packed twice in a row, it has one copy"
    assert len(compressor.compress(machine(1))) < len(orjson.dumps(machine(1))) / 20
    assert len(first) < 100
    assert compressor.decompress(first) == machine(0)
    compressor = ObjectCompressor()
    large = [{"text": "".join(str(i * k) for i in range(30_000))} for k in (7, 11, 13)]
    assert [compressor.decompress(packed) for packed in [compressor.compress(obj) for obj in large]] == large


def test_strip_leaves_the_annotations_of_others() -> None:
    last = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
    obj = {"metadata": {"managedFields": [], "annotations": last | {"a": "b"}}, "spec": {"managedFields": 1}}
    assert strip(obj) == {"metadata": {"annotations": {"a": "b"}}, "spec": {"managedFields": 1}}
    assert strip({"metadata": {"annotations": None}}) == {"metadata": {"annotations": None}}
    assert strip({"metadata": {"annotations": {}}}) == {"metadata": {"annotations": {}}}


# --- the index ---


@given(st.lists(st.tuples(st.integers(0, 3), st.sets(st.integers(0, 4)))))
def test_every_value_has_the_keys_that_have_it_now_and_no_others(steps: list[tuple[int, set[int]]]) -> None:
    index: Index[int, int] = Index()
    now: dict[int, set[int]] = {}
    for key, values in steps:
        assert index.set(key, values) == now.get(key, set()) - values
        now[key] = values
        for value in range(5):
            assert set(index.keys(value)) == {key for key, values in now.items() if value in values}
    assert len(index) == sum(1 for values in now.values() if values)
    for key in now:
        index.set(key, ())
    assert (index._keys, index._values) == ({}, {})


def test_keys_of_a_value_are_in_the_order_they_got_it() -> None:
    index: Index[str, str] = Index()
    for key in ("b", "a", "c"):
        index.set(key, ["v"])
    index.set("b", ["v", "w"])
    assert list(index.keys("v")) == ["b", "a", "c"]
