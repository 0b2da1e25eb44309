"""What a migration found and did, for people and for programs. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from enum import StrEnum

import orjson

from tink.metal3.migration.carry_out import Done
from tink.metal3.migration.compare import Difference
from tink.metal3.migration.plan import Plan
from tink.metal3.migration.survey import Survey

_MOST_LINES = 50
_FAILURES_SHOWN = 10


class Outcome(StrEnum):
    """How it ended. PLANNED: it could be done, and was not asked for."""

    FINISHED = "finished"
    PLANNED = "planned"
    REFUSED = "refused"
    FAILED = "failed"


EXIT_CODES = {Outcome.FINISHED: 0, Outcome.PLANNED: 0, Outcome.REFUSED: 2, Outcome.FAILED: 1}


def plan_lines(survey: Survey, plan: Plan) -> Iterator[str]:
    """The plan, with all that speaks against it."""
    if survey.definition is not None:
        stored = ", ".join(survey.definition.stored) or "none"
        yield f"{survey.hosts} BareMetalHosts; written as {survey.definition.storage}, stored as {stored}"
    yield from _difference_lines(survey)
    for number, step in enumerate(plan.steps, start=1):
        yield f"{number}. {step.phase:<16} {step.text}"
    yield from (f"note: {note}" for note in plan.notes)
    yield from (f"refused: {problem}" for problem in plan.problems)


def done_lines(done: Done) -> Iterator[str]:
    """What a phase did."""
    rest = f", {done.unneeded} were so already" if done.unneeded else ""
    failed = f", {len(done.failures)} failed" if done.failures else ""
    yield f"{done.phase}: {done.done} done{rest}{failed}"
    yield from (f"  {failure}" for failure in done.failures[:_FAILURES_SHOWN])


def closing_line(outcome: Outcome, error: str) -> str:
    """The last line: what it all means."""
    match outcome:
        case Outcome.FINISHED:
            return "finished: nothing is left to do"
        case Outcome.PLANNED:
            return "nothing was changed; add --apply to do this"
        case Outcome.REFUSED:
            return "nothing was changed"
        case Outcome.FAILED:
            why = f": {error}" if error else ""
            return f"not finished{why}; when that is mended, start it again: it goes on from here"


def as_json(
    survey: Survey | None, plan: Plan | None, done: list[Done], outcome: Outcome, error: str, *, applied: bool
) -> str:
    """All of it. `survey` and `plan` are None if the API could not be asked."""
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
        report |= {
            "plan": [asdict(step) for step in plan.steps],
            "problems": plan.problems,
            "notes": plan.notes,
        }
    report["done"] = [asdict(each) for each in done]
    return orjson.dumps(report, option=orjson.OPT_INDENT_2).decode() + "\n"


def _difference_lines(survey: Survey) -> Iterator[str]:
    for each in survey.differences[:_MOST_LINES]:
        yield _difference_line(each)
    more = len(survey.differences[_MOST_LINES:]) + survey.more_differences
    if more:
        yield f"... and {more} more differences"


def _difference_line(each: Difference) -> str:
    word = "note" if each.harmless else "differs"
    change = f"{each.before or 'nothing'} -> {each.after or 'nothing'}"
    return f"{word}: {each.namespace}/{each.name} {each.path}: {change} ({each.reason})"
