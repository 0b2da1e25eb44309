"""Rules for the agent and its Workflow."""

from __future__ import annotations

import re

from edge.journey.events import JourneyEvent, Milestone, Outcome, Step
from edge.journey.expectations.facts import Cause, Facts, Finding
from edge.journey.expectations.rules.remedies import remedy
from edge.journey.expectations.rules.words import API_CHECKS, overdue, seconds
from edge.journey.expectations.story import Story

SILENCE = " has sent nothing for "
"""The part of an agent's line that names a registry."""
_SILENT_REGISTRY = re.compile(rf"image \S+: \S+{SILENCE}\d+ s$")
SILENT_SECONDS = 60.0
"""Seconds without output after which a running action is mentioned; that may be intended."""


def no_workflow(story: Story, facts: Facts) -> Finding | None:
    """The agent waits, and there is no Workflow for it."""
    boot = story.boot
    if boot.at is not Milestone.AGENT_CONNECTED or facts.workflow or facts.registered is None:
        return None
    if not overdue(boot, facts):
        return None
    waits = "its agent is connected and waits"
    failed = _last_failure(story)
    if failed is not None:
        fact = f"{waits}, and its last Workflow has failed: {failed.message}"
        return Finding("WorkflowFailed", Step.WORKFLOW, fact, *remedy(failed), began=failed.time)
    if facts.api_away:
        fact = f"{waits}, and whether there is a Workflow for it is not known: {facts.api_away}"
        return Finding("APIAway", Step.WORKFLOW, fact, checks=API_CHECKS)
    asked: tuple[str, ...] = ()
    if facts.unheard_workflow is not None:
        workflow, hardware = facts.unheard_workflow
        asked = (
            f"Workflow {workflow} waits for Hardware {hardware}, which was never heard: is it meant for this one?",
        )
    fact = f"{waits}: {facts.no_workflow}"
    return Finding("NoWorkflow", Step.WORKFLOW, fact, checks=asked, outcome=Outcome.INFO)


def _last_failure(story: Story) -> JourneyEvent | None:
    """Return how the machine's last Workflow failed, or None if it did not, as far as the journey goes back."""
    events = (event for boot in reversed(story.boots) for event in reversed(boot.events))
    last = next((event for event in events if event.step is Step.WORKFLOW and event.detail.get("state")), None)
    return last if last is not None and last.outcome is Outcome.FAILED else None


def not_begun(story: Story, facts: Facts) -> Finding | None:
    """The agent is connected and has a Workflow, which does not begin."""
    boot = story.boot
    if boot.at is not Milestone.AGENT_CONNECTED or not facts.workflow or not overdue(boot, facts):
        return None
    waited = seconds(boot.since, facts.now)
    fact = f"its agent has been connected for {waited}, and Workflow {facts.workflow} has not begun"
    if facts.api_away:
        return Finding("APIAway", Step.WORKFLOW, fact, (Cause(facts.api_away),), API_CHECKS)
    causes = (Cause(facts.workflow_message),) if facts.workflow_message else ()
    return Finding(
        "WorkflowNotBegun", Step.WORKFLOW, fact, causes, ("'kubectl describe workflow' has the whole reason",)
    )


def pull_stalls(story: Story, _facts: Facts) -> Finding | None:
    """An action waits for its image, whose download stalls, as its agent reports (`tink.agent.output`)."""
    boot = story.boot
    last = boot.last(Step.ACTION) if boot.at is Milestone.ACTION_BEGUN else None
    found = _SILENT_REGISTRY.search(last.message) if last is not None else None
    if found is None:
        return None
    fact = f"action {boot.detail.get('action', '')} waits for its {found[0]}"
    causes = (Cause("the registry is down or overloaded"), Cause("the machine's packets to it are lost on the way"))
    checks = ("is that registry up, and can the machine reach it?",)
    return Finding("PullStalls", Step.ACTION, fact, causes, checks)


def silent_action(story: Story, facts: Facts) -> Finding | None:
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
    causes = (Cause("it prints nothing while it works"), Cause("it waits for something that does not come"))
    checks = ("look at the machine's console; a timeout in the Template ends an action that hangs",)
    return Finding("ActionSilent", Step.ACTION, fact, causes, checks, Outcome.INFO, began=last.time)
