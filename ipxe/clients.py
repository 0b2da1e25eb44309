"""What netboot clients declare of themselves, in the words that DHCPv4 and DHCPv6 share. Pure.

`edge.dhcp` and `edge.dhcp6` identify a client by these and by what only their own protocol has.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ipxe.binaries import architecture_name

IPXE_CLASSES: Final = frozenset({b"iPXE", b"Tinkerbell"})
"""User classes of iPXE: its own, and that of the iPXE that Smee embeds."""

_UBOOT_CLASS: Final = b"U-Boot"  # U-Boot.armv8 and the like, unless its user sets another (CONFIG_BOOTP_VCI_STRING)
_UBOOT_ARCHITECTURES: Final = range(21, 25)
_RISC_V_ARCHITECTURES: Final = range(25, 31)
_UNDI: Final = 1  # RFC 4578 section 2.2


def declared_architectures(value: bytes) -> tuple[int, ...]:
    """Return the architectures of option 93 (RFC 4578 section 2.1) or DHCPv6's 61 (RFC 5970 section 3.3).

    These are IANA's codes, the client's favourite first. A value of one byte is one architecture. An odd byte behind
    others is ignored.
    """
    if len(value) == 1:
        return (value[0],)
    return tuple(int.from_bytes(value[at : at + 2], "big") for at in range(0, len(value) // 2 * 2, 2))


def named_architectures(vendor_class: bytes) -> tuple[int, ...]:
    """Return the architecture in `PXEClient:Arch:00007:UNDI:003000` (PXE 2.1 section 2.2.2); empty if it names none."""
    fields = vendor_class.split(b":", 3)
    if len(fields) > 2 and fields[1] == b"Arch" and len(fields[2]) == 5 and fields[2].isdigit():
        return (int(fields[2]),)
    return ()


def platform_name(architectures: tuple[int, ...]) -> str:
    """Return the first architecture in words, without the protocol that it boots by."""
    return architecture_name(architectures[0]).removesuffix(" HTTP") if architectures else "unnamed architecture"


def is_http(architectures: tuple[int, ...]) -> bool:
    """Return True if the first architecture is one of firmware that boots by HTTP."""
    return bool(architectures) and architecture_name(architectures[0]).endswith(" HTTP")


def is_risc_v(architectures: tuple[int, ...]) -> bool:
    """Return True if the first architecture is RISC-V."""
    return bool(architectures) and architectures[0] in _RISC_V_ARCHITECTURES


def is_u_boot(vendor_classes: Iterable[bytes], architectures: tuple[int, ...], interface: bytes) -> bool:
    """Return True for U-Boot, by its vendor class or by an architecture that it names.

    `interface` is option 94, or 62 of DHCPv6. UEFI has the same architectures for RISC-V. It has an UNDI and declares
    its version there; U-Boot declares version 0.0 or none (net/bootp.c).
    """
    if any(name.startswith(_UBOOT_CLASS) for name in vendor_classes):
        return True
    has_undi = interface[:1] == bytes((_UNDI,)) and any(interface[1:2])
    return (bool(architectures) and architectures[0] in _UBOOT_ARCHITECTURES) or (
        is_risc_v(architectures) and not has_undi
    )
