"""The informer against a scripted API: what its handlers hear when lists, watches and connections go wrong."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.api import InProcessApi
from tests.support.informer import InMemoryInformer
from tests.support.objects import workflow
from tests.support.virtual_time import elapse, turns
from tests.waiting import until
from tink.api.v1alpha2 import Raw
from tink.kube.cache import Informer, ObjectCompressor, reflector
from tink.kube.client import ApiError, KubeClient
from tink.kube.objects import NamespacedName
from tink.kube.resources import WORKFLOW
from tink.limits.backoff import Backoff

GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}


def listed(version: int, *items: Raw) -> tuple[int, Raw]:
    return 200, {"metadata": {"resourceVersion": str(version)}, "items": list(items)}


def event(kind: str, obj: Raw) -> Raw:
    return {"type": kind, "object": obj}


def restore(informer: Informer, obj: Raw, packer: ObjectCompressor | None = None) -> None:
    packer = packer or ObjectCompressor()
    informer.restore(NamespacedName.of(obj), packer.compress(obj), packer, [str(obj.get("spec"))])


class Ear:
    """What the handlers heard, in one line each."""

    def __init__(self, informer: Informer, *, can_wait: bool = False) -> None:
        self.heard: list[str] = []
        self._arrived = asyncio.Event()
        informer.add_event_handler(self._change, self._delete, can_wait=can_wait)

    def _change(self, new: Raw, old: Raw | None) -> None:
        before = old["metadata"]["resourceVersion"] if old is not None else "-"
        self._note(f"{new['metadata']['name']} {before}>{new['metadata']['resourceVersion']}")

    def _delete(self, old: Raw) -> None:
        self._note(f"{old['metadata']['name']} gone")

    def _note(self, line: str) -> None:
        self.heard.append(line)
        self._arrived.set()

    async def until(self, count: int) -> list[str]:
        while len(self.heard) < count:
            self._arrived.clear()
            await self._arrived.wait()
        return self.heard


@asynccontextmanager
async def started(informer: Informer) -> AsyncIterator[Informer]:
    task = asyncio.create_task(informer.run())
    try:
        yield informer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def running(client: KubeClient, *namespaces: str, **options: Any) -> AsyncIterator[tuple[Informer, Ear]]:
    informer = Informer(client, WORKFLOW, namespaces, backoff=lambda: Backoff(0.001, 0.01), **options)
    ear = Ear(informer)
    async with started(informer):
        yield informer, ear


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


async def test_list_then_watch_from_its_version(api: Any, client: KubeClient, obj: Callable[..., Raw]) -> None:
    api.lists = [listed(5, obj("a", 3), obj("b", 4))]
    api.script(event("MODIFIED", obj("a", 6)), event("ADDED", obj("c", 7)), event("DELETED", obj("b", 8)))
    async with running(client) as (informer, ear):
        await informer.wait_for_cache_sync()
        assert await ear.until(5) == ["a ->3", "b ->4", "a 3>6", "c ->7", "b gone"]
        assert informer.get("d", "b") is None
        found = informer.get("d", "a")
        assert found is not None
        assert found["metadata"]["resourceVersion"] == "6"
        assert [(o["metadata"]["name"], o["metadata"]["resourceVersion"]) for o in informer.list()] == [
            ("a", "6"),
            ("c", "7"),
        ]
    watch = api.asked[1].query
    assert (watch["resourceVersion"], watch["allowWatchBookmarks"]) == ("5", "true")
    assert int(watch["timeoutSeconds"]) > 0


async def test_listed_objects_have_kind_and_version_like_watched_ones(api, client, obj) -> None:
    api.lists = [listed(5, obj("a", 3))]
    async with running(client) as (informer, _):
        await informer.wait_for_cache_sync()
        (found,) = informer.list()
        assert (found["kind"], found["apiVersion"]) == ("Workflow", "tinkerbell.org/v1alpha2")


@pytest.mark.parametrize("how", [0, 1])
async def test_a_watch_that_ends_or_breaks_goes_on_from_the_last_version(api, client, obj, markers, how) -> None:
    api.lists = [listed(5)]
    api.script(event("ADDED", obj("a", 6)), event("BOOKMARK", obj("", 9)), markers[how])
    api.script(event("MODIFIED", obj("a", 10)))
    async with running(client) as (_, ear):
        assert await ear.until(2) == ["a ->6", "a 6>10"]
    assert [a.query.get("resourceVersion") for a in api.asked] == [None, "5", "9"], "listed once, watched from 5 and 9"


@pytest.mark.parametrize("refusal", [GONE, 410])
async def test_relist_after_410_reports_missed_changes_and_deletions(api, client, obj, refusal) -> None:
    api.lists = [
        listed(5, obj("same", 1), obj("changed", 2), obj("lost", 3), obj("anew", 4, uid="first")),
        listed(50, obj("same", 1), obj("changed", 20), obj("anew", 40, uid="second"), obj("new", 30)),
    ]
    api.script(refusal)
    async with running(client) as (informer, ear):
        heard = (await ear.until(9))[4:]
        assert heard == ["changed 2>20", "anew gone", "anew ->40", "new ->30", "lost gone"]
        assert len(informer) == 4


async def test_handlers_see_a_recreated_object_deleted_first(api, client, obj) -> None:
    api.lists = [listed(5, obj("a", 3, uid="first"))]
    api.script(event("MODIFIED", obj("a", 6, uid="second")))
    async with running(client) as (_, ear):
        assert await ear.until(3) == ["a ->3", "a gone", "a ->6"]


async def test_an_api_that_is_away_is_asked_again_and_logged_once(api, client, obj, caplog) -> None:
    caplog.set_level(logging.INFO)
    api.lists = [(503, {}), (500, b"?"), (200, {"items": 5}), (403, {"message": "no"}), listed(5, obj("a", 3))]
    async with running(client) as (_, ear):
        assert await ear.until(1) == ["a ->3"]
    lines = [r.getMessage() for r in caplog.records if r.name == "tink.kube.cache.reflector"]
    assert len(lines) == 2
    assert lines[0].startswith("can't follow workflows")
    assert lines[1] == "watching workflows again"


@pytest.mark.parametrize(
    "garbage",
    [
        b"not json\n",
        b"[]\n",
        b"{}\n",
        b'{"type":"ADDED","object":{}}\n',
        b'{"type":"ADDED","object":5}\n',
        b'{"type":"ODD","object":{"metadata":{"resourceVersion":"9"}}}\n',
    ],
)
async def test_a_watch_event_that_can_not_be_read_is_made_up_for_by_a_list(api, client, obj, garbage) -> None:
    """Watched again from the same version it would come again, for ever."""
    api.lists = [listed(5), listed(8, obj("b", 7))]
    api.script(event("ADDED", obj("a", 6)), garbage)
    async with running(client) as (_, ear):
        assert await ear.until(3) == ["a ->6", "b ->7", "a gone"]


@pytest.mark.parametrize("error", [{"code": 500}, 7])
async def test_an_error_in_a_watch_costs_one_reconnect_and_nothing_else(api, client, obj, error) -> None:
    api.lists = [listed(5)]
    api.script(event("ADDED", obj("a", 6)), event("ERROR", error))
    api.script(event("ADDED", obj("b", 7)))
    async with running(client) as (_, ear):
        assert await ear.until(2) == ["a ->6", "b ->7"]


async def test_events_may_be_cut_anywhere_into_chunks(api: Any, client: KubeClient, obj: Callable[..., Raw]) -> None:
    stream = b"".join(
        json.dumps(event("ADDED", obj(f"o{i}", 10 + i, note="é" * 700))).encode() + b"\n" for i in range(40)
    )
    api.lists = [listed(5)]
    api.script(*(stream[i : i + 997] for i in range(0, len(stream), 997)))
    async with running(client) as (_, ear):
        assert await ear.until(40) == [f"o{i} ->{10 + i}" for i in range(40)]


async def test_a_handler_that_fails_is_logged_and_the_others_still_hear(api, client, obj, caplog) -> None:
    api.lists = [listed(5, obj("a", 3))]
    api.script(event("DELETED", obj("a", 6)))
    informer = Informer(client, WORKFLOW)

    def fail(*_: Any) -> None:
        raise RuntimeError("oh")

    informer.add_event_handler(fail, fail)
    ear = Ear(informer)
    async with started(informer):
        assert await ear.until(2) == ["a ->3", "a gone"]
    assert [r.getMessage() for r in caplog.records if r.exc_info] == ["a handler failed for Workflow d/a"] * 2


async def test_late_handler_gets_existing_objects(api, client, obj) -> None:
    api.lists = [listed(5, obj("a", 3))]
    async with running(client) as (informer, _):
        await informer.wait_for_cache_sync()
        assert Ear(informer).heard == ["a ->3"]


async def test_a_namespaced_informer_asks_for_its_namespace_only(api: Any, client: KubeClient) -> None:
    api.lists = [listed(5)]
    informer = Informer(client, WORKFLOW, ["lab"])
    task = asyncio.create_task(informer.run())
    await informer.wait_for_cache_sync()
    task.cancel()
    assert api.asked[0].path == "/apis/tinkerbell.org/v1alpha2/namespaces/lab/workflows"


def test_backoff_grows_to_its_bound_and_starts_over() -> None:
    backoff = Backoff(1, 8, uniform=lambda low, high: high)
    assert [backoff.next() for _ in range(5)] == [1, 2, 4, 8, 8]
    backoff.reset()
    assert backoff.next() == 1
    assert 0.5 <= Backoff(1, 8).next() <= 1


async def test_a_large_collection_is_listed_page_by_page(api: Any, client: KubeClient, obj: Callable[..., Raw]) -> None:
    """In one answer, 100,000 objects would be in memory three times over."""
    first, second = listed(5, obj("a", 3)), listed(5, obj("b", 4))
    first[1]["metadata"]["continue"] = "there"
    api.lists = [first, second]
    api.script(event("ADDED", obj("c", 6)))
    async with running(client) as (informer, ear):
        assert await ear.until(3) == ["a ->3", "b ->4", "c ->6"]
        assert len(informer) == 3
    asked = [(a.query.get("continue"), a.query.get("resourceVersion")) for a in api.asked[:3]]
    assert asked == [(None, None), ("there", None), (None, "5")]
    assert int(api.asked[0].query["limit"]) > 0


class Paged:
    """A client whose collection is pages of 60 objects, the `broken` one with something else in it and none after it
    ever arriving; its watch never brings anything."""

    def __init__(self, pages: int, obj: Callable[..., Raw], broken: int = -1) -> None:
        self.asked: list[int] = []
        self._pages = pages
        self._obj = obj
        self._broken = broken

    async def list(self, *_: Any, limit: int, after: str, label_selector: str) -> Raw:
        assert limit > 0
        page = int(after or 0)
        self.asked.append(page)
        await turns()
        if page > self._broken >= 0:
            await asyncio.Event().wait()
        items: list[Any] = [self._obj(f"o{page}-{index:02}", page * 60 + index + 1) for index in range(60)]
        if page == self._broken:
            items[50] = 5
        more = {"continue": str(page + 1)} if page + 1 < self._pages else {}
        return {"metadata": {"resourceVersion": "900"} | more, "items": items}

    @asynccontextmanager
    async def watch(self, *_: Any, send_initial_events: bool, **__: Any) -> AsyncIterator[Any]:
        if send_initial_events:
            raise ApiError(422, "Invalid", "sendInitialEvents is forbidden for watch")
        await asyncio.Event().wait()
        yield


async def test_next_page_is_asked_for_while_one_is_taken_in_and_no_other(obj: Callable[..., Raw]) -> None:
    """The API and this process work at the same time, and two pages are all that is in memory."""
    client: Any = Paged(4, obj)
    informer = Informer(client, WORKFLOW)
    asked: dict[str, list[int]] = {}
    informer.add_event_handler(lambda new, _: asked.__setitem__(new["metadata"]["name"], client.asked.copy()))
    async with started(informer):
        await informer.wait_for_cache_sync()
    assert list(asked) == [f"o{page}-{index:02}" for page in range(4) for index in range(60)]
    assert [asked[f"o{page}-59"] for page in range(4)] == [[0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert asked["o1-00"] in ([0, 1], [0, 1, 2])


async def test_others_get_a_turn_while_a_page_is_taken_in(obj: Callable[..., Raw]) -> None:
    client: Any = Paged(1, obj)
    informer = Informer(client, WORKFLOW)
    seen = set()
    async with started(informer):
        while not informer.has_synced:
            seen.add(len(informer))
            await turns()
    assert any(0 < count < 60 for count in seen)


async def test_page_asked_for_ahead_is_dropped_with_a_list_that_can_not_be_read(obj, caplog) -> None:
    client: Any = Paged(3, obj, broken=0)
    informer = Informer(client, WORKFLOW, backoff=lambda: Backoff(5.0, 5.0))
    async with started(informer):
        await until(lambda: caplog.records)
        assert len(asyncio.all_tasks()) == 2, "nothing is asked for behind our back"
    assert client.asked == [0, 1]
    assert ["not a List" in record.getMessage() for record in caplog.records] == [True]


async def test_list_starts_over_when_its_continue_token_expires(api, client, obj, caplog) -> None:
    first = listed(5, obj("a", 3), obj("b", 4))
    first[1]["metadata"]["continue"] = "there"
    api.lists = [first, (410, {"message": "too old"}), listed(9, obj("b", 4), obj("c", 8))]
    async with running(client) as (informer, ear):
        assert await ear.until(4) == ["a ->3", "b ->4", "c ->8", "a gone"]
        await informer.wait_for_cache_sync()
        assert [o["metadata"]["name"] for o in informer.list()] == ["b", "c"]
    assert not caplog.records, "nothing is wrong"


@pytest.mark.parametrize("page", [{"items": [5]}, {"items": [{}]}, {"items": None}, {"items": [{"metadata": 5}]}])
async def test_a_list_that_can_not_be_read_is_asked_for_again(api, client, obj, page) -> None:
    api.lists = [(200, {"metadata": {"resourceVersion": "4"}} | page), listed(5, obj("a", 3))]
    async with running(client) as (_, ear):
        assert await ear.until(1) == ["a ->3"]


async def test_objects_are_stripped_of_managed_fields_and_last_applied(api, client, obj) -> None:
    def full(name: str, version: int, **annotations: str) -> Raw:
        made = obj(name, version)
        last = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
        made["metadata"] |= {"managedFields": [{"manager": "x"}], "annotations": last | annotations}
        return made

    api.lists = [listed(5, full("a", 3))]
    api.script(event("ADDED", full("b", 6, mine="1")), event("DELETED", full("b", 7, mine="1")))
    async with running(client) as (informer, ear):
        deleted: list[Raw] = []
        informer.add_event_handler(on_delete=deleted.append)
        await ear.until(3)
        (found,) = informer.list()
        assert found["metadata"].keys() == {"name", "namespace", "uid", "resourceVersion"}
        assert deleted[0]["metadata"]["annotations"] == {"mine": "1"}
        assert "managedFields" not in deleted[0]["metadata"]


@pytest.mark.parametrize("shared", [True, False])
async def test_any_of_many_objects_is_given_as_it_is_now(api, client, obj, monkeypatch, shared) -> None:
    """More than are kept unpacked, and each with what the others don't have."""
    monkeypatch.setattr("tink.kube.cache.store._RECENT_SHARED", 100)
    monkeypatch.setattr("tink.kube.cache.store._RECENT", 150)
    many = [obj(f"o{i}", i + 1, spec={"n": i, "text": "é" * i}) for i in range(600)]
    api.lists = [listed(1000, *many)]
    api.script(
        event("MODIFIED", obj("o0", 2000, spec={})),
        event("DELETED", obj("o599", 2001)),
        event("MODIFIED", obj("o300", 2002, spec={"n": 300, "text": "é" * 300})),
    )
    compressor = ObjectCompressor()
    async with running(client, compressor=compressor if shared else None) as (informer, ear):
        await ear.until(603)
        assert all(informer._store._objects.values()) is shared, "what is shared is packed at once"
        for i in (*range(1, 599), *range(598, 0, -1)):
            found = informer.get("d", f"o{i}")
            assert found is not None
            assert found["spec"] == {"n": i, "text": "é" * i}
            assert found is informer.get("d", f"o{i}")
        changed = informer.get("d", "o0")
        assert changed is not None
        assert len(informer._store._recent) <= (100 if shared else 150)
        assert (changed["spec"], informer.get("d", "o599"), informer.get("d", "o600")) == ({}, None, None)
        items = {item["metadata"]["name"]: item["spec"] for item in informer.list()}
        assert len(informer) == len(items) == 599
        assert items["o7"] == {"n": 7, "text": "é" * 7}
        assert items["o0"] == {}


async def test_list_replaces_restored_objects(api, client, obj) -> None:
    """Also where the API has lost its history, and given a version of that to something else since."""
    api.lists = [listed(5, obj("same", 3), obj("other", 4))]
    informer = Informer(client, WORKFLOW, backoff=lambda: Backoff(0.001, 0.01))
    for each in (obj("same", 3), obj("other", 2), obj("gone", 1)):
        restore(informer, each)
    assert not informer.has_synced
    assert len(informer) == 3
    ear = Ear(informer)
    assert len(ear.heard) == 3, "those that are here already"
    async with started(informer):
        assert (await ear.until(6))[3:] == ["same 3>3", "other 2>4", "gone gone"]
        assert len(informer) == 2


async def test_restore_does_not_overwrite_listed_objects(api, client, obj) -> None:
    """One collection was listed and another not, when the API went."""
    api.lists = [listed(9, obj("a", 8))]
    async with running(client) as (informer, ear):
        await ear.until(1)
        await informer.wait_for_cache_sync()
        restore(informer, obj("a", 3))
        restore(informer, obj("gone", 2))
        assert ear.heard == ["a ->8"]
    two = InMemoryInformer(WORKFLOW, namespaces=["one", "two"], synced=False)
    two._reflectors[0].synced.set()
    for namespace in ("one", "two", "three"):
        restored = obj("a", 3)
        restored["metadata"]["namespace"] = namespace
        restore(two, restored)
    assert [each["metadata"]["namespace"] for each in two.list()] == ["two"]
    partly = InMemoryInformer(WORKFLOW, synced=False)
    partly.feed("ADDED", obj("a", 8))  # of the first page
    ear = Ear(partly)
    restore(partly, obj("a", 3))
    restore(partly, obj("b", 2))
    assert ear.heard == ["a ->8", "b ->2"]


async def test_packed_objects_are_those_that_are_asked_for(client: KubeClient, obj: Callable[..., Raw]) -> None:
    for compressor in (None, ObjectCompressor()):
        informer = Informer(client, WORKFLOW, compressor=compressor)
        for name in ("a", "b"):
            restore(informer, obj(name, 1))
        key = NamespacedName.of(obj("b", 1))
        packed = informer.packed([key, key._replace(name="absent")])
        [one] = packed.objects.values()
        assert (ObjectCompressor(packed.dictionary).decompress(one) if isinstance(one, bytes) else one) == obj("b", 1)
        assert len(informer.packed().objects) == 2


# --- lists that come as the beginning of a watch (client-go's WatchList), and parts of a collection ---


def bookmark(version: int, *, initial_events_end: bool = True) -> Raw:
    annotations = {"k8s.io/initial-events-end": "true"} if initial_events_end else {"another": "true"}
    return event("BOOKMARK", {"metadata": {"resourceVersion": str(version), "annotations": annotations}})


async def test_watch_list_gives_initial_events_and_goes_on_as_the_watch(api, client, obj) -> None:
    api.watch_list = True
    api.script(event("ADDED", obj("a", 3)), event("ADDED", obj("b", 2)), bookmark(5), event("MODIFIED", obj("a", 6)))
    async with running(client) as (informer, ear):
        await informer.wait_for_cache_sync()
        await until(lambda: ear.heard == ["a ->3", "b ->2", "a 3>6"])
    (asked,) = api.asked
    wanted = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    assert wanted.items() <= asked.query.items()
    assert asked.query["resourceVersion"] == "", "as it is now, and not as some cache remembers it"


async def test_informer_is_synced_at_the_initial_events_end_bookmark(api, client, obj) -> None:
    api.watch_list = True
    api.script(event("ADDED", obj("a", 3)), bookmark(4, initial_events_end=False))
    async with running(client) as (informer, ear):
        await until(lambda: ear.heard == ["a ->3"])
        assert not informer.has_synced
        api.send(bookmark(5))
        await informer.wait_for_cache_sync()


async def test_a_list_that_breaks_off_is_asked_for_from_its_beginning(api, client, obj, markers) -> None:
    api.watch_list = True
    api.script(event("ADDED", obj("a", 3)), markers[1])
    api.script(event("ADDED", obj("b", 4)), bookmark(5))
    async with running(client) as (informer, ear):
        await informer.wait_for_cache_sync()
        assert ear.heard == ["a ->3", "b ->4", "a gone"], "what went meanwhile is told when all is there"
    assert [asked.query["resourceVersion"] for asked in api.asked] == ["", ""]


async def test_watch_list_after_410_reports_missed_deletions(api, client, obj) -> None:
    api.watch_list = True
    api.script(*(event("ADDED", obj(name, 1)) for name in ("same", "lost")), bookmark(5), bookmark(9))
    api.script(410)
    api.script(event("ADDED", obj("same", 1)), event("ADDED", obj("new", 7)), event("DELETED", obj("new", 8)))
    async with running(client) as (informer, ear):
        await informer.wait_for_cache_sync()
        api.watches[0].put_nowait(b'{"type":"ERROR","object":{"code":410}}\n')
        await until(lambda: ear.heard[2:] == ["new ->7", "new gone"])
        assert informer.has_synced, "the copy of before is good enough to go on with"
        api.send(bookmark(20))
        await until(lambda: ear.heard[4:] == ["lost gone"])


@pytest.mark.parametrize("refusal", [400, 405, 422])
async def test_an_api_that_can_not_is_asked_page_by_page_and_not_asked_again(api, client, obj, caplog, refusal) -> None:
    api.watch_list = True
    api.lists = [listed(5, obj("a", 3))]
    api.script(refusal)
    api.script(410)
    async with running(client) as (informer, _):
        await informer.wait_for_cache_sync()
        await until(lambda: len(api.asked) >= 4)
    asked = ["sendInitialEvents" in each.query for each in api.asked]
    assert asked == [True] + [False] * (len(asked) - 1)
    assert not caplog.records, "that is nothing to worry about"


async def test_watch_list_without_a_bookmark_falls_back_to_a_list(api, client, obj, markers) -> None:
    """As of a server that knows nothing of `sendInitialEvents`, and says nothing of that either."""
    api.watch_list = True
    api.lists = [listed(5, obj("a", 3))]
    api.script(event("ADDED", obj("a", 3)), markers[0])
    async with running(client) as (informer, ear):
        await informer.wait_for_cache_sync()
        assert ear.heard == ["a ->3"]


async def test_each_namespace_is_followed_by_itself(api: Any, client: KubeClient, obj: Callable[..., Raw]) -> None:
    """What is gone from one is nothing to the other, and it is in sync when both are."""
    api.watch_list = True
    objects = {name: obj(name, 1) for name in "ab"}
    for name, one in objects.items():
        one["metadata"]["namespace"] = name
    async with running(client, "a", "b", "a") as (informer, ear):
        await until(lambda: len(api.asked) == 2)
        order = [asked.path.split("/")[-2] for asked in api.asked]
        assert sorted(order) == ["a", "b"]
        for index, name in enumerate(order):
            assert not informer.has_synced
            api.watches[index].put_nowait(event("ADDED", objects[name]))
            api.watches[index].put_nowait(bookmark(5))
            await until(lambda name=name: f"{name} ->1" in ear.heard)  # type: ignore[misc]
        await informer.wait_for_cache_sync()
        assert (informer.covers(objects["a"]), informer.covers({"metadata": {"namespace": "c"}})) == (True, False)
        api.watches[0].put_nowait(b'{"type":"ERROR","object":{"code":410}}\n')
        await until(lambda: len(api.asked) == 3)
        api.send(bookmark(9))
        await until(lambda: ear.heard == [*(f"{name} ->1" for name in order), f"{order[0]} gone"])


@pytest.mark.parametrize("watch_list", [True, False])
async def test_a_label_selector_goes_with_lists_and_watches(api: Any, client: KubeClient, watch_list: bool) -> None:
    api.watch_list = watch_list
    api.lists = [listed(5)]
    api.script(bookmark(5))
    async with running(client, label_selector="site in (berlin,ulm)") as (informer, _):
        await informer.wait_for_cache_sync()
        await until(lambda: api.opened)
        assert not informer.covers({"metadata": {"namespace": "d"}}), "its labels may say otherwise"
    assert {asked.query["labelSelector"] for asked in api.asked} == {"site in (berlin,ulm)"}


async def test_refused_selector_is_named(api: Any, client: KubeClient) -> None:
    api.lists = [(400, {"message": "unable to parse requirement"})]
    async with running(client, label_selector="site=?") as (informer, _):
        await until(lambda: "'site=?'" in informer.denied and "unable to parse" in informer.denied)


@pytest.mark.looptime
async def test_retry_after_of_the_api_is_respected() -> None:
    api: Any = InProcessApi()
    api.fail("watch", ApiError(429, "TooManyRequests", "busy", retry_after=45.0))
    async with started(Informer(api, WORKFLOW)) as informer:
        await elapse(44.9)
        assert len(api.calls) == 1
        await elapse(0.2)
        assert informer.has_synced


@pytest.mark.looptime
async def test_replicas_that_start_together_do_not_ask_together(monkeypatch) -> None:
    monkeypatch.setattr(reflector.random, "uniform", lambda low, high: low + 0.9 * (high - low))
    api: Any = InProcessApi()
    async with started(Informer(api, WORKFLOW, start_jitter=2.0)) as informer:
        await elapse(1.79)
        assert not api.calls
        await elapse(0.02)
        assert informer.has_synced


# --- handlers that can wait ---


class Deferred:
    """An informer whose one ear can wait and looks for objects by their spec, and whose other can't."""

    def __init__(self, *, hasty: bool = True) -> None:
        self.informer = InMemoryInformer(WORKFLOW, synced=False, compressor=ObjectCompressor())
        self.ear = Ear(self.informer, can_wait=True)
        self.informer.defer(lambda obj: [str(obj["spec"])])
        self.hasty = Ear(self.informer) if hasty else None

    def changed(self, *objects: Raw) -> None:
        for obj in objects:
            self.informer.feed("MODIFIED", obj)


async def test_deferred_handler_gets_requested_objects_first_and_all_in_the_end(obj) -> None:
    one = Deferred()
    for name, spec in (("a", 1), ("b", 2), ("c", 2), ("d", 3)):
        one.changed(obj(name, 4, spec=spec))
    assert one.hasty is not None
    assert one.hasty.heard == ["a ->4", "b ->4", "c ->4", "d ->4"]
    assert (one.ear.heard, one.informer.untold) == ([], 4)
    one.informer.tell("2")
    assert one.ear.heard == ["b ->4", "c ->4"], "rivals are told of together"
    assert [key.name for key in one.informer.told()] == ["b", "c"]
    one.informer.tell("2")
    one.informer.tell_of(NamespacedName.of(obj("d", 4)))
    assert one.ear.heard[2:] == ["d ->4"]
    one.informer.listed()
    await one.informer.catch_up()
    assert one.ear.heard[3:] == ["a ->4"]
    one.changed(obj("e", 5, spec=9))
    assert one.ear.heard[4:] == ["e ->5"], "nobody waits any more"


async def test_deferred_handler_sees_only_the_last_state(obj) -> None:
    one = Deferred()
    one.changed(obj("a", 4, spec=1))
    one.changed(obj("gone", 5, spec=1))
    one.changed(obj("a", 6, spec=2))
    one.informer.feed("DELETED", obj("gone", 5))
    one.informer.tell("2")
    one.informer.tell("1")
    assert one.ear.heard == ["a ->6"]
    one.changed(obj("a", 7, spec=3))
    one.informer.feed("DELETED", obj("a", 7))
    assert one.ear.heard == ["a ->6", "a 6>7", "a gone"]


async def test_request_during_a_notification_is_queued_behind_it(obj) -> None:
    """However long a chain of objects is that name each other."""
    one = Deferred(hasty=False)
    depth: list[int] = []

    def looks(new: Raw, _old: Raw | None) -> None:
        depth.append(1)
        one.informer.tell(str(new["spec"] + 1))
        assert sum(depth) == 1
        depth.pop()

    one.informer.add_event_handler(looks, can_wait=True)
    for number in range(3000):
        one.changed(obj(f"o{number}", 1, spec=number))
    one.informer.tell("0")
    assert (len(one.ear.heard), one.informer.untold) == (3000, 0)


async def test_restored_object_is_unpacked_on_request_and_notified_once(obj, monkeypatch) -> None:
    one, packer = Deferred(hasty=False), ObjectCompressor()
    for name, spec in (("a", 1), ("b", 2), ("c", 3)):
        restore(one.informer, obj(name, 4, spec=spec), packer)
    reading: list[bytes] = []
    decompress = ObjectCompressor.decompress
    monkeypatch.setattr(ObjectCompressor, "decompress", lambda *given: reading.append(given[1]) or decompress(*given))
    assert (len(one.informer), one.informer.untold, reading) == (3, 3, [])
    one.informer.tell("2")
    assert (one.ear.heard, len(reading)) == (["b ->4"], 1)
    for name, spec in (("a", 1), ("b", 2), ("c", 7)):  # what the API lists: c is another one under the same version
        one.changed(obj(name, 4, spec=spec))
    assert one.ear.heard == ["b ->4"]
    one.informer.listed()
    await one.informer.catch_up()
    assert sorted(one.ear.heard) == ["a ->4", "b ->4", "c ->4"]
    assert (one.informer.get("d", "c") or {})["spec"] == 7


async def test_restored_objects_are_notified_while_the_api_is_away(obj: Callable[..., Raw]) -> None:
    one = Deferred(hasty=False)
    restore(one.informer, obj("a", 4, spec=1))
    catching = asyncio.create_task(one.informer.catch_up())
    try:
        one.informer.failing_for = 1.0
        assert await one.ear.until(1) == ["a ->4"]
        assert not catching.done()
        one.informer.listed()
        await catching
    finally:
        catching.cancel()
