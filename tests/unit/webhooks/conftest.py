"""A reviewer, what its informers know, and what the API has."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import objects
from tests.support.api import InProcessApi
from tink.api.v1alpha2 import Raw
from tink.kube.client import NotFoundError
from tink.kube.resources import HARDWARE, OSIE, SECRET, TEMPLATE, WORKFLOW
from tink.webhooks.reviewer import Reviewer, ReviewRequest, Verdict

RESOURCES = {each.kind: each for each in (HARDWARE, OSIE, SECRET, TEMPLATE, WORKFLOW)}


def hardware(name: str, *nics: tuple[str, str], namespace: str = "d", osie: str = "", **metadata: Any) -> Raw:
    interfaces = {mac: {"dhcp": {"ip": ip}} if ip else {} for mac, ip in nics}
    spec = {"osie": {"name": osie}} if osie else {}
    return objects.hardware(name, interfaces=interfaces, namespace=namespace, metadata=metadata, **spec)


def workflow(name: str, machine: str, template: str, state: str = "") -> Raw:
    return objects.workflow(name, state or None, namespace="d", hardware=machine, template=template)


class World:
    """The objects of the informers and of the API: the same, unless a test changes them."""

    def __init__(self) -> None:
        self.now = 100.0
        self.api = InProcessApi()
        self.known = False
        self.reviewer = Reviewer(self._look_up, lambda *_: {} if self.known else None, lambda: self.now)

    async def _look_up(self, kind: str, namespace: str, name: str) -> Raw | None:
        try:
            return await self.api.get(RESOURCES[kind], name, namespace)
        except NotFoundError:
            return None

    @property
    def asked(self) -> int:
        """How often the API was."""
        return self.api.count("get")

    def store(self, obj: Raw, *, informed: bool = True) -> Raw:
        stored = self.api.put(obj)
        if informed:
            self.inform(stored)
        return stored

    def inform(self, obj: Raw) -> None:
        self.reviewer.references.apply(obj)
        if obj["kind"] == "Hardware":
            self.reviewer.claims.apply(obj)

    async def review(self, operation: str, new: Any, old: Any = None, **more: Any) -> Verdict:
        some = new or old
        metadata = some["metadata"]
        request = {"kind": {"kind": some["kind"]}, "operation": operation, "namespace": metadata["namespace"]}
        return await self.reviewer.review(
            ReviewRequest.read({**request, "name": metadata["name"], "object": new, "oldObject": old, **more})
        )


def texts(verdict: Verdict) -> list[str]:
    return [f"{cause.field}: {cause.message}" for cause in verdict.causes]


@pytest.fixture
def world() -> World:
    return World()
