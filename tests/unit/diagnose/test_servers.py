"""An answer to the probe is an offer to it, and nothing else that passes by."""

from __future__ import annotations

import pytest
from scapy.layers.dhcp import BOOTP, DHCP
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import ARP, Ether

from edge.dhcp.wire import codec, options
from edge.diagnose.servers import Offer, _read, discover

MAC = bytes.fromhex("02aabbccddee")
XID = bytes.fromhex("00000007")


def frame(kind: str = "offer", *more: tuple[str, str], op: int = 2, xid: int = 7, **fields: object) -> bytes:
    way = Ether(src="02:00:00:00:00:01", dst="ff:ff:ff:ff:ff:ff") / IP(src="10.0.0.9", dst="255.255.255.255")
    message = BOOTP(op=op, xid=xid, chaddr=MAC, **fields) / DHCP(options=[("message-type", kind), *more, "end"])
    return bytes(way / UDP(sport=67, dport=68) / message)


def test_offer_of_an_address_and_a_boot_file() -> None:
    found = frame("offer", ("server_id", "10.0.0.1"), yiaddr="10.0.0.5", siaddr="10.0.0.2", file=b"x.efi")
    assert _read(found, XID) == Offer("10.0.0.1", "02:00:00:00:00:01", "10.0.0.5", "x.efi from 10.0.0.2")


def test_offer_without_an_identifier_is_that_of_its_sender() -> None:
    assert _read(frame(), XID) == Offer("10.0.0.9", "02:00:00:00:00:01", "", "")


def test_boot_file_is_taken_from_option_67_too() -> None:
    found = _read(frame("offer", ("boot-file-name", "y.efi\0")), XID)
    assert found is not None
    assert found.boots == "y.efi"


@pytest.mark.parametrize(
    "found",
    [
        frame("ack"),
        frame("nak"),
        frame(op=1),
        frame(xid=8),
        frame()[:100],
        bytes(Ether() / ARP()),
        b"",
    ],
    ids=["ack", "nak", "question", "another transaction", "cut off", "arp", "nothing"],
)
def test_nothing_else_is_an_offer(found: bytes) -> None:
    assert _read(found, XID) is None


def test_question_is_one_that_a_uefi_machine_asks() -> None:
    message = codec.parse(discover(MAC, XID))
    assert (message.op, message.chaddr, message.xid, message.flags) == (1, MAC, XID, 0x8000)
    assert message.options[options.CLIENT_ARCHITECTURE] == b"\0\7"
    assert {options.BOOTFILE_NAME, options.TFTP_SERVER_NAME} <= set(message.options[options.PARAMETER_REQUEST_LIST])
