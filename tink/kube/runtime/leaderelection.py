"""Leader election: of several replicas that could do the same work, one does it.

The replicas agree by a Lease (coordination.k8s.io/v1), in the way and in the words of client-go's `leaderelection`, so
that `kubectl get leases` shows who leads and other tools understand it. The leader renews the Lease every
`retry_period` seconds. A replica that has not seen it change for the Lease's own duration takes it over, by a write
that fails if another was faster. Replicas that wait watch it, so that they see a renewal when it happens, and not when
they look next: a leader that was killed is replaced at most `lease_duration` seconds later.

Nobody's clock is trusted. What the times in the Lease say is for readers; how long it is since it changed each replica
measures from the moment it saw the change, by a clock that does not jump. So replicas may disagree about the time by
years, as long as their seconds are about equally long.

Never two at a time. A leader may act until `renew_deadline` seconds after it *sent* the last renewal that succeeded; a
successor waits for `lease_duration` seconds, which is longer, after it *saw* that renewal. In the gap between the two
the old leader's work is cancelled, and no write of it lasts longer than `LeaderElector.write_timeout`, which is shorter
than the gap. A process that was frozen through all that asks `LeaderElector.is_leader` before it writes:
`while_leading` does both. (What can't be excluded is a request that lies in a network for longer than the gap and
arrives all the same: a write that depends on what was read before names the resourceVersion.)

A leader that stops gives the Lease back when its work has ended, and the next one begins at once; within `retry_period`
seconds, where it may not watch.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import math
import random
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson

from tink.api.v1alpha2 import Raw, as_mapping
from tink.kube.client import ApiError, ConflictError, KubeClient, NotFoundError, UnreachableError
from tink.kube.resources import LEASE
from tink.timestamps import rfc3339

log = logging.getLogger(__name__)

T = TypeVar("T")

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_POD_NAMESPACE, _POD_TOKEN = _ACCOUNT / "namespace", _ACCOUNT / "token"
_WATCH_SECONDS = 290
_DENIED = (401, 403)
_SHORTEST_PAUSE_SECONDS = 0.05
_LONGEST_DURATION_SECONDS = 3600
"""A Lease that says more was written by hand, and would keep everybody waiting."""


def pod_namespace(default: str = "default", path: Path = _POD_NAMESPACE) -> str:
    """The namespace of the pod that this process runs in, where its Lease belongs; `default` outside of pods."""
    try:
        return path.read_text().strip() or default
    except OSError:
        return default


@dataclass(frozen=True, slots=True)
class Pod:
    """The pod that this process runs in, from its service account's token."""

    name: str
    uid: str


def own_pod(path: Path = _POD_TOKEN) -> Pod | None:
    """Return the pod to which the mounted token is bound, or None outside of pods and for a token without a pod.

    The API server passes the same name to admission policies, as `authentication.kubernetes.io/pod-name` of the user.
    """
    try:
        claims = path.read_text().strip().split(".")[1]
        padded = claims + "=" * (-len(claims) % 4)
        pod = orjson.loads(base64.urlsafe_b64decode(padded))["kubernetes.io"]["pod"]
        name, uid = pod["name"], pod["uid"]
    except (OSError, LookupError, TypeError, ValueError):
        return None
    return Pod(name, uid) if isinstance(name, str) and isinstance(uid, str) else None


def steady() -> float:
    """Seconds on a clock that nobody sets and that goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class LeaderElectionConfig:
    """Which Lease, and its times in seconds; they are client-go's.

    `lease_duration`: how long a successor waits after the last renewal that it saw. `renew_deadline`: how long a leader
    acts without one. `retry_period`: how often it is tried to renew, or to take over.
    """

    name: str
    namespace: str = "default"
    lease_duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0

    def __post_init__(self) -> None:
        if not self.lease_duration > self.renew_deadline > 1.2 * self.retry_period > 0:
            raise ValueError(
                f"Lease {self.namespace}/{self.name}: the duration ({self.lease_duration:g} s) must be longer than the "
                f"renew deadline ({self.renew_deadline:g} s), and that longer than 1.2 times the retry period "
                f"({self.retry_period:g} s)"
            )


class LeadershipLostError(Exception):
    """This replica leads no more, and whoever cancels its work has not had a turn yet: the process was held up for
    longer than its Lease lasts."""


async def while_leading(elector: LeaderElector | None, write: Callable[[], Awaitable[T]]) -> T:
    """Write, if this replica may, and for no longer than it may; without an `elector` it is the only one.

    Raises LeadershipLostError; UnreachableError, if it took too long; and what `write` raises.
    """
    if elector is None:
        return await write()
    if not elector.is_leader:
        raise LeadershipLostError
    try:
        async with asyncio.timeout(elector.write_timeout):
            return await write()
    except TimeoutError as error:
        raise UnreachableError(f"no answer within {elector.write_timeout:g} s") from error


async def run_as_leader(elector: LeaderElector | None, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do `act` while this replica leads (see `LeaderElector.run`); without an `elector` it is the only one."""
    await (act() if elector is None else elector.run(act))


class LeaderElector:
    """One replica's part in the election. `run` it as one task."""

    def __init__(
        self,
        client: KubeClient,
        config: LeaderElectionConfig,
        *,
        identity: str | None = None,
        clock: Callable[[], float] = steady,
        now: Callable[[], float] = time.time,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """`identity` must be no other replica's, not even an earlier process's of this host: by default it is random.
        `clock` measures (see `steady`), `now` is only shown in the Lease."""
        self._client = client
        self._config = config
        self.identity = identity or f"{socket.gethostname()}_{secrets.token_hex(8)}"
        self._clock = clock
        self._now = now
        self._uniform = uniform
        self._where = f"Lease {config.namespace}/{config.name}"
        self._observed: Any = None
        self._observed_at = -math.inf
        self._may_act_until = -math.inf
        self._failing = False
        self._lost_because = ""
        self._free = asyncio.Event()
        """Set when a replica that waits has heard that nobody holds the Lease."""

    @property
    def is_leader(self) -> bool:
        """Whether this replica may act at this moment."""
        return self._clock() < self._may_act_until

    @property
    def name(self) -> str:
        """That of the Lease."""
        return self._config.name

    @property
    def leader(self) -> str:
        """Who held the Lease when it was last seen; empty: nobody."""
        return str((self._observed or {}).get("holderIdentity") or "")

    @property
    def write_timeout(self) -> float:
        """Seconds that a single write of the leader may take: it has ended before a successor begins."""
        return 0.8 * (self._config.lease_duration - self._config.renew_deadline)

    async def run(self, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do `act` while this replica leads: it is begun when that is so and cancelled when it is no more, again and
        again, until this is cancelled. Ends when `act` ends by itself, with its error."""
        try:
            while True:
                await self._acquire()
                if await self._renew(act):
                    return
        finally:
            await self._release()

    # --- the two halves of a replica's life -------------------------------------------------------------------------

    async def _acquire(self) -> None:
        """Return when this replica leads."""
        following: asyncio.Task[None] | None = None
        try:
            while True:
                self._free.clear()
                await self._try_acquire_or_renew()
                if self.is_leader:
                    log.info("%s: this replica leads now, as %s", self._where, self.identity)
                    return
                if following is None and self._observed is not None:
                    following = asyncio.create_task(self._follow(), name=f"watch of {self._where}")
                await self._rest()
        finally:
            if following is not None:
                following.cancel()
                await asyncio.wait([following])

    async def _rest(self) -> None:
        """Until it is worth another try: the Lease is free, has run out, or was not looked at for a while."""
        pause = self._config.retry_period * self._uniform(0.75, 1.0)
        left = self._runs_out_at() - self._clock()
        if left > 0:
            pause = max(min(pause, left), _SHORTEST_PAUSE_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._free.wait()

    async def _follow(self) -> None:
        """Note each change of the Lease when it happens. It only tells when to look: nothing is decided by it."""
        while True:
            pause = self._config.retry_period
            where = LEASE, self._config.namespace, ""
            try:
                async with self._client.watch(*where, _WATCH_SECONDS, name=self._config.name) as stream:
                    async for line in stream:
                        self._hear(line)
            except (ApiError, ValueError) as error:
                if isinstance(error, ApiError) and error.status in _DENIED:
                    text = "%s is looked at every %g s, and not watched, which it takes the verb watch for: %s"
                    log.info(text, self._where, self._config.retry_period, error)
                    return
                log.debug("%s: %s", self._where, error)
                pause = self._config.lease_duration
            await asyncio.sleep(pause)

    def _hear(self, line: bytes) -> None:
        """Take in an event of the watch. Raises ValueError for one that can't be read, or is an error."""
        event = as_mapping(orjson.loads(line))
        lease = as_mapping(event.get("object"))
        match event.get("type"):
            case "ADDED" | "MODIFIED":
                self._observe(lease)
                if not _holder(lease):
                    self._free.set()
            case "ERROR":
                raise ValueError(f"the watch has ended: {line[:200]!r}")

    async def _renew(self, act: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Have it done while the Lease can be renewed; whether it ended by itself."""
        acting = asyncio.create_task(act(), name=f"work of the leader of {self._config.name}")
        try:
            while self.is_leader:
                rest = self._may_act_until - self._clock()
                done, _ = await asyncio.wait([acting], timeout=min(self._config.retry_period, rest))
                if done:
                    acting.result()
                    return True
                await self._try_acquire_or_renew()
        finally:
            acting.cancel()
            await asyncio.wait([acting])
        if not acting.cancelled() and acting.exception() is not None:
            acting.result()
        why = self._lost_because or "it could not renew in time"
        log.warning("%s: this replica leads no more: %s", self._where, why)
        return False

    # --- the Lease --------------------------------------------------------------------------------------------------

    async def _try_acquire_or_renew(self) -> None:
        """Renew the Lease, or take it if it is free; `is_leader` tells whether that went well."""
        rest = self._may_act_until - self._clock()
        # As client-go: half of what a leader has, so that there is time for a second attempt over another connection.
        limit = self._config.renew_deadline / 2
        try:
            async with asyncio.timeout(min(limit, rest) if rest > 0 else limit):
                await self._acquire_or_renew()
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

    async def _acquire_or_renew(self) -> None:
        sent_at = self._clock()
        try:
            lease = await self._client.get(LEASE, self._config.name, self._config.namespace)
        except NotFoundError:
            # Somebody deleted it. Who has seen its holder leaves that one the time to write it anew.
            if not self._held_by_another():
                metadata = {"name": self._config.name, "namespace": self._config.namespace}
                body = {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata}
                self._renewed(await self._client.create(LEASE, {**body, "spec": self._new_record({})}), sent_at)
            return
        self._observe(lease)
        if self._held_by_another():
            self._lost_because = f"{_holder(lease)} does"
            self._may_act_until = -math.inf
            return
        sent_at = self._clock()
        body = {"metadata": {"resourceVersion": lease["metadata"]["resourceVersion"]}}
        body["spec"] = self._new_record(_spec(lease))
        self._renewed(await self._client.patch(LEASE, self._config.name, self._config.namespace, body), sent_at)

    def _new_record(self, before: Raw) -> Raw:
        stamp = rfc3339(self._now(), "microseconds")
        record: Raw = {
            "holderIdentity": self.identity,
            # Whole seconds, and never fewer than this replica counts on.
            "leaseDurationSeconds": math.ceil(self._config.lease_duration),
            "renewTime": stamp,
        }
        if before.get("holderIdentity") != self.identity:
            transitions = before.get("leaseTransitions")
            record["acquireTime"] = stamp
            record["leaseTransitions"] = transitions + 1 if isinstance(transitions, int) else 0
        return record

    def _renewed(self, lease: Raw, sent_at: float) -> None:
        self._observe(lease)
        self._lost_because = ""
        # From when it was sent: that is before anybody can have seen it.
        self._may_act_until = sent_at + self._config.renew_deadline

    def _observe(self, lease: Raw) -> None:
        """Note when the Lease was seen to change."""
        spec = _spec(lease)
        if spec == self._observed:
            return
        if _holder(lease) not in ("", self.identity) and _holder(lease) != (self._observed or {}).get("holderIdentity"):
            log.info("%s: %s leads", self._where, _holder(lease))
        self._observed, self._observed_at = spec, self._clock()

    def _held_by_another(self) -> bool:
        """Whether another replica holds the Lease, as far as was seen, and not for too long."""
        return self._clock() < self._runs_out_at()

    def _runs_out_at(self) -> float:
        """When another replica's hold of the Lease is over, unless it renews it; -inf: no other one holds it."""
        if self._observed is None or self._observed.get("holderIdentity") in (None, "", self.identity):
            return -math.inf
        said = self._observed.get("leaseDurationSeconds")
        # A replica with other settings says what it counts on.
        usable = isinstance(said, int) and 0 < said <= _LONGEST_DURATION_SECONDS
        return self._observed_at + max(said if usable else 0, self._config.lease_duration)

    async def _release(self) -> None:
        """Give the Lease back, so that the next one need not wait; without an answer it runs out."""
        was_leading, self._may_act_until = self.is_leader, -math.inf
        if not was_leading:
            return
        try:
            async with asyncio.timeout(self._config.retry_period):
                lease = await self._client.get(LEASE, self._config.name, self._config.namespace)
                if _holder(lease) != self.identity:
                    return
                body = {
                    "metadata": {"resourceVersion": lease["metadata"]["resourceVersion"]},
                    "spec": {"holderIdentity": None, "leaseDurationSeconds": 1},
                }
                await self._client.patch(LEASE, self._config.name, self._config.namespace, body)
        except (ApiError, TimeoutError) as error:
            log.warning("%s: not given back, it runs out in %g s: %s", self._where, self._config.lease_duration, error)
        else:
            log.info("%s: given back", self._where)

    def _failed(self, error: ApiError) -> None:
        if not self._failing:
            aim = "renewed" if self.is_leader else "taken"
            hint = "; it takes the verbs get, create and patch on leases.coordination.k8s.io" * (error.status == 403)
            log.warning("%s can't be %s, trying again: %s%s", self._where, aim, error, hint)
        self._failing = True


def _spec(lease: Raw) -> Raw:
    return as_mapping(lease.get("spec"))


def _holder(lease: Raw) -> str:
    return str(_spec(lease).get("holderIdentity") or "")
