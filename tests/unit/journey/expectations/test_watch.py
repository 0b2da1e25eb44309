"""Who is awaited until when: what packets cost, what is learned, and what a crowd can't do."""

from __future__ import annotations

from edge.journey.events import Outcome, Step
from edge.journey.expectations import Expectations, Facts, Limits, diagnose, read
from edge.journey.expectations.limits import KEPT, LIMITS
from edge.journey.recorder import Journey
from edge.journey.steps import Milestone
from tests.unit.journey.expectations.play import FACTS, MAC, Play


def test_limit_follows_the_last_boots_of_the_same_kind_within_its_bounds() -> None:
    limits, usual = Limits(), LIMITS[Milestone.KERNEL_STARTED]
    assert limits.after(Milestone.KERNEL_STARTED, "lab QEMU") == usual.usual
    limits.learn("lab QEMU", Milestone.KERNEL_STARTED, 12.0)
    assert limits.after(Milestone.KERNEL_STARTED, "lab QEMU") == 36.0
    assert limits.after(Milestone.KERNEL_STARTED, "lab Other") == usual.usual
    limits.learn("lab QEMU", Milestone.KERNEL_STARTED, 4000.0)
    assert limits.after(Milestone.KERNEL_STARTED, "lab QEMU") == usual.most
    for _ in range(8):
        limits.learn("lab QEMU", Milestone.KERNEL_STARTED, 0.1)
    assert limits.after(Milestone.KERNEL_STARTED, "lab QEMU") == usual.least


def test_what_is_learned_is_bounded() -> None:
    limits = Limits()
    for number in range(2 * KEPT):
        limits.learn(f"kind {number}", Milestone.KERNEL_STARTED, 1.0)
    assert limits.usual(Milestone.KERNEL_STARTED, "kind 0") is None
    assert limits.usual(Milestone.KERNEL_STARTED, f"kind {2 * KEPT - 1}") == 1.0


def test_kernel_that_hangs_is_named_sooner_where_boots_were_seen() -> None:
    play = Play()
    for _ in range(2):
        play.installed().wait(30)
        play.facts = FACTS
    began = play.now
    play.to_kernel()
    began = play.now
    while play.found is None or play.found.rule != "KernelSilent":
        assert play.now - began < 80, "as late as for a machine that was never seen"
        play.wait(1)
    assert 55 <= play.now - began <= 70  # three times the 20 s that it took


def test_one_look_at_each_machine_is_enough_for_any_number_of_its_packets() -> None:
    play = Play()
    for _ in range(200):
        play.dhcp("offer", "operating system")
    looked: list[str] = []
    last_entry = play.journey.last_entry
    play.journey.last_entry = lambda mac: (looked.append(mac), last_entry(mac))[1]  # type: ignore[method-assign]
    play.sweep()
    assert looked == [MAC]


def test_what_comes_right_after_a_new_boot_does_not_hide_it() -> None:
    play = Play()
    play.to_agent().workflow("Running").action("disk", 1, 3).wait(12)
    play.dhcp("offer", "PXE ROM", "boot file snponly.efi").record(Step.AGENT, Outcome.INFO, "agent disconnected")
    play.wait(4)
    assert play.found is not None
    assert play.found.rule == "Interrupted"


def test_boots_that_all_ended_before_the_first_look_are_seen_at_it() -> None:
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


def test_crowd_that_fails_together_is_looked_at_a_few_at_a_time() -> None:
    now, spent = [1000.0], [0.0]
    journey = Journey(lambda: now[0])
    said: list[str] = []

    def facts(_story: object, at: float, limit: object) -> Facts:
        spent[0] += 0.001  # each takes a millisecond
        return Facts(now=at, registered=FACTS.registered, limit=limit)  # type: ignore[arg-type]

    expectations = Expectations(
        journey, facts, lambda mac, finding: said.append(mac) if finding else None, lambda: now[0],
        elapsed=lambda: spent[0],
    )  # fmt: skip
    for number in range(200):
        mac = f"52:54:00:00:01:{number:02x}"
        journey.record(mac, Step.DHCP, Outcome.OK, "DHCPACK", stage="PXE ROM", dhcp="ack", boot="boot file x")
    list(expectations.sweep())
    now[0] += 9
    for _ in expectations.sweep():
        spent[0] += 0.01  # others have much to do
    assert 10 <= len(said) <= 25, "as many as fit into a sweep beside others"
    turns = 0
    while len(set(said)) < 200:
        turns += sum(1 for _ in expectations.sweep())  # nobody else has anything to do
    assert turns >= 50, "with turns for others in between"


def test_machine_that_nothing_is_known_of_has_no_finding() -> None:
    assert diagnose(read(MAC, []), FACTS) is None


def test_what_an_action_prints_does_not_hide_where_the_boot_is() -> None:
    play = Play()
    play.to_agent().workflow("Running").action("disk", 1, 3)
    for number in range(400):
        play.record(Step.ACTION, Outcome.INFO, f"line {number}", action="disk", output=f"line {number}")
    events = play.journey.newest(MAC, 100)
    assert len(events) < 40
    assert [event.message for event in events][-2:] == ["action disk started (1 of 3)", "line 399"]
    play.wait(5).dhcp("offer", "PXE ROM", "boot file snponly.efi").wait(1)
    assert play.found is not None
    assert play.found.rule == "Interrupted"


def test_machine_that_starts_from_a_medium_without_dhcp_is_warned_about_nothing_and_each_start_is_a_boot() -> None:
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
    play.record(
        Step.BINARY, Outcome.INFO, "UKI of OSIE default/lab asked for", phase="begun", uki="yes", osie="default/lab"
    )
    return play.wait(20).record(
        Step.BINARY, Outcome.OK, "UKI of OSIE default/lab sent", uki="yes", size_bytes=60_000_000
    )


def test_osie_in_one_program_is_kernel_and_initrd_and_warned_about_where_it_is_refused() -> None:
    play = by_uki(Play()).osie(40).agent()
    play.workflow("Running").action().wait(30).action_ends().workflow("Succeeded", Outcome.OK)
    assert play.warnings == []
    refused = by_uki(Play()).wait(100)
    assert refused.warnings == ["ProgramSilent"]
    assert refused.found is not None
    assert refused.found.message.startswith("has got the UKI, and nothing was heard of it since")
    assert "Secure Boot refuses it" in refused.found.message
    again = by_uki(by_uki(Play()).wait(10))
    assert "ProgramNotStarted" in again.warnings


def test_the_same_by_tftp_is_no_boot_program_either() -> None:
    play, name = Play().rom(), "UKI of OSIE default/lab"
    play.record(Step.TFTP, Outcome.INFO, f"TFTP {name} asked for", phase="begun", name=name, file_bytes=60_000_000)
    play.wait(55).record(Step.TFTP, Outcome.OK, f"TFTP sent {name}", name=name)
    assert play.osie(60).agent().warnings == []
