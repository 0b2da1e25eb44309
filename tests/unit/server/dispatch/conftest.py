"""One server's part of an agent's command stream, for tests that play several servers at once."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from proto import workflow_pb2 as pb
from tests.support.virtual_time import turns
from tests.unit.server.conftest import Rig
from tink.api.v1alpha2 import Raw
from tink.server.dispatch.decision import Start, Stop
from tink.server.dispatch.stream import CommandStream, Ending
from tink.server.events import EventStore
from tink.server.workflows import WorkflowIndex

KEY = ("d", "h")
OVER = [{"type": "Succeeded", "status": "False", "reason": "WorkflowTimeout"}]


class Side:
    """One server's part: its own copy of what there is, and one stream. `before_write` is called before each command
    goes out; `lost` and `sent` are what the server was told."""

    def __init__(self, rig: Rig, holds: frozenset[str] | None) -> None:
        self.rig = rig
        self.index = WorkflowIndex()
        self.store = EventStore(
            rig.api, self.index, lambda: rig.now, rejection_first=5, rejection_longest=60, chance=lambda: 0.0
        )
        self.commands: list[tuple[str, str]] = []
        self.before_write: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.sent: list[Start | Stop] = []
        self.lost: list[str] = []
        self.background: set[asyncio.Task[None]] = set()
        for workflow in rig.workflows.list():
            self.index.apply(workflow)
        self.stream = CommandStream(
            "h",
            "192.0.2.1",
            KEY,
            holds=holds,
            workflows=self.index,
            writer=self.store,
            spawn=lambda work: self.background.add(asyncio.ensure_future(work)),
            sent=lambda _, move: self.sent.append(move),
            lost=lambda _, workflow: self.lost.append(workflow["status"]["state"]),
            clock=lambda: rig.now,
            rejection_longest=60,
        )
        rig.workflows.add_event_handler(self._changed, self._gone)

    def _changed(self, new: Raw, _: Raw | None) -> None:
        self.index.apply(new)
        self.stream.wake()

    def _gone(self, old: Raw) -> None:
        self.index.remove(old)
        self.stream.gone(old)

    async def write(self, message: pb.GetWorkflowsResponse) -> None:
        if self.before_write is not None:
            await self.before_write()
        if message.WhichOneof("cmd") == "start_workflow":
            self.commands.append(("start", message.start_workflow.workflow.workflow_id))
        else:
            self.commands.append(("stop", message.stop_workflow.workflow_id))

    def start(self) -> None:
        self.task: asyncio.Task[Ending] = asyncio.ensure_future(self.stream.run(self.write))

    async def calm(self) -> list[tuple[str, str]]:
        """The commands so far, when nothing more comes."""
        await turns(60)
        return self.commands

    async def close(self) -> None:
        if hasattr(self, "task"):
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        await asyncio.gather(*self.background)


Make = Callable[..., Side]


def reboots(rig: Rig, state: str = "Running", name: str = "w") -> None:
    """The Workflow runs its last action, which reboots the machine."""
    actions = copy.deepcopy(rig.read(name)["status"]["actions"])
    actions[0]["state"], actions[1]["state"] = "Succeeded", "Running"
    actions[1]["rendered"]["reboots"] = True
    rig.set_state(name, state, actions=actions)


@pytest.fixture
async def side(rig: Rig) -> AsyncIterator[Make]:
    sides: list[Side] = []

    def make(*holds: str, says: bool = True, start: bool = True) -> Side:
        made = Side(rig, frozenset(holds) if says else None)
        sides.append(made)
        if start:
            made.start()
        return made

    yield make
    for made in sides:
        await made.close()
