"""Objects, and an API in memory with optimistic concurrency, for the tests of the controller."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tink.api.v1alpha2 import FINALIZER, Raw
from tink.apiserver.patch import merge
from tink.kube.client import ConflictError, NotFoundError
from tink.workflow.summary import summary

CREATED = "2027-01-15T08:00:00Z"


class FakeInformer:
    """An informer whose objects the test puts in; also the store of the fake API."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Raw] = {}
        self._change: list[Any] = []
        self._delete: list[Any] = []
        self.version = 100

    def add_event_handler(self, on_change: Any = None, on_delete: Any = None) -> None:
        self._change += [on_change] if on_change is not None else []
        self._delete += [on_delete] if on_delete is not None else []

    def get(self, namespace: str, name: str) -> Raw | None:
        return self.objects.get((namespace, name))

    def __len__(self) -> int:
        return len(self.objects)

    async def wait_for_cache_sync(self) -> None:
        return

    def put(self, obj: Raw) -> Raw:
        self.version += 1
        obj = copy.deepcopy(obj)
        obj["metadata"]["resourceVersion"] = str(self.version)
        key = (obj["metadata"]["namespace"], obj["metadata"]["name"])
        old = self.objects.get(key)
        self.objects[key] = obj
        for handler in self._change:
            handler(obj, old)
        return obj

    def remove(self, namespace: str, name: str) -> None:
        old = self.objects.pop((namespace, name))
        for handler in self._delete:
            handler(old)


class FakeApi:
    """The client's `patch` over the Workflows of a FakeInformer, and `create` of Events. `faults` are raised first, one
    per call of `patch`."""

    def __init__(self, workflows: FakeInformer) -> None:
        self.workflows = workflows
        self.patches: list[tuple[str | None, Raw]] = []
        self.faults: list[Exception] = []
        self.events: list[Raw] = []
        self.deletions: list[str] = []

    async def create(self, resource: Any, obj: Raw, namespace: str | None = None) -> Raw:
        await asyncio.sleep(0)
        assert resource.kind == "Event"
        self.events.append(obj)
        return obj

    async def patch(self, _: Any, name: str, namespace: str, patch: Raw, *, subresource: str | None = None) -> Raw:
        await asyncio.sleep(0)
        self.patches.append((subresource, patch))
        if self.faults:
            raise self.faults.pop(0)
        obj = self.workflows.get(namespace, name)
        if obj is None:
            raise NotFoundError(404, "NotFound", name)
        if patch["metadata"].get("resourceVersion") not in (None, obj["metadata"]["resourceVersion"]):
            raise ConflictError(409, "Conflict", name)
        changes = {k: v for k, v in patch.items() if (k == "status") is (subresource == "status")}
        merged = merge(copy.deepcopy(obj), copy.deepcopy(changes))
        if merged["metadata"].get("deletionTimestamp") and not merged["metadata"].get("finalizers"):
            self.workflows.remove(namespace, name)
            return merged
        return self.workflows.put(merged)

    async def delete(self, _: Any, name: str, namespace: str, *, preconditions: Mapping[str, str]) -> Raw:
        await asyncio.sleep(0)
        obj = self.workflows.get(namespace, name)
        if obj is None:
            raise NotFoundError(404, "NotFound", name)
        if {field: obj["metadata"][field] for field in ("uid", "resourceVersion")} != preconditions:
            raise ConflictError(409, "Conflict", name)
        self.deletions.append(name)
        self.workflows.remove(namespace, name)
        return obj


@pytest.fixture
def store() -> Callable[[], FakeInformer]:
    return FakeInformer


@pytest.fixture
def fake_api() -> Callable[[FakeInformer], FakeApi]:
    return FakeApi


@pytest.fixture
def make_workflow() -> Callable[..., Raw]:
    """`make_workflow(state, deleted=..., finalizer=..., spec=..., **status)`."""

    def make(
        state: str | None = None,
        *,
        name: str = "w",
        deleted: bool = False,
        finalizer: bool | None = None,
        spec: Mapping[str, Any] | None = None,
        **status: Any,
    ) -> Raw:
        metadata: Raw = {
            "name": name,
            "namespace": "d",
            "uid": f"uid-{name}",
            "resourceVersion": "7",
            "creationTimestamp": CREATED,
        }
        if finalizer if finalizer is not None else state is not None:
            metadata["finalizers"] = ["other/one", FINALIZER]
        if deleted:
            metadata["deletionTimestamp"] = CREATED
        references = {"hardwareRef": {"name": "h"}, "templateRef": {"name": "t"}}
        workflow: Raw = {"metadata": metadata, "spec": {**references, **(spec or {})}}
        if state is not None:
            workflow["status"] = {"state": state, "lastTransitioned": CREATED, **status}
            workflow["status"].setdefault("message", summary(workflow["status"]))
        return workflow

    return make


@pytest.fixture
def hardware() -> Raw:
    return {"metadata": {"name": "h", "namespace": "d", "uid": "h"}, "spec": {}}


@pytest.fixture
def template() -> Raw:
    return {"metadata": {"name": "t", "namespace": "d", "uid": "t"}, "spec": {}}


@pytest.fixture
def render() -> Callable[..., list[Raw]]:
    """A renderer that gives two actions and shows its inputs."""

    def fake(template: Raw, hardware: Raw, params: Mapping[str, str]) -> list[Raw]:
        tag = ",".join(f"{k}={v}" for k, v in params.items())
        return [
            {"name": "first", "image": f"{template['metadata']['name']}/{hardware['metadata']['name']}:{tag}"},
            {"name": "second", "image": "i", "timeout": 30},
        ]

    return fake
