"""IP addresses as text and as bytes: with ports, of one link, of one subscriber, and those that no remote URL may name.

Pure. Sources: RFC 6890 and the IANA special-purpose address registries; RFC 4291 section 2.5, RFC 6052, RFC 3056.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

Address = IPv4Address | IPv6Address
Block = IPv4Network | IPv6Network


def join_host_port(host: str, port: int) -> str:
    """Return `host:port`, or `[host]:port` for an IPv6 address (RFC 3986 section 3.2.2)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parsed(text: str) -> Address | None:
    """Return an address of a socket, with or without a zone; None if the text is not an address."""
    try:
        return ip_address(text.partition("%")[0])
    except ValueError:
        return None


def is_loopback(text: str) -> bool:
    """Return True if an address of a socket, as text, is a loopback address."""
    address = parsed(text)
    return address is not None and address.is_loopback


def is_link_local(address: str) -> bool:
    """Return True for an IPv6 address in fe80::/10 (RFC 4291 section 2.5.6), with or without a zone (`fe80::1%eth1`).

    For addresses of sockets on hot paths, so nothing is parsed. Any other text gives False.
    """
    return address[4:5] == ":" != address[3] and address[:2] in ("fe", "FE") and address[2] in "89abAB"


def is_link_local_packed(address: bytes) -> bool:
    """Return True for an address in fe80::/10 as sixteen bytes. The four bytes of an IPv4 address give False."""
    return len(address) == 16 and address[0] == 0xFE and address[1] & 0xC0 == 0x80


def block_of(address: str) -> Block:
    """Return the addresses of one subscriber, by which limits count: one of IPv4, or 64 bits of IPv6.

    Raises ValueError.
    """
    found = ip_address(address.partition("%")[0])
    if found.version == 4:
        return IPv4Network(address)
    return IPv6Network((int(found) >> 64 << 64, 64))


# --- special addresses ------------------------------------------------------------------------------------------------

# A URL of another author, or a redirect of a server, names the target of a connection. Some addresses mean another host
# for each host that uses them (loopback, link-local), so a request to them reaches a neighbour of this program.
# `tink.net.outbound` refuses them for HTTP clients, `tink.agent.images.registry` for registries.

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
        ("240.0.0.0/4", "a reserved address"),  # including 255.255.255.255
        # The metadata services of clouds, beside 169.254.169.254 and fe80::a9fe:a9fe.
        ("fd00:ec2::/32", "a cloud's metadata address"),  # Amazon
        ("fd20:ce::254/128", "a cloud's metadata address"),  # Google
        ("fd00:c1::a9fe:a9fe/128", "a cloud's metadata address"),  # Oracle
        ("fd00:42::42/128", "a cloud's metadata address"),  # Scaleway
        ("100.100.100.200/32", "a cloud's metadata address"),  # Alibaba
        ("168.63.129.16/32", "a cloud's metadata address"),  # Azure
        ("192.0.0.192/32", "a cloud's metadata address"),  # Oracle, first generation
    )
)
_NAT64: Final = ip_network("64:ff9b::/96")
_COMPATIBLE: Final = ip_network("::/96")


def special(address: Address) -> str:
    """Return the kind of a special address, as it follows "which is" in a sentence; empty for any other address."""
    for each in (address, carried(address)):
        for network, kind in _SPECIAL:
            if each is not None and each in network:
                return kind
    return ""


def carried(address: Address) -> IPv4Address | None:
    """Return the IPv4 address to which kernels or translators send packets for an IPv6 address, or None.

    IPv4-mapped and IPv4-compatible (RFC 4291 section 2.5.5), NAT64's well-known prefix (RFC 6052), 6to4 (RFC 3056).
    """
    if isinstance(address, IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64 or (address in _COMPATIBLE and int(address) > 1):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.sixtofour


def reachable_host(host: str) -> str:
    """Return the address at which this host itself reaches a server that listens at `host`: loopback for a wildcard."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - nothing listens here
