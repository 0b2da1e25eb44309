"""Writes claims and agents' events into the status of Workflows.

- Every write goes through the state machine, as a patch on top of the version that the decision was based on. After a
  conflict the Workflow is read and decided again.
- The events of one machine are stored one after the other, and only MAX_WAITING may wait: an agent that floods its
  server delays only itself.
- Events of one Workflow that arrive during a write are stored together by the next write. Only MAX_WRITES writes run at
  once, so the batches grow with the load.
- Events whose agent continues without the answer yield to events whose agent waits.
- An event is acknowledged when its write is done.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Final

from tink.api.v1alpha2 import Raw, WorkflowState
from tink.errors import TinkedgeError
from tink.kube.client import ApiError, ConflictError, KubeClient, NotFoundError
from tink.kube.objects import NamespacedName
from tink.kube.resources import WORKFLOW
from tink.limits import Backoff, LimitedLog, PrioritySemaphore, Waiter
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
"""Maximum number of events of one machine in progress. An agent sends one after the other."""

MAX_WRITES: Final = 16
"""Maximum number of simultaneous writes. Events that arrive meanwhile form batches."""

BATCH_SECONDS = 0.005
"""Seconds that the end of an action waits for the start of the next one, which agents send right after it."""

YIELD_SECONDS = 1.0
"""Seconds that an event yields to others if its agent continues without the answer."""

_ATTEMPTS = 8
_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS = 0.5, 15.0
"""First and last delay before another attempt to undo a claim while the API does not answer."""
_JITTER = 0.2
"""Maximum part of a delay that is removed at random."""

ServerEvent = AgentEvent | AgentLost | AgentRefused | AgentSeen | AgentAway | Undelivered
"""Events of agents, conclusions from an agent's silence, and claims that were not sent."""


class WorkflowGoneError(TinkedgeError, LookupError):
    """The Workflow was deleted (and perhaps created again), so the event can change nothing."""


class StaleError(TinkedgeError, RuntimeError):
    """The Workflow changed so often that the event could not be stored. Try again."""


class PausedError(StaleError):
    """The Workflow is being moved to another API. The server of that API will store the event."""


class BusyError(TinkedgeError, RuntimeError):
    """Too many events of one machine are waiting. Publish them one after the other."""


@dataclass(slots=True, eq=False)
class _QueuedEvent:
    """An event of the Workflow `uid` whose caller waits for `outcome`: an error, or True if the event changed
    something.

    `due` is the time on the loop's clock at which it should be stored.
    """

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
    """The next write, while it waits for a slot."""


class EventStore:
    """Applies events to Workflows with the state machine and stores the result. `clock` returns Unix seconds.

    A rejected Workflow is not offered for `rejection_first` seconds, then for twice as long each time, up to
    `rejection_longest`. `chance` (0 to 1) shortens each delay at random.
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
        # Rate-limited: an API that does not answer affects all machines.
        self._log = LimitedLog(log, clock, capacity=8)

    async def take(self, workflow: Raw, event: ServerEvent) -> bool:
        """Apply `event` to `workflow` (as the informer last saw it) and store the result; False if nothing changes.

        Raises BusyError, WorkflowGoneError, StaleError, UnknownActionError, InvalidStatusError, ApiError.
        """
        key = hardware_of(workflow) or NamespacedName("", "")
        due = asyncio.get_running_loop().time() + (YIELD_SECONDS if _can_wait(workflow, event) else 0.0)
        mine = _QueuedEvent(uid_of(workflow), event, due)
        queue = self._queues.setdefault(key, _Queue())
        if len(queue.waiting) >= MAX_WAITING:
            raise BusyError(
                f"{MAX_WAITING} events of Hardware {'/'.join(key)} wait already: publish one after the other"
            )
        queue.waiting.append(mine)
        if queue.waiter is not None:
            self._writes.expedite(queue.waiter, due)
        try:
            while mine.outcome is None:
                async with queue.lock:
                    if mine.outcome is None:  # else the previous holder of the lock has stored this event with its own
                        if len(queue.waiting) == 1 and _another_follows(workflow, event):
                            await asyncio.sleep(BATCH_SECONDS)
                        queue.waiter = Waiter(min(each.due for each in queue.waiting))
                        async with self._writes.slot(queue.waiter):
                            await self._take_first(queue)
        finally:
            queue.waiting.remove(mine)
            if not queue.waiting:
                del self._queues[key]
        if isinstance(mine.outcome, Exception):
            raise mine.outcome
        return mine.outcome

    async def claim(self, workflow: Raw) -> Raw | None:
        """Make a Pending Workflow Scheduled; None if another writer changed it meanwhile or the API does not answer."""
        return await self._change(workflow, Dispatched(), "can't be scheduled, trying again")

    async def reclaim(self, workflow: Raw) -> Raw | None:
        """Claim a Scheduled Workflow, which another server may be about to send; None as in `claim`."""
        return await self._change(workflow, Reclaimed(), "can't be scheduled, trying again")

    async def give_back(self, workflow: Raw) -> bool:
        """Make a Scheduled Workflow Pending; False if another writer changed it or the API does not answer."""
        return await self._change(workflow, GivenBack(), "stays Scheduled") is not None

    async def _change(self, workflow: Raw, event: Event, otherwise: str) -> Raw | None:
        """Apply `event` and return the stored Workflow, or None. `otherwise` ends the log line if the API is away."""
        status = None if paused(workflow) else machine.apply(workflow, event, self._clock(), Author.SERVER)
        if status is None:
            return None
        try:
            return await self._store(workflow, status)
        except (ConflictError, NotFoundError):
            return None  # the informer will deliver the new version
        except ApiError as error:
            self._log.warning("Workflow %s %s: %s", name_of(workflow), otherwise, error, key=otherwise)
            return None

    async def take_back(self, workflow: Raw, before: Raw) -> None:
        """Undo a claim that was never sent, unless another server has claimed the Workflow since.

        `workflow` is the result of `claim` for `before`. Retries until the API answers: if the Workflow was cancelled
        meanwhile, no other component knows that no agent has it.
        """
        event = Undelivered(claim_of(status_of(workflow)), given(status_of(before)))
        backoff = Backoff(_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS)
        while True:
            try:
                await self._take(workflow, [event])
            except (WorkflowGoneError, PausedError):
                return  # the server of the other API finds the Workflow claimed, and sends it
            except (ApiError, StaleError) as error:
                text = "Workflow %s stays Scheduled for now: %s"
                self._log.warning(text, name_of(workflow), error, key="take back")
                await asyncio.sleep(backoff.next())
            else:
                return

    async def _take_first(self, queue: _Queue) -> None:
        """Store the oldest events of the queue and set their outcome.

        If the caller is cancelled meanwhile, the other events keep no outcome: they find their change stored already.
        """
        # The oldest event and those after it of the same Workflow. None of them has an outcome: the lock is fair, so a
        # caller with an outcome leaves before the lock reaches a caller without.
        events = list(takewhile(lambda each: each.uid == queue.waiting[0].uid, queue.waiting))
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
        """Apply all events to the Workflow and store the result with one write. Raises errors that concern all."""
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
            # Another writer was faster, or the informer's copy is outdated. No event may be lost because of that.
            workflow, fresh = await self.fresh(workflow), True
        raise StaleError(f"Workflow {name_of(workflow)} changes too often; try again")

    def _decide(
        self, workflow: Raw, events: Sequence[ServerEvent], *, fresh: bool
    ) -> tuple[Status | None, list[bool | Exception]] | None:
        """Return the status after all events (None if unchanged) and the outcome of each event.

        Returns None if the outcome can't be decided on a copy that may be outdated, that is, not `fresh`.
        """
        outcomes: list[bool | Exception] = []
        after = workflow
        for event in events:
            try:
                if isinstance(event, Rejected):
                    count = rejections(status_of(after))
                    event = replace(event, delay=rejection_delay(count, self._first, self._longest, self._chance()))
                status = machine.apply(after, event, self._clock(), Author.SERVER)
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

    async def fresh(self, workflow: Raw) -> Raw:
        """Read the Workflow from the API. Raises WorkflowGoneError, ApiError."""
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
    """Return the seconds until a Workflow is offered again that was rejected now and `rejections` times before.

    The delay doubles from `first` to `longest`. `chance` (0 to 1) shortens it, so that the agents of a rack do not
    return in step.
    """
    # The exponent is capped as well: 2.0 ** 1024 would overflow.
    return min(first * 2.0 ** min(rejections, 64), longest) * (1 - _JITTER * chance)


def _another_follows(workflow: Raw, event: ServerEvent) -> bool:
    """Return True if the agent continues with another action after this event."""
    return isinstance(event, ActionSucceeded) and not _is_of(workflow, event, -1)


def _can_wait(workflow: Raw, event: ServerEvent) -> bool:
    """Return True if the agent continues without waiting for the answer.

    It waits before the first and the last action. After the last action, others wait for the end of the Workflow.
    """
    if isinstance(event, ActionStarted):
        return not _is_of(workflow, event, 0) and not _is_of(workflow, event, -1)
    return _another_follows(workflow, event)


def _is_of(workflow: Raw, event: ActionStarted | ActionSucceeded, index: int) -> bool:
    """Return True if the event is of the action at `index`, or if the Workflow seems to have no actions."""
    actions = actions_of(status_of(workflow))
    return not actions or actions[index].get("id") == event.action_id


def _settled(state: WorkflowState | None, event: ServerEvent) -> bool:
    """Return True if an event that changes nothing in an outdated copy also changes nothing in the current Workflow.

    This saves an API call for each repeated event.
    """
    if state is not None and state.terminal:
        return True
    if isinstance(event, ActionStarted | ActionSucceeded | ActionFailed):
        return True  # the action has already reached this state, and actions never go back
    # The copy may say Running when the API says Cancelling. Then a rejection because the agent does not run the
    # Workflow ends it.
    ends = (REASON_UNKNOWN_WORKFLOW, REASON_ALREADY_FINISHED)
    return isinstance(event, Rejected) and event.reason not in ends and state is WorkflowState.RUNNING
