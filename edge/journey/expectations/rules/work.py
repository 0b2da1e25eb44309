"""Rules for the agent and its Workflow."""

from __future__ import annotations

import re

from edge.journey.events import JourneyEvent, Milestone, Outcome, Step
from edge.journey.expectations.facts import Diagnosis, Facts
from edge.journey.expectations.rules.remedies import remedy
from edge.journey.expectations.rules.words import API_CHECKS, overdue, seconds
from edge.journey.expectations.story import Story

SILENCE = " has sent nothing for "
"""The part of an agent's line that names a registry."""
_SILENT_REGISTRY = re.compile(rf"image \S+: \S+{SILENCE}\d+ s$")
INVENTORY_SECONDS = 75.0
"""Maximum time from the connection of an agent to its inventory: `ReportSchedule.collect_timeout` and one call."""
MAX_DIFFERENCE = 200
"""Maximum number of characters of a difference in a diagnosis, so that the remedy has room."""
SILENT_SECONDS = 60.0
"""Seconds without output after which a running action is mentioned; that may be intended."""


def no_workflow(story: Story, facts: Facts) -> Diagnosis | None:
    """The agent waits, and there is no Workflow for it."""
    boot = story.boot
    if boot.at is not Milestone.AGENT_CONNECTED or facts.workflow or facts.registered is None:
        return None
    if facts.registered.is_discovered:
        return None  # it waits for its inventory or its approval first
    if not overdue(boot, facts):
        return None
    waits = "its agent is connected and waits"
    failed = _last_failure(story)
    if failed is not None:
        fact = f"{waits}, but its last Workflow failed: {failed.message}"
        return Diagnosis("WorkflowFailed", Step.WORKFLOW, fact, *remedy(failed), began=failed.time)
    if facts.api_away:
        fact = f"{waits}, but it is not known if there is a Workflow for it: {facts.api_away}"
        return Diagnosis("APIAway", Step.WORKFLOW, fact, checks=API_CHECKS)
    checks: tuple[str, ...] = ()
    if facts.unheard_workflow is not None:
        workflow, hardware = facts.unheard_workflow
        other = f"Workflow {workflow} waits for Hardware {hardware}, whose machine was never seen"
        checks = (f"{other}: is it meant for this machine?",)
    fact = f"{waits}: {facts.no_workflow}"
    return Diagnosis("NoWorkflow", Step.WORKFLOW, fact, checks=checks, outcome=Outcome.INFO)


def not_introduced(story: Story, facts: Facts) -> Diagnosis | None:
    """The agent of a discovered machine is connected, and reports no inventory."""
    boot, registered = story.boot, facts.registered
    if boot.at is not Milestone.AGENT_CONNECTED or registered is None or registered.is_introduced:
        return None
    if facts.now - boot.since < INVENTORY_SECONDS:
        return None
    waited = seconds(boot.since, facts.now)
    fact = f"its agent has been connected for {waited}, but has reported no inventory, so no list can approve it"
    if facts.api_away:
        return Diagnosis("APIAway", Step.AGENT, fact, (facts.api_away,), API_CHECKS)
    causes = ("its agent is too old to report one", "a tool that the agent asks for facts hangs")
    checks = (
        "boot an OSIE with a new agent ('tinkedge prepare' builds one)",
        f"or approve it by hand: {_approval_of(registered.hardware)}",
    )
    return Diagnosis("NotIntroduced", Step.AGENT, fact, causes, checks)


def not_approved(story: Story, facts: Facts) -> Diagnosis | None:
    """A discovered machine has introduced itself and waits for its approval, or for its inventory."""
    boot, registered = story.boot, facts.registered
    if boot.at is not Milestone.AGENT_CONNECTED or facts.workflow or registered is None or not overdue(boot, facts):
        return None
    if not registered.is_discovered or not registered.is_introduced:
        return None
    causes = (registered.difference[:MAX_DIFFERENCE],) if registered.difference else ()
    checks = (f"approve it: {_approval_of(registered.hardware)}",)
    fact = "has introduced itself and waits for its approval"
    return Diagnosis("NotApproved", Step.DISCOVERY, fact, causes, checks, outcome=Outcome.INFO)


def _approval_of(hardware: str) -> str:
    """Return the command that approves a discovered Hardware (NAMESPACE/NAME)."""
    namespace, _, name = hardware.rpartition("/")
    return f"'tinkedge discover approve {name} NEW-NAME{f' -n {namespace}' if namespace != 'default' else ''}'"


def _last_failure(story: Story) -> JourneyEvent | None:
    """Return how the machine's last Workflow failed, or None if it did not, as far as the journey goes back."""
    events = (event for boot in reversed(story.boots) for event in reversed(boot.events))
    last = next((event for event in events if event.step is Step.WORKFLOW and event.detail.get("state")), None)
    return last if last is not None and last.outcome is Outcome.FAILED else None


def not_begun(story: Story, facts: Facts) -> Diagnosis | None:
    """The agent is connected and has a Workflow, which does not begin."""
    boot = story.boot
    if boot.at is not Milestone.AGENT_CONNECTED or not facts.workflow or not overdue(boot, facts):
        return None
    waited = seconds(boot.since, facts.now)
    fact = f"its agent has been connected for {waited}, but Workflow {facts.workflow} has not started"
    if facts.api_away:
        return Diagnosis("APIAway", Step.WORKFLOW, fact, (facts.api_away,), API_CHECKS)
    causes = (facts.workflow_message,) if facts.workflow_message else ()
    return Diagnosis(
        "WorkflowNotBegun", Step.WORKFLOW, fact, causes, ("'kubectl describe workflow' shows the whole reason",)
    )


def pull_stalls(story: Story, _facts: Facts) -> Diagnosis | None:
    """An action waits for its image, whose download stalls, as its agent reports (`tink.agent.output`)."""
    boot = story.boot
    last = boot.last(Step.ACTION) if boot.at is Milestone.ACTION_BEGUN else None
    found = _SILENT_REGISTRY.search(last.message) if last is not None else None
    if found is None:
        return None
    fact = f"action {boot.detail.get('action', '')} waits for its {found[0]}"
    causes = ("the registry is down or overloaded", "the machine's packets to it are lost on the way")
    checks = ("is that registry up, and can the machine reach it?",)
    return Diagnosis("PullStalls", Step.ACTION, fact, causes, checks)


def silent_action(story: Story, facts: Facts) -> Diagnosis | None:
    """An action runs and prints nothing. No warning, because that may be intended."""
    boot = story.boot
    if boot.at is not Milestone.ACTION_BEGUN:
        return None
    last = boot.last(Step.ACTION)
    if last is None or facts.now - last.time < SILENT_SECONDS:
        return None
    name = boot.detail.get("action", "")
    output = f"its last output {seconds(last.time, facts.now)} ago" if last.time > boot.since else "without any output"
    timeout = boot.detail.get("timeout_seconds", 0)
    until = f"its timeout is {timeout:.0f} s" if isinstance(timeout, int | float) and timeout else "it has no timeout"
    fact = f"action {name} has been running for {seconds(boot.since, facts.now)}, {output}; {until}"
    causes = ("it prints nothing while it works", "it waits for something that never arrives")
    checks = ("look at the machine's console; a timeout in the Template ends an action that hangs",)
    return Diagnosis("ActionSilent", Step.ACTION, fact, causes, checks, Outcome.INFO, began=last.time)
