"""`tinkedge watch --capture` must tell what firmware and servers said, and nothing a packet holds may end it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.dhcp import BOOTP, DHCP
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Packet, Raw

from edge.diagnose.conversation import Conversation

MAC, SERVER = "52:54:00:cc:00:01", "02:00:00:00:00:aa"
CLIENT_IP, SERVER_IP = "10.0.0.2", "10.0.0.1"


def from_client(source: int, destination: int, payload: bytes) -> bytes:
    way = Ether(src=MAC, dst=SERVER) / IP(src=CLIENT_IP, dst=SERVER_IP)
    return bytes(way / UDP(sport=source, dport=destination) / Raw(payload))


def to_client(source: int, destination: int, payload: bytes) -> bytes:
    way = Ether(src=SERVER, dst=MAC) / IP(src=SERVER_IP, dst=CLIENT_IP)
    return bytes(way / UDP(sport=source, dport=destination) / Raw(payload))


def tcp(payload: bytes) -> bytes:
    way = Ether(src=MAC, dst=SERVER) / IP(src=CLIENT_IP, dst=SERVER_IP)
    return bytes(way / TCP(sport=5000, dport=7080, flags="PA") / Raw(payload))


def data(block: int, size: int) -> bytes:
    return to_client(40000, 2070, b"\0\3" + block.to_bytes(2, "big") + bytes(size))


def ack(block: int) -> bytes:
    return from_client(2070, 40000, b"\0\4" + block.to_bytes(2, "big"))


def said(conversation: Conversation, *frames: bytes) -> list[str]:
    """What is said of these frames, a tenth of a second apart, without who sends to whom."""
    lines = [line for at, frame in enumerate(frames) for line in conversation.lines(at / 10, frame)]
    return [line.partition(" > ")[2].partition(" ")[2] or line for line in lines]


RRQ = from_client(2070, 69, b"\0\1snponly.efi\0octet\0tsize\x000\0blksize\x001468\0")
OACK = to_client(40000, 2070, b"\0\6tsize\x003000\0blksize\x001468\0")


def test_tftp_transfer_is_told_by_its_beginning_and_its_end() -> None:
    frames = (RRQ, OACK, ack(0), data(1, 1468), ack(1), data(2, 1468), ack(2), data(3, 64), ack(3))
    assert said(Conversation(), *frames) == [
        'TFTP reads "snponly.efi" tsize=0 blksize=1468',
        "TFTP agrees to tsize=3000 blksize=1468",
        "TFTP first block, 1468 bytes",
        "TFTP last block 3, 64 bytes",
        "TFTP has all of snponly.efi: 3000 bytes in 0.800 s",
    ]


def test_transfer_says_who_sends_to_whom() -> None:
    assert Conversation().lines(0, RRQ)[0].startswith("10.0.0.2:2070 > 10.0.0.1:69 TFTP reads")


def test_ipv6_is_told_alike_with_brackets_around_its_addresses() -> None:
    way = Ether(src=MAC, dst=SERVER) / IPv6(src="fd00::2", dst="fd00::1")
    request = way / UDP(sport=2070, dport=69) / Raw(b"\0\1snponly.efi\0octet\0")
    assert Conversation().lines(0, bytes(request)) == ['[fd00::2]:2070 > [fd00::1]:69 TFTP reads "snponly.efi"']
    asked = way / TCP(sport=5000, dport=7080, flags="PA") / Raw(b"GET /healthz HTTP/1.1\r\n\r\n")
    assert Conversation().lines(0, bytes(asked)) == ["[fd00::2]:5000 > [fd00::1]:7080 GET /healthz HTTP/1.1"]
    solicit = bytes(way / UDP(sport=546, dport=547) / Raw(b"\1abc"))
    assert Conversation(lambda _: "in others' words").lines(0, solicit) == ["in others' words"]


def test_window_that_the_kernel_has_not_cut_yet_is_read_as_its_blocks() -> None:
    window = b"\0\3\0\3" + bytes(1468) + b"\0\3\0\4" + bytes(1468) + b"\0\3\0\5" + bytes(10)
    frames = (RRQ, OACK, ack(0), data(1, 1468), ack(2), to_client(40000, 2070, window), ack(5))
    assert said(Conversation(), *frames)[-2:] == [
        "TFTP last block 5, 10 bytes",
        f"TFTP has all of snponly.efi: {4 * 1468 + 10} bytes in 0.600 s",
    ]


def test_blocks_are_counted_on_beyond_the_wrap() -> None:
    acks = [ack(block & 0xFFFF) for block in range(0, 66000, 1000)]
    frames = (RRQ, OACK, *acks, data(65000 + 1000 & 0xFFFF, 0), ack(66000 & 0xFFFF))
    lines = said(Conversation(), *frames)
    assert lines[-2] == "TFTP last block 66000, 0 bytes"
    assert f"{65999 * 1468} bytes" in lines[-1]


def test_late_or_foreign_acknowledgement_does_not_count() -> None:
    late = ack(0)
    foreign = to_client(40000, 2070, b"\0\4\0\3")
    frames = (RRQ, OACK, ack(2), late, data(3, 64), foreign, late, ack(3))
    assert said(Conversation(), *frames)[2:] == [
        "TFTP last block 3, 64 bytes",
        "TFTP has all of snponly.efi: 3000 bytes in 0.700 s",
    ]


def test_client_that_probes_the_size_is_told_with_its_error() -> None:
    error = from_client(2070, 40000, b"\0\5\0\x08User aborted the transfer\0")
    assert said(Conversation(), RRQ, OACK, error)[-1] == 'TFTP error 8 "User aborted the transfer", snponly.efi'
    # What comes from that port after it belongs to nothing.
    assert said(Conversation(), RRQ, OACK, error, data(1, 1468)) == said(Conversation(), RRQ, OACK, error)


def test_refusal_is_told_with_the_servers_words() -> None:
    refusal = to_client(69, 2070, b"\0\5\0\1x: no such file\0")
    assert said(Conversation(), RRQ, refusal)[-1] == 'TFTP error 1 "x: no such file", snponly.efi'


def test_last_block_that_is_sent_again_is_told_as_such() -> None:
    frames = (RRQ, data(1, 100), data(1, 100), ack(1))
    assert said(Conversation(), *frames)[1:] == [
        "TFTP last block 1, 100 bytes",
        "TFTP last block 1, 100 bytes (again)",
        "TFTP has all of snponly.efi: 100 bytes in 0.300 s",
    ]


def test_requests_without_an_end_are_forgotten_at_last() -> None:
    conversation = Conversation()
    for port in range(1000, 1500):
        conversation.lines(0, from_client(port, 69, b"\0\1x\0octet\0"))
    assert len(conversation._transfers) <= 64


def test_http_is_told_by_its_first_lines() -> None:
    request = b"GET /osie/lab/kernel HTTP/1.1\r\nHost: x\r\nUser-Agent: iPXE/1.21\r\nRange: bytes=5-\r\n\r\nbody"
    answer = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 7\r\nX: y\r\n\r\nContent-Type: no"
    assert said(Conversation(), tcp(request), tcp(answer), tcp(b"PRI * HTTP/2.0\r\n\r\n")) == [
        "GET /osie/lab/kernel HTTP/1.1 (user-agent iPXE/1.21, range bytes=5-)",
        "HTTP/1.1 206 Partial Content (content-length 7)",
        "HTTP/2 connection (gRPC)",
    ]


@pytest.mark.parametrize(
    ("packet", "line"),
    [
        (ARP(op=1, hwsrc=MAC, psrc=CLIENT_IP, pdst=SERVER_IP), f"ARP who has 10.0.0.1? asks 10.0.0.2 ({MAC})"),
        (ARP(op=2, hwsrc=SERVER, psrc=SERVER_IP, pdst=CLIENT_IP), f"ARP 10.0.0.1 is at {SERVER}"),
        (ARP(op=1, hwsrc=MAC, psrc="0.0.0.0", pdst=CLIENT_IP), f"ARP probe: does anybody have 10.0.0.2? ({MAC})"),
        (ARP(op=1, hwsrc=MAC, psrc=CLIENT_IP, pdst=CLIENT_IP), f"ARP {MAC} announces 10.0.0.2"),
    ],
)
def test_arp_is_told_as_question_answer_probe_and_announcement(packet: Packet, line: str) -> None:
    assert Conversation().lines(0, bytes(Ether(src=MAC, dst=SERVER) / packet)) == [line]


def test_dhcp_is_told_behind_a_vlan_tag_too() -> None:
    message = BOOTP(op=1, chaddr=bytes.fromhex("525400cc0001")) / DHCP(options=[("message-type", "discover"), "end"])
    inner = IP(src="0.0.0.0", dst="255.255.255.255") / UDP(sport=68, dport=67) / message
    for outer in (Ether(src=MAC), Ether(src=MAC) / Dot1Q(vlan=7)):
        (line,) = Conversation().lines(0, bytes(outer / inner))
        assert line.startswith(f"0.0.0.0:68 > 255.255.255.255:67 DHCPDISCOVER of {MAC} xid 00000000")


def test_later_fragment_is_not_read_as_a_datagram() -> None:
    first = IP(src=SERVER_IP, dst=CLIENT_IP) / UDP(sport=67, dport=68) / Raw(bytes(300))
    piece = Ether(src=SERVER, dst=MAC) / IP(src=SERVER_IP, dst=CLIENT_IP, proto=17, frag=50) / Raw(bytes(first[UDP]))
    assert Conversation().lines(0, bytes(piece)) == []


def test_what_nobody_here_knows_is_left_to_the_other_dissector() -> None:
    frame = bytes(Ether(src=MAC, dst=SERVER) / IP() / ICMP())
    assert Conversation().lines(0, frame) == []
    assert Conversation(lambda found: f"{len(found)} bytes").lines(0, frame) == [f"{len(frame)} bytes"]


@given(st.lists(st.binary(max_size=120), max_size=4))
@settings(max_examples=100, deadline=None)
def test_nothing_that_a_packet_holds_ends_the_capture(payloads: list[bytes]) -> None:
    conversation = Conversation()
    conversation.lines(0, RRQ)
    for payload in payloads:
        for frame in (
            payload,
            bytes(12) + payload,
            bytes(12) + b"\x08\0" + payload,
            bytes(12) + b"\x08\6" + payload,
            from_client(2070, 69, payload),
            from_client(2070, 40000, payload),
            to_client(40000, 2070, payload),
            to_client(67, 68, payload),
            tcp(payload),
        ):
            for line in conversation.lines(0, frame):
                assert "\n" not in line
                assert len(line) < 5000
