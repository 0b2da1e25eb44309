"""The DHCP client that sent a message: one machine is several DHCP clients during a boot.

The firmware's PXE ROM, UEFI HTTP Boot or U-Boot comes first, then iPXE, then the kernel or the operating system, all
with the same MAC. Each of them needs another answer (`edge.dhcp.boot.choice`), so the client is identified first.

What a client declares decides: its architecture (option 93), its UNDI (94), its machine identifier (97) and iPXE's list
of features (175). Vendor and user classes (60, 77) count where they are defined by a standard or by the client's own
source. A vendor class that only names a product says nothing: BlueField's UEFI sends `NVIDIA/BF/PXE`, older ones
`BF2Client`, and the operating system there the like, without option 93.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final

from edge.dhcp.wire import options
from edge.dhcp.wire.codec import Message
from ipxe.binaries import (
    IPXE_CLASSES,
    declared_architectures,
    is_http,
    is_risc_v,
    is_u_boot,
    named_architectures,
    platform_name,
)

_GPXE_CLASS = b"gPXE"  # iPXE until 2010; it reads no script that begins with #!ipxe
_NO_FEATURE = 64  # the first code of option 175 that is none (iPXE include/ipxe/features.h)
_IPXE_VERSION = 235  # stands in the same table as the features (FEATURE_VERSION), so a list with it is complete
_BIOS, _RPIBOOT = 0, 41

PI_NAME_AT: Final = slice(1, 4)
PI_NAME: Final = b"RPi"
"""Stands in the machine identifier (option 97) of a Raspberry Pi 4 or 5, behind the type 0: `RPi4`, `RPi5`, then board,
MAC and serial number. It is the default of DHCP_OPTION97 in its EEPROM, which its user may change."""


class ClientKind(Enum):
    """The stage of the boot that a client belongs to."""

    OPERATING_SYSTEM = "operating system"
    PXE_ROM = "PXE ROM"
    HTTP_ROM = "HTTP Boot ROM"  # UEFI 2.10 section 24.7
    U_BOOT = "U-Boot"
    IPXE = "iPXE"


@dataclass(frozen=True, slots=True)
class Client:
    """One DHCP client: what all machines say alike that have the same program in the same version.

    `architectures` are IANA's codes, the client's favourite first; `description` is for people. `features` are those
    that iPXE lists in option 175 (`options.IPXE_HTTP` and the like); empty where it lists none, which says nothing.
    `is_limited_ipxe`: a PXE ROM that is a gPXE or an iPXE without a format of kernels, and boots a full iPXE first.
    `is_raspberry_pi`: a PXE ROM that declares that it is the firmware of a Raspberry Pi.
    """

    kind: ClientKind
    architectures: tuple[int, ...]
    description: str
    features: frozenset[int] = frozenset()
    is_limited_ipxe: bool = False
    is_raspberry_pi: bool = False

    @property
    def hears_proxies(self) -> bool:
        """Whether it takes what to boot from another server than its address.

        U-Boot takes the first offer that comes for a lease, and one without an address would be none (net/bootp.c).
        """
        return self.kind not in (ClientKind.OPERATING_SYSTEM, ClientKind.U_BOOT)

    def lacks(self, feature: int) -> bool:
        """Whether it lists its features (iPXE does), and `feature` is not among them."""
        return bool(self.features) and feature not in self.features


def identify(message: Message) -> Client:
    """Return the client that sent `message`: the same object for the same words."""
    found = message.options
    return _identify(
        found.get(options.VENDOR_CLASS, b""),
        found.get(options.USER_CLASS, b""),
        found.get(options.CLIENT_ARCHITECTURE, b""),
        found.get(options.CLIENT_NETWORK_INTERFACE, b""),
        found.get(options.IPXE, b""),
        found.get(options.CLIENT_UUID, b"")[PI_NAME_AT] == PI_NAME,
    )


@lru_cache(maxsize=512)  # a rack has a handful of kinds of clients; a flood of invented ones evicts, never grows
def _identify(
    vendor_class: bytes, user_class: bytes, architecture: bytes, interface: bytes, ipxe: bytes, names_pi: bool
) -> Client:
    architectures = declared_architectures(architecture) or named_architectures(vendor_class)
    platform = platform_name(architectures)
    users = user_classes(user_class)
    # iPXE calls itself a PXEClient too, so it is looked for first. Option 175 tells it even where a script or an
    # embedded setting has given it another user class.
    if _GPXE_CLASS in users:
        return Client(ClientKind.PXE_ROM, architectures, f"gPXE ({platform})", is_limited_ipxe=True)
    if ipxe or not IPXE_CLASSES.isdisjoint(users):
        return _ipxe(options.suboptions(ipxe) or {}, architectures)
    if vendor_class.startswith(b"HTTPClient"):
        kind = ClientKind.HTTP_ROM
    elif vendor_class.startswith(b"PXEClient"):
        kind = ClientKind.PXE_ROM
    elif is_u_boot((vendor_class,), architectures, interface):
        return Client(ClientKind.U_BOOT, architectures, f"{ClientKind.U_BOOT.value} ({platform})")
    elif architectures:  # RFC 4578 section 2.1: a client that names one is booting from the network
        kind = ClientKind.HTTP_ROM if is_http(architectures) else ClientKind.PXE_ROM
    elif names_pi:  # its REQUEST may have neither option 60 nor 93
        kind = ClientKind.PXE_ROM
    else:
        return Client(ClientKind.OPERATING_SYSTEM, (), ClientKind.OPERATING_SYSTEM.value)
    # UEFI on a Pi names the architecture of UEFI, and is that.
    if kind is ClientKind.PXE_ROM and (
        architectures[:1] == (_RPIBOOT,) or (names_pi and architectures[:1] in ((), (_BIOS,)))
    ):
        return Client(kind, architectures, "Raspberry Pi (boot ROM)", is_raspberry_pi=True)
    return Client(kind, architectures, f"{platform} {kind.value}")


def _ipxe(listed: Mapping[int, bytes], architectures: tuple[int, ...]) -> Client:
    """Return the client for an iPXE with these sub-options of option 175.

    iPXE lists a feature as a sub-option of one byte with its version; one built without it leaves it out. Without a
    format of kernels it is a ROM that boots a full iPXE first (https://ipxe.org/howto/dhcpd): VirtualBox's own ROM
    fetches script and kernel, and then shows "Exec format error". Each of our boot programs lists a format of kernels,
    so no machine goes round in a circle.
    """
    platform = platform_name(architectures)
    features = frozenset(code for code, value in listed.items() if code < _NO_FEATURE and any(value))
    is_list = bool(features) or _IPXE_VERSION in listed
    # iPXE for RISC-V's SBI starts kernels by image/lkrn.c, which has no code in option 175.
    starts_kernels = is_risc_v(architectures) or not features.isdisjoint((options.IPXE_BZIMAGE, options.IPXE_EFI))
    if is_list and not starts_kernels:
        description = f"iPXE without bzImage and EFI ({platform})"
        return Client(ClientKind.PXE_ROM, architectures, description, features, is_limited_ipxe=True)
    return Client(ClientKind.IPXE, architectures, f"iPXE ({platform})", features)


def user_classes(value: bytes) -> tuple[bytes, ...]:
    """The user classes of option 77: a list with lengths (RFC 3004 section 4), or the bare string that iPXE sends.

    Which of the two it is can't be told for certain, so the whole stands first, and behind it the list if it reads as
    one to its end.
    """
    if not value:
        return ()
    listed = []
    at = 0
    while at < len(value):
        end = at + 1 + value[at]
        if end == at + 1 or end > len(value):
            return (value,)
        listed.append(value[at + 1 : end])
        at = end
    return (value, *listed)
