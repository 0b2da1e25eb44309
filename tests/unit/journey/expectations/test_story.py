"""Where one boot ends and the next begins, and which Workflow each is for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge.journey.events import Milestone, Outcome, Step
from edge.journey.expectations import StepLimits, Story, read
from edge.page.timeline import chains, events_of, timeline
from tests.unit.journey.expectations.play import FACTS, MAC, Play

ONE, TWO = "default/one", "default/two"


def workflow(play: Play, name: str, state: str, outcome: Outcome = Outcome.INFO) -> Play:
    return play.record(Step.WORKFLOW, outcome, f"workflow {name}: {state}", state=state, workflow=name)


def runs(play: Play, name: str, *, ends: bool = True) -> Play:
    """One Workflow of one action, which prints its Workflow's name."""
    workflow(play, name, "Running")
    detail = {"action": "disk", "number": 1, "of": 1, "workflow": name}
    play.record(Step.ACTION, Outcome.INFO, "action disk started", state="Running", **detail).wait(5)
    play.record(Step.ACTION, Outcome.INFO, name, output=f"output of {name}", **detail).wait(5)
    if ends:
        play.record(Step.ACTION, Outcome.OK, "action disk succeeded", state="Succeeded", **detail)
        workflow(play, name, "Succeeded", Outcome.OK)
    return play


def logged(play: Play) -> Story:
    return read(MAC, play.journey.newest(MAC, 150))


def in_rom(play: Play) -> Play:
    """A netboot with iPXE in the card's ROM: nothing of firmware comes before it."""
    return play.ipxe().script().files().starts().osie().agent()


def test_netboot_for_a_second_workflow_is_a_timeline_of_its_own_with_ipxe_in_the_cards_rom():
    """It was drawn as the first start of what had been installed, for its OSIE asks for an address, too."""
    play = runs(in_rom(Play()), ONE).wait(60)
    workflow(play, TWO, "Pending")
    runs(in_rom(play.wait(60)), TWO)
    first, second = chains(logged(play))
    assert [chain.workflows for chain in (first, second)] == [{ONE}, {TWO}]
    drawn = timeline(first, play.now, StepLimits(), None)
    assert drawn.seconds < 120, "the wait between the two belongs to neither"
    assert not any("workflow default/two" in event.message for boot in first.boots for event in boot.events)
    assert second.boots[0].events[0].message == "workflow default/two: Pending"


def test_first_start_of_an_installed_system_belongs_to_the_workflow_that_installed_it():
    play = runs(in_rom(Play()), ONE).wait(40)
    workflow(play, TWO, "Pending")
    play.dhcp("offer", "operating system").dhcp("ack", "operating system")
    (chain,) = chains(logged(play))
    assert [Milestone.WORKFLOW_ENDED in boot.reached for boot in chain.boots] == [True, False]


def test_second_workflow_of_an_agent_that_stays_is_a_timeline_of_its_own_which_knows_its_osie():
    play = runs(in_rom(Play()), ONE).wait(60)
    workflow(play, TWO, "Scheduled")
    runs(play, TWO, ends=False)
    first, second = logged(play).boots
    assert (first.workflow, second.workflow, second.continues) == (ONE, TWO, True)
    assert (first.at, second.at) == (Milestone.WORKFLOW_ENDED, Milestone.ACTION_BEGUN)
    assert (second.detail_of("osie"), second.detail_of("model")) == ("default/lab", "QEMU Standard PC")
    assert [event.message for event in second.events[:2]] == [
        "workflow default/two: Scheduled",
        "workflow default/two: Running",
    ]
    assert len(chains(logged(play))) == 2
    assert play.warnings == []


def test_workflow_that_is_created_again_under_the_same_name_is_a_timeline_of_its_own():
    play = runs(runs(in_rom(Play()), ONE).wait(30), ONE)
    assert [boot.workflow for boot in logged(play).boots] == [ONE, ONE]


def test_workflow_that_replaces_a_deleted_one_in_the_same_osie_is_a_timeline_of_its_own():
    play = runs(in_rom(Play()), ONE, ends=False)
    play.record(Step.WORKFLOW, Outcome.INFO, "workflow default/one: deleted", workflow=ONE).wait(5)
    assert [boot.workflow for boot in logged(runs(play, TWO)).boots] == [ONE, TWO]


def test_output_of_each_workflow_is_among_its_own_events_alone():
    play = runs(in_rom(Play()), ONE).wait(30)
    runs(play, TWO)
    first, second = chains(logged(play))
    events = play.journey.events(MAC)
    printed = [
        [event.detail["output"] for event in events_of(chain, after, events) if "output" in event.detail]
        for chain, after in ((first, second), (second, None))
    ]
    assert printed == [["output of default/one"], ["output of default/two"]]


@pytest.mark.parametrize("state", ["Failed", "Canceled"])
def test_workflow_that_ends_without_having_run_does_not_end_the_one_that_runs(state):
    play = runs(in_rom(Play()), ONE, ends=False)
    workflow(play, TWO, state, Outcome.FAILED if state == "Failed" else Outcome.INFO)
    (boot,) = logged(play).boots
    assert (boot.at, boot.workflow) == (Milestone.ACTION_BEGUN, ONE)


def test_template_that_fails_while_the_machine_boots_does_not_end_the_boot():
    play = Play().ipxe()
    workflow(play, ONE, "Failed", Outcome.FAILED)
    in_rom_at = logged(play).boot.at
    assert in_rom_at is Milestone.IPXE_LEASED
    play.script().files().starts()
    assert logged(play).boot.at is Milestone.KERNEL_STARTED


def test_renewed_lease_of_an_osie_between_two_workflows_is_no_boot():
    play = runs(in_rom(Play()), ONE).wait(30).dhcp("ack", "operating system")
    assert len(logged(runs(play, TWO)).boots) == 2


# --- what is late, and what is forgotten ---


def test_action_that_prints_is_not_overdue_however_long_it_runs():
    play = in_rom(Play())
    workflow(play, ONE, "Running")
    play.action("disk", 1, 2)
    for number in range(40):
        play.wait(5).record(Step.ACTION, Outcome.INFO, f"{number} %", action="disk", output=f"{number} %")
        play.record(Step.LOG, Outcome.INFO, "a line of its kernel", lines="a line")
    awaited = play.expectations.of(MAC)
    assert (awaited.due > play.now, awaited.next) == (True, "end of the action, or output of it")
    assert play.warnings == []
    assert play.wait(65).found.rule == "ActionSilent"
    assert "its last output 6" in play.found.message, "a line that the machine logs is no output of the action"
    assert 4 <= play.now - awaited.due <= 6


def test_step_that_does_not_come_is_overdue_since_it_was_due():
    play = Play().to_ipxe().script().wait(32)
    awaited = play.expectations.of(MAC)
    assert (awaited.next, round(play.now - awaited.due)) == ("kernel request", 22)
    assert play.found.began == pytest.approx(play.now - 32)


def test_machine_whose_hardware_was_deleted_is_not_diagnosed():
    play = Play().to_ipxe().script().wait(20)
    assert play.found.rule == "NoKernelRequest"
    settled = play.settled
    play.facts = replace(FACTS, registered=None)
    play.expectations.forget(MAC)
    assert (play.settled, play.expectations.of(MAC).finding) == (settled + 1, None)
    warnings = len(play.warnings)
    play.wait(300)
    assert len(play.warnings) == warnings
    assert play.expectations.of(MAC).at is None
    # Registered again, it begins with what it does then.
    play.facts = FACTS
    assert len(play.ipxe().script().wait(1).warnings) == warnings
    assert play.expectations.of(MAC).at is Milestone.SCRIPT_SENT
    assert play.wait(20).found.rule == "NoKernelRequest"


def test_ipxe_that_solicits_a_router_is_not_reported_as_blocked_until_it_gives_up():
    play = Play().ipxe()
    for second in range(1, 18):
        play.facts = replace(FACTS, solicited=play.now - 0.5 if second in (1, 3, 7) else play.facts.solicited)
        assert play.wait(1).warnings == []
    assert play.script().warnings == []
    # An iPXE that still solicits waits for a router, but not without limit.
    play = Play().ipxe()
    for _ in range(39):
        play.facts = replace(FACTS, solicited=play.now)
        assert play.wait(1).warnings == []
    assert play.wait(25).warnings == ["NoScriptRequest"]
    assert "IPv6" not in play.found.message
