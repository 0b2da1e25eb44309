"""TFTP requests as clients write them, and what is agreed on."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.tftp import TFTP, TFTP_ERROR, TFTP_OACK, TFTP_Options

from edge.tftp import packets
from edge.tftp.packets import ErrorCode, Garbage, ReadRequest, RequestError


def rrq(*strings, opcode=1):
    return opcode.to_bytes(2, "big") + b"".join(string.encode() + b"\0" for string in strings)


def agree(*options, size=1000, max_block=1468):
    return packets.negotiate(packets.parse_request(rrq("f", "octet", *options)), size, max_block)


def test_the_requests_of_real_clients_are_understood():
    # EDK2, iPXE, curl, busybox without options, tftp-hpa
    assert packets.parse_request(rrq("snponly.efi", "octet", "tsize", "0", "blksize", "1468", "windowsize", "4")) == (
        ReadRequest("snponly.efi", False, {"tsize": "0", "blksize": "1468", "windowsize": "4"})
    )
    assert packets.parse_request(rrq("f", "octet", "blksize", "1432", "tsize", "0")).options["blksize"] == "1432"
    assert packets.parse_request(rrq("f", "octet", "tsize", "0", "blksize", "512", "timeout", "6")).name == "f"
    assert packets.parse_request(rrq("f", "octet")).options == {}
    assert packets.parse_request(rrq("f", "NetASCII")).netascii


def test_rom_that_fills_its_request_with_nuls_is_understood():
    request = packets.parse_request(rrq("f", "octet", "tsize", "0") + bytes(20))
    assert request.options == {"tsize": "0"}


@pytest.mark.parametrize(
    "datagram",
    [
        b"",
        b"\0\1",
        b"\0\1f\0",
        b"\0\1f\0octet",
        b"\0\1\0octet\0",
        b"\0\3\0\1data\0",
        b"\0\5\0\0x\0",
        rrq("f" * 600, "octet"),
    ],
)
def test_garbage_is_told_from_requests_so_that_it_gets_no_answer(datagram):
    with pytest.raises(Garbage):
        packets.parse_request(datagram)


def test_writing_is_refused_as_an_access_violation():
    with pytest.raises(RequestError, match="read-only") as caught:
        packets.parse_request(rrq("f", "octet", opcode=2))
    assert caught.value.code is ErrorCode.ACCESS_VIOLATION


def test_mail_mode_is_refused():
    with pytest.raises(RequestError, match="octet and netascii"):
        packets.parse_request(rrq("f", "mail"))


@given(st.binary(max_size=600))
def test_no_request_raises_anything_else(datagram):
    for candidate in (datagram, b"\0\1" + datagram, b"\0\1f\0octet\0" + datagram + b"\0"):
        with suppress(Garbage, RequestError):
            agreed = packets.negotiate(packets.parse_request(candidate), 10, 1468)
            assert 8 <= agreed.block_bytes <= 1468
            assert 1 <= agreed.window_blocks <= 64
            packets.oack(agreed.accepted)


def test_options_are_granted_up_to_what_the_way_carries():
    agreed = agree("tsize", "0", "blksize", "65464", "windowsize", "65535", "timeout", "3")
    assert (agreed.block_bytes, agreed.window_blocks, agreed.timeout) == (1468, 64, 3.0)
    assert agreed.accepted == {"tsize": "1000", "blksize": "1468", "windowsize": "64", "timeout": "3"}


def test_no_answer_exceeds_what_edk2_asked_for_or_names_what_it_did_not():
    assert agree("blksize", "1468", "windowsize", "4").accepted == {"blksize": "1468", "windowsize": "4"}
    assert agree("blksize", "512", max_block=65464).accepted == {"blksize": "512"}


def test_values_out_of_range_and_unknown_options_are_left_out_of_the_answer():
    assert agree("blksize", "7", "windowsize", "0", "timeout", "256", "multicast", "").accepted == {}
    assert agree("blksize", "x", "timeout", "-1", "tsize", "9" * 11, "windowsize", "٣").accepted == {}
    assert agree("blksize", "7").block_bytes == 512


def test_option_names_in_capitals_hold_and_come_back_as_written():
    agreed = agree("BLKSIZE", "1024", "blksize", "512")
    assert agreed.block_bytes == 1024
    assert agreed.accepted == {"BLKSIZE": "1024"}


def test_scapy_reads_our_oack_and_error():
    answer = TFTP(packets.oack({"blksize": "1468", "tsize": "5"}))
    assert TFTP_OACK in answer
    assert [(option.oname, option.value) for option in answer[TFTP_Options].options] == [
        (b"blksize", b"1468"),
        (b"tsize", b"5"),
    ]
    refused = TFTP(packets.error(ErrorCode.NOT_FOUND, "nöthing\0here"))[TFTP_ERROR]
    assert (refused.errorcode, refused.errormsg) == (1, b"n?thing?here")


def test_error_message_of_a_client_can_not_forge_log_lines():
    assert packets.parse_error(b"\0\5\0\x08stop\n2026 ERROR\x1b[2J\0rest") == (8, "stop?2026 ERROR?[2J")
    assert packets.parse_error(b"\0\5\0\0") == (0, "")


def test_text_in_netascii_has_the_line_ends_of_the_wire():
    assert packets.to_netascii(b"a\nb\rc\r\nd") == b"a\r\nb\r\0c\r\0\r\nd"
