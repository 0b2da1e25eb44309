"""How bursts go to the kernel, over a socket that can be full, old or broken."""

import errno
import os
import socket
import struct
from typing import cast

import pytest

from edge.tftp.transport import UdpTransport

CLIENT = ("10.0.0.1", 4000)


class Kernel:
    """Takes what it is given to send, and cuts it; `refuse` maps the number of a call to the error that it gives."""

    def __init__(self, refuse=None, segments=True):
        self.calls = []
        self.packets = []
        self.ancillary = []
        self._refuse = refuse or {}
        self._segments = segments
        self._number = 0

    def sendmsg(self, buffers, ancillary, flags, address):
        assert (flags, address) == (0, CLIENT)
        (data,) = buffers
        segments = [value for level, kind, value in ancillary if (level, kind) == (socket.SOL_UDP, 103)]
        size = struct.unpack("=H", segments[0])[0] if segments else len(data)
        self._take([bytes(data[at : at + size]) for at in range(0, len(data), size)])
        self.ancillary = ancillary

    def sendto(self, data, address):
        assert address == CLIENT
        self._take([bytes(data)])
        self.ancillary = []

    def _take(self, packets):
        number, self._number = self._number, self._number + 1
        code = self._refuse.get(number)
        if len(packets) > 1 and not self._segments:
            code = errno.EINVAL
        if code is not None:
            raise OSError(code, os.strerror(code))
        self.calls.append(len(packets))
        self.packets += packets


def packet(number, block_bytes=1468):
    return b"%04d" % number + b"x" * block_bytes


def burst_of(count, block_bytes=1468, ready=False):
    """The last packet is short."""
    packets = [packet(number, block_bytes) for number in range(count - 1)] + [packet(count - 1, block_bytes - 1)]
    if ready:
        return memoryview(b"".join(packets))
    return [part for whole in packets for part in (whole[:4], memoryview(whole)[4:])]


def transport(kernel, block_bytes=1468, local=None):
    return UdpTransport(cast(socket.socket, kernel), CLIENT, block_bytes, local)


@pytest.mark.parametrize(
    ("block_bytes", "count", "calls"),
    [
        (1468, 1, [1]),
        (1468, 2, [1, 1]),  # not worth it
        (1468, 3, [3]),
        (1468, 44, [44]),
        (1468, 64, [44, 20]),  # a datagram holds 44
        (8, 64, [64]),
        (512, 64, [64]),
        (8968, 16, [7, 7, 2]),  # jumbo frames
        (16000, 8, [4, 4]),
        (20000, 6, [3, 3]),
        (30000, 4, [1] * 4),
    ],
)
@pytest.mark.parametrize("ready", [False, True])
def test_window_goes_out_in_as_few_system_calls_as_the_kernel_allows(block_bytes, count, calls, ready):
    kernel = Kernel()
    assert transport(kernel, block_bytes).send(burst_of(count, block_bytes, ready)) == 0
    assert kernel.calls == calls
    assert kernel.packets[:-1] == [packet(number, block_bytes) for number in range(count - 1)]
    assert kernel.packets[-1] == packet(count - 1, block_bytes - 1)


def test_answer_that_is_longer_than_a_block_is_one_packet():
    kernel = Kernel()
    transport(kernel, 8).send([b"\0\6blksize\0008\0windowsize\00064\0tsize\000300000\0", b""])
    assert kernel.packets == [b"\0\6blksize\0008\0windowsize\00064\0tsize\000300000\0"]


def test_kernel_is_told_the_length_of_a_packet_and_the_address_to_send_from():
    kernel = Kernel()
    transport(kernel, 1468).send(burst_of(1))
    assert kernel.ancillary == []
    transport(kernel, 1468).send(burst_of(4))
    assert kernel.ancillary == [(socket.SOL_UDP, 103, struct.pack("=H", 1472))]
    from_address = (socket.IPPROTO_IP, 8, bytes(4) + bytes((10, 0, 0, 9)) + bytes(4))
    transport(kernel, 1468, "10.0.0.9").send(burst_of(1))
    assert kernel.ancillary == [from_address]
    transport(kernel, 1468, "10.0.0.9").send(burst_of(4))
    assert kernel.ancillary == [from_address, (socket.SOL_UDP, 103, struct.pack("=H", 1472))]


def test_kernel_that_does_not_cut_windows_is_asked_once():
    kernel = Kernel(segments=False)
    to_client = transport(kernel)
    assert to_client.send(burst_of(5)) == 0
    assert to_client.send(burst_of(5)) == 0
    assert kernel.calls == [1] * 10
    assert kernel._number == 11


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EIO, errno.EMSGSIZE, errno.EOPNOTSUPP, errno.ENOPROTOOPT])
def test_way_that_became_narrow_in_the_middle_of_a_window_loses_nothing(code):
    kernel = Kernel({1: code})
    assert transport(kernel).send(burst_of(64)) == 0
    assert kernel.calls == [44] + [1] * 20
    assert kernel.packets == [*map(packet, range(63)), packet(63, 1467)]


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.ENOBUFS])
def test_packets_that_there_was_no_room_for_are_counted(code):
    assert transport(Kernel({0: code})).send(burst_of(1)) == 1
    assert transport(Kernel({0: code})).send(burst_of(64)) == 64
    assert transport(Kernel({1: code})).send(burst_of(64)) == 20
    assert transport(Kernel({1: code})).send(burst_of(2)) == 1
    assert transport(Kernel({3: code}, segments=False)).send(burst_of(5)) == 3


def test_other_errors_are_the_callers():
    for count in (1, 2, 64):
        with pytest.raises(ConnectionRefusedError):
            transport(Kernel({0: errno.ECONNREFUSED})).send(burst_of(count))
