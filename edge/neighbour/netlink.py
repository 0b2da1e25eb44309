"""The kernel's rtnetlink, as far as several modules of this room speak it: questions, answers, what it tells by itself.

The kernel puts its answer into our queue before `send` returns, so a question is a plain function call. What changes
while we run it tells those who have joined a multicast group (rtnetlink(7)). None of it needs a privilege.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

# linux/netlink.h
NLMSG_ERROR: Final = 2
NLM_F_REQUEST: Final = 1
_NLMSG_DONE: Final = 3
_NLM_F_DUMP: Final = 0x300
_SOL_NETLINK: Final = 270
_NETLINK_GET_STRICT_CHK: Final = 12

HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
ATTRIBUTE = struct.Struct("=HH")  # rtattr: length, type

_PER_TURN: Final = 256
_ANSWER_BYTES: Final = 65536


def open_socket() -> socket.socket:
    """A non-blocking socket of rtnetlink in this network namespace. Raises OSError."""
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    sock.setblocking(False)
    return sock


def question(kind: int, body: bytes, sequence: int, *, dump: bool = False) -> bytes:
    """A message that asks; with `dump` for all there are."""
    flags = NLM_F_REQUEST | (_NLM_F_DUMP if dump else 0)
    return HEADER.pack(HEADER.size + len(body), kind, flags, sequence, 0) + body


def attribute(name: int, value: bytes) -> bytes:
    """An attribute (struct rtattr), padded."""
    size = ATTRIBUTE.size + len(value)
    return ATTRIBUTE.pack(size, name) + value + bytes(-size % 4)


def attributes_of(message: bytes, at: int) -> dict[int, bytes]:
    """The attributes (struct rtattr) of a message of rtnetlink, from `at` to its end."""
    found: dict[int, bytes] = {}
    end = min(HEADER.unpack_from(message)[0], len(message))
    while at + ATTRIBUTE.size <= end:
        size, name = ATTRIBUTE.unpack_from(message, at)
        if size < ATTRIBUTE.size:
            break
        found[name] = message[at + ATTRIBUTE.size : at + size]
        at += size + 3 & ~3
    return found


def error_of(message: bytes) -> int:
    """The error number in an NLMSG_ERROR; 0: it is an acknowledgement."""
    return -int(struct.unpack_from("=i", message, HEADER.size)[0])


def ask(asked: bytes) -> bytes:
    """The one message that answers `asked`. Raises OSError, with what the kernel says."""
    with open_socket() as kernel:
        kernel.send(asked)
        answer = kernel.recv(_ANSWER_BYTES)
    if HEADER.unpack_from(answer)[1] == NLMSG_ERROR and (number := error_of(answer)):
        raise OSError(number, os.strerror(number))
    return answer


def ask_for_all(asked: bytes) -> Iterator[bytes]:
    """The messages that answer `asked`, a dump, which the kernel narrows to what the body names. Raises OSError."""
    with open_socket() as kernel:
        with suppress(OSError):  # before Linux 4.20 it gives more than was asked for, and the caller looks anyhow
            kernel.setsockopt(_SOL_NETLINK, _NETLINK_GET_STRICT_CHK, 1)
        kernel.send(asked)
        while True:
            for message in _messages(kernel.recv(_ANSWER_BYTES)):
                kind = HEADER.unpack_from(message)[1]
                if kind == NLMSG_ERROR and (number := error_of(message)):
                    raise OSError(number, os.strerror(number))
                if kind in (_NLMSG_DONE, NLMSG_ERROR):
                    return
                yield message


def _messages(datagram: bytes) -> Iterator[bytes]:
    at = 0
    while at + HEADER.size <= len(datagram):
        size = HEADER.unpack_from(datagram, at)[0]
        if size < HEADER.size:
            return
        yield datagram[at : at + size]
        at += size + 3 & ~3


class Multicast:
    """Calls `heard(message)` for each message of the groups, `heard(None)` when some were missed. Needs a running loop.

    `groups` are RTMGRP_ bits of linux/rtnetlink.h.
    """

    def __init__(self, groups: int, heard: Callable[[bytes | None], None]) -> None:
        """Raises OSError where the kernel has no such messages."""
        self._heard = heard
        self._socket = open_socket()
        try:
            self._socket.bind((0, groups))
        except OSError:
            self._socket.close()
            raise
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._hear)

    def close(self) -> None:
        """Hear no more."""
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _hear(self) -> None:
        for _ in range(_PER_TURN):
            try:
                message = self._socket.recv(_ANSWER_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:  # more than the queue holds: what they were is not known
                    raise
                self._heard(None)
                continue
            self._heard(message)
