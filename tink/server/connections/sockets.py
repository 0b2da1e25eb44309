"""The sockets that gRPC has accepted, as the kernel knows them: found, measured, ended, and kept away.

gRPC's core owns them and tells nothing of them, but they are file descriptors of this very process. They are found in
/proc/self/fd by the port that they are bound to; how much has come in, the kernel counts (TCP_INFO). A socket is ended
by connect(2) to nowhere (AF_UNSPEC) on a duplicate of its descriptor: that resets the connection, and drops what has
come in and was not read yet, which after a shutdown(2) would still be read. Whether the duplicate is what was meant can
be looked at before, so that nobody else is hit when gRPC closes it in this moment and the number is somebody else's.
gRPC finds the connection broken, which happens to it all day, and closes it. What may not come in is dropped by a
filter of the listening socket (SO_ATTACH_FILTER, classic BPF), before there is a connection: that costs nothing, and a
client tries again by itself.

All of it needs no privilege.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import stat
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tink.net.addresses import Block
from tink.net.bytes_received import bytes_received
from tink.server.peer import spelled

MOST_BLOCKS: Final = 128
"""Blocks that are kept away at once: a filter has room for 4,096 instructions, and some kernels for half of them."""

_DESCRIPTORS: Final = "/proc/self/fd"
_COUNTERS: Final = Path("/proc/self/net/snmp")
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27  # asm-generic/socket.h
_NOWHERE: Final = struct.pack("=H14x", socket.AF_UNSPEC)
"""struct sockaddr."""
_connect: Final = ctypes.CDLL(None).connect
"""connect(2); Python's own knows no such address."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A connection by its other end: an IP address (IPv4 is spelled as IPv4 on whatever socket) and a port."""

    address: str
    port: int

    def __str__(self) -> str:
        return f"{self.address} port {self.port}"


@dataclass(frozen=True, slots=True)
class Accepted:
    """A descriptor, and which socket it was when it was looked at (device and inode)."""

    fd: int
    identity: tuple[int, int]
    peer: Peer


class Sockets:
    """Those of this process that are bound to `port`."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._known: dict[int, tuple[tuple[int, int], Accepted | None]] = {}
        self._listening: list[tuple[int, tuple[int, int]]] = []
        self._away: frozenset[Block] = frozenset()

    def accepted(self) -> Iterator[Accepted | None]:
        """All connections; None for any other descriptor, so that the caller can pause on its way."""
        found = [int(name) for name in os.listdir(_DESCRIPTORS)]  # noqa: PTH208 - numbers are enough
        for gone in self._known.keys() - set(found):
            del self._known[gone]
        for fd in found:
            yield self._look(fd)

    def _look(self, fd: int) -> Accepted | None:
        try:
            state = os.fstat(fd)
        except OSError:
            self._known.pop(fd, None)
            return None
        identity = state.st_dev, state.st_ino
        known = self._known.get(fd)
        if known is not None and known[0] == identity:
            return known[1]
        self._known.pop(fd, None)
        if not stat.S_ISSOCK(state.st_mode):
            self._known[fd] = identity, None
            return None
        with contextlib.suppress(OSError), _duplicate(fd, identity) as sock:
            self._known[fd] = identity, self._meet(fd, identity, sock)
            return self._known[fd][1]
        return None

    def _meet(self, fd: int, identity: tuple[int, int], sock: socket.socket) -> Accepted | None:
        """Raises OSError if it has ended."""
        if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
            return None
        if sock.getsockname()[1] != self._port:
            return None
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            self._listening.append((fd, identity))
            if self._away:
                _attach(sock, self._away)
            return None
        address, port = sock.getpeername()[:2]
        return Accepted(fd, identity, Peer(spelled(address), port))

    def keep_away(self, blocks: frozenset[Block]) -> None:
        """No new connections from there, until this is called again. Raises OSError where the kernel won't have it."""
        self._away = blocks
        for fd, identity in [*self._listening]:
            try:
                with _duplicate(fd, identity) as sock:
                    _attach(sock, blocks)
            except StaleError:
                self._listening.remove((fd, identity))

    def received(self, accepted: Accepted) -> int:
        """How many bytes have come in on a connection so far; 0 if it has ended.

        It is asked by the descriptor as it is, which may be another connection's since a moment: a hint, that `end`
        confirms.
        """
        try:
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=accepted.fd)
        except OSError:
            return 0
        try:
            return bytes_received(sock)
        except OSError:
            return 0
        finally:
            sock.detach()

    def end(self, accepted: Accepted, at_least: int = 0) -> bool:
        """Break a connection; False if it is not there any more, or has received fewer bytes than `at_least`."""
        with contextlib.suppress(OSError), _duplicate(accepted.fd, accepted.identity) as sock:
            if at_least and bytes_received(sock) < at_least:
                return False
            return bool(_connect(sock.fileno(), _NOWHERE, len(_NOWHERE)) == 0)
        return False


class StaleError(OSError):
    """A descriptor is another file by now."""


@contextlib.contextmanager
def _duplicate(fd: int, identity: tuple[int, int]) -> Iterator[socket.socket]:
    """The socket that a descriptor was. Raises OSError."""
    try:
        copy = os.dup(fd)
    except OSError as error:
        raise StaleError(*error.args) from error
    try:
        state = os.fstat(copy)
        if (state.st_dev, state.st_ino) != identity:
            raise StaleError(f"descriptor {fd} is another file by now")
        sock = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with sock:
        yield sock


def opened() -> int:
    """How many connections have come in so far on any port of this network namespace; -1 where that can't be read."""
    try:
        lines = [line.split() for line in _COUNTERS.read_text().splitlines() if line.startswith("Tcp:")]
        return int(lines[1][lines[0].index("PassiveOpens")])
    except (OSError, ValueError, IndexError):
        return -1


def descriptors() -> int:
    """How many descriptors this process has open; -1 where the kernel does not say (before Linux 6.2)."""
    try:
        return os.stat(_DESCRIPTORS).st_size or -1  # noqa: PTH116 - many times a second
    except OSError:
        return -1


# --- the filter -------------------------------------------------------------------------------------------------------

_NETWORK_HEADER: Final = -0x100000  # SKF_NET_OFF in linux/filter.h: where loads are counted from the IP header
_LOAD_WORD, _LOAD_BYTE, _SHIFT_RIGHT, _EQUAL, _ALWAYS, _RETURN = 0x20, 0x30, 0x74, 0x15, 0x05, 0x06
_DROP, _TAKE = 0, 0xFFFFFFFF
_SOURCE_V4, _SOURCE_V6 = 12, 8

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false (both in instructions that are passed over), constant."""


def program(blocks: Iterable[Block]) -> list[Instruction]:
    """Classic BPF that drops packets from `blocks`: IPv4 addresses, and IPv6 networks of 64 bits.

    A connection that came in over IPv4 to a socket of IPv6 has an IPv4 header here.
    """
    v4 = [_load(_LOAD_WORD, _SOURCE_V4)]
    v6: list[Instruction] = []
    for block in sorted(blocks, key=str):
        number = int(block.network_address)
        if block.version == 4:
            v4 += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _DROP)]
        else:
            v6 += [
                _load(_LOAD_WORD, _SOURCE_V6),
                (_EQUAL, 0, 3, number >> 96),
                _load(_LOAD_WORD, _SOURCE_V6 + 4),
                (_EQUAL, 0, 1, number >> 64 & 0xFFFFFFFF),
                (_RETURN, 0, 0, _DROP),
            ]
    take: Instruction = (_RETURN, 0, 0, _TAKE)
    head = [
        _load(_LOAD_BYTE, 0),
        (_SHIFT_RIGHT, 0, 0, 4),
        (_EQUAL, 1, 0, 4),
        (_ALWAYS, 0, 0, len(v4) + 1),  # past what is for IPv4 and its end; a conditional jump does not reach that far
    ]
    return [*head, *v4, take, *v6, take]


def _load(size: int, offset: int) -> Instruction:
    return size, 0, 0, _NETWORK_HEADER + offset & 0xFFFFFFFF


def _attach(sock: socket.socket, blocks: frozenset[Block]) -> None:
    if not blocks:
        with contextlib.suppress(FileNotFoundError):  # there is none
            sock.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
        return
    code = b"".join(struct.pack("=HBBI", *each) for each in program(blocks))
    kept = ctypes.create_string_buffer(code, len(code))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(code) // 8, ctypes.addressof(kept)))
