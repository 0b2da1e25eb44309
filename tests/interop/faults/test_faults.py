"""Faults on a real network, against a real `tinkedge up`: the journey and the Hardware name each with its true cause.

Every machine is a namespace of its own with scripted firmware (`machine`), and a real agent if the fault needs one.
All faults (`boots`, `work`) run at the same time, since they mostly wait.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from edge.journey.events import JourneyEvent, Outcome, Step
from edge.journey.expectations import read
from edge.page.timeline import chains, events_of
from tests.interop.faults import boots, page, work
from tests.interop.faults.boots import HEALTHY
from tests.interop.faults.machine import Fault
from tests.interop.faults.site import NEAR, Site
from tests.waiting import wait_until

pytestmark = pytest.mark.long

ELSEWHERE = {"one digit off": NEAR, "second card": "this-host-drops-tcp-42113"}
"""The Hardware that shows the problem of a machine without a Hardware."""
FAULTS = [*boots.FAULTS, *work.FAULTS]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("faults"), FAULTS) as site:
        yield site


@dataclass
class Named:
    """The report of a fault, `seconds` after it became detectable. `until` (epoch): reported, and played to its end."""

    fault: str
    rule: str
    message: str
    until: float
    seconds: float


def played(site: Site, fault: Fault) -> Named:
    """Cause a fault and wait until the edge reports it. Raises AssertionError."""
    machine = site.machines[fault.name]
    if fault.after:
        other = site.machines[fault.after]
        wait_until(lambda: "the OSIE is up" in site.journey(other.mac), lambda: site.journey(other.mac), every=0.5)
    detectable, ended = fault.play(machine), time.time()
    detectable = detectable or ended
    finding = wait_until(lambda: _finding(site, fault), lambda: site.journey(machine.mac), every=0.5)
    if fault.since:
        lines = (one["time"] for one in site.events(machine.mac) if re.search(fault.since, one["message"]))
        detectable = next(lines, detectable) + fault.plus
    return Named(
        fault.name, finding["rule"], finding["message"], max(ended, finding["time"]), finding["time"] - detectable
    )


def complaints_of_a_healthy_boot(site: Site) -> list[str]:
    """Return the warnings about a healthy machine with shim and GRUB, before its agent is late."""
    machine = site.machines[HEALTHY.name]
    HEALTHY.play(machine)
    time.sleep(3)
    return [one["message"] for one in site.events(machine.mac) if one["outcome"] in ("warning", "failed", "refused")]


def _finding(site: Site, fault: Fault) -> dict[str, Any] | None:
    """Return the journey's event for the fault, a warning or a failure, once the Hardware's status shows it, too."""
    machine = site.machines[fault.name]
    for event in reversed(site.events(machine.mac)):
        rule = event["detail"].get("rule") or f"{event['step'].capitalize()}{event['outcome'].capitalize()}"
        if re.fullmatch(fault.rules, rule) and re.search(fault.sentence, event["message"]):
            where = _shown_on(fault)
            if where and not any(re.fullmatch(fault.rules, reason) for reason in site.shown(where)):
                return None
            return {**event, "rule": rule}
    return None


def test_apply_warns_about_objects_that_can_not_work(site: Site) -> None:
    assert "spec.instance.userdata: it is no YAML, line 3" in site.warnings
    assert "spec.osie.name: there is no OSIE default/nowhere yet" in site.warnings


def _shown_on(fault: Fault) -> str:
    """Return the name of the Hardware that shows the fault; empty: none."""
    return ELSEWHERE.get(fault.name, fault.slug if fault.registered else "")


def test_journey_and_hardware_name_the_true_cause_of_each_fault(site: Site) -> None:
    with ThreadPoolExecutor(len(FAULTS) + 1) as pool:
        playing = {fault.name: pool.submit(played, site, fault) for fault in FAULTS}
        healthy = pool.submit(complaints_of_a_healthy_boot, site)
        problems = {name: str(error) for name, one in playing.items() if (error := one.exception()) is not None}
        assert healthy.result() == []
    for name, one in playing.items():
        if name not in problems:
            named = one.result()
            print(f"{named.seconds:6.1f} s  {name:32} {named.rule:18} {named.message}")
    if page.RECORDING:
        page.write(_row(site, fault, playing[fault.name].result()) for fault in FAULTS if fault.name not in problems)
    assert not problems, "\n\n".join(f"{name}:\n{why}" for name, why in problems.items())
    _nothing_false(site, [one.result() for one in playing.values()])


def _row(site: Site, fault: Fault, named: Named) -> page.Row:
    shown = site.shown(_shown_on(fault))
    where = ["condition", "Event"] if any(re.fullmatch(fault.rules, reason) for reason in shown) else []
    if fault.actions or fault.workflow:
        where += ["MESSAGE"] if _column(site, fault, named) else []
    machine = site.machines[fault.name]
    # For a failure that the journey reports itself, the condition has the causes and the remedy.
    problem = site.problem(_shown_on(fault)).removeprefix(f"{machine.mac}: ")
    sentence = problem if problem.startswith(named.message) else named.message
    return page.Row(fault, named.rule, sentence, named.seconds, tuple(where), machine.ip)


def _column(site: Site, fault: Fault, named: Named) -> bool:
    """Return True if the column MESSAGE of the fault's Workflow has the same text."""
    shown = site.kubectl("get", "workflow", fault.slug, "-o", "jsonpath={.status.message}")
    return bool(shown) and shown[:60].rstrip("…") in named.message


def _nothing_false(site: Site, named: list[Named]) -> None:
    """Check that all other warnings about a machine before `until` are true, too."""
    for one in named:
        fault = next(fault for fault in FAULTS if fault.name == one.fault)
        warnings = [each for each in site.events(site.machines[fault.name].mac) if each["outcome"] == "warning"]
        others = [
            each["message"]
            for each in warnings
            if each["time"] <= one.until
            and not re.fullmatch(fault.rules, each["detail"]["rule"])
            and each["detail"]["rule"] != "AgentMissing"  # true on a busy host, where the agent is late
        ]
        assert not others, f"{fault.name}: {others}"


def test_kubectl_describe_shows_why_a_machine_does_not_boot(site: Site) -> None:
    name = FAULTS[2].slug
    described = wait_until(
        lambda: (
            out
            if "NoTFTPRequest" in (out := site.kubectl("describe", "hardware", name)).partition("Events:")[2]
            else ""
        ),
        lambda: site.kubectl("describe", "hardware", name) + site.edge.err[-3000:],
    )
    assert "BootProblem" in described
    assert "netmask /32" in described


def test_second_workflow_of_an_agent_that_stays_has_steps_and_output_of_its_own(site: Site) -> None:
    fault = next(fault for fault in FAULTS if fault.name == "an action fails")
    machine = site.machines[fault.name]
    site.create_workflow(f"{fault.slug}-2", hardware=fault.slug, actions=work.shell("echo only the second says this"))
    wait_until(lambda: f"{fault.slug}-2: Succeeded" in site.journey(machine.mac), lambda: site.journey(machine.mac))
    events = [
        JourneyEvent(**{**event, "step": Step(event["step"]), "outcome": Outcome(event["outcome"])})
        for event in site.events(machine.mac)
    ]
    first, second = chains(read(machine.mac, events))
    assert [chain.workflows for chain in (first, second)] == [{f"default/{fault.slug}"}, {f"default/{fault.slug}-2"}]
    printed = [
        "".join(str(event.detail.get("output", "")) for event in events_of(chain, after, events))
        for chain, after in ((first, second), (second, None))
    ]
    assert ["only the second" in each for each in printed] == [False, True]


def test_deletion_of_a_hardware_ends_the_problem_of_its_machine(site: Site) -> None:
    fault = next(fault for fault in FAULTS if fault.name == "upstream has no such file")
    machine = site.machines[fault.name]
    shown = site.machine(machine.mac)
    assert (shown["kind"], shown["reason"]) == ("trouble", "KernelFailed")
    site.kubectl("delete", "hardware", fault.slug)
    wait_until(
        lambda: site.machine(machine.mac)["state"] == "no longer registered",
        lambda: json.dumps(site.machine(machine.mac)),
        every=0.5,
    )
    shown = site.machine(machine.mac)
    assert (shown["kind"], shown["reason"], shown["wrong"]) == ("unregistered", None, None)
