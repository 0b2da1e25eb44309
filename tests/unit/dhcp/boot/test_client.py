"""Who asks: told from vendor class, user classes, architecture and what iPXE says of itself."""

from __future__ import annotations

from typing import Any

import pytest

from edge.dhcp.boot.client import Client, ClientKind, identify, user_classes
from edge.dhcp.wire import codec, options
from tests.unit.dhcp.harness import Wire


def client(wire: Wire, packet: bytes, **changes: Any) -> Client:
    return identify(codec.parse(wire.altered(packet, **changes)))


@pytest.mark.parametrize(
    ("name", "kind", "architectures", "description"),
    [
        ("ipxe_bios_discover", ClientKind.IPXE, (0,), "iPXE (x86 BIOS)"),
        ("ipxe_efi_request_4011", ClientKind.IPXE, (7,), "iPXE (UEFI x86-64)"),
        ("edk2_pxe_discover", ClientKind.PXE_ROM, (7,), "UEFI x86-64 PXE ROM"),
        ("edk2_http_request", ClientKind.HTTP_ROM, (16,), "UEFI x86-64 HTTP Boot ROM"),
        ("dhclient_discover", ClientKind.OPERATING_SYSTEM, (), "operating system"),
        ("dhcpcd_discover", ClientKind.OPERATING_SYSTEM, (), "operating system"),
    ],
)
def test_each_stage_of_a_boot_is_told_from_the_others(
    captured: dict[str, bytes], name: str, kind: ClientKind, architectures: tuple[int, ...], description: str
) -> None:
    found = identify(codec.parse(captured[name]))
    assert (found.kind, found.architectures, found.description) == (kind, architectures, description)


@pytest.mark.parametrize(
    ("user_class", "classes"),
    [
        (b"iPXE", (b"iPXE",)),
        (b"\x04iPXE", (b"\x04iPXE", b"iPXE")),
        (b"\x03foo\x04iPXE", (b"\x03foo\x04iPXE", b"foo", b"iPXE")),
        (b"\x0aTinkerbell", (b"\x0aTinkerbell", b"Tinkerbell")),
        (b"Tinkerbell", (b"Tinkerbell",)),
    ],
    ids=["raw, as iPXE sends it", "RFC 3004", "RFC 3004, second class", "Smee's iPXE", "Smee's iPXE, raw"],
)
def test_ipxe_is_known_by_its_user_class_alone(
    wire: Wire, captured: dict[str, bytes], user_class: bytes, classes: tuple[bytes, ...]
) -> None:
    found = client(wire, captured["ipxe_bios_discover"], drop=(175,), options={77: user_class})
    assert found.kind is ClientKind.IPXE
    assert user_classes(user_class) == classes


@pytest.mark.parametrize("user_class", [b"", b"\x05iPXE", b"\0", b"\x04iPXE\x09x", b"gPXE", b"\x04foo\0iPXE"])
def test_user_classes_that_are_no_list_name_nobody_else(
    wire: Wire, captured: dict[str, bytes], user_class: bytes
) -> None:
    found = client(wire, captured["ipxe_bios_discover"], drop=(175,), options={77: user_class})
    assert found.kind is ClientKind.PXE_ROM
    assert user_classes(user_class) == ((user_class,) if user_class else ())


def test_ipxe_with_an_overridden_user_class_is_known_by_option_175_and_does_not_loop(
    wire: Wire, captured: dict[str, bytes]
) -> None:
    assert client(wire, captured["ipxe_bios_discover"], options={77: b"PXEROM"}).kind is ClientKind.IPXE


def test_features_are_those_that_ipxe_lists(wire: Wire, captured: dict[str, bytes]) -> None:
    bios = identify(codec.parse(captured["ipxe_bios_discover"]))
    # dns, pxe ext(33), http, iscsi, menu, multiboot, nfs, ... as in that build of 2019
    assert {options.IPXE_HTTP, options.IPXE_TFTP, options.IPXE_BZIMAGE, options.IPXE_MENU} <= bios.features
    assert not {options.IPXE_HTTPS, options.IPXE_EFI, 177, 235} & bios.features
    assert bios.lacks(options.IPXE_EFI)
    assert not bios.lacks(options.IPXE_HTTP)
    efi = identify(codec.parse(captured["ipxe_efi_discover"]))
    assert options.IPXE_EFI in efi.features
    without = client(wire, captured["ipxe_efi_discover"], options={175: b"\x13\1\0\x15\1\1"})
    assert without.features == {options.IPXE_TFTP}  # version 0 is as good as none


def test_ipxe_that_lists_no_features_lacks_none(wire: Wire, captured: dict[str, bytes]) -> None:
    for listed in (b"\xb0\1\1", b"\x13\x09\1", b"\x13"):
        found = client(wire, captured["ipxe_efi_discover"], options={175: listed})
        assert found.kind is ClientKind.IPXE
        assert not found.lacks(options.IPXE_HTTP)


def test_architectures_of_odd_length_and_of_old_roms_are_understood(wire: Wire, captured: dict[str, bytes]) -> None:
    packet = captured["edk2_pxe_discover"]
    assert client(wire, packet, options={93: b"\0\x0b\0\x07\0"}).architectures == (11, 7)
    assert client(wire, packet, drop=(93,)).architectures == (7,)
    for vendor_class in (b"PXEClient", b"PXEClient:Arch:7:UNDI", b"PXEClient:Arch:0000x:", b"PXEClient:Prch:00007:"):
        assert client(wire, packet, drop=(93,), options={60: vendor_class}).architectures == ()


def test_machines_of_one_kind_are_one_client(wire: Wire, captured: dict[str, bytes]) -> None:
    one = client(wire, captured["edk2_pxe_discover"])
    assert client(wire, captured["edk2_pxe_request"], chaddr=b"\2\0\0\0\0\1", options={97: b"\0" * 17}) is one
