"""Follow Metal3's hosts on a live API, in the version that is served, and keep a Hardware in step with each.

`Follower` finds the served version at the start, and again when that version is gone or can't be read: after a
migration v1alpha1 may not be served any more, or only while the conversion webhook runs. A watch does not report this;
it stays silent, as if no host had changed. The Follower waits until the API serves hosts, because the definitions may
be installed later.

`Metal3Controller` is level-based: a host is reconciled when it, its HardwareData or its Hardware changes, and every
`resync` seconds, because Secrets are read but never watched. Each reconciliation (`tink.metal3.reconciler`) starts from
the present state and ends with one apply. Safety has a queue and workers of its own, which only turn netboot off,
however many hosts wait and however slow their conversions are.

Tenants write hosts. So their namespaces take turns in each queue, conversions run in a thread, and an address of
another Hardware stays with that Hardware, because the edge serves neither of two Hardware with one address.

With leader election, one of several replicas writes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tink.kube.cache import AWAY_SECONDS, START_JITTER_SECONDS, Informer
from tink.kube.client import ApiError, KubeClient, NotFoundError, log_missing_namespaces
from tink.kube.metrics import client_metrics, controller_metrics, informer_metrics, leader_metrics
from tink.kube.objects import NamespacedName, ObjectReference
from tink.kube.resources import HARDWARE, HARDWARE_DATA, HOST_V1ALPHA1, HOST_V1BETA1, WORKFLOW, ResourceType
from tink.kube.runtime import (
    DONE,
    Controller,
    EventRecorder,
    LeaderElectionConfig,
    LeaderElector,
    Result,
    controller_log,
    run_as_leader,
    steady,
)
from tink.limits import Backoff
from tink.metal3.hosts import MANAGER, Hosts
from tink.metal3.reconciler import HostReconciler, WaitingError
from tink.metal3.settings import SAFETY_WORKERS, Metal3Settings
from tink.workflow import ended

log = logging.getLogger(__name__)

_SAFETY_RETRY_SECONDS = 5.0
"""The longest delay between two attempts to turn netboot off, in seconds."""


class Metal3Controller:
    """Reconciles hosts. Its caller runs the informers."""

    def __init__(
        self,
        client: KubeClient,
        *,
        hosts: Informer,
        hardware_data: Informer | None,
        hardware: Informer,
        workflows: Informer,
        settings: Metal3Settings | None = None,
        elector: LeaderElector | None = None,
    ) -> None:
        """`hosts` has either version. `hardware_data` is None if the API has no such resource."""
        settings = settings or Metal3Settings()
        self._workers = settings.workers
        self._elector = elector
        self._following = False
        limited_log = controller_log(log, steady)
        self._recorder = EventRecorder(client, MANAGER, now=time.time, clock=steady)
        self._hosts = Hosts(hosts, hardware_data, hardware, unmanaged=settings.hosts.unmanaged)
        self._reconciler = HostReconciler(client, self._hosts, settings, elector, limited_log, self._recorder)
        self._controller = Controller(
            "host",
            self._reconciler.reconcile,
            retry_first=settings.retry_first,
            retry_longest=settings.retry_longest,
            limited_log=limited_log,
            workers=settings.workers - SAFETY_WORKERS,
            on_error=self._failed,
        )
        self._safety = Controller(
            "host",
            self._make_safe,
            retry_first=min(settings.retry_first, _SAFETY_RETRY_SECONDS),
            retry_longest=min(settings.retry_longest, _SAFETY_RETRY_SECONDS),
            limited_log=limited_log,
            workers=SAFETY_WORKERS,
            on_error=self._failed,
        )
        # An informer without objects is falsy.
        self._informers = [each for each in (hardware_data, hardware, workflows, hosts) if each is not None]
        for informer in (each for each in self._informers if each is not workflows):
            informer.add_event_handler(
                lambda new, _: self._changed([NamespacedName.of(new)]),
                lambda old: self._changed([NamespacedName.of(old)]),
            )
        # A host is reconciled when the Hardware or the Workflow that it waits for changes.
        addresses, references = self._reconciler.addresses, self._reconciler.references
        hardware.add_event_handler(
            lambda new, _: self._changed(addresses.apply(new)), lambda old: self._changed(addresses.remove(old))
        )
        workflows.add_event_handler(
            lambda new, _: self._released(references.apply(new)), lambda old: self._released(references.remove(old))
        )

    @property
    def runtimes(self) -> dict[str, Controller]:
        """Queues and workers, by their names in metrics."""
        return {"host": self._controller, "host-safety": self._safety}

    async def run(self) -> None:
        """Work until cancelled."""
        await self._wait_for_cache_sync()
        self._following = True
        log.info("metal3: %d hosts of %s", len(self._hosts), self._hosts.resource.api_version)
        try:
            await run_as_leader(self._elector, self._lead)
        finally:
            self._shut_down()

    async def once(self) -> int:
        """Reconcile each host once, unsafe hosts first. Return the number of failures."""
        await self._wait_for_cache_sync()
        recording = asyncio.create_task(self._recorder.run())
        await asyncio.sleep(0)  # events recorded before the task runs would not be written
        try:
            await self._secure_all()
            failed = [key for key in self._hosts.all_keys() if not await self._controller.process(key)]
            await self._recorder.flush()
        finally:
            recording.cancel()
            self._shut_down()
        return len(failed)

    def _shut_down(self) -> None:
        self._controller.queue.shut_down()
        self._safety.queue.shut_down()

    async def _wait_for_cache_sync(self) -> None:
        for informer in self._informers:
            await informer.wait_for_cache_sync()

    async def _lead(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._recorder.run())
            group.create_task(self._safety.run())
            await self._secure_all()
            self._changed(self._hosts.all_keys())
            group.create_task(self._controller.run())

    async def _secure_all(self) -> None:
        """Turn netboot off on all machines that must not netboot: the first work of a replica that becomes leader."""
        unsafe = iter([key for key in self._hosts.all_keys() if self._hosts.is_unsafe(key)])

        async def secure() -> None:
            for key in unsafe:
                await self._safety.process(key)

        await asyncio.gather(*(secure() for _ in range(self._workers)))

    # --- event handlers ---------------------------------------------------------------------------------------------

    def _changed(self, keys: Iterable[NamespacedName]) -> None:
        """Queue hosts that have changed, or whose obstacle is gone."""
        if self._following:
            for key in keys:
                (self._safety if self._hosts.is_unsafe(key) else self._controller).queue.add(key)

    def _released(self, targets: Iterable[ObjectReference]) -> None:
        """Queue Hardware that Workflows no longer refer to: it may have to be deleted."""
        hardware = (target for target in targets if target.kind == "Hardware")
        self._changed([target.key for target in hardware if not self._reconciler.references.referrers(target)])

    # --- reconciling one --------------------------------------------------------------------------------------------

    async def _make_safe(self, key: NamespacedName) -> Result:
        """Turn netboot off if it must be off, then queue the host for everything else."""
        hardware = self._hosts.hardware(key)
        if hardware is not None and self._hosts.is_unsafe(key):
            await self._reconciler.writer.secure(hardware)
        self._controller.queue.add(key)
        return DONE

    def _failed(self, key: NamespacedName, error: Exception, delay: float) -> bool:
        if not isinstance(error, ApiError | WaitingError):
            return False
        self._reconciler.reporter.report(
            key, "NotInStep", f"its Hardware is not brought in step: {error}", warning=True
        )
        log.debug("host %s: trying again in %.1f s", key, delay)
        return True


_CHECK_SECONDS = 10.0
"""Seconds between two checks that the version is still served and readable. Until a check, no change is noticed."""
_LOG_AGAIN_FIRST, _LOG_AGAIN_LONGEST = 60.0, 3600.0
"""The shortest and the longest pause, in seconds, before a waiting message is logged again."""
_DENIED = (401, 403)
_SYNC_SECONDS = 120.0
"""Seconds that a single run waits for lists."""


_ADVICE = ": is what --kubeconfig has (or the service account) still good, and may it do that?"
HOSTS = (HOST_V1ALPHA1, HOST_V1BETA1)
"""The versions in the order in which they are tried. v1alpha1 is usually the stored version while it is served.

A version that is not stored can't be read while the conversion webhook is away.
"""


async def is_served(client: KubeClient, resource: ResourceType, namespace: str | None) -> bool:
    """Return True if the API serves the resource. Raises ApiError."""
    try:
        await client.list(resource, namespace, limit=1)
    except NotFoundError:
        return False
    return True


async def served_hosts(client: KubeClient, namespace: str | None) -> ResourceType | None:
    """Return a version of BareMetalHost that can be read now; None if the API has none.

    Raises ApiError if the API serves a version, but none can be read.
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
    """The API no longer serves this BareMetalHost version, or a better choice is available."""


class Follower(Collector):
    """Follows the hosts of one API, in `namespaces` or in all. Without `election`, there is only one replica."""

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
        """The namespace in which the served version is checked."""
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
        """The reason why hosts are not followed; empty if this replica or the leader follows them."""
        if self._waiting:
            return self._waiting
        for informer in self._informers:
            if not informer.has_synced:
                return f"the API has not listed {informer.resource.plural} yet"
            if informer.denied or informer.failing_for > AWAY_SECONDS:
                return informer.denied or f"the Kubernetes API has not answered for {informer.failing_for:.0f} s"
        return ""

    def collect(self) -> Iterator[Metric]:
        """Yield the present metrics, for a Prometheus registry."""
        if self._client is not None:
            yield from client_metrics(self._client)
        yield from informer_metrics(self._informers)
        yield from controller_metrics(self._controllers)
        if self._elector is not None:
            yield from leader_metrics(self._elector)

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
                    log.warning("%s; looking for another version", error)

    async def once(self) -> int:
        """Bring every host in step once. Return 0, or 1 if a host failed. Raises KubeConfigError, ApiError."""
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
        """Wait until hosts are served. Return their version, and True if HardwareData are served too."""
        backoff, again = Backoff(0.5, 15.0), Backoff(_LOG_AGAIN_FIRST, _LOG_AGAIN_LONGEST)
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
        """Raise _OtherVersionError when another version should be followed."""
        blind = False
        while True:
            await asyncio.sleep(self._check_seconds)
            try:
                if not await is_served(client, hosts, self._namespace):
                    raise _OtherVersionError(f"BareMetalHosts of {hosts.api_version} are no longer served")
                if not details and await is_served(client, HARDWARE_DATA, self._namespace):
                    raise _OtherVersionError("the API serves HardwareData now")
            except ApiError as error:
                with suppress(ApiError):
                    if await served_hosts(client, self._namespace) not in (None, hosts):
                        text = f"BareMetalHosts can't be read as {hosts.api_version}: {error}"
                        raise _OtherVersionError(text) from error
                if not blind:
                    log.warning("BareMetalHosts can't be read, and what changes is not noticed: %s", error)
                blind = True
            else:
                blind = False


async def _together(*parts: Coroutine[Any, Any, None]) -> None:
    """Run all until one ends, then cancel the others. Raises the exception of the one that ended."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
