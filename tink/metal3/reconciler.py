"""Brings the Hardware of one BareMetalHost in step with it: `tink.convert.metal3` says what it is to be.

First of all comes safety: a host that must not netboot gets a Hardware that does not, and so does one that is gone.
What can't be read, converted or written afterwards leaves the Hardware in that state. The other way, netboot is turned
on only for a host that was asked for just now: an informer may be behind.

A Hardware that was not made from a host is never touched.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from tink.api.v1alpha2 import Raw
from tink.convert.findings import Findings, Source
from tink.convert.metal3 import convert_to_hardware, is_consumed_by_cluster_api, secrets_to_read
from tink.kube.client import KubeClient, NotFoundError
from tink.kube.objects import NamespacedName, ObjectReference
from tink.kube.resources import HARDWARE, SECRET
from tink.kube.runtime import DONE, Result
from tink.limits.fairness import FairSemaphore
from tink.metal3.addresses import Addresses, without
from tink.metal3.hosts import Hosts
from tink.metal3.ownership import is_ours, is_secured, netboots
from tink.metal3.reporter import Reporter
from tink.metal3.settings import Metal3Settings
from tink.metal3.writer import HardwareWriter
from tink.webhooks import REMEMBERED_SECONDS, ClaimKind, Conflict, References, UsedAddress

log = logging.getLogger(__name__)

_CONVERSIONS = 2
"""Hosts that are converted at once, each in a thread."""
_MOST_NAMES = 5


class WaitingError(Exception):
    """Something that a host refers to is not there: its Hardware stays as it is until then."""


class HostReconciler:
    """`reconcile` is called with the key of a host. Raises what a `HardwareWriter` raises, and WaitingError."""

    def __init__(
        self,
        client: KubeClient,
        hosts: Hosts,
        writer: HardwareWriter,
        reporter: Reporter,
        *,
        addresses: Addresses,
        references: References,
        settings: Metal3Settings,
    ) -> None:
        """`references` are those of the Workflows that have not ended."""
        self._client = client
        self._hosts = hosts
        self._writer = writer
        self._reporter = reporter
        self._addresses = addresses
        self._references = references
        self._settings = settings
        self._conversions = FairSemaphore(_CONVERSIONS)

    async def reconcile(self, key: NamespacedName) -> Result:
        """Look at a host and its Hardware as they are now, and make the Hardware what it is to be."""
        result = await self._reconcile(key)
        self._reporter.clear(key, "NotInStep")
        return result

    async def _reconcile(self, key: NamespacedName) -> Result:
        host, hardware = self._hosts.host(key), self._hosts.hardware(key)
        if hardware is None and host is not None:
            hardware = await self._unseen(key)
        if hardware is not None and not is_ours(hardware):
            if host is not None:
                what = "a Hardware of this name is there, and was not made from the host: it is left alone"
                self._reporter.report(key, "NotOurs", f"{what}; rename or delete one of them", warning=True)
            return DONE
        if host is not None:
            return await self._keep(key, host, hardware)
        if hardware is not None:
            await self._writer.secure(hardware)
            return await self._give_up(key)
        self._forget(key)
        return DONE

    async def _unseen(self, key: NamespacedName) -> Raw | None:
        """The Hardware of a host, if somebody has made it and the informer does not know it yet."""
        try:
            return await self._client.get(HARDWARE, key.name, key.namespace)
        except NotFoundError:
            return None

    # --- a host that is there ---------------------------------------------------------------------------------------

    async def _keep(self, key: NamespacedName, host: Raw, hardware: Raw | None) -> Result:
        """Bring the Hardware of a host in step with it."""
        off = hardware is None or not netboots(hardware)
        if off and not self._hosts.refusals(host):
            host = await self._as_it_is(key)
        refusals = self._hosts.refusals(host)
        if hardware is not None and refusals:
            hardware = await self._writer.secure(hardware)
        made = await self._converted(key, host, hardware)
        if not made:
            if hardware is not None:
                await self._writer.secure(hardware)
            return DONE
        if (later := self._refused_addresses(key, made[0], hardware)) is not None:
            return later
        if off and not refusals and ((now := self._hosts.host(key)) is None or self._hosts.refusals(now)):
            # Free when it was looked at, and no more.
            return await self._keep(key, now, hardware) if now is not None else DONE
        if hardware is not None and not refusals and is_secured(hardware):
            hardware = await self._writer.release(hardware)
        hardware = await self._writer.apply(key, made[0], hardware)
        for machine in made[1:]:
            if not await self._writer.apply_machine(key, machine, hardware):
                what = "a Machine of this name is there, and was not made from the host: it is left alone"
                self._reporter.report(key, "MachineNotOurs", what, warning=True)
        if refusals:
            self._reporter.report(key, "NetbootRefused", "; ".join(map(str, refusals)))
        elif self._reporter.clear(key, "NetbootRefused"):
            log.info("Hardware %s: netboot is on, the host is free", key)
        return Result(requeue_after=self._settings.resync)

    def _refused_addresses(self, key: NamespacedName, wanted: Raw, hardware: Raw | None) -> Result | None:
        """Leave out of `wanted` what belongs to another Hardware; if its MAC addresses do, when to look again."""
        taken = self._addresses.claim(key, wanted, hardware)
        if not taken:
            self._reporter.clear(key, "AddressTaken")
            return None
        without(wanted, {each.claim for each in taken})
        refused = any(each.claim[0] is ClaimKind.MAC for each in taken)
        conflicts = "; ".join(_taken(key, each) for each in taken)
        result = "its Hardware is left as it is" if refused else "it is not served to this one"
        self._reporter.report(key, "AddressTaken", f"{conflicts}: {result} until that is gone", warning=True)
        if not refused:
            return None
        # What is only about to be another's may never be.
        soon = any(isinstance(each, Conflict) and each.arriving for each in taken)
        return Result(requeue_after=REMEMBERED_SECONDS if soon else self._settings.resync)

    async def _as_it_is(self, key: NamespacedName) -> Raw:
        """A host as the API has it at this moment: the informer may be behind. Raises WaitingError: it is gone."""
        try:
            return await self._client.get(self._hosts.resource, key.name, key.namespace)
        except NotFoundError as error:
            raise WaitingError("the host has just been deleted") from error

    async def _converted(self, key: NamespacedName, host: Raw, hardware: Raw | None) -> list[Raw]:
        """What the host is to become; empty for one that is not taken, or can't be converted: the findings say why.

        Raises WaitingError: a Secret is not there.
        """
        found = {("HardwareData", *key): self._hosts.hardware_data(key)}
        for namespace, name in secrets_to_read(host, key.namespace):
            try:
                found["Secret", namespace, name] = await self._client.get(SECRET, name, namespace)
            except NotFoundError as error:
                raise WaitingError(f"Secret {namespace}/{name} does not exist: create it") from error
        options = self._settings.hosts
        if hardware is not None and is_consumed_by_cluster_api(host):
            # It was free when its Hardware was made. Without one the machine would be unknown, not safe.
            options = replace(options, consumed=True)
        findings = Findings(Source("cluster", 1, "BareMetalHost", *key))
        async with self._conversions.held(key.namespace):
            # A host, its inventory and its Secrets may have megabytes; nobody's safety must wait for them.
            made = await asyncio.to_thread(convert_to_hardware, host, findings, lambda *what: found.get(what), options)
        self._reporter.report_findings(key, findings, converted=bool(made))
        return made

    # --- a host that is gone ----------------------------------------------------------------------------------------

    async def _give_up(self, key: NamespacedName) -> Result:
        """Delete the Hardware of a host that is gone, as soon as no Workflow needs it."""
        try:
            await self._client.get(self._hosts.resource, key.name, key.namespace)
        except NotFoundError:
            pass
        else:
            # It is there again; the informer will say so.
            return Result(requeue_after=self._settings.retry_first)
        if workflows := self._references.referrers(ObjectReference("Hardware", *key)):
            names = ", ".join(sorted(each.name for each in workflows)[:_MOST_NAMES])
            text = f"its host is gone; it is deleted when no Workflow runs on it any more: {names}"
            self._reporter.report(key, "DeletionWaits", text, warning=True)
            return DONE
        await self._writer.delete(key)
        log.info("Hardware %s: deleted, its host is gone", key)
        self._forget(key)
        return DONE

    def _forget(self, key: NamespacedName) -> None:
        self._reporter.forget(key)
        self._writer.forget(key)
        self._addresses.forget(key)


def _taken(key: NamespacedName, conflict: Conflict | UsedAddress) -> str:
    """Return the reason why an address is not free. It names the other owner only to users who may see it."""
    kind, value = conflict.claim
    if isinstance(conflict, UsedAddress):
        return f"the {kind} {value} is the {conflict.use} of machines of another namespace"
    is_visible = conflict.holder.namespace == key.namespace
    return f"{f'Hardware {conflict.holder.name}' if is_visible else 'another Hardware'} has the {kind} {value}"
