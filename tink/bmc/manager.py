"""BMC control as one part of a process: the controllers of Machines, Jobs, Tasks and boots, and the Lease of Rufio.

Two programs that send requests to one BMC disturb each other: each undoes the boot device of the other, and both count
for its limits of sessions and failed logins. So this part works only while it holds the Lease of Rufio's name, and
while no Rufio renews that Lease in another namespace. Another tinkedge in another namespace is no obstacle: each
follows the Machines of its own namespaces.

Without Machines, Jobs, Tasks and Workflows with bootOptions, the Lease is not taken.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tink.api.v1alpha2 import Raw, as_mapping
from tink.bmc.boot_operations import BootUrls
from tink.bmc.connections import CLIENTS, BmcConnections, BmcContext, ClientFactory
from tink.bmc.credentials import CredentialsReader, LoginMemory
from tink.bmc.jobs import JobController, TaskController
from tink.bmc.machines import MachineController
from tink.bmc.settings import BmcSettings
from tink.bmc.workflows import BootController
from tink.kube.cache import Informer
from tink.kube.client import ApiError, KubeClient
from tink.kube.resources import HARDWARE, JOB, LEASE, MACHINE, TASK, WORKFLOW, ResourceType
from tink.kube.runtime import Controller, EventRecorder, LeaderElectionConfig, LeaderElector, controller_log, steady
from tink.metrics.families import counter, gauge
from tink.printable import printable
from tink.waiting import done_before

log = logging.getLogger(__name__)

COMPONENT = "tinkedge-bmc"
LEASE_NAME = "e74dec1a.bmc.tinkerbell.org"
"""The Lease that a Rufio holds while it works."""
FORMER_LEASE_NAME = "e74dec1a.tinkerbell.org"
"""The Lease of a Rufio of its own repository, up to v0.6.5. tinkedge never holds it."""
_OWN_PREFIX = "tinkedge_"
"""The beginning of the identity by which a tinkedge holds the Lease. A Rufio's begins with its host name."""
_CHECK_SECONDS = 10.0
_WAITS = "BMC control waits: the Rufio %s works. Stop it, or start with --no-bmc"
_FORBIDDEN = 403
_MAX_DURATION_SECONDS = 3600.0
"""A Lease with a longer duration was written by hand, and would stop BMC control for good."""
_DEFAULT_DURATION_SECONDS = 15.0


class OtherRufio:
    """Finds a Rufio that renews its Lease in another namespace, or the former Lease. `run` as one task."""

    def __init__(self, client: KubeClient, namespace: str, clock: Callable[[], float] = steady) -> None:
        """Create a watcher. `namespace` is that of our own Lease. `clock` returns monotonic seconds."""
        self._client = client
        self._namespace = namespace
        self._clock = clock
        self._seen: dict[tuple[str, str], tuple[Raw, float]] = {}
        """Each Lease by its name and namespace, and when it was last seen to change."""
        self._forbidden: set[str] = set()
        self.holder = ""
        """The Rufio that works now, as NAMESPACE/HOLDER; empty if none does."""
        self.is_gone = asyncio.Event()
        self.is_there = asyncio.Event()

    async def run(self) -> None:
        """Look for a Rufio until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(_CHECK_SECONDS)

    async def check(self) -> None:
        """Look for a Rufio once."""
        specs: dict[tuple[str, str], Raw] = {}
        for name in (LEASE_NAME, FORMER_LEASE_NAME):
            try:
                found = await self._client.list(LEASE, field_selector=f"metadata.name={name}")
            except ApiError as error:
                if error.status != _FORBIDDEN:
                    return  # without an answer nothing changes; the leader election notices that the API is away
                if name not in self._forbidden:
                    log.warning("BMC control can't notice a Rufio that holds the Lease %s: %s", name, error)
                self._forbidden.add(name)
                continue
            for each in found.get("items") or ():
                if isinstance(each, dict):
                    namespace = str(as_mapping(each.get("metadata")).get("namespace"))
                    specs[name, namespace] = as_mapping(each.get("spec"))
        self._observe(specs)

    def _observe(self, specs: Mapping[tuple[str, str], Raw]) -> None:
        """Note which Leases have changed, by name and namespace, and whether a Rufio holds one of them."""
        now, before, seen = self._clock(), self.holder, self._seen
        self._seen = {
            key: seen[key] if key in seen and seen[key][0] == spec else (spec, now) for key, spec in specs.items()
        }
        holders = [f"{key[1]}/{_holder(spec)}" for key, spec in specs.items() if self._holds(key, spec, now)]
        self.holder = holders[0] if holders else ""
        if self.holder and not before:
            log.warning(_WAITS, self.holder)
        elif before and not self.holder:
            log.info("BMC control: the Rufio %s has stopped", before)
        for event, is_set in ((self.is_there, bool(self.holder)), (self.is_gone, not self.holder)):
            if is_set:
                event.set()
            else:
                event.clear()

    def _holds(self, key: tuple[str, str], spec: Raw, now: float) -> bool:
        """Return True if another program holds a Lease, and has renewed it within its duration, as far as was seen.

        The leader election reports the holder of our own Lease.
        """
        if key == (LEASE_NAME, self._namespace) or not _holder(spec) or _holder(spec).startswith(_OWN_PREFIX):
            return False
        duration = spec.get("leaseDurationSeconds")
        if not isinstance(duration, int) or not 0 < duration <= _MAX_DURATION_SECONDS:
            duration = _DEFAULT_DURATION_SECONDS
        return now - self._seen[key][1] < duration


def _holder(spec: Raw) -> str:
    return printable(str(spec.get("holderIdentity") or ""))[:128]


def _log_new_leader(holder: str) -> None:
    """Log that a Rufio has taken the Lease of this namespace."""
    if not holder.startswith(_OWN_PREFIX):
        log.warning(_WAITS, printable(holder)[:128])


class BmcManager(Collector):
    """BMC control. Make it before the informers run, and start `run` as one task."""

    def __init__(
        self,
        client: KubeClient,
        informers: Mapping[ResourceType, Informer],
        settings: BmcSettings | None = None,
        *,
        namespace: str = "default",
        clients: Mapping[str, ClientFactory] = CLIENTS,
        urls: BootUrls | None = None,
        now: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = steady,
    ) -> None:
        """`informers` are those of MACHINE, JOB, TASK, HARDWARE and WORKFLOW; `namespace` is that of the Lease.

        `clients` make the connections, by protocol. `urls` are the URLs of an edge, for firmware and BMCs. `now`
        returns Unix seconds, `elapsed` monotonic seconds.
        """
        settings = settings or BmcSettings()
        self._informers = {each: informers[each] for each in (MACHINE, JOB, TASK, HARDWARE, WORKFLOW)}
        duration = settings.lease_duration
        config = LeaderElectionConfig(LEASE_NAME, namespace, duration, duration * 2 / 3, duration / 3)
        identity = f"{_OWN_PREFIX}{socket.gethostname()}_{secrets.token_hex(8)}"
        self._elector = LeaderElector(
            client, config, identity=identity, clock=elapsed, now=now, on_new_leader=_log_new_leader
        )
        self._rufio = OtherRufio(client, namespace, elapsed)
        self._recorder = EventRecorder(client, COMPONENT, now=now, clock=elapsed)
        logins = LoginMemory()
        informers[MACHINE].add_event_handler(logins.machine_changed, logins.machine_gone)
        self._connections = BmcConnections(logins, limit=settings.max_connections, clients=clients, clock=elapsed)
        context = BmcContext(
            client=client,
            settings=settings,
            connections=self._connections,
            reader=CredentialsReader(client, elapsed),
            elector=self._elector,
            recorder=self._recorder,
            limited_log=controller_log(log, elapsed),
            now=now,
        )
        machines, jobs, tasks = informers[MACHINE], informers[JOB], informers[TASK]
        self._machines = MachineController(context, machines=machines, hardware=informers[HARDWARE])
        self._jobs = JobController(context, jobs=jobs, tasks=tasks, machines=machines)
        self._tasks = TaskController(
            context, jobs=jobs, tasks=tasks, machines=machines, on_used=self._machines.poll_soon
        )
        self._boots = BootController(
            context,
            workflows=informers[WORKFLOW],
            hardware=informers[HARDWARE],
            machines=machines,
            on_used=self._machines.poll_soon,
            urls=urls,
        )
        self._needed = asyncio.Event()
        for resource in (MACHINE, JOB, TASK):
            informers[resource].add_event_handler(lambda _new, _old: self._needed.set())
        informers[WORKFLOW].add_event_handler(self._look_at_workflow)

    def _look_at_workflow(self, new: Raw, _old: Raw | None) -> None:
        if as_mapping(as_mapping(new.get("spec")).get("bootOptions")):
            self._needed.set()

    @property
    def controllers(self) -> dict[str, Controller]:
        """Queues and workers, by their names in metrics."""
        return {
            "bmc-machine": self._machines.runtime,
            "bmc-reference": self._machines.references,
            "bmc-job": self._jobs.runtime,
            "bmc-task": self._tasks.runtime,
            "bmc-boot": self._boots.runtime,
            "bmc-former": self._boots.former,
        }

    @property
    def remembered_boots(self) -> int:
        """Number of Workflows about whose boot anything is in memory."""
        return self._boots.remembered

    @property
    def note(self) -> str:
        """A note for operators while another program controls the BMCs; else empty."""
        if self._rufio.holder:
            return f"BMC control waits: the Rufio {printable(self._rufio.holder)} works on the BMCs"
        if not (holder := self._other_leader):
            return ""
        what = "another tinkedge" if holder.startswith(_OWN_PREFIX) else "the Rufio"
        return f"BMC control waits: {what} {printable(holder)} holds the Lease {LEASE_NAME}"

    @property
    def _other_leader(self) -> str:
        """The program that holds the Lease of this namespace, if this process waits for it; else empty."""
        return self._elector.leader if self._needed.is_set() and not self._elector.is_leader else ""

    @property
    def _waits_for_rufio(self) -> bool:
        other = self._other_leader
        return bool(self._rufio.holder) or (other != "" and not other.startswith(_OWN_PREFIX))

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for one scrape."""
        yield from self._machines.collect()
        yield from self._tasks.collect()
        yield from self._boots.collect()
        text = "BMCs that are connected now."
        yield gauge("tinkedge_bmc_connections", text, [], {(): self._connections.open_count})
        text = "Logins that a BMC has refused: at most one for each version of a Secret."
        yield counter("tinkedge_bmc_refused_logins", text, [], {(): self._connections.logins.count})
        text = "1: BMC control waits, because a Rufio works on the BMCs."
        yield gauge("tinkedge_bmc_waits_for_rufio", text, [], {(): self._waits_for_rufio})
        text = "1: this process controls the BMCs; 0: it waits, or there are no Machines."
        yield gauge("tinkedge_bmc_leads", text, [], {(): self._elector.is_leader})

    async def run(self) -> None:
        """Work until cancelled."""
        for informer in self._informers.values():
            await informer.wait_for_cache_sync()
        try:
            await self._needed.wait()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._rufio.run())
                while True:
                    await self._rufio.is_gone.wait()
                    work = asyncio.create_task(self._elector.run(self._lead))
                    try:
                        await done_before(work, self._rufio.is_there)
                    finally:
                        work.cancel()
                        await asyncio.wait([work])
                    if not work.cancelled():
                        work.result()
        finally:
            self._shut_down()

    async def _lead(self) -> None:
        machines = len(self._informers[MACHINE])
        log.info("BMC control: %d Machines", machines)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._recorder.run())
                self._connections.logins.lead()
                self._machines.lead()
                for controller in self.controllers.values():
                    group.create_task(controller.run())
        finally:
            self._machines.stand_by()

    def _shut_down(self) -> None:
        for controller in self.controllers.values():
            controller.queue.shut_down()
