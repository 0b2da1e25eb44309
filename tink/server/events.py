"""The server's writes: claims of Workflows, and what agents report or their silence says, stored in the status.

Every write goes through the state machine, and on top of the version that it was decided from; if somebody was faster,
the Workflow is read again and decided again. What one machine's agent causes is done one after the other, and only so
much of it may wait: an agent that floods its server keeps itself waiting, and nobody else. What is said of one Workflow
while a write is under way is stored together, with one write; only so many are under way at once, so the more there is
to do, the more goes into each. What no agent waits for gives way for a while to what one waits for. An event is
answered when its write is done.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Final

from tink.api.v1alpha2 import Raw, WorkflowState
from tink.kube.client import ApiError, ConflictError, KubeClient, NotFoundError
from tink.kube.objects import NamespacedName
from tink.kube.resources import WORKFLOW
from tink.limits.backoff import Backoff
from tink.limits.log import LimitedLog
from tink.limits.semaphore import PrioritySemaphore, Waiter
from tink.server.workflows import WorkflowIndex, hardware_of, uid_of
from tink.workflow import machine
from tink.workflow.events import (
    ActionFailed,
    ActionStarted,
    ActionSucceeded,
    AgentAway,
    AgentEvent,
    AgentLost,
    AgentRefused,
    AgentSeen,
    Dispatched,
    Event,
    GivenBack,
    Reclaimed,
    Rejected,
    Undelivered,
)
from tink.workflow.guards import paused
from tink.workflow.status import (
    REASON_ALREADY_FINISHED,
    REASON_UNKNOWN_WORKFLOW,
    InvalidStatusError,
    Status,
    actions_of,
    claim_of,
    dispatch_after,
    given,
    name_of,
    rejections,
    state_of,
    status_of,
    status_patch,
)
from tink.workflow.table import Author

log = logging.getLogger(__name__)

MAX_WAITING: Final = 16
"""Events of one machine that are taken or wait for that at the same time. An agent sends one after the other."""

MAX_WRITES: Final = 16
"""Writes of events that are under way at once. What comes meanwhile gathers."""

BATCH_SECONDS = 0.005
"""Seconds that the end of an action waits for the start of the next one, which agents send with it."""

YIELD_SECONDS = 1.0
"""Seconds that a report gives way to others, when the agent goes on without the answer."""

_ATTEMPTS = 8
_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS = 0.5, 15.0
"""Seconds before another attempt to take a claim back, while the API is away."""
_JITTER = 0.2
"""The part of a delay that chance may take away."""

ServerEvent = AgentEvent | AgentLost | AgentRefused | AgentSeen | AgentAway | Undelivered
"""What agents report, what the server concludes when they do not, and what it has not sent."""


class WorkflowGoneError(LookupError):
    """The Workflow was deleted, perhaps to be created again: nothing is left that an event could change."""


class StaleError(RuntimeError):
    """The Workflow changed so often that the event could not be stored: try again."""


class PausedError(StaleError):
    """The Workflow is being moved to another API: whoever serves that one will take the event."""


class BusyError(RuntimeError):
    """Too many events of one machine wait already: publish them one after the other."""


@dataclass(slots=True, eq=False)
class _QueuedEvent:
    """An event of the Workflow `uid` whose caller waits for `outcome`: whether it changed anything. `due` is when its
    turn should come, on the loop's clock."""

    uid: str
    event: ServerEvent
    due: float
    outcome: bool | Exception | None = None


@dataclass(slots=True)
class _Queue:
    """The events of one machine, the oldest first."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: list[_QueuedEvent] = field(default_factory=list)
    waiter: Waiter | None = None
    """Of the write that is due next."""

    def first(self) -> list[_QueuedEvent]:
        """The oldest, with those after it that are of the same Workflow. None has an outcome yet: who has one leaves
        before the lock, which is fair, comes to who has none."""
        return list(takewhile(lambda each: each.uid == self.waiting[0].uid, self.waiting))


class EventStore:
    """Writes to the API what the state machine makes of events. `clock` gives seconds since the epoch.

    A rejected Workflow is not offered for `rejection_first` seconds, then for twice as long, at most for
    `rejection_longest`, each time a little less as `chance` (0 to 1) has it.
    """

    def __init__(
        self,
        client: KubeClient,
        workflows: WorkflowIndex,
        clock: Callable[[], float],
        *,
        rejection_first: float,
        rejection_longest: float,
        chance: Callable[[], float] = random.random,
        max_writes: int = MAX_WRITES,
    ) -> None:
        self._client = client
        self._workflows = workflows
        self._clock = clock
        self._first = rejection_first
        self._longest = rejection_longest
        self._chance = chance
        self._queues: dict[NamespacedName, _Queue] = {}
        self._writes = PrioritySemaphore(max_writes)
        # That the API is away is worth a line once in a while: it is away for all machines.
        self._log = LimitedLog(log, clock, capacity=8)

    @property
    def machines(self) -> int:
        """The number of machines whose events are being taken."""
        return len(self._queues)

    async def take(self, workflow: Raw, event: ServerEvent) -> bool:
        """Store what `event` makes of `workflow` (as the informer last saw it); False if that changes nothing.

        Raises BusyError, WorkflowGoneError, StaleError, UnknownActionError, InvalidStatusError, ApiError.
        """
        key = hardware_of(workflow) or NamespacedName("", "")
        due = asyncio.get_running_loop().time() + (YIELD_SECONDS if _can_wait(workflow, event) else 0.0)
        mine = _QueuedEvent(uid_of(workflow), event, due)
        async with self._queued(key, mine) as queue:
            while mine.outcome is None:
                async with queue.lock:
                    if mine.outcome is None:  # else another has stored this one with its own
                        if len(queue.waiting) == 1 and _another_follows(workflow, event):
                            await asyncio.sleep(BATCH_SECONDS)
                        queue.waiter = Waiter(min(each.due for each in queue.waiting))
                        async with self._writes.slot(queue.waiter):
                            await self._take_first(queue)
        if isinstance(mine.outcome, Exception):
            raise mine.outcome
        return mine.outcome

    async def claim(self, workflow: Raw) -> Raw | None:
        """Make a Pending Workflow Scheduled; None if somebody changed it meanwhile, or the API is away."""
        return await self._change(workflow, Dispatched(), "can't be scheduled, trying again")

    async def reclaim(self, workflow: Raw) -> Raw | None:
        """Claim a Workflow that is Scheduled, which somebody else may be about to send; None as above."""
        return await self._change(workflow, Reclaimed(), "can't be scheduled, trying again")

    async def give_back(self, workflow: Raw) -> bool:
        """Make a Scheduled Workflow Pending again. False if somebody changed it meanwhile, or the API is away."""
        return await self._change(workflow, GivenBack(), "stays Scheduled") is not None

    async def _change(self, workflow: Raw, event: Event, otherwise: str) -> Raw | None:
        """The Workflow as it was stored. `otherwise`: what is said of it while the API is away, once in a while."""
        status = None if paused(workflow) else machine.apply(workflow, event, self._clock(), Author.SERVER)
        if status is None:
            return None
        try:
            return await self._store(workflow, status)
        except (ConflictError, NotFoundError):
            return None  # the informer will tell what it is now
        except ApiError as error:
            self._log.warning("Workflow %s %s: %s", name_of(workflow), otherwise, error, key=otherwise)
            return None

    async def take_back(self, workflow: Raw, before: Raw) -> None:
        """Undo a claim that was never sent, unless the Workflow was claimed by others since. `workflow` is what `claim`
        gave, for what was `before`.

        If it was cancelled meanwhile it has ended: nobody else knows that no agent has it. So this goes on until it is
        stored, however long the API is away.
        """
        event = Undelivered(claim_of(status_of(workflow)), given(status_of(before)))
        backoff = Backoff(_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS)
        while True:
            try:
                await self._take(workflow, [event])
            except (WorkflowGoneError, PausedError):
                return  # who serves the API that it is moved to finds it claimed, and sends it
            except (ApiError, StaleError) as error:
                text = "Workflow %s stays Scheduled for now: %s"
                self._log.warning(text, name_of(workflow), error, key="take back")
                await asyncio.sleep(backoff.next())
            else:
                return

    @asynccontextmanager
    async def _queued(self, key: NamespacedName, mine: _QueuedEvent) -> AsyncIterator[_Queue]:
        queue = self._queues.setdefault(key, _Queue())
        if len(queue.waiting) >= MAX_WAITING:
            raise BusyError(
                f"{MAX_WAITING} events of Hardware {'/'.join(key)} wait already: publish one after the other"
            )
        queue.waiting.append(mine)
        if queue.waiter is not None:
            self._writes.expedite(queue.waiter, mine.due)
        try:
            yield queue
        finally:
            queue.waiting.remove(mine)
            if not queue.waiting:
                del self._queues[key]

    async def _take_first(self, queue: _Queue) -> None:
        """Give the oldest events of the queue their outcome. One that is cancelled meanwhile leaves the others as they
        were: what it may have stored, they find stored."""
        events = queue.first()
        workflow = self._workflows.get(events[0].uid)
        outcomes: list[bool | Exception]
        try:
            if workflow is None:
                raise WorkflowGoneError(events[0].uid)
            outcomes = await self._take(workflow, [each.event for each in events])
        except (WorkflowGoneError, StaleError, ApiError) as error:
            outcomes = [error] * len(events)
        for each, outcome in zip(events, outcomes, strict=True):
            each.outcome = outcome

    async def _take(self, workflow: Raw, events: Sequence[ServerEvent]) -> list[bool | Exception]:
        """Store what all the events make of the Workflow, with one write. Raises what concerns them all."""
        fresh = False
        for _ in range(_ATTEMPTS):
            if paused(workflow):
                raise PausedError(f"Workflow {name_of(workflow)} is being moved to another API; try again")
            decided = self._decide(workflow, events, fresh=fresh)
            if decided is not None:
                status, outcomes = decided
                if status is None:
                    return outcomes
                try:
                    await self._store(workflow, status)
                except NotFoundError as error:
                    raise WorkflowGoneError(name_of(workflow)) from error
                except ConflictError:
                    pass
                else:
                    until = dispatch_after(status)
                    if until and until != dispatch_after(status_of(workflow)):
                        delay = until - self._clock()
                        log.info("Workflow %s is not offered again for %.1f s", name_of(workflow), delay)
                    return outcomes
            # Somebody was faster, or the informer's copy may be behind; no event must be lost because of that.
            workflow, fresh = await self.fresh(workflow), True
        raise StaleError(f"Workflow {name_of(workflow)} changes too often; try again")

    def _decide(
        self, workflow: Raw, events: Sequence[ServerEvent], *, fresh: bool
    ) -> tuple[Status | None, list[bool | Exception]] | None:
        """The status after all the events, None if they change nothing, and what each of them came to. None instead of
        both if that can't be said of a Workflow that may be behind, which it is not if it is `fresh`."""
        outcomes: list[bool | Exception] = []
        after = workflow
        for event in events:
            try:
                status = machine.apply(after, self._with_delay(event, after), self._clock(), Author.SERVER)
                certain = fresh or status is not None or _settled(state_of(after), event)
            except (machine.UnknownActionError, InvalidStatusError) as error:
                if not fresh:
                    return None
                outcomes.append(error)
                continue
            if not certain:
                return None
            outcomes.append(status is not None)
            if status is not None:
                after = {**after, "status": status}
        return None if after is workflow else after["status"], outcomes

    def _with_delay(self, event: ServerEvent, workflow: Raw) -> ServerEvent:
        if not isinstance(event, Rejected):
            return event
        count = rejections(status_of(workflow))
        return replace(event, delay=rejection_delay(count, self._first, self._longest, self._chance()))

    async def fresh(self, workflow: Raw) -> Raw:
        """The Workflow as it is in the API now. Raises WorkflowGoneError, ApiError."""
        metadata = workflow["metadata"]
        try:
            now = await self._client.get(WORKFLOW, metadata["name"], metadata.get("namespace"))
        except NotFoundError as error:
            raise WorkflowGoneError(name_of(workflow)) from error
        if uid_of(now) != uid_of(workflow):
            raise WorkflowGoneError(name_of(workflow))
        self._workflows.refresh(now)
        return now

    async def _store(self, workflow: Raw, status: Status) -> Raw:
        metadata = workflow["metadata"]
        patch = status_patch(workflow, status)
        stored = await self._client.patch(
            WORKFLOW, metadata["name"], metadata.get("namespace"), patch, subresource="status"
        )
        self._workflows.refresh(stored)
        return stored


def rejection_delay(rejections: int, first: float, longest: float, chance: float) -> float:
    """How long a Workflow is not offered that was rejected now, and `rejections` times before; in seconds.

    It doubles from `first` to `longest`. `chance` (0 to 1) shortens it a little, so that the agents of a rack do not
    come back in step.
    """
    # The exponent is capped as well: 2.0 ** 1024 would overflow.
    return min(first * 2.0 ** min(rejections, 64), longest) * (1 - _JITTER * chance)


def _another_follows(workflow: Raw, event: ServerEvent) -> bool:
    """Whether an agent that reports this goes on with another action."""
    return isinstance(event, ActionSucceeded) and not _is_of(workflow, event, -1)


def _can_wait(workflow: Raw, event: ServerEvent) -> bool:
    """Whether the agent goes on without the answer: it waits before the first action and before the last, and after
    that others wait for what becomes of the Workflow."""
    if isinstance(event, ActionStarted):
        return not _is_of(workflow, event, 0) and not _is_of(workflow, event, -1)
    return _another_follows(workflow, event)


def _is_of(workflow: Raw, event: ActionStarted | ActionSucceeded, index: int) -> bool:
    """Whether an event is of the action at `index`, or of a Workflow that seems to have none."""
    actions = actions_of(status_of(workflow))
    return not actions or actions[index].get("id") == event.action_id


def _settled(state: WorkflowState | None, event: ServerEvent) -> bool:
    """Whether an event that changes nothing of a copy of the Workflow changes nothing of the Workflow either, although
    the copy may be behind. So an agent that repeats what is known costs no call."""
    if state is not None and state.terminal:
        return True
    if isinstance(event, ActionStarted | ActionSucceeded | ActionFailed):
        return True  # the action is as far already, and actions never go back
    # Where the copy says Running, the API may say Cancelling: for an agent that does not run it, that is the end.
    ends = (REASON_UNKNOWN_WORKFLOW, REASON_ALREADY_FINISHED)
    return isinstance(event, Rejected) and event.reason not in ends and state is WorkflowState.RUNNING
