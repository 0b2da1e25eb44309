"""Versions of a definition that the program which embeds the API converts itself."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from typing import Any

import pytest

from tests.support.virtual_time import turns
from tests.unit.kubeapi.apiserver.conftest import CRDS, Client, Start
from tink.kubeapi.apiserver.conversion import MAX_KEPT_BYTES, compile_conversion
from tink.kubeapi.apiserver.errors import StatusError
from tink.offload import LARGE, offload

GROUP = "/apis/example.com"
OLD, NEW = "example.com/v1alpha1", "example.com/v1"
HIDDEN = "example.com/color"
APPLY = "application/apply-patch+yaml"


class SizeConverter:
    """v1alpha1 has `length` where v1 has `size`, and can't hold `color`: an annotation does."""

    def __init__(self) -> None:
        self.converted = 0
        self.threads: list[str] = []

    def convert(self, obj: dict[str, Any], api_version: str) -> dict[str, Any]:
        self.converted += 1
        self.threads.append(threading.current_thread().name)
        spec, metadata = dict(obj.get("spec") or {}), dict(obj.get("metadata") or {})
        annotations = dict(metadata.pop("annotations", None) or {})
        if obj["apiVersion"] == api_version:
            return obj
        if api_version == NEW:
            renamed = {"size" if name == "length" else name: value for name, value in spec.items()}
            if HIDDEN in annotations:
                renamed["color"] = annotations.pop(HIDDEN)
        else:
            renamed = {"length" if name == "size" else name: value for name, value in spec.items() if name != "color"}
            if "color" in spec:
                annotations[HIDDEN] = spec["color"]
        metadata |= {"annotations": annotations} if annotations else {}
        return {**obj, "apiVersion": api_version, "metadata": metadata, "spec": renamed}

    def restore(self, new: dict[str, Any], old: dict[str, Any]) -> None:
        hidden = (old["metadata"].get("annotations") or {}).get(HIDDEN)
        annotations = new["metadata"].setdefault("annotations", {})
        if hidden is not None:
            annotations.setdefault(HIDDEN, hidden)

    def weight(self, body: bytes) -> int:
        return len(body)


def _definition() -> dict[str, Any]:
    def version(name: str, storage: bool, **properties: dict[str, str]) -> dict[str, Any]:
        spec = {"type": "object", "properties": properties}
        schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
        return {"name": name, "served": True, "storage": storage, "schema": schema}

    kind = {"type": "string"}
    number = {"type": "integer"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "boards.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "boards", "singular": "board", "kind": "Board", "listKind": "BoardList"},
            "versions": [
                version("v1alpha1", False, length=number, width=number, text=kind),
                version("v1", True, size=number, width=number, color=kind, text=kind),
            ],
        },
    }


async def _started(start: Start) -> tuple[Client, SizeConverter]:
    converter = SizeConverter()
    _, client = await start(converters={"boards.example.com": converter})
    assert (await client("POST", CRDS, _definition())).status == 201
    return client, converter


def _path(version: str, name: str = "") -> str:
    return f"{GROUP}/{version}/namespaces/default/boards" + (f"/{name}" if name else "")


def _board(api_version: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": "Board", "metadata": {"name": "b"}, "spec": spec}


async def test_object_of_either_version_is_read_in_both(start: Start) -> None:
    client, _ = await _started(start)
    made = await client("POST", _path("v1alpha1"), _board(OLD, length=3))
    assert (made.status, made.json["apiVersion"], made.json["spec"]) == (201, OLD, {"length": 3})
    assert (await client("GET", _path("v1", "b"))).json["spec"] == {"size": 3}
    changed = await client.merge(_path("v1", "b"), {"spec": {"size": 4, "color": "red"}})
    assert changed.json["spec"] == {"size": 4, "color": "red"}
    listed = await client("GET", _path("v1alpha1"))
    assert [item["spec"] for item in listed.json["items"]] == [{"length": 4}]


async def test_replacing_an_object_keeps_what_its_version_can_not_hold(start: Start) -> None:
    client, _ = await _started(start)
    await client("POST", _path("v1"), _board(NEW, size=3, color="red"))
    old = (await client("GET", _path("v1alpha1", "b"))).json
    body = _board(OLD, length=5)
    body["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
    assert (await client("PUT", _path("v1alpha1", "b"), body)).status == 200
    assert (await client("GET", _path("v1", "b"))).json["spec"] == {"size": 5, "color": "red"}


async def test_patch_that_removes_all_annotations_keeps_what_its_version_can_not_hold(start: Start) -> None:
    client, _ = await _started(start)
    await client("POST", _path("v1"), _board(NEW, size=3, color="red"))
    assert (await client.merge(_path("v1alpha1", "b"), {"metadata": {"annotations": None}})).status == 200
    assert (await client("GET", _path("v1", "b"))).json["spec"] == {"size": 3, "color": "red"}


async def test_event_is_converted_once_for_all_watches(start: Start) -> None:
    client, converter = await _started(start)
    async with client.watch(_path("v1alpha1")) as one, client.watch(_path("v1alpha1")) as other:
        await client("POST", _path("v1"), _board(NEW, size=3))
        first, second = await one.next(), await other.next()
        assert first["object"]["spec"] == second["object"]["spec"] == {"length": 3}
    assert converter.converted == 1


async def test_large_event_is_converted_once_and_in_order_for_all_watches(start: Start) -> None:
    client, converter = await _started(start)
    async with client.watch(_path("v1alpha1")) as one, client.watch(_path("v1alpha1")) as other:
        large = _board(NEW, size=3, text="x" * LARGE)
        await client("POST", _path("v1"), large)
        await client("POST", _path("v1"), {**_board(NEW, size=4), "metadata": {"name": "small"}})
        for watch in (one, other):
            assert [(await watch.next())["object"]["spec"]["length"] for _ in range(2)] == [3, 4]
    assert converter.converted == 2


async def test_large_objects_and_long_lists_are_converted_beside_the_event_loop(start: Start) -> None:
    client, converter = await _started(start)
    here = threading.current_thread().name
    for number in range(3):
        board = {**_board(NEW, size=number, text="x" * (LARGE // 3)), "metadata": {"name": f"b{number}"}}
        await client("POST", _path("v1"), board)
    assert (await client("GET", _path("v1alpha1", "b0"))).json["spec"]["length"] == 0
    assert converter.threads == [here]
    for number in range(3, 9):
        board = {**_board(NEW, size=number, text="x" * (LARGE // 3)), "metadata": {"name": f"b{number}"}}
        await client("POST", _path("v1"), board)
    converter.threads.clear()
    listed = await client("GET", _path("v1alpha1"))
    assert [item["spec"]["length"] for item in listed.json["items"]] == list(range(9))
    assert here not in converter.threads
    converter.threads.clear()
    await client("POST", _path("v1alpha1"), {**_board(OLD, length=3, text="x" * LARGE), "metadata": {"name": "large"}})
    assert converter.threads
    assert here not in converter.threads


async def test_listed_object_is_not_converted_again_while_there_is_room(start: Start) -> None:
    client, converter = await _started(start)
    await client("POST", _path("v1"), _board(NEW, size=3))
    for _ in range(2):
        assert len((await client("GET", _path("v1alpha1"))).json["items"]) == 1
    assert converter.converted == 1


async def test_conversion_of_a_very_large_object_is_not_kept(start: Start) -> None:
    """Tenants choose the size of their objects, and kept texts must not fill the memory."""
    client, converter = await _started(start)
    await client("POST", _path("v1"), _board(NEW, size=3, text="x" * (MAX_KEPT_BYTES // 8)))
    for _ in range(2):
        assert (await client("GET", _path("v1alpha1", "b"))).json["spec"]["length"] == 3
    assert converter.converted == 2


def _stored(api_version: str, name: str, text: str) -> bytes:
    board = {"apiVersion": api_version, "kind": "Board", "metadata": {"name": name}, "spec": {"text": text}}
    return json.dumps(board, separators=(",", ":")).encode()


async def test_object_that_can_not_be_converted_affects_no_watch_of_another() -> None:
    converter = SizeConverter()
    conversion = compile_conversion(_definition(), local=converter)
    good, bad = _stored(NEW, "good", "x" * LARGE), _stored("example.com/gone", "bad", "x")
    listed = asyncio.create_task(conversion.convert_texts(OLD, [good, bad], older=set(), listed=True))
    await turns()
    watched = asyncio.create_task(conversion.convert_texts(OLD, [good], older=set(), listed=False))
    with pytest.raises(StatusError, match="invalid group/version"):
        await listed
    assert json.loads((await watched)[0])["apiVersion"] == OLD
    assert converter.converted == 1


class WaitingConverter(SizeConverter):
    """A converter whose conversions wait until the test lets them go on."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.goes_on = threading.Event(), threading.Event()

    def convert(self, obj: dict[str, Any], api_version: str) -> dict[str, Any]:
        self.reached.set()
        self.goes_on.wait()
        return super().convert(obj, api_version)


async def test_conversion_of_many_objects_has_turns_with_other_requests() -> None:
    converter = WaitingConverter()
    conversion = replace(compile_conversion(_definition(), local=converter), turn_seconds=0.0)
    bodies = [_stored(NEW, f"b{number}", "x" * LARGE) for number in range(3)]
    listing = asyncio.create_task(conversion.convert_texts(OLD, bodies, older=set(), listed=True))
    await asyncio.to_thread(converter.reached.wait)
    other = asyncio.create_task(offload(LARGE + 1, lambda: converter.converted))
    await turns()
    converter.goes_on.set()
    assert await other == 1
    assert [json.loads(body)["metadata"]["name"] for body in await listing] == ["b0", "b1", "b2"]


async def test_conversion_goes_on_for_other_watches_when_one_ends() -> None:
    converter = WaitingConverter()
    conversion = compile_conversion(_definition(), local=converter)
    large = _stored(NEW, "large", "x" * LARGE)
    first = asyncio.create_task(conversion.convert_texts(OLD, [large], older=set(), listed=False))
    await asyncio.to_thread(converter.reached.wait)
    second = asyncio.create_task(conversion.convert_texts(OLD, [large], older=set(), listed=False))
    await turns()
    first.cancel()
    converter.goes_on.set()
    assert json.loads((await second)[0])["apiVersion"] == OLD
    assert converter.converted == 1
    assert conversion.running == {}


async def test_older_object_is_completed_by_the_schema_of_today() -> None:
    conversion = compile_conversion(_definition(), local=SizeConverter())
    body = _stored(NEW, "b", "x").replace(b'"spec":{', b'"spec":{"removed":1,')
    made = await conversion.convert_texts(NEW, [body], older={body}, listed=False)
    assert json.loads(made[0])["spec"] == {"text": "x"}


async def test_managers_of_two_versions_conflict_about_the_same_field_alone(start: Start) -> None:
    client, _ = await _started(start)

    async def apply(api_version: str, manager: str, **spec: Any) -> Any:
        body = json.dumps(_board(api_version, **spec)).encode()
        version = api_version.partition("/")[2]
        return await client("PATCH", _path(version, "b"), body, content=APPLY, fieldManager=manager)

    assert (await apply(NEW, "new", size=3)).status == 201
    assert (await apply(OLD, "old", width=1)).status == 200
    refused = await apply(OLD, "old", length=4)
    assert refused.status == 409
    assert [cause["field"] for cause in refused.json["details"]["causes"]] == [".spec.size"]
    # A manager that drops a field removes it, whatever the version of the others.
    assert (await apply(NEW, "new", color="red")).status == 200
    assert (await client("GET", _path("v1", "b"))).json["spec"] == {"width": 1, "color": "red"}
    assert (await apply(OLD, "old", length=4, width=1)).status == 200
    assert (await client("GET", _path("v1", "b"))).json["spec"] == {"size": 4, "width": 1, "color": "red"}
