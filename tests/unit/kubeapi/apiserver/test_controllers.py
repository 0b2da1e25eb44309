"""Garbage collection, and the deletion of namespaces and definitions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.virtual_time import turns
from tests.unit.kubeapi.apiserver.conftest import CRDS, Client
from tests.waiting import until
from tink.kubeapi.apiserver import controllers
from tink.kubeapi.apiserver.controllers import WORKERS, GarbageCollector, Lifecycle
from tink.kubeapi.apiserver.errors import StatusError
from tink.kubeapi.apiserver.store.objects import Event, Key, StorageError, StoredObject

MAPS = "/api/v1/namespaces/default/configmaps"
SECRETS = "/api/v1/namespaces/default/secrets"
NAMESPACES = "/api/v1/namespaces"


async def _make(client: Client, name: str, *owners: dict[str, Any], path: str = MAPS, **more: Any) -> dict[str, Any]:
    """Create an object and return an owner reference to it."""
    body = {"metadata": {"name": name, "ownerReferences": list(owners), **more}}
    answer = await client("POST", path, body)
    assert answer.status == 201, answer.json
    kind = {MAPS: "ConfigMap", SECRETS: "Secret", NAMESPACES: "Namespace"}[path]
    return {"apiVersion": "v1", "kind": kind, "name": name, "uid": answer.json["metadata"]["uid"]}


def _blocking(owner: dict[str, Any]) -> dict[str, Any]:
    return {**owner, "blockOwnerDeletion": True}


async def _until_gone(client: Client, *names: str, path: str = MAPS) -> None:
    async def all_gone() -> bool:
        return all([(await client("GET", f"{path}/{name}")).status == 404 for name in names])

    await until(all_gone)


async def _fields(client: Client, name: str, path: str = MAPS) -> dict[str, Any]:
    answer = await client("GET", f"{path}/{name}")
    assert answer.status == 200
    fields: dict[str, Any] = answer.json["metadata"]
    return fields


@asynccontextmanager
async def _held(client: Client, name: str) -> AsyncIterator[None]:
    """Keep an object with a finalizer, and remove that at the end."""
    await client.merge(f"{MAPS}/{name}", {"metadata": {"finalizers": ["example.org/hold"]}})
    yield
    finalizers = [item for item in (await _fields(client, name)).get("finalizers", []) if item != "example.org/hold"]
    await client.merge(f"{MAPS}/{name}", {"metadata": {"finalizers": finalizers or None}})


FOREGROUND = {"propagationPolicy": "Foreground"}


@pytest.mark.parametrize(
    ("owners", "options", "left"),
    [
        pytest.param({"b": ["a"], "c": ["b"], "d": []}, {}, {"d": []}, id="dependents go, and theirs"),
        pytest.param({"b": [], "c": ["a", "b"]}, {}, {"b": [], "c": ["b"]}, id="it stays with another owner"),
        pytest.param(
            {"b": [], "c": ["!a", "b"]},
            {"propagationPolicy": "Foreground"},
            {"b": [], "c": ["b"]},
            id="in the foreground",
        ),
        pytest.param({"b": ["a"]}, {"propagationPolicy": "Orphan"}, {"b": []}, id="orphan"),
        pytest.param({"b": ["a"]}, {"orphanDependents": True}, {"b": []}, id="orphanDependents"),
    ],
)
async def test_dependents_are_deleted_with_their_owner_or_lose_the_reference(bare, owners, options, left) -> None:
    made = {"a": await _make(bare, "a")}
    for name, whose in owners.items():
        references = [{**made[each[-1]], **({"blockOwnerDeletion": True} if each[0] == "!" else {})} for each in whose]
        made[name] = await _make(bare, name, *references)
    answer = await bare("DELETE", f"{MAPS}/a", {"kind": "DeleteOptions", "apiVersion": "v1", **options})
    if options:
        assert answer.json["metadata"]["finalizers"] == ["foregroundDeletion" if options == FOREGROUND else "orphan"]
    else:
        assert answer.json["status"] == "Success"

    async def found() -> bool:
        items = (await bare("GET", MAPS)).json["items"]
        named = {each["metadata"]["name"]: each["metadata"].get("ownerReferences", []) for each in items}
        return {name: [owner["name"] for owner in each] for name, each in named.items()} == left

    await until(found)


async def test_unexpected_failure_about_one_object_does_not_stop_the_others(start, monkeypatch, caplog) -> None:
    real = GarbageCollector._reconcile
    failures = 0

    async def reconcile(self: GarbageCollector, key: Key) -> None:
        nonlocal failures
        if key.name == "odd" and failures < WORKERS + 1:
            failures += 1
            raise RuntimeError("unforeseen")
        await real(self, key)

    monkeypatch.setattr(GarbageCollector, "_reconcile", reconcile)
    monkeypatch.setattr(controllers, "RETRY_LONGEST_SECONDS", 0.05)
    monkeypatch.setattr(controllers, "RETRY_FIRST_SECONDS", 0.01)
    _, bare = await start()
    owner = await _make(bare, "owner")
    await _make(bare, "odd", owner)
    await _make(bare, "child", owner)
    await bare("DELETE", f"{MAPS}/owner")
    await _until_gone(bare, "child")
    await _until_gone(bare, "odd")
    assert "garbage collection of /configmaps default/odd: trying again in 0 s" in caplog.text
    assert "RuntimeError: unforeseen" in caplog.text


@pytest.mark.parametrize("error", [StorageError("no disk"), RuntimeError("unforeseen")])
async def test_failed_scan_at_the_start_is_repeated_later(start, monkeypatch, error) -> None:
    real, asked = GarbageCollector._queue_everything, 0

    async def queue_everything(self: GarbageCollector) -> None:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise error
        await real(self)

    monkeypatch.setattr(controllers, "RETRY_LONGEST_SECONDS", 0.01)
    monkeypatch.setattr(GarbageCollector, "_queue_everything", queue_everything)
    _, client = await start()
    await until(lambda: asked == 3)
    owner = await _make(client, "owner")
    await _make(client, "child", owner)
    await client("DELETE", f"{MAPS}/owner")
    await _until_gone(client, "child")


async def test_foreground_owner_waits_for_the_dependents_of_its_dependents(bare: Client) -> None:
    owner = await _make(bare, "owner")
    child = await _make(bare, "child", _blocking(owner))
    await _make(bare, "grandchild", _blocking(child))
    async with _held(bare, "grandchild"):
        await bare("DELETE", f"{MAPS}/owner", propagationPolicy="Foreground")

        async def reached() -> bool:
            return "deletionTimestamp" in await _fields(bare, "grandchild")

        await until(reached)
        assert (await _fields(bare, "child"))["finalizers"] == ["foregroundDeletion"]
        assert (await bare("GET", f"{MAPS}/owner")).status == 200
    await _until_gone(bare, "owner", "child", "grandchild")


async def test_later_delete_may_choose_another_policy(bare: Client) -> None:
    owner = await _make(bare, "owner")
    await _make(bare, "child", _blocking(owner))
    async with _held(bare, "child"):
        await bare("DELETE", f"{MAPS}/owner", propagationPolicy="Foreground")
        assert (await bare("DELETE", f"{MAPS}/owner", propagationPolicy="Background")).status == 200
        await _until_gone(bare, "owner")


async def test_foreground_owner_waits_only_for_dependents_that_block_it(bare: Client) -> None:
    owner = await _make(bare, "owner")
    await _make(bare, "blocks", _blocking(owner))
    await _make(bare, "does-not-block", owner)
    async with _held(bare, "does-not-block"):
        async with _held(bare, "blocks"):
            await bare("DELETE", f"{MAPS}/owner", propagationPolicy="Foreground")

            async def marked() -> bool:
                return "deletionTimestamp" in await _fields(bare, "blocks")

            await until(marked)
            assert (await bare("GET", f"{MAPS}/owner")).status == 200
            async with _held(bare, "owner"):
                pass
        await _until_gone(bare, "owner", "blocks")
    await _until_gone(bare, "does-not-block")


async def test_owners_that_own_each_other_are_collected(bare: Client) -> None:
    first = await _make(bare, "first")
    second = await _make(bare, "second", _blocking(first))
    await bare.merge(f"{MAPS}/first", {"metadata": {"ownerReferences": [_blocking(second)]}})
    await bare("DELETE", f"{MAPS}/first", propagationPolicy="Foreground")
    await _until_gone(bare, "first", "second")


async def test_object_without_its_owner_is_collected_unless_the_owners_kind_is_unknown(bare: Client) -> None:
    """A definition may be missing for a moment only. A recreated owner has another uid."""
    await bare("POST", NAMESPACES, {"metadata": {"name": "other"}})
    elsewhere = await bare("POST", "/api/v1/namespaces/other/configmaps", {"metadata": {"name": "owner"}})
    owner = await _make(bare, "owner")
    await _make(bare, "kept", {"apiVersion": "example.org/v1", "kind": "Widget", "name": "w", "uid": "1"})
    uids = {"never-was": "0", "recreated": "another", "elsewhere": elsewhere.json["metadata"]["uid"]}
    for name, uid in uids.items():
        await _make(bare, name, {**owner, "uid": uid})
    await _until_gone(bare, *uids)
    assert (await bare("GET", f"{MAPS}/kept")).status == 200


async def _invalid_references(client: Client) -> list[dict[str, Any]]:
    answer = await client("GET", "/api/v1/events", fieldSelector="reason=OwnerRefInvalidNamespace")
    items: list[dict[str, Any]] = answer.json["items"]
    return items


async def test_owner_in_another_namespace_does_not_count_and_one_event_reports_it(bare: Client) -> None:
    await bare("POST", NAMESPACES, {"metadata": {"name": "other"}})
    there = await bare("POST", "/api/v1/namespaces/other/configmaps", {"metadata": {"name": "far"}})
    near = await _make(bare, "near")
    far = {**near, "name": "far", "uid": there.json["metadata"]["uid"]}
    await _make(bare, "lost", far)
    await _make(bare, "kept", near, far)
    await _make(bare, "global", far, {**near, "uid": "gone"}, path=NAMESPACES)
    await _make(bare, "stale", {**near, "name": "far", "uid": "gone"})
    await _until_gone(bare, "lost", "stale")

    async def reported() -> bool:
        return len(await _invalid_references(bare)) == 3

    await until(reported)
    events = {event["involvedObject"]["name"]: event for event in await _invalid_references(bare)}
    lost, owner = events["lost"], f"v1/ConfigMap, namespace: default, name: far, uid: {far['uid']}"
    assert lost["message"] == f'ownerRef [{owner}] does not exist in namespace "default"'
    assert (lost["type"], lost["source"], lost["metadata"]["namespace"]) == (
        "Warning",
        {"component": "garbage-collector-controller"},
        "default",
    )
    assert events["global"]["metadata"]["namespace"] == "default"
    assert (await _fields(bare, "kept"))["ownerReferences"] == [near]
    await bare.merge(f"{NAMESPACES}/global", {"metadata": {"labels": {"a": "b"}}})
    await _make(bare, "after", {**far, "name": "other"})
    await _until_gone(bare, "after")
    assert len((await _fields(bare, "global", NAMESPACES))["ownerReferences"]) == 2, "Kubernetes leaves it alone"
    assert len(await _invalid_references(bare)) == 3


async def test_objects_of_a_cluster_scoped_owner_are_deleted_with_it(bare: Client) -> None:
    await bare("POST", NAMESPACES, {"metadata": {"name": "other"}})
    owner = (await bare("GET", f"{NAMESPACES}/other")).json["metadata"]["uid"]
    await _make(bare, "child", {"apiVersion": "v1", "kind": "Namespace", "name": "other", "uid": owner})
    await bare("DELETE", f"{NAMESPACES}/other")
    await _until_gone(bare, "child")


async def test_collection_continues_after_a_restart(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tink.kubeapi.apiserver.controllers.GarbageCollector.on_event", lambda *_: None)
    server, client = await start()
    owner = await _make(client, "owner")
    await _make(client, "child", owner)
    orphaning = await _make(client, "orphaning")
    await _make(client, "orphan", orphaning)
    await client("DELETE", f"{MAPS}/orphaning", propagationPolicy="Orphan")
    await _make(client, "childless")
    await client("DELETE", f"{MAPS}/childless", propagationPolicy="Foreground")
    await client("DELETE", f"{MAPS}/owner")
    await client.close()
    await server.stop()
    monkeypatch.undo()
    _, again = await start()
    await _until_gone(again, "child", "orphaning", "childless")
    assert "ownerReferences" not in await _fields(again, "orphan")


# --- namespaces ---


async def test_conditions_of_a_namespace_name_what_it_waits_for(bare: Client) -> None:
    await bare("POST", NAMESPACES, {"metadata": {"name": "x"}})
    held = {"metadata": {"name": "held", "finalizers": ["example.org/hold"]}}
    await bare("POST", f"{NAMESPACES}/x/configmaps", held)
    await bare("DELETE", f"{NAMESPACES}/x")

    async def is_reported() -> bool:
        status = (await bare("GET", f"{NAMESPACES}/x")).json["status"]
        reported = {item["type"]: (item["status"], item["message"]) for item in status.get("conditions", [])}
        content = ("True", "Some resources are remaining: configmaps. has 1 resource instances")
        kept = "Some content in the namespace has finalizers remaining: example.org/hold in 1 resource instances"
        return (
            reported.get("NamespaceContentRemaining") == content and reported["NamespaceFinalizersRemaining"][1] == kept
        )

    await until(is_reported)
    await bare.merge(f"{NAMESPACES}/x/configmaps/held", {"metadata": {"finalizers": None}})
    await _until_gone(bare, "x", path=NAMESPACES)


async def test_stuck_namespace_can_be_forced_through_finalize(bare: Client) -> None:
    """The operators' way: kubectl replace --raw /api/v1/namespaces/x/finalize."""
    await bare("POST", NAMESPACES, {"metadata": {"name": "x"}})
    await bare("POST", f"{NAMESPACES}/x/configmaps", {"metadata": {"name": "held", "finalizers": ["example.org/hold"]}})
    await bare("DELETE", f"{NAMESPACES}/x")

    async def forced() -> bool:
        namespace = (await bare("GET", f"{NAMESPACES}/x")).json
        return (await bare("PUT", f"{NAMESPACES}/x/finalize", {**namespace, "spec": {}})).status == 200

    await until(forced)
    await _until_gone(bare, "x", path=NAMESPACES)


# --- definitions ---


def _definition(plural: str, kind: str) -> dict[str, Any]:
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
    names = {"plural": plural, "kind": kind, "singular": kind.lower()}
    spec = {"group": "example.org", "scope": "Namespaced", "names": names, "versions": [version]}
    return {"metadata": {"name": f"{plural}.example.org"}, "spec": spec}


async def test_definition_gets_its_names_once_the_definition_that_had_them_is_deleted(bare: Client) -> None:
    await bare("POST", CRDS, _definition("widgets", "Widget"))
    await bare("POST", CRDS, _definition("gadgets", "Widget"))
    assert (await bare("GET", "/apis/example.org/v1/namespaces/default/gadgets")).status == 404
    await bare("DELETE", f"{CRDS}/widgets.example.org")

    async def served() -> bool:
        return (await bare("GET", "/apis/example.org/v1/namespaces/default/gadgets")).status == 200

    await until(served)


@pytest.mark.parametrize("error", [StatusError(500, "InternalError", "a webhook says no"), RuntimeError("unforeseen")])
async def test_failure_about_one_namespace_does_not_stop_the_others(bare, monkeypatch, caplog, error) -> None:
    real = Lifecycle._delete_contents
    failing = True

    async def delete_contents(self: Lifecycle, stored: StoredObject) -> bool:
        if stored.name == "a" and failing:
            raise error
        return await real(self, stored)

    monkeypatch.setattr(Lifecycle, "_delete_contents", delete_contents)
    for name in ("a", "b"):
        await bare("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        await bare("DELETE", f"/api/v1/namespaces/{name}")

    async def is_gone(name: str) -> bool:
        return (await bare("GET", f"/api/v1/namespaces/{name}")).status == 404

    await until(lambda: is_gone("b"))
    assert not await is_gone("a")
    assert any(line.startswith("namespace a: ") and "trying again in 60 s" in line for line in caplog.messages)
    failing = False
    await bare("POST", "/api/v1/namespaces", {"metadata": {"name": "c"}})  # wakes it before the minute has gone
    await until(lambda: is_gone("a"))


async def test_object_deleted_during_a_round_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a namespace whose last object is deleted during the round would stay for a minute."""
    nothing: Any = None
    lifecycle = Lifecycle(nothing, nothing, nothing, lambda: datetime.now(UTC))
    rounds = 0
    third = asyncio.Event()

    async def one_round() -> bool:
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            lifecycle.on_event(Event(3, Key("/configmaps", "x", "held"), "DELETED", b"{}", b"{}"))
            return True
        if rounds == 3:
            third.set()
        return False

    monkeypatch.setattr(lifecycle, "_round", one_round)
    task = asyncio.create_task(lifecycle.run())
    await turns()
    lifecycle.on_event(Event(2, Key("/namespaces", "", "x"), "MODIFIED", b"{}", b"{}"))
    try:
        await third.wait()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
