"""The scripted boot of one machine: DHCP as a PXE ROM and as iPXE, TFTP, HTTP.

Sockets are opened in the machine's namespace and bound to its card; everything else runs in the caller's namespace.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import subprocess
from contextlib import suppress
from dataclasses import dataclass

from tests.interop.conftest import in_namespace

DISCOVER, OFFER, REQUEST, ACK = 1, 2, 3, 5
_COOKIE = b"\x63\x82\x53\x63"
_TRIES, _PATIENCE = 30, 2.0
_TFTP_BLOCK = 1400


class NotServedError(Exception):
    """The edge did not serve a request of a machine."""


@dataclass(frozen=True)
class Lease:
    """The content of an OFFER or ACK."""

    kind: int
    ip: str
    server: bytes
    file: str


@dataclass
class Card:
    namespace: str
    server_ip: str
    mac: str = ""
    name: str = "eth0"

    def socket(self, kind: socket.SocketKind) -> socket.socket:
        """Open a non-blocking socket that sends on this card."""
        opened = in_namespace(self.namespace, lambda: socket.socket(socket.AF_INET, kind))
        opened.setblocking(False)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self.name.encode())
        return opened

    def become(self, mac: str) -> None:
        """Remove the address and set this MAC, like another card."""
        self.mac = mac
        self._ip(f"address flush dev {self.name}\nlink set {self.name} address {mac}\n")

    def take(self, ip: str) -> None:
        self._ip(f"address add {ip}/16 dev {self.name}\n")

    def _ip(self, commands: str) -> None:
        subprocess.run(["ip", "-n", self.namespace, "-4", "-batch", "-"], input=commands, text=True, check=True)


# --- DHCP ------------------------------------------------------------------------------------------------------------


def packet(kind: int, mac: str, xid: int, *, ipxe: bool = False, ip: str = "", server: bytes = b"") -> bytes:
    """Build a DISCOVER or REQUEST of a BIOS PXE ROM, or of iPXE, with the broadcast flag (RFC 2131 section 4.1)."""
    head = struct.pack("!BBBBIHH16x", 1, 1, 6, 0, xid, 4, 0x8000) + bytes.fromhex(mac.replace(":", "")).ljust(16, b"\0")
    options = [(53, bytes((kind,))), (55, bytes((1, 3, 6, 12, 15, 54, 66, 67, 43))), (57, b"\x05\xc0")]
    options += [(60, b"PXEClient:Arch:00000:UNDI:002001"), (93, b"\0\0"), (94, b"\x01\x02\x01")]
    if ipxe:
        options += [(77, b"iPXE"), (175, b"\x13\x01\x01\x17\x01\x01\x18\x01\x01\x21\x01\x01")]
    if ip:
        options += [(50, socket.inet_aton(ip)), (54, server)]
    body = b"".join(bytes((code, len(value))) + value for code, value in options)
    return head + bytes(192) + _COOKIE + body + b"\xff"


def _lease(answer: bytes, xid: int) -> Lease | None:
    if len(answer) < 240 or answer[4:8] != xid.to_bytes(4, "big"):
        return None
    options, at = {}, 240
    while at < len(answer) and answer[at] != 255:
        if answer[at]:
            options[answer[at]] = answer[at + 2 : at + 2 + answer[at + 1]]
            at += 1 + answer[at + 1]
        at += 1
    file = options.get(67) or answer[108:236].partition(b"\0")[0]
    return Lease(options[53][0], socket.inet_ntoa(answer[16:20]), options[54], file.rstrip(b"\0").decode())


async def lease(card: Card, rng: random.Random, *, ipxe: bool = False) -> Lease:
    """Get a lease: DISCOVER, OFFER, REQUEST, ACK. Raises NotServedError."""
    with card.socket(socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sock.bind(("", 68))
        offer = await _ask(sock, packet(DISCOVER, card.mac, xid := rng.getrandbits(32), ipxe=ipxe), xid, OFFER)
        request = packet(REQUEST, card.mac, xid, ipxe=ipxe, ip=offer.ip, server=offer.server)
        return await _ask(sock, request, xid, ACK)


async def _ask(sock: socket.socket, request: bytes, xid: int, kind: int) -> Lease:
    loop = asyncio.get_running_loop()
    for _ in range(_TRIES):
        await loop.sock_sendto(sock, request, ("255.255.255.255", 67))
        try:
            async with asyncio.timeout(_PATIENCE):
                while True:
                    lease = _lease(await loop.sock_recv(sock, 2048), xid)
                    if lease is not None and lease.kind == kind:
                        return lease
        except TimeoutError:
            continue
    raise NotServedError(f"DHCP: no answer of kind {kind} in {_TRIES} times {_PATIENCE:.0f} s")


async def strangers(card: Card, rng: random.Random, count: int) -> None:
    """Send `count` DISCOVERs of machines without a Hardware."""
    with card.socket(socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        for _ in range(count):
            mac = rng.randbytes(5).hex(":")
            message = packet(DISCOVER, f"02:{mac}", rng.getrandbits(32))
            await asyncio.get_running_loop().sock_sendto(sock, message, ("255.255.255.255", 67))


# --- TFTP (RFC 1350, 2348) -------------------------------------------------------------------------------------------


def first_packet(namespace: str, source: str, server: str, name: str, attempts: int = 5) -> bytes:
    """Return the first TFTP answer to a request from this address, or an empty one if there is none."""

    def talk() -> bytes:
        with socket.socket(socket.AF_INET6 if ":" in source else socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind((source, 0))
            sock.settimeout(2)
            for _ in range(attempts):
                sock.sendto(b"\0\1" + name.encode() + b"\0octet\0", (server, 69))
                with suppress(TimeoutError):
                    return sock.recv(2048)
        return b""

    return in_namespace(namespace, talk)


async def tftp(card: Card, name: str, *, blocks: int = 1 << 16) -> int:
    """Fetch a file and return its size, or stop silently after `blocks` blocks. Raises NotServedError."""
    loop = asyncio.get_running_loop()
    with card.socket(socket.SOCK_DGRAM) as sock:
        sock.bind(("", 0))
        message = b"\0\1" + b"\0".join((name.encode(), b"octet", b"blksize", str(_TFTP_BLOCK).encode())) + b"\0"
        where: tuple[str, int] = (card.server_ip, 69)
        received, size = 0, 0
        for _ in range(_TRIES):
            await loop.sock_sendto(sock, message, where)
            try:
                while received < blocks:
                    async with asyncio.timeout(_PATIENCE):
                        data, where = await loop.sock_recvfrom(sock, _TFTP_BLOCK + 4)
                    kind, number = struct.unpack("!HH", data[:4])
                    if kind == 5:
                        raise NotServedError(f"TFTP {name}: {data[4:]!r}")
                    if kind == 3 and number == received + 1:
                        received, size = number, size + len(data) - 4
                    message = struct.pack("!HH", 4, received)
                    await loop.sock_sendto(sock, message, where)
                    if kind == 3 and len(data) < _TFTP_BLOCK + 4:
                        break
            except TimeoutError:
                continue
            return size
    raise NotServedError(f"TFTP {name}: nothing more after {received} blocks")


# --- HTTP ------------------------------------------------------------------------------------------------------------


async def http(card: Card, path: str, port: int = 7080, *, most: int = 1 << 30) -> tuple[int, bytes]:
    """Send a GET on a new connection. Return the status and the body, or its first `most` bytes, then disconnect."""
    loop = asyncio.get_running_loop()
    sock = card.socket(socket.SOCK_STREAM)
    try:
        async with asyncio.timeout(30):
            await loop.sock_connect(sock, (card.server_ip, port))
            head = f"GET {path} HTTP/1.1\r\nHost: {card.server_ip}:{port}\r\nConnection: close\r\n\r\n"
            await loop.sock_sendall(sock, head.encode())
            pieces = bytearray()
            while len(pieces) < most and (piece := await loop.sock_recv(sock, 1 << 18)):
                pieces += piece
    finally:
        sock.close()
    head_bytes, _, body = bytes(pieces).partition(b"\r\n\r\n")
    if not head_bytes.startswith(b"HTTP/1.1 "):
        raise NotServedError(f"HTTP {path}: {head_bytes[:100]!r}")
    return int(head_bytes[9:12]), body


async def fetch(card: Card, path: str, port: int = 7080) -> bytes:
    """Return the body of an answer with status 200. Raises NotServedError."""
    status, body = await http(card, path, port)
    if status != 200:
        raise NotServedError(f"HTTP {path}: {status} {body[:200]!r}")
    return body
