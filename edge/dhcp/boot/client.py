"""Who is asking: told from a DHCP message, for one machine is several DHCP clients during a boot.

The firmware's PXE ROM, UEFI HTTP Boot or U-Boot comes first, then iPXE, then the kernel or the operating system, all
with the same MAC. What each of them may be told differs (`edge.dhcp.boot.choice`), so this is asked first.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from edge.dhcp.wire import options
from edge.dhcp.wire.codec import Message
from ipxe.binaries import architecture_name

_IPXE_CLASSES = frozenset({b"iPXE", b"Tinkerbell"})  # the second is the iPXE that Smee embeds
_UBOOT_CLASS = b"U-Boot"  # U-Boot.armv8 and the like, if its user has given it no other (CONFIG_BOOTP_VCI_STRING)
_UBOOT_ARCHITECTURES = range(21, 29)  # that U-Boot names, also with a class of its user's own
_NO_FEATURE = 64  # the first code of option 175 that is none (iPXE include/ipxe/features.h)


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
    """

    kind: ClientKind
    architectures: tuple[int, ...]
    description: str
    features: frozenset[int] = frozenset()

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
    """The client that sent `message`: the same object for the same words."""
    found = message.options
    return _identify(
        found.get(options.VENDOR_CLASS, b""),
        found.get(options.USER_CLASS, b""),
        found.get(options.CLIENT_ARCHITECTURE, b""),
        found.get(options.IPXE, b""),
    )


@lru_cache(maxsize=512)  # a rack has a handful of kinds of clients; a flood of invented ones evicts, never grows
def _identify(vendor_class: bytes, user_class: bytes, architecture: bytes, ipxe: bytes) -> Client:
    architectures = _architectures(vendor_class, architecture)
    platform = architecture_name(architectures[0]).removesuffix(" HTTP") if architectures else "unnamed architecture"
    # iPXE calls itself a PXEClient too, so it is looked for first. Option 175 tells it even where a script or an
    # embedded setting has given it another user class.
    if ipxe or not _IPXE_CLASSES.isdisjoint(user_classes(user_class)):
        kind, description = ClientKind.IPXE, f"iPXE ({platform})"
    elif vendor_class.startswith(b"HTTPClient"):
        kind, description = ClientKind.HTTP_ROM, f"{platform} {ClientKind.HTTP_ROM.value}"
    elif vendor_class.startswith(b"PXEClient"):
        kind, description = ClientKind.PXE_ROM, f"{platform} {ClientKind.PXE_ROM.value}"
    elif vendor_class.startswith(_UBOOT_CLASS) or (architectures and architectures[0] in _UBOOT_ARCHITECTURES):
        kind, description = ClientKind.U_BOOT, f"{ClientKind.U_BOOT.value} ({platform})"
    else:
        kind, description = ClientKind.OPERATING_SYSTEM, ClientKind.OPERATING_SYSTEM.value
    return Client(kind, architectures, description, _features(ipxe))


def _features(ipxe: bytes) -> frozenset[int]:
    """iPXE lists a feature as a sub-option of one byte with its version; one built without it leaves it out."""
    listed = options.suboptions(ipxe) or {}
    return frozenset(code for code, value in listed.items() if code < _NO_FEATURE and any(value))


def _architectures(vendor_class: bytes, architecture: bytes) -> tuple[int, ...]:
    """Option 93 may name several (RFC 4578 section 2.1); a ROM without it repeats the first in its vendor class
    (`PXEClient:Arch:00007:UNDI:003000`, PXE 2.1 section 2.2.2)."""
    if architecture:
        return tuple(int.from_bytes(architecture[at : at + 2], "big") for at in range(0, len(architecture) // 2 * 2, 2))
    fields = vendor_class.split(b":", 3)
    if len(fields) > 2 and fields[1] == b"Arch" and len(fields[2]) == 5 and fields[2].isdigit():
        return (int(fields[2]),)
    return ()


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
