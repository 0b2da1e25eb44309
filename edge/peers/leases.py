"""Finds the edges of a cluster: each edge keeps a Lease (coordination.k8s.io/v1) with its addresses.

    metadata.name               the pod's name; outside of pods tinkedge-edge-10-1-0-2, by the edge's first address
    metadata.ownerReferences    the pod: Kubernetes deletes the Lease with it
    metadata.labels             tinkerbell.org/edge-group: the edges that find each other
    metadata.annotations        tinkerbell.org/edge-addresses: 10.1.0.2:7080,10.2.0.2:7080
    spec.holderIdentity         the edge's name, another one after each start
    spec.renewTime              to the second. A Lease is out of date when it has not changed for its duration,
                                whatever the other edge's clock says

A Lease only announces addresses: an edge must also have the key. A Lease that has not been renewed for a day is
ignored. While the API is unreachable, the last result counts.

A pod does not need the right to delete Leases: it empties its own Lease at a clean stop, and the chart's admission
policy lets it write no other. Outside of pods an edge deletes its Lease at a clean stop, and deletes other edges'
Leases that are a day old.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from tink.api.v1alpha2 import Raw, as_mapping
from tink.kube.client import ApiError, KubeClient
from tink.kube.resources import LEASE
from tink.kube.runtime import Pod
from tink.timestamps import rfc3339
from tink.workflow.status import parse_timestamp

log = logging.getLogger(__name__)

GROUP_LABEL: Final = "tinkerbell.org/edge-group"
ADDRESSES_ANNOTATION: Final = "tinkerbell.org/edge-addresses"
RENEW_SECONDS: Final = 10.0
DURATION_SECONDS: Final = 40
ABANDONED_SECONDS: Final = 86_400.0
MAX_LEASES: Final = 500
MAX_ADDRESSES: Final = 64
_AUTHORITY = re.compile(r"(?:([0-9.]{7,15})|\[([0-9a-f:.]{2,39})\]):([0-9]{1,5})")


@dataclass(eq=False)
class EdgeLeases:
    """Keeps this edge's Lease, and reads those of the others. `run` it as one task.

    own: returns the current `address:port` values of this edge.
    found: called with the addresses of the others.
    pod: the pod of this edge, if it runs in one.
    reads_only: this process is no edge and keeps no Lease.
    now: returns Unix seconds.
    """

    client: KubeClient
    _: KW_ONLY
    namespace: str
    group: str
    identity: str
    own: Callable[[], list[str]]
    found: Callable[[Iterable[str]], None]
    pod: Pod | None = None
    reads_only: bool = False
    now: Callable[[], float] = time.time
    _name: str = field(default="", init=False)
    _failing: bool = field(default=False, init=False)

    async def run(self) -> None:
        """Renew and read Leases until cancelled; then release this edge's own."""
        try:
            while True:
                try:
                    await self.renew()
                    await self.look()
                except ApiError as error:
                    if not self._failing:
                        log.warning("Leases of edges in %s can't be kept or read: %s", self.namespace, error)
                    self._failing = True
                else:
                    self._failing = False
                await asyncio.sleep(RENEW_SECONDS)
        finally:
            with suppress(ApiError, TimeoutError):
                async with asyncio.timeout(2):
                    if self.pod is None:
                        await self._remove(self._name)
                    elif self._name:
                        await self._write([])

    async def renew(self) -> None:
        """Write this edge's Lease. Raises ApiError."""
        own = self.own()
        if not own:
            return
        name = self.pod.name if self.pod is not None else lease_name(own[0])
        if name != self._name:
            await self._remove(self._name)
        self._name = name
        await self._write(own)

    async def _write(self, own: list[str]) -> None:
        metadata: Raw = {
            "name": self._name,
            "namespace": self.namespace,
            "labels": {GROUP_LABEL: self.group},
            "annotations": {ADDRESSES_ANNOTATION: ",".join(own[:MAX_ADDRESSES])},
        }
        if self.pod is not None:
            metadata["ownerReferences"] = [
                {"apiVersion": "v1", "kind": "Pod", "name": self.pod.name, "uid": self.pod.uid}
            ]
        lease = {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": metadata,
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": DURATION_SECONDS,
                "renewTime": rfc3339(self.now(), "microseconds"),
            },
        }
        await self.client.apply(LEASE, self._name, self.namespace, lease, manager="tinkedge-edge", force=True)

    async def look(self) -> None:
        """Read the Leases of the group. Raises ApiError."""
        leases = (await self.client.list(LEASE, self.namespace, limit=MAX_LEASES)).get("items") or []
        labels = [as_mapping(as_mapping(lease.get("metadata")).get("labels")) for lease in leases]
        of_group = [lease for lease, own in zip(leases, labels, strict=True) if own.get(GROUP_LABEL) == self.group]
        found: set[str] = set()
        for lease in of_group:
            name = str(as_mapping(lease.get("metadata")).get("name") or "")
            if name == self._name:
                continue
            renewed = parse_timestamp(str(as_mapping(lease.get("spec")).get("renewTime") or ""))
            if renewed is None or self.now() - renewed > ABANDONED_SECONDS:
                await self._remove(name)
            else:
                found |= addresses(lease)
        self.found(found)

    async def _remove(self, name: str) -> None:
        if name and not self.reads_only and self.pod is None:
            with suppress(ApiError):
                await self.client.delete(LEASE, name, self.namespace)


def lease_name(authority: str) -> str:
    """Return the name of the Lease of the edge at this `address:port`."""
    address = ipaddress.ip_address(authority.rpartition(":")[0].strip("[]"))
    return f"tinkedge-edge-{address.exploded.replace('.', '-').replace(':', '-')}"


def addresses(lease: Raw) -> set[str]:
    """Return the `address:port` values of a Lease. Invalid ones are ignored: other clients can write Leases, too."""
    annotations = as_mapping(as_mapping(lease.get("metadata")).get("annotations"))
    words = str(annotations.get(ADDRESSES_ANNOTATION) or "").split(",")[:MAX_ADDRESSES]
    return {word for word in words if is_authority(word)}


def is_authority(word: str) -> bool:
    """Return True for an address and a port, such as `10.1.0.2:7080` or `[fd00::2]:7080`."""
    match = _AUTHORITY.fullmatch(word)
    if match is None or not 0 < int(match[3]) < 65536:
        return False
    try:
        ipaddress.ip_address(match[1] or match[2])
    except ValueError:
        return False
    return True
