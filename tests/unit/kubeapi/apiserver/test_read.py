"""Lists and watches over HTTP, which informers rely on. More is in conformance/cases/lists.yaml."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.api import serving
from tests.unit.kubeapi.apiserver.conftest import Client
from tink.kube.client import ApiError, UnreachableError
from tink.kube.resources import CRD
from tink.kubeapi.apiserver import read
from tink.kubeapi.apiserver.errors import StatusError
from tink.kubeapi.apiserver.read import Lists
from tink.kubeapi.apiserver.store.object_store import ObjectStore
from tink.kubeapi.apiserver.store.objects import Event, Key

HARDWARE = "/apis/tinkerbell.org/v1alpha2/namespaces/default/hardware"
ALL = "/apis/tinkerbell.org/v1alpha2/hardware"


async def make(api: Client, *names: str, **labels: str) -> None:
    for name in names:
        answer = await api("POST", HARDWARE, {"metadata": {"name": name, "labels": labels}, "spec": {}})
        assert answer.status == 201


async def version(api: Client) -> str:
    return str((await api("GET", HARDWARE)).json["metadata"]["resourceVersion"])


def names(answer: Any) -> list[str]:
    return [item["metadata"]["name"] for item in answer.json["items"]]


async def test_old_continue_token_is_gone_and_a_forged_one_is_bad(start: Any, crds: Any) -> None:
    _, api = await start(history=20)
    await crds(api)
    await make(api, *"abc")
    token = (await api("GET", HARDWARE, limit="1")).json["metadata"]["continue"]
    for number in range(40):
        await api.merge(f"{HARDWARE}/a", {"metadata": {"labels": {"n": str(number)}}})
    answer = await api("GET", HARDWARE, **{"limit": "1", "continue": token})
    assert (answer.status, answer.json["reason"]) == (410, "Expired")
    assert (await api("GET", HARDWARE, **{"continue": "nonsense"})).status == 400
    async with api.watch(HARDWARE, resourceVersion="1") as watch:
        event = await watch.next()
        assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
        assert await watch.next() is None


async def test_open_watches_get_every_change_of_their_resource(api: Client) -> None:
    await make(api, "a", rack="1")
    other, since = HARDWARE.replace("default", "kube-system"), await version(api)
    async with (
        api.watch(ALL) as everything,
        api.watch(other, resourceVersion=since) as theirs,
        api.watch(HARDWARE, resourceVersion=since, fieldSelector="metadata.name=b") as named,
        api.watch(HARDWARE, resourceVersion=since, labelSelector="rack=2") as selected,
    ):
        await make(api, "c", "b")
        await api("POST", other, {"metadata": {"name": "z"}, "spec": {}})
        await api.merge(f"{HARDWARE}/a", {"metadata": {"labels": {"rack": "2"}}})
        await api.merge(f"{HARDWARE}/a", {"metadata": {"labels": {"more": "x"}}})
        changed = await api.merge(f"{HARDWARE}/a", {"metadata": {"labels": {"rack": "3"}}})
        await api("DELETE", f"{HARDWARE}/a")
        await api("DELETE", f"{HARDWARE}/b")
        await api("DELETE", f"{other}/z")
        assert await everything.kinds(8) == [
            *(("ADDED", name) for name in "acbz"),
            *[("MODIFIED", "a")] * 3,
            ("DELETED", "a"),
        ]
        assert await theirs.kinds(2) == [("ADDED", "z"), ("DELETED", "z")]
        assert await named.kinds(2) == [("ADDED", "b"), ("DELETED", "b")]
        assert await selected.kinds(2) == [("ADDED", "a"), ("MODIFIED", "a")]
        left = await selected.next()  # the object leaves the selection
        assert (left["type"], left["object"]["metadata"]["labels"]["rack"]) == ("DELETED", "2")
        assert left["object"]["metadata"]["resourceVersion"] == changed.json["metadata"]["resourceVersion"]


async def test_watch_ends_after_its_time_with_a_bookmark(api: Client) -> None:
    await make(api, "a")
    since = await version(api)
    await api("POST", "/api/v1/namespaces/default/configmaps", {"metadata": {"name": "elsewhere"}})
    async with api.watch(HARDWARE, resourceVersion=since, allowWatchBookmarks="true", timeoutSeconds="1") as watch:
        event = await watch.next()
        assert (event["type"], event["object"]["kind"]) == ("BOOKMARK", "Hardware")
        assert int(event["object"]["metadata"]["resourceVersion"]) > int(since)
        assert await watch.next() is None


async def test_slow_watch_is_ended_instead_of_filling_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "MAX_BACKLOG", 3)
    made = read.Broadcaster()
    subscription = made.subscribe("g/r", None)
    for number in range(1, 6):
        made.publish(Event(number, Key("g/r", "", "x"), "MODIFIED", b"{}", None))
    assert subscription.ended
    assert await subscription.next(1) == []


MAPS, SECRETS = (f"/api/v1/namespaces/default/{plural}" for plural in ("configmaps", "secrets"))


async def test_pages_say_how_many_objects_follow_as_of_their_version_and_count_once(bare, monkeypatch) -> None:
    """With 100,000 objects a count takes longer than the page."""
    counted = []
    count = ObjectStore.count

    async def counting(self: ObjectStore, *where: Any) -> int:
        counted.append(where)
        return await count(self, *where)

    monkeypatch.setattr(ObjectStore, "count", counting)

    for label in ("1", "2", "x"):
        await bare("POST", SECRETS, {"metadata": {"name": f"s{label}", "labels": {"rack": label}}})
    for selector, found in (("rack>1", ["s2"]), ("rack<2", ["s1"])):  # a label that is no number is neither
        assert names(await bare("GET", SECRETS, labelSelector=selector)) == found

    async def page(limit: int, after: str = "", **query: str) -> dict[str, Any]:
        answer = await bare("GET", MAPS, limit=str(limit), **({"continue": after} if after else {}), **query)
        return {"names": names(answer), **answer.json["metadata"]}

    for index in range(7):
        await bare("POST", MAPS, {"metadata": {"name": f"m{index}", "labels": {"n": str(index % 2)}}})
    first = await page(2)
    await bare("DELETE", f"{MAPS}/m5")
    for name in ("m8", "m9"):
        await bare("POST", MAPS, {"metadata": {"name": name}})
    pages = [first]
    while "continue" in pages[-1]:
        pages.append(await page(2, pages[-1]["continue"]))
    assert [each.get("remainingItemCount") for each in pages] == [5, 3, 1, None]
    assert [name for each in pages for name in each["names"]] == [f"m{index}" for index in range(7)]
    assert len(counted) == 1
    # What a page with a selector leaves over is not known, and the page after it has to count again.
    chosen = await page(1, first["continue"], labelSelector="n=0")
    assert (chosen["names"], "remainingItemCount" in chosen) == (["m2"], False)
    assert (await page(1, chosen["continue"]))["remainingItemCount"] == 3
    for lie in (-1, 0, 1, "x", None, 2.5, []):  # of a client
        token = json.loads(base64.urlsafe_b64decode(first["continue"])) | {"remaining": lie}
        false = await page(1, base64.urlsafe_b64encode(json.dumps(token).encode()).decode())
        assert (false["names"], false["remainingItemCount"]) == (["m2"], 4)


@pytest.mark.parametrize(("given", "error"), [(0, ApiError), (1, UnreachableError), (3, UnreachableError)])
async def test_client_never_takes_a_part_of_a_list_for_the_whole(given, error, tmp_path, monkeypatch) -> None:
    async def parts(self: Lists, chosen: Any, page: Any) -> AsyncIterator[list[bytes]]:
        for _ in range(given):
            yield [b'{"metadata":{"name":"x"}}']
        raise StatusError(500, "", "conversion webhook failed")

    monkeypatch.setattr(Lists, "_parts", parts)
    async with serving(tmp_path) as (_, client):
        with pytest.raises(ApiError) as caught:
            await client.list(CRD)
        assert type(caught.value) is error
        if error is ApiError:
            assert caught.value.message == "conversion webhook failed"
