"""TFTP downloads by firmware: RFC 1350, with options (RFC 2347, 2348, 2349) and windows (RFC 7440). Pure.

EDK2 first requests only the size (`tsize=0`) and aborts with ERROR 8, then reads the file in windows of four blocks.
PXE ROMs of BIOSes do the same with one block at a time. Content is counted and dropped; gaps and the end are detected.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from edge.tftp import Opcode
from tink.errors import TinkedgeError

TIMEOUT_SECONDS: Final = 4.0
"""Seconds before a packet is repeated: EDK2's (PXEBC_MTFTP_TIMEOUT)."""
ATTEMPTS: Final = 6
"""Maximum number of transmissions (PXEBC_MTFTP_RETRIES)."""
PORT: Final = 69
_USER_ABORTED: Final = b"\0\5\0\x08User aborted the transfer\0"
_DEFAULT_BLOCK_BYTES: Final = 512


class TftpError(TinkedgeError):
    """The transfer failed; the message has the server's error, if it sent one."""


class Reads(Enum):
    """The options that firmware requests: for its probe, and for the transfer."""

    BIOS = ({"tsize": "0"}, {"blksize": "1456"})
    UEFI = ({"tsize": "0", "blksize": "1468", "windowsize": "4"}, {"blksize": "1468", "windowsize": "4"})


class Reading:
    """One transfer. Pass received packets to `receive` and send the packets that it returns.

    A `probe` ends when the server has answered with the size or an error: then `answer` is sent, and `size` is set.
    """

    __slots__ = ("_asked", "_block", "_expected", "_last", "_probe", "_since", "_window", "done", "received", "size")

    def __init__(self, name: str, asked: Mapping[str, str], *, probe: bool = False) -> None:
        strings = [name, "octet", *(part for option in asked.items() for part in option)]
        self._asked = asked
        self._probe = probe
        self._block = _DEFAULT_BLOCK_BYTES
        self._window = 1
        self._since = 0
        """Blocks received in this window."""
        self._expected = 1
        self._last = b"\0\1" + b"".join(each.encode("latin-1", "replace") + b"\0" for each in strings)
        self.size: int | None = None
        self.received = 0
        self.done = False

    def packet(self) -> bytes:
        """Return the packet that was sent last; at first the request."""
        return self._last

    def receive(self, datagram: bytes) -> bytes | None:
        """Process a packet; return the packet to send, or None. Raises TftpError."""
        if len(datagram) < 4 or self.done:
            return None
        opcode = datagram[1]
        if opcode == Opcode.DATA:
            return self._data(int.from_bytes(datagram[2:4], "big"), len(datagram) - 4)
        if opcode == Opcode.OACK and not self.received:
            return self._agreed(datagram)
        if opcode == Opcode.ERROR:
            text = datagram[4:].partition(b"\0")[0].decode("ascii", "replace")
            raise TftpError(f"error {int.from_bytes(datagram[2:4], 'big')}: {text}")
        return None

    def _agreed(self, datagram: bytes) -> bytes:
        strings = datagram[2:].split(b"\0")[:-1]
        said = {
            name.decode("ascii", "replace").lower(): value
            for name, value in zip(strings[::2], strings[1::2], strict=False)
        }
        if unasked := set(said) - {name.lower() for name in self._asked}:
            raise TftpError(f"the server grants options that were not requested: {', '.join(sorted(unasked))}")
        try:
            numbers = {name: int(value) for name, value in said.items()}
        except ValueError:
            raise TftpError("the server grants an option without a number") from None
        self.size = numbers.get("tsize", self.size)
        if self._probe:
            self.done = True
            self._last = _USER_ABORTED
            return self._last
        self._block = numbers.get("blksize", _DEFAULT_BLOCK_BYTES)
        self._window = max(numbers.get("windowsize", 1), 1)
        for name in ("blksize", "windowsize"):  # EDK2: Mtftp4RrqOackValid
            if numbers.get(name, 0) > int(self._asked.get(name, "0")):
                raise TftpError(f"the server grants a larger {name} than was requested")
        return self._ack(0)

    def _data(self, number: int, size: int) -> bytes | None:
        if self._probe:  # a server without options does not tell the size: go on with the file
            self.done = True
            self._last = _USER_ABORTED
            return self._last
        if number != self._expected & 0xFFFF:
            # After a gap or a repeated window, the last block received in order is acknowledged (RFC 7440 section 4).
            if not self._since:
                return None
            self._since = 0
            return self._ack(self._expected - 1)
        self._expected += 1
        self.received += size
        self._since += 1
        if size < self._block:
            self.done = True
            return self._ack(self._expected - 1)
        if self._since < self._window:
            return None
        self._since = 0
        return self._ack(self._expected - 1)

    def repeated(self) -> bytes:
        """Return the packet to send after a timeout."""
        if self._expected > 1:
            self._since = 0
            self._ack(self._expected - 1)
        return self._last

    def _ack(self, number: int) -> bytes:
        self._last = b"\0\4" + (number & 0xFFFF).to_bytes(2, "big")
        return self._last
