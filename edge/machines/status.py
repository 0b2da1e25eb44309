"""The skeleton of the writers of a Hardware's status, and how one condition is written among those of others."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from typing import Any, Final

from tink.api.v1alpha2 import ConditionStatus, Raw, as_mapping
from tink.kube.client import ApiError, ConflictError, KubeClient
from tink.kube.objects import NamespacedName
from tink.kube.resources import HARDWARE
from tink.kube.runtime import DONE, Controller, Result, controller_log
from tink.timestamps import rfc3339

log = logging.getLogger(__name__)

ATTEMPTS: Final = 10
"""Tries to write one change, with delays that grow to a minute."""

Condition = dict[str, Any]


class StatusWriter(ABC):
    """Writes a part of the status. What is to be looked at waits in a queue, at most once for each Hardware.

    Belongs to one event loop. Without `run`, nothing is written.
    """

    def __init__(self, client: KubeClient, what: str, *, retry_first: float = 0.5, retry_longest: float = 60.0) -> None:
        """`what` names the part in log lines, such as `its condition BootProblem`."""
        self._client = client
        self._what = what
        self._limited_log = controller_log(log, time.monotonic)
        self.runtime = Controller(
            "Hardware",
            self._reconcile,
            retry_first=retry_first,
            retry_longest=retry_longest,
            on_error=lambda *_: True,  # said when it is given up
        )
        self._queue = self.runtime.queue

    async def run(self) -> None:
        """Write for ever."""
        try:
            await self.runtime.run()
        finally:
            self._queue.shut_down()

    @abstractmethod
    async def _write(self, key: NamespacedName) -> None:
        """Write it, if what is there is not what should be. Raises ApiError."""

    async def _reconcile(self, key: NamespacedName) -> Result:
        try:
            await self._write(key)
        except ApiError as error:
            if not _lasts(error) and self._queue.num_requeues(key) + 1 < ATTEMPTS:
                raise
            text = "Hardware %s: %s is not written: %s%s"
            self._limited_log.warning(text, key, self._what, error, _ADVICE.get(error.status, ""), owner=key.namespace)
        except Exception:
            # A mistake of ours about one Hardware must not keep the others from being written.
            log.exception("Hardware %s: %s is not written", key, self._what)
        return DONE


_ADVICE: Final = {
    403: "; allow the edge to get hardware and to patch hardware/status",
    404: "; if its definition is an older one, 'tinkedge crds | kubectl apply --server-side -f -' mends that",
}


def condition_of(hardware: Raw, kind: str) -> Condition:
    """The condition of this type; empty if there is none."""
    return next((one for one in _conditions(hardware) if as_mapping(one).get("type") == kind), {})


def condition(kind: str, status: ConditionStatus, reason: str, message: str) -> Condition:
    """A condition to write."""
    return {"type": kind, "status": status.value, "reason": str(reason), "message": message}


def differs(current: Condition, wanted: Condition) -> bool:
    """Return True if a condition has another status, reason or message than the one to write."""
    return any(current.get(field) != wanted[field] for field in ("status", "reason", "message"))


async def write(client: KubeClient, hardware: Raw, wanted: Condition, now: float, **fields: Any) -> None:
    """Set a condition and keep all others, if nobody has changed the Hardware meanwhile. Raises ApiError.

    Its lastTransitionTime is `now` (seconds since the epoch) if its status is another one than before (Kubernetes API
    conventions, "Typical status properties"). `fields` of the status are written with it; None removes one.
    """
    conditions, current = _conditions(hardware), condition_of(hardware, wanted["type"])
    since = current.get("lastTransitionTime") if current.get("status") == wanted["status"] else None
    new = {**wanted, "lastTransitionTime": since or rfc3339(now)}
    kept = [new if one is current else one for one in conditions]
    if not current:
        kept.append(new)
    metadata = {"resourceVersion": hardware["metadata"]["resourceVersion"]}
    key = NamespacedName.of(hardware)
    patch = {"metadata": metadata, "status": {"conditions": kept, **fields}}
    await client.patch(HARDWARE, key.name, key.namespace, patch, subresource="status")


def _lasts(error: ApiError) -> bool:
    """Whether another attempt would fail as this one did."""
    return 400 <= error.status < 500 and not isinstance(error, ConflictError) and error.status != 429


def _conditions(hardware: Raw) -> list[Any]:
    conditions = as_mapping(hardware.get("status")).get("conditions")
    return conditions if isinstance(conditions, list) else []
