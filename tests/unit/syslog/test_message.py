"""What is read of a datagram: both RFCs, what programs make of them, and anything else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.syslog.message import MAX_LINE, SEVERITIES, parse


@pytest.mark.parametrize(
    ("datagram", "line"),
    [
        # RFC 3164 section 5.4, and RFC 5424 section 6.5
        (b"<34>Oct 11 22:14:15 mymachine su: 'su root' failed", "crit su: 'su root' failed"),
        (b"<0>1990 Oct 22 10:52:01 TZ-6 scapegoat", "emerg 1990 Oct 22 10:52:01 TZ-6 scapegoat"),
        (b"Use the BFG!", "notice Use the BFG!"),
        (b"<34>1 2003-10-11T22:14:15.003Z m su - ID47 - \xef\xbb\xbf'su root' failed", "crit su: 'su root' failed"),
        (b"<165>1 2003-08-24T05:14:15.000003-07:00 192.0.2.1 myproc 8 - - %% It's time", "notice myproc: %% It's time"),
        (
            b'<165>1 2003-10-11T22:14:15.003Z h evntslog - ID47 [e@1 iut="3" s="a \\"]\\" b"][x@2] An entry',
            "notice evntslog: An entry",
        ),
        (b"<165>1 - - - - - -", "notice "),
        # Docker's log driver, in each of its forms, and iPXE
        (b"<30>Nov 23 22:10:01 image2disk[812]: done", "info image2disk: done"),
        (b"<30> 2026-11-23T22:10:01Z hookos 3f1b2c[812]: done: 3", "info 3f1b2c: done: 3"),
        (b"<27>Nov  3 22:10:01 m1 dockerd: level=error", "err dockerd: level=error"),
        (b"<14>m1 ipxe: tinkedge: default/m1 boots", "info ipxe: tinkedge: default/m1 boots"),
        (b"<999>x: y", "notice <999>x: y"),
        (b"<1>1 - h a - - [broken x", "alert 1 - h a - - [broken x"),
        (b"", "notice "),
    ],
)  # fmt: skip
def test_message_is_read_as_its_sender_meant_it(datagram: bytes, line: str) -> None:
    assert parse(datagram).line == line


def test_nothing_in_a_line_moves_a_cursor_or_forges_another_line() -> None:
    message = parse(b"<30>x\x1bc: a\nm2 info b\r\x07\t\xff\xe2\x80\xae")
    assert message.text == "a\\nm2 info b\\r\\x07 \\xff\\u202e"
    assert message.program == "x\\x1bc"


@given(st.binary(max_size=400) | st.builds(lambda a, b: b"<13>1 " + a + b' [x@1 a="' + b, st.binary(), st.binary()))
def test_any_bytes_make_one_printable_line_of_bounded_length(datagram: bytes) -> None:
    message = parse(datagram)
    assert message.severity in SEVERITIES
    assert message.line.isprintable()
    assert len(message.text) <= MAX_LINE


def test_long_lines_are_cut_and_read_in_no_time() -> None:
    assert len(parse(b"<30>a: " + b"x" * 60_000).text) == MAX_LINE
    assert parse(b"<30>1 - - - - - " + b'[a b="' * 1400).severity == "info"
