"""Faults on a real network, against a real `tinkedge up`: each is named on the journey and on the Hardware, and truly.

Every machine is a namespace of its own whose firmware is a script (`firmware`), with a real agent where one is needed.
All faults (`boots`, `work`) are played at the same time, for most of what there is to do is waiting.
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
from tests.interop.faults import boots, discovery, page, power, work
from tests.interop.faults.boots import HEALTHY
from tests.interop.faults.machine import Fault
from tests.interop.faults.site import NEAR, Site
from tests.waiting import wait_until
from tink.discovery.model import discovered_name

pytestmark = pytest.mark.long

ELSEWHERE = {"one digit off": NEAR, "second card": "this-host-drops-tcp-42113"}
"""The Hardware on which the problem of a machine is shown that has none of its own."""
FAULTS = [*boots.FAULTS, *work.FAULTS, *power.FAULTS, *discovery.FAULTS]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("faults"), FAULTS) as site:
        yield site


@dataclass
class Named:
    """How a fault was named, `seconds` after it could be known; `until` (epoch) it was named, and played to its end.

    `problem` is the message of the condition BootProblem then. `in_column`: the Workflow's MESSAGE had the same text.
    """

    fault: str
    rule: str
    message: str
    until: float
    seconds: float
    problem: str
    in_column: bool


def played(site: Site, fault: Fault) -> Named:
    """Play it, and wait until it has a name. Raises AssertionError."""
    machine = site.machines[fault.name]
    if fault.after:
        other = site.machines[fault.after]
        wait_until(
            lambda: "the OSIE is up" in site.journey_text(other.mac), lambda: site.journey_text(other.mac), every=0.5
        )
    known, ended = fault.play(machine), time.time()
    known = known or ended
    found = wait_until(lambda: _finding(site, fault), lambda: site.journey_text(machine.mac), every=0.5)
    if fault.since:
        lines = (one["time"] for one in site.events(machine.mac) if re.search(fault.since, one["message"]))
        known = next(lines, known) + fault.plus
    message, seconds = found["message"], found["time"] - known
    # BMC control soon tries the next way, with a message of its own.
    in_column = fault.has_boot and _column(site, fault, message)
    problem = _problem(site, fault)
    return Named(fault.name, found["rule"], message, max(ended, found["time"]), seconds, problem, in_column)


def complaints_of_a_healthy_boot(site: Site) -> list[str]:
    """Return the warnings about a healthy machine with shim and GRUB, before its agent is late."""
    machine = site.machines[HEALTHY.name]
    HEALTHY.play(machine)

    def complaints() -> list[tuple[str, str]]:
        events = (one for one in site.events(machine.mac) if one["outcome"] in ("warning", "failed", "refused"))
        return [(str(one["detail"].get("rule")), one["message"]) for one in events]

    # The machine has no agent, so the warning about that ends the boot.
    wait_until(lambda: any(rule == "AgentMissing" for rule, _ in complaints()), complaints, every=0.5)
    return [message for rule, message in complaints() if rule != "AgentMissing"]


def _finding(site: Site, fault: Fault) -> dict[str, Any] | None:
    """Return the journey's event for the fault, a warning or a failure, once the Hardware's status shows it, too."""
    machine = site.machines[fault.name]
    for event in reversed(site.events(machine.mac)):
        rule = _rule(event)
        if re.fullmatch(fault.rules, rule) and re.search(fault.sentence, event["message"]):
            where = _shown_on(site, fault)
            if where and not any(re.fullmatch(fault.rules, reason) for reason in site.shown(where)):
                return None
            return {**event, "rule": rule}
    return None


def _rule(event: dict[str, Any]) -> str:
    """Return the rule of a finding, the reason of BMC control or discovery, or step and outcome of another event."""
    named = event["detail"].get("rule")
    if event["step"] in (Step.POWER, Step.DISCOVERY):
        named = named or event["detail"].get("reason")
    return named or f"{event['step'].capitalize()}{event['outcome'].capitalize()}"


def test_what_cannot_work_is_warned_about_when_it_is_applied(site: Site) -> None:
    assert "spec.instance.userdata: it is no YAML, line 3" in site.warnings
    assert "spec.osie.name: there is no OSIE default/nowhere yet" in site.warnings


def _shown_on(site: Site, fault: Fault) -> str:
    """The Hardware that says the same; empty: none."""
    if fault.discovered is not None and not fault.discovered.is_full:
        return fault.discovered.becomes or discovered_name(site.machines[fault.name].mac)
    return ELSEWHERE.get(fault.name, fault.slug if fault.registered else "")


def test_each_fault_is_named_truly_on_the_journey_and_on_the_hardware(site: Site) -> None:
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
    shown = site.shown(_shown_on(site, fault))
    where = ["condition", "Event"] if any(re.fullmatch(fault.rules, reason) for reason in shown) else []
    if fault.actions or fault.workflow:
        where += ["MESSAGE"] if named.in_column or _column(site, fault, named.message) else []
    # A failure that the journey reports itself has its causes and what to do in the condition.
    problems = (_problem(site, fault), named.problem)
    sentence = next((each for each in problems if each.startswith(named.message)), named.message)
    return page.Row(fault, named.rule, sentence, named.seconds, tuple(where), site.machines[fault.name].ip)


def _problem(site: Site, fault: Fault) -> str:
    """Return the message of the condition BootProblem for the fault, without the MAC address."""
    return site.problem(_shown_on(site, fault)).removeprefix(f"{site.machines[fault.name].mac}: ")


def _column(site: Site, fault: Fault, message: str) -> bool:
    """Return True if the column MESSAGE of the fault's Workflow has the same text."""
    shown = site.kubectl("get", "workflow", fault.slug, "-o", "jsonpath={.status.message}")
    return bool(shown) and shown.removeprefix("boot: ")[:60].rstrip("…") in message


def _nothing_false(site: Site, named: list[Named]) -> None:
    """Check that all other warnings about a machine, until its fault was named and played, are true, too."""
    for one in named:
        fault = next(fault for fault in FAULTS if fault.name == one.fault)
        warnings = [each for each in site.events(site.machines[fault.name].mac) if each["outcome"] == "warning"]
        others = [
            each["message"]
            for each in warnings
            if each["time"] <= one.until
            and not re.fullmatch(fault.rules, _rule(each))
            # On a busy host the agent is late, and a BMC that ignores a request is waited for: both are true. All fake
            # BMCs describe one machine, so discovery reports that their machines have the same MAC address.
            and _rule(each) not in ("AgentMissing", "StepOverdue", "Conflict")
        ]
        assert not others, f"{fault.name}: {others}"


def test_describe_tells_why_a_machine_does_not_boot(site: Site) -> None:
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


def test_refused_password_costs_one_login(site: Site) -> None:
    fault = next(fault for fault in FAULTS if "CredentialsRefused" in fault.rules)
    assert site.bmc_state(fault)["failed_logins"] == 1


def test_second_workflow_of_an_agent_that_stays_has_steps_and_output_of_its_own(site: Site) -> None:
    fault = next(fault for fault in FAULTS if fault.name == "an action fails")
    machine = site.machines[fault.name]
    site.create_workflow(f"{fault.slug}-2", hardware=fault.slug, actions=work.shell("echo only the second says this"))
    wait_until(
        lambda: f"{fault.slug}-2: Succeeded" in site.journey_text(machine.mac), lambda: site.journey_text(machine.mac)
    )
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


def test_machine_whose_hardware_is_deleted_is_in_trouble_no_more(site: Site) -> None:
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
