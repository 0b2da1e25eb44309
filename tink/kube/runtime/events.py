"""Records Kubernetes Events about objects, for `kubectl describe` and `kubectl events`: client-go's EventRecorder.

Events are less urgent than the real work, so they are written after a moment without new ones, at a bounded rate. They
are dropped if they pile up or the API refuses them; first those of the namespace that has most.

The name of an Event is derived from its content, so that two replicas, or one after a restart, don't record it twice.
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
from tink.limits import FairQueue, OncePer
from tink.timestamps import rfc3339

log = logging.getLogger(__name__)

_BURST = 100
_PER_SECOND = 20.0
_BACKLOG = 1000
SETTLE_SECONDS = 1.0
"""Events wait until none was recorded for this time, because the changes that cause them come in groups."""
_MAX_WAIT_SECONDS = 10.0
"""Maximum waiting time of an Event."""
_MAX_MESSAGE = 1024
"""Maximum length in characters (k8s.io/kubernetes, pkg/apis/core/validation/events.go)."""
_TIMEOUT_SECONDS = 5.0
_MIN_PAUSE_SECONDS = 0.001
"""Rounding may leave a pause of almost 0, in which the clock does not move."""
_LOG_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Event:
    """The content of an Event: `reason` is a word in CamelCase; a `warning` has the type Warning instead of Normal."""

    reason: str
    message: str
    warning: bool = False


def manifest(obj: Raw, resource: ResourceType, event: Event, *, component: str, host: str, now: float) -> Raw:
    """Return the Event (core/v1) of `component` about an object of `resource`; `now` is in Unix seconds."""
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
        "message": event.message[:_MAX_MESSAGE],
        "source": {"component": component, "host": host},
        "reportingComponent": component,
        "reportingInstance": host,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }


class EventRecorder:
    """Writes Events while `run` runs; earlier ones are dropped."""

    def __init__(
        self,
        client: KubeClient,
        component: str,
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        settle: float = SETTLE_SECONDS,
    ) -> None:
        """Create a recorder. `now` returns Unix seconds, `clock` monotonic ones; `settle` is in seconds."""
        self._client = client
        self._component = component
        self._now = now
        self._clock = clock
        self._host = socket.gethostname()
        self._waiting: FairQueue[Raw] = FairQueue()
        self._wakeup = asyncio.Event()
        self._settle = settle
        self._first_at = self._last_at = 0.0
        """The times at which the first waiting Event and the last Event were recorded."""
        self._running = False
        self._dropped = 0
        self._logged = OncePer(_LOG_SECONDS, 1)

    def event(self, obj: Raw, resource: ResourceType, event: Event) -> None:
        """Queue an Event about an object of `resource`."""
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
                    await asyncio.sleep(max(wait, _MIN_PAUSE_SECONDS))
                    continue
                allowed, at = min(_BURST, allowed + (self._clock() - at) * _PER_SECOND), self._clock()
                if allowed < 1:
                    await asyncio.sleep(max((1 - allowed) / _PER_SECOND, _MIN_PAUSE_SECONDS))
                    continue
                allowed -= 1
                await self._write(self._waiting.popleft())
        finally:
            self._running = False
            self._waiting.clear()

    def _left(self) -> float:
        """Return the seconds until the waiting Events are due if none is added."""
        return min(self._last_at + self._settle, self._first_at + _MAX_WAIT_SECONDS) - self._clock()

    async def flush(self) -> None:
        """Write all waiting Events at once."""
        while self._waiting:
            await self._write(self._waiting.popleft())

    async def _write(self, body: Raw) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                await self._client.create(EVENT, body)
        except ConflictError:
            return  # recorded before
        except TimeoutError:
            self._drop(f"no answer within {_TIMEOUT_SECONDS:g} s")
        except ApiError as error:
            self._drop(str(error))
        except Exception:
            # An error about an Event must not stop the work.
            log.exception("an Event can't be written")

    def _drop(self, why: str) -> None:
        self._dropped += 1
        if self._logged.due("", self._clock()):
            log.warning("Events are not written, %d so far: %s", self._dropped, why)
