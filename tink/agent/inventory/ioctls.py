"""Calls of the Linux kernel that no file in /sys replaces: network cards (netdevice(7), ethtool) and IPMI devices."""

from __future__ import annotations

import array
import ctypes
import fcntl
import os
import select
import socket
import struct
import time
from pathlib import Path
from typing import Final

from tink.api.inventory import mac_address

# --- network cards ---

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCETHTOOL = 0x8913, 0x8914, 0x8946
_IFF_UP: Final = 1
_ETHTOOL_GDRVINFO, _ETHTOOL_GPERMADDR = 0x03, 0x20
_MAX_ADDRESS_BYTES: Final = 32
_NAME_BYTES: Final = 16


def permanent_mac(card: str) -> str:
    """Return the MAC address that the manufacturer gave a network card; empty if the driver has none.

    A bond changes the other address, that in /sys. Raises OSError if the card does not exist.
    """
    answer = _ethtool(card, struct.pack("II", _ETHTOOL_GPERMADDR, _MAX_ADDRESS_BYTES) + bytes(_MAX_ADDRESS_BYTES))
    size = struct.unpack_from("I", answer, 4)[0]
    return mac_address(answer[8:14].hex(":")) if size == 6 else ""


def driver_firmware(card: str) -> str:
    """Return the version of a network card's firmware as its driver reports it. Raises OSError."""
    # struct ethtool_drvinfo: cmd 4, driver 32, version 32, fw_version 32, and 96 more bytes
    answer = _ethtool(card, struct.pack("I", _ETHTOOL_GDRVINFO) + bytes(192))
    return answer[68:100].partition(b"\0")[0].decode(errors="replace")


def _ethtool(card: str, command: bytes) -> bytes:
    buffer = array.array("B", command)
    address, _ = buffer.buffer_info()
    request = struct.pack(f"{_NAME_BYTES}sP", _name(card), address) + bytes(16)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCETHTOOL, request)
    return buffer.tobytes()


def set_up(card: str) -> None:
    """Set a network card up. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack(f"{_NAME_BYTES}sH22x", _name(card), 0)
        flags = struct.unpack_from("H", fcntl.ioctl(control, _SIOCGIFFLAGS, request), _NAME_BYTES)[0]
        if not flags & _IFF_UP:
            fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack(f"{_NAME_BYTES}sH22x", _name(card), flags | _IFF_UP))


def _name(card: str) -> bytes:
    """Return the name for a request. Raises OSError if it is too long for one."""
    name = card.encode()
    if not 0 < len(name) < _NAME_BYTES:
        raise OSError(19, "No such device", card)
    return name


# --- IPMI ---
#
# linux/ipmi.h. The device is that of the module ipmi_devintf.

_SYSTEM_INTERFACE, _BMC_CHANNEL = 0x0C, 0x0F
_MAX_ANSWER_BYTES: Final = 272
_ANSWER_SECONDS: Final = 5.0


class _SystemAddress(ctypes.Structure):
    _fields_ = (("addr_type", ctypes.c_int), ("channel", ctypes.c_short), ("lun", ctypes.c_ubyte))


class _Message(ctypes.Structure):
    _fields_ = (
        ("netfn", ctypes.c_ubyte),
        ("cmd", ctypes.c_ubyte),
        ("data_len", ctypes.c_ushort),
        ("data", ctypes.c_void_p),
    )


class _Request(ctypes.Structure):
    _fields_ = (
        ("addr", ctypes.c_void_p),
        ("addr_len", ctypes.c_uint),
        ("msgid", ctypes.c_long),
        ("msg", _Message),
    )


class _Answer(ctypes.Structure):
    _fields_ = (
        ("recv_type", ctypes.c_int),
        ("addr", ctypes.c_void_p),
        ("addr_len", ctypes.c_uint),
        ("msgid", ctypes.c_long),
        ("msg", _Message),
    )


def _request_number(direction: int, number: int, size: int) -> int:
    """Return the number of an ioctl of the IPMI driver (asm-generic/ioctl.h, _IOC)."""
    return direction << 30 | size << 16 | ord("i") << 8 | number


_SEND_COMMAND: Final = _request_number(2, 13, ctypes.sizeof(_Request))
_RECEIVE_TRUNCATED: Final = _request_number(3, 11, ctypes.sizeof(_Answer))


class IpmiDevice:
    """The BMC of this machine through the kernel's IPMI driver. `with` closes it."""

    def __init__(self, path: Path) -> None:
        """Open the device, such as /dev/ipmi0. Raises OSError."""
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._number = 0

    def __enter__(self) -> IpmiDevice:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def request(self, function: int, command: int, data: bytes = b"") -> bytes:
        """Send a request; return the answer with its completion code. Raises OSError, TimeoutError after 5 s."""
        self._number += 1
        address = _SystemAddress(_SYSTEM_INTERFACE, _BMC_CHANNEL, 0)
        content = ctypes.create_string_buffer(data, max(1, len(data)))
        message = _Message(function, command, len(data), ctypes.addressof(content))
        request = _Request(ctypes.addressof(address), ctypes.sizeof(address), self._number, message)
        fcntl.ioctl(self._descriptor, _SEND_COMMAND, request)
        until = time.monotonic() + _ANSWER_SECONDS
        while (left := until - time.monotonic()) > 0:
            if select.select([self._descriptor], [], [], left)[0]:
                number, answer = self._receive()
                if number == self._number:  # an earlier answer may have come late
                    return answer
        raise TimeoutError("the BMC does not answer")

    def _receive(self) -> tuple[int, bytes]:
        address = ctypes.create_string_buffer(64)
        content = ctypes.create_string_buffer(_MAX_ANSWER_BYTES)
        message = _Message(0, 0, _MAX_ANSWER_BYTES, ctypes.addressof(content))
        answer = _Answer(0, ctypes.addressof(address), ctypes.sizeof(address), 0, message)
        fcntl.ioctl(self._descriptor, _RECEIVE_TRUNCATED, answer)
        return answer.msgid, content.raw[: answer.msg.data_len]
