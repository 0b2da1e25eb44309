"""Leader election: of several replicas that could do the same work, one does it.

The replicas agree by a Lease (coordination.k8s.io/v1), in the way of client-go's `leaderelection`, so that `kubectl get
leases` shows who leads and other tools understand it. The leader renews the Lease every `retry` seconds. A replica that
has not seen it change for the Lease's own duration takes it over, by a write that fails if another was faster.

Nobody's clock is trusted. What the times in the Lease say is for readers; how long it is since it changed each replica
measures from the moment it saw the change, by a clock that does not jump. So replicas may disagree about the time by
years, as long as their seconds are about equally long.

Never two at a time. A leader may act until `renew` seconds after it *sent* the last renewal that succeeded; a successor
waits for `duration` seconds, which is longer, after it *saw* that renewal. In the gap between the two the old leader's
work is cancelled, and no write of it lasts longer than `Leader.write_timeout`, which is shorter than the gap. A process
that was frozen through all that asks `Leader.leading` before it writes: `while_leading` does both. (What can't be
excluded is a request that lies in a network for longer than the gap and arrives all the same: a write that depends on
what was read before names the resourceVersion.)

A leader that stops gives the Lease back when its work has ended, and the next one begins within `retry` seconds.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from tink.api.v1alpha2 import Raw
from tink.kube.client import ApiError, ConflictError, KubeClient, NotFoundError, UnreachableError
from tink.kube.resources import ResourceType

log = logging.getLogger(__name__)

T = TypeVar("T")

LEASE = ResourceType("coordination.k8s.io", "v1", "leases", "Lease")

_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_LONGEST_DURATION = 3600
"""Seconds. A Lease that says more was written by hand, and would keep everybody waiting."""


def pod_namespace(default: str = "default", path: Path = _POD_NAMESPACE) -> str:
    """The namespace of the pod that this process runs in, where its Lease belongs; `default` outside of pods."""
    try:
        return path.read_text().strip() or default
    except OSError:
        return default


def steady() -> float:
    """Seconds on a clock that nobody sets and that goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Which Lease, and its times in seconds; they are client-go's.

    `duration`: how long a successor waits after the last renewal that it saw. `renew`: how long a leader acts without
    one. `retry`: how often it is tried to renew, or to take over.
    """

    name: str
    namespace: str = "default"
    duration: float = 15.0
    renew: float = 10.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        if not self.duration > self.renew > 1.2 * self.retry > 0:
            raise ValueError(
                f"Lease {self.namespace}/{self.name}: the duration ({self.duration:g} s) must be longer than the renew "
                f"deadline ({self.renew:g} s), and that longer than 1.2 times the retry period ({self.retry:g} s)"
            )


class DeposedError(Exception):
    """This replica leads no more, and whoever cancels its work has not had a turn yet: the process was held up for
    longer than its Lease lasts."""


async def while_leading(leader: Leader | None, write: Callable[[], Awaitable[T]]) -> T:
    """Write, if this replica may, and for no longer than it may; without a `leader` it is the only one.

    Raises DeposedError; UnreachableError, if it took too long; and what `write` raises.
    """
    if leader is None:
        return await write()
    if not leader.leading:
        raise DeposedError
    try:
        async with asyncio.timeout(leader.write_timeout):
            return await write()
    except TimeoutError as error:
        raise UnreachableError(f"no answer within {leader.write_timeout:g} s") from error


class Leader:
    """One replica's part in the election. `run` it as one task."""

    def __init__(
        self,
        client: KubeClient,
        settings: LeaseSettings,
        *,
        identity: str | None = None,
        clock: Callable[[], float] = steady,
        now: Callable[[], float] = time.time,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """`identity` must be no other replica's, not even an earlier process's of this host: by default it is random.
        `clock` measures (see `steady`), `now` is only shown in the Lease."""
        self._client = client
        self._settings = settings
        self.identity = identity or f"{socket.gethostname()}_{secrets.token_hex(8)}"
        self._clock = clock
        self._now = now
        self._uniform = uniform
        self._where = f"Lease {settings.namespace}/{settings.name}"
        self._seen: Any = None
        self._seen_at = -math.inf
        self._may_act_until = -math.inf
        self._failing = False
        self._told = ""

    @property
    def leading(self) -> bool:
        """Whether this replica may act at this moment."""
        return self._clock() < self._may_act_until

    @property
    def write_timeout(self) -> float:
        """Seconds that a single write of the leader may take: it has ended before a successor begins."""
        return 0.8 * (self._settings.duration - self._settings.renew)

    async def run(self, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do `act` while this replica leads: it is begun when that is so and cancelled when it is no more, again and
        again, until this is cancelled. Ends when `act` ends by itself, with its error."""
        try:
            while True:
                await self._acquire()
                if await self._lead(act):
                    return
        finally:
            await self._release()

    # --- the two halves of a replica's life -------------------------------------------------------------------------

    async def _acquire(self) -> None:
        """Return when this replica leads."""
        while True:
            await self._try()
            if self.leading:
                log.info("%s: this replica leads now, as %s", self._where, self.identity)
                return
            await asyncio.sleep(self._settings.retry * self._uniform(0.75, 1.0))

    async def _lead(self, act: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Have it done while the Lease can be renewed; whether it ended by itself."""
        acting = asyncio.create_task(act(), name=f"work of the leader of {self._settings.name}")
        try:
            while self.leading:
                rest = self._may_act_until - self._clock()
                done, _ = await asyncio.wait([acting], timeout=min(self._settings.retry, rest))
                if done:
                    acting.result()
                    return True
                await self._try()
        finally:
            acting.cancel()
            await asyncio.wait([acting])
        if not acting.cancelled() and acting.exception() is not None:
            acting.result()
        log.warning("%s: this replica leads no more: %s", self._where, self._told or "it could not renew in time")
        return False

    # --- the Lease --------------------------------------------------------------------------------------------------

    async def _try(self) -> None:
        """Renew the Lease, or take it if it is free; `leading` tells whether that went well."""
        rest = self._may_act_until - self._clock()
        # As client-go: half of what a leader has, so that there is time for a second attempt over another connection.
        limit = self._settings.renew / 2
        try:
            async with asyncio.timeout(min(limit, rest) if rest > 0 else limit):
                await self._renew_or_take()
        except ConflictError:
            return  # somebody else was faster; the next look shows who
        except TimeoutError:
            self._failed(UnreachableError(f"no answer within {limit:g} s"))
        except ApiError as error:
            self._failed(error)
        else:
            if self._failing:
                log.info("%s: the API answers again", self._where)
            self._failing = False

    async def _renew_or_take(self) -> None:
        sent_at = self._clock()
        try:
            lease = await self._client.get(LEASE, self._settings.name, self._settings.namespace)
        except NotFoundError:
            # Somebody deleted it. Who has seen its holder leaves that one the time to write it anew.
            if not self._held_by_another():
                metadata = {"name": self._settings.name, "namespace": self._settings.namespace}
                body = {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata}
                self._won(await self._client.create(LEASE, {**body, "spec": self._claim({})}), sent_at)
            return
        self._look(lease)
        if self._held_by_another():
            self._told = f"{_holder(lease)} does"
            self._may_act_until = -math.inf
            return
        sent_at = self._clock()
        body = {"metadata": {"resourceVersion": lease["metadata"]["resourceVersion"]}}
        body["spec"] = self._claim(_spec(lease))
        self._won(await self._client.patch(LEASE, self._settings.name, self._settings.namespace, body), sent_at)

    def _claim(self, before: Raw) -> Raw:
        stamp = datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        claim: Raw = {
            "holderIdentity": self.identity,
            # Whole seconds, and never fewer than this replica counts on.
            "leaseDurationSeconds": math.ceil(self._settings.duration),
            "renewTime": stamp,
        }
        if before.get("holderIdentity") != self.identity:
            transitions = before.get("leaseTransitions")
            claim["acquireTime"] = stamp
            claim["leaseTransitions"] = transitions + 1 if isinstance(transitions, int) else 0
        return claim

    def _won(self, lease: Raw, sent_at: float) -> None:
        self._look(lease)
        self._told = ""
        # From when it was sent: that is before anybody can have seen it.
        self._may_act_until = sent_at + self._settings.renew

    def _look(self, lease: Raw) -> None:
        """Note when the Lease was seen to change."""
        spec = _spec(lease)
        if spec == self._seen:
            return
        if _holder(lease) not in ("", self.identity) and _holder(lease) != (self._seen or {}).get("holderIdentity"):
            log.info("%s: %s leads", self._where, _holder(lease))
        self._seen, self._seen_at = spec, self._clock()

    def _held_by_another(self) -> bool:
        """Whether another replica holds the Lease, as far as was seen, and not for too long."""
        if self._seen is None or self._seen.get("holderIdentity") in (None, "", self.identity):
            return False
        said = self._seen.get("leaseDurationSeconds")
        # A replica with other settings says what it counts on.
        usable = isinstance(said, int) and 0 < said <= _LONGEST_DURATION
        return self._clock() < self._seen_at + max(said if usable else 0, self._settings.duration)

    async def _release(self) -> None:
        """Give the Lease back, so that the next one need not wait; without an answer it runs out."""
        was_leading, self._may_act_until = self.leading, -math.inf
        if not was_leading:
            return
        try:
            async with asyncio.timeout(self._settings.retry):
                lease = await self._client.get(LEASE, self._settings.name, self._settings.namespace)
                if _holder(lease) != self.identity:
                    return
                body = {
                    "metadata": {"resourceVersion": lease["metadata"]["resourceVersion"]},
                    "spec": {"holderIdentity": None, "leaseDurationSeconds": 1},
                }
                await self._client.patch(LEASE, self._settings.name, self._settings.namespace, body)
        except (ApiError, TimeoutError) as error:
            log.warning("%s: not given back, it runs out in %g s: %s", self._where, self._settings.duration, error)
        else:
            log.info("%s: given back", self._where)

    def _failed(self, error: ApiError) -> None:
        if not self._failing:
            aim = "renewed" if self.leading else "taken"
            hint = "; it takes the verbs get, create and patch on leases.coordination.k8s.io" * (error.status == 403)
            log.warning("%s can't be %s, trying again: %s%s", self._where, aim, error, hint)
        self._failing = True


def _spec(lease: Raw) -> Raw:
    spec = lease.get("spec")
    return spec if isinstance(spec, dict) else {}


def _holder(lease: Raw) -> str:
    return str(_spec(lease).get("holderIdentity") or "")
