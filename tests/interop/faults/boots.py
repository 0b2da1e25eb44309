"""Faults before the agent starts: of the network, the firmware, the edge's configuration, and upstreams."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from edge.journey.events import Milestone
from edge.journey.expectations.limits import LIMITS
from tests.interop.faults.machine import IPXE, ROM, SYSTEM, Fault, Scripted
from tests.waiting import wait_until
from tink.agent.connection import RetryPolicy

TCP_AGAIN_SECONDS = 1.0
"""Linux retransmits a SYN after this time; from then on, a missing answer is certain."""
UUID = "4c4c4544-0042-3510-8052-b4c04f4a3232"


def lease_and_knock(firmware: Scripted) -> float:
    firmware.lease()
    began = time.time()
    firmware.knock_at_tftp(8)
    return began


def lease(firmware: Scripted) -> None:
    firmware.lease()


def discovers(firmware: Scripted) -> None:
    for _ in range(3):
        firmware.discover()


def behind_relay(giaddr: str) -> Callable[[Scripted], None]:
    def play(firmware: Scripted) -> None:
        for _ in range(3):
            firmware.discover(giaddr=giaddr)

    return play


def no_script(firmware: Scripted) -> float:
    firmware.to_ipxe()
    began = time.time()
    firmware.get(f"/ipxe/script/{firmware.mac}/auto.ipxe", within=8)
    return began


def kernel(osie: str) -> Callable[[Scripted], float]:
    def play(firmware: Scripted) -> float:
        firmware.to_ipxe()
        firmware.script()
        began = time.time()
        assert firmware.kernel(osie, within=14) != 0
        return began

    return play


def refused(firmware: Scripted) -> None:
    firmware.discover()


def second_card(firmware: Scripted) -> None:
    for _ in range(3):
        firmware.discover(ROM, uuid=UUID)


def no_agent(firmware: Scripted) -> float:
    firmware.to_osie(uuid=UUID)
    agent = firmware.agent()
    wait_until(lambda: "cannot reach the server" in agent.err, lambda: agent.err, every=0.5)
    assert "connected to" not in agent.err
    return time.time() - RetryPolicy().patience + TCP_AGAIN_SECONDS


def agent_of_a_new_model(firmware: Scripted) -> float:
    """Nothing is known yet of how long its agent may take."""
    firmware.to_osie(model="New")
    up = time.time()
    firmware.agent()
    return up + LIMITS[Milestone.OSIE_UP].usual


def agent_without_tls(firmware: Scripted) -> float:
    """Connect to the gRPC port and close, as an agent with a wrong clock or another authority does."""
    firmware.to_osie(model="New")
    up = time.time()
    firmware.agent(change=lambda line: re.sub(r"tinkerbell_(tls|tls_ca|token)=\S+", "", line))
    return up + LIMITS[Milestone.OSIE_UP].usual


def kernel_that_says_nothing(firmware: Scripted) -> float:
    """It has panicked, or has no driver, or not enough memory; its last boot was quick, so the least limit counts."""
    firmware.to_osie(model="Silent", pause=4.5)
    firmware.wait_until_edge_knows(Milestone.OSIE_UP)  # a restart before that hides how long the kernel needed
    firmware.to_ipxe()
    firmware.ipxe_to_kernel(model="Silent")
    return time.time() + LIMITS[Milestone.KERNEL_STARTED].least


def wrong_clock(firmware: Scripted) -> None:
    firmware.to_ipxe()
    firmware.ipxe_to_kernel(clock=946684800)


def crawls(firmware: Scripted) -> None:
    firmware.lease(SYSTEM)
    firmware.crawl()


def crawls_from_elsewhere(firmware: Scripted) -> None:
    firmware.lease(SYSTEM)
    firmware.has_its_address(off=90)
    firmware.crawl()


def starts_again(firmware: Scripted) -> None:
    firmware.to_osie()
    firmware.wait_until_edge_knows(Milestone.OSIE_UP)
    firmware.discover()


def shim_and_grub(firmware: Scripted) -> None:
    """Play the observed requests of EDK2, shim 16 and GRUB 2.12. Most files do not exist, which is normal."""
    firmware.lease()
    firmware.tftp("snponly.efi")
    for name in ("revocations_sku.efi", "revocations_sbat.efi", "shim_certificate_0.efi"):
        firmware.tftp(name)
    for name in ("command", "fs", "crypto", "terminal"):
        firmware.tftp(f"grub/x86_64-efi/{name}.lst")
    firmware.tftp("grub/grub.cfg")
    firmware.lease(IPXE)
    firmware.ipxe_to_osie()


def behind_another_server(firmware: Scripted) -> None:
    firmware.discover()
    firmware.take_another("172.31.77.2")


def other_architecture(firmware: Scripted) -> None:
    firmware.discover(architecture=0x19)  # RISC-V, 32 bits: Debian 13 has an iPXE for 64


def declines(firmware: Scripted) -> None:
    firmware.lease()
    firmware.occupy_its_address()
    firmware.decline()


def blocks_are_lost(firmware: Scripted) -> float:
    firmware.lease()
    began = time.time()
    firmware.tftp("snponly.efi", within=10)
    return began


def stops_midway(firmware: Scripted) -> float:
    firmware.lease()
    return firmware.tftp_and_stop("snponly.efi")


def program_is_refused(firmware: Scripted) -> None:
    firmware.lease()
    assert firmware.tftp("snponly.efi")
    firmware.wait_until_edge_knows(Milestone.PROGRAM_SENT)
    firmware.discover()


def script_only(firmware: Scripted) -> None:
    firmware.to_ipxe()
    firmware.get(f"/ipxe/script/{firmware.mac}/auto.ipxe")


def little_memory(firmware: Scripted) -> None:
    firmware.to_ipxe()
    firmware.ipxe_to_kernel(memory="00000000ffff0000")  # 64 MiB


def loops(firmware: Scripted) -> None:
    for _ in range(2):
        firmware.to_ipxe()
    firmware.discover()


FAULTS = [
    Fault(
        "this host drops udp/69",
        lease_and_knock,
        "NoTFTPRequest",
        r"this host's firewall drops udp/69 \(arrived (twice|\d times) on rack0, but never at the edge\)",
        drop="here udp 69",
    ),
    Fault(
        "udp/69 is lost on the way",
        lease_and_knock,
        "NoTFTPRequest",
        r"udp/69 is blocked on the way \(nothing arrived on rack0 lately\)",
        drop="away udp 69",
    ),
    Fault(
        "netmask /32",
        lease,
        "NoTFTPRequest",
        r"its gateway 172\.31\.77\.1 is not on its network, netmask /32",
        dhcp="netmask: 255.255.255.255, gateway: 172.31.77.1",
    ),
    Fault(
        "offers are lost",
        discovers,
        "OfferNotTaken",
        r"was offered 172\.31\.77\.\d+ 3 times in \d+ s, but never requested it",
    ),
    Fault(
        "reservation in another subnet",
        discovers,
        "OfferNotTaken|DhcpFailed",
        r"its address 10\.99\.0\.5 belongs to another network|can't use the address \(10\.99\.0\.0/24 is not 172",
        ip="10.99.0.5",
    ),
    Fault(
        "no way back to the relay",
        behind_relay("10.98.0.1"),
        "OfferNotTaken",
        r"do not reach its relay, 10\.98\.0\.1 \(this host has no route to it \('ip route get 10\.98\.0\.1'\)\)",
        ip="10.98.0.5",
    ),
    Fault(
        "answers to a relay are lost",
        behind_relay("10.97.0.1"),
        "OfferNotTaken",
        r"the answers are lost between here and the relay, 10\.97\.0\.1, or behind it",
        ip="10.97.0.5",
        routed=True,
    ),
    Fault(
        "this host drops tcp/7080",
        no_script,
        "NoScriptRequest",
        r"this host's firewall drops tcp/7080",
        drop="here tcp 7080",
    ),
    Fault(
        "this host drops tcp/42113",
        no_agent,
        "AgentMissing",
        r"this host's firewall drops tcp/42113",
        moment="its second packet there",
        drop="here tcp 42113",
    ),
    Fault(
        "tcp/42113 is lost on the way",
        agent_of_a_new_model,
        "AgentMissing",
        r"tcp/42113 is blocked on the way \(nothing arrived on rack0 lately\)",
        moment="30 s after it is up, where no other of this model has been seen",
        drop="away tcp 42113",
    ),
    Fault(
        "agent without TLS",
        agent_without_tls,
        "AgentMissing",
        r"does not trust the server's certificate .*, or does not speak TLS \(its connection to tcp/42113 was answered",
        moment="30 s after it is up, where no other of this model has been seen",
    ),
    Fault(
        "tcp/7080 is lost on the way",
        no_script,
        "NoScriptRequest",
        r"tcp/7080 is blocked on the way \(nothing arrived on rack0 lately\)",
        drop="away tcp 7080",
    ),
    Fault(
        "two interfaces on one Ethernet",
        lease_and_knock,
        "NoTFTPRequest",
        r"two interfaces of this host, rack1 and other1, are on the same Ethernet, and both answer ARP for "
        r"172\.31\.78\.1 \(its packets to udp/69 arrive on other1\)",
        second=True,
    ),
    Fault(
        "the cache has no room",
        kernel("huge"),
        "KernelFailed",
        r"3000000 bytes are more than the whole cache may hold, 2000000 \(see --cache-size\)",
        "huge",
    ),
    Fault("MAC of two Hardware", refused, "DuplicateMAC", r"the edge does not serve"),
    Fault(
        "the kernel is silent",
        kernel_that_says_nothing,
        "KernelSilent|KernelRestarted",
        r"iPXE started the kernel \d+ s ago, but nothing was received from the machine since: the kernel has panicked",
        moment="15 s after its kernel was started, or three times what the last ones needed; 90 s where none was seen",
    ),
    Fault("wrong clock", wrong_clock, "WrongClock", r"its clock is \d\d years behind this host's"),
    Fault(
        "user-data is not valid",
        crawls,
        "UserDataInvalid|MetadataFailed",
        r"user-data to Cloud-Init/22\.4\.2: it is no YAML, line 3",
        userdata="#cloud-config\nusers:\n- name: a: b\n",
    ),
    Fault(
        "metadata from a wrong address",
        crawls_from_elsewhere,
        "MetadataFailed",
        r"request from 172\.31\.77\.\d+, which is not an address of this machine: its Hardware has 172\.31\.77\.",
    ),
    Fault("upstream has no such file", kernel("missing"), "KernelFailed", r"404 Not Found", "missing"),
    Fault("upstream refuses", kernel("refused"), "KernelFailed", r"[Rr]efuse|Connect call failed", "refused"),
    Fault("upstream has no name", kernel("no-name"), "KernelFailed", r"no-such-host\.invalid", "no-name"),
    Fault("upstream answers with a web page", kernel("page"), "KernelFailed", r"HTML|text/html|web page", "page"),
    Fault(
        "upstream breaks off",
        kernel("truncated"),
        "KernelFailed|UpstreamStalls",
        r"broke after|nothing more for",
        "truncated",
    ),
    Fault(
        "upstream without TLS",
        kernel("bad-tls"),
        "KernelFailed|UpstreamStalls",  # both after five seconds
        r"no connection within 5 s",
        "bad-tls",
    ),
    Fault(
        "upstream stalls",
        kernel("stalls"),
        "UpstreamStalls|KernelFailed",
        r"127\.0\.0\.1 (has sent .* and nothing more for|had sent nothing for \d+ s, and the machine gave up)",
        "stalls",
    ),
    Fault(
        "upstream does not answer",
        kernel("silent"),
        "UpstreamStalls|KernelFailed",
        r"127\.0\.0\.1 has sent no data for|does not answer|no answer",
        "silent",
    ),
    Fault(
        "netboot is not allowed", refused, "DhcpRefused", r"disableNetboot is true", interface="disableNetboot: true"
    ),
    Fault(
        "the machine starts again",
        starts_again,
        "KernelRestarted|OfferNotTaken",
        r"firmware requested an address again",
    ),
    Fault(
        "one digit off",
        refused,
        "AlmostRegistered",
        r"differs in one digit from 52:54:00:0e:ff:01 of Hardware default/never-heard",
        registered=False,
    ),
    Fault(
        "second card",
        second_card,
        "SecondCard",
        r"has the UUID of Hardware default/this-host-drops-tcp-42113",
        registered=False,
        after="this host drops tcp/42113",
    ),
    Fault("not registered", refused, "SeenInfo|SeenRefused", r"not registered|no Hardware", registered=False),
    Fault("DHCP is not for it", refused, "DhcpRefused", r"disableDhcp is true", interface="disableDhcp: true"),
    Fault("no OSIE", script_only, "ScriptFailed", r"spec\.osie\.name is not set", osie=""),
    Fault("unknown OSIE", script_only, "ScriptFailed", r"OSIE default/nowhere", "nowhere"),
    Fault("no program for it", other_architecture, "DhcpRefused|DhcpFailed", r"no boot program|architecture"),
    Fault("another DHCP server", behind_another_server, "OtherDHCPServer|DhcpFailed", r"172\.31\.77\.2\b"),
    Fault("the address is in use", declines, "DhcpFailed|AddressConflict", r"(?i)declin|in use|conflict"),
    Fault(
        "TFTP's blocks are lost",
        blocks_are_lost,
        "TFTPStalls|TftpFailed",
        r"acknowledged nothing for",
        drop="blocks udp 69",
    ),
    Fault(
        "the machine stops in TFTP", stops_midway, "TFTPStalls|TftpFailed", r"acknowledged nothing for|silent|no answer"
    ),
    Fault("the boot program does not run", program_is_refused, "ProgramNotStarted", r"Secure Boot refuses it"),
    Fault("too little memory", little_memory, "TooLittleMemory", r"has 67\.1 MB of memory"),
    Fault("the third boot with the same end", loops, "BootLoop", r"netboots for the third time"),
    Fault("upstream's checksum differs", kernel("bad-checksum"), "KernelFailed", r"(?i)sha-?256", "bad-checksum"),
    Fault("upstream's certificate", kernel("bad-certificate"), "KernelFailed", r"(?i)certificate", "bad-certificate"),
]
HEALTHY = Fault("shim and grub", shim_and_grub, "", "")
