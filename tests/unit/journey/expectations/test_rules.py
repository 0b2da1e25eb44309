"""The table of faults: what a machine does, what is said of it then, and how many seconds after it could be known."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from ipaddress import IPv4Network

import pytest

from edge.journey.expectations import Network, Registered, read
from edge.journey.steps import Outcome, Step
from tests.unit.journey.expectations.play import FACTS, HERE, MAC, MACHINE, Play

OUTSIDE = Registered("default/m1", "10.0.9.5", "255.255.255.0", "10.0.9.1")
STRANGER = replace(FACTS, registered=None, workflow="")


@dataclass(frozen=True)
class Fault:
    """`play` ends where the fault begins to be one; within `seconds` the sentence has to be there."""

    name: str
    play: Callable[[Play], object]
    rule: str
    sentence: str
    seconds: float = 10.0
    facts: object = FACTS


def unregistered(play: Play) -> None:
    play.record(Step.SEEN, Outcome.INFO, "seen, not registered: DHCPDISCOVER")


def refused(play: Play) -> None:
    play.record(Step.DHCP, Outcome.REFUSED, "DHCPOFFER to PXE ROM, nothing to boot: disableNetboot is true")


def waits_for_upstream(play: Play) -> None:
    play.to_ipxe().script().record(Step.KERNEL, Outcome.INFO, "kernel asked for", phase="begun")
    play.wait(5).record(Step.KERNEL, Outcome.INFO, "waiting", phase="progress", received_bytes=0, upstream="mirror")


def upstream_stops(play: Play) -> None:
    play.to_ipxe().script().record(Step.KERNEL, Outcome.INFO, "kernel asked for", phase="begun")
    for received in (4_000_000, 8_000_000, 8_000_000):
        play.wait(5)
        play.record(Step.KERNEL, Outcome.INFO, "far", phase="progress", received_bytes=received, upstream="mirror")


def upstream_fails(play: Play) -> None:
    play.to_ipxe().script().record(Step.KERNEL, Outcome.INFO, "kernel asked for", phase="begun")
    play.record(Step.KERNEL, Outcome.FAILED, "OSIE default/lab: kernelUrl http://mirror/k: 404 Not Found")


def tftp_is_silent(play: Play) -> None:
    play.rom().record(Step.TFTP, Outcome.INFO, "asked for", phase="begun", name="snponly.efi")
    play.wait(4)
    play.record(
        Step.TFTP, Outcome.INFO, "no acknowledgement", phase="progress", name="snponly.efi", silent_seconds=4.1,
        position="block 12 of 200", acknowledged=1,
    )  # fmt: skip


def restarts(play: Play, count: int) -> None:
    for _ in range(count):
        play.to_kernel().wait(8)
    play.dhcp("offer", "PXE ROM", "boot file snponly.efi")


def restarts_within_a_second(play: Play) -> None:
    """IPXE in the card's ROM, as QEMU has it: between two sweeps it has its lease and its script."""
    url = "script http://10.0.0.1:7080/ipxe/script/x/auto.ipxe"
    play.ipxe().script().files().starts().wait(36)
    play.dhcp("offer", "iPXE", url).dhcp("ack", "iPXE", url).script()


def power_is_lost(play: Play) -> None:
    play.to_agent().workflow("Running").action("disk", 1, 3).wait(12)
    play.dhcp("offer", "PXE ROM", "boot file snponly.efi")


def boots_again(play: Play) -> None:
    play.installed().wait(30).rom()


def prints_nothing(play: Play) -> None:
    play.to_agent().workflow("Running").action(timeout_seconds=600).wait(55)


def stops_printing(play: Play) -> None:
    play.to_agent().workflow("Running").action().wait(5)
    play.record(Step.ACTION, Outcome.INFO, "disk: 3 %", action="disk", output="3 %").wait(55)


def failed_before(play: Play) -> None:
    text = "workflow default/install: Failed: TemplateError: no such parameter"
    play.record(Step.WORKFLOW, Outcome.FAILED, text, state="Failed").to_agent()


NO_WARNINGS = {"DhcpRefused", "NoWorkflow", "ActionSilent"}
FAULTS = [
    Fault(
        "MAC one digit off",
        unregistered,
        "AlmostRegistered",
        r"one digit off from 52:54:00:00:00:02 of Hardware default/m2",
        1,
        replace(STRANGER, near=("default/m2", "52:54:00:00:00:02")),
    ),
    Fault(
        "second card",
        unregistered,
        "SecondCard",
        r"has the UUID of Hardware default/m2, which netbooted with 52:54",
        1,
        replace(STRANGER, same_uuid=("default/m2", "52:54:00:00:00:02")),
    ),
    Fault(
        "MAC twice",
        unregistered,
        "DuplicateMAC",
        r"in the Hardware default/a and default/b, so the machine is served by",
        1,
        replace(STRANGER, claimants=("default/a", "default/b")),
    ),
    Fault("disableNetboot", refused, "DhcpRefused", r"disableNetboot is true", 1),
    Fault(
        "offers are lost",
        lambda p: p.dhcp("offer", "PXE ROM", "boot file x"),
        "OfferNotTaken",
        r"^was offered 10\.0\.0\.5 once in 1\d s, and never asked for it: the offers do not reach it",
        11,
    ),
    Fault(
        "offers are lost, again and again",
        lambda p: [p.dhcp("offer", "PXE ROM").wait(4) for _ in range(3)],
        "OfferNotTaken",
        r"^was offered 10\.0\.0\.5 (twice|3 times) in \d+ s",
        1,
    ),
    Fault(
        "another DHCP server",
        lambda p: (
            p.dhcp("offer", "PXE ROM")
            .wait(5)
            .record(Step.DHCP, Outcome.FAILED, "took the offer of another DHCP server, 10.0.0.2: …", server="10.0.0.2")
        ),
        "DhcpFailed",
        r"took the offer of another DHCP server, 10\.0\.0\.2",
        1,
    ),
    Fault(
        "relay answers are lost",
        lambda p: [p.dhcp("offer", "PXE ROM").wait(4) for _ in range(3)],
        "OfferNotTaken",
        r"the answers are lost between here and the relay, or behind it \(it is in 10\.0\.9\.0/24\)",
        1,
        replace(FACTS, registered=OUTSIDE, network=replace(HERE, relayed=(IPv4Network("10.0.9.0/24"),))),
    ),
    Fault(
        "reservation in another subnet",
        lambda p: [p.dhcp("offer", "PXE ROM").wait(4) for _ in range(3)],
        "OfferNotTaken",
        r"can't use the address \(10\.0\.9\.0/24 is not 10\.0\.0\.0/24\)",
        1,
        replace(FACTS, registered=OUTSIDE),
    ),
    Fault(
        "udp/69 is dropped",
        lambda p: p.rom(),
        "NoTFTPRequest",
        r"^has 10\.0\.0\.5 and the name of its boot program, but for [89] s no TFTP request for it came in: udp/69",
    ),
    Fault(
        "udp/69 is dropped, firmware begins again",
        lambda p: p.rom().wait(5).dhcp("offer", "PXE ROM"),
        "NoTFTPRequest",
        r"came in, and asked for an address again once: udp/69 is blocked",
        1,
    ),
    Fault(
        "netmask /32",
        lambda p: p.rom(),
        "NoTFTPRequest",
        r"its gateway 10\.0\.0\.1 is not on its network, netmask /32, or udp/69 is blocked on the way",
        facts=replace(FACTS, registered=replace(MACHINE, netmask="255.255.255.255")),
    ),
    Fault(
        "gateway off-link",
        lambda p: p.rom(),
        "NoTFTPRequest",
        r"its gateway 10\.0\.1\.1 is not on its network, which is 10\.0\.0\.0/24, or udp/69",
        facts=replace(FACTS, registered=replace(MACHINE, gateway="10.0.1.1")),
    ),
    Fault(
        "this host's firewall drops udp/69",
        lambda p: p.rom(),
        "NoTFTPRequest",
        r"this host's firewall drops udp/69 \(arrived 4 times on eth1, and never here\)",
        facts=replace(FACTS, arrived={"udp/69": 4}),
    ),
    Fault(
        "HTTP Boot, tcp/7080 is dropped",
        lambda p: p.dhcp("offer", "HTTP Boot ROM", "boot file http://x").dhcp(
            "ack", "HTTP Boot ROM", "boot file http://x"
        ),
        "NoHTTPRequest",
        r"for \d s no HTTP request for it came in: tcp/7080 is blocked",
    ),
    Fault(
        "TFTP blocks are lost",
        tftp_is_silent,
        "TFTPStalls",
        r"^TFTP sends snponly\.efi, and it acknowledged nothing for 4 s, at block 12 of 200",
        2,
    ),
    Fault(
        "Secure Boot refuses iPXE",
        lambda p: p.rom().program().wait(3).dhcp("offer", "PXE ROM", "boot file snponly.efi"),
        "ProgramNotStarted",
        r"its firmware asked for an address again 3 s later.*Secure Boot refuses it",
        1,
    ),
    Fault(
        "iPXE hangs", lambda p: p.rom().program(), "ProgramSilent", r"has got snponly\.efi, and nothing was heard", 36
    ),
    Fault(
        "tcp/7080 is dropped",
        lambda p: p.to_ipxe(),
        "NoScriptRequest",
        r"^iPXE has 10\.0\.0\.5, but for [89] s no request for its script came in: tcp/7080 is blocked",
    ),
    Fault(
        "no OSIE",
        lambda p: p.to_ipxe().record(Step.SCRIPT, Outcome.FAILED, "no boot: OSIE default/x, which"),
        "ScriptFailed",
        r"^no boot: OSIE default/x",
        1,
    ),
    Fault(
        "upstream does not answer",
        waits_for_upstream,
        "UpstreamStalls",
        r"^waits for the kernel: mirror has sent nothing of it for 5 s",
        1,
    ),
    Fault(
        "upstream stalls",
        upstream_stops,
        "UpstreamStalls",
        r"^waits for the kernel: mirror has sent 8\.0 MB of it, and nothing more for \d+ s",
        1,
    ),
    Fault("upstream 404", upstream_fails, "KernelFailed", r"kernelUrl http://mirror/k: 404 Not Found", 1),
    Fault(
        "iPXE stops before the kernel",
        lambda p: p.to_ipxe().script(),
        "NoKernelRequest",
        r"asked for the kernel for 1\d s",
        11,
    ),
    Fault(
        "kernel panic, no driver, no memory",
        lambda p: p.to_kernel(),
        "KernelSilent",
        r"^iPXE started the kernel 9\d s ago, and nothing was heard",
        92,
    ),
    Fault(
        "kernel panic with a restart",
        lambda p: restarts(p, 1),
        "KernelRestarted",
        r"^iPXE started the kernel, and 8 s later its firmware asked for an address again: the kernel has panicked",
        1,
    ),
    Fault(
        "kernel panic with a restart that is fast",
        restarts_within_a_second,
        "KernelRestarted",
        r"^iPXE started the kernel, and 36 s later its firmware asked for an address again",
        1,
    ),
    Fault(
        "too little memory",
        lambda p: p.to_ipxe().script().files().starts(memory_bytes=80 << 20),
        "TooLittleMemory",
        r"^has 83.9 MB of memory, too little for Linux and an initrd of 14.0 MB, which is there twice while",
        1,
    ),
    Fault(
        "perhaps too little memory",
        lambda p: p.to_ipxe().script().files().starts(memory_bytes=128 << 20),
        "KernelSilent",
        r"too little memory for the initrd \(it has 134.2 MB, the initrd 14.0 MB\)",
        91,
    ),
    Fault(
        "boot loop",
        lambda p: restarts(p, 2),
        "BootLoop",
        r"^netboots for the third time in \d+ s; each time the last that was heard was: iPXE started the kernel",
        1,
    ),
    Fault(
        "42113 is dropped",
        lambda p: p.to_kernel().osie(),
        "AgentMissing",
        r"^the OSIE is up, and its agent has not connected for 3\d s: tcp/42113 is blocked on the way",
        32,
    ),
    Fault(
        "agent without a Workflow",
        lambda p: p.to_agent(),
        "NoWorkflow",
        r"^its agent is connected and waits: no Workflow for default/m1: create one$",
        facts=replace(FACTS, workflow="", no_workflow="no Workflow for default/m1: create one"),
    ),
    Fault(
        "the Workflow failed before",
        failed_before,
        "WorkflowFailed",
        r"waits; what it could have done is over, workflow default/install: Failed: TemplateError",
        facts=replace(FACTS, workflow=""),
    ),
    Fault(
        "no Template",
        lambda p: p.to_agent(),
        "WorkflowNotBegun",
        r"^its agent has been connected for \d s, and Workflow default/install has not begun: there is no Template x",
        facts=replace(FACTS, workflow_message="there is no Template x"),
    ),
    Fault(
        "token is wrong",
        lambda p: p.to_kernel().osie().record(Step.AGENT, Outcome.REFUSED, "the token is wrong (asked by 10.0.0.5)"),
        "AgentRefused",
        r"^the token is wrong",
        1,
    ),
    Fault(
        "action fails",
        lambda p: (
            p.to_agent()
            .workflow("Running")
            .action()
            .action_ends(Outcome.FAILED, "action disk failed after 1.0 s (1 of 2): Error: /dev/sdz: no such disk")
        ),
        "ActionFailed",
        r"/dev/sdz: no such disk",
        1,
    ),
    Fault(
        "action hangs, with a timeout",
        prints_nothing,
        "ActionSilent",
        r"^action disk has been running for 6\d s, without any output; its timeout is 600 s",
    ),
    Fault(
        "action hangs, after some output",
        stops_printing,
        "ActionSilent",
        r"^action disk has been running for 6\d s, its last output 6\d s ago; it has no timeout",
    ),
    Fault(
        "power lost in an action",
        power_is_lost,
        "Interrupted",
        r"^has started anew while action disk was running, 12 s after that began: it lost its power",
        1,
    ),
    Fault(
        "netboots again",
        boots_again,
        "NetbootsAgain",
        r"^netboots again, although Workflow default/install has succeeded \d+ s before",
        1,
    ),
]


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
    if before is not None:
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


HEALTHY = [Play.to_agent, Play.installed, slow_switch, shim_and_grub, ipxe_in_rom, vlan, size_is_asked_first,
           reboots_twice, last_action_reboots, installed_twice, boots_from_disk]  # fmt: skip


@pytest.mark.parametrize("boot", HEALTHY, ids=lambda boot: boot.__name__)
def test_healthy_boot_has_no_warning(boot: Callable[[Play], object]) -> None:
    play = Play()
    boot(play)
    assert play.warnings == [], [finding.message for _, finding in play.said]


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


def test_unserved_network_is_no_cause_where_none_is_known() -> None:
    play = Play(replace(FACTS, registered=OUTSIDE, network=Network()))
    play.rom().wait(9)
    assert play.found is not None
    assert "is not of this network" not in play.found.message
