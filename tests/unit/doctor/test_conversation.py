"""`tinkedge watch --capture`: the lines that describe packets, and that no packet can end the capture."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.dhcp import BOOTP, DHCP
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Packet, Raw

from edge.dhcp.wire import Message, codec, options
from edge.doctor.dhcp_servers import Offer, discover, read_offer
from edge.doctor.frames import Conversation, describe_dhcp

MAC, SERVER = "52:54:00:cc:00:01", "02:00:00:00:00:aa"
CLIENT_IP, SERVER_IP = "10.0.0.2", "10.0.0.1"


TO_SERVER = Ether(src=MAC, dst=SERVER) / IP(src=CLIENT_IP, dst=SERVER_IP)
TO_CLIENT = Ether(src=SERVER, dst=MAC) / IP(src=SERVER_IP, dst=CLIENT_IP)


def from_client(source: int, destination: int, payload: bytes) -> bytes:
    return bytes(TO_SERVER / UDP(sport=source, dport=destination) / Raw(payload))


def to_client(source: int, destination: int, payload: bytes) -> bytes:
    return bytes(TO_CLIENT / UDP(sport=source, dport=destination) / Raw(payload))


def tcp(payload: bytes) -> bytes:
    return bytes(TO_SERVER / TCP(sport=5000, dport=7080, flags="PA") / Raw(payload))


def data(block: int, size: int) -> bytes:
    return to_client(40000, 2070, b"\0\3" + block.to_bytes(2, "big") + bytes(size))


def ack(block: int) -> bytes:
    return from_client(2070, 40000, b"\0\4" + block.to_bytes(2, "big"))


def described(conversation: Conversation, *frames: bytes) -> list[str]:
    """Return the lines for these frames, a tenth of a second apart, without their addresses."""
    lines = [line for at, frame in enumerate(frames) for line in conversation.lines(at / 10, frame)]
    return [line.partition(" > ")[2].partition(" ")[2] or line for line in lines]


RRQ = from_client(2070, 69, b"\0\1snponly.efi\0octet\0tsize\x000\0blksize\x001468\0")
OACK = to_client(40000, 2070, b"\0\6tsize\x003000\0blksize\x001468\0")


READS, AGREES = 'TFTP reads "snponly.efi" tsize=0 blksize=1468', "TFTP agrees to tsize=3000 blksize=1468"
LATE, FOREIGN = ack(0), to_client(40000, 2070, b"\0\4\0\3")
WINDOW = b"\0\3\0\3" + bytes(1468) + b"\0\3\0\4" + bytes(1468) + b"\0\3\0\5" + bytes(10)
ABORTED = from_client(2070, 40000, b"\0\5\0\x08User aborted the transfer\0")
ABORT = 'TFTP error 8 "User aborted the transfer", snponly.efi'


@pytest.mark.parametrize(
    ("frames", "lines"),
    [
        pytest.param(
            (OACK, ack(0), data(1, 1468), ack(1), data(2, 1468), ack(2), data(3, 64), ack(3)),
            [
                *(AGREES, "TFTP first block, 1468 bytes", "TFTP last block 3, 64 bytes"),
                "TFTP has all of snponly.efi: 3000 bytes in 0.800 s",
            ],
            id="whole",
        ),
        pytest.param(
            (OACK, ack(0), data(1, 1468), ack(2), to_client(40000, 2070, WINDOW), ack(5)),
            [
                *(AGREES, "TFTP first block, 1468 bytes", "TFTP last block 5, 10 bytes"),
                f"TFTP has all of snponly.efi: {4 * 1468 + 10} bytes in 0.600 s",
            ],
            id="window-that-the-kernel-has-not-cut-yet",
        ),
        pytest.param(
            (OACK, ack(2), LATE, data(3, 64), FOREIGN, LATE, ack(3)),
            [AGREES, "TFTP last block 3, 64 bytes", "TFTP has all of snponly.efi: 3000 bytes in 0.700 s"],
            id="late-and-foreign-acknowledgements",
        ),
        pytest.param((OACK, ABORTED), [AGREES, ABORT], id="client-that-probes-the-size"),
        # What comes from that port after it belongs to nothing.
        pytest.param((OACK, ABORTED, data(1, 1468)), [AGREES, ABORT], id="after-the-abort"),
        pytest.param(
            (to_client(69, 2070, b"\0\5\0\1x: no such file\0"),),
            ['TFTP error 1 "x: no such file", snponly.efi'],
            id="refusal-in-the-servers-words",
        ),
        pytest.param(
            (data(1, 100), data(1, 100), ack(1)),
            [
                *("TFTP last block 1, 100 bytes", "TFTP last block 1, 100 bytes (again)"),
                "TFTP has all of snponly.efi: 100 bytes in 0.300 s",
            ],
            id="last-block-again",
        ),
    ],
)
def test_tftp_transfer_is_described_by_its_beginning_and_its_end(frames: tuple[bytes, ...], lines: list[str]) -> None:
    assert Conversation().lines(0, RRQ)[0].startswith("10.0.0.2:2070 > 10.0.0.1:69 TFTP reads")
    assert described(Conversation(), RRQ, *frames) == [READS, *lines]


def test_ipv6_packets_are_described_with_brackets_around_addresses() -> None:
    way = Ether(src=MAC, dst=SERVER) / IPv6(src="fd00::2", dst="fd00::1")
    request = way / UDP(sport=2070, dport=69) / Raw(b"\0\1snponly.efi\0octet\0")
    assert Conversation().lines(0, bytes(request)) == ['[fd00::2]:2070 > [fd00::1]:69 TFTP reads "snponly.efi"']
    asked = way / TCP(sport=5000, dport=7080, flags="PA") / Raw(b"GET /healthz HTTP/1.1\r\n\r\n")
    assert Conversation().lines(0, bytes(asked)) == ["[fd00::2]:5000 > [fd00::1]:7080 GET /healthz HTTP/1.1"]
    solicit = bytes(way / UDP(sport=546, dport=547) / Raw(b"\1abc"))
    assert Conversation(lambda _: "in others' words").lines(0, solicit) == ["in others' words"]


def test_tftp_blocks_are_counted_beyond_65535() -> None:
    acks = [ack(block & 0xFFFF) for block in range(0, 66000, 1000)]
    frames = (RRQ, OACK, *acks, data(65000 + 1000 & 0xFFFF, 0), ack(66000 & 0xFFFF))
    lines = described(Conversation(), *frames)
    assert lines[-2] == "TFTP last block 66000, 0 bytes"
    assert f"{65999 * 1468} bytes" in lines[-1]


def test_tftp_requests_without_an_end_are_forgotten() -> None:
    conversation = Conversation()
    for port in range(1000, 1500):
        conversation.lines(0, from_client(port, 69, b"\0\1x\0octet\0"))
    assert len(conversation._transfers) <= 64


def test_http_is_described_by_its_first_lines() -> None:
    request = b"GET /osie/lab/kernel HTTP/1.1\r\nHost: x\r\nUser-Agent: iPXE/1.21\r\nRange: bytes=5-\r\n\r\nbody"
    answer = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 7\r\nX: y\r\n\r\nContent-Type: no"
    assert described(Conversation(), tcp(request), tcp(answer), tcp(b"PRI * HTTP/2.0\r\n\r\n")) == [
        "GET /osie/lab/kernel HTTP/1.1 (user-agent iPXE/1.21, range bytes=5-)",
        "HTTP/1.1 206 Partial Content (content-length 7)",
        "HTTP/2 connection (gRPC)",
    ]


@pytest.mark.parametrize(
    ("packet", "line"),
    [
        (ARP(op=1, hwsrc=MAC, psrc=CLIENT_IP, pdst=SERVER_IP), f"ARP who has 10.0.0.1? asks 10.0.0.2 ({MAC})"),
        (ARP(op=2, hwsrc=SERVER, psrc=SERVER_IP, pdst=CLIENT_IP), f"ARP 10.0.0.1 is at {SERVER}"),
        (ARP(op=1, hwsrc=MAC, psrc="0.0.0.0", pdst=CLIENT_IP), f"ARP probe: who has 10.0.0.2? ({MAC})"),
        (ARP(op=1, hwsrc=MAC, psrc=CLIENT_IP, pdst=CLIENT_IP), f"ARP {MAC} announces 10.0.0.2"),
    ],
)
def test_arp_is_described_as_request_reply_probe_or_announcement(packet: Packet, line: str) -> None:
    assert Conversation().lines(0, bytes(Ether(src=MAC, dst=SERVER) / packet)) == [line]


def test_dhcp_is_described_behind_a_vlan_tag() -> None:
    message = BOOTP(op=1, chaddr=bytes.fromhex("525400cc0001")) / DHCP(options=[("message-type", "discover"), "end"])
    inner = IP(src="0.0.0.0", dst="255.255.255.255") / UDP(sport=68, dport=67) / message
    for outer in (Ether(src=MAC), Ether(src=MAC) / Dot1Q(vlan=7)):
        (line,) = Conversation().lines(0, bytes(outer / inner))
        assert line.startswith(f"0.0.0.0:68 > 255.255.255.255:67 DHCPDISCOVER of {MAC} xid 00000000")
    first = IP(src=SERVER_IP, dst=CLIENT_IP) / UDP(sport=67, dport=68) / Raw(bytes(300))
    piece = Ether(src=SERVER, dst=MAC) / IP(src=SERVER_IP, dst=CLIENT_IP, proto=17, frag=50) / Raw(bytes(first[UDP]))
    assert Conversation().lines(0, bytes(piece)) == [], "a later fragment is no datagram"
    unknown = bytes(Ether(src=MAC, dst=SERVER) / IP() / ICMP())  # is left to the other dissector
    assert Conversation().lines(0, unknown) == []
    assert Conversation(lambda found: f"{len(found)} bytes").lines(0, unknown) == [f"{len(unknown)} bytes"]


@given(st.lists(st.binary(max_size=120), max_size=4))
@settings(max_examples=100, deadline=None)
def test_no_packet_raises_an_error(payloads: list[bytes]) -> None:
    conversation = Conversation()
    conversation.lines(0, RRQ)
    for payload in payloads:
        frames = [start + payload for start in (b"", bytes(12), bytes(12) + b"\x08\0", bytes(12) + b"\x08\6")]
        frames += [from_client(2070, 69, payload), from_client(2070, 40000, payload), tcp(payload)]
        frames += [to_client(40000, 2070, payload), to_client(67, 68, payload)]
        for line in (line for frame in frames for line in conversation.lines(0, frame)):
            assert "\n" not in line
            assert len(line) < 5000


CARD = bytes.fromhex("525400cc0001")


def message(options: dict[int, bytes], **fields: object) -> bytes:
    none = bytes(4)
    empty = Message(1, 1, 0, bytes.fromhex("1f2e3d4c"), 0, 0, none, none, none, none, CARD, b"", b"", options)
    return codec.build(empty._replace(**fields))  # type: ignore[arg-type]


def test_discover_of_a_uefi_rom_is_described() -> None:
    options = {53: b"\1", 57: b"\x05\xc0", 55: bytes((1, 3, 67)), 60: b"PXEClient:Arch:00007:UNDI:003016"}
    options |= {93: b"\0\7", 94: b"\1\3\x10", 97: bytes(17)}
    assert describe_dhcp(message(options, flags=0x8000, secs=4)) == (
        "DHCPDISCOVER of 52:54:00:cc:00:01 xid 1f2e3d4c broadcast secs 4 max-size 1472 asks-for 1,3,67 "
        'class(60) "PXEClient:Arch:00007:UNDI:003016" arch(93) 7 (UEFI x86-64) nic(94) 010310 '
        "uuid(97) 00000000000000000000000000000000"
    )


def test_ack_to_a_rom_behind_a_relay_is_described() -> None:
    options = {53: b"\5", 54: bytes((10, 0, 0, 1)), 51: b"\xff\xff\xff\xff", 58: b"\0\0\x0e\x10", 1: b"\xff\xff\xff\0"}
    options |= {6: bytes(range(20)), 66: b"10.0.0.1\0", 67: b"snponly.efi\0", 82: b"\1\4eth0\5\4\x0a\0\0\0"}
    addresses = {"yiaddr": bytes((10, 0, 0, 5)), "siaddr": bytes((10, 0, 0, 1)), "giaddr": bytes((10, 0, 9, 1))}
    found = message(options, op=2, hops=1, sname=b"edge", file=b"snponly.efi", **addresses)
    assert describe_dhcp(found) == (
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
        (43, b"\x09\x16\0\0\x13Raspberry Pi Boot  \x0a\4\0PXE\xff",
         'vendor(43) {boot-menu=0:"Raspberry Pi Boot  " menu-prompt=0s "PXE"}'),
        (43, b"\0\6\1\x08\0\xff", "vendor(43) {discovery-control=8}"),
        (43, b"\6\xff", "vendor(43) 06ff"),
        (77, b"iPXE", 'user-class(77) "iPXE"'),
        (77, b"\4iPXE\2ab", 'user-class(77) "iPXE","ab"'),
        (175, b"\x13\1\1\x15\1\0\xb0\1\1\xeb\3\1\x15\1\xb1\5\1\x1a\xf4\x10\0", "ipxe(175) {http no-pxedhcp=1 "
         "version=1.21.1 bus-id=011af41000}"),
        (175, b"\x13", "ipxe(175) 13"),
        (93, b"\0\0\0\7", "arch(93) 0 (x86 BIOS),7 (UEFI x86-64)"),
        (93, b"\7", "arch(93) 7 (UEFI x86-64)"),
        (97, b"\1abc", "uuid(97) 01616263 (not 17 bytes of type 0)"),
        (61, b"\1" + CARD, "client-id 52:54:00:cc:00:01"),
        (61, b"\xff\0\1", "client-id ff0001"),
        (56, b"no\x1b[31m \xff", 'message "no?[31m ?"'),
        (200, b"abc", "200=616263"),
        (3, b"abc", "router 616263"),
    ],
)  # fmt: skip
def test_dhcp_option_is_described_by_its_name(code: int, value: bytes, words: str) -> None:
    assert describe_dhcp(message({53: b"\1", code: value})).partition("1f2e3d4c ")[2] == words


def test_malformed_message_and_message_of_unknown_type_are_described() -> None:
    assert describe_dhcp(b"x") == "DHCP, malformed: 1 bytes is less than a DHCP header (240)"
    assert "says 200 bytes" in describe_dhcp(message({53: b"\1"})[:243] + b"\x0c\xc8ab")
    assert describe_dhcp(message({53: b"\x63"})).startswith("DHCP message of type 99 of")
    assert describe_dhcp(message({12: b"x"})).startswith("BOOTP message of")


@given(st.dictionaries(st.integers(1, 254), st.binary(max_size=300), max_size=12))
@settings(max_examples=200, deadline=None)
def test_dhcp_options_never_break_the_line(options: dict[int, bytes]) -> None:
    line = describe_dhcp(message(options))
    assert line.isascii()
    assert line.isprintable()


PROBE = bytes.fromhex("02aabbccddee")
SENDER = "02:00:00:00:00:01"
XID = bytes.fromhex("00000007")


def frame(kind: str = "offer", *more: tuple[str, str], op: int = 2, xid: int = 7, **fields: object) -> bytes:
    way = Ether(src=SENDER, dst="ff:ff:ff:ff:ff:ff") / IP(src="10.0.0.9", dst="255.255.255.255")
    message = BOOTP(op=op, xid=xid, chaddr=PROBE, **fields) / DHCP(options=[("message-type", kind), *more, "end"])
    return bytes(way / UDP(sport=67, dport=68) / message)


@pytest.mark.parametrize(
    ("found", "offer"),
    [
        (
            frame("offer", ("server_id", "10.0.0.1"), yiaddr="10.0.0.5", siaddr="10.0.0.2", file=b"x.efi"),
            Offer("10.0.0.1", SENDER, "10.0.0.5", "x.efi from 10.0.0.2"),
        ),
        (frame(), Offer("10.0.0.9", SENDER, "", "")),  # without an identifier, it is that of its sender
        (frame("offer", ("boot-file-name", "y.efi\0")), Offer("10.0.0.9", SENDER, "", "y.efi")),
        *((other, None) for other in (frame("ack"), frame("nak"), frame(op=1), frame(xid=8), frame()[:100])),
        *((other, None) for other in (bytes(Ether() / ARP()), b"")),
    ],
)
def test_only_an_offer_is_read_with_its_address_and_boot_file(found: bytes, offer: Offer | None) -> None:
    assert read_offer(found, XID) == offer


def test_discover_has_the_options_of_a_uefi_machine() -> None:
    message = codec.parse(discover(PROBE, XID))
    assert (message.op, message.chaddr, message.xid, message.flags) == (1, PROBE, XID, 0x8000)
    assert message.options[options.CLIENT_ARCHITECTURE] == b"\0\7"
    assert {options.BOOTFILE_NAME, options.TFTP_SERVER_NAME} <= set(message.options[options.PARAMETER_REQUEST_LIST])
