"""Keeps a Hardware in step with each BareMetalHost: `tink.convert.to_hardware` says what it is to be, this writes it.

Level-based: a host is looked at when it, its HardwareData or its Hardware changes, and every `resync` seconds, because
Secrets are only got, never watched. Each look starts from what is there now and ends with one apply.

First of all comes safety. A host that must not netboot gets a Hardware that does not (`tink.metal3.ownership`), and so
does one that is gone: in a queue and by workers of its own, which do nothing else, however many hosts wait to be looked
at and however slow that is. What can't be read, converted or written afterwards leaves the Hardware in that state. The
other way, netboot is turned on only for a host that was asked for just now: an informer may be behind.

Hosts are what tenants write. Their namespaces take turns in each queue, what a host is to become is found out in a
thread, and an address that another Hardware has stays with that (`tink.metal3.addresses`): of two Hardware with one
address neither would be served.

A Hardware that was not made from a host is never touched. With a `Leader`, of several replicas one writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace

import orjson

from tink.api.v1alpha2 import Raw
from tink.controller.webhooks.claims import REMEMBERED_SECONDS
from tink.controller.webhooks.claims import Kind as AddressKind
from tink.convert.host_safety import Refusal, refusals
from tink.convert.host_surroundings import secrets_to_read
from tink.convert.report import Findings, Kind, Source
from tink.convert.to_hardware import (
    HostOptions,
    bounded,
    convert,
    is_consumed_by_cluster_api,
)
from tink.kube.announcer import Announcement, Announcer
from tink.kube.client import ApiError, KubeClient, NotFoundError
from tink.kube.informer import Informer
from tink.kube.leader import DeposedError, Leader, steady, while_leading
from tink.kube.resources import HARDWARE, MACHINE, SECRET
from tink.kube.rounds import FairSemaphore
from tink.kube.workqueue import WorkQueue
from tink.limits.log import LimitedLog
from tink.metal3.addresses import Addresses, without_ip
from tink.metal3.ownership import MANAGER, SAFETY_MANAGER, is_ours, is_secured, netboots, released, secured
from tink.metal3.served import complete
from tink.workflow.status import InvalidStatusError, state_of

log = logging.getLogger(__name__)

Key = tuple[str, str]
"""Namespace and name: of a host, its HardwareData and its Hardware alike."""

_URGENT_WORKERS = 2
"""Of all workers: those that do nothing but turn netboot off."""
_URGENT_RETRY = 5.0
"""Seconds between two attempts at it, at most."""
_CONVERSIONS = 2
"""Hosts that are converted at once, each in a thread."""
_TOLD_AT_MOST = 8
"""Findings in one Event."""


class _WaitingError(Exception):
    """Something that a host refers to is not there: its Hardware stays as it is until then."""


@dataclass(frozen=True, slots=True)
class Metal3Settings:
    """All times in seconds."""

    hosts: HostOptions = field(default_factory=HostOptions)
    resync: float = 300.0
    """How often a host is looked at though nothing has changed: its Secrets may have."""
    workers: int = 8
    retry_first: float = 0.2
    retry_longest: float = 60.0

    def __post_init__(self) -> None:
        for name in ("resync", "retry_first", "retry_longest"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be a number of seconds above 0, not {getattr(self, name)}")
        if self.workers <= _URGENT_WORKERS:
            raise ValueError(f"workers must be at least {_URGENT_WORKERS + 1}, not {self.workers}")


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
        leader: Leader | None = None,
        clock: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = steady,
    ) -> None:
        """`hosts` is of either version; `hardware_data` is None where the API has no such resource."""
        self._client = client
        self._hosts = hosts
        self._hardware_data = hardware_data
        self._hardware = hardware
        self._workflows = workflows
        self._settings = settings or Metal3Settings()
        self._leader = leader
        first, longest = self._settings.retry_first, self._settings.retry_longest
        self._queue: WorkQueue[Key] = WorkQueue(first, longest, whose=_namespace_of)
        self._urgent: WorkQueue[Key] = WorkQueue(
            min(first, _URGENT_RETRY), min(longest, _URGENT_RETRY), whose=_namespace_of
        )
        self._addresses = Addresses(elapsed)
        self._conversions = FairSemaphore(_CONVERSIONS)
        self._limited_log = LimitedLog(log, elapsed, capacity=20, interval=10.0, share=5)
        self._announcer = Announcer(client, MANAGER, now=clock, clock=elapsed)
        self._following = False
        self._workflow_on: dict[Key, Key] = {}
        """Workflow that has not ended -> its Hardware."""
        self._busy: dict[Key, set[Key]] = {}
        """The same, the other way."""
        self._applied: dict[Key, tuple[str, str]] = {}
        """What was applied last, as a digest, and the resourceVersion that the Hardware has since."""
        self._told: dict[Key, dict[str, str]] = {}
        """What was said about a host last, by the word for it: nothing is said twice."""
        # An informer of nothing counts as false.
        self._informers = [each for each in (hardware_data, hardware, workflows, hosts) if each is not None]
        for informer in (each for each in self._informers if each is not workflows):
            informer.on_change(lambda new, _: self._wake(_key(new)))
            informer.on_delete(lambda old: self._wake(_key(old)))
        hardware.on_change(lambda new, _: self._free(self._addresses.apply(new)))
        hardware.on_delete(lambda old: self._free(self._addresses.remove(old)))
        workflows.on_change(lambda new, _: self._follow(new, _hardware_of(new)))
        workflows.on_delete(lambda old: self._follow(old, None))

    async def run(self) -> None:
        """Work until cancelled."""
        await self._synced()
        self._following = True
        log.info("metal3: %d hosts of %s", len(self._hosts), self._hosts.resource.api_version)
        try:
            if self._leader is None:
                await self._act()
            else:
                await self._leader.run(self._act)
        finally:
            self._close()

    async def once(self) -> int:
        """Look at each host once, those first that must not netboot; how many could not be brought in step."""
        await self._synced()
        telling = asyncio.create_task(self._announcer.run())
        await asyncio.sleep(0)  # what is told before it runs is not written
        try:
            await self._secure_all()
            failed = [key for key in self._all() if not await self._try(self._bring_in_step, key, self._queue)]
            await self._announcer.flush()
        finally:
            telling.cancel()
            self._close()
        return len(failed)

    def _close(self) -> None:
        self._queue.close()
        self._urgent.close()

    async def _synced(self) -> None:
        for informer in self._informers:
            await informer.wait_synced()

    async def _act(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._announcer.run())
            for _ in range(_URGENT_WORKERS):
                group.create_task(self._work(self._make_safe, self._urgent))
            await self._secure_all()
            for key in self._all():
                self._wake(key)
            for _ in range(self._settings.workers - _URGENT_WORKERS):
                group.create_task(self._work(self._bring_in_step, self._queue))

    async def _secure_all(self) -> None:
        """Turn netboot off wherever it must not be on: before a replica that begins does anything else."""
        urgent = iter([key for key in self._all() if self._is_urgent(key)])

        async def secure() -> None:
            for key in urgent:
                await self._try(self._make_safe, key, self._urgent)

        await asyncio.gather(*(secure() for _ in range(self._settings.workers)))

    # --- what is to be looked at ------------------------------------------------------------------------------------

    def _all(self) -> list[Key]:
        """All hosts, and all Hardware that may have had one; those first that must not netboot, and do."""
        keys = dict.fromkeys(_key(obj) for informer in (self._hosts, self._hardware) for obj in informer.items())
        return sorted(keys, key=lambda key: not self._is_urgent(key))

    def _wake(self, key: Key) -> None:
        if not self._following:
            return
        if self._is_urgent(key):
            self._urgent.add(key)
        else:
            self._queue.add(key)

    def _free(self, keys: Iterable[Key]) -> None:
        """What kept these from having an address may be gone."""
        for key in keys:
            self._wake(key)

    def _is_urgent(self, key: Key) -> bool:
        """Whether a machine may netboot at this moment that must not."""
        hardware = self._hardware.get(*key)
        if hardware is None or not is_ours(hardware) or not netboots(hardware):
            return False
        host = self._host(key)
        return host is None or bool(self._against(host))

    def _host(self, key: Key) -> Raw | None:
        host = self._hosts.get(*key)
        return complete(host, self._hosts.resource) if host is not None else None

    def _against(self, host: Raw) -> list[Refusal]:
        return refusals(host, unmanaged=self._settings.hosts.unmanaged)

    def _follow(self, workflow: Raw, hardware: Key | None) -> None:
        """Take note of a Workflow that keeps a Hardware from being deleted, or does so no more (None)."""
        key = _key(workflow)
        before = self._workflow_on.pop(key, None)
        if hardware is not None:
            self._workflow_on[key] = hardware
            self._busy.setdefault(hardware, set()).add(key)
        if before is None or before == hardware:
            return
        self._busy[before].discard(key)
        if not self._busy[before]:
            del self._busy[before]
            self._wake(before)

    # --- looking at one ---------------------------------------------------------------------------------------------

    async def _work(self, act: Callable[[Key], Awaitable[None]], queue: WorkQueue[Key]) -> None:
        while True:
            key = await queue.take()
            try:
                await self._try(act, key, queue)
            except asyncio.CancelledError:
                queue.add(key)  # for the next time that this replica leads
                raise
            finally:
                queue.done(key)

    async def _try(self, act: Callable[[Key], Awaitable[None]], key: Key, queue: WorkQueue[Key]) -> bool:
        """Do it; whether all is well. What went wrong is told, and tried again."""
        try:
            await act(key)
        except DeposedError:
            queue.retry(key)
            return False
        except (ApiError, _WaitingError) as error:
            delay = queue.retry(key)
            self._tell(key, "NotInStep", f"its Hardware is not brought in step: {error}", warning=True)
            log.debug("host %s/%s: trying again in %.1f s", *key, delay)
            return False
        except Exception:
            # A mistake of ours about one host must not stop the work on all others.
            delay = queue.retry(key)
            text = "host %s/%s: trying again in %.1f s"
            self._limited_log.log(logging.ERROR, text, *key, delay, exc_info=True, owner=key[0])
            return False
        queue.settle(key)
        return True

    async def _make_safe(self, key: Key) -> None:
        """Turn netboot off, if it must not be on; everything else is looked at afterwards."""
        hardware = self._hardware.get(*key)
        if hardware is not None and self._is_urgent(key):
            await self._secure(hardware)
        self._queue.add(key)

    async def _bring_in_step(self, key: Key) -> None:
        host, hardware = self._host(key), self._hardware.get(*key)
        if hardware is None and host is not None:
            hardware = await self._unseen(key)
        if hardware is not None and not is_ours(hardware):
            if host is not None:
                what = "a Hardware of this name is there, and was not made from the host: it is left alone"
                self._tell(key, "NotOurs", f"{what}; rename or delete one of them", warning=True)
        elif host is not None:
            await self._keep(key, host, hardware)
        elif hardware is not None:
            await self._give_up(key, await self._secure(hardware))
        else:
            self._forget(key)
        self._told.get(key, {}).pop("NotInStep", None)

    async def _unseen(self, key: Key) -> Raw | None:
        """The Hardware of a host, if somebody has made it and the informer does not know it yet."""
        try:
            return await self._client.get(HARDWARE, key[1], key[0])
        except NotFoundError:
            return None

    async def _keep(self, key: Key, host: Raw, hardware: Raw | None) -> None:
        """Bring the Hardware of a host in step with it."""
        off = hardware is None or not netboots(hardware)
        if off and not self._against(host):
            host = await self._as_it_is(key)
        against = self._against(host)
        if hardware is not None and against:
            hardware = await self._secure(hardware)
        made = await self._converted(key, host, hardware)
        if not made:
            if hardware is not None:
                await self._secure(hardware)
            return
        if not self._may_have_addresses(key, made[0], hardware):
            return
        if off and not against and ((now := self._host(key)) is None or self._against(now)):
            if now is not None:  # free when it was looked at, and no more
                await self._keep(key, now, hardware)
            return
        if hardware is not None and not against and is_secured(hardware):
            hardware = await self._apply_hardware(released(hardware), SAFETY_MANAGER, force=True)
        hardware = await self._apply(key, made[0], hardware)
        for machine in made[1:]:
            await self._apply_machine(key, machine, hardware)
        if against:
            self._tell(key, "NetbootRefused", "; ".join(map(str, against)))
        elif self._told.get(key, {}).pop("NetbootRefused", None) is not None:
            log.info("Hardware %s/%s: netboot is on, the host is free", *key)
        if self._following:
            self._queue.add_after(key, self._settings.resync)

    def _may_have_addresses(self, key: Key, wanted: Raw, hardware: Raw | None) -> bool:
        """Leave out of `wanted` what belongs to another Hardware; False if its MAC addresses do."""
        taken = self._addresses.claim(key, wanted, hardware)
        if not taken:
            self._told.get(key, {}).pop("AddressTaken", None)
            return True
        without_ip(wanted, {each.claim[1] for each in taken if each.claim[0] is AddressKind.IP})
        refused = [each for each in taken if each.claim[0] is AddressKind.MAC]
        # Whose it is, only those learn who may see it.
        own = [f"Hardware {each.holder[1]}" if each.holder[0] == key[0] else "another Hardware" for each in taken]
        said = "; ".join(f"{who} has the {each.claim[0]} {each.claim[1]}" for each, who in zip(taken, own, strict=True))
        result = "its Hardware is left as it is" if refused else "it is not served to this one"
        self._tell(key, "AddressTaken", f"{said}: {result} until that is gone", warning=True)
        if refused and self._following:
            # What is only about to be another's may never be.
            soon = any(each.arriving for each in taken)
            self._queue.add_after(key, REMEMBERED_SECONDS if soon else self._settings.resync)
        return not refused

    async def _as_it_is(self, key: Key) -> Raw:
        """A host as the API has it at this moment: the informer may be behind. Raises _WaitingError: it is gone."""
        try:
            return await self._client.get(self._hosts.resource, key[1], key[0])
        except NotFoundError as error:
            raise _WaitingError("the host has just been deleted") from error

    async def _converted(self, key: Key, host: Raw, hardware: Raw | None) -> list[Raw]:
        """What the host is to become; empty for one that is not taken, or can't be converted: the findings say why.

        Raises _WaitingError: a Secret is not there.
        """
        found = {("HardwareData", *key): self._hardware_data.get(*key) if self._hardware_data is not None else None}
        for namespace, name in secrets_to_read(host, key[0]):
            try:
                found["Secret", namespace, name] = await self._client.get(SECRET, name, namespace)
            except NotFoundError as error:
                raise _WaitingError(f"Secret {namespace}/{name} does not exist: create it") from error
        options = self._settings.hosts
        if hardware is not None and is_consumed_by_cluster_api(host):
            # It was free when its Hardware was made. Without one the machine would be unknown, not safe.
            options = replace(options, consumed=True)
        findings = Findings(Source("cluster", 1, "BareMetalHost", *key))
        async with self._conversions.entered(key[0]):
            # A host, its inventory and its Secrets may have megabytes; nobody's safety must wait for them.
            made = await asyncio.to_thread(convert, host, findings, lambda *what: found.get(what), options)
        self._tell_findings(key, findings, made)
        return made

    def _tell_findings(self, key: Key, findings: Findings, made: list[Raw]) -> None:
        """What was not carried over, without what Events of their own tell."""
        lost = [f"{each.path}: {each.reason}" for each in findings if each.kind is not Kind.CHANGED]
        looked_at = [f"{each.path}: {each.reason}" for each in findings if each.path == "spec.rootDeviceHints"]
        said = list(dict.fromkeys([*looked_at, *lost]))
        if not said:
            self._told.get(key, {}).pop("NotCarriedOver", None)
            return
        more = f"; and {len(said) - _TOLD_AT_MOST} more" if len(said) > _TOLD_AT_MOST else ""
        self._tell(key, "NotCarriedOver", "; ".join(said[:_TOLD_AT_MOST]) + more, warning=not made)

    # --- a host that is gone ----------------------------------------------------------------------------------------

    async def _give_up(self, key: Key, hardware: Raw) -> None:
        """Delete the Hardware of a host that is gone, as soon as no Workflow needs it."""
        try:
            await self._client.get(self._hosts.resource, key[1], key[0])
        except NotFoundError:
            pass
        else:
            self._queue.retry(key)  # it is there again; the informer will say so
            return
        if busy := self._busy.get(key):
            names = ", ".join(sorted(name for _, name in busy)[:5])
            text = f"its host is gone; it is deleted when no Workflow runs on it any more: {names}"
            self._tell(key, "DeletionWaits", text, warning=True)
            return
        with contextlib.suppress(NotFoundError):
            await while_leading(self._leader, lambda: self._client.delete(HARDWARE, key[1], key[0]))
        log.info("Hardware %s/%s: deleted, its host is gone", *key)
        self._forget(key)

    def _forget(self, key: Key) -> None:
        self._queue.forget(key)
        self._told.pop(key, None)
        self._applied.pop(key, None)
        self._addresses.forget(key)

    # --- writes -----------------------------------------------------------------------------------------------------

    async def _secure(self, hardware: Raw) -> Raw:
        """Have no interface netboot; what the Hardware is then."""
        if not netboots(hardware):
            return hardware
        log.info("Hardware %s/%s: netboot is off", *_key(hardware))
        return await self._apply_hardware(secured(hardware), SAFETY_MANAGER, force=True)

    async def _apply(self, key: Key, wanted: Raw, hardware: Raw | None) -> Raw:
        """Apply what a conversion made, if it is something new or the Hardware has changed since."""
        wanted["metadata"]["namespace"] = key[0]
        digest = hashlib.sha256(orjson.dumps(wanted)).hexdigest()
        if hardware is not None:
            if self._applied.get(key) == (digest, hardware["metadata"].get("resourceVersion")):
                return hardware
            # Not one that somebody else has made in its place.
            wanted["metadata"]["uid"] = hardware["metadata"]["uid"]
        after = await self._apply_hardware(wanted, MANAGER)
        self._applied[key] = (digest, after["metadata"]["resourceVersion"])
        if hardware is None:
            log.info("Hardware %s/%s: made from its BareMetalHost", *key)
        return after

    async def _apply_hardware(self, body: Raw, manager: str, *, force: bool = False) -> Raw:
        namespace, name = _key(body)
        return await while_leading(
            self._leader,
            lambda: self._client.apply(HARDWARE, name, namespace, body, manager=manager, force=force),
        )

    async def _apply_machine(self, key: Key, machine: Raw, hardware: Raw) -> None:
        """Rufio's Machine goes with its Hardware: Kubernetes deletes it after its owner."""
        try:
            there = await self._client.get(MACHINE, key[1], key[0])
        except NotFoundError:
            there = None
        if there is not None and not is_ours(there):
            what = "a Machine of this name is there, and was not made from the host: it is left alone"
            self._tell(key, "MachineNotOurs", what, warning=True)
            return
        owner = {"apiVersion": hardware["apiVersion"], "kind": "Hardware"}
        owner |= {field: hardware["metadata"][field] for field in ("name", "uid")}
        machine["metadata"] |= {"namespace": key[0], "ownerReferences": [owner]}
        await while_leading(self._leader, lambda: self._client.apply(MACHINE, key[1], key[0], machine, manager=MANAGER))

    # --- what is said -----------------------------------------------------------------------------------------------

    def _tell(self, key: Key, reason: str, message: str, *, warning: bool = False) -> None:
        """Say something about a host in the log and in an Event, once, until it is something else."""
        told = self._told.setdefault(key, {})
        message = bounded(message)
        if told.get(reason) == message:
            return
        told[reason] = message
        level = logging.WARNING if warning else logging.INFO
        self._limited_log.log(level, "host %s/%s: %s: %s", *key, reason, message, owner=key[0])
        about = self._host(key)
        resource = self._hosts.resource
        if about is None:
            about, resource = self._hardware.get(*key), HARDWARE
        if about is not None:
            self._announcer.tell(about, resource, Announcement(reason, message, warning))


def _hardware_of(workflow: Raw) -> Key | None:
    """The Hardware that a Workflow needs; None for one that has ended."""
    try:
        state = state_of(workflow)
    except InvalidStatusError:
        state = None  # nobody knows: it may run
    if state is not None and state.terminal:
        return None
    spec = workflow.get("spec")
    reference = spec.get("hardwareRef") if isinstance(spec, dict) else None
    name = reference.get("name") if isinstance(reference, dict) else None
    return (_key(workflow)[0], name) if isinstance(name, str) and name else None


def _namespace_of(key: Key) -> str:
    return key[0]


def _key(obj: Raw) -> Key:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
