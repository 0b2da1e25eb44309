"""A start while the Kubernetes API is away.

the API answers                  -> wait until all is listed, as ever
it answers, and does not list    -> the start fails: definitions are missing, or rights
it does not, and it is an edge   -> what an earlier run knew is taken from the checkpoint, and served
it does not, and it is no edge   -> controllers and servers start, and are not ready, as when it goes later on
it does not, and nothing is kept -> the start fails, for each machine would be told that it is unknown

An edge with very many machines that is restarted does not wait for the list of all: what it knew a moment ago is served
at once, and corrected when the list is there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from edge.checkpoint import DIRECTORY as CHECKPOINT
from edge.checkpoint import HARDWARE as HARDWARE_KIND
from edge.checkpoint import KEY_FILE, Checkpoint, SecretStore, discard
from edge.machines import Inventory, PendingWorkflows, ReadSecret, lookup_values
from edge.run.settings import Service, StackSettings
from tink.files.key_file import KeyFile
from tink.kube.cache import Informer
from tink.kube.client import KubeClient
from tink.kube.resources import HARDWARE, OSIE, SECRET, WORKFLOW, ResourceType

log = logging.getLogger(__name__)

SYNC_SECONDS: Final = 30.0
"""Without a further object of a list: an API that answers lists thousands in far less."""
SHORT_SECONDS: Final = 5.0
"""The same, where it can be gone on without the API. One that is restarted is back in less."""
_STEP_SECONDS: Final = 1.0
RECENT_SECONDS: Final = 120.0
"""For how long what was known is served at a restart without waiting for the API."""
LARGE: Final = 3000
"""Number of Hardware from which on a restart does that. The API lists fewer in no time."""


class NotListedError(Exception):
    """A collection can't be followed, and nothing can be done without; says which, and what to do."""


async def followed(
    informers: Mapping[ResourceType, Informer],
    run: Callable[[], object],
    kept: Kept | None,
    *,
    alone: bool,
) -> bool:
    """Follow the API, and wait until all is known. Return False if the start goes on without that: the API is away, or
    the checkpoint of a moment ago is served until it has listed everything.

    `run()` runs the informers; `alone`: the start can go on though nothing is known. Raises NotListedError.
    """
    if kept is not None:
        await kept.checkpoint.open()
    if kept is not None and kept.is_recent and await kept.restore():
        run()
        log.info("served from what was known before the restart, until the Kubernetes API has listed what it has now")
        return False
    run()
    if await _listed(informers, without_api=kept.checkpoint.exists if kept is not None else alone):
        return True
    if kept is not None and not await kept.restore():
        return await _listed(informers, without_api=False)
    log.warning("the Kubernetes API does not answer: started without it")
    return False


async def _listed(informers: Mapping[ResourceType, Informer], *, without_api: bool) -> bool:
    """Whether all collections are known; False as soon as the API does not answer, if it can be done `without_api`."""
    for resource, informer in informers.items():
        known, idle = -1, 0.0
        while not informer.has_synced:
            if len(informer) != known:
                known, idle = len(informer), 0.0
            if without_api and idle >= SHORT_SECONDS and (informer.is_unreachable or not informer.failing_for):
                return False
            if idle >= SYNC_SECONDS:
                raise NotListedError(_why(resource, informer))
            step = min(_STEP_SECONDS, SYNC_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(step):
                    await informer.wait_for_cache_sync()
            idle += step
    return True


def _why(resource: ResourceType, informer: Informer) -> str:
    if informer.denied:
        return f"{informer.denied}: give a --kubeconfig that may"
    return (
        f"the API has not listed {resource.plural}.{resource.group} within {SYNC_SECONDS:.0f} s. "
        "Are the CRDs installed (tinkedge crds | kubectl apply --server-side -f -)? See the log."
    )


class Kept:
    """What an edge keeps on its disk for such a start, and whether it serves from that."""

    def __init__(
        self,
        settings: StackSettings,
        client: KubeClient,
        informers: Mapping[ResourceType, Informer],
        workflows: PendingWorkflows,
        inventory: Inventory,
    ) -> None:
        """Before the informers run. Raises KeyFileError."""
        collections = {HARDWARE_KIND: HARDWARE, "osies": OSIE, "workflows": WORKFLOW}
        self.checkpoint = Checkpoint(
            settings.data_dir,
            _known_by(client, settings),
            {name: informers[resource] for name, resource in collections.items() if resource in informers},
            wanted={"workflows": lambda: workflows.names},
            lookup_values=lookup_values,
        )
        self._inventory = inventory
        # Worker processes have inventories of their own, which can't recall anything.
        self._all_hardware = settings.edge.workers > 1
        self.secrets = _secrets(settings, client, informers[HARDWARE]) if settings.edge.checkpoint_secrets else None
        self._informers = tuple(informers.values())
        self._known: float | None = None

    @property
    def known_at(self) -> float | None:
        """The Unix second of which it is what is served, until the API has listed everything; then None."""
        if self._known is not None and all(informer.has_synced for informer in self._informers):
            self._known = None
        return self._known

    @property
    def is_recent(self) -> bool:
        """True if it is of a moment ago, and so large that listing all Hardware again takes long."""
        return abs(self.checkpoint.age) < RECENT_SECONDS and self.checkpoint.hardware_count >= LARGE

    @property
    def note(self) -> str:
        """A note for operators while some Hardware are in the checkpoint only; empty: there are none."""
        text = "some Hardware are still to be read: each is when its machine asks, lists lack it"
        return text if self.checkpoint.is_restoring else ""

    async def restore(self) -> bool:
        """Serve what the checkpoint has; return True if it has anything."""
        self._inventory.recall_with(self.checkpoint.recall)
        self._known = await self.checkpoint.restore(all_hardware=self._all_hardware)
        return self._known is not None

    async def restore_rest(self) -> None:
        """Restore what no machine has asked for, or wait until the API has listed it."""
        await self.checkpoint.restore_rest()
        self._inventory.recall_with(None)


def _known_by(client: KubeClient, settings: StackSettings) -> frozenset[str]:
    """What is kept is of this cluster, and of the part of it that this edge is for."""
    return frozenset(f"{each} {settings.scope}" for each in client.cluster) if settings.scope else client.cluster


def keeps(settings: StackSettings) -> bool:
    """Whether such a process keeps anything: with the embedded API, all is on this disk already."""
    return Service.HTTP in settings.services and Service.APISERVER not in settings.services and settings.edge.checkpoint


def secret_reader(client: KubeClient, kept: Kept | None) -> ReadSecret:
    """What reads a Secret for a machine."""
    if kept is not None and kept.secrets is not None:
        return kept.secrets.read
    return lambda namespace, name: client.get(SECRET, name, namespace)


def forget(settings: StackSettings) -> None:
    """Remove what an earlier run has kept, and this one is not to keep."""
    try:
        if Service.HTTP in settings.services and not settings.edge.checkpoint:
            discard(settings.data_dir)
    except OSError as error:
        log.warning("%s can't be removed: %s", settings.data_dir / CHECKPOINT, error.strerror or error)


def _secrets(settings: StackSettings, client: KubeClient, hardware: Informer) -> SecretStore:
    given = settings.edge.checkpoint_key
    kept = SecretStore(
        settings.data_dir / CHECKPOINT / "secrets",
        KeyFile(given or settings.data_dir / KEY_FILE, "checkpoint key", create=given is None),
        lambda namespace, name: client.get(SECRET, name, namespace),
        _known_by(client, settings),
        has_synced=lambda: hardware.has_synced,
    )
    hardware.add_event_handler(kept.apply, kept.remove)
    return kept
