"""The parts that all services of one process share (`Context`), and the tasks that run until the process stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from prometheus_client import CollectorRegistry

from edge.callers import Callers
from edge.journey.recorder import Journey
from edge.machines import Inventory, PendingWorkflows
from edge.run.errors import StackError
from edge.run.networks.follow import HostNetworks
from edge.run.readiness import ApiContact
from edge.settings.model import StackSettings
from tink.kube.cache import Informer
from tink.kube.client import KubeClient
from tink.kube.resources import ResourceType
from tink.waiting import done_before

log = logging.getLogger(__name__)

_CANCEL_SECONDS: Final = 10.0


class Tasks:
    """Tasks that run until the stop. `exit_stack` cancels them, the newest first. One that ends early ends them all."""

    def __init__(self, exit_stack: AsyncExitStack) -> None:
        self._exit = exit_stack
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self.failure = ""  # the name of a task that ended early, with the reason; empty if none did

    def spawn(self, work: Coroutine[Any, Any, None], name: str, *, ends: bool = False) -> asyncio.Task[None]:
        """Run a coroutine until the stop. With `ends`, it may return earlier, but must not raise."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(partial(self._done, ends=ends))

        async def cancel() -> None:
            task.cancel()
            await asyncio.wait([task], timeout=_CANCEL_SECONDS)

        self._exit.push_async_callback(cancel)
        return task

    async def run_until(self, stop: asyncio.Event) -> None:
        """Return when `stop` is set. Raises StackError if a task ends early."""
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            await done_before(ended, stop)
        finally:
            ended.cancel()
        if self.failure:
            raise StackError(self.failure)

    def _done(self, task: asyncio.Task[None], *, ends: bool) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if ends and error is None:
            return
        self.failure = f"{task.get_name()} ended: {error!r}" if error is not None else f"{task.get_name()} ended"
        log.error("%s", self.failure, exc_info=error)
        self._ended.set()


@dataclass(frozen=True, slots=True)
class Context:
    """The parts that all services of one process share. `edge.run.graph` makes it once."""

    settings: StackSettings
    exit_stack: AsyncExitStack  # stops the parts in the reverse order of their start
    tasks: Tasks
    metrics: CollectorRegistry
    journey: Journey
    inventory: Inventory
    pending: PendingWorkflows
    networks: HostNetworks
    callers: Callers
    client: KubeClient
    informers: Mapping[ResourceType, Informer]  # only the kinds that the services of this process need
    contact: ApiContact
