"""Requests to the kernel by rtnetlink(7), and its notifications. Not by pyroute2: docs/engineering/libraries.md.

The kernel puts its answer into our queue before `send` returns, so a request is a plain function call that takes some
microseconds. No privilege is needed to ask and to be notified.
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
_ATTRIBUTE = struct.Struct("=HH")  # rtattr: length, type

_MAX_MESSAGES_A_TURN: Final = 256
_MAX_ANSWER_BYTES: Final = 65536


def open_socket() -> socket.socket:
    """Open a non-blocking rtnetlink socket in this network namespace. Raises OSError."""
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    sock.setblocking(False)
    return sock


def request(kind: int, body: bytes, sequence: int = 1, *, flags: int = 0) -> bytes:
    """Build a request of this type (RTM_...), with the `flags` beside NLM_F_REQUEST."""
    return HEADER.pack(HEADER.size + len(body), kind, NLM_F_REQUEST | flags, sequence, 0) + body


def attribute(name: int, value: bytes) -> bytes:
    """Build an attribute (struct rtattr), padded to four bytes."""
    size = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(size, name) + value + bytes(-size % 4)


def attributes_of(message: bytes, at: int) -> dict[int, bytes]:
    """Parse the attributes (struct rtattr) of a message, from `at` to its end."""
    found: dict[int, bytes] = {}
    end = min(HEADER.unpack_from(message)[0], len(message))
    while at + _ATTRIBUTE.size <= end:
        size, name = _ATTRIBUTE.unpack_from(message, at)
        if size < _ATTRIBUTE.size:
            break
        found[name] = message[at + _ATTRIBUTE.size : at + size]
        at += size + 3 & ~3
    return found


def error_of(message: bytes) -> int:
    """Return the error number of an NLMSG_ERROR; 0 for an acknowledgement."""
    return -int(struct.unpack_from("=i", message, HEADER.size)[0])


def ask(message: bytes) -> bytes:
    """Send a request and return the answer, which is one message. Raises OSError with the kernel's error."""
    with open_socket() as kernel:
        kernel.send(message)
        answer = kernel.recv(_MAX_ANSWER_BYTES)
    if HEADER.unpack_from(answer)[1] == NLMSG_ERROR and (number := error_of(answer)):
        raise OSError(number, os.strerror(number))
    return answer


def dump(kind: int, body: bytes, answer_kind: int) -> Iterator[bytes]:
    """Request all entries that the body selects, and yield the messages of type `answer_kind`. Raises OSError."""
    with open_socket() as kernel:
        with suppress(OSError):  # Before Linux 4.20 the kernel selects less strictly; the callers check the answers.
            kernel.setsockopt(_SOL_NETLINK, _NETLINK_GET_STRICT_CHK, 1)
        kernel.send(request(kind, body, flags=_NLM_F_DUMP))
        while True:
            for message in _messages(kernel.recv(_MAX_ANSWER_BYTES)):
                found = HEADER.unpack_from(message)[1]
                if found == NLMSG_ERROR and (number := error_of(message)):
                    raise OSError(number, os.strerror(number))
                if found in (_NLMSG_DONE, NLMSG_ERROR):
                    return
                if found == answer_kind:
                    yield message


def _messages(datagram: bytes) -> Iterator[bytes]:
    at = 0
    while at + HEADER.size <= len(datagram):
        size = HEADER.unpack_from(datagram, at)[0]
        if size < HEADER.size:
            return
        yield datagram[at : at + size]
        at += size + 3 & ~3


class Notifications:
    """Calls `notify(message)` for each notification of the kernel. Needs a running event loop."""

    def __init__(self, groups: int, notify: Callable[[bytes | None], None]) -> None:
        """Join `groups` (RTMGRP_ bits). `notify(None)`: the kernel dropped notifications. Raises OSError."""
        self._notify = notify
        self._socket = open_socket()
        try:
            self._socket.bind((0, groups))
        except OSError:
            self._socket.close()
            raise
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._on_readable)

    def close(self) -> None:
        """Stop the notifications."""
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _on_readable(self) -> None:
        for _ in range(_MAX_MESSAGES_A_TURN):
            try:
                message = self._socket.recv(_MAX_ANSWER_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self._notify(None)
                continue
            self._notify(message)
