"""An assembler for the kernel's packet filter: programs with labels, which are attached to a socket.

Classic BPF: Documentation/networking/filter.rst; the machine is that of McCanne and Jacobson.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Sequence
from typing import Final

_SO_ATTACH_FILTER: Final = 26  # asm-generic/socket.h

# linux/bpf_common.h
LOAD, LOAD_HALF, LOAD_BYTE = 0x20, 0x28, 0x30  # from an offset in the frame
LOAD_AT_X, LOAD_HALF_AT_X, LOAD_BYTE_AT_X = 0x40, 0x48, 0x50  # from X plus an offset
X_IP_HEADER_BYTES = 0xB1
A_TO_X, ADD_X, AND, SHIFT_RIGHT = 0x07, 0x0C, 0x54, 0x74
EQUAL, BITS = 0x15, 0x45
RETURN = 0x06

Line = str | tuple[int, int] | tuple[int, int, str, str]
"""A label, an instruction, or a comparison with the labels to jump to if it is true or false ("": the next line)."""


def assemble(lines: Sequence[Line]) -> bytes:
    """Return the program (an array of struct sock_filter)."""
    places: dict[str, int] = {}
    steps: list[tuple[int, int] | tuple[int, int, str, str]] = []
    for line in lines:
        if isinstance(line, str):
            places[line] = len(steps)
        else:
            steps.append(line)
    program = bytearray()
    for at, step in enumerate(steps):
        ways = [places[label] - at - 1 if label else 0 for label in step[2:]] or [0, 0]
        program += struct.pack("HBBI", step[0], *ways, step[1])
    return bytes(program)


def attach(sock: socket.socket, program: bytes) -> None:
    """Let a socket receive only the packets that the program accepts (socket(7)). Raises OSError."""
    code = ctypes.create_string_buffer(program)
    wanted = struct.pack("HL", len(program) // 8, ctypes.addressof(code))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, wanted)
