"""An EventStore on a bench: over the API in memory, with everything that it asks counted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tink.api.v1alpha2 import Raw
from tink.server.events import EventStore
from tink.server.workflows import WorkflowIndex

if TYPE_CHECKING:
    from tests.unit.server.conftest import Rig

FIRST, LONGEST = 5.0, 60.0


class Bench:
    """An EventStore over the rig's API, fed by the rig's informer."""

    def __init__(self, rig: Rig, **options: Any) -> None:
        self.rig = rig
        self.index = WorkflowIndex()
        rig.workflows.add_event_handler(lambda new, _: self.index.apply(new), self.index.remove)
        self.store = EventStore(
            rig.api,
            self.index,
            lambda: rig.now,
            rejection_first=FIRST,
            rejection_longest=LONGEST,
            chance=lambda: 0.0,
            **options,
        )

    @property
    def reads(self) -> int:
        """How often the store has read a Workflow from the API."""
        return self.rig.api.count("get")

    def seen(self, name: str = "w") -> Raw:
        workflow = self.index.get(f"uid-{name}")
        assert workflow is not None
        return workflow

    def status(self, name: str = "w") -> Raw:
        status: Raw = self.rig.read(name)["status"]
        return status

    def taking(self, event: Any, name: str = "w") -> asyncio.Future[bool]:
        return asyncio.ensure_future(self.take(event, name))

    async def take(self, event: Any, name: str = "w") -> bool:
        return await self.store.take(self.seen(name), event)
