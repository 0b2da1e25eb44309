"""What firmware and iPXE are told to boot (RFC 5970), in the words that EDK2 and iPXE take."""

from __future__ import annotations

import pytest

from edge.dhcp6.wire import MessageType6 as M
from edge.dhcp6.wire import Option, option
from edge.journey.events import Outcome
from edge.journey.steps import Milestone, milestone
from tests.unit.dhcp6.harness import (
    EDK2_HTTP_SOLICIT,
    EDK2_PXE_SOLICIT,
    EDK2_STACK_SOLICIT,
    MAC,
    SERVER_ID,
    Edge6,
    MakeEdge6,
    ask,
    hardware,
    ia,
)

IPXE = (
    option(Option.USER_CLASS, b"\0\4iPXE"),
    option(Option.CLIENT_ARCH_TYPE, b"\0\7"),
    option(Option.VENDOR_CLASS, b"\0\0\x01\x57\0\x20PXEClient:Arch:00007:UNDI:003010"),
    option(Option.ORO, bytes.fromhex("00170018003b003c")),
)
OSIE = option(Option.USER_CLASS, b"\0\x0dtinkedge-osie")
SCRIPT = f"http://[fd00:77::1]:7080/ipxe/script/{MAC}/auto.ipxe"


def url(answer: bytes | None) -> str | None:
    return answer.decode() if answer is not None else None


def test_pxe_rom_gets_its_program_by_tftp_with_brackets_around_the_address(edge: Edge6) -> None:
    assert edge.answer(EDK2_PXE_SOLICIT).get(Option.BOOTFILE_URL) == b"tftp://[fd00:77::1]/snponly.efi"


def test_http_boot_gets_its_program_by_http_and_the_class_that_it_looks_for(edge: Edge6) -> None:
    answer = edge.answer(EDK2_HTTP_SOLICIT)
    expected = f"http://[fd00:77::1]:7080/ipxe/binary/{MAC}/snponly.efi"
    assert url(answer.get(Option.BOOTFILE_URL)) == expected
    assert answer.get(Option.VENDOR_CLASS) == bytes.fromhex("00000157000a") + b"HTTPClient"


def test_ipxe_gets_its_script(edge: Edge6) -> None:
    assert url(edge.answer(ask(M.SOLICIT, ia(), *IPXE)).get(Option.BOOTFILE_URL)) == SCRIPT
    assert url(edge.answer(ask(M.REQUEST, SERVER_ID, ia(), *IPXE)).get(Option.BOOTFILE_URL)) == SCRIPT


def test_osie_that_says_so_is_told_where_its_parameters_are(edge: Edge6) -> None:
    for message in (ask(M.SOLICIT, ia(), OSIE), ask(M.REQUEST, SERVER_ID, ia(), OSIE)):
        assert url(edge.answer(message).get(Option.BOOTFILE_URL)) == "http://[fd00:77::1]:7080/auto/parameters"
    assert "DHCPv6 ADVERTISE to the OSIE, its parameters at http://[fd00:77::1]" in edge.events[0].message
    event = edge.events[1]
    is_what = milestone(event.step, event.outcome, event.detail)
    assert is_what is Milestone.OS_LEASED, "not a new boot of the firmware"


@pytest.mark.parametrize("packet", [EDK2_STACK_SOLICIT, ask(M.SOLICIT, ia(), client=b"\0\2\0\0\xab\x11machine")])
def test_who_does_not_boot_is_told_nothing_of_it(edge: Edge6, packet: bytes) -> None:
    answer = edge.answer(packet)
    assert (answer.get(Option.BOOTFILE_URL), answer.get(Option.VENDOR_CLASS)) == (None, None)


def test_refused_rom_asks_for_a_file_that_it_does_not_get_and_goes_on(make_edge: MakeEdge6) -> None:
    edge = make_edge(hardware(disableNetboot=True))
    assert edge.answer(EDK2_PXE_SOLICIT).get(Option.BOOTFILE_URL) == b"tftp://[fd00:77::1]/netboot-not-allowed"
    assert url(edge.answer(EDK2_HTTP_SOLICIT).get(Option.BOOTFILE_URL)) == (
        f"http://[fd00:77::1]:7080/ipxe/binary/{MAC}/netboot-not-allowed"
    )
    assert url(edge.answer(ask(M.SOLICIT, ia(), *IPXE)).get(Option.BOOTFILE_URL)) == SCRIPT, "which shows why"
    assert all(event.outcome is Outcome.REFUSED and "disableNetboot" in event.message for event in edge.events)


def test_architecture_without_a_program_is_refused_by_name(edge: Edge6) -> None:
    arm = EDK2_PXE_SOLICIT.replace(bytes.fromhex("003d00020007"), bytes.fromhex("003d0002000b"))
    assert edge.answer(arm).get(Option.BOOTFILE_URL) == b"tftp://[fd00:77::1]/netboot-not-allowed"
    assert "arm64" in edge.lines()[0]


def test_each_stage_is_a_milestone_and_the_firmwares_own_lease_is_none(edge: Edge6) -> None:
    edge.answer(EDK2_STACK_SOLICIT)
    edge.answer(EDK2_PXE_SOLICIT)
    edge.answer(b"\3" + EDK2_PXE_SOLICIT[1:] + SERVER_ID)
    edge.answer(ask(M.SOLICIT, ia(), *IPXE))
    edge.answer(ask(M.REQUEST, SERVER_ID, ia(), *IPXE))
    edge.answer(ask(M.SOLICIT, ia(), client=b"\0\2\0\0\xab\x11machine"))
    edge.answer(ask(M.REQUEST, SERVER_ID, ia(), client=b"\0\2\0\0\xab\x11machine"))
    assert [milestone(event.step, event.outcome, event.detail) for event in edge.events] == [
        None,
        Milestone.OFFERED,
        Milestone.LEASED,
        Milestone.IPXE_OFFERED,
        Milestone.IPXE_LEASED,
        Milestone.OS_OFFERED,
        Milestone.OS_LEASED,
    ]
    assert edge.lines()[1] == (
        "dhcp ok: DHCPv6 ADVERTISE to UEFI x86-64 PXE ROM, boot file tftp://[fd00:77::1]/snponly.efi"
    )
