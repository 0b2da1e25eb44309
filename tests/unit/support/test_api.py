"""The API in this process: it answers as the embedded API does over HTTP, and fails as a test wants it to."""

from __future__ import annotations

import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from tests.api import serving
from tests.support.api import InProcessApi
from tests.support.informer import following
from tests.support.objects import hardware, template, workflow
from tests.support.virtual_time import elapse, turns
from tink.api.crds import generate
from tink.kube.client import ApiError, ConflictError, KubeClient, NotFoundError, UnreachableError
from tink.kube.resources import CONFIG_MAP, EVENT, HARDWARE, NAMESPACE, TEMPLATE, WORKFLOW

UUID = r"[0-9a-f]{8}-[0-9a-f-]{27}"
HAS_FINALIZER = {"metadata": {"finalizers": ["x/y"]}}


def test_every_call_of_the_client_is_there_with_its_signature() -> None:
    for name, method in inspect.getmembers(KubeClient, inspect.isfunction):
        if not name.startswith("_"):
            mine = inspect.signature(getattr(InProcessApi, name)).parameters.values()
            theirs = inspect.signature(method).parameters.values()
            assert [(p.name, p.kind, p.default) for p in mine] == [(p.name, p.kind, p.default) for p in theirs], name


async def _answers(client: Any) -> list[Any]:
    """Use every call, and give what it answered or raised."""
    found: list[Any] = []

    async def note(call: Any) -> Any:
        try:
            found.append(await call)
        except ApiError as error:
            found.append((type(error), error.status, error.reason, error.message))
        return found[-1]

    made = await note(client.create(HARDWARE, hardware()))
    await note(client.create(HARDWARE, hardware()))
    await note(client.create(HARDWARE, hardware("bad", auto="no")))
    await note(client.create(WORKFLOW, workflow(), "default"))
    await note(client.create(CONFIG_MAP, {"metadata": {"name": "c", "namespace": "nowhere"}}))
    await note(client.patch(WORKFLOW, "w", "default", {"status": {"state": "Running"}}, subresource="status"))
    await note(client.patch(WORKFLOW, "w", "default", {"status": {"state": "Odd"}}, subresource="status"))
    await note(client.patch(HARDWARE, "m1", "default", HAS_FINALIZER))
    await note(client.patch(HARDWARE, "m1", "default", {"metadata": {"resourceVersion": "1", "labels": {"a": "b"}}}))
    await note(client.patch(HARDWARE, "absent", "default", {}))
    await note(client.apply(TEMPLATE, "t", "default", template() | {"status": None}, manager="me"))
    await note(client.delete(HARDWARE, "m1", "default", preconditions={"uid": "another"}))
    await note(client.delete(HARDWARE, "m1", "default", preconditions={"uid": made["metadata"]["uid"]}))
    await note(client.get(HARDWARE, "m1", "default"))
    await note(client.patch(HARDWARE, "m1", "default", {"metadata": {"finalizers": None}}))
    await note(client.get(HARDWARE, "m1", "default"))
    for name in "abc":
        await client.create(CONFIG_MAP, {"metadata": {"name": name, "labels": {"is": name}}}, "default")
    page = await note(client.list(CONFIG_MAP, "default", limit=2))
    await note(client.list(CONFIG_MAP, "default", limit=2, after=page["metadata"]["continue"]))
    await note(client.list(CONFIG_MAP, label_selector="is in (a, c)"))
    await note(client.list(CONFIG_MAP, label_selector="is in"))
    await note(client.delete(CONFIG_MAP, "a", "default"))
    return [_comparable(answer) for answer in found]


def _comparable(answer: Any) -> Any:
    """An answer without what differs from one API to the next."""
    if isinstance(answer, dict):
        varies = ("uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "time", "continue")
        return {key: _comparable(value) for key, value in answer.items() if key not in varies}
    if isinstance(answer, list):
        return [_comparable(each) for each in answer]
    return (*answer[:3], re.sub(UUID, "UID", answer[3])) if isinstance(answer, tuple) else answer


async def test_answers_and_errors_are_those_of_the_embedded_api_over_http(tmp_path: Path) -> None:
    async with serving(tmp_path, generate()) as (_, client):
        expected = await _answers(client)
    assert await _answers(InProcessApi()) == expected
    assert {each[0] for each in expected if isinstance(each, tuple)} == {ApiError, NotFoundError, ConflictError}


async def test_object_of_the_test_is_stored_as_it_is() -> None:
    api = InProcessApi(workflow("w", "Running", namespace="site", deleted=True))
    got = await api.get(WORKFLOW, "w", "site")
    assert got == api.read(WORKFLOW, "w", "site") == api.objects(WORKFLOW)[0]
    assert got["status"] == {"state": "Running"}
    assert got["metadata"]["uid"] == "uid-w"
    assert "deletionTimestamp" in got["metadata"]
    assert (await api.get(NAMESPACE, "site", None))["status"] == {"phase": "Active"}
    changed = api.change(WORKFLOW, "w", "site", status={"message": "m"})
    assert changed["status"] == {"state": "Running", "message": "m"}
    assert int(changed["metadata"]["resourceVersion"]) > int(got["metadata"]["resourceVersion"])
    with pytest.raises(ConflictError):
        await api.patch(WORKFLOW, "w", "site", {"metadata": {"resourceVersion": got["metadata"]["resourceVersion"]}})
    await api.patch(WORKFLOW, "w", "site", {"metadata": {"finalizers": []}})
    assert api.read(WORKFLOW, "w", "site") is None


def test_two_apis_share_nothing() -> None:
    first = InProcessApi(hardware())
    assert InProcessApi().objects(HARDWARE) == []
    first.remove(HARDWARE, "m1")
    assert first.objects(HARDWARE) == []


async def test_faults_are_raised_one_a_call_before_or_after_the_call_is_carried_out() -> None:
    api = InProcessApi(hardware())
    away = UnreachableError("away")
    api.fail("patch", away, of=HARDWARE)
    api.fail("patch", away, of=HARDWARE, done=True)
    for labels in ({"a": "1"}, {"b": "2"}):
        with pytest.raises(UnreachableError):
            await api.patch(HARDWARE, "m1", "default", {"metadata": {"labels": labels}})
    patched = await api.patch(HARDWARE, "m1", "default", {"metadata": {"labels": {"c": "3"}}})
    assert patched["metadata"]["labels"] == {"b": "2", "c": "3"}
    assert api.count("patch", of=HARDWARE) == 3
    assert api.count("patch", of=WORKFLOW) == api.count("get") == 0
    assert api.bodies("patch")[-1] == {"metadata": {"labels": {"c": "3"}}}


async def test_held_call_is_carried_out_and_returns_when_the_gate_opens() -> None:
    api = InProcessApi()
    gate = api.hold("create", of=HARDWARE)
    creating = asyncio.create_task(api.create(HARDWARE, hardware()))
    await gate.reached.wait()
    assert api.read(HARDWARE, "m1") is not None
    assert not creating.done()
    gate.open()
    await creating


async def test_another_writer_comes_before_or_after_a_call() -> None:
    api = InProcessApi(hardware())
    seen: list[Any] = []

    async def look() -> None:
        seen.append((api.read(HARDWARE, "m1") or {})["metadata"].get("labels"))

    api.around("patch", before=look, after=look)
    for labels in ({"a": "1"}, {"b": "2"}):
        await api.patch(HARDWARE, "m1", "default", {"metadata": {"labels": labels}})
    assert seen == [None, {"a": "1"}]
    api.fail("get", UnreachableError("away"))
    api.recover()
    await api.get(HARDWARE, "m1", "default")


@pytest.mark.looptime
async def test_real_informer_follows_the_api_in_virtual_time() -> None:
    api = InProcessApi(hardware())
    async with following(api, HARDWARE) as informer:
        assert [obj["metadata"]["name"] for obj in informer.list()] == ["m1"]
        await api.create(HARDWARE, hardware("m2"))
        api.remove(HARDWARE, "m1")
        await turns(10)
        assert [obj["metadata"]["name"] for obj in informer.list()] == ["m2"]
        await elapse(1000)
        assert api.count("watch") > 1, "a watch ends after some minutes, and the next one begins"
        await api.create(HARDWARE, hardware("m3"))
        await turns(10)
        assert len(informer) == 2


@pytest.mark.looptime
async def test_controllers_clear_a_deleted_namespace() -> None:
    api = InProcessApi(hardware(namespace="site"))
    api.start_controllers()
    await api.delete(NAMESPACE, "site", None)
    await elapse(1)
    assert api.objects(HARDWARE) == []
    assert api.read(NAMESPACE, "site", "") is None
    await api.close()


async def test_event_is_created_in_a_namespace_that_an_object_of_the_test_is_in() -> None:
    api = InProcessApi(hardware(namespace="site"))
    event = {"metadata": {"name": "e", "namespace": "site"}, "involvedObject": {"namespace": "site"}}
    await api.create(EVENT, {"apiVersion": "v1", "kind": "Event", **event})
    assert api.objects(EVENT)[0]["metadata"]["namespace"] == "site"
