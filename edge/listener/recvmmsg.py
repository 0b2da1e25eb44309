"""Many datagrams with one system call: the receiving side of the DHCP servers' sockets.

When a row of racks is switched on, hundreds of packets wait at once. `recvmmsg` returns up to 64 of them; fewer than
64 mean that no more are waiting. Python's own `recvfrom` costs a call for each packet, another call that finds none,
and the text of an address that few packets need. The C library's function is called through `ctypes` without releasing
Python's lock, because the call never blocks.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import socket
from typing import Final, NamedTuple

_BATCH: Final = 64
"""Maximum number of datagrams of one call. Further ones are read in the next turn."""

# linux/socket.h, bits/types/struct_iovec.h; the layout of a 64-bit machine, which ctypes makes.


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Header(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint32),
        ("vectors", ctypes.c_void_p),
        ("vector_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _Message(ctypes.Structure):
    _fields_ = (("header", _Header), ("length", ctypes.c_uint))


_WORD: Final = 4
_WORDS_OF_MESSAGE: Final = ctypes.sizeof(_Message) // _WORD
_LENGTH_AT: Final = _Message.length.offset // _WORD


class _Form(NamedTuple):
    """The layout of an address (struct sockaddr_in, sockaddr_in6) and of ancillary data, for one address family.

    The ancillary data is the packet's destination alone: a struct cmsghdr, then a struct in6_pktinfo.
    """

    name_size: int
    port: slice
    address: slice
    control_size: int
    destination: slice


_FORMS: Final = {
    socket.AF_INET: _Form(16, slice(2, 4), slice(4, 8), 0, slice(0, 0)),
    socket.AF_INET6: _Form(28, slice(2, 4), slice(8, 24), socket.CMSG_SPACE(20), slice(16, 32)),
}

# PyDLL, not CDLL: releasing Python's lock and taking it again costs more than the call.
_recvmmsg = ctypes.PyDLL(None, use_errno=True).recvmmsg
_recvmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p)
_recvmmsg.restype = ctypes.c_int


class ReceiveBuffers:
    """Buffers for the datagrams of one turn. Several sockets of one family may use them, one after the other.

    Sockets of IPv6 need IPV6_RECVPKTINFO, and no other option that adds ancillary data, before they are bound.
    """

    def __init__(self, largest: int, family: socket.AddressFamily = socket.AF_INET) -> None:
        """`largest` is the maximum size of a datagram; longer ones are truncated, as `recvfrom` does."""
        self._family = family
        self._form = form = _FORMS[family]
        # A slice of an mmap is bytes.
        self._data = mmap.mmap(-1, _BATCH * largest)
        self._names = mmap.mmap(-1, _BATCH * form.name_size)
        self._controls = mmap.mmap(-1, max(_BATCH * form.control_size, 1))
        self._vectors = (_Vector * _BATCH)()
        self._messages = (_Message * _BATCH)()
        data, names, controls = (
            ctypes.addressof(ctypes.c_char.from_buffer(memory)) for memory in (self._data, self._names, self._controls)
        )
        vectors = ctypes.addressof(self._vectors)
        for number, message in enumerate(self._messages):
            self._vectors[number] = _Vector(data + number * largest, largest)
            # The kernel overwrites the lengths of name and control, each time with the same values.
            message.header = _Header(
                name=names + number * form.name_size,
                name_length=form.name_size,
                vectors=vectors + number * ctypes.sizeof(_Vector),
                vector_count=1,
                control=controls + number * form.control_size if form.control_size else None,
                control_length=form.control_size,
            )
        self._where = ctypes.addressof(self._messages)
        self._starts = range(0, _BATCH * largest, largest)
        self._lengths = memoryview(self._messages).cast("B").cast("I")[_LENGTH_AT::_WORDS_OF_MESSAGE]
        self._addresses = _places(form.address, form.name_size)
        self._ports = _places(form.port, form.name_size)
        self._destinations = _places(form.destination, form.control_size)

    def receive(self, sock: socket.socket) -> list[bytes]:
        """Return the waiting datagrams, at most 64. Raises OSError, and BlockingIOError if there is none."""
        count = _recvmmsg(sock.fileno(), self._where, _BATCH, socket.MSG_DONTWAIT, None)
        if count < 0:
            number = ctypes.get_errno()
            if number in (errno.EAGAIN, errno.EINTR):
                raise BlockingIOError(number, os.strerror(number))
            raise OSError(number, os.strerror(number))
        data = self._data
        lengths: list[int] = self._lengths[:count].tolist()
        return [data[at : at + length] for at, length in zip(self._starts, lengths, strict=False)]

    # `number` counts the datagrams of the last `receive` from 0 on:

    def address(self, number: int) -> bytes:
        """Return the source address of a datagram, four or sixteen bytes."""
        return self._names[self._addresses[number]]

    def destination(self, number: int) -> bytes:
        """Return the destination address of a datagram; empty for IPv4."""
        return self._controls[self._destinations[number]]

    def source(self, number: int) -> tuple[str, int]:
        """Return the source address and port of a datagram."""
        port = int.from_bytes(self._names[self._ports[number]], "big")
        return socket.inet_ntop(self._family, self.address(number)), port


def _places(place: slice, size: int) -> list[slice]:
    """Return a field's slices in an array of structures of `size` bytes."""
    return [slice(place.start + size * number, place.stop + size * number) for number in range(_BATCH)]
