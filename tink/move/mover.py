"""The steps of a move, from an API (the source) to another (the target).

    look       list the objects of the source, and the problems at the target
    pause      a record at the source (ConfigMap kube-system/tinkedge-move); then every Workflow there is paused, so
               that neither controllers nor servers change it or send it to an agent (tinkerbell.org/paused)
    copy       objects, owners and status; Workflows are paused at the target, too
    verify     each object at the target is compared with its source, which is listed again
    hand over  one write of the record: from then on the target has the Workflows. They are released there; at the
               source they stay paused, or everything is deleted on request

A server that has not seen the pause yet can't write, because its writes have an older resourceVersion. An agent that
reports meanwhile gets the answer to try again, and keeps its reports until it reaches the target's server.

Every step skips the work that is done, so a move can be repeated. Before the hand-over it can be undone (`abort`).

Jobs and Tasks of BMCs are not moved. A copy exists for a moment before its status does, so the target's controller
would execute an ended one again, and could switch off a machine that works. One that has not ended prevents the move.
A boot by a BMC (spec.bootOptions of a Workflow) is moved: its finalizer and `status.boot`, from which the target's BMC
control continues. BMC control sends no request for a paused Workflow.

Machines are moved without their status, which the controller of each API writes for itself.

Of ConfigMaps, the lists of expected machines are moved: other ones belong to other programs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from tink.api.annotations import EXPECTED_MACHINES_LABEL, ORIGIN_ANNOTATION, PAUSED_ANNOTATION
from tink.api.bmc import is_ended
from tink.api.crds import generate, generate_bmc
from tink.api.v1alpha2 import BOOT_FINALIZER, Raw, as_mapping
from tink.errors import TinkedgeError
from tink.files.archive import Progress
from tink.kube.client import ConflictError, KubeClient, NotFoundError, each_list_item
from tink.kube.manifests import ManifestError, apply_object
from tink.kube.objects import NamespacedName
from tink.kube.resources import (
    CONFIG_MAP,
    CRD,
    HARDWARE,
    JOB,
    MACHINE,
    NAMESPACE,
    OSIE,
    SECRET,
    TASK,
    TEMPLATE,
    WORKFLOW,
    WORKFLOW_RULE_SET,
    ResourceType,
)
from tink.move import objects
from tink.workflow.guards import has_ended
from tink.workflow.status import deleted, state_of

RECORD, SYSTEM = "tinkedge-move", "kube-system"
_COPYING, _HANDED_OVER = "copying", "handed over"
_ORDER = (SECRET, CONFIG_MAP, WORKFLOW_RULE_SET, OSIE, TEMPLATE, MACHINE, HARDWARE, WORKFLOW)
_WITH_STATUS = (HARDWARE, WORKFLOW)
_NEWEST_FIELDS = {"workflows": frozenset({"id", "boot"}), "hardware": frozenset({"lastBoot"})}
"""The newest status fields that move, by plural. The target would drop a field that its definition lacks."""
_OPTIONAL = (MACHINE, JOB, TASK, WORKFLOW_RULE_SET)
"""The kinds that an API may lack."""
_SELECTORS = {CONFIG_MAP: f"{EXPECTED_MACHINES_LABEL}=true"}
"""The label selectors of the kinds of which some objects are moved only."""
MAX_CONCURRENT = 8
_ROUNDS = 20
_SECOND = 1.1
"""Creation times are whole seconds; after this pause, the next one is later."""

_Objects = dict[ResourceType, list[Raw]]


class MoveError(TinkedgeError):
    """The move can't go on; the message says why and what to do."""


@dataclass(slots=True)
class MoveReport:
    """The result of a move: the number of objects by kind at the source, the number of created ones, and notes.

    With `problems`, nothing was changed.
    """

    found: dict[str, int] = field(default_factory=dict)
    created: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    deleted: int = 0


class Mover:
    """One move. `second` is the pause until the next creation time."""

    def __init__(self, source: KubeClient, target: KubeClient, progress: Progress, *, second: float = _SECOND) -> None:
        self._source, self._target = source, target
        self._progress = progress
        self._second = second
        self._from = self._to = self._pause = ""
        self._report = MoveReport()
        self._uids: dict[str, str] = {}

    async def run(
        self, *, dry_run: bool = False, install_crds: bool = False, delete_source: bool = False
    ) -> MoveReport:
        """Move everything. With `dry_run`, or with problems, nothing is changed. Raises MoveError, ApiError."""
        await self._identify()
        record = await self._record(self._source)
        if record.get("to", self._to) != self._to:
            raise MoveError(
                f"the source was {'being ' if record['phase'] == _COPYING else ''}moved to another API before "
                f"({record['to']}): finish that, or take it back with --abort, first"
            )
        if record.get("phase") != _HANDED_OVER:
            await self._check_definitions(install=install_crds, dry_run=dry_run)
            found = await self._look()
            if dry_run or self._report.problems:
                return self._report
            if not record:
                await self._save(self._source, {"to": self._to, "phase": _COPYING})
            found = await self._pause_and_copy(found)
            await self._verify(found)
            await self._save(self._source, {"to": self._to, "phase": _HANDED_OVER})
        elif dry_run:
            self._report.notes.append("everything was handed over before; what is left is to release it at the target")
            return self._report
        await self._release()
        if delete_source:
            await self._delete_source()
        return self._report

    async def abort(self) -> MoveReport:
        """Undo a move before the hand-over. Raises MoveError, ApiError."""
        await self._identify()
        record = await self._record(self._source)
        if not record:
            raise MoveError("no move has begun there")
        if record.get("phase") != _COPYING:
            raise MoveError("everything was handed over: move it back, with --from and --to the other way round")
        if record.get("to") != self._to:
            raise MoveError(f"that move goes to another API ({record.get('to')}): name that one with --to")
        for workflow in await _all(self._target, WORKFLOW):
            ours = objects.annotations_of(workflow).get(ORIGIN_ANNOTATION, "").startswith(f"{self._from}/")
            if ours and _pause_of(workflow) == self._pause:
                await self._remove(self._target, WORKFLOW, workflow)
        for workflow in await _all(self._source, WORKFLOW):
            if _pause_of(workflow) == self._pause:
                await _annotate(self._source, workflow, None)
        await _forgiving(self._source.delete(CONFIG_MAP, RECORD, SYSTEM))
        return self._report

    # --- look -------------------------------------------------------------------------------------------------------

    async def _identify(self) -> None:
        self._from, self._to = [
            (await client.get(NAMESPACE, SYSTEM, None))["metadata"]["uid"] for client in (self._source, self._target)
        ]
        if self._from == self._to:
            raise MoveError("source and target are the same API, or one was restored from a backup of the other")
        self._pause = f"moved to {self._to}"

    async def _check_definitions(self, *, install: bool, dry_run: bool) -> None:
        definitions = [(each, "tinkedge crds") for each in generate()]
        if await _all(self._source, MACHINE):
            definitions += [(each, "tinkedge crds --bmc") for each in generate_bmc()]
        if await _all(self._source, WORKFLOW_RULE_SET):
            older = generate(serve_v1alpha1=True)
            rule_sets = [each for each in older if each["spec"]["names"]["kind"] == WORKFLOW_RULE_SET.kind]
            definitions += [(each, "tinkedge crds --v1alpha1") for each in rule_sets]
        for definition, command in definitions:
            name = definition["metadata"]["name"]
            if install and dry_run:
                self._report.notes.append(f"{name} would be installed or updated at the target")
                continue
            if install:
                try:
                    await apply_object(self._target, CRD, definition, "tinkedge")
                except ManifestError as error:
                    raise MoveError(str(error)) from error
                for _ in range(100):
                    status = as_mapping((await self._target.get(CRD, name, None)).get("status"))
                    states = {each.get("type"): each.get("status") for each in status.get("conditions") or ()}
                    if states.get("Established") == "True":
                        break
                    await asyncio.sleep(0.1)
                else:
                    raise MoveError(f"the target does not serve {name}: see its status")
                continue
            try:
                there = await self._target.get(CRD, name, None)
            except NotFoundError:
                self._report.problems.append(f"the target has no {name}: --install-crds, or '{command}'")
                continue
            if not _has_newest_fields(there):
                self._report.problems.append(f"{name} of the target is of an older release: --install-crds updates it")

    async def _look(self) -> _Objects:
        """Return the objects to move, and add problems to the report."""
        found = await self._list()
        self._report.found = {resource.kind: len(items) for resource, items in found.items() if items}
        working, ended = await self._bmc_work()
        self._report.problems += [f"{name} has not ended: wait until it has, or delete it" for name in working]
        if ended:
            self._report.notes.append(f"{ended} Jobs and Tasks of BMCs have ended, and are not moved")
        if boots := [_name(obj) for obj in found[WORKFLOW] if _needs_bmc_control(obj)]:
            self._report.notes.append(
                f"{boots[0]} has bootOptions ({len(boots)} in all): it waits until BMC control runs at the target"
            )
        back = (await self._record(self._target)).get("to") == self._from
        uids = {obj["metadata"]["uid"]: "" for items in found.values() for obj in items}
        for resource, items in found.items():
            for obj in items:
                if deleted(obj):
                    self._report.problems.append(f"{_name(obj)} is being deleted: wait until it is gone")
                there = None if self._report.problems else await self._at_target(resource, obj)
                if there is not None and not self._may_take(obj, there, back=back):
                    self._report.problems.append(f"{_name(obj)} is at the target already, and is another: remove one")
                for owner in objects.owners_of(obj, uids)[1]:
                    self._report.notes.append(f"{_name(obj)}: its owner {owner} is not moved, and is forgotten")
        return found

    async def _bmc_work(self) -> tuple[list[str], int]:
        """Return the names of the Jobs and Tasks at the source that have not ended, and the number of the others."""
        found = [{"kind": each.kind} | obj for each in (JOB, TASK) for obj in await _all(self._source, each)]
        working = [_name(obj) for obj in found if not is_ended(obj)]
        return working, len(found) - len(working)

    async def _list(self) -> _Objects:
        found = {resource: await _all(self._source, resource) for resource in _ORDER if resource is not SECRET}
        secrets = []
        for name in sorted(objects.secrets_named(found[HARDWARE]) | objects.secrets_of_machines(found[MACHINE])):
            try:
                secret = await self._source.get(SECRET, name.name, name.namespace)
                secrets.append({"apiVersion": "v1", "kind": "Secret"} | secret)
            except NotFoundError:
                self._report.notes.append(f"Secret {name}, which an object refers to, is not there")
        return {SECRET: secrets, **found}

    async def _at_target(self, resource: ResourceType, obj: Raw) -> Raw | None:
        try:
            there = await self._target.get(resource, obj["metadata"]["name"], obj["metadata"]["namespace"])
        except NotFoundError:
            return None
        return {"apiVersion": resource.api_version, "kind": resource.kind} | there

    def _may_take(self, obj: Raw, there: Raw, *, back: bool) -> bool:
        """Return True if an object at the target is the same, or left by an earlier attempt or a move the other way."""
        annotations = objects.annotations_of(there)
        if annotations.get(ORIGIN_ANNOTATION) == objects.origin(self._from, obj):
            return True
        if obj["kind"] == "Workflow":
            return back and _pause_of(there) == f"moved to {self._from}"
        return back or objects.content(obj) == objects.content(there)

    # --- pause, copy, verify ----------------------------------------------------------------------------------------

    async def _pause_and_copy(self, found: _Objects) -> _Objects:
        """Copy until no object was added or changed meanwhile, because users may write to the source all the time."""
        for _ in range(_ROUNDS):
            paused = 0
            for workflow in found[WORKFLOW]:
                if _pause_of(workflow) != self._pause:
                    await _annotate(self._source, workflow, self._pause)
                    paused += 1
            if not paused:
                await self._copy(found)
                again = await self._list()
                if _versions(again) == _versions(found):
                    working, _ = await self._bmc_work()
                    if working:
                        raise MoveError(f"{working[0]} was created meanwhile: run this again when it has ended")
                    return found
            found = await self._list()
        raise MoveError("the source changes all the time: stop who writes to it, and run this again")

    async def _copy(self, found: _Objects) -> None:
        for namespace in sorted({obj["metadata"]["namespace"] for items in found.values() for obj in items}):
            try:
                await self._target.get(NAMESPACE, namespace, None)
            except NotFoundError:
                body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
                await _forgiving(self._target.create(NAMESPACE, body))
        for resource, items in found.items():
            if resource is not WORKFLOW:
                await self._each(f"{resource.kind} copied", items, partial(self._copy_one, resource))
        for number, group in enumerate(objects.ranks(found[WORKFLOW])):
            if number and self._report.created.get("Workflow"):
                await asyncio.sleep(self._second)
            await self._each("Workflow copied", group, partial(self._copy_one, WORKFLOW))
        for resource, items in found.items():
            await self._each("completed", items, partial(self._complete, resource))

    async def _copy_one(self, resource: ResourceType, obj: Raw) -> None:
        there = await self._at_target(resource, obj)
        wanted = objects.copy_of(obj, self._from, self._pause if resource is WORKFLOW else None)
        if there is not None and resource is WORKFLOW and not _same_workflow(obj, there):
            await self._remove(self._target, WORKFLOW, there)  # left by an earlier move, and created again since
            there = None
        if there is None:
            there = await self._target.create(resource, wanted)
            self._report.created[resource.kind] = self._report.created.get(resource.kind, 0) + 1
        else:
            await self._update(resource, there, wanted)
        self._uids[obj["metadata"]["uid"]] = there["metadata"]["uid"]

    async def _update(self, resource: ResourceType, there: Raw, wanted: Raw) -> None:
        old, new = there["metadata"], wanted["metadata"]
        fields = ("labels", "annotations", "finalizers")
        before = {name: old[name] for name in fields if old.get(name)}
        after = {name: new[name] for name in fields if new.get(name)}
        patch = objects.merge_patch(objects.content(there), objects.content(wanted))
        metadata = objects.merge_patch(before, after)
        if patch or metadata:
            body = {**patch, "metadata": {**metadata, "resourceVersion": old["resourceVersion"]}}
            await self._target.patch(resource, old["name"], old["namespace"], body)

    async def _complete(self, resource: ResourceType, obj: Raw) -> None:
        """Write the owner references, whose uids are known now, and the status."""
        there = await self._at_target(resource, obj)
        if there is None:
            raise MoveError(f"{_name(obj)} has gone from the target meanwhile; run this again")
        metadata = there["metadata"]
        owners = objects.owners_of(obj, self._uids)[0]
        if owners != (metadata.get("ownerReferences") or []):
            body = {"metadata": {"ownerReferences": owners or None}}
            there = await self._target.patch(resource, metadata["name"], metadata["namespace"], body)
        if resource in _WITH_STATUS:
            status = objects.status_at_target(obj, there["metadata"].get("generation", 1))
            patch = objects.merge_patch(as_mapping(there.get("status")), status)
            if patch:
                body = {"status": patch}
                await self._target.patch(resource, metadata["name"], metadata["namespace"], body, subresource="status")

    async def _verify(self, found: _Objects) -> None:
        wrong = []
        for resource, items in found.items():
            for number, obj in enumerate(items):
                there = await self._at_target(resource, obj)
                parts = ["all"] if there is None else objects.differences(obj, there, self._uids)
                if parts:
                    wrong.append(f"{_name(obj)} ({', '.join(parts)})")
                self._progress(f"{resource.kind} verified", number + 1, len(items))
        if wrong:
            raise MoveError(
                f"{len(wrong)} objects are not at the target as they are at the source: {'; '.join(wrong[:5])}. "
                "Nothing was handed over: the source's Workflows are paused. Run this again, or --abort it"
            )

    # --- hand over --------------------------------------------------------------------------------------------------

    async def _release(self) -> None:
        workflows = await _all(self._target, WORKFLOW)
        if (await self._record(self._target)).get("to") == self._from:
            # The record of an earlier move the other way. Objects that it left behind must not block this move.
            for workflow in workflows:
                if _pause_of(workflow) == f"moved to {self._from}":
                    await self._remove(self._target, WORKFLOW, workflow)
            await _forgiving(self._target.delete(CONFIG_MAP, RECORD, SYSTEM))
        ours = [each for each in workflows if _pause_of(each) == self._pause]
        await self._each("released", ours, lambda workflow: _annotate(self._target, workflow, None))

    async def _delete_source(self) -> None:
        # The machines first: then an agent that calls the source is unknown there, and keeps its reports.
        for resource in (HARDWARE, WORKFLOW, TEMPLATE, OSIE, MACHINE, TASK, JOB, CONFIG_MAP, WORKFLOW_RULE_SET):
            left = await _all(self._source, resource)
            if resource is WORKFLOW:
                left = [each for each in left if _pause_of(each) == self._pause]
            elif resource in (TASK, JOB):
                left = [each for each in left if is_ended(each)]
            await self._each(f"{resource.kind} deleted", left, partial(self._remove, self._source, resource))
            self._report.deleted += len(left)

    async def _remove(self, client: KubeClient, resource: ResourceType, obj: Raw) -> None:
        """Delete an object and its finalizers, because no controller removes these."""
        metadata = obj["metadata"]
        if metadata.get("finalizers"):
            body: Raw = {"metadata": {"finalizers": None}}
            await _forgiving(client.patch(resource, metadata["name"], metadata["namespace"], body))
        await _forgiving(client.delete(resource, metadata["name"], metadata["namespace"]))

    # --- the record -------------------------------------------------------------------------------------------------

    async def _record(self, client: KubeClient) -> dict[str, str]:
        """Return the record of a move from this API; empty if there is none."""
        try:
            return dict(as_mapping((await client.get(CONFIG_MAP, RECORD, SYSTEM)).get("data")))
        except NotFoundError:
            return {}

    async def _save(self, client: KubeClient, record: dict[str, str]) -> None:
        try:
            await client.patch(CONFIG_MAP, RECORD, SYSTEM, {"data": record})
        except NotFoundError:
            metadata = {"name": RECORD, "namespace": SYSTEM}
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": record}
            await client.create(CONFIG_MAP, body)

    async def _each(self, what: str, items: Iterable[Raw], act: Callable[[Raw], Awaitable[object]]) -> None:
        """Call `act` for each object, some at once. Raises the first exception."""
        turn, items, done = asyncio.Semaphore(MAX_CONCURRENT), list(items), 0

        async def one(obj: Raw) -> None:
            nonlocal done
            async with turn:
                await act(obj)
            done += 1
            self._progress(what, done, len(items))

        tasks = [asyncio.ensure_future(one(obj)) for obj in items]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _all(client: KubeClient, resource: ResourceType) -> list[Raw]:
    """Return all objects of a kind that are moved; none of an optional kind that the API lacks. Raises ApiError."""
    try:
        selector = _SELECTORS.get(resource, "")
        return [obj async for obj in each_list_item(client, resource, label_selector=selector)]
    except NotFoundError:
        if resource in _OPTIONAL:
            return []
        raise


async def _annotate(client: KubeClient, workflow: Raw, value: str | None) -> None:
    metadata = workflow["metadata"]
    body = {"metadata": {"annotations": {PAUSED_ANNOTATION: value}}}
    await _forgiving(client.patch(WORKFLOW, metadata["name"], metadata["namespace"], body))


async def _forgiving(call: Awaitable[Raw]) -> None:
    """Ignore that an object exists or is deleted already. Raises ApiError."""
    with suppress(NotFoundError, ConflictError):
        await call


def _has_newest_fields(definition: Raw) -> bool:
    """Return True if a definition has the newest fields of the status that moves with an object of its kind."""
    wanted = _NEWEST_FIELDS.get(definition["metadata"]["name"].partition(".")[0], frozenset())
    try:
        version = next(each for each in definition["spec"]["versions"] if each["name"] == WORKFLOW.version)
        return bool(wanted <= version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"].keys())
    except (KeyError, TypeError, StopIteration):
        return not wanted


def _same_workflow(obj: Raw, there: Raw) -> bool:
    """Return True if two Workflows are one run, which the agent knows by one id."""
    ids = {as_mapping(each.get("status")).get("id") or each["metadata"]["uid"] for each in (obj, there)}
    known = objects.annotations_of(there).get(ORIGIN_ANNOTATION, "").endswith(f"/{obj['metadata']['uid']}")
    return known or len(ids) == 1 or state_of(obj) is None


def _needs_bmc_control(workflow: Raw) -> bool:
    """Return True if BMC control has to boot the machine of a Workflow, or to clean up after it."""
    options = as_mapping(as_mapping(workflow.get("spec")).get("bootOptions"))
    is_asked = options.get("bootMode") or options.get("toggleAllowNetboot") is True
    is_unfinished = BOOT_FINALIZER in (workflow["metadata"].get("finalizers") or ())
    return is_unfinished or (bool(is_asked) and not has_ended(workflow))


def _pause_of(workflow: Raw) -> str:
    return objects.annotations_of(workflow).get(PAUSED_ANNOTATION, "")


def _versions(found: _Objects) -> set[tuple[str, str]]:
    """Return the versions of all objects. That of a Machine does not change with its status."""
    return {
        (
            obj["metadata"]["uid"],
            objects.fingerprint(obj) if resource is MACHINE else obj["metadata"]["resourceVersion"],
        )
        for resource, items in found.items()
        for obj in items
    }


def _name(obj: Raw) -> str:
    return f"{obj['kind']} {NamespacedName.of(obj)}"
