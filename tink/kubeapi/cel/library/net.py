"""IP addresses and prefixes: Kubernetes' `ip`, `cidr`, `isIP`, `isCIDR` and their methods.

What is an address is what Go's net/netip takes: no leading zeros, no zone, no IPv4 inside IPv6.
"""

import ipaddress
import re
import socket
from dataclasses import dataclass
from typing import ClassVar

from tink.golang import quote
from tink.kubeapi.cel.errors import EvaluationError
from tink.kubeapi.cel.values import OpaqueValue

_BITS = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)


@dataclass(slots=True, unsafe_hash=True)
class Ip(OpaqueValue):
    """An address: its number and 32 or 128 bits."""

    number: int
    bits: int
    type_name: ClassVar[str] = "net.IP"

    def __str__(self) -> str:
        if self.bits == 32:
            return socket.inet_ntop(socket.AF_INET, self.number.to_bytes(4, "big"))
        return ipaddress.IPv6Address(self.number).compressed

    def size_for_cost(self) -> int:
        """Bytes of the address."""
        return self.bits // 8


@dataclass(slots=True, unsafe_hash=True)
class Cidr(OpaqueValue):
    """An address with the length of its prefix."""

    ip: Ip
    length: int
    type_name: ClassVar[str] = "net.CIDR"

    def __str__(self) -> str:
        return f"{self.ip}/{self.length}"

    def size_for_cost(self) -> int:
        """Bytes of the prefix."""
        return (self.length + 7) // 8

    def contains(self, ip: Ip) -> bool:
        """Whether an address of the same family lies within."""
        shift = self.ip.bits - self.length
        return self.ip.bits == ip.bits and self.ip.number >> shift == ip.number >> shift

    def masked(self) -> "Cidr":
        """The same prefix with the other bits zero."""
        shift = self.ip.bits - self.length
        return Cidr(Ip(self.ip.number >> shift << shift, self.ip.bits), self.length)


def _number(text: str) -> tuple[int, int] | None:
    """The number and the bits of an address without zone; None if it is none."""
    try:
        if ":" in text:
            return int.from_bytes(socket.inet_pton(socket.AF_INET6, text), "big"), 128
        return int.from_bytes(socket.inet_pton(socket.AF_INET, text), "big"), 32
    except (OSError, ValueError):
        return None


def address(text: str) -> tuple[Ip | None, str]:
    """The address, None if the text is none, and its zone."""
    bare, percent, zone = text.partition("%")
    found = _number(bare) if ":" in bare or not percent else None
    if found is None or "\0" in text or (percent and not zone):
        return None, ""
    return Ip(*found), zone


def _mapped(ip: Ip) -> bool:
    return ip.bits == 128 and ip.number >> 32 == 0xFFFF


def parse_ip(text: str) -> Ip:
    """An address. Raises EvaluationError: the text is none, has a zone, or is IPv4 inside IPv6."""
    ip, zone = address(text)
    if ip is None:
        raise EvaluationError(f"{quote(text)} is not an IP address")
    if zone:
        raise EvaluationError(f"IP address {quote(text)} with zone value is not allowed")
    if _mapped(ip):
        raise EvaluationError(f"IPv4-mapped IPv6 address {quote(text)} is not allowed")
    return ip


def is_ip(text: str) -> bool:
    """Whether `parse_ip` takes the text."""
    found = _number(text)
    return found is not None and "%" not in text and not (found[1] == 128 and found[0] >> 32 == 0xFFFF)


def parse_cidr(text: str) -> Cidr:
    """An address with the length of its prefix. Raises EvaluationError: the text is none."""
    head, _, tail = text.rpartition("/")
    ip, zone = address(head)
    if ip is None or zone or not _BITS.fullmatch(tail) or int(tail) > ip.bits:
        raise EvaluationError(f"{quote(text)} is not an IP address with the length of a prefix")
    if _mapped(ip):
        raise EvaluationError(f"IPv4-mapped IPv6 address {quote(text)} is not allowed")
    return Cidr(ip, int(tail))


def is_cidr(text: str) -> bool:
    """Whether `parse_cidr` takes the text."""
    try:
        parse_cidr(text)
    except EvaluationError:
        return False
    return True


def is_canonical(text: str) -> bool:
    """Whether an address is written as Go would write it."""
    return str(parse_ip(text)) == text


def _v6_starts(ip: Ip, prefix: int, bits: int) -> bool:
    return ip.bits == 128 and ip.number >> (128 - bits) == prefix


def is_loopback(ip: Ip) -> bool:
    """127.0.0.0/8 or ::1."""
    return ip.number >> 24 == 127 if ip.bits == 32 else ip.number == 1


def is_link_local_multicast(ip: Ip) -> bool:
    """224.0.0.0/24 or ff02::/16 of any flags."""
    return ip.number >> 8 == 0xE00000 if ip.bits == 32 else ip.number >> 112 & 0xFF0F == 0xFF02


def is_link_local_unicast(ip: Ip) -> bool:
    """169.254.0.0/16 or fe80::/10."""
    return ip.number >> 16 == 0xA9FE if ip.bits == 32 else _v6_starts(ip, 0x3FA, 10)


def is_global_unicast(ip: Ip) -> bool:
    """Neither unspecified, loopback, multicast, link-local nor broadcast; private addresses count."""
    multicast = ip.number >> 28 == 0xE if ip.bits == 32 else ip.number >> 120 == 0xFF
    broadcast = ip.bits == 32 and ip.number == 0xFFFFFFFF
    return bool(ip.number) and not (broadcast or multicast or is_loopback(ip) or is_link_local_unicast(ip))
