"""The server's writes: claims of Workflows, and agents' events, stored in the status through the state machine."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tink.api.v1alpha2 import Raw, WorkflowState
from tink.kube.client import ApiError, ConflictError, KubeClient, NotFoundError
from tink.kube.resources import WORKFLOW
from tink.server.dispatch import Rejections
from tink.server.workflows import WorkflowIndex, uid_of
from tink.workflow import machine
from tink.workflow.machine import Author
from tink.workflow.status import Status, name_of, status_patch

log = logging.getLogger(__name__)

_ATTEMPTS = 8


class WorkflowGoneError(LookupError):
    """The Workflow was deleted, perhaps to be created again: nothing is left that an event could change."""


class StaleError(RuntimeError):
    """The Workflow changed so often that the event could not be stored: try again."""


class EventStore:
    """Writes to the API what the state machine makes of events. `clock` gives seconds since the epoch."""

    def __init__(
        self, client: KubeClient, workflows: WorkflowIndex, rejections: Rejections, clock: Callable[[], float]
    ) -> None:
        self._client = client
        self._workflows = workflows
        self._rejections = rejections
        self._clock = clock

    async def take(self, workflow: Raw, event: machine.AgentEvent) -> bool:
        """Store what `event` makes of `workflow` (as the informer last saw it); False if that changes nothing.

        Raises WorkflowGoneError, StaleError, UnknownActionError, InvalidStatusError, ApiError.
        """
        fresh = False
        noted = False
        for _ in range(_ATTEMPTS):
            try:
                status = machine.apply(workflow, event, self._clock(), Author.SERVER)
            except machine.UnknownActionError:
                if fresh:
                    raise
                status = None
            if status is None:
                if fresh:
                    return False
                # The informer's copy may be behind; an event must not be lost because of that.
                workflow, fresh = await self._read(workflow), True
                continue
            if status["state"] == WorkflowState.PENDING and not noted:
                # Before the write: the stream may hear of it first, and must not offer the Workflow again at once.
                delay = self._rejections.rejected(uid_of(workflow), self._clock())
                log.info("Workflow %s is not offered again before %.0f s have passed", name_of(workflow), delay)
                noted = True
            try:
                await self._store(workflow, status)
            except ConflictError:
                workflow, fresh = await self._read(workflow), True
            except NotFoundError as error:
                raise WorkflowGoneError(name_of(workflow)) from error
            else:
                if isinstance(event, machine.ActionStarted):
                    self._rejections.forget(uid_of(workflow))
                return True
        raise StaleError(f"Workflow {name_of(workflow)} changes too often; try again")

    async def claim(self, workflow: Raw) -> Raw | None:
        """Make a Pending Workflow Scheduled; None if somebody changed it meanwhile, or the API is away."""
        status = machine.apply(workflow, machine.Dispatched(), self._clock(), Author.SERVER)
        if status is None:
            return None
        try:
            return await self._store(workflow, status)
        except (ConflictError, NotFoundError):
            return None  # the informer will tell what it is now
        except ApiError as error:
            log.warning("Workflow %s can't be scheduled, trying again: %s", name_of(workflow), error)
            return None

    async def take_back(self, workflow: Raw) -> None:
        """Make a Workflow that was claimed but not sent Pending again. If somebody changed it since, or the API is
        away, it stays as it is: the agent is sent it when it comes back."""
        status = machine.apply(workflow, machine.Undelivered(), self._clock(), Author.SERVER)
        if status is None:
            return
        try:
            await self._store(workflow, status)
        except (ConflictError, NotFoundError):
            return
        except ApiError as error:
            log.warning("Workflow %s stays Scheduled until its agent comes back: %s", name_of(workflow), error)

    async def _read(self, workflow: Raw) -> Raw:
        """The Workflow as it is now. Raises WorkflowGoneError, ApiError."""
        metadata = workflow["metadata"]
        try:
            now = await self._client.get(WORKFLOW, metadata["name"], metadata.get("namespace"))
        except NotFoundError as error:
            raise WorkflowGoneError(name_of(workflow)) from error
        if uid_of(now) != uid_of(workflow):
            raise WorkflowGoneError(name_of(workflow))
        return now

    async def _store(self, workflow: Raw, status: Status) -> Raw:
        metadata = workflow["metadata"]
        patch = status_patch(workflow, status)
        stored = await self._client.patch(
            WORKFLOW, metadata["name"], metadata.get("namespace"), patch, subresource="status"
        )
        self._workflows.refresh(stored)
        return stored
