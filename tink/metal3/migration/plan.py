"""Plan a migration and report it: the remaining steps, the obstacles, and lines for people or JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum

import orjson

from tink.convert.metal3 import ConversionSettings
from tink.metal3.definition import HARDWARE_DATA_NAME, NAME, NEW, OLD, Definition
from tink.metal3.migration.compare import Difference
from tink.metal3.migration.survey import Survey, names


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
class Step:
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
class Plan:
    """The steps of a migration. Nothing is done while there are `problems`; `notes` are information."""

    steps: tuple[Step, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def finished(self) -> bool:
        """True if no step is left."""
        return not any(step.todo for step in self.steps)


def make_plan(survey: Survey, settings: MigrationSettings) -> Plan:
    """Return the plan of a migration, or of the rest of one."""
    definition = survey.definition
    if definition is None:
        return Plan((), (f"there is no CustomResourceDefinition {NAME}: install tinkedge crds --metal3",), ())
    order = list(Phase)
    wanted = order[: order.index(settings.through) + 1]
    steps = tuple(step for step in _steps(survey, definition) if step.phase in wanted)
    if not any(step.todo for step in steps):
        return Plan(steps, (), (f"hosts can't be converted: {survey.fault}",) if survey.fault else ())
    problems = [*_unfit(definition), *_unready(survey, definition), *_undecided(survey, settings)]
    return Plan(steps, tuple(problems), tuple(_notes(survey, settings)))


def _steps(survey: Survey, definition: Definition) -> list[Step]:
    flip, old_stored = definition.storage != NEW, definition.stored != (NEW,)
    rewrite = flip or old_stored
    stored = ", ".join(definition.stored)
    served = OLD in definition.served
    missing = survey.missing
    return [
        Step(
            Phase.HARDWARE_DATA,
            len(missing),
            f"create {len(missing)} HardwareData: {names(missing)}" if missing else "none is missing",
        ),
        Step(Phase.STORAGE, int(flip), f"{definition.storage} -> {NEW}" if flip else f"{NEW} already"),
        Step(
            Phase.REWRITE,
            survey.hosts if rewrite else 0,
            f"write {survey.hosts} BareMetalHosts, unchanged" if rewrite else f"all are stored as {NEW} already",
        ),
        Step(Phase.STORED_VERSIONS, int(rewrite), f"{stored} -> {NEW}" if rewrite else f"{NEW} alone already"),
        Step(Phase.SERVED, int(served), f"stop serving {OLD}" if served else f"{OLD} is not served any more"),
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


def _undecided(survey: Survey, settings: MigrationSettings) -> list[str]:
    harmful = sum(not each.harmless for each in survey.differences) + survey.more_differences
    if not harmful or settings.accept_differences:
        return []
    return [f"the conversion changes {harmful} fields, see above: correct them, or use --accept-differences"]


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


_MAX_LINES = 50
_FAILURES_SHOWN = 10


class Outcome(StrEnum):
    """The outcome of a run. PLANNED: the migration is possible and was not requested."""

    FINISHED = "finished"
    PLANNED = "planned"
    REFUSED = "refused"
    FAILED = "failed"


EXIT_CODES = {Outcome.FINISHED: 0, Outcome.PLANNED: 0, Outcome.REFUSED: 2, Outcome.FAILED: 1}


def plan_lines(survey: Survey, plan: Plan) -> Iterator[str]:
    """Yield the plan and all obstacles."""
    if survey.definition is not None:
        stored = ", ".join(survey.definition.stored) or "none"
        yield f"{survey.hosts} BareMetalHosts; written as {survey.definition.storage}, stored as {stored}"
    yield from _difference_lines(survey)
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


def closing_line(outcome: Outcome, error: str) -> str:
    """Return the last line: the outcome."""
    match outcome:
        case Outcome.FINISHED:
            return "finished: nothing is left to do"
        case Outcome.PLANNED:
            return "nothing was changed; add --apply to do this"
        case Outcome.REFUSED:
            return "nothing was changed"
        case Outcome.FAILED:
            why = f": {error}" if error else ""
            return f"not finished{why}; when that is fixed, start it again: it continues from here"


def as_json(
    survey: Survey | None, plan: Plan | None, done: list[Done], outcome: Outcome, error: str, *, applied: bool
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


def _difference_lines(survey: Survey) -> Iterator[str]:
    for each in survey.differences[:_MAX_LINES]:
        yield _difference_line(each)
    more = len(survey.differences[_MAX_LINES:]) + survey.more_differences
    if more:
        yield f"... and {more} more differences"


def _difference_line(each: Difference) -> str:
    word = "note" if each.harmless else "differs"
    change = f"{each.before or 'nothing'} -> {each.after or 'nothing'}"
    return f"{word}: {each.namespace}/{each.name} {each.path}: {change} ({each.reason})"
