"""Tells of Workflows in Kubernetes Events, for `kubectl describe workflow` and `kubectl events`.

`announcement` reads from two versions of a Workflow what is worth telling. The `Announcer` writes it down when it can:
Events are a courtesy, so they come after the real work, at a bounded rate, and are dropped where they would pile up or
the API does not take them.

An Event's name is made from what it tells, so that two replicas, or one after a restart, don't tell it twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from tink.api.v1alpha2 import ConditionStatus, Raw, WorkflowState
from tink.kube.client import ApiError, ConflictError, KubeClient
from tink.kube.resources import WORKFLOW, ResourceType
from tink.workflow.machine import REASON_CANCEL_TIMEOUT
from tink.workflow.status import ConditionType, actions_of, condition, status_of

log = logging.getLogger(__name__)

EVENT = ResourceType("", "v1", "events", "Event")
COMPONENT = "tinkedge-controller"

_BURST = 100
_PER_SECOND = 20.0
_BACKLOG = 1000
_LONGEST_MESSAGE = 1024
"""Characters; Kubernetes takes no more (k8s.io/kubernetes, pkg/apis/core/validation/events.go)."""
_TIMEOUT = 5.0
_COMPLAINT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Announcement:
    """`reason` is a word in CamelCase; a `warning` is something that an operator may have to look after."""

    reason: str
    message: str
    warning: bool = False


def announcement(new: Raw, old: Raw) -> Announcement | None:
    """What the change from `old` to `new` is, in a word and a sentence; None if it is not worth an Event."""
    status = status_of(new)
    before, after = status_of(old).get("state"), status.get("state")
    prepared = condition(status, ConditionType.PREPARED)
    if after == before:
        waits = prepared.get("status") == ConditionStatus.FALSE
        if waits and prepared != condition(status_of(old), ConditionType.PREPARED):
            return Announcement(str(prepared.get("reason")), str(prepared.get("message", "")), warning=True)
        return None
    succeeded = condition(status, ConditionType.SUCCEEDED)
    reason, message = str(succeeded.get("reason") or after), str(succeeded.get("message") or "")
    actions = len(actions_of(status))
    match after:
        case WorkflowState.PENDING if before == WorkflowState.SCHEDULED:
            why = condition(status, ConditionType.STARTED)
            said = f"the agent does not take it now: {why.get('reason', '')}: {why.get('message', '')}".rstrip(": ")
            return Announcement("Returned", said, warning=True)
        case WorkflowState.PENDING:
            return Announcement("Prepared", f"{actions} actions, waiting for the agent")
        case WorkflowState.SCHEDULED:
            return Announcement("Scheduled", "given to the agent")
        case WorkflowState.RUNNING:
            return Announcement("Running", f"the agent has started the first of {actions} actions")
        case WorkflowState.SUCCEEDED:
            return Announcement("Succeeded", message or f"all {actions} actions have succeeded")
        case WorkflowState.FAILED:
            return Announcement(reason, message or "the Workflow has failed", warning=True)
        case WorkflowState.CANCELLING:
            return Announcement("Cancelling", message or "the agent is told to stop")
        case WorkflowState.CANCELED:
            return Announcement(reason, message or "the Workflow was stopped", reason == REASON_CANCEL_TIMEOUT)
        case _:
            return None


def event(
    workflow: Raw,
    told: Announcement,
    now: float,
    host: str,
    *,
    about: ResourceType = WORKFLOW,
    component: str = COMPONENT,
) -> Raw:
    """The Event (core/v1) in which `component` tells it of `workflow`, or an object of another type (`about`); `now`
    is in seconds since the epoch."""
    metadata = workflow["metadata"]
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    since = status_of(workflow).get("lastTransitioned")
    identity = "\n".join(map(str, (metadata.get("uid"), told.reason, told.message, since)))
    name = f"{metadata['name'][:220]}.{hashlib.sha256(identity.encode('utf-8', 'replace')).hexdigest()[:16]}"
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {"name": name, "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": about.api_version,
            "kind": about.kind,
            **{
                field: metadata[field] for field in ("namespace", "name", "uid", "resourceVersion") if field in metadata
            },
        },
        "type": "Warning" if told.warning else "Normal",
        "reason": told.reason,
        "message": told.message[:_LONGEST_MESSAGE],
        "source": {"component": component, "host": host},
        "reportingComponent": component,
        "reportingInstance": host,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }


class Announcer:
    """Writes Events while it is `run`; what is told before that, or while it can't keep up, is dropped."""

    def __init__(
        self,
        client: KubeClient,
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        component: str = COMPONENT,
    ) -> None:
        self._client = client
        self._component = component
        self._now = now
        self._clock = clock
        self._host = socket.gethostname()
        self._waiting: deque[Raw] = deque()
        self._wakeup = asyncio.Event()
        self._running = False
        self._dropped = 0
        self._complained_at: float | None = None

    def changed(self, new: Raw, old: Raw | None) -> None:
        """A handler of the Workflows' informer."""
        if self._running and old is not None and (told := announcement(new, old)) is not None:
            self.tell(new, told)

    def tell(self, workflow: Raw, told: Announcement, about: ResourceType = WORKFLOW) -> None:
        """Have it written down some time; `workflow` may be an object of another type."""
        if not self._running:
            return
        if len(self._waiting) >= _BACKLOG:
            self._drop("there are too many")
            return
        component = self._component
        self._waiting.append(event(workflow, told, self._now(), self._host, about=about, component=component))
        self._wakeup.set()

    async def run(self) -> None:
        """Write until cancelled."""
        allowed, at = float(_BURST), self._clock()
        self._running = True
        try:
            while True:
                while not self._waiting:
                    self._wakeup.clear()
                    await self._wakeup.wait()
                allowed, at = min(_BURST, allowed + (self._clock() - at) * _PER_SECOND), self._clock()
                if allowed < 1:
                    await asyncio.sleep((1 - allowed) / _PER_SECOND)
                    continue
                allowed -= 1
                await self._write(self._waiting.popleft())
        finally:
            self._running = False
            self._waiting.clear()

    async def flush(self) -> None:
        """Write what waits, at once."""
        while self._waiting:
            await self._write(self._waiting.popleft())

    async def _write(self, body: Raw) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT):
                await self._client.create(EVENT, body)
        except ConflictError:
            return  # it was told before
        except TimeoutError:
            self._drop(f"no answer within {_TIMEOUT:g} s")
        except ApiError as error:
            self._drop(str(error))
        except Exception:
            # A mistake of ours about a courtesy must not stop the work.
            log.exception("an Event can't be written")

    def _drop(self, why: str) -> None:
        self._dropped += 1
        now = self._clock()
        if self._complained_at is None or now - self._complained_at >= _COMPLAINT_SECONDS:
            self._complained_at = now
            log.warning("Events are not written, %d so far: %s", self._dropped, why)
