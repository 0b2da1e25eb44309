"""What is left to do, and what stands in the way: from what the survey saw. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tink.convert.metal3 import ConversionSettings
from tink.metal3.definition import HARDWARE_DATA_NAME, NAME, NEW, OLD, Definition
from tink.metal3.migration.survey import Survey, names


class Phase(StrEnum):
    """In the order in which they are done."""

    HARDWARE_DATA = "hardware-data"
    STORAGE = "storage"
    REWRITE = "rewrite"
    STORED_VERSIONS = "stored-versions"
    SERVED = "served"


@dataclass(frozen=True, slots=True)
class MigrationSettings:
    """`through` is the last phase to do; SERVED takes v1alpha1 away from whoever still uses it. `settle`: seconds from
    the change of the storage version until hosts are rewritten, for API servers that hear of it late.
    """

    conversion: ConversionSettings = field(default_factory=ConversionSettings)
    through: Phase = Phase.STORED_VERSIONS
    accept_differences: bool = False
    settle: float = 5.0


@dataclass(frozen=True, slots=True)
class Step:
    """A phase and how many things it has to do; `text` says which."""

    phase: Phase
    todo: int
    text: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Nothing is done while there are `problems`; `notes` are worth knowing."""

    steps: tuple[Step, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return not any(step.todo for step in self.steps)


def make(survey: Survey, settings: MigrationSettings) -> Plan:
    """The plan of a migration, or of the rest of one."""
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
    """What the definition lacks."""
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
    return [f"the conversion changes {harmful} fields, see above: mend them, or say --accept-differences"]


def _notes(survey: Survey, settings: MigrationSettings) -> list[str]:
    found = []
    if survey.differing:
        found.append(
            f"{len(survey.differing)} HardwareData say something else than status.hardware of their host, and will be "
            f"believed: {names(survey.differing)}"
        )
    if settings.through is Phase.SERVED:
        found.append(
            f"whoever asks for {OLD} then gets 404: the baremetal-operator, the Cluster API provider and all else must "
            f"use {NEW} before"
        )
    return found
