"""Many datagrams with one system call: the receiving side of the DHCP server's sockets.

When a row of racks is switched on, hundreds of packets wait at once. `recvmmsg` takes up to 64 of them together, and
says by giving fewer that no more are there; Python's own `recvfrom` costs a call for each, one more to learn that there
are none left, and the text of an address that is needed for a few packets only. The C library's function is called
through `ctypes`, while nothing else in this process runs: the call never waits.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import socket
import struct
from typing import Final

_MOST: Final = 64
"""Datagrams that are taken with one call; what waits behind them is taken in the next turn."""

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


_ADDRESS: Final = struct.Struct("!2xH4s8x")  # struct sockaddr_in, of which the family is known
_WORD: Final = 4
_WORDS_OF_MESSAGE: Final = ctypes.sizeof(_Message) // _WORD
_LENGTH_AT: Final = _Message.length.offset // _WORD

# PyDLL, not CDLL: giving up Python's lock and taking it again costs more than the call.
_recvmmsg = ctypes.PyDLL(None, use_errno=True).recvmmsg
_recvmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p)
_recvmmsg.restype = ctypes.c_int


class ReceiveBuffers:
    """Room for the datagrams of one turn. May be used for several sockets in turn."""

    def __init__(self, largest: int) -> None:
        """`largest`: bytes that are kept of one datagram; what is longer is cut, as `recvfrom` does."""
        self._data = mmap.mmap(-1, _MOST * largest)  # gives bytes when it is sliced
        self._names = (ctypes.c_char * (_ADDRESS.size * _MOST))()
        self._vectors = (_Vector * _MOST)()
        self._messages = (_Message * _MOST)()
        data = ctypes.addressof(ctypes.c_char.from_buffer(self._data))
        names, vectors = ctypes.addressof(self._names), ctypes.addressof(self._vectors)
        for number, message in enumerate(self._messages):
            self._vectors[number] = _Vector(data + number * largest, largest)
            message.header = _Header(
                name=names + number * _ADDRESS.size,
                name_length=_ADDRESS.size,
                vectors=vectors + number * ctypes.sizeof(_Vector),
                vector_count=1,
            )
        self._where = ctypes.addressof(self._messages)
        self._starts = range(0, _MOST * largest, largest)
        self._lengths = memoryview(self._messages).cast("B").cast("I")[_LENGTH_AT::_WORDS_OF_MESSAGE]

    def receive(self, sock: socket.socket) -> list[bytes]:
        """The datagrams that wait, 64 at most. Raises OSError, BlockingIOError where there is none."""
        count = _recvmmsg(sock.fileno(), self._where, _MOST, socket.MSG_DONTWAIT, None)
        if count < 0:
            number = ctypes.get_errno()
            if number in (errno.EAGAIN, errno.EINTR):
                raise BlockingIOError(number, os.strerror(number))
            raise OSError(number, os.strerror(number))
        data = self._data
        lengths: list[int] = self._lengths[:count].tolist()
        return [data[at : at + length] for at, length in zip(self._starts, lengths, strict=False)]

    def source(self, number: int) -> tuple[str, int]:
        """Address and port that the datagram of this number, from 0 on, came from."""
        port, address = _ADDRESS.unpack_from(self._names, number * _ADDRESS.size)
        return socket.inet_ntoa(address), port
