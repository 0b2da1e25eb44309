"""Follows Metal3's hosts on a live API, in whichever version they are served, for `tink.metal3.controller`.

The version is looked for at the start, and again when it is gone or can't be read: after a migration v1alpha1 may be
served no more, or only while the conversion webhook is there. A watch says nothing of that: it is silent, as if no host
had changed. Until there are hosts at all, it waits: the definitions may be installed later than this.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tink.kube.cache import AWAY_SECONDS, START_JITTER_SECONDS, Informer
from tink.kube.client import ApiError, KubeClient, NotFoundError, log_missing_namespaces
from tink.kube.metrics import ClientMetrics, ControllerMetrics, InformerMetrics, LeaderMetrics
from tink.kube.resources import HARDWARE, HARDWARE_DATA, HOST_V1ALPHA1, HOST_V1BETA1, WORKFLOW, ResourceType
from tink.kube.runtime import Controller, LeaderElectionConfig, LeaderElector
from tink.limits.backoff import Backoff
from tink.metal3.controller import Metal3Controller
from tink.metal3.settings import Metal3Settings
from tink.workflow import ended

log = logging.getLogger(__name__)

_CHECK_SECONDS = 10.0
"""How often it is looked whether the version is still served, and can be read: until then no change is noticed."""
_SAY_AGAIN_FIRST, _SAY_AGAIN_LONGEST = 60.0, 3600.0
"""Seconds until it is said again what is waited for, and the longest such pause."""
_DENIED = (401, 403)
_SYNC_SECONDS = 120.0
"""How long a single run waits for lists."""


_ADVICE = ": is what --kubeconfig has (or the service account) still good, and may it do that?"
HOSTS = (HOST_V1ALPHA1, HOST_V1BETA1)
"""In the order in which they are asked for: v1alpha1, while it is there, is mostly what is stored. What is not stored
can't be read while the conversion webhook is away."""


async def is_served(client: KubeClient, resource: ResourceType, namespace: str | None) -> bool:
    """Whether the API has such a resource. Raises ApiError."""
    try:
        await client.list(resource, namespace, limit=1)
    except NotFoundError:
        return False
    return True


async def served_hosts(client: KubeClient, namespace: str | None) -> ResourceType | None:
    """The version of BareMetalHost to use: one that can be read at this moment; None if the API has none.

    Raises ApiError: it has one, which can't be read.
    """
    failed: ApiError | None = None
    for resource in HOSTS:
        try:
            if await is_served(client, resource, namespace):
                return resource
        except ApiError as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return None


class _OtherVersionError(Exception):
    """What is followed is served no more."""


class Follower(Collector):
    """One API's hosts. Without `namespaces`: those of all; `election` None: there is one replica only."""

    def __init__(
        self,
        kubeconfig: Path | None,
        context: str | None,
        namespaces: tuple[str, ...],
        settings: Metal3Settings,
        election: LeaderElectionConfig | None,
        *,
        check_seconds: float = _CHECK_SECONDS,
    ) -> None:
        self._kubeconfig = kubeconfig
        self._context = context
        self._namespaces = namespaces
        self._namespace = namespaces[0] if namespaces else None
        """Where it is looked whether hosts are served at all."""
        self._settings = settings
        self._election = election
        self._check_seconds = check_seconds
        self._client: KubeClient | None = None
        self._elector: LeaderElector | None = None
        self._informers: list[Informer] = []
        self._controllers: dict[str, Controller] = {}
        self._waiting = "starting"

    @property
    def not_ready(self) -> str:
        """Why hosts are not followed; empty: they are, by this replica or by the one that leads."""
        if self._waiting:
            return self._waiting
        for informer in self._informers:
            if not informer.has_synced:
                return f"the API has not listed {informer.resource.plural} yet"
            if informer.denied or informer.failing_for > AWAY_SECONDS:
                return informer.denied or f"the Kubernetes API has not answered for {informer.failing_for:.0f} s"
        return ""

    def collect(self) -> Iterator[Metric]:
        """All metrics, of what there is at the moment: for a registry of Prometheus."""
        if self._client is not None:
            yield from ClientMetrics(self._client).collect()
        yield from InformerMetrics(self._informers).collect()
        yield from ControllerMetrics(self._controllers).collect()
        if self._elector is not None:
            yield from LeaderMetrics(self._elector).collect()

    async def run(self) -> None:
        """Keep Hardware in step until cancelled. Raises KubeConfigError."""
        async with await KubeClient.connect(self._kubeconfig, self._context) as client:
            self._client = client
            elector = LeaderElector(client, self._election) if self._election is not None else None
            self._elector = elector
            await log_missing_namespaces(client, self._namespaces)
            while True:
                hosts, details = await self._served(client)
                informers, controller = self._controller(client, hosts, details, elector)
                try:
                    await _together(
                        controller.run(), self._watch(client, hosts, details), *(each.run() for each in informers)
                    )
                except _OtherVersionError as error:
                    log.warning("%s; looking for what is", error)

    async def once(self) -> int:
        """Bring every host in step once: 0, or 1 if one could not be. Raises KubeConfigError, ApiError."""
        async with await KubeClient.connect(self._kubeconfig, self._context) as client:
            hosts = await served_hosts(client, self._namespace)
            if hosts is None:
                log.error("the API serves no BareMetalHosts: nothing to do (`tinkedge crds --metal3`)")
                return 1
            details = await is_served(client, HARDWARE_DATA, self._namespace)
            informers, controller = self._controller(client, hosts, details, None)
            following = [asyncio.create_task(each.run()) for each in informers]
            try:
                async with asyncio.timeout(_SYNC_SECONDS):
                    for informer in informers:
                        await informer.wait_for_cache_sync()
                failed = await controller.once()
            except TimeoutError:
                log.error("the API did not give its lists within %g s", _SYNC_SECONDS)
                return 1
            finally:
                for task in following:
                    task.cancel()
            if failed:
                log.error("%d hosts are not in step", failed)
            return 1 if failed else 0

    async def _served(self, client: KubeClient) -> tuple[ResourceType, bool]:
        """The version of the hosts, as soon as there is one, and whether there are HardwareData."""
        backoff, again = Backoff(0.5, 15.0), Backoff(_SAY_AGAIN_FIRST, _SAY_AGAIN_LONGEST)
        clock = asyncio.get_running_loop().time
        since = clock()
        due = since
        while True:
            try:
                hosts = await served_hosts(client, self._namespace)
                if hosts is not None:
                    found = hosts, await is_served(client, HARDWARE_DATA, self._namespace)
                    self._waiting = ""
                    return found
                problem = "the API serves no BareMetalHosts yet (`tinkedge crds --metal3`)"
            except ApiError as error:
                problem = f"no BareMetalHosts can be read: {error}{_ADVICE if error.status in _DENIED else ''}"
            now = clock()
            if problem != self._waiting or now >= due:
                lasts = f" for {now - since:.0f} s now" if problem == self._waiting else ""
                log.warning("%s; waiting%s", problem, lasts)
                if problem != self._waiting:
                    again.reset()
                self._waiting, due = problem, now + again.next()
            await asyncio.sleep(backoff.next())

    def _controller(
        self, client: KubeClient, hosts: ResourceType, details: bool, elector: LeaderElector | None
    ) -> tuple[list[Informer], Metal3Controller]:
        following, hardware, workflows = (self._informer(client, resource) for resource in (hosts, HARDWARE, WORKFLOW))
        data = self._informer(client, HARDWARE_DATA) if details else None
        controller = Metal3Controller(
            client,
            hosts=following,
            hardware_data=data,
            hardware=hardware,
            workflows=workflows,
            settings=self._settings,
            elector=elector,
        )
        self._informers = [each for each in (data, hardware, workflows, following) if each is not None]
        self._controllers = controller.runtimes
        return self._informers, controller

    def _informer(self, client: KubeClient, resource: ResourceType) -> Informer:
        return Informer(
            client,
            resource,
            self._namespaces,
            start_jitter=START_JITTER_SECONDS if self._kubeconfig is None else 0.0,
            archive_format=ended if resource is WORKFLOW else None,
        )

    async def _watch(self, client: KubeClient, hosts: ResourceType, details: bool) -> None:
        """Raises _OtherVersionError when something else is served, or can be read, than is followed."""
        blind = False
        while True:
            await asyncio.sleep(self._check_seconds)
            try:
                if not await is_served(client, hosts, self._namespace):
                    raise _OtherVersionError(f"BareMetalHosts of {hosts.api_version} are served no more")
                if not details and await is_served(client, HARDWARE_DATA, self._namespace):
                    raise _OtherVersionError("the API serves HardwareData now")
            except ApiError as error:
                if await self._is_other_readable(client, hosts):
                    raise _OtherVersionError(f"BareMetalHosts can't be read as {hosts.api_version}: {error}") from error
                if not blind:
                    log.warning("BareMetalHosts can't be read, and what changes is not noticed: %s", error)
                blind = True
            else:
                blind = False

    async def _is_other_readable(self, client: KubeClient, hosts: ResourceType) -> bool:
        try:
            return await served_hosts(client, self._namespace) not in (None, hosts)
        except ApiError:
            return False


async def _together(*parts: Coroutine[Any, Any, None]) -> None:
    """Run all until one ends, then end the others; raises what that one raised."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
