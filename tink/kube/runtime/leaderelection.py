"""Leader election: one of several replicas does the work that any of them could do.

The replicas agree by a Lease (coordination.k8s.io/v1) like client-go's `leaderelection`, so that `kubectl get leases`
shows the leader and other tools understand it. The leader renews the Lease every `retry_period` seconds. A replica that
has not seen the Lease change for its duration takes it over, by a write that fails if another replica was faster.
Waiting replicas watch the Lease, so that they see each renewal when it happens: a killed leader is replaced at most
`lease_duration` seconds later.

No replica trusts the clock of another. The times in the Lease are for people. Each replica measures the age of the
Lease from the moment when it saw the last change, by a clock that does not jump. So the replicas' times may differ by
years, as long as their seconds have about the same length.

There are never two leaders at a time. A leader may act until `renew_deadline` seconds after it *sent* the last renewal
that succeeded. A successor waits `lease_duration` seconds, which is longer, after it *saw* that renewal. In the gap
between the two, the work of the old leader is cancelled, and none of its writes lasts longer than
`LeaderElector.write_timeout`, which is shorter than the gap. A process that was frozen meanwhile checks
`LeaderElector.is_leader` before it writes; `while_leading` does both. One case remains: a request may stay in the
network for longer than the gap. So a write that depends on what was read before has the resourceVersion in it.

A leader that stops releases the Lease when its work has ended. The next leader starts at once, or within
`retry_period` seconds if it may not watch the Lease.
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
from tink.errors import TinkedgeError
from tink.kube.client import ApiError, ConflictError, KubeClient, NotFoundError, UnreachableError
from tink.kube.resources import LEASE
from tink.timestamps import rfc3339

log = logging.getLogger(__name__)

T = TypeVar("T")

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_POD_NAMESPACE, _POD_TOKEN = _ACCOUNT / "namespace", _ACCOUNT / "token"
_WATCH_SECONDS = 290
_DENIED = (401, 403)
_MIN_PAUSE_SECONDS = 0.05
_MAX_DURATION_SECONDS = 3600
"""A Lease with a longer duration was written by hand, and would block all replicas."""


def pod_namespace(default: str = "default", path: Path = _POD_NAMESPACE) -> str:
    """Return the namespace of the pod that this process runs in, for its Lease; `default` outside of pods."""
    try:
        return path.read_text().strip() or default
    except OSError:
        return default


@dataclass(frozen=True, slots=True)
class Pod:
    """The pod that this process runs in, from the token of its service account."""

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
    """Return the seconds of a clock that can't be set and that runs while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class LeaderElectionConfig:
    """The name of a Lease and its times in seconds, as in client-go.

    `lease_duration`: time that a successor waits after the last renewal that it saw. `renew_deadline`: time that a
    leader acts after its last renewal. `retry_period`: time between attempts to renew the Lease or to take it over.
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


class LeadershipLostError(TinkedgeError):
    """The Lease is lost and the work not cancelled yet: the process was blocked for the Lease's duration."""


async def while_leading(elector: LeaderElector | None, write: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `write()` if this replica leads, within the time that it may take.

    Without an `elector`, this is the only replica. Raises LeadershipLostError, UnreachableError if it took too long,
    and the exceptions of `write`.
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
    """Run `act` while this replica leads (`LeaderElector.run`); without an `elector`, this is the only replica."""
    await (act() if elector is None else elector.run(act))


class LeaderElector:
    """The part of one replica in the election. Start `run` as one task."""

    def __init__(
        self,
        client: KubeClient,
        config: LeaderElectionConfig,
        *,
        identity: str | None = None,
        clock: Callable[[], float] = steady,
        now: Callable[[], float] = time.time,
        uniform: Callable[[float, float], float] = random.uniform,
        on_new_leader: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Create an elector.

        `identity` must be unique, also among earlier processes of this host; by default it is random. `clock` measures
        time (see `steady`); `now` returns the Unix time for the Lease. `on_new_leader` is called with the identity of
        another replica that has taken the Lease (client-go's OnNewLeader).
        """
        self._client = client
        self._config = config
        self.identity = identity or f"{socket.gethostname()}_{secrets.token_hex(8)}"
        self._clock = clock
        self._now = now
        self._uniform = uniform
        self._on_new_leader = on_new_leader
        self._where = f"Lease {config.namespace}/{config.name}"
        self._observed: Any = None
        self._observed_at = -math.inf
        self._may_act_until = -math.inf
        self._failing = False
        self._lost_because = ""
        self._free = asyncio.Event()
        """Set when a waiting replica has seen that no replica holds the Lease."""

    @property
    def is_leader(self) -> bool:
        """True if this replica may act now."""
        return self._clock() < self._may_act_until

    @property
    def name(self) -> str:
        """The name of the Lease."""
        return self._config.name

    @property
    def leader(self) -> str:
        """The identity of the replica that held the Lease when it was last seen; empty if none did."""
        return str((self._observed or {}).get("holderIdentity") or "")

    @property
    def write_timeout(self) -> float:
        """Maximum duration of one write of the leader in seconds, so that it ends before a successor starts."""
        return 0.8 * (self._config.lease_duration - self._config.renew_deadline)

    async def run(self, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start `act` whenever this replica becomes the leader, and cancel it when it loses the Lease; until cancelled.

        Returns when `act` returns, and raises its exception.
        """
        try:
            while True:
                await self._acquire()
                if await self._renew(act):
                    return
        finally:
            await self._release()

    # --- waiting and leading ----------------------------------------------------------------------------------------

    async def _acquire(self) -> None:
        """Wait until this replica leads."""
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
                # The next attempt is when the Lease is free, has expired, or `retry_period` has passed.
                pause = self._config.retry_period * self._uniform(0.75, 1.0)
                left = self._expires_at() - self._clock()
                if left > 0:
                    pause = max(min(pause, left), _MIN_PAUSE_SECONDS)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._free.wait()
        finally:
            if following is not None:
                following.cancel()
                await asyncio.wait([following])

    async def _follow(self) -> None:
        """Watch the Lease and note each change. This only triggers attempts; decisions are made from reads."""
        while True:
            pause = self._config.retry_period
            where = LEASE, self._config.namespace, ""
            try:
                async with self._client.watch(*where, _WATCH_SECONDS, name=self._config.name) as stream:
                    async for line in stream:
                        event = as_mapping(orjson.loads(line))
                        lease = as_mapping(event.get("object"))
                        match event.get("type"):
                            case "ADDED" | "MODIFIED":
                                self._observe(lease)
                                if not _holder(lease):
                                    self._free.set()
                            case "ERROR":
                                raise ValueError(f"the watch has ended: {line[:200]!r}")
            except (ApiError, ValueError) as error:
                if isinstance(error, ApiError) and error.status in _DENIED:
                    text = "%s is read every %g s instead of watched, because the verb watch is missing: %s"
                    log.info(text, self._where, self._config.retry_period, error)
                    return
                log.debug("%s: %s", self._where, error)
                pause = self._config.lease_duration
            await asyncio.sleep(pause)

    async def _renew(self, act: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Run `act` while the Lease can be renewed; return True if `act` returned by itself."""
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
        log.warning("%s: this replica is no longer the leader: %s", self._where, why)
        return False

    # --- the Lease --------------------------------------------------------------------------------------------------

    async def _try_acquire_or_renew(self) -> None:
        """Renew the Lease, or take it if it is free; then `is_leader` is True."""
        rest = self._may_act_until - self._clock()
        # As in client-go: half of the deadline, so that there is time for a second attempt over another connection.
        limit = self._config.renew_deadline / 2
        try:
            async with asyncio.timeout(min(limit, rest) if rest > 0 else limit):
                await self._acquire_or_renew()
        except ConflictError:
            return  # another replica was faster; the next read shows which
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
            # The Lease was deleted. A replica that has seen its holder leaves it the time to create it again.
            if not self._held_by_another():
                metadata = {"name": self._config.name, "namespace": self._config.namespace}
                body = {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata}
                self._renewed(await self._client.create(LEASE, {**body, "spec": self._new_record({})}), sent_at)
            return
        self._observe(lease)
        if self._held_by_another():
            self._lost_because = f"{_holder(lease)} is"
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
            # Whole seconds, rounded up to the duration that this replica relies on.
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
        # Counted from the sending, which is before any replica can have seen the renewal.
        self._may_act_until = sent_at + self._config.renew_deadline

    def _observe(self, lease: Raw) -> None:
        """Note the time if the Lease has changed."""
        spec = _spec(lease)
        if spec == self._observed:
            return
        if _holder(lease) not in ("", self.identity) and _holder(lease) != (self._observed or {}).get("holderIdentity"):
            log.info("%s: %s leads", self._where, _holder(lease))
            self._on_new_leader(_holder(lease))
        self._observed, self._observed_at = spec, self._clock()

    def _held_by_another(self) -> bool:
        """Return True if another replica was seen to hold the Lease, and it has not expired since."""
        return self._clock() < self._expires_at()

    def _expires_at(self) -> float:
        """Return the time at which another replica's Lease expires unless renewed; -inf: no other replica has it."""
        if self._observed is None or self._observed.get("holderIdentity") in (None, "", self.identity):
            return -math.inf
        duration = self._observed.get("leaseDurationSeconds")
        # The other replica may have other settings.
        usable = isinstance(duration, int) and 0 < duration <= _MAX_DURATION_SECONDS
        return self._observed_at + max(duration if usable else 0, self._config.lease_duration)

    async def _release(self) -> None:
        """Release the Lease, so that the next leader need not wait; without an answer it expires."""
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
            log.warning("%s: not released, it expires in %g s: %s", self._where, self._config.lease_duration, error)
        else:
            log.info("%s: released", self._where)

    def _failed(self, error: ApiError) -> None:
        if not self._failing:
            aim = "renewed" if self.is_leader else "taken"
            hint = "; the verbs get, create and patch on leases.coordination.k8s.io are needed" * (error.status == 403)
            log.warning("%s can't be %s, trying again: %s%s", self._where, aim, error, hint)
        self._failing = True


def _spec(lease: Raw) -> Raw:
    return as_mapping(lease.get("spec"))


def _holder(lease: Raw) -> str:
    return str(_spec(lease).get("holderIdentity") or "")
