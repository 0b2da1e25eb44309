"""Faults from the agent on: who it is, its Workflow, and its actions."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from edge.journey.expectations.rules.work import SILENT_SECONDS
from tests.interop.faults.machine import REGISTRY, Fault, Scripted


def shell(script: str, more: str = "", name: str = "write") -> str:
    """An action that runs a script."""
    return f"- {{name: {name}, image: none, cmd: /bin/sh, args: [-c, '{script}']{more}}}\n"


def image(name: str) -> str:
    """An action with that image."""
    return f"- {{name: write, image: '{name}'}}\n"


def agent(firmware: Scripted) -> float:
    firmware.to_osie()
    firmware.agent()
    return time.time()


def with_token(change: Callable[[str], str]) -> Callable[[Scripted], float]:
    """The token on its kernel's command line is not what it was."""

    def play(firmware: Scripted) -> float:
        firmware.to_osie()
        firmware.agent(change=lambda line: re.sub(r"tinkerbell_token=\S+", lambda found: change(found[0]), line))
        return time.time()

    return play


def agent_with_images(firmware: Scripted) -> float:
    firmware.to_osie()
    firmware.registry()
    firmware.agent(runtime="runc")
    return time.time()


def unknown_agent(firmware: Scripted) -> float:
    firmware.has_its_address()
    firmware.agent()
    return time.time()


def power_lost(firmware: Scripted) -> None:
    firmware.works("action write started")
    firmware.discover()


def installed_and_back(firmware: Scripted) -> None:
    firmware.works(": Succeeded")
    firmware.lease()


_CONNECTED = r"connected"
_BEGUN = r"action write started"
FAULTS = [
    Fault("agent without a Workflow", agent, "NoWorkflow", r"no Workflow for default/.*: create one", since=_CONNECTED),
    Fault(
        "Workflow for another Hardware",
        agent,
        "NoWorkflow",
        r"no Workflow for default/workflow-for-another-hardware: create one",
        actions=shell("true"),
        workflow="templateRef: {name: workflow-for-another-hardware}, hardwareRef: {name: never-heard}",
        since=_CONNECTED,
    ),
    Fault(
        "token is wrong",
        with_token(lambda word: word[:-4] + "AAAA"),
        "AgentRefused",
        r"its token is not signed with a key of this server",
        since=r"may not act for",
    ),
    Fault(
        "token is absent",
        with_token(lambda _: ""),
        "AgentRefused",
        r"its request has no token",
        since=r"may not act for",
    ),
    Fault(
        "the registry is silent",
        agent_with_images,
        "PullStalls",
        r"action write waits for its image .*: 127\.0\.0\.1:5000 has sent nothing for \d+ s",
        actions=image(f"{REGISTRY}/slow:1"),
        since=_BEGUN,
    ),
    Fault(
        "agent without Hardware",
        unknown_agent,
        "AgentRefused",
        r"(?i)no Hardware|not registered|unknown",
        registered=False,
        since=r"asked as|no Hardware has",
    ),
    Fault(
        "template that fails",
        agent,
        "WorkflowFailed",
        r"waits, but its last Workflow failed.*TemplateError.*nowhere",
        actions=shell("echo {{ .Params.nowhere }}"),
        since=_CONNECTED,
    ),
    Fault(
        "no Template",
        agent,
        "WorkflowNotBegun|WorkflowFailed",
        r"Template",
        workflow="templateRef: {name: nowhere}",
        since=_CONNECTED,
    ),
    Fault(
        "an action fails", agent, "ActionFailed|WorkflowFailed", r"exit code 3", actions=shell("exit 3"), since=_BEGUN
    ),
    Fault(
        "no such disk",
        agent,
        "ActionFailed|WorkflowFailed",
        r"/dev/nosuch",
        actions=shell("dd if=/dev/zero of=/dev/nosuch/disk 2>&1"),
        since=_BEGUN,
    ),
    Fault(
        "an action hangs",
        agent,
        "ActionSilent",
        r"has been running for .*; it has no timeout",
        actions=shell("sleep 200"),
        since=_BEGUN,
        plus=SILENT_SECONDS,  # before that, it may well be as it is meant
        moment="a minute of silence",
    ),
    Fault(
        "an action takes too long",
        agent,
        "ActionFailed|WorkflowFailed",
        r"2 s|timeout",
        actions=shell("sleep 200", ", timeout: 2"),
        since=_BEGUN,
    ),
    Fault(
        "registry down",
        agent_with_images,
        "ActionFailed|WorkflowFailed|PullStalls",
        r"127\.0\.0\.1:5999",
        actions=image("127.0.0.1:5999/a:1"),
        since=_BEGUN,
    ),
    Fault(
        "no such image",
        agent_with_images,
        "ActionFailed|WorkflowFailed",
        r"nothing",
        actions=image(f"{REGISTRY}/nothing:1"),
        since=_BEGUN,
    ),
    Fault(
        "login needed",
        agent_with_images,
        "ActionFailed|WorkflowFailed",
        r"it requires a user and password",
        actions=image(f"{REGISTRY}/private:1"),
        since=_BEGUN,
    ),
    Fault(
        "power lost in an action",
        power_lost,
        "Interrupted",
        r"restarted while action write was running",
        actions=shell("sleep 200") + shell("true", name="last"),
    ),
    Fault(
        "installed and back", installed_and_back, "NetbootsAgain", r"netboots again, although", actions=shell("true")
    ),
]
