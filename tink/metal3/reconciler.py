"""Bring the Hardware of one BareMetalHost in step with the host, as `tink.convert.metal3` converts it.

Safety comes first: a host that must not netboot gets a Hardware that does not, and so does a host that is gone. If a
later step fails (a read, the conversion, a write), the Hardware stays in that safe state. Netboot is turned on only for
a host that was just read from the API, because an informer may be behind. A Hardware that was not made from a host is
never changed.

Addresses: a user who may write hosts in one namespace must not take over or disable a machine of another namespace. If
two Hardware claim one MAC or IPv4 address, the edge serves neither (`edge.machines.inventory`). The admission webhook
rejects the second Hardware, if there is a webhook; `Addresses` works without one. A Hardware keeps the addresses that
it has until it is being deleted, even if another host claimed them first. `Addresses` knows the Hardware of the
followed namespaces.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Callable, Iterable, Set
from dataclasses import replace

import orjson

from tink.api.annotations import AGENT_ID_ANNOTATION
from tink.api.v1alpha2 import Raw
from tink.convert.findings import FindingKind, Findings, ObjectPlace
from tink.convert.metal3.safety import bounded, is_consumed_by_cluster_api
from tink.convert.metal3.to_hardware import convert_to_hardware, secrets_to_read
from tink.errors import TinkedgeError
from tink.kube.cache import Index
from tink.kube.client import KubeClient, NotFoundError
from tink.kube.objects import NamespacedName, ObjectReference
from tink.kube.resources import HARDWARE, MACHINE, SECRET
from tink.kube.runtime import DONE, Event, EventRecorder, LeaderElector, Result, steady, while_leading
from tink.limits import FairSemaphore, LimitedLog
from tink.metal3.hosts import MANAGER, SAFETY_MANAGER, Hosts, is_ours, is_secured, netboots, released, secured
from tink.metal3.settings import Metal3Settings
from tink.webhooks.claims import (
    REMEMBERED_SECONDS,
    Claim,
    ClaimKind,
    Claims,
    Conflict,
    References,
    UsedAddress,
    canonical,
    claims_of,
    is_terminating,
)


class Addresses:
    """The addresses that hosts' Hardware may have: those that no other Hardware of any namespace has.

    For one event loop. `elapsed` returns the seconds of a monotonic clock.
    """

    def __init__(self, elapsed: Callable[[], float]) -> None:
        self._elapsed = elapsed
        self._claims = Claims()
        self._waiting: Index[NamespacedName, Claim] = Index()
        """The waiting hosts, by the addresses that they want and another Hardware has."""

    def apply(self, hardware: Raw) -> set[NamespacedName]:
        """Add or update a Hardware. Return the hosts that waited for addresses that it has released."""
        return self._waiting_for(self._claims.apply(hardware))

    def remove(self, hardware: Raw) -> set[NamespacedName]:
        """Remove a deleted Hardware. Return the hosts that waited for its addresses."""
        return self._waiting_for(self._claims.remove(hardware))

    def claim(self, key: NamespacedName, wanted: Raw, hardware: Raw | None) -> list[Conflict | UsedAddress]:
        """Claim the addresses of `wanted` and return the conflicts, in the order of the fields.

        A conflict is an address of another Hardware, or one that machines of other namespaces use as gateway and the
        like. If there are none, the Hardware has the addresses from now on. `hardware` is its present state.
        """
        had = claims_of(hardware)
        new = {claim: path for claim, path in claims_of(wanted).items() if claim not in had}
        terminating = is_terminating(hardware)
        conflicts: list[Conflict | UsedAddress] = [
            *self._claims.conflicts(key, new, self._elapsed(), terminating=terminating)
        ]
        taken = {conflict.claim for conflict in conflicts}
        conflicts += [each for each in self._claims.used(key, new) if each.is_foreign and each.claim not in taken]
        taken = {conflict.claim for conflict in conflicts}
        self._waiting.set(key, {each.held if isinstance(each, Conflict) else each.claim for each in conflicts})
        if not any(kind is ClaimKind.MAC for kind, _ in taken) and not terminating:
            free = {claim: path for claim, path in new.items() if claim not in taken}
            self._claims.admitted(key, free, self._elapsed())
        return conflicts

    def forget(self, key: NamespacedName) -> None:
        """Forget a deleted host."""
        self._waiting.set(key, ())

    def _waiting_for(self, claims: Iterable[Claim]) -> set[NamespacedName]:
        return {key for claim in claims for key in self._waiting.keys(claim)}


def without(hardware: Raw, claims: Set[Claim]) -> None:
    """Remove these IP addresses and agent ids from a Hardware that is to be applied.

    An address is removed with all fields that need it; the interface's host name stays.
    """
    for mac, interface in hardware["spec"]["networkInterfaces"].items():
        dhcp = interface.get("dhcp", {})
        ipv6 = dhcp.get("ipv6")
        if ipv6 is not None and (ClaimKind.IP, canonical(ipv6["address"])) in claims:
            dhcp = {key: value for key, value in dhcp.items() if key != "ipv6"}
        if (ClaimKind.IP, dhcp.get("ip")) in claims:
            dhcp = {key: value for key, value in dhcp.items() if key in ("hostname", "ipv6")}
        if dhcp != interface.get("dhcp", {}):
            hardware["spec"]["networkInterfaces"][mac] = {**interface, "dhcp": dhcp}
    if any(kind is ClaimKind.AGENT_ID for kind, _ in claims):
        del hardware["metadata"]["annotations"][AGENT_ID_ANNOTATION]


_MAX_FINDINGS = 8
"""The most findings in one Event."""


class Reporter:
    """Reports about hosts in the log and in Events. Each message is reported once, until it changes."""

    def __init__(self, hosts: Hosts, limited_log: LimitedLog, recorder: EventRecorder) -> None:
        self._hosts = hosts
        self._limited_log = limited_log
        self._recorder = recorder
        self._reported: dict[NamespacedName, dict[str, str]] = {}
        """The last message about a host, by its reason."""

    def report(self, key: NamespacedName, reason: str, message: str, *, warning: bool = False) -> None:
        """Report a message about a host, unless it is the last one with its reason."""
        reported = self._reported.setdefault(key, {})
        message = bounded(message)
        if reported.get(reason) == message:
            return
        reported[reason] = message
        level = logging.WARNING if warning else logging.INFO
        self._limited_log.log(level, "host %s: %s: %s", key, reason, message, owner=key.namespace)
        if (subject := self._hosts.subject(key)) is not None:
            self._recorder.event(*subject, Event(reason, message, warning))

    def report_findings(self, key: NamespacedName, findings: Findings, *, converted: bool) -> None:
        """Report the fields that the conversion dropped. Findings that have Events of their own are left out."""
        lost = [f"{each.path}: {each.reason}" for each in findings if each.kind is not FindingKind.CHANGED]
        hints = [f"{each.path}: {each.reason}" for each in findings if each.path == "spec.rootDeviceHints"]
        messages = list(dict.fromkeys([*hints, *lost]))
        if not messages:
            self.clear(key, "NotCarriedOver")
            return
        more = f"; and {len(messages) - _MAX_FINDINGS} more" if len(messages) > _MAX_FINDINGS else ""
        self.report(key, "NotCarriedOver", "; ".join(messages[:_MAX_FINDINGS]) + more, warning=not converted)

    def clear(self, key: NamespacedName, reason: str) -> bool:
        """Forget a message, so that it is reported again if it recurs. Return True if there was one."""
        return self._reported.get(key, {}).pop(reason, None) is not None

    def forget(self, key: NamespacedName) -> None:
        """Forget a deleted host."""
        self._reported.pop(key, None)


log = logging.getLogger(__name__)


class HardwareWriter:
    """Writes Hardware by server-side apply; with leader election only while this replica leads.

    `tink.metal3.hosts` describes the two field managers. All methods raise ApiError and LeadershipLostError.
    """

    def __init__(self, client: KubeClient, elector: LeaderElector | None) -> None:
        self._client = client
        self._elector = elector
        self._applied: dict[NamespacedName, tuple[str, str]] = {}
        """The digest of the last applied object, and the resourceVersion that the Hardware got."""

    async def secure(self, hardware: Raw) -> Raw:
        """Turn netboot off on all interfaces. Return the new Hardware."""
        if not netboots(hardware):
            return hardware
        log.info("Hardware %s: netboot is off", NamespacedName.of(hardware))
        return await self._apply(secured(hardware), SAFETY_MANAGER, force=True)

    async def release(self, hardware: Raw) -> Raw:
        """Remove the fields that turned netboot off. Return the new Hardware."""
        return await self._apply(released(hardware), SAFETY_MANAGER, force=True)

    async def apply(self, key: NamespacedName, wanted: Raw, hardware: Raw | None) -> Raw:
        """Apply the result of a conversion, if the result or the Hardware has changed since the last time."""
        wanted["metadata"]["namespace"] = key.namespace
        digest = hashlib.sha256(orjson.dumps(wanted)).hexdigest()
        if hardware is not None:
            if self._applied.get(key) == (digest, hardware["metadata"].get("resourceVersion")):
                return hardware
            # The uid: not another Hardware that replaced this one.
            wanted["metadata"]["uid"] = hardware["metadata"]["uid"]
        after = await self._apply(wanted, MANAGER)
        self._applied[key] = (digest, after["metadata"]["resourceVersion"])
        if hardware is None:
            log.info("Hardware %s: made from its BareMetalHost", key)
        return after

    async def apply_machine(self, key: NamespacedName, machine: Raw, hardware: Raw) -> bool:
        """Apply the Rufio Machine. Its Hardware owns it, so Kubernetes deletes both.

        Return False if the Machine was not made from the host: it is not changed.
        """
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
        """Delete the Hardware if it exists."""
        with contextlib.suppress(NotFoundError):
            await while_leading(self._elector, lambda: self._client.delete(HARDWARE, key.name, key.namespace))

    def forget(self, key: NamespacedName) -> None:
        """Forget a deleted host."""
        self._applied.pop(key, None)

    async def _apply(self, body: Raw, manager: str, *, force: bool = False) -> Raw:
        namespace, name = NamespacedName.of(body)
        return await while_leading(
            self._elector, lambda: self._client.apply(HARDWARE, name, namespace, body, manager=manager, force=force)
        )


_CONVERSIONS = 2
"""The most conversions at the same time, each in a thread."""
_MAX_NAMES = 5


class WaitingError(TinkedgeError):
    """An object that a host refers to does not exist. The Hardware stays unchanged until it does."""


class HostReconciler:
    """Reconciles one host by its key. Raises the exceptions of `HardwareWriter`, and WaitingError."""

    def __init__(
        self,
        client: KubeClient,
        hosts: Hosts,
        settings: Metal3Settings,
        elector: LeaderElector | None,
        limited_log: LimitedLog,
        recorder: EventRecorder,
    ) -> None:
        """`limited_log` limits the lines of the log, `recorder` the Events."""
        self._client = client
        self._hosts = hosts
        self._settings = settings
        self.writer = HardwareWriter(client, elector)
        self.reporter = Reporter(hosts, limited_log, recorder)
        self.addresses = Addresses(steady)
        self.references = References()
        """The references of the Workflows that have not ended."""
        self._conversions = FairSemaphore(_CONVERSIONS)

    async def reconcile(self, key: NamespacedName) -> Result:
        """Read a host and its Hardware as they are now, and bring the Hardware in step."""
        result = await self._reconcile(key)
        self.reporter.clear(key, "NotInStep")
        return result

    async def _reconcile(self, key: NamespacedName) -> Result:
        host, hardware = self._hosts.host(key), self._hosts.hardware(key)
        if hardware is None and host is not None:
            with contextlib.suppress(NotFoundError):  # the informer may not know it yet
                hardware = await self._client.get(HARDWARE, key.name, key.namespace)
        if hardware is not None and not is_ours(hardware):
            if host is not None:
                what = "a Hardware of this name is there, and was not made from the host: it is left alone"
                self.reporter.report(key, "NotOurs", f"{what}; rename or delete one of them", warning=True)
            return DONE
        if host is not None:
            return await self._keep(key, host, hardware)
        if hardware is not None:
            await self.writer.secure(hardware)
            return await self._give_up(key)
        self._forget(key)
        return DONE

    # --- a host that is there ---------------------------------------------------------------------------------------

    async def _keep(self, key: NamespacedName, host: Raw, hardware: Raw | None) -> Result:
        """Bring the Hardware of a host in step with it."""
        off = hardware is None or not netboots(hardware)
        if off and not self._hosts.refusals(host):
            try:  # from the API, because the informer may be behind
                host = await self._client.get(self._hosts.resource, key.name, key.namespace)
            except NotFoundError as error:
                raise WaitingError("the host has just been deleted") from error
        refusals = self._hosts.refusals(host)
        if hardware is not None and refusals:
            hardware = await self.writer.secure(hardware)
        made = await self._converted(key, host, hardware)
        if not made:
            if hardware is not None:
                await self.writer.secure(hardware)
            return DONE
        if (later := self._refused_addresses(key, made[0], hardware)) is not None:
            return later
        if off and not refusals and ((now := self._hosts.host(key)) is None or self._hosts.refusals(now)):
            # The host was free when it was read, but it is not free any more.
            return await self._keep(key, now, hardware) if now is not None else DONE
        if hardware is not None and not refusals and is_secured(hardware):
            hardware = await self.writer.release(hardware)
        hardware = await self.writer.apply(key, made[0], hardware)
        for machine in made[1:]:
            if not await self.writer.apply_machine(key, machine, hardware):
                what = "a Machine of this name is there, and was not made from the host: it is left alone"
                self.reporter.report(key, "MachineNotOurs", what, warning=True)
        if refusals:
            self.reporter.report(key, "NetbootRefused", "; ".join(map(str, refusals)))
        elif self.reporter.clear(key, "NetbootRefused"):
            log.info("Hardware %s: netboot is on, the host is free", key)
        return Result(requeue_after=self._settings.resync)

    def _refused_addresses(self, key: NamespacedName, wanted: Raw, hardware: Raw | None) -> Result | None:
        """Remove addresses of other Hardware from `wanted`.

        If another Hardware has the MAC addresses, return when to try again.
        """
        taken = self.addresses.claim(key, wanted, hardware)
        if not taken:
            self.reporter.clear(key, "AddressTaken")
            return None
        without(wanted, {each.claim for each in taken})
        refused = any(each.claim[0] is ClaimKind.MAC for each in taken)
        conflicts = "; ".join(_taken(key, each) for each in taken)
        result = "its Hardware is left as it is" if refused else "it is not served to this one"
        self.reporter.report(key, "AddressTaken", f"{conflicts}: {result} until that is gone", warning=True)
        if not refused:
            return None
        # A Hardware that is only being admitted may be rejected, and its address become free.
        soon = any(isinstance(each, Conflict) and each.arriving for each in taken)
        return Result(requeue_after=REMEMBERED_SECONDS if soon else self._settings.resync)

    async def _converted(self, key: NamespacedName, host: Raw, hardware: Raw | None) -> list[Raw]:
        """Convert a host. Return nothing if it is skipped or can't be converted: the findings say why.

        Raises WaitingError if a Secret does not exist.
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
        findings = Findings(ObjectPlace("cluster", 1, "BareMetalHost", *key))
        async with self._conversions.held(key.namespace):
            # A host, its inventory and its Secrets may have megabytes: the safety of other hosts must not wait.
            made = await asyncio.to_thread(convert_to_hardware, host, findings, lambda *what: found.get(what), options)
        self.reporter.report_findings(key, findings, converted=bool(made))
        return made

    # --- a host that is gone ----------------------------------------------------------------------------------------

    async def _give_up(self, key: NamespacedName) -> Result:
        """Delete the Hardware of a host that is gone, as soon as no Workflow needs it."""
        try:
            await self._client.get(self._hosts.resource, key.name, key.namespace)
        except NotFoundError:
            pass
        else:
            # The host exists again. The informer will report it.
            return Result(requeue_after=self._settings.retry_first)
        if workflows := self.references.referrers(ObjectReference("Hardware", *key)):
            names = ", ".join(sorted(each.name for each in workflows)[:_MAX_NAMES])
            text = f"its host is gone; it is deleted when no Workflow runs on it any more: {names}"
            self.reporter.report(key, "DeletionWaits", text, warning=True)
            return DONE
        await self.writer.delete(key)
        log.info("Hardware %s: deleted, its host is gone", key)
        self._forget(key)
        return DONE

    def _forget(self, key: NamespacedName) -> None:
        self.reporter.forget(key)
        self.writer.forget(key)
        self.addresses.forget(key)


def _taken(key: NamespacedName, conflict: Conflict | UsedAddress) -> str:
    """Return the reason why an address is not free. It names the other owner only to users who may see it."""
    kind, value = conflict.claim
    if isinstance(conflict, UsedAddress):
        return f"the {kind} {value} is the {conflict.use} of machines of another namespace"
    is_visible = conflict.holder.namespace == key.namespace
    return f"{f'Hardware {conflict.holder.name}' if is_visible else 'another Hardware'} has the {kind} {value}"
