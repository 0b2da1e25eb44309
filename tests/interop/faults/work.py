"""Faults from the agent on: who it is, its Workflow, and its actions."""

from __future__ import annotations

import time

from edge.journey.expectations.rules.work import SILENT_SECONDS
from tests.interop.faults.fault import Fault
from tests.interop.faults.machine import REGISTRY, Scripted


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


def agent_that_prints_nothing(firmware: Scripted) -> float:
    return agent(firmware) + SILENT_SECONDS  # before that, it may well be as it is meant


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


FAULTS = [
    Fault("agent without a Workflow", agent, "NoWorkflow", r"no Workflow for default/.*: create one"),
    Fault(
        "agent of nobody", unknown_agent, "AgentRefused", r"(?i)no Hardware|not registered|unknown", registered=False
    ),
    Fault(
        "template that fails",
        agent,
        "WorkflowFailed",
        r"waits; .*TemplateError.*nowhere",
        actions=shell("echo {{ .Params.nowhere }}"),
    ),
    Fault("no Template", agent, "WorkflowNotBegun", r"Template", workflow="templateRef: {name: nowhere}"),
    Fault("an action fails", agent, "ActionFailed|WorkflowFailed", r"exit code 3", actions=shell("exit 3")),
    Fault(
        "no such disk",
        agent,
        "ActionFailed|WorkflowFailed",
        r"/dev/nosuch",
        actions=shell("dd if=/dev/zero of=/dev/nosuch/disk 2>&1"),
    ),
    Fault(
        "an action hangs",
        agent_that_prints_nothing,
        "ActionSilent",
        r"has been running for .*; it has no timeout",
        actions=shell("sleep 200"),
    ),
    Fault(
        "an action takes too long",
        agent,
        "ActionFailed|WorkflowFailed",
        r"2 s|timeout",
        actions=shell("sleep 200", ", timeout: 2"),
    ),
    Fault(
        "registry down",
        agent_with_images,
        "ActionFailed|WorkflowFailed",
        r"127\.0\.0\.1:5999",
        actions=image("127.0.0.1:5999/a:1"),
    ),
    Fault(
        "no such image",
        agent_with_images,
        "ActionFailed|WorkflowFailed",
        r"nothing",
        actions=image(f"{REGISTRY}/nothing:1"),
    ),
    Fault(
        "login needed",
        agent_with_images,
        "ActionFailed|WorkflowFailed",
        r"(?i)unauthorized|log ?in|401",
        actions=image(f"{REGISTRY}/private:1"),
    ),
    Fault(
        "power lost in an action",
        power_lost,
        "Interrupted",
        r"started anew while action write was running",
        actions=shell("sleep 200") + shell("true", name="last"),
    ),
    Fault(
        "installed and back", installed_and_back, "NetbootsAgain", r"netboots again, although", actions=shell("true")
    ),
]
