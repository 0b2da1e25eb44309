"""The discovery controller: judges machines, approves discovered ones, and deletes discovered Hardware without a use.

For each Hardware with an inventory it writes the condition AsExpected (`tink.discovery.verdict`), and an Event when the
condition turns False or changes its reason. On discovered Hardware, and on approved ones, it keeps the labels of their
facts. It never touches labels, annotations and spec of a Hardware that was not discovered.

An approved machine (`tink.discovery.approval`) moves to a Hardware of another name. The steps, each of which may be
repeated after a crash:

    annotation approved-as on the discovered Hardware -> delete it; its finalizer holds it, and it gives up its MAC
    -> create the new Hardware -> copy status.inventory -> create the bmc Machine -> remove the finalizer

A Hardware that is deleted without the annotation approved-as was deleted by an operator: the finalizer is removed.

Discovered Hardware whose machine has declined its address is deleted at once: admission gives the machine another one.

Discovered Hardware that is not needed is deleted: after `INTRODUCTION_SECONDS` without an inventory, and after
`UNLISTED_SECONDS` without a line if its rule has `only=listed`, but not before this process has seen it for
`INTRODUCTION_SECONDS`. The machine is discovered again when it boots ten minutes later. A Hardware that a Workflow
names, that an operator has annotated to approve it, or that does not have the name of a discovered one, stays.

Level-based: a Hardware is reconciled when it changes, when a Hardware with the same facts or with facts of its line
changes, and at each change of a list. With leader election, one of several replicas works.

Without lists, inventories and discovered machines, the controller keeps no index of Hardware and takes no Lease.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tink.api.annotations import (
    APPROVE_ANNOTATION,
    APPROVED_AS_ANNOTATION,
    AUTO_DISCOVERED_LABEL,
    DISCOVERED_AS_ANNOTATION,
    DISCOVERY_ADDRESS_ANNOTATION,
    DISCOVERY_BOOT_ANNOTATION,
)
from tink.api.v1alpha2 import Raw, as_mapping
from tink.discovery.approval import (
    Approval,
    ApprovalError,
    annotations_of,
    approved_as,
    approved_hardware,
    bmc_machine,
    disabled_interfaces,
    has_finalizer,
    has_inventory,
    is_listed_only,
    is_successor,
    labels_of,
    listed_approval,
    requested_approval,
    ruled_approval,
)
from tink.discovery.expected import ExpectedMachines, Match
from tink.discovery.identity import FactsIndex
from tink.discovery.model import (
    AS_EXPECTED,
    DISCOVERY_FINALIZER,
    ExpectedMachine,
    ListProblem,
    MachineFacts,
    MachineVerdict,
    VerdictReason,
    condition_of,
    counts,
    discovered_name,
    has_declined,
    is_discovered,
    list_namespaces,
)
from tink.discovery.verdict import FACT_LABELS, fact_labels, verdict
from tink.kube.cache import Index, Informer
from tink.kube.client import ApiError, ConflictError, KubeClient, NotFoundError
from tink.kube.objects import NamespacedName
from tink.kube.resources import CONFIG_MAP, HARDWARE, MACHINE, WORKFLOW, ResourceType
from tink.kube.runtime import (
    DONE,
    Controller,
    Event,
    EventRecorder,
    LeaderElector,
    Result,
    controller_log,
    run_as_leader,
    steady,
    while_leading,
)
from tink.metrics.families import counter, gauge
from tink.printable import printable
from tink.timestamps import rfc3339
from tink.webhooks.claims import Claims, Conflict, claims_of, ended, is_terminating
from tink.workflow.status import parse_timestamp

log = logging.getLogger(__name__)

COMPONENT: Final = "tinkedge-discovery"
LEASE_NAME: Final = "tinkedge-discovery"
INTRODUCTION_SECONDS: Final = 1800.0
"""Time that a discovered machine has to report its inventory. A self-test, the OSIE and LLDP take ten minutes at most,
and a machine that is still there is discovered again."""
UNLISTED_SECONDS: Final = 86_400.0
"""Time that a machine stays which a rule with `only=listed` has admitted and that no line names: a working day, for an
operator to correct the list."""
_WORKERS: Final = 8
_MIN_RETRY_SECONDS: Final = 0.2
_MAX_RETRY_SECONDS: Final = 60.0
_OBSTACLE_SECONDS: Final = 30.0
"""Time between two attempts to create a Hardware whose name another one has taken. A deletion of that is noticed."""
_MIN_EXPIRY_SECONDS: Final = 1.0
"""Shortest time until an expiry is looked at again, because timers are inexact."""
_SAME_BOOT_SECONDS: Final = 5.0
"""Minimum time between two boots of one machine (`edge.machines.states`)."""
_UNKNOWN_BOOT_SECONDS: Final = 30.0
"""Maximum time by which a boot may seem later than the approval in the same boot, if its time was not known then:
`creationTimestamp` has no fractions of a second, and the clock of the edge, which reports the boot, may be ahead of the
API's."""
_INDEX_BATCH: Final = 50
"""Number of Hardware that are read into the indexes without a pause for other work of the process."""
_MAX_MESSAGE: Final = 1024
_NAMESPACE_ENDS: Final = "because it is being terminated"
"""A part of the message of Kubernetes' NamespaceLifecycle for a creation in a namespace that is being deleted."""
_REFUSES_APPROVAL: Final = (VerdictReason.CONFLICT, VerdictReason.DUPLICATE_SERIAL, VerdictReason.OTHER_BMC)


class DiscoveryController(Collector):
    """Judges and approves machines. Its caller runs the informers. Start `run` as one task."""

    def __init__(
        self,
        client: KubeClient,
        informers: Mapping[ResourceType, Informer],
        *,
        elector: LeaderElector | None = None,
        expected: ExpectedMachines | None = None,
        now: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = steady,
    ) -> None:
        """`informers` are those of HARDWARE, WORKFLOW and CONFIG_MAP (with the label of expected machines).

        `expected` are the lists, if another part of the process keeps them up to date already.
        `now` returns Unix seconds, `elapsed` monotonic seconds.
        """
        self._client = client
        self._informers = {each: informers[each] for each in (CONFIG_MAP, WORKFLOW, HARDWARE)}
        self._hardware = informers[HARDWARE]
        self._elector = elector
        self._now = now
        self._elapsed = elapsed
        self._needed = asyncio.Event()
        self._is_indexing = False
        """True: the indexes are complete, or being filled."""
        self._following = False
        self._recorder = EventRecorder(client, COMPONENT, now=now, clock=elapsed)
        self._limited_log = controller_log(log, elapsed)
        self._expected = expected if expected is not None else ExpectedMachines()
        self._facts = FactsIndex()
        self._claims = Claims()
        self._subjects: set[NamespacedName] = set()
        """The Hardware that have anything to reconcile."""
        self._reasons: dict[NamespacedName, str] = {}
        """The present reason of the condition AsExpected, by Hardware."""
        self._discovered: set[NamespacedName] = set()
        self._by_line: Index[NamespacedName, NamespacedName] = Index()
        """Hardware, by the name of its line: it is judged again if a Hardware of that name is created or deleted."""
        self._observed: dict[NamespacedName, float] = {}
        """When this process has first seen each discovered Hardware that may expire, in seconds of `elapsed`."""
        self._obstacles: dict[NamespacedName, str] = {}
        """The reported obstacles of approvals, by discovered Hardware."""
        self._arriving: dict[NamespacedName, NamespacedName] = {}
        """The discovered Hardware that moves to a name: another one must not take that meanwhile."""
        self._workflows: Index[NamespacedName, NamespacedName] = Index()
        """Workflows, by the Hardware that they name."""
        self._approved: Counter[tuple[str]] = Counter({("list",): 0, ("annotation",): 0, ("rule",): 0})
        reasons = ("NotIntroduced", "NotExpected", "AddressDeclined")
        self._expired: Counter[tuple[str]] = Counter({(each,): 0 for each in reasons})
        self._problems: tuple[ListProblem, ...] = ()
        self.runtime = Controller(
            "Hardware",
            self._reconcile,
            retry_first=_MIN_RETRY_SECONDS,
            retry_longest=_MAX_RETRY_SECONDS,
            limited_log=self._limited_log,
            workers=_WORKERS,
        )
        if expected is None:
            informers[CONFIG_MAP].add_event_handler(lambda new, _: self._expected.apply(new), self._expected.remove)
        self._expected.on_change(self._lists_changed)
        informers[WORKFLOW].add_event_handler(self._workflow_changed, self._workflow_gone)
        self._hardware.add_event_handler(self._hardware_changed, self._hardware_gone)

    # --- life and events ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until cancelled."""
        for informer in self._informers.values():
            await informer.wait_for_cache_sync()
        try:
            await self._needed.wait()
            await self._fill_indexes()
            await run_as_leader(self._elector, self._lead)
        finally:
            self.runtime.queue.shut_down()

    async def _fill_indexes(self) -> None:
        """Read all Hardware into the indexes. Changes are applied meanwhile."""
        self._is_indexing = True
        for number, key in enumerate(tuple(self._hardware)):
            if number % _INDEX_BATCH == 0:
                await asyncio.sleep(0)
            hardware = self._hardware.get(*key)
            if hardware is not None:
                self._hardware_changed(hardware, None)

    async def _lead(self) -> None:
        log.info("discovery: %d discovered machines, %d expected", len(self._discovered), len(self._expected))
        self._following = True
        self._judge_all()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._recorder.run())
                group.create_task(self.runtime.run())
        finally:
            self._following = False

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for one scrape."""
        text = "Discovered Hardware that is not approved."
        yield gauge("tinkedge_discovery_hardware", text, [], {(): len(self._discovered)})
        reasons: Counter[tuple[str]] = Counter({(each.value,): 0 for each in VerdictReason})
        reasons.update((each,) for each in self._reasons.values())
        text = "Hardware, by the reason of the condition AsExpected."
        yield gauge("tinkedge_discovery_as_expected", text, ["reason"], reasons)
        text = "Machines on the lists of expected machines."
        yield gauge("tinkedge_discovery_expected_machines", text, [], {(): len(self._expected)})
        text = "Lines of these lists that can't be used."
        yield gauge("tinkedge_discovery_list_problems", text, [], {(): len(self._expected.problems)})
        yield counter(
            "tinkedge_discovery_approved", "Approved machines, by what approved them.", ["by"], self._approved
        )
        text = "Discovered Hardware that was deleted because it was not needed."
        yield counter("tinkedge_discovery_expired", text, ["reason"], self._expired)

    def _lists_changed(self) -> None:
        if len(self._expected):
            self._needed.set()
        if self._following:
            self._judge_all()

    def _judge_all(self) -> None:
        """Queue all machines: any of them may fit a line now, or no longer. Discovered ones come first."""
        known, self._problems = set(self._problems), self._expected.problems
        for problem in self._problems:
            if problem not in known:
                self._limited_log.warning("%s: %s", problem.source, printable(problem.text), owner=problem.source)
        for key in self._subjects:
            self.runtime.queue.add(key, low_priority=key not in self._discovered)

    def _hardware_changed(self, new: Raw, old: Raw | None) -> None:
        if _is_of_discovery(new) or as_mapping(new.get("status")).get("inventory"):
            self._needed.set()
        if not self._is_indexing:
            return
        key = NamespacedName.of(new)
        affected = self._facts.apply(new)
        has_released = bool(self._claims.apply(new))
        self._note(key, new)
        if not self._following:
            return
        if key in self._subjects and (old is None or _relevant(old) != _relevant(new)):
            self.runtime.queue.add(key)
        self._queue(affected)
        if old is None or is_terminating(old) != is_terminating(new):
            self._queue(self._by_line.keys(key))
        if has_released:
            self._queue(self._obstacles)

    def _hardware_gone(self, old: Raw) -> None:
        key = NamespacedName.of(old)
        affected = self._facts.remove(old)
        self._claims.remove(old)
        self._subjects.discard(key)
        self._discovered.discard(key)
        self._observed.pop(key, None)
        self._reasons.pop(key, None)
        self._obstacles.pop(key, None)
        self._by_line.set(key, ())
        self._release_name(key)
        if self._following:
            self._queue([*affected, *self._by_line.keys(key), *self._obstacles])

    def _note(self, key: NamespacedName, hardware: Raw) -> None:
        """Note the reason of the condition and whether a Hardware has anything to reconcile."""
        facts = self._facts.facts(key)
        reason = condition_of(hardware).get("reason")
        if reason:
            self._reasons[key] = str(reason)
        else:
            self._reasons.pop(key, None)
        is_new = is_discovered(hardware) and not is_terminating(hardware)
        (self._discovered.add if is_new else self._discovered.discard)(key)
        if is_terminating(hardware) and (target := approved_as(hardware)) is not None:
            self._arriving.setdefault(target, key)
        is_reported = facts is not None and has_inventory(facts)
        is_subject = _is_of_discovery(hardware) or is_reported or bool(reason)
        (self._subjects.add if is_subject else self._subjects.discard)(key)

    def _release_name(self, key: NamespacedName) -> None:
        """Permit other machines the name that this discovered Hardware was about to move to."""
        for name in [name for name, other in self._arriving.items() if other == key]:
            del self._arriving[name]

    def _queue(self, keys: Iterable[NamespacedName]) -> None:
        for key in tuple(keys):
            if key in self._subjects:
                self.runtime.queue.add(key)

    def _workflow_changed(self, new: Raw, _old: Raw | None) -> None:
        name = as_mapping(as_mapping(new.get("spec")).get("hardwareRef")).get("name")
        key = NamespacedName.of(new)
        hardware = (NamespacedName(key.namespace, name),) if isinstance(name, str) and name else ()
        gone = self._workflows.set(key, hardware)
        if self._following:
            self._queue(each for each in {*gone, *hardware} if each in self._discovered)

    def _workflow_gone(self, old: Raw) -> None:
        gone = self._workflows.set(NamespacedName.of(old), ())
        if self._following:
            self._queue(each for each in gone if each in self._discovered)

    # --- reconciling one Hardware -------------------------------------------------------------------------------------

    async def _reconcile(self, key: NamespacedName) -> Result:
        await asyncio.sleep(0)  # a change of a list queues all machines; the process answers DHCP packets in between
        hardware, facts = self._hardware.get(*key), self._facts.facts(key)
        if hardware is None or facts is None:
            return DONE
        if is_terminating(hardware):
            return await self._finish_deletion(key, hardware)
        with suppress(NotFoundError):  # it was deleted meanwhile, and the informer reports that
            return await self._judge(key, hardware, facts)
        return DONE

    async def _judge(self, key: NamespacedName, hardware: Raw, facts: MachineFacts) -> Result:
        """Approve a machine, or write what is known of it and remove a Hardware that is not needed."""
        match = self._expected.match(facts)
        self._by_line.set(key, (match.machine.key,) if match.machine is not None else ())
        found = verdict(facts, match, self._facts, self._expected)
        if is_discovered(hardware):
            approval, obstacle = self._approval(key, hardware, match, found)
            self._report_obstacle(key, hardware, obstacle)
            if approval is not None and not obstacle:
                await self._approve(key, hardware, approval)
                return DONE
            self._release_name(key)
            if obstacle and (found is None or found.reason not in _REFUSES_APPROVAL):
                more = found.findings if found is not None else ()
                found = MachineVerdict(VerdictReason.CONFLICT, obstacle, ((VerdictReason.CONFLICT, obstacle), *more))
        hardware = await self._keep_metadata(key, hardware, facts)
        hardware = await self._keep_condition(key, hardware, found)
        return await self._expire(key, hardware, facts, match) if is_discovered(hardware) else DONE

    async def _keep_metadata(self, key: NamespacedName, hardware: Raw, facts: MachineFacts) -> Raw:
        """Keep the labels of discovered and approved Hardware. Return the Hardware as it is afterwards.

        The former address of an approved machine is removed after the machine's next boot. So is the mark of an
        approval that does not hold any more.
        """
        annotations, labels = annotations_of(hardware), labels_of(hardware)
        if not is_discovered(hardware) and DISCOVERED_AS_ANNOTATION not in annotations:
            return hardware
        changed: Raw = {}
        if has_inventory(facts):
            wanted = fact_labels(facts)
            changed = {name: text for name, text in wanted.items() if labels.get(name) != text}
            changed |= {name: None for name in FACT_LABELS if name in labels and name not in wanted}
        dropped = [APPROVED_AS_ANNOTATION] if APPROVED_AS_ANNOTATION in annotations else []
        if DISCOVERY_ADDRESS_ANNOTATION in annotations and _has_booted(hardware):
            dropped += [DISCOVERY_ADDRESS_ANNOTATION, DISCOVERY_BOOT_ANNOTATION]
        metadata: Raw = {"labels": changed} if changed else {}
        metadata |= {"annotations": dict.fromkeys(dropped)} if dropped else {}
        return await self._patch(key, {"metadata": metadata}) if metadata else hardware

    async def _keep_condition(self, key: NamespacedName, hardware: Raw, found: MachineVerdict | None) -> Raw:
        """Write the condition AsExpected if it has changed, and record an Event about bad news.

        Without a verdict the condition is removed, with the inventory that it was about. Return the Hardware as it is
        afterwards.
        """
        before = condition_of(hardware)
        if found is None:
            return await self._write_conditions(key, hardware, None) if before else hardware
        status = "True" if found.is_expected else "False"
        message = printable(found.message)[:_MAX_MESSAGE]
        wanted: Raw = {"type": AS_EXPECTED, "status": status, "reason": found.reason.value, "message": message}
        if all(before.get(name) == value for name, value in wanted.items()):
            return hardware
        is_same = before.get("status") == status and before.get("lastTransitionTime")
        wanted["lastTransitionTime"] = before["lastTransitionTime"] if is_same else rfc3339(self._now())
        after = await self._write_conditions(key, hardware, wanted)
        is_news = before.get("status") != status or before.get("reason") != found.reason.value
        if is_news and (before or not found.is_expected):
            event = Event(found.reason.value, message, warning=not found.is_expected)
            self._recorder.event(hardware, HARDWARE, event)
        return after

    async def _write_conditions(self, key: NamespacedName, hardware: Raw, wanted: Raw | None) -> Raw:
        """Replace one condition and keep all others, if the Hardware has not been changed meanwhile."""
        present = as_mapping(hardware.get("status")).get("conditions")
        kept = [each for each in present if each.get("type") != AS_EXPECTED] if isinstance(present, list) else []
        body: Raw = {
            "metadata": {"resourceVersion": hardware["metadata"]["resourceVersion"]},
            "status": {"conditions": [*kept, wanted] if wanted is not None else kept},
        }
        return await self._patch(key, body, subresource="status")

    # --- approval -----------------------------------------------------------------------------------------------------

    def _approval(
        self, key: NamespacedName, hardware: Raw, match: Match, found: MachineVerdict | None
    ) -> tuple[Approval | None, str]:
        """Return the approval of a discovered machine, and the obstacle to it as one sentence; empty if there is none.

        A list and a rule approve only a machine about which there is a verdict, so one with an inventory.
        """
        try:
            approval = requested_approval(hardware)
            if approval is None and match.machine is not None and not match.conflict and found is not None:
                approval = listed_approval(match.machine)
            elif approval is None and not match.conflict and found is not None:
                approval = ruled_approval(hardware)
        except ApprovalError as error:
            return None, str(error)
        if approval is None:
            return None, ""
        obstacle = self._obstacle(key, hardware, approval, found)
        return approval, f"not approved as Hardware {approval.key} ({approval.source}): {obstacle}" if obstacle else ""

    def _obstacle(self, key: NamespacedName, hardware: Raw, approval: Approval, found: MachineVerdict | None) -> str:
        if found is not None and found.reason in _REFUSES_APPROVAL:
            return found.message
        if approval.key == key:
            return ""
        if self._arriving.get(approval.key, key) != key:
            return f"Hardware {self._arriving[approval.key]} is being approved under this name; choose another name"
        if self._hardware.get(*approval.key) is not None:
            return "a Hardware of this name exists already; delete it, or choose another name"
        if running := [each for each in self._workflows.keys(key) if not self._has_ended(each)]:
            return f"Workflow {running[0]} names the discovered Hardware; the approval waits for its end"
        wanted = claims_of(approved_hardware(hardware, approval.key, self._line(hardware, approval.key), {}))
        conflicts: list[Conflict] = self._claims.conflicts(approval.key, wanted, self._elapsed())
        for conflict in conflicts:
            if conflict.holder != key:
                kind, value = conflict.claim
                return f"{kind} {value} is that of Hardware {conflict.holder} ({conflict.held_in}); correct one of them"
        return ""

    def _line(self, hardware: Raw, target: NamespacedName) -> ExpectedMachine | None:
        """Return the line with the name that a discovered machine gets; None if its rule counts no list there."""
        return self._expected.named(target) if counts(target.namespace, list_namespaces(hardware)) else None

    def _has_ended(self, workflow: NamespacedName) -> bool:
        found = self._informers[WORKFLOW].get(*workflow)
        return found is None or ended(found)

    def _report_obstacle(self, key: NamespacedName, hardware: Raw, obstacle: str) -> None:
        """Record an Event about an obstacle, once until it changes."""
        if self._obstacles.get(key, "") == obstacle:
            return
        if not obstacle:
            del self._obstacles[key]
            return
        self._obstacles[key] = obstacle
        self._recorder.event(hardware, HARDWARE, Event("NotApproved", printable(obstacle), warning=True))
        self._limited_log.warning("Hardware %s: %s", key, printable(obstacle), owner=key.namespace)

    async def _approve(self, key: NamespacedName, hardware: Raw, approval: Approval) -> None:
        """Do the first steps of an approval. `_finish_deletion` does the others when the deletion is seen."""
        metadata = hardware["metadata"]
        version = metadata["resourceVersion"]
        if approval.key == key:
            annotations = {APPROVE_ANNOTATION: None, APPROVED_AS_ANNOTATION: None, DISCOVERED_AS_ANNOTATION: key.name}
            changed: Raw = {"resourceVersion": version, "annotations": annotations}
            changed |= {"labels": {AUTO_DISCOVERED_LABEL: None}, "finalizers": _other_finalizers(hardware)}
            enabled: Raw = {mac: {"disableNetboot": None} for mac in disabled_interfaces(hardware)}
            spec: Raw = {"spec": {"networkInterfaces": enabled}} if enabled else {}
            await self._patch(key, {"metadata": changed, **spec})
            self._report_approved(hardware, key, key, approval.source, by=approval.by)
            return
        self._arriving[approval.key] = key
        if annotations_of(hardware).get(APPROVED_AS_ANNOTATION) != str(approval.key):
            mark = {"resourceVersion": version, "annotations": {APPROVED_AS_ANNOTATION: str(approval.key)}}
            await self._patch(key, {"metadata": mark})
        await self._delete(key, {"uid": metadata["uid"]})

    async def _finish_deletion(self, key: NamespacedName, hardware: Raw) -> Result:
        """Move an approved machine to its new Hardware, then remove the finalizer of the discovered one."""
        if not has_finalizer(hardware):
            return DONE
        target = approved_as(hardware)
        # Without a line, only an operator's annotation approves, and for the namespace of the discovered Hardware.
        is_requested = bool(annotations_of(hardware).get(APPROVE_ANNOTATION))
        if target is not None and not (is_requested and target.namespace == key.namespace):
            # Users who may annotate this Hardware have no rights in the namespace of the list: its line has to fit.
            facts = self._facts.facts(key)
            match = self._expected.match(facts) if facts is not None and has_inventory(facts) else Match()
            is_line = match.machine is not None and match.machine.key == target and not match.conflict
            target = target if is_line else None
        if target is not None:
            try:
                await self._move(key, hardware, target)
            except ApprovalError as error:
                self._report_obstacle(key, hardware, f"not approved as Hardware {target}: {error}")
                return Result(_OBSTACLE_SECONDS)
            except ApiError as error:
                if 400 <= error.status < 500 and not isinstance(error, ConflictError):
                    self._report_obstacle(key, hardware, f"not approved as Hardware {target}: {error}")
                # Nothing can be created in a namespace that is being deleted, and the finalizer would hold it up.
                if error.status != 403 or _NAMESPACE_ENDS not in error.message:
                    raise
        body = {"resourceVersion": hardware["metadata"]["resourceVersion"], "finalizers": _other_finalizers(hardware)}
        with suppress(NotFoundError):
            await self._patch(key, {"metadata": body})
        return DONE

    async def _move(self, key: NamespacedName, hardware: Raw, target: NamespacedName) -> None:
        """Create the Hardware of an approved machine, its inventory and its bmc Machine, as far as they do not exist.

        Raises ApprovalError if another Hardware has taken the name meanwhile, ApiError.
        """
        line, facts = self._line(hardware, target), self._facts.facts(key)
        made = approved_hardware(hardware, target, line, fact_labels(facts) if facts is not None else {})
        try:
            new = await while_leading(self._elector, lambda: self._client.create(HARDWARE, made))
        except ConflictError as error:
            new = await self._client.get(HARDWARE, target.name, target.namespace)
            if not is_successor(new, hardware):
                raise ApprovalError("a Hardware of this name exists already; delete it, or rename it") from error
        else:
            by_list = not annotations_of(hardware).get(APPROVE_ANNOTATION)
            source = line.source if line is not None and by_list else f"annotation {APPROVE_ANNOTATION}"
            self._report_approved(new, key, target, source, by="list" if by_list else "annotation")
        inventory = as_mapping(as_mapping(hardware.get("status")).get("inventory"))
        if inventory and not as_mapping(as_mapping(new.get("status")).get("inventory")):
            await self._patch(target, {"status": {"inventory": inventory}}, subresource="status")
        machine = bmc_machine(hardware, new, line) if line is not None else None
        if machine is not None:
            await self._create_machine(new, machine)

    async def _create_machine(self, hardware: Raw, machine: Raw) -> None:
        """Create the bmc Machine of an approved machine, if none of its name exists.

        A Machine that the API refuses is reported: it must not hold up the approval.
        """
        try:
            await while_leading(self._elector, lambda: self._client.create(MACHINE, machine))
        except ConflictError:
            return  # an operator's own, or created before a restart
        except ApiError as error:
            if not 400 <= error.status < 500 or error.status == 429:
                raise
            message = f"Machine {NamespacedName.of(machine)} of its BMC is not created: {printable(str(error))}"
            self._recorder.event(hardware, HARDWARE, Event("BmcNotCreated", message, warning=True))
            owner = machine["metadata"]["namespace"]
            self._limited_log.warning("Hardware %s: %s", NamespacedName.of(hardware), message, owner=owner)

    def _report_approved(
        self, hardware: Raw, discovered: NamespacedName, key: NamespacedName, source: str, *, by: str
    ) -> None:
        self._approved[by,] += 1
        message = f"discovered as Hardware {discovered}, approved by {printable(source)}"
        self._recorder.event(hardware, HARDWARE, Event("Approved", message))
        log.info("Hardware %s: %s", key, message)

    # --- expiry -------------------------------------------------------------------------------------------------------

    async def _expire(self, key: NamespacedName, hardware: Raw, facts: MachineFacts, match: Match) -> Result:
        """Delete a discovered Hardware that is not needed, or return when that is due."""
        observed = self._observed.setdefault(key, self._elapsed())
        # A Hardware of another name with the label is an operator's own, such as an edited copy of a discovered one.
        is_own = any(key.name == discovered_name(mac) for mac in facts.boot_macs)
        if not is_own or APPROVE_ANNOTATION in annotations_of(hardware) or self._workflows.keys(key):
            return DONE
        created = parse_timestamp(hardware["metadata"].get("creationTimestamp")) or self._now()
        if has_declined(hardware):
            message = "another host has its address; the machine gets another one at its next netboot"
            await self._delete_unneeded(key, hardware, "AddressDeclined", message)
            return DONE
        if not has_inventory(facts):
            reason, due = "NotIntroduced", created + INTRODUCTION_SECONDS
            message = f"the machine has reported no inventory within {INTRODUCTION_SECONDS / 60:.0f} minutes"
        elif is_listed_only(hardware) and match.machine is None and not match.conflict:
            hardware = await self._disable_netboot(key, hardware)
            since = parse_timestamp(condition_of(hardware).get("lastTransitionTime")) or created
            reason, due = "NotExpected", max(created, since) + UNLISTED_SECONDS
            message = f"no list has named the machine within {UNLISTED_SECONDS / 3600:.0f} hours"
        else:
            return DONE
        # The clock of this host may be wrong, or may jump: a machine has its time by a monotonic clock, too.
        if (left := max(due - self._now(), observed + INTRODUCTION_SECONDS - self._elapsed())) > 0:
            return Result(max(left, _MIN_EXPIRY_SECONDS))
        await self._delete_unneeded(key, hardware, reason, message)
        return DONE

    async def _delete_unneeded(self, key: NamespacedName, hardware: Raw, reason: str, message: str) -> None:
        """Delete a discovered Hardware if it is unchanged, with an Event of this reason. Raises ApiError."""
        version = {"uid": hardware["metadata"]["uid"], "resourceVersion": hardware["metadata"]["resourceVersion"]}
        await self._delete(key, version)
        self._expired[reason,] += 1
        self._recorder.event(hardware, HARDWARE, Event(reason, f"deleted: {message}"))
        log.info("Hardware %s: deleted: %s", key, message)

    async def _disable_netboot(self, key: NamespacedName, hardware: Raw) -> Raw:
        """Disable netboot on all interfaces of a discovered Hardware. Return the Hardware as it is afterwards."""
        interfaces = as_mapping(as_mapping(hardware.get("spec")).get("networkInterfaces"))
        enabled = [mac for mac, each in interfaces.items() if as_mapping(each).get("disableNetboot") is not True]
        if not enabled:
            return hardware
        spec = {"networkInterfaces": {mac: {"disableNetboot": True} for mac in enabled}}
        version = {"resourceVersion": hardware["metadata"]["resourceVersion"]}
        return await self._patch(key, {"metadata": version, "spec": spec})

    # --- writes -------------------------------------------------------------------------------------------------------

    async def _patch(self, key: NamespacedName, body: Raw, *, subresource: str | None = None) -> Raw:
        """Merge a patch into a Hardware, while this replica leads. Raises ApiError, LeadershipLostError."""
        return await while_leading(
            self._elector,
            lambda: self._client.patch(HARDWARE, key.name, key.namespace, body, subresource=subresource),
        )

    async def _delete(self, key: NamespacedName, preconditions: Mapping[str, str]) -> None:
        with suppress(NotFoundError):
            await while_leading(
                self._elector,
                lambda: self._client.delete(HARDWARE, key.name, key.namespace, preconditions=preconditions),
            )


def _is_of_discovery(hardware: Raw) -> bool:
    """Return True if a Hardware was discovered, whether its machine is approved or not."""
    annotations = annotations_of(hardware)
    was_discovered = DISCOVERED_AS_ANNOTATION in annotations or DISCOVERY_ADDRESS_ANNOTATION in annotations
    return was_discovered or is_discovered(hardware) or has_finalizer(hardware)


def _relevant(hardware: Raw) -> tuple[Any, ...]:
    """Return the parts of a Hardware on which its reconciliation depends, besides its facts."""
    metadata, status = as_mapping(hardware["metadata"]), as_mapping(hardware.get("status"))
    fields = (metadata.get(name) for name in ("labels", "annotations", "finalizers", "deletionTimestamp"))
    parts = (status.get("inventory"), condition_of(hardware), as_mapping(status.get("lastBoot")).get("at"))
    return (*fields, hardware.get("spec"), *parts, has_declined(hardware))


def _other_finalizers(hardware: Raw) -> list[str]:
    present = as_mapping(hardware["metadata"]).get("finalizers") or []
    return [each for each in present if each != DISCOVERY_FINALIZER]


def _has_booted(hardware: Raw) -> bool:
    """Return True if the machine of an approved Hardware has booted since the boot in which it was approved."""
    booted = parse_timestamp(as_mapping(as_mapping(hardware.get("status")).get("lastBoot")).get("at"))
    if booted is None:
        return False
    former = parse_timestamp(annotations_of(hardware).get(DISCOVERY_BOOT_ANNOTATION))
    if former is not None:
        return booted >= former + _SAME_BOOT_SECONDS
    created = parse_timestamp(hardware["metadata"].get("creationTimestamp"))
    return created is not None and booted > created + _UNKNOWN_BOOT_SECONDS
