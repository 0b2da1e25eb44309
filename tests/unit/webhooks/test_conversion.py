"""The conversion of v1alpha1 on a cluster: reviews, and the registration in the definitions."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.api import serving
from tests.ports import free_port
from tests.support import objects
from tests.unit.versions.test_served import machine
from tests.waiting import until
from tink.api.crds import generate
from tink.api.v1alpha2 import Raw
from tink.kube.client import ApiError, ConflictError, KubeClient, NotFoundError
from tink.kube.resources import CRD, HARDWARE, NAMESPACE, OLD_HARDWARE, SECRET
from tink.offload import is_large
from tink.versions import DEFINITIONS, NEW, OLD, convert, weight
from tink.webhooks.conversion import (
    Conversion,
    ConversionHook,
    ReviewError,
    answer,
    definitions_with_v1alpha1,
    served_v1alpha1,
)
from tink.webhooks.server import Webhooks, WebhookSettings

CONVERSION = Conversion("A Hardware, Template or Workflow", (OLD, NEW), convert)
NAME = "hardware.tinkerbell.org"


def review(objects: Any, desired: str) -> bytes:
    request = {"uid": "u-1", "desiredAPIVersion": desired, "objects": objects}
    return orjson.dumps({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": request})


def answered(objects: Any, desired: str) -> Any:
    return orjson.loads(answer(review(objects, desired), CONVERSION))["response"]


# --- Reviews ----------------------------------------------------------------------------------------------------------


def test_objects_of_both_versions_are_converted_in_order() -> None:
    new = objects.hardware("hw2", "52:54:00:00:00:02", "10.0.0.6")
    for desired in (OLD, NEW):
        response = answered([machine(), new, machine()], desired)
        assert response["result"] == {"status": "Success"}
        assert response["convertedObjects"] == [convert(each, desired) for each in (machine(), new, machine())]


def test_partial_object_comes_back_with_metadata_that_the_server_accepts() -> None:
    for kind in ("Hardware", "Template", "Workflow"):
        [made] = answered([{"apiVersion": OLD, "kind": kind}], NEW)["convertedObjects"]
        assert (made["apiVersion"], isinstance(made["metadata"], dict)) == (NEW, True)


@pytest.mark.parametrize(
    ("obj", "desired", "words"),
    [
        (machine(), "tinkerbell.org/v1", f"has the versions {OLD} and {NEW}, not tinkerbell.org/v1"),
        (machine() | {"kind": "OSIE"}, NEW, "no conversion of the kind 'OSIE'"),
        (machine() | {"apiVersion": "tinkerbell.org/v1"}, NEW, "no conversion of a Hardware from 'tinkerbell.org/v1'"),
    ],
)
def test_other_kind_or_version_is_a_failure_that_names_it(obj: Raw, desired: str, words: str) -> None:
    response = answered([obj], desired)
    assert response["result"]["status"] == "Failure"
    assert words in response["result"]["message"]
    assert "convertedObjects" not in response


def test_object_that_nests_deeper_than_any_schema_is_rejected() -> None:
    for depth, is_rejected in ((100, False), (300, True), (900, True)):
        body = review([{"apiVersion": OLD, "kind": "Hardware", "metadata": {}, "status": {"v1alpha2": "DEEP"}}], NEW)
        deep = b'{"odd":' * depth + b"1" + b"}" * depth
        with pytest.raises(ReviewError, match="nested too deeply") if is_rejected else contextlib.nullcontext():
            assert b'"odd"' in answer(body.replace(b'"DEEP"', deep), CONVERSION)


def test_small_review_that_unpacks_to_much_is_large() -> None:
    text = "".join(f"k{number}: {number}\n" for number in range(20_000))
    [template] = answered([{"apiVersion": OLD, "kind": "Template", "metadata": {}, "spec": {"data": text}}], NEW)[
        "convertedObjects"
    ]
    assert is_large(weight(orjson.dumps(template)))
    assert is_large(weight(b'{"kind":"Hardware","metadata":{"annotations":{"tinkerbell.org/v1alpha1":"gzip:"}}}'))
    assert not is_large(weight(orjson.dumps(machine())))


# --- Registration -----------------------------------------------------------------------------------------------------


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[KubeClient]:
    async with serving(tmp_path, generate()) as (_, client):
        yield client


@contextlib.asynccontextmanager
async def started(client: KubeClient, hook: ConversionHook | None = None) -> AsyncIterator[Webhooks]:
    webhooks = Webhooks(client, [hook or served_v1alpha1()])
    await webhooks.start()
    try:
        yield webhooks
    finally:
        await webhooks.stop()


async def definition(client: KubeClient, name: str = NAME) -> Raw:
    return await client.get(CRD, name, None)


def versions(found: Raw) -> dict[str, tuple[bool, bool]]:
    return {each["name"]: (each["served"], each["storage"]) for each in found["spec"]["versions"]}


SERVED = {"v1alpha2": (True, True), "v1alpha1": (True, False)}


async def test_version_and_webhook_are_added_together_and_stay_after_a_stop(client: KubeClient) -> None:
    before = {name: (await definition(client, name))["metadata"]["generation"] for name in DEFINITIONS}
    async with started(client) as webhooks:
        for name in DEFINITIONS:
            found = await definition(client, name)
            assert versions(found) == SERVED
            assert found["spec"]["conversion"]["strategy"] == "Webhook"
            assert found["metadata"]["generation"] == before[name] + 1, "without the webhook, conversion loses fields"
        await webhooks.look_after()
        assert (await definition(client))["metadata"]["generation"] == before[NAME] + 1
        await client.create(OLD_HARDWARE, machine())
        assert (await client.get(HARDWARE, "hw1", "default"))["spec"]["storageDevices"] == ["/dev/sda"]
    assert versions(await definition(client)) == SERVED
    assert (await definition(client))["spec"]["conversion"]["strategy"] == "Webhook"
    with pytest.raises(ApiError, match="conversion webhook"):
        await client.get(OLD_HARDWARE, "hw1", "default")
    assert await client.get(HARDWARE, "hw1", "default")


async def test_version_that_another_program_removes_or_stops_serving_is_added_again(client: KubeClient) -> None:
    async with started(client) as webhooks:
        both = (await definition(client))["spec"]["versions"]
        for change in (both[:1], [both[0], {**both[1], "served": False}]):
            await client.patch(CRD, NAME, None, {"spec": {"versions": change}})
            await webhooks.look_after()
            assert versions(await definition(client)) == SERVED


async def test_schema_of_another_release_is_replaced_at_the_start_alone(client: KubeClient) -> None:
    async with started(client):
        pass
    expected = (await definition(client))["spec"]["versions"]
    other = [expected[0], {**expected[1], "schema": {"openAPIV3Schema": {"type": "object"}}}]
    await client.patch(CRD, NAME, None, {"spec": {"versions": other}})
    async with started(client) as webhooks:
        assert (await definition(client))["spec"]["versions"] == expected
        await client.patch(CRD, NAME, None, {"spec": {"versions": other}})
        await webhooks.look_after()
        assert (await definition(client))["spec"]["versions"] == other, "replicas of two releases would take turns"


async def test_upstream_s_definition_is_left_alone(client: KubeClient) -> None:
    mine = {each["metadata"]["name"]: each for each in generate(serve_v1alpha1=True)}[NAME]["spec"]["versions"]
    await client.patch(
        CRD, NAME, None, {"spec": {"versions": [{**mine[1], "storage": True}, {**mine[0], "storage": False}]}}
    )
    async with started(client) as webhooks:
        [note] = webhooks.notes
        assert note.startswith(f"v1alpha1 is not served: the CustomResourceDefinition {NAME} stores v1alpha1, not")
        assert "conversion" not in (await definition(client))["spec"] or (await definition(client))["spec"][
            "conversion"
        ] == {"strategy": "None"}


async def is_absent(client: KubeClient, name: str) -> bool:
    try:
        await definition(client, name)
    except NotFoundError:
        return True
    return False


async def test_absent_definition_is_reported_once_and_the_others_are_registered(
    client: KubeClient, caplog: pytest.LogCaptureFixture
) -> None:
    await client.delete(CRD, NAME, None)
    await until(lambda: is_absent(client, NAME))
    async with started(client) as webhooks:
        await webhooks.look_after()
        warnings = [each.message for each in caplog.records if "no CustomResourceDefinition" in each.message]
        assert warnings == [
            f"v1alpha1 is not served: there is no CustomResourceDefinition {NAME}; see tinkedge crds --v1alpha1"
        ]
        assert versions(await definition(client, "workflows.tinkerbell.org")) == SERVED
        await client.create(CRD, generate()[0])
        await webhooks.look_after()
        assert versions(await definition(client)) == SERVED


async def test_write_of_another_replica_is_no_failure(client: KubeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    patch = client.patch
    conflicts = 2

    async def overtaken(resource: Any, name: str, namespace: str | None, body: Raw, **more: Any) -> Raw:
        nonlocal conflicts
        if name == NAME and conflicts:
            conflicts -= 1
            await patch(resource, name, namespace, {"metadata": {"labels": {"number": str(conflicts)}}})
        return await patch(resource, name, namespace, body, **more)

    monkeypatch.setattr(client, "patch", overtaken)
    async with started(client) as webhooks:
        assert list(webhooks.notes) == []
        assert versions(await definition(client)) == SERVED
    assert conflicts == 0
    with pytest.raises(ConflictError):
        await patch(CRD, NAME, None, {"metadata": {"resourceVersion": "1"}, "spec": {}})


async def applied(client: KubeClient, definition: Raw) -> None:
    name = definition["metadata"]["name"]
    await client.apply(CRD, name, None, definition, manager="helm", force=False)


async def test_definition_prepared_for_the_webhook_is_completed_and_can_be_applied_again_and_without_v1alpha1(
    tmp_path: Path,
) -> None:
    prepared, plain = definitions_with_v1alpha1("metal", "hooks"), generate()
    async with serving(tmp_path) as (_, client):
        for each in prepared:
            await applied(client, each)
        with pytest.raises(ApiError, match="conversion webhook"):
            await client.create(OLD_HARDWARE, machine())
        webhooks = Webhooks(client, [served_v1alpha1()], WebhookSettings(service="metal/hooks", port=free_port()))
        await client.create(NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "metal"}})
        await client.create(SECRET, {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hooks-ca"}}, "metal")
        await webhooks.start()
        await webhooks.stop()
        found = (await definition(client))["spec"]
        assert found["versions"] == prepared[0]["spec"]["versions"]
        config = found["conversion"]["webhook"]["clientConfig"]
        assert config["caBundle"]
        assert config["service"] == prepared[0]["spec"]["conversion"]["webhook"]["clientConfig"]["service"]
        for each in (*prepared, *plain):
            await applied(client, each)
        assert versions(await definition(client)) == {"v1alpha2": (True, True)}
        assert (await definition(client))["spec"]["conversion"] == found["conversion"]
