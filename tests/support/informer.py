"""Informers for tests.

`following` runs the real informer over the in-process API. It sees a change a few turns of the event loop later:

    async with following(InProcessApi(), WORKFLOW) as informer: ...

`InMemoryInformer` is the real informer without a client. Its handlers see a change before the call that makes it
returns. Its objects come from the test or, with `InProcessApi.informer`, from the API:

    informer = InMemoryInformer(HARDWARE, [hardware()])
    informer.put(hardware(ip="192.0.2.7"))  # returns the object with its new resourceVersion
    informer.remove("m1")
    informer.hold(); informer.put(...); informer.release()  # a slow watch
    InMemoryInformer(HARDWARE, synced=False).listed()  # the first list comes later
    informer.failing_for = 60.0  # the API has been away for a minute
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import Any

from tink.api.v1alpha2 import Raw
from tink.kube.cache import Informer
from tink.kube.objects import NamespacedName
from tink.kube.resources import WORKFLOW, ResourceType


class InMemoryInformer(Informer):
    """An informer of `resource` that the test feeds. `options` are those of the real informer."""

    failing_for = 0.0
    denied = ""
    is_unreachable = False

    def __init__(
        self, resource: ResourceType = WORKFLOW, objects: Iterable[Raw] = (), *, synced: bool = True, **options: Any
    ) -> None:
        super().__init__(None, resource, **options)  # type: ignore[arg-type] # it never calls a client
        self._newest = 100
        self._held: list[Callable[[], None]] | None = None
        if synced:
            self.listed()
        for obj in objects:
            self.put(obj)

    async def run(self) -> None:
        """Run until cancelled, like the real informer."""
        await asyncio.Event().wait()

    def listed(self, *, done: bool = True) -> None:
        """Mark the collection as listed, or with `done=False` as not listed."""
        for reflector in self._reflectors:
            (reflector.synced.set if done else reflector.synced.clear)()

    def put(self, obj: Raw) -> Raw:
        """Add or update an object, with a new resourceVersion."""
        self._newest += 1
        obj = copy.deepcopy(obj)
        obj["metadata"]["resourceVersion"] = str(self._newest)
        self.feed("MODIFIED", obj)
        return obj

    def remove(self, name: str, namespace: str = "default") -> None:
        """Remove an object."""
        self._deliver(partial(self.gone, NamespacedName(namespace, name), None))

    def feed(self, kind: str, obj: Raw) -> None:
        """Process a watch event: ADDED, MODIFIED or DELETED, with the object as the API has it."""
        if self._namespaces and obj["metadata"].get("namespace") not in self._namespaces:
            return
        obj = copy.deepcopy(obj)
        if kind == "DELETED":
            self._deliver(partial(self.gone, NamespacedName.of(obj), obj))
        else:
            self._deliver(partial(self.changed, obj))

    def hold(self) -> None:
        """Delay all further changes until `release`."""
        self._held = self._held or []

    def release(self) -> None:
        """Deliver the delayed changes."""
        held, self._held = self._held or [], None
        for deliver in held:
            deliver()

    def _deliver(self, change: Callable[[], None]) -> None:
        if self._held is not None:
            self._held.append(change)
        else:
            change()


@contextlib.asynccontextmanager
async def following(api: Any, resource: ResourceType, **options: Any) -> AsyncIterator[Informer]:
    """Run the real informer over an API until the block ends; it has listed the collection when the block begins."""
    informer = Informer(api, resource, **options)
    task = asyncio.create_task(informer.run())
    synced = asyncio.create_task(informer.wait_for_cache_sync())
    try:
        await asyncio.wait([task, synced], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()  # raises what it failed with
        yield informer
    finally:
        for each in (task, synced):
            each.cancel()
        await asyncio.wait([task, synced])
