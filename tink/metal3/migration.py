"""Migrate stored BareMetalHosts from v1alpha1 to v1beta1 without loss.

`survey` reads the cluster, `make_plan` says what is left to do and what prevents it, `carry_out` does it, and the rest
reports. `tink.metal3.compare` shows what the conversion changes in one host.

The order of the phases makes the migration safe:

    hardware-data     every host with hardware details gets a HardwareData: v1beta1 has no place for the details
    storage           the definition names v1beta1: new writes are stored so
    rewrite           every host is written once, unchanged
    stored-versions   the definition records that no object is stored as v1alpha1 any more
    served            v1alpha1 is no longer served; only on request

The cluster alone shows what is done. So the next run continues after a killed run, and two runs at once do no harm.
Before any write, each host is converted to v1beta1 and back, and compared with the result of the registered webhook.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum

import orjson

from tink.api.metal3 import V1ALPHA1, V1BETA1
from tink.api.v1alpha2 import Raw
from tink.convert.metal3.versions import ConversionSettings, convert_version
from tink.kube.client import ApiError, ConflictError, KubeClient, NotFoundError, UnreachableError, each_list_item
from tink.kube.objects import NamespacedName
from tink.kube.resources import CRD, HARDWARE_DATA, HOST_V1ALPHA1, HOST_V1BETA1
from tink.limits import Backoff
from tink.metal3.compare import Difference, Trip, differences, digest, state
from tink.metal3.definition import HARDWARE_DATA_NAME, NAME, NEW, OLD, Definition

Progress = Callable[[str, int, int], None]
"""Called with the activity, the number done, and the total (0 if unknown)."""


# --- the survey: the definitions, every host in both versions, every HardwareData -------------------------------------

MAX_DIFFERENCES = 1000
"""The most differences that are kept. Further ones are only counted."""
_READ_ATTEMPTS = 5
_NAMED = 3
_FORBIDDEN = (401, 403)


@dataclass(slots=True)
class Survey:
    """The result of a survey.

    `definition` is None if there is no definition of BareMetalHost; then nothing else is known. `missing`: hosts with
    hardware details and without a HardwareData. `differing`: hosts whose HardwareData differs from them. `fault`: the
    reason why hosts can't be read as v1beta1.
    """

    definition: Definition | None
    details_defined: bool = False
    hosts: int = 0
    missing: list[NamespacedName] = field(default_factory=list)
    differing: list[NamespacedName] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    more_differences: int = 0
    compared: int = 0
    fault: str = ""

    @property
    def served(self) -> frozenset[str]:
        """The versions in which hosts can be read."""
        return frozenset() if self.definition is None else self.definition.served

    def add(self, found: list[Difference]) -> None:
        """Keep differences, or count them."""
        room = MAX_DIFFERENCES - len(self.differences)
        self.differences += found[:room]
        self.more_differences += len(found[room:])


@dataclass(frozen=True, slots=True)
class _Seen:
    """The digests of a host. Only they are kept, so that 100,000 hosts can be compared in both versions."""

    resource_version: str
    up: bytes
    """Its conversion to v1beta1."""
    back: bytes
    """The conversion of that back to v1alpha1."""


async def survey(client: KubeClient, settings: ConversionSettings, progress: Progress) -> Survey:
    """Read the cluster, page by page. Raises ApiError if the API does not answer or refuses to be read."""
    found = Survey(await _definition(client, NAME))
    if found.definition is None:
        return found
    found.details_defined = await _definition(client, HARDWARE_DATA_NAME) is not None
    if found.served & {OLD, NEW}:
        await _Surveyor(client, settings, progress, found).run(found.definition)
    return found


async def _definition(client: KubeClient, name: str) -> Definition | None:
    try:
        return Definition.of(await client.get(CRD, name, None))
    except NotFoundError:
        return None


@dataclass(slots=True)
class _Surveyor:
    """Reads all hosts and compares them."""

    client: KubeClient
    settings: ConversionSettings
    progress: Progress
    found: Survey
    details: dict[NamespacedName, bytes] = field(default_factory=dict)
    """Digests of the hardware details in all HardwareData."""
    seen: dict[NamespacedName, _Seen] = field(default_factory=dict)

    async def run(self, definition: Definition) -> None:
        if self.found.details_defined:
            async for each in each_list_item(self.client, HARDWARE_DATA):
                if hardware := (each.get("spec") or {}).get("hardware"):
                    self.details[NamespacedName.of(each)] = digest(hardware)
                self.progress("HardwareData read", len(self.details), 0)
        for part in (self._read_hosts, self._compare):
            try:
                await part()
            except ApiError as error:
                # A failed conversion is a fault of the definition or of its webhook.
                if isinstance(error, UnreachableError) or error.status in _FORBIDDEN:
                    raise
                self.found.fault = self.found.fault or str(error)
            if not self.seen or not definition.by_webhook or NEW not in self.found.served:
                return

    async def _read_hosts(self) -> None:
        """Read all hosts as v1alpha1, if that version is served, and keep the digests to compare with."""
        found, served = self.found, OLD in self.found.served
        async for host in each_list_item(self.client, HOST_V1ALPHA1 if served else HOST_V1BETA1):
            found.hosts += 1
            self.progress("hosts read", found.hosts, 0)
            key, old = NamespacedName.of(host), convert_version(host, V1ALPHA1, self.settings)
            if hardware := (old.get("status") or {}).get("hardware"):
                if (there := self.details.get(key)) is None:
                    found.missing.append(key)
                elif there != digest(hardware):
                    found.differing.append(key)
            if served:
                trip = Trip.of(old, self.settings)
                found.add(trip.differences(self.settings))
                version = host["metadata"]["resourceVersion"]
                self.seen[key] = _Seen(version, digest(state(trip.up)), digest(state(trip.back)))

    async def _compare(self) -> None:
        """Read all hosts as v1beta1, and compare them with the expected conversion."""
        async for host in each_list_item(self.client, HOST_V1BETA1):
            was = self.seen.get(NamespacedName.of(host))
            if was is None:
                continue
            self.found.compared += 1
            self.progress("hosts compared", self.found.compared, len(self.seen))
            if (
                host["metadata"]["resourceVersion"] != was.resource_version
                or digest(state(host)) != was.up
                or digest(state(convert_version(host, V1ALPHA1, self.settings))) != was.back
            ):
                self.found.add(await self._look_closer(NamespacedName.of(host)))

    async def _look_closer(self, at: NamespacedName) -> list[Difference]:
        """Compare one host, read in both versions without a change in between."""
        namespace, name = at
        for _ in range(_READ_ATTEMPTS):
            try:
                old = await self.client.get(HOST_V1ALPHA1, name, namespace)
                new = await self.client.get(HOST_V1BETA1, name, namespace)
            except NotFoundError:
                return []
            if old["metadata"]["resourceVersion"] == new["metadata"]["resourceVersion"]:
                break
        trip, metadata = Trip.of(old, self.settings), {"metadata": {"name": name, "namespace": namespace}}
        return differences(
            {**metadata, **state(trip.up)},
            state(new),
            "v1beta1 as it is served: another webhook or setting converts, or its schema lacks the field",
        ) or differences(
            {**metadata, **state(trip.back)},
            state(convert_version(new, V1ALPHA1, self.settings)),
            "v1beta1 as it is served does not lead back: another webhook or setting converts",
        )


def names(keys: list[NamespacedName]) -> str:
    """Return the first few names, and the number of the others."""
    shown = ", ".join(map(str, keys[:_NAMED]))
    return shown if len(keys) <= _NAMED else f"{shown} and {len(keys) - _NAMED} more"


# --- the plan ---------------------------------------------------------------------------------------------------------


class Phase(StrEnum):
    """The phases, in their order."""

    HARDWARE_DATA = "hardware-data"
    STORAGE = "storage"
    REWRITE = "rewrite"
    STORED_VERSIONS = "stored-versions"
    SERVED = "served"


@dataclass(frozen=True, slots=True)
class MigrationSettings:
    """The settings of a migration.

    `through` is the last phase to do; SERVED stops serving v1alpha1 to clients that still use it. `settle`: seconds
    between the change of the storage version and the rewriting, for API servers that learn of the change late.
    """

    conversion: ConversionSettings = field(default_factory=ConversionSettings)
    through: Phase = Phase.STORED_VERSIONS
    accept_differences: bool = False
    settle: float = 5.0


@dataclass(frozen=True, slots=True)
class PlannedPhase:
    """A phase, the number of objects it changes, and a text that names them."""

    phase: Phase
    todo: int
    text: str


@dataclass(slots=True)
class Done:
    """The result of a phase: changed objects, objects that needed no change, and failures."""

    phase: Phase
    done: int = 0
    unneeded: int = 0
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """The steps of a migration. Nothing is done while there are `problems`; `notes` are information."""

    steps: tuple[PlannedPhase, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def finished(self) -> bool:
        """True if no step is left."""
        return not any(step.todo for step in self.steps)


def make_plan(survey: Survey, settings: MigrationSettings) -> MigrationPlan:
    """Return the plan of a migration, or of the rest of one."""
    definition = survey.definition
    if definition is None:
        return MigrationPlan((), (f"there is no CustomResourceDefinition {NAME}: install tinkedge crds --metal3",), ())
    order = list(Phase)
    wanted = order[: order.index(settings.through) + 1]
    steps = tuple(step for step in _steps(survey, definition) if step.phase in wanted)
    if not any(step.todo for step in steps):
        return MigrationPlan(steps, (), (f"hosts can't be converted: {survey.fault}",) if survey.fault else ())
    problems = [*_unfit(definition), *_unready(survey, definition)]
    harmful = sum(not each.harmless for each in survey.differences) + survey.more_differences
    if harmful and not settings.accept_differences:
        text = "the conversion changes {} fields, see above: correct them, or use --accept-differences"
        problems.append(text.format(harmful))
    return MigrationPlan(steps, tuple(problems), tuple(_notes(survey, settings)))


def _steps(survey: Survey, definition: Definition) -> list[PlannedPhase]:
    flip, old_stored = definition.storage != NEW, definition.stored != (NEW,)
    rewrite = flip or old_stored
    stored = ", ".join(definition.stored)
    served = OLD in definition.served
    missing = survey.missing
    return [
        PlannedPhase(
            Phase.HARDWARE_DATA,
            len(missing),
            f"create {len(missing)} HardwareData: {names(missing)}" if missing else "none is missing",
        ),
        PlannedPhase(Phase.STORAGE, int(flip), f"{definition.storage} -> {NEW}" if flip else f"{NEW} already"),
        PlannedPhase(
            Phase.REWRITE,
            survey.hosts if rewrite else 0,
            f"write {survey.hosts} BareMetalHosts, unchanged" if rewrite else f"all are stored as {NEW} already",
        ),
        PlannedPhase(Phase.STORED_VERSIONS, int(rewrite), f"{stored} -> {NEW}" if rewrite else f"{NEW} alone already"),
        PlannedPhase(Phase.SERVED, int(served), f"stop serving {OLD}" if served else f"{OLD} is not served any more"),
    ]


def _unfit(definition: Definition) -> list[str]:
    """Return the problems of the definition."""
    if NEW not in definition.versions:
        return [f"{NAME} has no version {NEW}: install tinkedge crds --metal3"]
    if NEW not in definition.served:
        return [f"{NAME} does not serve {NEW}: set served to true there"]
    found = []
    if {definition.storage, *definition.stored} - {OLD, NEW}:
        others = ", ".join(sorted({definition.storage, *definition.stored} - {OLD, NEW}))
        found.append(f"{NAME} has hosts stored as {others}, which is not known here")
    if not definition.by_webhook:
        found.append(
            f"{NAME} has no conversion webhook: start tinkedge metal3-webhook, and wait until it has registered itself"
        )
    return found


def _unready(survey: Survey, definition: Definition) -> list[str]:
    found = []
    if survey.fault:
        found.append(f"hosts can't be converted: {survey.fault}. Does the webhook run? See spec.conversion of {NAME}")
    if survey.missing and not survey.details_defined:
        found.append(f"there is no CustomResourceDefinition {HARDWARE_DATA_NAME}: install tinkedge crds --metal3")
    if survey.hosts and OLD not in definition.served and OLD in {definition.storage, *definition.stored}:
        found.append(f"{NAME} does not serve {OLD}, so hosts can't be compared: set served to true until this is done")
    return found


def _notes(survey: Survey, settings: MigrationSettings) -> list[str]:
    found = []
    if survey.differing:
        found.append(
            f"{len(survey.differing)} HardwareData say something else than status.hardware of their host, and will be "
            f"believed: {names(survey.differing)}"
        )
    if settings.through is Phase.SERVED:
        found.append(
            f"clients that ask for {OLD} then get 404: the baremetal-operator, the Cluster API provider and all else "
            f"must use {NEW} before"
        )
    return found


# --- carrying it out --------------------------------------------------------------------------------------------------
#
# A finished phase is recognised, and repeating it changes nothing. Hosts are written by an empty patch: the API server
# reads the host, converts it and stores it, and retries by itself after a concurrent write, so no change is lost.

_MAX_CONCURRENT = 8
_ATTEMPTS = 6
_RETRY_FIRST_SECONDS = 0.2
_MAX_RETRY_SECONDS = 10.0
_RETRIED_STATUSES = frozenset({0, 409, 429, 500, 503, 504})
MAX_FAILURES = 100
"""The most failures of single hosts in a phase. After that the phase stops."""

_Act = Callable[[NamespacedName, str], Awaitable[bool]]
"""Acts on a host. Returns True if there was anything to do."""


async def carry_out(
    client: KubeClient, plan: MigrationPlan, survey: Survey, settings: MigrationSettings, progress: Progress
) -> AsyncIterator[Done]:
    """Do the phases of a plan without problems, and yield each result. Stop after a phase with failures.

    Raises ApiError if the API does not answer, or refuses to change the definition.
    """
    for step in plan.steps:
        if not step.todo:
            continue
        done = await _phase(client, step.phase, survey, settings, progress)
        yield done
        if done.failures:
            return


async def _phase(
    client: KubeClient, phase: Phase, survey: Survey, settings: MigrationSettings, progress: Progress
) -> Done:
    match phase:
        case Phase.HARDWARE_DATA:
            hosts = dict.fromkeys(survey.missing, "")
            return await _for_all(phase, hosts, lambda at, _: _give_details(client, survey, settings, at), progress)
        case Phase.STORAGE:
            return await _change(client, phase, lambda now: now.storage == NEW, lambda now: now.with_storage(NEW))
        case Phase.REWRITE:
            await asyncio.sleep(settings.settle)
            hosts = {
                NamespacedName.of(host): host["metadata"]["resourceVersion"]
                async for host in each_list_item(client, HOST_V1BETA1)
            }
            return await _for_all(phase, hosts, lambda at, version: _rewrite(client, at, version), progress)
        case Phase.STORED_VERSIONS:
            return await _change(
                client, phase, lambda now: now.stored == (NEW,), lambda now: now.with_stored(NEW), subresource="status"
            )
        case Phase.SERVED:
            return await _change(client, phase, lambda now: OLD not in now.served, lambda now: now.without_served(OLD))


async def _for_all(phase: Phase, hosts: dict[NamespacedName, str], act: _Act, progress: Progress) -> Done:
    """Act on each host, with its resourceVersion, a few at a time."""
    found, waiting = Done(phase), list(hosts.items())
    for start in range(0, len(waiting), _MAX_CONCURRENT):
        batch = waiting[start : start + _MAX_CONCURRENT]
        for result in await asyncio.gather(*(_tried(act, *each) for each in batch)):
            if isinstance(result, str):
                found.failures.append(result)
            elif result:
                found.done += 1
            else:
                found.unneeded += 1
        progress(phase.value, start + len(batch), len(waiting))
        if len(found.failures) >= MAX_FAILURES:
            break
    return found


async def _tried(act: _Act, at: NamespacedName, version: str) -> bool | str:
    """Return True if there was anything to do, False if not, or the reason of a failure. Raises UnreachableError."""
    backoff = Backoff(_RETRY_FIRST_SECONDS, _MAX_RETRY_SECONDS)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return await act(at, version)
        except ApiError as error:
            if error.status not in _RETRIED_STATUSES or attempt == _ATTEMPTS:
                if isinstance(error, UnreachableError):
                    raise
                return f"BareMetalHost {at}: {error}"
        await asyncio.sleep(backoff.next())
    raise AssertionError


async def _give_details(client: KubeClient, survey: Survey, settings: MigrationSettings, at: NamespacedName) -> bool:
    """Write a host's present hardware details into a HardwareData of its name."""
    namespace, name = at
    resource = HOST_V1ALPHA1 if OLD in survey.served else HOST_V1BETA1
    try:
        host = convert_version(await client.get(resource, name, namespace), V1ALPHA1, settings.conversion)
    except NotFoundError:
        return False
    hardware = (host.get("status") or {}).get("hardware")
    if not hardware:
        return False
    try:
        await client.create(HARDWARE_DATA, details(host, hardware))
    except ConflictError:
        there = await client.get(HARDWARE_DATA, name, namespace)
        if (there.get("spec") or {}).get("hardware"):
            return False
        await client.patch(HARDWARE_DATA, name, namespace, {"spec": {"hardware": hardware}})
    return True


def details(host: Raw, hardware: Raw) -> Raw:
    """Return the HardwareData of a host, which owns it.

    The owner reference does not set blockOwnerDeletion: clusters with the admission plugin
    OwnerReferencesPermissionEnforcement, such as OpenShift's, require rights on the host's finalizers for that.
    """
    metadata = host["metadata"]
    owner = {
        "apiVersion": V1BETA1,  # v1alpha1 may not be served any more when the host is deleted
        "kind": "BareMetalHost",
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }
    return {
        "apiVersion": HARDWARE_DATA.api_version,
        "kind": HARDWARE_DATA.kind,
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "ownerReferences": [owner]},
        "spec": {"hardware": hardware},
    }


async def _rewrite(client: KubeClient, at: NamespacedName, version: str) -> bool:
    """Store a host again. Return True if it was stored in another form before."""
    namespace, name = at
    try:
        written = await client.patch(HOST_V1BETA1, name, namespace, {})
    except NotFoundError:
        return False
    return bool(written["metadata"]["resourceVersion"] != version)


async def _change(
    client: KubeClient,
    phase: Phase,
    is_so: Callable[[Definition], bool],
    patch: Callable[[Definition], Raw],
    *,
    subresource: str | None = None,
) -> Done:
    """Patch the present definition. Raises ApiError."""
    for _ in range(_ATTEMPTS):
        now = Definition.of(await client.get(CRD, NAME, None))
        if is_so(now):
            return Done(phase, unneeded=1)
        try:
            await client.patch(CRD, NAME, None, patch(now), subresource=subresource)
        except ConflictError:
            continue
        return Done(phase, done=1)
    raise ConflictError(409, "Conflict", f"{NAME} was changed by another client again and again")


# --- the report -------------------------------------------------------------------------------------------------------

_MAX_LINES = 50
_FAILURES_SHOWN = 10


class MigrationResult(StrEnum):
    """The outcome of a run. PLANNED: the migration is possible and was not requested."""

    FINISHED = "finished"
    PLANNED = "planned"
    REFUSED = "refused"
    FAILED = "failed"


_CLOSING = {
    MigrationResult.FINISHED: "finished: nothing is left to do",
    MigrationResult.PLANNED: "nothing was changed; add --apply to do this",
    MigrationResult.REFUSED: "nothing was changed",
}
EXIT_CODES = {
    MigrationResult.FINISHED: 0,
    MigrationResult.PLANNED: 0,
    MigrationResult.REFUSED: 2,
    MigrationResult.FAILED: 1,
}


def plan_lines(survey: Survey, plan: MigrationPlan) -> Iterator[str]:
    """Yield the plan and all obstacles."""
    if survey.definition is not None:
        stored = ", ".join(survey.definition.stored) or "none"
        yield f"{survey.hosts} BareMetalHosts; written as {survey.definition.storage}, stored as {stored}"
    for each in survey.differences[:_MAX_LINES]:
        word = "note" if each.harmless else "differs"
        change = f"{each.before or 'nothing'} -> {each.after or 'nothing'}"
        yield f"{word}: {each.namespace}/{each.name} {each.path}: {change} ({each.reason})"
    if more := len(survey.differences[_MAX_LINES:]) + survey.more_differences:
        yield f"... and {more} more differences"
    for number, step in enumerate(plan.steps, start=1):
        yield f"{number}. {step.phase:<16} {step.text}"
    yield from (f"note: {note}" for note in plan.notes)
    yield from (f"refused: {problem}" for problem in plan.problems)


def done_lines(done: Done) -> Iterator[str]:
    """Yield the result of a phase."""
    rest = f", {done.unneeded} were so already" if done.unneeded else ""
    failed = f", {len(done.failures)} failed" if done.failures else ""
    yield f"{done.phase}: {done.done} done{rest}{failed}"
    yield from (f"  {failure}" for failure in done.failures[:_FAILURES_SHOWN])


def closing_line(outcome: MigrationResult, error: str) -> str:
    """Return the last line: the outcome."""
    if outcome is MigrationResult.FAILED:
        why = f": {error}" if error else ""
        return f"not finished{why}; when that is fixed, start it again: it continues from here"
    return _CLOSING[outcome]


def as_json(
    survey: Survey | None,
    plan: MigrationPlan | None,
    done: list[Done],
    outcome: MigrationResult,
    error: str,
    *,
    applied: bool,
) -> str:
    """Return the whole report. `survey` and `plan` are None if the API did not answer."""
    report: dict[str, object] = {"outcome": outcome.value, "applied": applied, "error": error}
    if survey is not None and survey.definition is not None:
        definition = survey.definition
        report |= {
            "before": {
                "storage": definition.storage,
                "storedVersions": definition.stored,
                "servedVersions": sorted(definition.served),
            },
            "hosts": survey.hosts,
            "hostsCompared": survey.compared,
            "hardwareDataMissing": ["/".join(key) for key in survey.missing],
            "hardwareDataDiffering": ["/".join(key) for key in survey.differing],
            "differences": [asdict(each) for each in survey.differences],
            "moreDifferences": survey.more_differences,
        }
    if plan is not None:
        report |= {"plan": [asdict(step) for step in plan.steps], "problems": plan.problems, "notes": plan.notes}
    report["done"] = [asdict(each) for each in done]
    return orjson.dumps(report, option=orjson.OPT_INDENT_2).decode() + "\n"
