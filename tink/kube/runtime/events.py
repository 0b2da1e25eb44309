"""Records Kubernetes Events about objects, for `kubectl describe` and `kubectl events`: client-go's EventRecorder.

Events are a courtesy, so they come after the real work: when for a moment nothing has happened that is worth one. They
are written at a bounded rate, and are dropped where they would pile up or the API does not take them; first those of
the namespace that has most.

An Event's name is made from what it says, so that two replicas, or one after a restart, don't record it twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from tink.api.v1alpha2 import Raw
from tink.kube.client import ApiError, ConflictError, KubeClient
from tink.kube.resources import EVENT, ResourceType
from tink.limits.fairness import FairQueue
from tink.limits.once_per import OncePer
from tink.timestamps import rfc3339

log = logging.getLogger(__name__)

_BURST = 100
_PER_SECOND = 20.0
_BACKLOG = 1000
SETTLE_SECONDS = 1.0
"""Events wait until for so long none was recorded: what tells of one change mostly comes with the next."""
_LONGEST_WAIT_SECONDS = 10.0
"""The oldest waits no longer than that, whatever comes."""
_LONGEST_MESSAGE = 1024
"""Characters; Kubernetes takes no more (k8s.io/kubernetes, pkg/apis/core/validation/events.go)."""
_TIMEOUT_SECONDS = 5.0
_COMPLAINT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Event:
    """What is said of an object: `reason` is a word in CamelCase; a `warning` (of the type Warning, not Normal) is
    something that an operator may have to look after."""

    reason: str
    message: str
    warning: bool = False


def manifest(obj: Raw, resource: ResourceType, event: Event, *, component: str, host: str, now: float) -> Raw:
    """The Event (core/v1) in which `component` says it of `obj`, which is a `resource`; `now` is in seconds since the
    epoch."""
    metadata = obj["metadata"]
    stamp = rfc3339(now)
    status = obj.get("status")
    since = status.get("lastTransitioned") if isinstance(status, dict) else None
    identity = "\n".join(map(str, (metadata.get("uid"), event.reason, event.message, since)))
    name = f"{metadata['name'][:220]}.{hashlib.sha256(identity.encode('utf-8', 'replace')).hexdigest()[:16]}"
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {"name": name, "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            **{
                field: metadata[field] for field in ("namespace", "name", "uid", "resourceVersion") if field in metadata
            },
        },
        "type": "Warning" if event.warning else "Normal",
        "reason": event.reason,
        "message": event.message[:_LONGEST_MESSAGE],
        "source": {"component": component, "host": host},
        "reportingComponent": component,
        "reportingInstance": host,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }


class EventRecorder:
    """Writes Events while it is `run`; those from before that, or while it can't keep up, are dropped."""

    def __init__(
        self,
        client: KubeClient,
        component: str,
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        settle: float = SETTLE_SECONDS,
    ) -> None:
        """`now` gives seconds since the epoch, `clock` monotonic ones; `settle` is in seconds."""
        self._client = client
        self._component = component
        self._now = now
        self._clock = clock
        self._host = socket.gethostname()
        self._waiting: FairQueue[Raw] = FairQueue()
        self._wakeup = asyncio.Event()
        self._settle = settle
        self._first_at = self._last_at = 0.0
        """When the first of those that wait and the last of all were recorded."""
        self._running = False
        self._dropped = 0
        self._complaint = OncePer(_COMPLAINT_SECONDS, 1)

    def event(self, obj: Raw, resource: ResourceType, event: Event) -> None:
        """Have it written some time; `obj` is a `resource`."""
        if not self._running:
            return
        made = manifest(obj, resource, event, component=self._component, host=self._host, now=self._now())
        self._last_at = self._clock()
        if not self._waiting:
            self._first_at = self._last_at
        self._waiting.append(made["metadata"]["namespace"], made)
        if len(self._waiting) > _BACKLOG:
            self._waiting.drop()
            self._drop("there are too many")
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
                if (wait := self._left()) > 0:
                    await asyncio.sleep(wait)
                    continue
                allowed, at = min(_BURST, allowed + (self._clock() - at) * _PER_SECOND), self._clock()
                if allowed < 1:
                    await asyncio.sleep(max((1 - allowed) / _PER_SECOND, 0.001))  # rounding may leave next to nothing
                    continue
                allowed -= 1
                await self._write(self._waiting.popleft())
        finally:
            self._running = False
            self._waiting.clear()

    def _left(self) -> float:
        """Seconds until those that wait are due, if nothing is added."""
        return min(self._last_at + self._settle, self._first_at + _LONGEST_WAIT_SECONDS) - self._clock()

    async def flush(self) -> None:
        """Write what waits, at once."""
        while self._waiting:
            await self._write(self._waiting.popleft())

    async def _write(self, body: Raw) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                await self._client.create(EVENT, body)
        except ConflictError:
            return  # it was recorded before
        except TimeoutError:
            self._drop(f"no answer within {_TIMEOUT_SECONDS:g} s")
        except ApiError as error:
            self._drop(str(error))
        except Exception:
            # A mistake of ours about a courtesy must not stop the work.
            log.exception("an Event can't be written")

    def _drop(self, why: str) -> None:
        self._dropped += 1
        if self._complaint.due("", self._clock()):
            log.warning("Events are not written, %d so far: %s", self._dropped, why)
