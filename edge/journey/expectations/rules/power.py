"""Rules about a machine that is off, that BMC control is switching, or that BMC control could not boot."""

from __future__ import annotations

from collections.abc import Iterator

from edge.journey.events import REPORTED_BY_API, SWITCHING_REASONS, JourneyEvent, Outcome, Step
from edge.journey.expectations.facts import Diagnosis, Facts
from edge.journey.expectations.rules.remedies import remedy
from edge.journey.expectations.story import Story
from edge.journey.history import RULE


def is_switched(story: Story) -> bool:
    """Return True if BMC control has begun to boot the machine, and the machine has sent nothing since."""
    return any(report.detail["reason"] in SWITCHING_REASONS for report in _reports(story))


def is_off(story: Story, facts: Facts) -> Diagnosis | None:
    """Report that the machine is off, as its BMC reports, if a next step of the machine is awaited."""
    boot = story.boot
    if not facts.is_off or facts.registered is None or is_switched(story):
        return None
    if boot.at is None or not facts.limit(boot.at):
        return None
    namespace, _, name = facts.registered.hardware.rpartition("/")
    where = f" -n {namespace}" if namespace != "default" else ""
    check = f"'tinkedge power {name} on{where}' switches it on"
    fact = "its power is off (BMC)"
    return Diagnosis("PoweredOff", Step.POWER, fact, checks=(check,), outcome=Outcome.INFO, reported=True)


def not_booted(story: Story, facts: Facts) -> Diagnosis | None:
    """Report the cause for which BMC control could not boot the machine, if the machine has sent nothing since.

    The cause counts while a Workflow waits for the boot, or if the Workflow has failed because of it.
    """
    report = next(_reports(story), None)
    is_awaited = report is not None and report.outcome is Outcome.WARNING and bool(facts.workflow)
    if report is None or not (is_awaited or report.outcome is Outcome.FAILED):
        return None
    reason = str(report.detail.get("reason", ""))
    rule = reason if reason.isalnum() else "PowerFailed"
    _, checks = remedy(report)
    return Diagnosis(rule, Step.POWER, report.message, checks=checks, reported=True, began=report.time)


def _reports(story: Story) -> Iterator[JourneyEvent]:
    """Yield the reports of BMC control since the last event that the machine has caused, newest first."""
    for event in reversed(story.boot.events):
        # The end of an agent's connection is noticed long after its machine was switched off.
        is_late = event.step is Step.AGENT and event.outcome is Outcome.INFO
        is_finding = event.outcome is Outcome.WARNING or RULE in event.detail
        if event.step is Step.POWER and "reason" in event.detail:
            yield event
        elif not (is_late or is_finding or event.step is Step.WORKFLOW or event.step in REPORTED_BY_API):
            return
