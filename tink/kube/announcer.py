"""Tells of objects in Kubernetes Events, for `kubectl describe` and `kubectl events`.

Events are a courtesy, so they come after the real work, at a bounded rate, and are dropped where they would pile up or
the API does not take them; first those of the namespace that has most.

An Event's name is made from what it tells, so that two replicas, or one after a restart, don't tell it twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from tink.api.v1alpha2 import Raw
from tink.kube.client import ApiError, ConflictError, KubeClient
from tink.kube.resources import ResourceType
from tink.kube.rounds import Rounds

log = logging.getLogger(__name__)

EVENT = ResourceType("", "v1", "events", "Event")

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


def event(obj: Raw, about: ResourceType, told: Announcement, *, component: str, host: str, now: float) -> Raw:
    """The Event (core/v1) in which `component` tells it of `obj`, which is an `about`; `now` is in seconds since the
    epoch."""
    metadata = obj["metadata"]
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = obj.get("status")
    since = status.get("lastTransitioned") if isinstance(status, dict) else None
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
        component: str,
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._component = component
        self._now = now
        self._clock = clock
        self._host = socket.gethostname()
        self._waiting: Rounds[Raw] = Rounds()
        self._wakeup = asyncio.Event()
        self._running = False
        self._dropped = 0
        self._complained_at: float | None = None

    def tell(self, obj: Raw, about: ResourceType, told: Announcement) -> None:
        """Have it written down some time; `obj` is an `about`."""
        if not self._running:
            return
        made = event(obj, about, told, component=self._component, host=self._host, now=self._now())
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
