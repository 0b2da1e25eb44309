"""An EventStore on a bench: over the API in memory, with everything that it asks counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tink.api.v1alpha2 import Raw
from tink.server.events import EventStore
from tink.server.workflows import WorkflowIndex

if TYPE_CHECKING:
    from tests.unit.server.conftest import Rig

FIRST, LONGEST = 5.0, 60.0


class Bench:
    """An EventStore over the rig's API, fed by the rig's informer; `reads` counts what it asked the API for."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.reads = 0
        self.index = WorkflowIndex()
        rig.workflows.add_event_handler(lambda new, _: self.index.apply(new), self.index.remove)
        get = rig.api.get

        async def counted(*arguments: Any) -> Raw:
            self.reads += 1
            workflow: Raw = await get(*arguments)
            return workflow

        # Only what the store itself reads: the API's patches read as well.
        client: Any = type("Client", (), {"get": staticmethod(counted), "patch": rig.api.patch})()
        self.store = EventStore(
            client,
            self.index,
            lambda: rig.now,
            rejection_first=FIRST,
            rejection_longest=LONGEST,
            chance=lambda: 0.0,
        )

    def seen(self, name: str = "w") -> Raw:
        workflow = self.index.get(f"uid-{name}")
        assert workflow is not None
        return workflow

    def status(self, name: str = "w") -> Raw:
        status: Raw = self.rig.workflows.objects["d", name]["status"]
        return status

    async def take(self, event: Any, name: str = "w") -> bool:
        return await self.store.take(self.seen(name), event)
