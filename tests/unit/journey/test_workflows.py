"""Workflow objects, and what the gRPC server observes of agents, as steps of a machine's journey."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from edge.journey.events import MAX_DETAIL, MAX_MESSAGE, Note, Outcome, Step
from edge.journey.history import Happened, plain, read
from edge.journey.recorder import Journey
from edge.machines import Inventory
from edge.run.machine_work import AgentJourney, WorkflowJourney
from tests.support import objects
from tests.support.objects import MAC, hardware
from tests.support.objects import OTHER_MAC as OTHER
from tink.api.v1alpha2 import BOOT_FINALIZER, Raw
from tink.bmc.boot import BootReason
from tink.bmc.model import Cause
from tink.server import ActivityKind, AgentActivity
from tink.server.service import MAX_LINE_CHARACTERS, fitting

T0, T1, T2 = "2026-11-21T09:00:00Z", "2026-11-21T09:00:03.200000Z", "2026-11-21T09:00:10Z"
INSTALL = "workflow default/install:"


@pytest.fixture
def inventory() -> Inventory:
    inventory = Inventory()
    inventory.apply(hardware(interfaces={MAC: {"dhcp": {"ip": "10.0.0.5"}}, OTHER: {}}))
    return inventory


@pytest.fixture
def workflows(journey: Journey, inventory: Inventory) -> WorkflowJourney:
    return WorkflowJourney(journey, inventory)


def workflow(state: str, *actions: Raw, uid: str = "u1", on: str = "m1", **status: Any) -> Raw:
    status = {"lastTransitioned": T0, "actions": list(actions), **status}
    return objects.workflow("install", state, hardware=on, metadata={"uid": uid}, **status)


def action(number: int, state: str, **more: Any) -> Raw:
    return {**objects.action(f"id-{number}", state, name=f"step-{number}", image="image:1"), **more}


def lines(journey: Journey, mac: str = MAC) -> list[tuple[Step, Outcome, str]]:
    return [(event.step, event.outcome, event.message) for event in journey.events(mac)]


def messages(journey: Journey) -> list[str]:
    return [message for _, _, message in lines(journey)]


def test_whole_run_reads_as_a_story(inventory, clock):
    journey = Journey(clock)
    workflows = WorkflowJourney(journey, inventory)
    first, second = action(1, "Pending"), action(2, "Pending")
    stages = [workflow("Pending", first, second), workflow("Scheduled", first, second)]
    stages.append(workflow("Running", action(1, "Running", startedAt=T0), second, startedAt=T0))
    first = action(1, "Succeeded", startedAt=T0, lastTransitioned=T1)
    stages.append(workflow("Running", first, action(2, "Running", startedAt=T1)))
    second = action(2, "Succeeded", startedAt=T1, lastTransitioned=T2)
    stages.append(workflow("Succeeded", first, second, startedAt=T0, lastTransitioned=T2))
    before = None
    for stage in stages:
        workflows.on_change(stage, before)
        workflows.on_change(stage, copy.deepcopy(stage))  # a resync
        before = stage
    assert lines(journey) == [
        *((Step.WORKFLOW, Outcome.INFO, f"{INSTALL} {state}") for state in ("Pending", "Scheduled", "Running")),
        (Step.ACTION, Outcome.INFO, "action step-1 started (1 of 2)"),
        (Step.ACTION, Outcome.OK, "action step-1 succeeded in 3.2 s (1 of 2)"),
        (Step.ACTION, Outcome.INFO, "action step-2 started (2 of 2)"),
        (Step.ACTION, Outcome.OK, "action step-2 succeeded in 6.8 s (2 of 2)"),
        (Step.WORKFLOW, Outcome.OK, f"{INSTALL} Succeeded after 10.0 s"),
    ]
    detail = journey.events(MAC)[4].detail
    assert (detail["duration_seconds"], detail["workflow"]) == (3.2, "default/install")


def test_failed_action_names_reason_and_message(journey, workflows):
    times = {"startedAt": T0, "lastTransitioned": T1}
    failed = action(1, "Failed", failureReason="ImageNotFound", failureMessage="no image:1", **times)
    succeeded = {"type": "Succeeded", "status": "False", "reason": "ActionFailed", "message": "step-1"}
    running = workflow("Running", action(1, "Running", startedAt=T0))
    workflows.on_change(workflow("Failed", failed, conditions=[succeeded]), running)
    assert lines(journey) == [
        (Step.ACTION, Outcome.FAILED, "action step-1 failed after 3.2 s (1 of 1): ImageNotFound: no image:1"),
        (Step.WORKFLOW, Outcome.FAILED, f"{INSTALL} Failed: ActionFailed: step-1"),
    ]


DEFAULTED = {**workflow("Pending"), "status": {"state": "Pending", "message": "waits for the controller"}}
# A label is added to a Workflow that ended a year ago, whose old object has no actions any more.
SHORT = {**workflow("Succeeded", message="m"), "spec": {"hardwareRef": {"name": "m1"}}}
QUICK = action(1, "Succeeded", startedAt=T0, lastTransitioned=T0)


@pytest.mark.parametrize(
    ("new", "before", "logged"),
    [
        (DEFAULTED, None, []),
        (workflow("Pending", action(1, "Pending")), DEFAULTED, [f"{INSTALL} Pending"]),
        (workflow("Pending", uid="u2"), workflow("Pending", uid="u1"), [f"{INSTALL} Pending"]),
        (workflow("Pending", uid="u2"), SHORT, [f"{INSTALL} Pending"]),
        (workflow("Succeeded", action(1, "Succeeded")), None, []),
        (
            workflow("Running", action(1, "Succeeded"), action(2, "Running")),
            None,
            [f"{INSTALL} Running", "action step-2 started (2 of 2)"],
        ),
        (workflow("Succeeded", action(1, "Succeeded", startedAt=T0, lastTransitioned=T1)), SHORT, []),
        (
            workflow("Running", QUICK),
            workflow("Running", action(1, "Pending")),
            ["action step-1 started (1 of 1)", "action step-1 succeeded in 0.0 s (1 of 1)"],
        ),
    ],
    ids=[
        "pending-by-default",
        "taken",
        "recreated",
        "recreated-after-its-end",
        "ended-before",
        "began-before",
        "history-alone",
        "quick-action",
    ],
)
def test_change_is_recorded_if_it_is_new(journey, workflows, new, before, logged):
    workflows.on_change(new, before)
    assert messages(journey) == logged


def test_deletion_before_the_end_is_recorded_on_the_interface_that_booted(journey, workflows):
    journey.record(OTHER, Step.DHCP, Outcome.OK, "offer")
    for ended in (workflow("Succeeded"), SHORT):
        workflows.on_delete(ended)
    workflows.on_delete(workflow("Running"))
    assert [line for _, _, line in lines(journey, OTHER)] == ["offer", f"{INSTALL} deleted"]
    assert lines(journey, MAC) == []


def test_workflow_is_no_sign_of_life_and_does_not_tie_later_ones_to_a_card_that_never_boots(journey, workflows):
    workflows.on_change(workflow("Pending", uid="u0", preparedAt=T0), None)
    journey.record(OTHER, Step.DHCP, Outcome.OK, "offer")
    journey.record(MAC, Step.WORKFLOW, Outcome.INFO, "workflow default/another: Scheduled", state="Scheduled")
    assert journey.last_sign(MAC) is None
    workflows.on_delete(workflow("Running"))
    assert lines(journey, OTHER)[-1][2] == f"{INSTALL} deleted"


def test_unknown_hardware_and_broken_object_are_logged(journey, workflows, caplog):
    workflows.on_change(workflow("Pending", on="nowhere"), None)
    workflows.on_change({"metadata": {"name": "bad", "namespace": "default"}, "spec": {}}, None)
    odd = workflow("Succeeded", startedAt="yesterday", lastTransitioned=T0)
    workflows.on_change(odd, workflow("Running"))
    assert "Hardware nowhere is not known" in caplog.text
    assert "Workflow default/bad is ignored: spec.hardwareRef: Field required" in caplog.text
    assert lines(journey) == [(Step.WORKFLOW, Outcome.OK, f"{INSTALL} Succeeded")]


def test_end_of_a_workflow_whose_hardware_was_deleted_is_on_the_journey(journey, inventory, workflows):
    workflows.on_change(running := workflow("Running"), workflow("Scheduled"))
    inventory.remove(hardware(interfaces={MAC: {"dhcp": {"ip": "10.0.0.5"}}, OTHER: {}}))
    workflows.on_change(workflow("Failed"), running)
    assert messages(journey) == [f"{INSTALL} Running", f"{INSTALL} Failed"]


@pytest.mark.parametrize("others", [False, True])
def test_workflows_of_other_sites_cause_no_warnings(journey, inventory, caplog, others):
    elsewhere = workflow("Running", on="of-another-site")
    WorkflowJourney(journey, inventory, others=others).on_change(elsewhere, None)
    assert bool([each for each in caplog.records if each.levelname == "WARNING"]) is not others


def test_workflow_that_runs_during_a_restart_is_recorded_once(inventory, clock):
    first = Journey(clock)
    running = workflow("Running", action(1, "Succeeded"), action(2, "Running", startedAt=T1))
    before = WorkflowJourney(first, inventory)
    before.on_change(workflow("Running", action(1, "Running", startedAt=T0), action(2, "Pending")), None)
    before.on_change(running, workflow("Running", action(1, "Running", startedAt=T0), action(2, "Pending")))
    clock.now += 10
    second = Journey(clock, began=clock.now)
    for event in first.events(MAC):
        note = Note(event.step, event.outcome, event.message, event.detail)
        second.take_in(MAC, event.time, note, now=False)
    logged = lines(second)
    after = WorkflowJourney(second, inventory)
    after.on_change(running, None)
    assert lines(second) == logged
    ended = workflow("Succeeded", action(1, "Succeeded"), action(2, "Succeeded"))
    after.on_change(ended, running)
    assert [line[2] for line in lines(second)[len(logged) :]][-1] == "workflow default/install: Succeeded"
    after.on_change(workflow("Pending", action(1, "Pending"), uid="u2"), None)
    assert lines(second)[-1][2] == "workflow default/install: Pending", "another one of the same name"


A, B, SECOND = "52:54:00:00:00:0a", "52:54:00:00:00:0b", "52:54:00:00:00:1a"
ELSEWHERE = "192.0.2.66"


@pytest.fixture
def observe(journey):
    """Two interfaces of default/a at 10.0.0.1 and 10.0.0.2, and other/b at 10.0.0.9."""
    inventory = Inventory()
    inventory.apply(hardware("a", interfaces={A: {"dhcp": {"ip": "10.0.0.1"}}, SECOND: {"dhcp": {"ip": "10.0.0.2"}}}))
    inventory.apply(hardware("b", B, "10.0.0.9", namespace="other"))
    return AgentJourney(journey.record, inventory).observe


def output(*lines, dropped=0, agent_id=A):
    message = f"action first: {lines[-1]}"
    seen = AgentActivity(agent_id, "192.0.2.9", ActivityKind.OUTPUT, message, "default/a", "default/w")
    return replace(seen, action="first", lines=lines, dropped=dropped)


def test_output_is_an_entry_with_the_newest_line_and_all_of_them_behind_it(journey, observe):
    observe(output("one", "two", dropped=7))
    whole = fitting(["x" * MAX_LINE_CHARACTERS] * 100)
    observe(output(*whole))
    event, large = journey.events(A)
    assert (event.step, event.outcome, event.message) == (Step.ACTION, Outcome.INFO, "action first: two")
    assert event.detail == {"workflow": "default/w", "action": "first", "output": "one\ntwo", "dropped_lines": 7}
    assert large.detail["output"] == "\n".join(whole), "what the server tells is not cut again"
    assert len(large.detail["output"]) < MAX_DETAIL


@pytest.mark.parametrize("line", ["forged", "x" * 5000])
def test_output_from_another_address_names_it(journey, observe, line):
    observe(replace(output(line), elsewhere=True))
    [event] = journey.events(A)
    assert event.message.startswith("action first: " + line[:100])
    assert event.message.endswith(" (so says 192.0.2.9)")
    assert len(event.message) <= MAX_MESSAGE
    assert event.detail["from"] == "192.0.2.9"


@pytest.mark.parametrize("long", [5, 5000])
def test_event_from_another_address_names_it(journey, observe, long):
    """The status tells what has changed, and not from where."""
    message = "action first failed: " + "x" * long
    reported = f"{message} (so says {ELSEWHERE})"
    observe(AgentActivity("a", ELSEWHERE, ActivityKind.EVENT, reported, "default/a", "default/w", elsewhere=True))
    [event] = journey.events(A)
    assert (event.step, event.outcome) == (Step.AGENT, Outcome.INFO)
    assert event.message.startswith(message[:100])
    assert event.message.endswith(f" (so says {ELSEWHERE})")
    assert len(event.message) <= MAX_MESSAGE
    assert event.detail == {"workflow": "default/w", "from": ELSEWHERE}


FOREIGN = f"{ELSEWHERE} may not act for Hardware d/h"


@pytest.mark.parametrize(
    ("kind", "peer", "outcome", "reported", "shown"),
    [
        (ActivityKind.CONNECTED, "10.0.0.1", Outcome.OK, "what happened", "what happened"),
        (ActivityKind.DISCONNECTED, "10.0.0.1", Outcome.INFO, "what happened", "what happened"),
        (ActivityKind.REFUSED, ELSEWHERE, Outcome.REFUSED, "too many calls", f"too many calls (asked by {ELSEWHERE})"),
        (ActivityKind.REFUSED, ELSEWHERE, Outcome.REFUSED, FOREIGN, FOREIGN),
        # The status tells of these.
        *(
            (kind, "10.0.0.1", None, "m", "")
            for kind in (ActivityKind.STARTED, ActivityKind.STOPPED, ActivityKind.EVENT)
        ),
    ],
)
def test_coming_going_and_refusal_of_an_agent_are_entries_on_its_machines_journey(
    journey, observe, kind, peer, outcome, reported, shown
):
    observe(AgentActivity(A.upper(), peer, kind, reported, "" if peer == ELSEWHERE else "default/a"))
    found = [(event.step, event.outcome, event.message, event.detail) for event in journey.events(A)]
    where = {"from" if outcome is Outcome.REFUSED else "peer": peer}
    assert found == ([(Step.AGENT, outcome, shown, where)] if outcome else [])


@pytest.mark.parametrize(
    ("seen", "mac"),
    [
        # An agent known by the name of its Hardware: by the interface that it calls from, or the first.
        (AgentActivity("a", "10.0.0.2", ActivityKind.CONNECTED, "m", "default/a"), SECOND),
        (AgentActivity("other/b", "192.0.2.1", ActivityKind.CONNECTED, "m", "other/b"), B),
        (output("one", agent_id="a"), A),
        # One that calls itself by the MAC of another Hardware than its own writes on the journey of its own.
        (replace(output("forged"), hardware="other/b"), B),
        # A refused one: the machine that it names, not its own; or the machine whose address it has.
        *((AgentActivity(name, "10.0.0.1", ActivityKind.REFUSED, "m", "other/b"), B) for name in ("b", "other/b", B)),
        (AgentActivity("nobody", "10.0.0.9", ActivityKind.REFUSED, "m"), B),
        (AgentActivity("nobody", "192.0.2.1", ActivityKind.REFUSED, "m"), None),
        (AgentActivity("nobody", "unix:/x", ActivityKind.REFUSED, "m", "default/gone"), None),
    ],
)
def test_machine_of_an_agent_is_the_one_that_it_is_about(journey, observe, seen, mac):
    observe(seen)
    assert [machine.mac for machine in journey.machines()] == ([mac] if mac else [])


# --- BMC control ------------------------------------------------------------------------------------------------------


def booting(
    reason: str, message: str, state: str = "Pending", *, way: str = "pxe", status: str = "False", **boot: Any
) -> Raw:
    """Return a Workflow whose machine is being booted by its BMC."""
    prepared = {"type": "BootPrepared", "status": status, "reason": reason, "message": message}
    return workflow(state, boot={"way": way, "attempt": 1, "message": message, **boot}, conditions=[prepared])


def power(journey: Journey) -> list[tuple[Outcome, str, Any]]:
    return [
        (each.outcome, each.message, each.detail["reason"]) for each in journey.events(MAC) if each.step is Step.POWER
    ]


def test_progress_of_bmc_control_is_on_the_journey_once_each(inventory, clock):
    journey = Journey(clock)
    workflows = WorkflowJourney(journey, inventory)
    stages = [
        booting("PoweringOff", "pxe (attempt 1): switching the machine off"),
        booting("PoweringOn", "pxe (attempt 1): switching the machine on"),
        booting("WaitingForDiscover", "pxe (attempt 1): the machine is on", since=T0),
        booting("WaitingForDiscover", "pxe (attempt 1): the machine is on", since=T0, lastBoot=T1),
        booting("RunningActions", "action 1 of 2", way="custom"),
        booting("NoDiscover", "BMC says On, no DISCOVER: cable, VLAN, or wrong MAC", since=T0),
        booting("BmcUnreachable", "no connection to 10.9.9.9"),
        booting("Booted", "a DISCOVER has arrived", status="True", since=T0),
        booting("Booted", "a DISCOVER has arrived", "Scheduled", status="True", since=T0),
    ]
    before = workflow("Pending")
    for stage in stages:
        workflows.on_change(stage, before)
        workflows.on_change(stage, copy.deepcopy(stage))  # a resync
        before = stage
    assert power(journey) == [
        (Outcome.INFO, "pxe (attempt 1): switching the machine off", "PoweringOff"),
        (Outcome.INFO, "pxe (attempt 1): switching the machine on", "PoweringOn"),
        (Outcome.INFO, "pxe (attempt 1): the machine is on", "WaitingForDiscover"),
        (Outcome.INFO, "action 1 of 2", "RunningActions"),
        (Outcome.WARNING, "BMC says On, no DISCOVER: cable, VLAN, or wrong MAC", "NoDiscover"),
        (Outcome.WARNING, "no connection to 10.9.9.9", "BmcUnreachable"),
        (Outcome.OK, "a DISCOVER has arrived", "Booted"),
    ]
    detail = journey.events(MAC)[0].detail
    assert (detail["way"], detail["attempt"], detail["workflow"]) == ("pxe", 1, "default/install")
    assert not journey.was_heard(MAC), "the machine itself has sent nothing"
    assert journey.last_sign(MAC) is None


UNREACHABLE = ("False", "BmcUnreachable", "the BMC is not cleaned up: no connection to 10.9.9.9", T1)
EJECTED = ("True", "CleanedUp", "the medium is ejected", T2)


def cleaned(status: str, reason: str, message: str, since: str, *, uid: str = "u1", released: bool = True) -> Raw:
    """Return a Workflow that has failed, with the result of its clean-up."""
    found = {"type": "BootCleanedUp", "status": status, "reason": reason, "message": message}
    obj = workflow("Failed", uid=uid, message="Failed", conditions=[found | {"lastTransitionTime": since}])
    obj["metadata"]["finalizers"] = [] if released else [BOOT_FINALIZER]
    return obj


def ended() -> Raw:
    """Return a Workflow that has failed and is not cleaned up yet."""
    obj = workflow("Failed", message="Failed")
    obj["metadata"]["finalizers"] = [BOOT_FINALIZER]
    return obj


def clean_ups(journey: Journey, mac: str = MAC) -> list[tuple[Outcome, str]]:
    return [(each.outcome, each.message) for each in journey.events(mac) if "clean_up" in each.detail]


NOT_CLEANED = (Outcome.WARNING, "after the workflow: the BMC is not cleaned up: no connection to 10.9.9.9")
CLEANED = (Outcome.OK, "after the workflow: the medium is ejected")


def restarted(first: Journey, clock: Any) -> Journey:
    """Return the journey of the next run of an edge, with the history of the run before."""
    clock.now += 60
    second = Journey(clock, began=clock.now)
    for mac in first.macs():
        for time, entry in first.after(mac, 0.0, 100):
            _, _, note = read(plain(Happened(time, mac, entry)))
            second.take_in(mac, time, note, now=False)
    return second


def test_clean_up_after_the_end_is_on_the_journey_once_and_is_no_sign_of_the_machine(journey, workflows):
    before = ended()
    for stage in (
        cleaned(*UNREACHABLE, released=False),
        cleaned(*EJECTED, released=False),
        cleaned(*EJECTED),
    ):
        workflows.on_change(stage, before)
        workflows.on_change(stage, copy.deepcopy(stage))  # a resync
        before = stage
    workflows.on_change(cleaned(*EJECTED), SHORT)
    assert clean_ups(journey) == [NOT_CLEANED, CLEANED]
    detail = journey.events(MAC)[-1].detail
    assert (detail["clean_up"], detail["since"]) == ("CleanedUp", T2)
    assert journey.last_sign(MAC) is None


def test_clean_up_in_the_same_change_as_the_end_is_on_the_journey_after_the_end(journey, workflows):
    workflows.on_change(cleaned(*EJECTED), workflow("Running"))
    assert messages(journey) == [f"{INSTALL} Failed", CLEANED[1]]


def test_clean_up_that_ended_while_the_edge_was_stopped_is_recorded_by_its_next_run_once(inventory, clock):
    first = Journey(clock)
    WorkflowJourney(first, inventory).on_change(ended(), workflow("Running"))
    second = restarted(first, clock)
    WorkflowJourney(second, inventory).on_change(cleaned(*EJECTED), None)
    assert clean_ups(second) == [CLEANED]
    third = restarted(second, clock)
    WorkflowJourney(third, inventory).on_change(cleaned(*EJECTED), None)
    assert clean_ups(third) == [CLEANED]


def test_failing_clean_up_that_goes_on_after_a_restart_is_not_recorded_again(inventory, clock):
    first = Journey(clock)
    WorkflowJourney(first, inventory).on_change(cleaned(*UNREACHABLE, released=False), ended())
    second = restarted(first, clock)
    workflows = WorkflowJourney(second, inventory)
    workflows.on_change(stage := cleaned(*UNREACHABLE, released=False), None)
    assert clean_ups(second) == [NOT_CLEANED]
    workflows.on_change(cleaned(*EJECTED), stage)
    assert clean_ups(second) == [NOT_CLEANED, CLEANED]


def test_clean_up_is_found_on_the_interface_that_the_workflow_was_recorded_on(inventory, clock):
    first = Journey(clock)
    WorkflowJourney(first, inventory).on_change(cleaned(*EJECTED), ended())
    first.record(OTHER, Step.DHCP, Outcome.OK, "offer")
    second = restarted(first, clock)
    WorkflowJourney(second, inventory).on_change(cleaned(*EJECTED), None)
    assert (clean_ups(second), clean_ups(second, OTHER)) == ([CLEANED], [])


def test_same_result_after_another_workflow_of_the_same_name_is_recorded(inventory, clock):
    first = Journey(clock)
    WorkflowJourney(first, inventory).on_change(cleaned(*EJECTED), ended())
    second = restarted(first, clock)
    WorkflowJourney(second, inventory).on_change(cleaned(*EJECTED[:3], "2026-11-21T10:00:00Z", uid="u2"), None)
    assert clean_ups(second) == [CLEANED, CLEANED]


def test_clean_up_of_a_workflow_that_the_journey_does_not_know_is_not_recorded(journey, workflows):
    journey.record(MAC, Step.DHCP, Outcome.OK, "offer")
    workflows.on_change(cleaned(*EJECTED), None)
    assert clean_ups(journey) == []


@pytest.mark.parametrize("reason", [*BootReason, *Cause])
def test_reason_of_bmc_control_is_a_warning_unless_the_boot_goes_on(
    journey: Journey, workflows: WorkflowJourney, reason: str
) -> None:
    is_done = reason in (BootReason.BOOTED, BootReason.ACTIONS_DONE)
    workflows.on_change(booting(reason, "m", status="True" if is_done else "False"), workflow("Pending"))
    problems = {
        BootReason.NO_DISCOVER,
        BootReason.OVERRIDE_LOST,
        BootReason.NO_BMC,
        BootReason.STEP_OVERDUE,
        *Cause,
    }
    expected = Outcome.OK if is_done else Outcome.WARNING if reason in problems else Outcome.INFO
    assert power(journey) == [(expected, "m", reason)]


def test_workflow_that_fails_before_its_machine_has_booted_ends_bmc_control(journey, workflows):
    before = booting("NoDiscover", "no DISCOVER")
    workflows.on_change(booting("NoDiscover", "no DISCOVER", "Failed"), before)
    assert power(journey) == [(Outcome.FAILED, "BMC control has given up: no DISCOVER", "NoDiscover")]
    assert messages(journey)[-1].startswith(f"{INSTALL} Failed"), "the Workflow ends after it"


def test_progress_of_bmc_control_is_not_recorded_again_after_a_restart(inventory, clock):
    stage = booting("NoDiscover", "no DISCOVER")
    first = Journey(clock)
    WorkflowJourney(first, inventory).on_change(stage, workflow("Pending"))
    second = restarted(first, clock)
    workflows = WorkflowJourney(second, inventory)
    workflows.on_change(stage, None)
    assert power(second) == [(Outcome.WARNING, "no DISCOVER", "NoDiscover")]
    workflows.on_change(booting("Booted", "late", status="True"), stage)
    assert power(second)[1:] == [(Outcome.OK, "late", "Booted")]
