"""The table of faults: what a machine does, what is said of it then, and how many seconds after it could be known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from ipaddress import IPv4Network

from edge.journey.expectations import Registered
from edge.journey.steps import Outcome, Step
from tests.unit.journey.expectations.play import FACTS, HERE, MACHINE, Play

OUTSIDE = Registered("default/m1", "10.0.9.5", "255.255.255.0", "10.0.9.1")
AWAY = "the Kubernetes API has not answered since 14:02:11 UTC"
BEHIND_ROUTER = replace(FACTS, behind_router="fd00:78::5")
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


def crawls(play: Play) -> None:
    """cloud-init reads all there is; what follows does not make it right."""
    wrong: dict[str, str | int | float] = {"document": "user-data", "problem": "it is no YAML, line 3"}
    play.installed().wait(40).dhcp("offer", "operating system").dhcp("ack", "operating system").wait(9)
    play.record(Step.METADATA, Outcome.FAILED, "user-data to Cloud-Init: it is no YAML, line 3", **wrong)
    play.record(Step.METADATA, Outcome.OK, "vendor-data to Cloud-Init", document="vendor-data")


def failed_before(play: Play) -> None:
    text = "workflow default/install: Failed: TemplateError: no such parameter"
    play.record(Step.WORKFLOW, Outcome.FAILED, text, state="Failed").to_agent()


NO_WARNINGS = {"WrongClock", "DhcpRefused", "NoWorkflow", "ActionSilent"}
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
    Fault(
        "not registered, but what is known is old",
        unregistered,
        "APIAway",
        r"^is not among the Hardware that are known here, which may be old: the Kubernetes API has not answered since",
        1,
        replace(STRANGER, api_away=AWAY),
    ),
    Fault("disableNetboot", refused, "DhcpRefused", r"disableNetboot is true", 1),
    Fault(
        "offers are lost",
        lambda p: p.dhcp("offer", "PXE ROM", "boot file x"),
        "OfferNotTaken",
        r"^was offered 10\.0\.0\.5 once in 1\d s, and never asked for it: the offers do not reach it",
        16,
    ),
    Fault(
        "offers are lost, and EDK2 asks again after 4 s",
        lambda p: p.dhcp("offer", "PXE ROM").wait(4).dhcp("offer", "PXE ROM"),
        "OfferNotTaken",
        r"^was offered 10\.0\.0\.5 twice in 8 s, and never asked for it",
        5,
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
        "no way back to the relay",
        lambda p: [p.dhcp("offer", "PXE ROM").wait(4) for _ in range(3)],
        "OfferNotTaken",
        r"the answers do not reach its relay, 10\.0\.9\.1 \(this host has no route to it\)",
        1,
        replace(
            FACTS,
            registered=OUTSIDE,
            network=replace(HERE, relayed=(IPv4Network("10.0.9.0/24"),)),
            relay="10.0.9.1",
            relay_trouble="this host has no route to it",
        ),
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
        "udp/69 is dropped over IPv6",
        lambda p: p.dhcp("advertise", "PXE ROM", "boot file x").dhcp("reply", "PXE ROM", "boot file x"),
        "NoTFTPRequest",
        r"but for 2[01] s no TFTP request for it came in: udp/69",
        22,
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
        "two interfaces on one Ethernet",
        lambda p: p.rom(),
        "NoTFTPRequest",
        r"two interfaces of this host, eth1 and eth0, are on one Ethernet, and both answer ARP for 10\.0\.0\.1 "
        r"\(it asked udp/69 by eth0\)",
        facts=replace(FACTS, arrived={}, strayed={"udp/69": "eth0"}),
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
        "GRUB over IPv6 has no route",
        lambda p: p.rom6().program("shimx64.efi").program("grubx64.efi"),
        "ProgramSilent",
        r"^has got grubx64\.efi, and nothing was heard of it since, for 3\d s: GRUB, which asks for no IPv6 router, "
        r"has no way to this edge and stays at its prompt \(fd00:78::5 is of no network of this edge\), or Secure Boot "
        r"refuses it.*\. let it boot a UKI or an iPXE that the site has signed, or put an edge on its link",
        36,
        BEHIND_ROUTER,
    ),
    Fault(
        "GRUB over IPv6 has no route, and the machine is switched off and on",
        lambda p: p.rom6().program("grubx64.efi").wait(20).dhcp("advertise", "PXE ROM", "boot file shimx64.efi"),
        "ProgramNotStarted",
        r"^has got grubx64\.efi, and its firmware asked for an address again 20 s later: GRUB, which asks for no",
        1,
        BEHIND_ROUTER,
    ),
    Fault(
        "GRUB by HTTP Boot over IPv6 has no route",
        lambda p: p.rom6("HTTP Boot ROM").record(Step.BINARY, Outcome.OK, "boot program sent", name="grubaa64.efi"),
        "ProgramSilent",
        r"^has got grubaa64\.efi, and .*: GRUB, which asks for no IPv6 router",
        36,
        BEHIND_ROUTER,
    ),
    Fault(
        "GRUB does not run on the edge's own link",
        lambda p: p.rom6().program("grubx64.efi"),
        "ProgramSilent",
        r"^has got grubx64\.efi, and nothing was heard of it since, for 3\d s: Secure Boot refuses it",
        36,
    ),
    Fault(
        "shim, which goes over a router as firmware does, is refused",
        lambda p: p.rom6().program("shimx64.efi"),
        "ProgramSilent",
        r"^has got shimx64\.efi, and nothing was heard of it since, for 3\d s: Secure Boot refuses it",
        36,
        BEHIND_ROUTER,
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
        "tcp/7080 is dropped, and the end of the boot program is told late",
        lambda p: (
            p.rom()
            .record(Step.TFTP, Outcome.INFO, "TFTP snponly.efi asked for", phase="begun", name="snponly.efi")
            .ipxe()
            .record(Step.TFTP, Outcome.OK, "TFTP sent snponly.efi", name="snponly.efi")
        ),
        "NoScriptRequest",
        r"^iPXE has 10\.0\.0\.5, but for [89] s no request for its script came in",
    ),
    Fault(
        "iPXE stops after the kernel",
        lambda p: p.to_ipxe().script().file(Step.KERNEL),
        "NoInitrdRequest",
        r"^has got its kernel, but asked for the initrd for 1\d s not once",
        11,
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
        "no lease in its VLAN",
        lambda p: p.to_ipxe().script(vlan="50"),
        "NoLeaseInVLAN",
        r"^has got its script, which has it ask for a lease in VLAN 50, and nothing was heard of it for 1\d s",
        11,
    ),
    Fault(
        "iPXE stops in its VLAN",
        lambda p: p.to_ipxe().script(vlan="50").ipxe().script(vlan="50"),
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
        "wrong clock",
        lambda p: p.to_ipxe().script().files().starts(clock_ahead_seconds=-86400 * 365 * 24),
        "WrongClock",
        r"^its clock is 24 years behind this host's: certificates may not be valid then",
        1,
    ),
    Fault(
        "wrong clock, and no agent",
        lambda p: p.to_ipxe().script().files().starts(clock_ahead_seconds=7200).osie().wait(25),
        "AgentMissing",
        r"takes the server's certificate for one that is not valid now \(its clock is 2 h ahead of this host's\)",
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
        "agent does not trust the server",
        lambda p: p.to_kernel().osie(),
        "AgentMissing",
        r"for 3\d s: it does not trust the server's certificate \(another authority\), or speaks no TLS "
        r"\(its connection to tcp/42113 was answered\), or the agent does not start in this OSIE",
        32,
        replace(FACTS, arrived={"tcp/42113": 1}, answered={"tcp/42113": 1}),
    ),
    Fault(
        "agent without a Workflow",
        lambda p: p.to_agent(),
        "NoWorkflow",
        r"^its agent is connected and waits: no Workflow for default/m1: create one$",
        facts=replace(FACTS, workflow="", no_workflow="no Workflow for default/m1: create one"),
    ),
    Fault(
        "Workflow for another Hardware",
        lambda p: p.to_agent(),
        "NoWorkflow",
        r"create one\. Workflow default/w waits for Hardware default/m2, which was never heard: is it meant for this",
        facts=replace(
            FACTS,
            workflow="",
            no_workflow="no Workflow for default/m1: create one",
            unheard_workflow=("default/w", "default/m2"),
        ),
    ),
    Fault(
        "agent whose Workflow is not known, for the API is away",
        lambda p: p.to_agent(),
        "APIAway",
        r"^its agent is connected and waits, and whether there is a Workflow for it is not known: the Kubernetes API",
        facts=replace(FACTS, workflow="", api_away=AWAY),
    ),
    Fault(
        "agent whose Workflow can't begin, for the API is away",
        lambda p: p.to_agent(),
        "APIAway",
        r"has not begun: the Kubernetes API has not answered since 14:02:11",
        facts=replace(FACTS, api_away=AWAY),
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
        "image does not come",
        lambda p: (
            p.to_agent()
            .workflow("Running")
            .action()
            .wait(5)
            .record(Step.ACTION, Outcome.INFO, "disk: image r:5000/a:1: r:5000 has sent nothing for 5 s", action="disk")
        ),
        "PullStalls",
        r"^action disk waits for its image r:5000/a:1: r:5000 has sent nothing for 5 s\. is that registry up",
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
        "user-data is not valid",
        crawls,
        "UserDataInvalid",
        r"^user-data to Cloud-Init: it is no YAML, line 3",
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
