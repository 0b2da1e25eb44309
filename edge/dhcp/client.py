"""Who is asking: told from a DHCP message, for one machine is several DHCP clients during a boot.

The firmware's PXE ROM or UEFI HTTP Boot comes first, then iPXE, then the kernel or the operating system, all with the
same MAC. What each of them may be told differs (`edge.dhcp.boot`), so this is asked first.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from edge.dhcp import options
from edge.dhcp.codec import Message
from ipxe.binaries import architecture_name


class Kind(Enum):
    """The stage of the boot that a client belongs to."""

    OPERATING_SYSTEM = "operating system"
    PXE_ROM = "PXE ROM"
    HTTP_ROM = "HTTP Boot ROM"  # UEFI 2.10 section 24.7
    IPXE = "iPXE"


@dataclass(frozen=True, slots=True)
class Client:
    """One DHCP client. `architectures` are IANA's codes, the client's favourite first; `description` is for people."""

    kind: Kind
    architectures: tuple[int, ...]
    description: str


def identify(message: Message) -> Client:
    """The client that sent `message`."""
    found = message.options
    return _identify(
        found.get(options.VENDOR_CLASS, b""),
        found.get(options.USER_CLASS, b""),
        found.get(options.CLIENT_ARCHITECTURE, b""),
        bool(found.get(options.IPXE)),
    )


@lru_cache(maxsize=512)  # a rack has a handful of kinds of clients; a flood of invented ones evicts, never grows
def _identify(vendor_class: bytes, user_class: bytes, architecture: bytes, has_ipxe_options: bool) -> Client:
    architectures = _architectures(vendor_class, architecture)
    platform = architecture_name(architectures[0]).removesuffix(" HTTP") if architectures else "unnamed architecture"
    # iPXE calls itself a PXEClient too, so it is looked for first. Option 175 tells it even where a script or an
    # embedded setting has given it another user class.
    if has_ipxe_options or b"iPXE" in _user_classes(user_class):
        return Client(Kind.IPXE, architectures, f"iPXE ({platform})")
    if vendor_class.startswith(b"HTTPClient"):
        return Client(Kind.HTTP_ROM, architectures, f"{platform} {Kind.HTTP_ROM.value}")
    if vendor_class.startswith(b"PXEClient"):
        return Client(Kind.PXE_ROM, architectures, f"{platform} {Kind.PXE_ROM.value}")
    return Client(Kind.OPERATING_SYSTEM, architectures, Kind.OPERATING_SYSTEM.value)


def _architectures(vendor_class: bytes, architecture: bytes) -> tuple[int, ...]:
    """Option 93 may name several (RFC 4578 section 2.1); a ROM without it repeats the first in its vendor class
    (`PXEClient:Arch:00007:UNDI:003000`, PXE 2.1 section 2.2.2)."""
    if architecture:
        return tuple(int.from_bytes(architecture[at : at + 2], "big") for at in range(0, len(architecture) // 2 * 2, 2))
    fields = vendor_class.split(b":", 3)
    if len(fields) > 2 and fields[1] == b"Arch" and len(fields[2]) == 5 and fields[2].isdigit():
        return (int(fields[2]),)
    return ()


def _user_classes(value: bytes) -> list[bytes]:
    """The user classes of option 77: a list with lengths (RFC 3004 section 4), or the bare string that iPXE sends."""
    classes = [value]
    at = 0
    while at < len(value):
        length = value[at]
        if length == 0 or at + 1 + length > len(value):
            break
        classes.append(value[at + 1 : at + 1 + length])
        at += 1 + length
    return classes
