"""What is said of each fault of the table (`faults`), and that nothing is said of machines that boot well."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from edge.journey.events import MAX_MESSAGE
from edge.journey.expectations import Network, read
from edge.journey.steps import Outcome, Step
from tests.unit.journey.expectations.faults import FAULTS, NO_WARNINGS, OUTSIDE, Fault
from tests.unit.journey.expectations.play import FACTS, MAC, Play


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_named_truly_and_in_time(fault: Fault) -> None:
    play = Play(fault.facts)  # type: ignore[arg-type]
    fault.play(play)
    before = play.found
    play.wait(fault.seconds)
    found = play.found
    assert found is not None, [event.message for event in play.journey.events(MAC)]
    assert found.rule == fault.rule, found.message
    assert re.search(fault.sentence, found.message), found.message
    if before is not None and before.rule != "WrongClock":  # which is true all the time
        assert before.rule == fault.rule, f"said before: {before.message}"
    assert (found.outcome is Outcome.INFO) is (fault.rule in NO_WARNINGS)
    told = [event.message for event in play.journey.events(MAC)]
    assert sum(found.message == line or found.facts == line for line in told) == 1


def slow_switch(play: Play) -> None:
    """A port without portfast: 30 s of silence each time that the link goes up."""
    play.rom().program().wait(30).ipxe().script().files().starts().osie(70).agent()


def shim_and_grub(play: Play) -> None:
    play.rom().program("snponly-shim.efi")
    for name in ("revocations_sku.efi", "revocations_sbat.efi", "shim_certificate_0.efi"):
        play.record(Step.TFTP, Outcome.INFO, f"TFTP {name}: no such file", client_ip="10.0.0.5")
    play.program("grubx64.efi").program("grub/grub.cfg").file(Step.KERNEL, 80).file(Step.INITRD, 50).osie(40).agent()


def ipxe_in_rom(play: Play) -> None:
    play.ipxe().script().files().starts().osie().agent()


def vlan(play: Play) -> None:
    play.to_ipxe().script().ipxe().script().files().starts().osie().agent()


def size_is_asked_first(play: Play) -> None:
    play.rom().record(Step.TFTP, Outcome.INFO, "asked for", phase="begun", name="snponly.efi")
    play.record(Step.TFTP, Outcome.INFO, "told the size", name="snponly.efi").wait(1)
    play.record(Step.TFTP, Outcome.OK, "sent", name="snponly.efi").ipxe().script().files().starts().osie().agent()


def ends_are_told_late(play: Play) -> None:
    """A busy edge hears the last acknowledgement after what the machine did next."""
    play.to_ipxe().script().record(Step.KERNEL, Outcome.INFO, "kernel asked for", phase="begun", osie="default/lab")
    play.wait(2).record(Step.INITRD, Outcome.INFO, "initrd asked for", phase="begun", osie="default/lab")
    play.record(Step.KERNEL, Outcome.OK, "kernel sent", size_bytes=14_000_000).wait(30).starts()
    play.record(Step.INITRD, Outcome.OK, "initrd sent", size_bytes=14_000_000).osie().agent()


def reboots_twice(play: Play) -> None:
    """An action kexecs; the last one reboots; the machine then boots from its disk, and renews its lease."""
    play.to_agent().workflow("Running").action("kexec", 1, 2).wait(3).action_ends().action("reboot", 2, 2)
    play.wait(30).record(Step.DHCP, Outcome.REFUSED, "DHCPOFFER to PXE ROM, local boot, because it may not netboot")
    play.wait(20).dhcp("offer", "operating system").dhcp("ack", "operating system")
    play.record(Step.METADATA, Outcome.OK, "user-data sent").workflow("Succeeded", Outcome.OK)


def last_action_reboots(play: Play) -> None:
    """It netboots once more, and its agent tells that the action has ended."""
    play.to_agent().workflow("Running").action("disk", 1, 2).wait(3).action_ends().action("reboot", 2, 2).wait(2)
    play.to_agent().workflow("Succeeded", Outcome.OK)


def installed_twice(play: Play) -> None:
    """A second Workflow was made for it when the first had ended."""
    play.installed().wait(60)
    play.facts = FACTS
    play.to_agent().workflow("Running")


def boots_from_disk(play: Play) -> None:
    play.installed().wait(60).dhcp("offer", "operating system").dhcp("ack", "operating system").wait(300)


def over_ipv6(play: Play) -> None:
    """EDK2 waits 10 s for a default router, and iPXE 15 s for a DHCPv4 server; neither is there."""
    rom, script = "boot file tftp://[fd00::1]/snponly.efi", "script http://[fd00::1]:7080/ipxe/script/x/auto.ipxe"
    play.dhcp("advertise", "firmware").dhcp("reply", "firmware").wait(2)
    play.dhcp("advertise", "PXE ROM", rom).dhcp("reply", "PXE ROM", rom).wait(12.5).program().wait(2)
    play.dhcp("advertise", "iPXE", script).dhcp("reply", "iPXE", script).wait(15.5).script().files().starts()
    play.wait(20).dhcp("advertise", "operating system").dhcp("reply", "operating system").agent()


def u_boot(play: Play) -> None:
    """It asks for an address for each way that it tries; in one it fetches the initrd first."""
    script = "boot script boot.scr.uimg"
    play.dhcp("offer", "U-Boot", script).dhcp("ack", "U-Boot", script).script().wait(1)
    play.dhcp("offer", "U-Boot", script).dhcp("ack", "U-Boot", script).script().script().wait(1)
    play.file(Step.INITRD).file(Step.KERNEL, 7).osie().agent()


def raspberry_pi(play: Play) -> None:
    """Its settings come first, and once more when the firmware runs."""
    play.dhcp("offer", "PXE ROM", "Raspberry Pi firmware by TFTP").wait(1)
    play.dhcp("ack", "PXE ROM", "Raspberry Pi firmware by TFTP").script().program("start4.elf")
    play.program("fixup4.dat").script().program("bcm2711-rpi-4-b.dtb").program("cmdline.txt")
    play.file(Step.KERNEL, 8).file(Step.INITRD, 15).osie(30).agent()


HEALTHY = [u_boot, raspberry_pi,
           over_ipv6, ends_are_told_late, Play.to_agent, Play.installed, slow_switch, shim_and_grub, ipxe_in_rom, vlan,
           size_is_asked_first, reboots_twice, last_action_reboots, installed_twice, boots_from_disk]  # fmt: skip


@pytest.mark.parametrize("boot", HEALTHY, ids=lambda boot: boot.__name__)
def test_healthy_boot_has_no_warning(boot: Callable[[Play], object]) -> None:
    play = Play()
    boot(play)
    assert play.warnings == [], [finding.message for _, finding in play.said]


def test_u_boot_that_stops_is_named_with_its_own_port() -> None:
    play = Play()
    script = "boot script boot.scr.uimg"
    play.dhcp("offer", "U-Boot", script).dhcp("ack", "U-Boot", script)
    play.record(Step.SCRIPT, Outcome.OK, "script sent: OSIE default/lab", client="U-Boot", boots="osie").wait(60)
    assert play.warnings == ["NoKernelRequest"]
    assert play.found is not None
    assert "U-Boot has stopped" in play.found.message
    assert "udp/69" in play.found.message


def test_port_from_which_something_was_asked_is_not_said_to_be_blocked() -> None:
    """U-Boot asks for files of its own first, of which there are none."""
    play = Play()
    play.rom().record(Step.TFTP, Outcome.INFO, "TFTP pxelinux.cfg/default: no such file").wait(30)
    assert play.warnings == []


def test_lease_in_a_vlan_is_no_second_boot() -> None:
    play = Play()
    vlan(play)
    assert len(read(MAC, play.journey.events(MAC)).boots) == 1


def test_warning_ends_when_the_machine_gets_on() -> None:
    play = Play()
    play.rom().wait(9)
    assert play.warnings == ["NoTFTPRequest"]
    settled = play.settled
    play.program().wait(1)
    assert play.settled > settled
    awaited = play.expectations.of(MAC)
    assert awaited is not None
    assert awaited.finding is None


def test_evidence_that_comes_later_is_said_and_the_same_again_is_not() -> None:
    """Nobody had looked in front of the firewall in time: then it is not said that nothing came."""
    play = Play()
    play.rom().wait(9)
    assert play.found is not None
    assert "udp/69 is blocked on the way, or by this host's firewall" in play.found.message
    play.facts = replace(FACTS, arrived={"udp/69": 4})
    play.wait(300)
    assert play.warnings == ["NoTFTPRequest"] * 2
    assert "this host's firewall drops udp/69 (arrived 4 times on eth1, and never here)" in play.found.message


def test_what_names_hold_moves_no_cursor_and_begins_no_line() -> None:
    """It goes to the log, to terminals, into JSON, to the Hardware and to its Events."""
    play = Play()
    play.to_agent().workflow("Running").action("disk\x1b[2J\r\nforged: line\u202e" + "x" * 900).wait(62)
    finding = play.found
    assert finding is not None
    assert finding.rule == "ActionSilent"
    assert finding.message.isprintable()
    assert len(finding.message) <= MAX_MESSAGE


def test_machine_whose_first_packet_has_just_come_is_not_said_to_be_silent() -> None:
    """A host that has much to do has not read it yet."""
    play = Play(replace(FACTS, arrived={"udp/69": 1}))
    play.rom().wait(30)
    assert play.warnings == []


def test_boot_program_that_ran_is_not_said_to_be_refused_because_its_end_was_told_late() -> None:
    """Nor that it began, for that was told a moment ago."""
    play = Play()
    play.rom().ipxe().record(Step.TFTP, Outcome.OK, "TFTP sent", name="snponly.efi", duration_seconds=6.5)
    play.wait(1).dhcp("offer", "PXE ROM", "boot file snponly.efi").wait(5)
    assert "ProgramNotStarted" not in play.warnings


def test_unserved_network_is_no_cause_where_none_is_known() -> None:
    play = Play(replace(FACTS, registered=OUTSIDE, network=Network()))
    play.rom().wait(9)
    assert play.found is not None
    assert "is not of this network" not in play.found.message
