"""The diagnoses: for each fault of `boots.yaml`, none for healthy boots, and their cost."""

from __future__ import annotations

import re
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
import yaml

from edge.journey.events import MAX_MESSAGE, Milestone, Note, Outcome, Step, Value
from edge.journey.expectations import Expectations, Facts, KnownNetworks, StepLimits, diagnose, read
from edge.journey.expectations.limits import KEPT, LIMITS
from edge.journey.recorder import Journey
from tests.interop.faults import boots, discovery, page, power, work
from tests.unit.journey.expectations.play import FACTS, HERE, MAC, MACHINE, Play

BOOTS = yaml.safe_load(Path(__file__).with_name("boots.yaml").read_text())
NO_WARNINGS = {"WrongClock", "DhcpRefused", "NoWorkflow", "NotApproved", "ActionSilent"}


def facts_of(given: dict[str, Any]) -> Facts:
    """Those of `play.py`, but for what a fault gives: parts of `registered`, and a network that a relay `relayed`."""
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    if registered := given.get("registered"):
        given["registered"] = replace(MACHINE, **registered)
    if relayed := given.pop("relayed", ""):
        given["network"] = replace(HERE, relayed=(IPv4Network(relayed),))
    return replace(FACTS, **given)


@pytest.mark.parametrize("fault", BOOTS["faults"], ids=lambda fault: fault["fault"])
def test_fault_is_named_truly_and_in_time(fault):
    play = Play(facts_of(fault.get("facts", {}))).act(fault["play"])
    before = play.found
    found = play.wait(fault.get("within", 10)).found
    logged = [event.message for event in play.journey.events(MAC)]
    assert found is not None, logged
    assert found.rule == fault["rule"], found.message
    assert re.search(fault["says"], found.message), found.message
    if before is not None and before.rule != "WrongClock":  # which is true all the time
        assert before.rule == fault["rule"], f"reported before: {before.message}"
    assert (found.outcome is Outcome.INFO) is (fault["rule"] in NO_WARNINGS)
    assert sum(found.message == line or found.facts == line for line in logged) == 1


@pytest.mark.parametrize(
    "steps", [*BOOTS["healthy"].values(), ["to_agent"], ["installed"]], ids=[*BOOTS["healthy"], "to_agent", "installed"]
)
def test_healthy_boot_has_no_warning(steps):
    play = Play().act(steps)
    assert play.warnings == [], [finding.message for _, finding in play.reported]
    if steps is BOOTS["healthy"]["vlan"]:
        assert len(read(MAC, play.journey.events(MAC)).boots) == 1, "a lease in a VLAN is no second boot"
    assert diagnose(read(MAC, []), FACTS) is None, "nor has a machine that nothing is known of"


def test_second_workflow_that_was_made_when_the_first_had_ended_is_no_warning():
    play = Play().installed().wait(60)
    play.facts = FACTS
    assert play.to_agent().workflow("Running").warnings == []


def test_u_boot_that_stops_is_named_with_its_own_port():
    play = Play()
    script = "boot script boot.scr.uimg"
    play.dhcp("offer", "U-Boot", script).dhcp("ack", "U-Boot", script)
    play.record(Step.SCRIPT, Outcome.OK, "script sent: OSIE default/lab", client="U-Boot", boots="osie").wait(60)
    assert play.warnings == ["NoKernelRequest"]
    assert "U-Boot has stopped" in play.found.message
    assert "udp/69" in play.found.message


def test_steps_of_discovery_hide_no_failure_and_are_none():
    play = Play().to_ipxe().script()
    play.record(Step.KERNEL, Outcome.FAILED, "OSIE default/o: kernelUrl http://mirror/k: 404 Not Found")
    play.record(Step.DISCOVERY, Outcome.OK, "approved: it is Hardware default/m1 now", discovery="approved")
    play.record(Step.DISCOVERY, Outcome.WARNING, "not as expected: a disk is missing", reason="DiskMissing")
    assert play.wait(30).warnings == ["KernelFailed"]


def test_port_with_requests_is_not_reported_as_blocked():
    # U-Boot asks for files of its own first, of which there are none.
    assert (
        Play().rom().record(Step.TFTP, Outcome.INFO, "TFTP pxelinux.cfg/default: no such file").wait(30).warnings == []
    )
    # A host that has much to do has not read the first packet yet.
    assert Play(replace(FACTS, arrived={"udp/69": 1})).rom().wait(30).warnings == []


def test_later_evidence_is_recorded_and_a_repetition_is_not():
    # Without a capture in front of the firewall, the finding must not claim that no packet came.
    play = Play().rom().wait(9)
    assert "udp/69 is blocked on the way, or by this host's firewall" in play.found.message
    play.facts = replace(FACTS, arrived={"udp/69": 4})
    play.wait(300)
    assert play.warnings == ["NoTFTPRequest"] * 2
    assert "this host's firewall drops udp/69 (arrived 4 times on eth1, but never at the edge)" in play.found.message
    settled = play.settled
    play.program().wait(1)
    assert play.settled > settled, "it is over when the machine gets on"
    assert play.expectations.of(MAC).finding is None
    outside = replace(MACHINE, ip="10.0.9.5", gateway="10.0.9.1")
    found = Play(replace(FACTS, registered=outside, network=KnownNetworks())).rom().wait(9).found
    assert "is not of this network" not in found.message, "no cause where no network is known"


def test_control_characters_in_names_are_removed():
    """It goes to the log, to terminals, into JSON, to the Hardware and to its Events."""
    name = "disk\x1b[2J\r\nforged: line\u202e" + "x" * 900
    finding = Play().to_agent().workflow("Running").action(name).wait(62).found
    assert (finding.rule, finding.message.isprintable()) == ("ActionSilent", True)
    assert len(finding.message) <= MAX_MESSAGE


def test_boot_program_that_ran_is_not_reported_as_refused_after_a_late_report():
    """The report of its start, a moment before, must not count as a new start either."""
    play = Play().rom().ipxe().record(Step.TFTP, Outcome.OK, "TFTP sent", name="snponly.efi", duration_seconds=6.5)
    play.wait(1).dhcp("offer", "PXE ROM", "boot file snponly.efi").wait(5)
    assert "ProgramNotStarted" not in play.warnings


def test_events_right_after_a_new_boot_do_not_hide_it():
    play = Play().to_agent().workflow("Running").action("disk", 1, 3).wait(12)
    play.dhcp("offer", "PXE ROM", "boot file snponly.efi").record(Step.AGENT, Outcome.INFO, "agent disconnected")
    assert play.wait(4).found.rule == "Interrupted"


def test_boots_that_all_ended_before_the_first_look_are_seen_at_it():
    play = Play()
    for stage in ("PXE ROM", "iPXE", "PXE ROM", "iPXE"):
        boot = "boot file snponly.efi" if stage == "PXE ROM" else "script http://10.0.0.1:7080/auto.ipxe"
        play.dhcp("offer", stage, boot).dhcp("ack", stage, boot)
        if stage == "PXE ROM":
            play.record(Step.TFTP, Outcome.OK, "TFTP sent snponly.efi", name="snponly.efi")
        play.now += 0.05
    play.dhcp("offer", "PXE ROM", "boot file snponly.efi")
    assert play.found is not None, "not only after the 15 s in which it may take the offer"
    assert play.found.rule == "BootLoop"


def test_output_of_an_action_does_not_hide_the_milestone():
    play = Play().to_agent().workflow("Running").action("disk", 1, 3)
    for number in range(400):
        play.record(Step.ACTION, Outcome.INFO, f"line {number}", action="disk", output=f"line {number}")
    events = play.journey.newest(MAC, 100)
    assert len(events) < 40
    assert [event.message for event in events][-2:] == ["action disk started (1 of 3)", "line 399"]
    assert play.wait(5).dhcp("offer", "PXE ROM", "boot file snponly.efi").wait(1).found.rule == "Interrupted"


def test_machine_that_starts_from_a_medium_without_dhcp_is_warned_about_nothing_and_each_start_is_a_boot():
    play = Play()
    for _ in range(2):
        play.record(Step.MEDIUM, Outcome.OK, "boot medium static.iso is sent", medium="static").wait(3)
        play.record(Step.SCRIPT, Outcome.OK, "script sent to its boot medium", medium="static", boots="osie")
        play.files().starts().wait(20).record(Step.BOOT, Outcome.INFO, "the OSIE is up", phase="up").agent()
        play.workflow("Running").action().wait(30).action_ends().workflow("Succeeded", Outcome.OK).wait(40)
    assert play.warnings == []
    story = read(MAC, play.journey.events(MAC))
    assert [Milestone.WORKFLOW_ENDED in boot.reached for boot in story.boots] == [True, True]
    assert all(Milestone.OFFERED not in boot.reached for boot in story.boots)


def by_uki(play: Play) -> Play:
    play.dhcp("offer", "HTTP Boot ROM", "boot file uki.efi").wait(4).dhcp("ack", "HTTP Boot ROM", "boot file uki.efi")
    name = "UKI of OSIE default/lab"
    play.record(Step.BINARY, Outcome.INFO, f"{name} requested", phase="begun", uki="yes", osie="default/lab").wait(20)
    return play.record(Step.BINARY, Outcome.OK, f"{name} sent", uki="yes", size_bytes=60_000_000)


def test_osie_in_one_program_is_kernel_and_initrd_and_warned_about_where_it_is_refused():
    play = by_uki(Play()).osie(40).agent()
    play.workflow("Running").action().wait(30).action_ends().workflow("Succeeded", Outcome.OK)
    assert play.warnings == []
    refused = by_uki(Play()).wait(100)
    assert refused.warnings == ["ProgramSilent"]
    assert refused.found.message.startswith("has the UKI, but has sent nothing for")
    assert "Secure Boot refuses it" in refused.found.message
    assert "ProgramNotStarted" in by_uki(by_uki(Play()).wait(10)).warnings
    # By TFTP, it is no boot program either.
    play, name = Play().rom(), "UKI of OSIE default/lab"
    play.record(Step.TFTP, Outcome.INFO, f"TFTP {name} requested", phase="begun", name=name, file_bytes=60_000_000)
    play.wait(55).record(Step.TFTP, Outcome.OK, f"TFTP sent {name}", name=name)
    assert play.osie(60).agent().warnings == []


# --- until when, and what it costs ---


def test_limit_follows_the_last_boots_of_the_same_kind_within_its_bounds():
    limits, usual = StepLimits(), LIMITS[Milestone.KERNEL_STARTED]
    assert limits.after(Milestone.KERNEL_STARTED, "lab QEMU") == usual.usual
    limits.learn("lab QEMU", Milestone.KERNEL_STARTED, 12.0)
    assert limits.after(Milestone.KERNEL_STARTED, "lab QEMU") == 36.0
    assert limits.after(Milestone.KERNEL_STARTED, "lab Other") == usual.usual
    limits.learn("lab QEMU", Milestone.KERNEL_STARTED, 4000.0)
    assert limits.after(Milestone.KERNEL_STARTED, "lab QEMU") == usual.most
    for _ in range(8):
        limits.learn("lab QEMU", Milestone.KERNEL_STARTED, 0.1)
    assert limits.after(Milestone.KERNEL_STARTED, "lab QEMU") == usual.least
    for number in range(2 * KEPT):
        limits.learn(f"kind {number}", Milestone.KERNEL_STARTED, 1.0)
    assert limits.usual(Milestone.KERNEL_STARTED, "kind 0") is None, "what is learned is bounded"
    assert limits.usual(Milestone.KERNEL_STARTED, f"kind {2 * KEPT - 1}") == 1.0


def test_kernel_that_hangs_is_named_sooner_where_boots_were_seen():
    play = Play()
    for _ in range(2):
        play.installed().wait(30)
        play.facts = FACTS
    play.to_kernel()
    began = play.now
    while play.found is None or play.found.rule != "KernelSilent":
        assert play.now - began < 80, "as late as for a machine that was never seen"
        play.wait(1)
    assert 55 <= play.now - began <= 70  # three times the 20 s that it took


def test_one_look_at_each_machine_is_enough_for_any_number_of_its_packets():
    play = Play()
    for _ in range(200):
        play.dhcp("offer", "operating system")
    looked: list[str] = []
    last_entry = play.journey.last_entry
    play.journey.last_entry = lambda mac: (looked.append(mac), last_entry(mac))[1]
    play.sweep()
    assert looked == [MAC]


def test_crowd_that_fails_together_is_looked_at_a_few_at_a_time():
    now, spent = [1000.0], [0.0]
    journey = Journey(lambda: now[0])
    reported: list[str] = []

    def facts(_story: object, at: float, limit: object) -> Facts:
        spent[0] += 0.001  # each takes a millisecond
        return Facts(now=at, registered=FACTS.registered, limit=limit)

    expectations = Expectations(
        journey, facts, lambda mac, finding: reported.append(mac) if finding else None, lambda: now[0],
        elapsed=lambda: spent[0],
    )  # fmt: skip
    for number in range(200):
        mac = f"52:54:00:00:01:{number:02x}"
        journey.record(mac, Step.DHCP, Outcome.OK, "DHCPACK", stage="PXE ROM", dhcp="ack", boot="boot file x")
    list(expectations.sweep())
    now[0] += 9
    for _ in expectations.sweep():
        spent[0] += 0.01  # others have much to do
    assert 10 <= len(reported) <= 25, "as many as fit into a sweep beside others"
    turns = 0
    while len(set(reported)) < 200:
        turns += sum(1 for _ in expectations.sweep())  # the event loop is idle otherwise
    assert turns >= 50, "with turns for others in between"


# --- a machine that has gone on with another edge: that one sees it and says what is wrong, this one shows it ---


def received(play: Play, step: Step, outcome: Outcome, message: str, kind: str = "edge", **detail: Value) -> None:
    """Another process has seen this, now."""
    logged = {**detail, "seen_by": "10.0.0.2", "seen_by_kind": kind}
    assert play.journey.take_in(MAC, play.now, Note(step, outcome, message, logged))


def test_machine_that_continues_with_another_edge_is_not_reported_as_silent_and_one_that_stays_is():
    play = Play().rom()
    received(play, Step.TFTP, Outcome.INFO, "TFTP requested", phase="begun")
    received(play, Step.TFTP, Outcome.OK, "TFTP sent")
    assert play.wait(300).warnings == []
    play = Play()
    received(play, Step.DHCP, Outcome.OK, "offer", stage="PXE ROM", dhcp="offer")
    assert play.wait(1).rom().wait(12).warnings == ["NoTFTPRequest"]
    before = play.settled
    received(play, Step.TFTP, Outcome.INFO, "TFTP requested", phase="begun")
    assert play.wait(30).settled == before + 1, "the diagnosis of this edge is withdrawn once"


def test_diagnosis_of_another_edge_is_shown_here_and_recorded_by_it_alone():
    play = Play()
    received(play, Step.DHCP, Outcome.OK, "ack", stage="PXE ROM", dhcp="ack")
    play.wait(9)
    received(play, Step.TFTP, Outcome.WARNING, "asked no TFTP", rule="NoTFTPRequest")
    play.wait(20)
    awaited = play.expectations.of(MAC)
    assert (awaited.finding.rule, awaited.finding.message) == ("NoTFTPRequest", "asked no TFTP")
    assert (play.reported, play.settled) == ([], 0)
    received(play, Step.TFTP, Outcome.INFO, "TFTP requested", phase="begun")
    play.wait(3)
    assert (awaited.finding, play.reported, play.settled) == (None, [], 0)


def test_agent_of_a_separate_server_counts_as_connected():
    play = Play().to_kernel().osie()
    received(play, Step.AGENT, Outcome.OK, "agent connected", kind="server")
    play.wait(5).workflow("Running").action()
    received(play, Step.ACTION, Outcome.INFO, "a line", kind="server", output="a line", action="disk")
    assert play.wait(40).warnings == []


# --- docs/engineering/faults.md, where operators look for what they read ---


def test_documentation_has_the_message_of_each_fault_and_no_other():
    faults, reported = [*boots.FAULTS, *work.FAULTS, *power.FAULTS, *discovery.FAULTS], page.reported()
    assert list(reported) == [fault.name for fault in faults], "write it anew: TINKEDGE_RECORD=1, tests/interop/faults"
    for fault in faults:
        reason, _, sentence = reported[fault.name].partition(": ")
        assert re.fullmatch(fault.rules, reason.strip("`")), fault.name
        assert re.search(page.expected(fault), sentence), fault.name
