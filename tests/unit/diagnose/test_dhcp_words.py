"""A DHCP message in one line must name what decides a boot, whatever else is in it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.dhcp.wire import Message, codec
from edge.diagnose.dhcp_words import describe

MAC = bytes.fromhex("525400cc0001")


def message(options: dict[int, bytes], **fields: object) -> bytes:
    empty = Message(
        1, 1, 0, bytes.fromhex("1f2e3d4c"), 0, 0, bytes(4), bytes(4), bytes(4), bytes(4), MAC, b"", b"", options
    )
    return codec.build(empty._replace(**fields))  # type: ignore[arg-type]


def test_discover_of_a_uefi_rom() -> None:
    line = describe(
        message(
            {
                53: b"\1",
                57: b"\x05\xc0",
                55: bytes((1, 3, 67)),
                60: b"PXEClient:Arch:00007:UNDI:003016",
                93: b"\0\7",
                94: b"\1\3\x10",
                97: bytes(17),
            },
            flags=0x8000,
            secs=4,
        )
    )
    assert line == (
        "DHCPDISCOVER of 52:54:00:cc:00:01 xid 1f2e3d4c broadcast secs 4 max-size 1472 asks-for 1,3,67 "
        'class(60) "PXEClient:Arch:00007:UNDI:003016" arch(93) 7 (UEFI x86-64) nic(94) 010310 '
        "uuid(97) 00000000000000000000000000000000"
    )


def test_ack_to_a_rom_behind_a_relay() -> None:
    line = describe(
        message(
            {
                53: b"\5",
                54: bytes((10, 0, 0, 1)),
                51: b"\xff\xff\xff\xff",
                58: b"\0\0\x0e\x10",
                1: b"\xff\xff\xff\0",
                6: bytes(range(20)),
                66: b"10.0.0.1\0",
                67: b"snponly.efi\0",
                82: b"\1\4eth0\5\4\x0a\0\0\0",
            },
            op=2, hops=1, yiaddr=bytes((10, 0, 0, 5)), siaddr=bytes((10, 0, 0, 1)), giaddr=bytes((10, 0, 9, 1)),
            sname=b"edge", file=b"snponly.efi",
        )
    )  # fmt: skip
    assert line == (
        "DHCPACK to 52:54:00:cc:00:01 xid 1f2e3d4c hops 1 yiaddr 10.0.0.5 siaddr 10.0.0.1 giaddr 10.0.9.1 "
        'sname "edge" file "snponly.efi" server 10.0.0.1 lease infinite t1 3600s mask 255.255.255.0 '
        'dns 0.1.2.3,4.5.6.7,8.9.10.11,12.13.14.15... tftp(66) "10.0.0.1" bootfile(67) "snponly.efi" '
        'relay(82) {circuit="eth0" link-selection=10.0.0.0}'
    )


@pytest.mark.parametrize(
    ("code", "value", "words"),
    [
        (43, b"\6\1\x08\xff", "vendor(43) {discovery-control=8}"),
        (43, b"\x74\4\0\0\0\7\xff", "vendor(43) {vlan=7}"),
        (
            43,
            b"\x09\x16\0\0\x13Raspberry Pi Boot  \x0a\4\0PXE\xff",
            'vendor(43) {boot-menu=0:"Raspberry Pi Boot  " menu-prompt=0s "PXE"}',
        ),
        (43, b"\0\6\1\x08\0\xff", "vendor(43) {discovery-control=8}"),
        (43, b"\6\xff", "vendor(43) 06ff"),
        (77, b"iPXE", 'user-class(77) "iPXE"'),
        (77, b"\4iPXE\2ab", 'user-class(77) "iPXE","ab"'),
        (175, b"\x13\1\1\x15\1\0\xb0\1\1\xeb\3\1\x15\1\xb1\5\1\x1a\xf4\x10\0", "ipxe(175) {http no-pxedhcp=1 "
         "version=1.21.1 bus-id=011af41000}"),
        (175, b"\x13", "ipxe(175) 13"),
        (93, b"\0\0\0\7", "arch(93) 0 (x86 BIOS),7 (UEFI x86-64)"),
        (97, b"\1abc", "uuid(97) 01616263 (not 17 bytes of type 0)"),
        (61, b"\1" + MAC, "client-id 52:54:00:cc:00:01"),
        (61, b"\xff\0\1", "client-id ff0001"),
        (56, b"no\x1b[31m \xff", 'message "no?[31m ?"'),
        (200, b"abc", "200=616263"),
        (3, b"abc", "router 616263"),
    ],
)  # fmt: skip
def test_option_is_told_by_its_name(code: int, value: bytes, words: str) -> None:
    assert describe(message({53: b"\1", code: value})).partition("1f2e3d4c ")[2] == words


def test_malformed_message_is_told_with_what_is_wrong() -> None:
    assert describe(b"x") == "DHCP, malformed: 1 bytes is less than a DHCP header (240)"
    assert "says 200 bytes" in describe(message({53: b"\1"})[:243] + b"\x0c\xc8ab")


def test_message_without_a_known_type_is_told() -> None:
    assert describe(message({53: b"\x63"})).startswith("DHCP message of type 99 of")
    assert describe(message({12: b"x"})).startswith("BOOTP message of")


@given(st.dictionaries(st.integers(1, 254), st.binary(max_size=300), max_size=12))
@settings(max_examples=200, deadline=None)
def test_no_option_breaks_the_line(options: dict[int, bytes]) -> None:
    line = describe(message(options))
    assert line.isascii()
    assert line.isprintable()
