"""Replicas in an election, in an event loop whose time is made up: it jumps to the next timer whenever nothing else is
to be done. So the real periods can be used, and every run is alike.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import orjson

from tink.api.v1alpha2 import Raw
from tink.kube.client import ApiError, ConflictError, NotFoundError
from tink.kube.runtime import LeaderElectionConfig, LeaderElector

CONFIG = LeaderElectionConfig("l", "d")


class _Hurried(selectors.DefaultSelector):  # type: ignore[misc,valid-type] # chosen by the platform
    """Waits for nothing; what it would have waited for is added to the time."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.passed += timeout or 0.0
        return super().select(0 if timeout is not None else None)


class _HurriedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.selector = _Hurried()
        super().__init__(self.selector)

    def time(self) -> float:
        return self.selector.passed


def hurried(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test, run in a loop of that kind; what it left is put away."""

    @functools.wraps(test)
    def run(*, site: Site, **others: Any) -> None:
        async def all_of_it() -> None:
            await test(site=site, **others)
            await site.close()

        with asyncio.Runner(loop_factory=_HurriedLoop) as runner:
            runner.run(all_of_it())

    return run


def moment() -> float:
    return asyncio.get_running_loop().time()


class Leases:
    """One Lease, with optimistic concurrency."""

    def __init__(self) -> None:
        self.lease: Raw | None = None
        self.version = 0
        self.writes: list[Raw] = []
        self.watches: set[asyncio.Queue[bytes]] = set()

    def put(self, lease: Raw) -> Raw:
        self.version += 1
        lease["metadata"]["resourceVersion"] = str(self.version)
        self.lease = lease
        self.writes.append(copy.deepcopy(lease["spec"]))
        for watch in self.watches:
            watch.put_nowait(orjson.dumps({"type": "MODIFIED", "object": lease}))
        return copy.deepcopy(lease)

    def edit(self, **spec: Any) -> None:
        assert self.lease is not None
        self.put({**copy.deepcopy(self.lease), "spec": {**self.lease["spec"], **spec}})

    @property
    def holder(self) -> str | None:
        return self.lease["spec"].get("holderIdentity") if self.lease is not None else None


class Client:
    """One replica's way to the Leases: it may stall, lose answers, or get errors."""

    def __init__(self, leases: Leases) -> None:
        self.leases = leases
        self.stalled = False
        self.deaf = False
        self.slow = 0.0
        self.error: ApiError | None = None
        self.may_watch = True
        self.brief = False
        """Whether watches end as soon as they have begun."""
        self.calls = 0

    async def _way(self) -> None:
        self.calls += 1
        await asyncio.sleep(0.002)
        if self.stalled:
            await asyncio.sleep(3600)
        if self.error is not None:
            raise self.error

    async def _back(self, answer: Raw) -> Raw:
        if self.deaf:
            await asyncio.sleep(3600)
        await asyncio.sleep(self.slow)
        return answer

    async def get(self, _: Any, name: str, namespace: str) -> Raw:
        await self._way()
        if self.leases.lease is None:
            raise NotFoundError(404, "NotFound", name)
        return copy.deepcopy(self.leases.lease)

    @asynccontextmanager
    async def watch(
        self, _: Any, namespace: str, version: str, seconds: int, *, name: str
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        await self._way()
        if not self.may_watch:
            raise ApiError(403, "Forbidden", name)
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        if self.leases.lease is not None:
            queue.put_nowait(orjson.dumps({"type": "ADDED", "object": self.leases.lease}))
        self.leases.watches.add(queue)
        try:
            yield self._events(queue)
        finally:
            self.leases.watches.discard(queue)

    async def _events(self, queue: asyncio.Queue[bytes]) -> AsyncIterator[bytes]:
        while not self.brief:
            event = await queue.get()
            if self.stalled:
                await asyncio.sleep(3600)
            if self.error is not None:
                raise self.error
            yield event

    async def create(self, _: Any, obj: Raw, namespace: str | None = None) -> Raw:
        await self._way()
        if self.leases.lease is not None:
            raise ConflictError(409, "AlreadyExists", "l")
        assert (obj["metadata"]["namespace"], obj["metadata"]["name"]) == ("d", "l")
        return await self._back(self.leases.put(copy.deepcopy(obj)))

    async def patch(self, _: Any, name: str, namespace: str, patch: Raw) -> Raw:
        await self._way()
        lease = self.leases.lease
        if lease is None:
            raise NotFoundError(404, "NotFound", name)
        if patch["metadata"]["resourceVersion"] != lease["metadata"]["resourceVersion"]:
            raise ConflictError(409, "Conflict", name)
        spec = {k: v for k, v in {**lease["spec"], **patch["spec"]}.items() if v is not None}
        return await self._back(self.leases.put({**copy.deepcopy(lease), "spec": spec}))


class Site:
    """Replicas, and who acted when."""

    def __init__(self) -> None:
        self.leases = Leases()
        self.clients: dict[str, Client] = {}
        self.leaders: dict[str, LeaderElector] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.acts: list[tuple[float, str, str]] = []
        self.acting: set[str] = set()
        self.reluctance = 0.0

    def replica(self, name: str, config: LeaderElectionConfig = CONFIG, **options: Any) -> LeaderElector:
        self.clients[name] = Client(self.leases)
        elector = self.leaders[name] = LeaderElector(
            self.clients[name], config, identity=name, **{"clock": moment, **options}
        )  # type: ignore[arg-type]
        return elector

    def begin(self, *names: str) -> None:
        for name in names:
            if name not in self.leaders:
                self.replica(name)
            self.tasks[name] = asyncio.create_task(self.leaders[name].run(lambda name=name: self.act(name)))  # type: ignore[misc]

    async def act(self, name: str) -> None:
        assert not self.acting, f"{name} acts while {self.acting} does"
        self.acting.add(name)
        self.acts.append((moment(), name, "begins"))
        try:
            while True:
                await asyncio.sleep(0.1)
                assert self.acting == {name}
        finally:
            if self.reluctance:
                await asyncio.sleep(self.reluctance)
            self.acting.discard(name)
            self.acts.append((moment(), name, "ends"))

    async def until(self, name: str, what: str = "begins") -> float:
        """When that happened last."""
        async with asyncio.timeout(120):
            while not (found := [at for at, *rest in self.acts if rest == [name, what]]):
                for task in self.tasks.values():
                    if task.done() and not task.cancelled():
                        task.result()
                await asyncio.sleep(0.02)
        return found[-1]

    async def stop(self, name: str) -> None:
        self.tasks[name].cancel()
        await asyncio.wait([self.tasks[name]])

    async def close(self) -> None:
        for name, task in self.tasks.items():
            self.clients[name].stalled = False
            await self.stop(name)
            assert task.cancelled(), task.exception()


@asynccontextmanager
async def led(site: Site) -> AsyncIterator[None]:
    """`a` leads, `b` waits."""
    site.begin("a")
    await site.until("a")
    site.begin("b")
    await asyncio.sleep(3)
    yield
