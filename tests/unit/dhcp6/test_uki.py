"""Boot path uki over IPv6: the OSIE as one program, for firmware that is UEFI."""

from __future__ import annotations

from typing import Any

from edge.dhcp6.wire import Option
from tests.unit.dhcp6.harness import EDK2_HTTP_SOLICIT, EDK2_PXE_SOLICIT, MAC, MakeEdge6, hardware

UKI = {"annotations": {"tinkerbell.org/boot-path": "uki"}}


def machine(osie: str = "lab") -> dict[str, Any]:
    obj = hardware()
    obj["metadata"] |= UKI
    if osie:
        obj["spec"]["osie"] = {"name": osie}
    return obj


def test_uefi_is_named_the_osie_itself_by_the_way_that_it_asks_for(make_edge: MakeEdge6) -> None:
    edge = make_edge(machine())
    by_http = edge.answer(EDK2_HTTP_SOLICIT)
    assert by_http.get(Option.BOOTFILE_URL) == b"http://[fd00:77::1]:7080/osie/lab/uki.efi"
    assert by_http.get(Option.VENDOR_CLASS) == bytes.fromhex("00000157000a") + b"HTTPClient"
    assert edge.answer(EDK2_PXE_SOLICIT).get(Option.BOOTFILE_URL) == b"tftp://[fd00:77::1]/osie/lab/uki.efi"


def test_firmware_that_is_no_uefi_gets_ipxe(make_edge: MakeEdge6) -> None:
    bios = EDK2_PXE_SOLICIT.replace(bytes.fromhex("003d00020007"), bytes.fromhex("003d00020000"))
    assert make_edge(machine()).answer(bios).get(Option.BOOTFILE_URL) == b"tftp://[fd00:77::1]/undionly.kpxe"


def test_machine_without_an_osie_asks_for_what_it_does_not_get_and_is_told_what_is_missing(
    make_edge: MakeEdge6,
) -> None:
    edge = make_edge(machine(""))
    refused = f"http://[fd00:77::1]:7080/ipxe/binary/{MAC}/netboot-not-allowed".encode()
    assert edge.answer(EDK2_HTTP_SOLICIT).get(Option.BOOTFILE_URL) == refused
    assert "spec.osie.name is not set" in edge.lines()[0]
