"""Addresses that no stranger may send this program to: this host, its links, and what clouds put beside a machine.

An URL that somebody else wrote, or a server that redirects, names where a connection goes. Some addresses mean another
thing to each host that uses them (loopback, link-local), so that a request to them says more about who asks than about
who wrote the URL. Pure: `tink.net.outbound` asks for HTTP clients, `tink.agent.images.registry` for registries.

Sources: RFC 6890 and the IANA special-purpose address registries; RFC 4291 section 2.5, RFC 6052, RFC 3056.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

Address = IPv4Address | IPv6Address

LOOPBACK: Final = "a loopback address"
UNSPECIFIED: Final = "an unspecified address"

_SPECIAL: Final = tuple(
    (ip_network(network), kind)
    for network, kind in (
        ("127.0.0.0/8", LOOPBACK),
        ("::1/128", LOOPBACK),
        ("169.254.0.0/16", "a link-local address"),
        ("fe80::/10", "a link-local address"),
        ("0.0.0.0/8", UNSPECIFIED),  # Linux takes 0.0.0.0 for this host (RFC 1122 section 3.2.1.3)
        ("::/128", UNSPECIFIED),
        ("224.0.0.0/4", "a multicast address"),
        ("ff00::/8", "a multicast address"),
        ("240.0.0.0/4", "a reserved address"),  # 255.255.255.255 among them
        # Where clouds answer a machine's questions about itself, beside 169.254.169.254 and fe80::a9fe:a9fe.
        ("fd00:ec2::/32", "a cloud's metadata address"),  # Amazon
        ("fd20:ce::254/128", "a cloud's metadata address"),  # Google
        ("fd00:c1::a9fe:a9fe/128", "a cloud's metadata address"),  # Oracle
        ("fd00:42::42/128", "a cloud's metadata address"),  # Scaleway
        ("100.100.100.200/32", "a cloud's metadata address"),  # Alibaba
        ("168.63.129.16/32", "a cloud's metadata address"),  # Azure
        ("192.0.0.192/32", "a cloud's metadata address"),  # Oracle, in its first generation
    )
)
_NAT64: Final = ip_network("64:ff9b::/96")
_COMPATIBLE: Final = ip_network("::/96")


def special(address: Address) -> str:
    """What is special about `address`, as it stands in a sentence after "which is"; empty if nothing is."""
    for each in (address, carried(address)):
        for network, kind in _SPECIAL:
            if each is not None and each in network:
                return kind
    return ""


def carried(address: Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address stands for, where kernels or translators take it for that.

    IPv4-mapped and IPv4-compatible (RFC 4291 section 2.5.5), NAT64's well-known prefix (RFC 6052), 6to4 (RFC 3056).
    """
    if isinstance(address, IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64 or (address in _COMPATIBLE and int(address) > 1):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.sixtofour


def parsed(text: str) -> Address | None:
    """An address as sockets name it, with or without a zone; None if it is none."""
    try:
        return ip_address(text.partition("%")[0])
    except ValueError:
        return None


def is_loopback(text: str) -> bool:
    """Whether an address as sockets name it is this host's own; False where it is no address."""
    address = parsed(text)
    return address is not None and address.is_loopback
