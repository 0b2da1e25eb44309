"""DHCPv4 options: their codes, and the encoders of their values. Pure.

Codes and names are those of IANA's registry "BOOTP Vendor Extensions and DHCP Options"; the comment beside a code
names its source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tink.errors import TinkedgeError

# The codes are plain integers, because they are keys of the dictionary that every packet is parsed into.
PAD: Final = 0  # RFC 2132 section 3.1
SUBNET_MASK: Final = 1  # section 3.3
ROUTER: Final = 3  # section 3.5
DOMAIN_NAME_SERVER: Final = 6  # section 3.8
HOST_NAME: Final = 12  # section 3.14
DOMAIN_NAME: Final = 15  # section 3.17
BROADCAST_ADDRESS: Final = 28  # section 5.3
NTP_SERVERS: Final = 42  # section 8.3
VENDOR_SPECIFIC: Final = 43  # section 8.4; PXE 2.1 section 2.3 for PXE's sub-options
REQUESTED_ADDRESS: Final = 50  # section 9.1
LEASE_TIME: Final = 51  # section 9.2
OVERLOAD: Final = 52  # section 9.3
MESSAGE_TYPE: Final = 53  # section 9.6
SERVER_IDENTIFIER: Final = 54  # section 9.7
PARAMETER_REQUEST_LIST: Final = 55  # section 9.8
MESSAGE: Final = 56  # section 9.9
MAX_MESSAGE_SIZE: Final = 57  # section 9.10
RENEWAL_TIME: Final = 58  # section 9.11
REBINDING_TIME: Final = 59  # section 9.12
VENDOR_CLASS: Final = 60  # section 9.13
CLIENT_IDENTIFIER: Final = 61  # section 9.14; RFC 6842
TFTP_SERVER_NAME: Final = 66  # section 9.4
BOOTFILE_NAME: Final = 67  # section 9.5
USER_CLASS: Final = 77  # RFC 3004
CLIENT_FQDN: Final = 81  # RFC 4702
RELAY_AGENT_INFORMATION: Final = 82  # RFC 3046
CLIENT_ARCHITECTURE: Final = 93  # RFC 4578 section 2.1
CLIENT_NETWORK_INTERFACE: Final = 94  # RFC 4578 section 2.2
CLIENT_UUID: Final = 97  # RFC 4578 section 2.3
IPXE: Final = 175  # Etherboot's encapsulated options, kept by iPXE (tentatively assigned)
END: Final = 255  # RFC 2132 section 3.2

# Sub-options of 43.
PXE_DISCOVERY_CONTROL: Final = 6  # PXE 2.1 table 2-1
VLAN_ID: Final = 116  # Tinkerbell's own, which its iPXE scripts read as ${43.116:string}

# Sub-options of 82.
CIRCUIT_ID: Final = 1  # RFC 3046 section 3.1
LINK_SELECTION: Final = 5  # RFC 3527
SERVER_IDENTIFIER_OVERRIDE: Final = 11  # RFC 5107
RELAY_SOURCE_PORT: Final = 19  # RFC 8357 section 4.1

# Sub-options of 175 (iPXE include/ipxe/dhcp.h and features.h). The codes up to 63 are features.
IPXE_HTTP: Final = 19
IPXE_HTTPS: Final = 20
IPXE_TFTP: Final = 21
IPXE_DNS: Final = 23
IPXE_BZIMAGE: Final = 24
IPXE_EFI: Final = 36
IPXE_MENU: Final = 39
IPXE_NO_PXEDHCP: Final = 176

INFINITE_LEASE: Final = 0xFFFFFFFF  # RFC 2131 section 3.3

_OCTETS: Final = {str(number): number for number in range(256)}


class DhcpError(TinkedgeError):
    """The root of the DHCP server's exceptions."""


class OptionError(DhcpError, ValueError):
    """A value does not fit its option."""


def ipv4(address: str) -> bytes:
    """Return the four bytes of a dotted IPv4 address. Raises OptionError if it is none."""
    parts = address.split(".")
    if len(parts) == 4:
        a, b, c, d = parts
        # The table is for the usual spelling: the start of a large site reads a million addresses.
        try:
            return bytes((_OCTETS[a], _OCTETS[b], _OCTETS[c], _OCTETS[d]))
        except KeyError:
            pass  # no address, or one with leading zeros
    if len(parts) != 4 or not all(part.isascii() and part.isdigit() and int(part) < 256 for part in parts):
        raise OptionError(f"{address!r} is not an IPv4 address")
    return bytes(map(int, parts))


def dotted(address: bytes) -> str:
    """Return the dotted form of four bytes."""
    a, b, c, d = address
    return f"{a}.{b}.{c}.{d}"


def is_ipv4(address: str) -> bool:
    """Return True if the text is a dotted IPv4 address."""
    try:
        ipv4(address)
    except OptionError:
        return False
    return True


def is_host_address(address: bytes) -> bool:
    """Return True if four bytes can be one host's address: not in network 0, no loopback, multicast or broadcast."""
    return 0 < address[0] < 224 and address[0] != 127


def is_host(address: str) -> bool:
    """Return True if the text is the dotted IPv4 address of one host."""
    return is_ipv4(address) and is_host_address(ipv4(address))


def text(string: str) -> bytes:
    """Return the value of an option that holds text, without a NUL (RFC 2132 section 2). Raises OptionError."""
    try:
        return string.encode("ascii")
    except UnicodeEncodeError as error:
        raise OptionError(f"{string!r} has characters other than ASCII") from error


def option(code: int, value: bytes) -> bytes:
    """Return one encoded option. Raises OptionError if the value needs more than one instance (`instances`)."""
    if len(value) > 255:
        raise OptionError(f"option {code}: {len(value)} bytes don't fit into one option")
    return bytes((code, len(value))) + value


def instances(code: int, value: bytes) -> bytes:
    """Return an option of any length, split over several instances (RFC 3396 section 6)."""
    # Boot options must not be split: EDK2 reads only the first instance (PxeBcParseDhcp4Options).
    return b"".join(option(code, value[at : at + 255]) for at in range(0, max(len(value), 1), 255))


def suboptions(value: bytes) -> dict[int, bytes] | None:
    """Return the sub-options of option 43, 82 or 175, repeated ones joined; None if a length is wrong."""
    found: dict[int, bytes] = {}
    at = 0
    while at < len(value):
        code = value[at]
        if code == END:
            break
        if code == PAD:
            at += 1
            continue
        if at + 1 >= len(value) or at + 2 + value[at + 1] > len(value):
            return None
        end = at + 2 + value[at + 1]
        found[code] = found.get(code, b"") + value[at + 2 : end]
        at = end
    return found


def encapsulated(suboptions: Mapping[int, bytes]) -> bytes:
    """Return the value of an option that holds options: 43 (RFC 2132 section 8.4) and 175."""
    # It ends with END, because iPXE and old PXE ROMs look for it.
    return b"".join(option(code, value) for code, value in suboptions.items()) + bytes((END,))
