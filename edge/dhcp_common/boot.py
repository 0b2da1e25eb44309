"""Netboot clients, what they boot, and replies, as far as DHCPv4 and DHCPv6 agree. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple
from urllib.parse import quote

from edge.machines import UKI_FILE, Machine
from ipxe.binaries import NoBinaryError, architecture_name

RPIBOOT: Final = 41
"""IANA's architecture of a Raspberry Pi's boot ROM."""

REFUSED_FILE: Final = "netboot-not-allowed"
"""The file name for a refused ROM, for which there is no file. Operators know it from Smee."""


class Stage(StrEnum):
    """The stage of the boot that a client belongs to, in the words of `edge.journey.events`."""

    OPERATING_SYSTEM = "operating system"
    FIRMWARE = "firmware"
    PXE_ROM = "PXE ROM"
    HTTP_ROM = "HTTP Boot ROM"  # UEFI 2.10 section 24.7
    U_BOOT = "U-Boot"
    IPXE = "iPXE"


@dataclass(frozen=True, slots=True)
class Client:
    """One DHCP client: equal for all machines that run the same program in the same version.

    architectures: IANA's codes, in the client's order of preference.
    description: a text for people.
    features: iPXE's list in option 175 of DHCPv4 (`options.IPXE_HTTP` etc.); empty if it sent no list.
    is_limited_ipxe: a PXE ROM that is a gPXE, or an iPXE that can't start kernels, and boots a full iPXE first.
    is_raspberry_pi: a PXE ROM that declares itself as the firmware of a Raspberry Pi.
    """

    stage: Stage
    architectures: tuple[int, ...]
    description: str
    features: frozenset[int] = frozenset()
    is_limited_ipxe: bool = False
    is_raspberry_pi: bool = False

    @property
    def is_uefi(self) -> bool:
        """True if a ROM runs programs for UEFI, according to its first architecture."""
        is_rom = self.stage in (Stage.PXE_ROM, Stage.HTTP_ROM)
        return is_rom and bool(self.architectures) and "UEFI" in architecture_name(self.architectures[0])


@dataclass(frozen=True, slots=True)
class BootAnswer:
    """The boot part of a reply.

    options: encoded.
    text: the same for people.
    refusal: the reason if the machine may not netboot.
    shared: equal for this client on every machine with its boot path (DHCPv4: the usual boot path, and machines of one
        maker, the first three bytes of the MAC), so the fast path may cache it.

    Of DHCPv4 only:

    spare_options: may be left out if the client takes only small messages, because the header has the same.
    siaddr, sname, file: fields of the header; `sname` and `file` are empty if the text is too long for them.
    """

    options: bytes = b""
    text: str = ""
    refusal: str = ""
    shared: bool = False
    spare_options: bytes = b""
    siaddr: bytes = bytes(4)
    sname: bytes = b""
    file: bytes = b""


NOTHING: Final = BootAnswer(shared=True)
"""The boot part of a reply to a client that does not netboot."""


def uki_path(machine: Machine) -> str:
    """Return the path of the machine's OSIE as one program. Raises NoBinaryError."""
    named = machine.hardware.spec.osie
    if named is None or not named.name:
        raise NoBinaryError("boot path uki: spec.osie.name is not set: name the OSIE that the machine is to boot")
    return f"osie/{quote(named.name, safe='')}/{UKI_FILE}"


class Reply(NamedTuple):
    """A packet to send from the port that received the request; a link-local address is on the server's interface.

    `ethernet` is the client's hardware address if the client does not answer ARP yet. Then the packet leaves as a frame
    to this address, or as a broadcast if no frame can be sent.
    """

    payload: bytes
    address: str
    port: int
    ethernet: bytes = b""
