"""Reads the raw SMBIOS table: bytes in, parts of an inventory out. Pure.

DSP0134 (SMBIOS 3.7) defines the layouts; the section numbers below are its own. Linux serves the table as
/sys/firmware/dmi/tables/DMI. Firmware writes the table, so its content is hostile:

- A structure that is cut off ends the walk.
- A field beyond the end of its structure is absent.
- At most MAX_STRUCTURES structures with MAX_STRINGS strings each are read.

The functions return dictionaries in the shape of `tink.api.v1alpha2.Attributes`, without empty values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final
from uuid import UUID

from tink.api.inventory import clean_text, serial_number

Facts = dict[str, Any]
"""A part of an inventory."""

MAX_TABLE_BYTES: Final = 512 << 10
"""Maximum size of a table. A server with 48 memory modules has 30 KB."""
MAX_STRUCTURES: Final = 4096
MAX_STRINGS: Final = 64

_HEADER_BYTES: Final = 4
_END_OF_TABLE: Final = 127
_MEGABYTE: Final = 1 << 20
_SYSTEM_MEMORY: Final = 3  # section 7.17.2, use of a memory array
_CENTRAL_PROCESSOR: Final = 3  # section 7.5.1
_REDFISH_OVER_IP: Final = 4  # section 7.43.2
_NETWORK_HOST_INTERFACE: Final = 0x40  # section 7.43.1
_IPMI_INTERFACES: Final = {1: "KCS", 2: "SMIC", 3: "BT", 4: "SSIF"}  # section 7.39.1


@dataclass(frozen=True, slots=True)
class Structure:
    """One structure of the table (section 6.1.2).

    content: the formatted part, with its header of four bytes.
    strings: the strings behind it; the first one has the number 1.
    """

    type: int
    handle: int
    content: bytes
    strings: tuple[str, ...]

    def number(self, offset: int, size: int) -> int | None:
        """Return the little-endian number of `size` bytes at `offset`; None beyond the end of the structure."""
        field = self.content[offset : offset + size]
        return int.from_bytes(field, "little") if len(field) == size else None

    def text(self, offset: int) -> str:
        """Return the string whose number is at `offset`; empty if there is none."""
        number = self.number(offset, 1)
        return self.strings[number - 1] if number and number <= len(self.strings) else ""


def structures(table: bytes) -> list[Structure]:
    """Return the structures of a table up to its end, to the first one that is cut off, or to MAX_STRUCTURES."""
    return list(_walk(table[:MAX_TABLE_BYTES]))


def _walk(table: bytes) -> Iterator[Structure]:
    position = 0
    for _ in range(MAX_STRUCTURES):
        header = table[position : position + _HEADER_BYTES]
        if len(header) < _HEADER_BYTES or header[1] < _HEADER_BYTES or header[0] == _END_OF_TABLE:
            return
        strings_at = position + header[1]
        # Two NUL bytes end a structure: that of the last string, and an empty string (section 6.1.3).
        end = table.find(b"\0\0", strings_at)
        if end < 0:
            return
        parts = table[strings_at:end].split(b"\0", MAX_STRINGS)[:MAX_STRINGS]
        strings = tuple(part.decode(errors="replace") for part in parts)
        yield Structure(header[0], int.from_bytes(header[2:4], "little"), table[position:strings_at], strings)
        position = end + 2


def _of_type(table: list[Structure], number: int) -> Iterator[Structure]:
    return (each for each in table if each.type == number)


def _present(**fields: Any) -> Facts:
    return {name: value for name, value in fields.items() if value}


def bios(table: list[Structure]) -> Facts:
    """Return vendor and version of the firmware (type 0, section 7.1)."""
    for each in _of_type(table, 0):
        return _present(vendor=clean_text(each.text(0x04)), firmwareVersion=clean_text(each.text(0x05)))
    return {}


def product(table: list[Structure], version: tuple[int, int] = (3, 0)) -> Facts:
    """Return vendor, model, serial number and UUID of the machine (type 1, section 7.2).

    `version` is that of SMBIOS. Since 2.6 the first three fields of the UUID are little-endian (section 7.2.1).
    """
    for each in _of_type(table, 1):
        octets = each.content[0x08:0x18]
        uuid = ""
        if len(octets) == 16 and octets not in (bytes(16), b"\xff" * 16):
            uuid = str(UUID(bytes_le=octets) if version >= (2, 6) else UUID(bytes=octets))
        return _component(each, 0x04, 0x05, 0x07) | _present(uuid=uuid)
    return {}


def baseboard(table: list[Structure]) -> Facts:
    """Return vendor, model and serial number of the main board (type 2, section 7.3)."""
    return next((_component(each, 0x04, 0x05, 0x07) for each in _of_type(table, 2)), {})


def chassis(table: list[Structure]) -> Facts:
    """Return vendor and serial number of the chassis (type 3, section 7.4), which has a version and no model."""
    for each in _of_type(table, 3):
        return _present(vendor=clean_text(each.text(0x04)), serialNumber=serial_number(each.text(0x07)))
    return {}


def _component(structure: Structure, vendor: int, model: int, serial: int) -> Facts:
    return _present(
        vendor=clean_text(structure.text(vendor)),
        model=clean_text(structure.text(model)),
        serialNumber=serial_number(structure.text(serial)),
    )


def processors(table: list[Structure]) -> list[Facts]:
    """Return the central processors of all populated sockets (type 4, section 7.5)."""
    found = []
    for each in _of_type(table, 4):
        status = each.number(0x18, 1)
        is_populated = status is None or bool(status & 0x40)
        if each.number(0x05, 1) == _CENTRAL_PROCESSOR and is_populated:
            cores = _count(each, 0x23, 0x2A)
            threads = _count(each, 0x25, 0x2E)
            found.append(
                _present(
                    slot=clean_text(each.text(0x04)),
                    vendor=clean_text(each.text(0x07)),
                    model=clean_text(each.text(0x10)),
                    serialNumber=serial_number(each.text(0x20)),
                    cores=cores,
                    threads=threads,
                    clockSpeedMHz=each.number(0x14, 2),
                )
            )
    return found


def _count(structure: Structure, byte: int, word: int) -> int:
    """Return a count of one byte; 0xFF refers to a word for larger counts (sections 7.5.6 and 7.5.8)."""
    count = structure.number(byte, 1) or 0
    larger = structure.number(word, 2) if count == 0xFF else None
    return larger if larger not in (None, 0xFFFF) else count


def memory_modules(table: list[Structure]) -> list[Facts]:
    """Return the installed modules of the system's memory (types 16 and 17, sections 7.17 and 7.18)."""
    others = {each.handle for each in _of_type(table, 16) if each.number(0x05, 1) not in (_SYSTEM_MEMORY, None)}
    found = []
    for each in _of_type(table, 17):
        size = _module_bytes(each)
        if size and each.number(0x04, 2) not in others:
            found.append(
                _present(
                    slot=clean_text(each.text(0x10), each.text(0x11)),
                    vendor=clean_text(each.text(0x17)),
                    serialNumber=serial_number(each.text(0x18)),
                    partNumber=clean_text(each.text(0x1A)),
                    firmwareVersion=clean_text(each.text(0x2B)),
                    sizeBytes=size,
                    speedMHz=_speed(each, 0x20, 0x58) or _speed(each, 0x15, 0x54),
                    formFactor=_form(each),
                )
            )
    return found


def _module_bytes(structure: Structure) -> int:
    """Return the size of a module in bytes (sections 7.18.4 and 7.18.5); 0 for an empty slot or an unknown size."""
    size = structure.number(0x0C, 2) or 0
    if size == 0xFFFF:
        return 0
    if size == 0x7FFF:
        return ((structure.number(0x1C, 4) or 0) & 0x7FFFFFFF) * _MEGABYTE
    return (size & 0x7FFF) * (1024 if size & 0x8000 else _MEGABYTE)


def _speed(structure: Structure, word: int, extended: int) -> int:
    """Return a speed in MT/s; 0xFFFF refers to a field of four bytes (section 7.18.6)."""
    speed = structure.number(word, 2) or 0
    return speed if speed != 0xFFFF else (structure.number(extended, 4) or 0) & 0x7FFFFFFF


def _form(structure: Structure) -> str:
    """Return the form of a module in the words of Redfish (sections 7.18.1 and 7.18.3)."""
    detail = structure.number(0x13, 2) or 0
    form = {0x09: "DIMM", 0x0D: "SODIMM", 0x10: "Die", 0x11: "CAMM"}.get(structure.number(0x0E, 1) or 0, "")
    if form == "DIMM":
        return next((name for bit, name in ((15, "LRDIMM"), (13, "RDIMM"), (14, "UDIMM")) if detail >> bit & 1), form)
    return form


def bmc(table: list[Structure]) -> Facts:
    """Return what the table has of a BMC; empty if it describes none (types 38 and 42, sections 7.39 and 7.43).

    The address is that of a Redfish service (DSP0270 section 8), if machines other than this one can reach it.
    """
    found: Facts = {}
    for each in _of_type(table, 38):
        if (interface := _IPMI_INTERFACES.get(each.number(0x04, 1) or 0)) is not None:
            found = {"model": f"IPMI {interface}"}
            break
    for each in _of_type(table, 42):
        for protocol, content in _protocols(each):
            if protocol == _REDFISH_OVER_IP and (address := _service_address(content)):
                return found | {"address": address}
    return found


def _protocols(structure: Structure) -> Iterator[tuple[int, bytes]]:
    """Yield the protocol records of a network host interface (section 7.43)."""
    if structure.number(0x04, 1) != _NETWORK_HOST_INTERFACE:
        return
    position = 6 + (structure.number(0x05, 1) or 0)
    for _ in range(structure.number(position, 1) or 0):
        protocol, size = structure.number(position + 1, 1), structure.number(position + 2, 1)
        if protocol is None or size is None:
            return
        yield protocol, structure.content[position + 3 : position + 3 + size]
        position += 2 + size


def _service_address(record: bytes) -> str:
    """Return the address of the Redfish service in a protocol record; empty if only this machine reaches it."""
    # The UUID has 16 bytes, the host's address 34, and the discovery type one; then come format and address.
    if len(record) < 68:
        return ""
    form, octets = record[51], record[52:68]
    if form not in (1, 2):
        return ""
    address = IPv4Address(octets[:4]) if form == 1 else IPv6Address(octets)
    return str(address) if is_reachable(address) else ""


def is_reachable(address: IPv4Address | IPv6Address) -> bool:
    """Return True if other machines can reach the address: BMCs give the host's own side a link-local address."""
    return not (address.is_unspecified or address.is_link_local or address.is_loopback or address.is_multicast)
