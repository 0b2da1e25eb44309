"""Parses syslog messages of RFC 5424 and RFC 3164, and of programs that follow neither exactly. Pure.

No datagram is rejected: one without a known format is all text (RFC 3164 section 4.3.3).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tink.printable import escaped

MAX_BYTES: Final = 8192  # number of bytes of a datagram that are parsed. RFC 5424 section 6.1 requires at least 2048.
MAX_LINE: Final = 2000  # number of characters of the text that are stored
_MAX_NAME: Final = 48

SEVERITIES: Final = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
_DEFAULT_PRIORITY: Final = 13  # user.notice, RFC 3164 section 4.3.3
_MAX_PRIORITY: Final = 191

_PRIORITY = re.compile(rb"<(\d{1,3})> ?")
_RFC_5424 = re.compile(rb"1 (\S+) (\S+) (\S+) (\S+) (\S+) ")
_ELEMENT = re.compile(rb'\[[^\s\]="]+(?: [^\s\]="]+="(?:[^"\\]|\\.)*")*\]', re.DOTALL)
_TIME = re.compile(rb"(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT[0-9:.]+(?:Z|[+-]\d\d:\d\d)) ")
_TAG = re.compile(rb"([^\s:\[\]]+)(?:\[[^\]\s]*\])?: ?")
_HOST = re.compile(rb"[^\s:\[\]]+ ")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Message:
    """A syslog message."""

    severity: str  # a word of SEVERITIES
    program: str  # the name of the program that logged, or empty
    text: str  # one printable line

    @property
    def line(self) -> str:
        """The message as one line for people."""
        return f"{self.severity} {self.program}: {self.text}" if self.program else f"{self.severity} {self.text}"


def parse(datagram: bytes) -> Message:
    """Return the message in a datagram, which may have any bytes."""
    raw = datagram[:MAX_BYTES].rstrip(b"\r\n\0 ")
    priority, at = _DEFAULT_PRIORITY, 0
    match = _PRIORITY.match(raw)
    if match is not None and int(match[1]) <= _MAX_PRIORITY:
        priority, at = int(match[1]), match.end()
    program, text = _of_5424(raw, at) or _of_3164(raw, at)
    return Message(SEVERITIES[priority % 8], _printable(program, _MAX_NAME), _printable(text, MAX_LINE))


def _of_5424(raw: bytes, at: int) -> tuple[bytes, bytes] | None:
    header = _RFC_5424.match(raw, at)
    if header is None:
        return None
    at = header.end()
    if raw.startswith(b"-", at):
        at += 1
    else:
        elements = _ELEMENT.match(raw, at)
        if elements is None:
            return None
        while elements is not None:
            at = elements.end()
            elements = _ELEMENT.match(raw, at)
    name = header[3]
    return b"" if name == b"-" else name, raw[at:].removeprefix(b" ").removeprefix(_BOM)


def _of_3164(raw: bytes, at: int) -> tuple[bytes, bytes]:
    # iPXE leaves out the time.
    time = _TIME.match(raw, at)
    at = time.end() if time is not None else at
    # Docker's log driver, by which HookOS sends the output of containers, leaves out the host's name.
    tag = _TAG.match(raw, at)
    if tag is None and (host := _HOST.match(raw, at)) is not None:
        tag = _TAG.match(raw, host.end())
    return (tag[1], raw[tag.end() :]) if tag is not None else (b"", raw[at:])


def _printable(raw: bytes, longest: int) -> str:
    """Return the text as one line without characters that move a terminal's cursor or start another line."""
    text = escaped(raw.decode(errors="backslashreplace").replace("\t", " "))
    return text if len(text) <= longest else text[: longest - 1] + "…"
