"""A start while the Kubernetes API is away.

    the API answers                               -> wait until everything is listed
    the API answers, but does not list            -> the start fails: definitions or rights are missing
    no answer, an edge with saved state           -> restore the state of the last run, and serve it
    no answer, an edge without saved state        -> the start fails, because each machine would be called unknown
    no answer, a controller or server             -> start, and be not ready, as when the API goes away later

An edge with very many machines does not wait for the list after a restart: it serves the saved state at once, and
corrects it when the list arrives.
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
from edge.run.errors import StackError
from edge.settings.model import Service, StackSettings
from tink.files.key_file import KeyFile
from tink.kube.cache import Informer
from tink.kube.client import KubeClient
from tink.kube.resources import HARDWARE, OSIE, SECRET, WORKFLOW, ResourceType

log = logging.getLogger(__name__)

SYNC_SECONDS: Final = 30.0
"""Time without a new object after which a list has failed. A working API lists thousands of objects in far less."""
SHORT_SECONDS: Final = 5.0  # the same, if the start can continue without the API. A restarted API is back in less.
_STEP_SECONDS: Final = 1.0
RECENT_SECONDS: Final = 120.0  # maximum age of a saved state that a restart serves without waiting for the API
LARGE: Final = 3000  # minimum number of saved Hardware for that. The API lists fewer quickly.


async def follow_api(
    informers: Mapping[ResourceType, Informer], run: Callable[[], object], saved: SavedState | None, *, alone: bool
) -> bool:
    """Run the informers with `run()`, and wait until they have listed everything. Raises StackError.

    Return False if the start continues before that: with the saved state, or with nothing if `alone`.
    """
    if saved is not None:
        await saved.checkpoint.open()
    if saved is not None and saved.is_recent and await saved.restore():
        run()
        log.info("serving the state from before the restart, until the Kubernetes API has listed its objects")
        return False
    run()
    if await _listed(informers, without_api=saved.checkpoint.exists if saved is not None else alone):
        return True
    if saved is not None and not await saved.restore():
        return await _listed(informers, without_api=False)
    log.warning("the Kubernetes API does not answer: started without it")
    return False


async def _listed(informers: Mapping[ResourceType, Informer], *, without_api: bool) -> bool:
    """Return True when all collections are listed, and False when the API does not answer and `without_api` is True."""
    for resource, informer in informers.items():
        known, idle = -1, 0.0
        while not informer.has_synced:
            if len(informer) != known:
                known, idle = len(informer), 0.0
            if without_api and idle >= SHORT_SECONDS and (informer.is_unreachable or not informer.failing_for):
                return False
            if idle >= SYNC_SECONDS and informer.denied:
                raise StackError(f"{informer.denied}: give a --kubeconfig that may")
            if idle >= SYNC_SECONDS:
                raise StackError(
                    f"the API has not listed {resource.plural}.{resource.group} within {SYNC_SECONDS:.0f} s. "
                    "Are the CRDs installed (tinkedge crds | kubectl apply --server-side -f -)? See the log."
                )
            step = min(_STEP_SECONDS, SYNC_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(step):
                    await informer.wait_for_cache_sync()
            idle += step
    return True


class SavedState:
    """The objects and Secrets that an edge has on its disk for a start without the API."""

    def __init__(
        self,
        settings: StackSettings,
        client: KubeClient,
        informers: Mapping[ResourceType, Informer],
        workflows: PendingWorkflows,
        inventory: Inventory,
    ) -> None:
        """Make it before the informers run. Raises KeyFileError."""
        collections = {HARDWARE_KIND: HARDWARE, "osies": OSIE, "workflows": WORKFLOW}
        self.checkpoint = Checkpoint(
            settings.data_dir,
            _source(client, settings),
            {name: informers[resource] for name, resource in collections.items() if resource in informers},
            wanted={"workflows": lambda: workflows.names},
            lookup_values=lookup_values,
        )
        self._inventory = inventory
        self.secrets: SecretStore | None = None
        if settings.edge.checkpoint_secrets:
            given, hardware = settings.edge.checkpoint_key, informers[HARDWARE]
            self.secrets = SecretStore(
                settings.data_dir / CHECKPOINT / "secrets",
                KeyFile(given or settings.data_dir / KEY_FILE, "checkpoint key", create=given is None),
                lambda namespace, name: client.get(SECRET, name, namespace),
                _source(client, settings),
                has_synced=lambda: hardware.has_synced,
            )
            hardware.add_event_handler(self.secrets.apply, self.secrets.remove)
        self._informers = tuple(informers.values())
        self._known: float | None = None

    @property
    def known_at(self) -> float | None:
        """The time (Unix seconds) of the restored state while it is served; None once the API has listed everything."""
        if self._known is not None and all(informer.has_synced for informer in self._informers):
            self._known = None
        return self._known

    @property
    def is_recent(self) -> bool:
        """True if the saved state is recent, and so large that a new list takes long."""
        return abs(self.checkpoint.age) < RECENT_SECONDS and self.checkpoint.hardware_count >= LARGE

    @property
    def note(self) -> str:
        """A note for operators while some Hardware are only in the checkpoint; else empty."""
        text = "some Hardware are still to be read: each is when its machine asks, lists lack it"
        return text if self.checkpoint.is_restoring else ""

    async def restore(self) -> bool:
        """Load the saved state into the informers. Return False if there is none."""
        self._inventory.recall_with(self.checkpoint.recall)
        self._known = await self.checkpoint.restore()
        return self._known is not None

    async def restore_rest(self) -> None:
        """Load the Hardware that no machine has asked for, or wait until the API has listed it."""
        await self.checkpoint.restore_rest()
        self._inventory.recall_with(None)


def _source(client: KubeClient, settings: StackSettings) -> frozenset[str]:
    """Return what identifies the source of a saved state: the cluster, and the part of it that this edge serves."""
    return frozenset(f"{each} {settings.scope}" for each in client.cluster) if settings.scope else client.cluster


def has_saved_state(settings: StackSettings) -> bool:
    """Return True if this process saves state. With the embedded API, everything is on this disk already."""
    return Service.HTTP in settings.services and Service.APISERVER not in settings.services and settings.edge.checkpoint


def secret_reader(client: KubeClient, saved: SavedState | None) -> ReadSecret:
    """Return the function that reads the Secret of a Hardware."""
    if saved is not None and saved.secrets is not None:
        return saved.secrets.read
    return lambda namespace, name: client.get(SECRET, name, namespace)


def remove_unwanted(settings: StackSettings) -> None:
    """Delete the state that an earlier run has saved, if the settings forbid it now."""
    try:
        if Service.HTTP in settings.services and not settings.edge.checkpoint:
            discard(settings.data_dir)
    except OSError as error:
        log.warning("%s can't be removed: %s", settings.data_dir / CHECKPOINT, error.strerror or error)
