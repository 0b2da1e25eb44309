"""Keeps a Hardware in step with each BareMetalHost: what has to be done about one is `tink.metal3.reconciler`'s.

Level-based: a host is looked at when it, its HardwareData or its Hardware changes, and every `resync` seconds, because
Secrets are only got, never watched. Each look starts from what is there now and ends with one apply.

First of all comes safety. A host that must not netboot gets a Hardware that does not (`tink.metal3.ownership`), and so
does one that is gone: in a queue and by workers of its own, which do nothing else, however many hosts wait to be looked
at and however slow that is.

Hosts are what tenants write. Their namespaces take turns in each queue, what a host is to become is found out in a
thread, and an address that another Hardware has stays with that (`tink.metal3.addresses`): of two Hardware with one
address neither would be served.

With leader election, of several replicas one writes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable

from tink.kube.cache import Informer
from tink.kube.client import ApiError, KubeClient
from tink.kube.objects import NamespacedName, ObjectReference
from tink.kube.runtime import (
    DONE,
    Controller,
    EventRecorder,
    LeaderElector,
    Result,
    controller_log,
    run_as_leader,
    steady,
)
from tink.metal3.addresses import Addresses
from tink.metal3.hosts import Hosts
from tink.metal3.ownership import MANAGER
from tink.metal3.reconciler import HostReconciler, WaitingError
from tink.metal3.reporter import Reporter
from tink.metal3.settings import SAFETY_WORKERS, Metal3Settings
from tink.metal3.writer import HardwareWriter
from tink.webhooks import References

log = logging.getLogger(__name__)

_SAFETY_RETRY_SECONDS = 5.0
"""Between two attempts to turn netboot off, at most."""


class Metal3Controller:
    """Reconciles the hosts of informers that somebody else runs."""

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
        """`hosts` is of either version; `hardware_data` is None where the API has no such resource."""
        settings = settings or Metal3Settings()
        self._workers = settings.workers
        self._elector = elector
        self._following = False
        self._addresses = Addresses(steady)
        self._references = References()
        limited_log = controller_log(log, steady)
        self._recorder = EventRecorder(client, MANAGER, now=time.time, clock=steady)
        self._hosts = Hosts(hosts, hardware_data, hardware, unmanaged=settings.hosts.unmanaged)
        self._reporter = Reporter(self._hosts, limited_log, self._recorder)
        self._writer = HardwareWriter(client, elector)
        reconciler = HostReconciler(
            client,
            self._hosts,
            self._writer,
            self._reporter,
            addresses=self._addresses,
            references=self._references,
            settings=settings,
        )
        self._controller = Controller(
            "host",
            reconciler.reconcile,
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
        # An informer of nothing counts as false.
        self._informers = [each for each in (hardware_data, hardware, workflows, hosts) if each is not None]
        for informer in (each for each in self._informers if each is not workflows):
            informer.add_event_handler(
                lambda new, _: self._changed([NamespacedName.of(new)]),
                lambda old: self._changed([NamespacedName.of(old)]),
            )
        self._index(hardware, workflows)

    def _index(self, hardware: Informer, workflows: Informer) -> None:
        """Have hosts looked at that wait for what another Hardware has, or a Workflow needs."""
        hardware.add_event_handler(
            lambda new, _: self._changed(self._addresses.apply(new)),
            lambda old: self._changed(self._addresses.remove(old)),
        )
        workflows.add_event_handler(
            lambda new, _: self._released(self._references.apply(new)),
            lambda old: self._released(self._references.remove(old)),
        )

    @property
    def runtimes(self) -> dict[str, Controller]:
        """Queues and workers, by the names that metrics give them."""
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
        """Look at each host once, those first that must not netboot; how many could not be brought in step."""
        await self._wait_for_cache_sync()
        recording = asyncio.create_task(self._recorder.run())
        await asyncio.sleep(0)  # what is recorded before it runs is not written
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
        """Turn netboot off wherever it must not be on: before a replica that begins does anything else."""
        unsafe = iter([key for key in self._hosts.all_keys() if self._hosts.is_unsafe(key)])

        async def secure() -> None:
            for key in unsafe:
                await self._safety.process(key)

        await asyncio.gather(*(secure() for _ in range(self._workers)))

    # --- event handlers ---------------------------------------------------------------------------------------------

    def _changed(self, keys: Iterable[NamespacedName]) -> None:
        """Have these looked at: they have changed, or what they waited for has."""
        if self._following:
            for key in keys:
                (self._safety if self._hosts.is_unsafe(key) else self._controller).queue.add(key)

    def _released(self, targets: Iterable[ObjectReference]) -> None:
        """What a Workflow needs no more may be a Hardware that is to be deleted."""
        hardware = (target for target in targets if target.kind == "Hardware")
        self._changed([target.key for target in hardware if not self._references.referrers(target)])

    # --- reconciling one --------------------------------------------------------------------------------------------

    async def _make_safe(self, key: NamespacedName) -> Result:
        """Turn netboot off, if it must not be on; everything else is looked at afterwards."""
        hardware = self._hosts.hardware(key)
        if hardware is not None and self._hosts.is_unsafe(key):
            await self._writer.secure(hardware)
        self._controller.queue.add(key)
        return DONE

    def _failed(self, key: NamespacedName, error: Exception, delay: float) -> bool:
        if not isinstance(error, ApiError | WaitingError):
            return False
        self._reporter.report(key, "NotInStep", f"its Hardware is not brought in step: {error}", warning=True)
        log.debug("host %s: trying again in %.1f s", key, delay)
        return True
