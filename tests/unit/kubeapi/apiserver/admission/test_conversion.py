"""Conversion without a server: texts that pass unchanged, completed objects, and the number of webhook calls."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from tink.kubeapi.apiserver import conversion
from tink.kubeapi.apiserver.conversion import Conversion
from tink.kubeapi.apiserver.errors import StatusError
from tink.kubeapi.apiserver.resources.registry import Resource
from tink.kubeapi.apiserver.webhooks import WebhookCallError
from tink.kubeapi.schema.shapes import Raw
from tink.kubeapi.schema.structural import compile_schema, root_schema
from tink.kubeapi.schema.webhooks import ClientConfig

COLOR: Raw = {"type": "string", "default": "red", "pattern": "^[a-z]+$"}


def _openapi(**spec: Raw) -> Raw:
    return {"type": "object", "properties": {"spec": {"type": "object", "properties": spec}}}


TWO: Raw = {"type": "string", "default": "2"}
V1 = _openapi(size={"type": "integer"}, color=COLOR)
V2 = _openapi(length={"type": "integer"}, color={"type": "string"}, two=TWO)


@dataclass(frozen=True)
class Item:
    version: int
    body: bytes


def definition(**more: Any) -> Raw:
    versions = [{"name": name, "schema": {"openAPIV3Schema": each}} for name, each in (("v1", V1), ("v2", V2))]
    return {"metadata": {"name": "shapes.x.org"}, "spec": {"group": "x.org", "versions": versions, **more}}


def webhook(versions: list[str] | None = None) -> Raw:
    how = {"clientConfig": {"url": "https://hooks/convert"}, "conversionReviewVersions": versions or ["v1"]}
    return {"strategy": "Webhook", "webhook": how}


def resource(version: str, rule: Conversion | None, *, stored: str = "v1", since: int = 0) -> Resource:
    openapi = V1 if version == "v1" else V2
    node = compile_schema(root_schema(openapi))
    more: Raw = {"stored_version": stored, "conversion": rule, "defined_at": since}
    return Resource("x.org", version, "shapes", "Shape", openapi, node, **more)


def stored(name: str = "one", version: str = "v1", at: int = 5, **spec: Any) -> Item:
    obj = {"apiVersion": f"x.org/{version}", "kind": "Shape", "metadata": {"name": name, "uid": name}, "spec": spec}
    return Item(at, orjson.dumps(obj))


class Server:
    """A conversion webhook: size in v1 is length in v2."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.fails = False

    async def post(self, config: ClientConfig, body: bytes, timeout_s: int, limit: int = 0) -> Any:
        review = orjson.loads(body)
        asked = review["request"]
        self.batches.append(len(asked["objects"]))
        await self.gate.wait()
        if self.fails:
            raise WebhookCallError("gone")
        for obj in asked["objects"]:
            obj["apiVersion"] = asked["desiredAPIVersion"]
            old, new = ("size", "length") if obj["apiVersion"].endswith("v2") else ("length", "size")
            if old in obj["spec"]:
                obj["spec"][new] = obj["spec"].pop(old)
        response = {"uid": asked["uid"], "convertedObjects": asked["objects"], "result": {"status": "Success"}}
        return {"kind": "ConversionReview", "apiVersion": review["apiVersion"], "response": response}


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def asking(server: Server) -> Conversion | None:
    """Return a conversion by the webhook."""
    return conversion.compile_conversion(definition(conversion=webhook()), server.post)


def spec(body: bytes) -> Any:
    return orjson.loads(body)["spec"]


async def test_text_in_the_requested_version_is_passed_unchanged() -> None:
    items = [stored(size=1), stored("two", size=2)]
    for rule in (None, conversion.compile_conversion(definition())):
        bodies = await conversion.as_served(resource("v1", rule), items)
        assert all(body is item.body for body, item in zip(bodies, items, strict=True))


async def test_without_a_webhook_only_the_version_changes_and_unknown_fields_are_dropped() -> None:
    rule = conversion.compile_conversion(definition())
    [body] = await conversion.as_served(resource("v2", rule), [stored(size=1, color="blue")])
    assert body.startswith(b'{"apiVersion":"x.org/v2","kind":"Shape","metadata":')
    assert spec(body) == {"color": "blue"}


async def test_later_defaults_of_the_stored_version_show_on_older_objects() -> None:
    rule = conversion.compile_conversion(definition())
    items = [
        stored(at=9, size=1, gone="x"),
        stored(at=10, size=1),
        stored(at=1, size="text", color="RED"),  # which today's rules refuse
    ]
    bodies = await conversion.as_served(resource("v1", rule, since=10), items)
    assert [*map(spec, bodies)] == [{"size": 1, "color": "red"}, {"size": 1}, {"size": "text", "color": "RED"}]
    [other] = await conversion.as_served(resource("v2", rule, since=10), [stored(at=1)])
    assert spec(other) == {"color": "red"}


async def test_object_stored_in_a_version_that_is_no_longer_defined_is_an_error_not_a_crash() -> None:
    for rule in (
        conversion.compile_conversion(definition()),
        conversion.compile_conversion(definition(conversion=webhook()), Server().post),
    ):
        for since in (0, 10):
            with pytest.raises(StatusError, match=r"from an invalid group/version: x\.org/v0") as caught:
                await conversion.as_served(resource("v2", rule, since=since), [stored(version="v0", at=1)])
            assert caught.value.code == 500


@pytest.mark.parametrize(
    ("items", "batches"),
    [
        pytest.param([("length", "v2") if n % 3 == 0 else ("size", "v1") for n in range(10)], [6], id="mixed versions"),
        pytest.param([("size", "v1")] * 1100, [500, 500, 100], id="a long list"),
    ],
)
async def test_list_is_converted_in_its_order_and_in_batches(server, asking, items, batches) -> None:
    found = [stored(str(n), version, **{field: n}) for n, (field, version) in enumerate(items)]
    bodies = await conversion.as_served(resource("v2", asking), found)
    assert [spec(body)["length"] for body in bodies] == list(range(len(items)))
    assert server.batches == batches


async def test_large_objects_make_smaller_batches_and_duplicates_are_all_returned(server: Server, asking: Any) -> None:
    items = [stored(size=1, color="x" * 400_000) for _ in range(5)]
    bodies = await conversion.as_served(resource("v2", asking), items)
    assert [spec(body)["length"] for body in bodies] == [1] * 5
    assert server.batches == [2, 2, 1]


async def test_failed_conversion_is_reported_to_each_reader_and_not_cached(server: Server, asking: Any) -> None:
    served, item = resource("v2", asking), stored(size=1)
    server.fails = True
    found = await asyncio.gather(*(conversion.as_served(served, [item]) for _ in range(3)), return_exceptions=True)
    assert [str(each) for each in found] == ["conversion webhook for x.org/v1, Kind=Shape failed: gone"] * 3
    server.fails = False
    assert spec((await conversion.as_served(served, [item]))[0]) == {"length": 1}


async def test_object_is_stored_in_the_storage_version_pruned_and_completed(server: Server, asking: Any) -> None:
    obj = {"apiVersion": "x.org/v2", "kind": "Shape", "metadata": {"name": "one", "uid": "one"}, "spec": {"length": 3}}
    made = await conversion.as_stored(resource("v2", asking), obj)
    assert (made["apiVersion"], made["spec"]) == ("x.org/v1", {"size": 3, "color": "red"})
    by_name = await conversion.as_stored(resource("v2", conversion.compile_conversion(definition())), obj)
    assert (by_name["apiVersion"], by_name["spec"]) == ("x.org/v1", {"color": "red"})
    assert obj["spec"] == {"length": 3}
    same = obj | {"apiVersion": "x.org/v1"}
    assert await conversion.as_stored(resource("v1", asking), same) is same
    assert server.batches == [1]


async def test_error_in_an_answer_for_many_objects_names_the_wrong_one(server: Server) -> None:
    async def post(config: ClientConfig, body: bytes, timeout_s: int, limit: int = 0) -> Any:
        answer = await server.post(config, body, timeout_s)
        answer["response"]["convertedObjects"][1]["metadata"]["name"] = "other"
        return answer

    rule = conversion.compile_conversion(definition(conversion=webhook()), post)
    with pytest.raises(StatusError) as caught:
        await conversion.as_served(resource("v2", rule), [stored(size=1), stored("two", size=2)])
    assert str(caught.value) == (
        "conversion webhook for x.org/v1, Kind=Shape returned an invalid object at index 1: "
        "must have the same name: two != other"
    )


@pytest.mark.parametrize("field", ["properties", "items", "additionalProperties"])
async def test_property_named_default_is_no_default(field: str) -> None:
    inner = _openapi(default={"type": "string"}, type={"type": "string"})["properties"]["spec"]
    child: Raw = {
        "properties": inner,
        "items": {"type": "array", "items": inner},
        "additionalProperties": {"type": "object", "additionalProperties": inner},
    }[field]
    openapi = {"type": "object", "properties": {"spec": child}}
    versions = [{"name": name, "schema": {"openAPIV3Schema": openapi}} for name in ("v1", "v2")]
    rule = conversion.compile_conversion({"spec": {"group": "x.org", "versions": versions}})
    value: Any = {"default": "a", "type": "b"}
    value = {"properties": value, "items": [value], "additionalProperties": {"k": value}}[field]
    body = orjson.dumps({"apiVersion": "x.org/v1", "kind": "Shape", "metadata": {"name": "one"}, "spec": value})
    [out] = await conversion.as_served(resource("v2", rule, since=9), [Item(1, body)])
    assert spec(out) == value
