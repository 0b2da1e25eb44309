"""Writes what the controller of Metal3's hosts wants of Hardware, by server-side apply; with leader election only while
this replica leads. Who may write what: `tink.metal3.ownership`.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging

import orjson

from tink.api.v1alpha2 import Raw
from tink.kube.client import KubeClient, NotFoundError
from tink.kube.objects import NamespacedName
from tink.kube.resources import HARDWARE, MACHINE
from tink.kube.runtime import LeaderElector, while_leading
from tink.metal3.ownership import MANAGER, SAFETY_MANAGER, is_ours, netboots, released, secured

log = logging.getLogger(__name__)


class HardwareWriter:
    """Raises ApiError and LeadershipLostError in all its methods."""

    def __init__(self, client: KubeClient, elector: LeaderElector | None) -> None:
        self._client = client
        self._elector = elector
        self._applied: dict[NamespacedName, tuple[str, str]] = {}
        """What was applied last, as a digest, and the resourceVersion that the Hardware has since."""

    async def secure(self, hardware: Raw) -> Raw:
        """Have no interface netboot; what the Hardware is then."""
        if not netboots(hardware):
            return hardware
        log.info("Hardware %s: netboot is off", NamespacedName.of(hardware))
        return await self._apply(secured(hardware), SAFETY_MANAGER, force=True)

    async def release(self, hardware: Raw) -> Raw:
        """Let interfaces netboot that were secured; what the Hardware is then."""
        return await self._apply(released(hardware), SAFETY_MANAGER, force=True)

    async def apply(self, key: NamespacedName, wanted: Raw, hardware: Raw | None) -> Raw:
        """Apply what a conversion made, if it is something new or the Hardware has changed since."""
        wanted["metadata"]["namespace"] = key.namespace
        digest = hashlib.sha256(orjson.dumps(wanted)).hexdigest()
        if hardware is not None:
            if self._applied.get(key) == (digest, hardware["metadata"].get("resourceVersion")):
                return hardware
            # Not one that somebody else has made in its place.
            wanted["metadata"]["uid"] = hardware["metadata"]["uid"]
        after = await self._apply(wanted, MANAGER)
        self._applied[key] = (digest, after["metadata"]["resourceVersion"])
        if hardware is None:
            log.info("Hardware %s: made from its BareMetalHost", key)
        return after

    async def apply_machine(self, key: NamespacedName, machine: Raw, hardware: Raw) -> bool:
        """Rufio's Machine goes with its Hardware: Kubernetes deletes it after its owner. False if there is one that was
        not made from the host: it is left alone."""
        try:
            there = await self._client.get(MACHINE, key.name, key.namespace)
        except NotFoundError:
            there = None
        if there is not None and not is_ours(there):
            return False
        owner = {"apiVersion": hardware["apiVersion"], "kind": "Hardware"}
        owner |= {field: hardware["metadata"][field] for field in ("name", "uid")}
        machine["metadata"] |= {"namespace": key.namespace, "ownerReferences": [owner]}
        await while_leading(
            self._elector, lambda: self._client.apply(MACHINE, key.name, key.namespace, machine, manager=MANAGER)
        )
        return True

    async def delete(self, key: NamespacedName) -> None:
        """Delete the Hardware, if it is there."""
        with contextlib.suppress(NotFoundError):
            await while_leading(self._elector, lambda: self._client.delete(HARDWARE, key.name, key.namespace))

    def forget(self, key: NamespacedName) -> None:
        """The host is gone."""
        self._applied.pop(key, None)

    async def _apply(self, body: Raw, manager: str, *, force: bool = False) -> Raw:
        namespace, name = NamespacedName.of(body)
        return await while_leading(
            self._elector,
            lambda: self._client.apply(HARDWARE, name, namespace, body, manager=manager, force=force),
        )
