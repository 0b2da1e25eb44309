"""UEFI variables in the flash file of EDK2 firmware, such as OVMF: sets what the firmware boots once, from outside.

The file begins with a firmware volume (PI 1.8 volume 3, section 3.2.1) that holds a variable store. The store is a log:
a header, then variables one after the other, each aligned to 4 bytes, then free space of 0xFF. A changed variable is
marked as deleted and appended again (EDK2, MdeModulePkg/Include/Guid/VariableFormat.h). The firmware itself compacts
the store. Pure: bytes in, bytes out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from tink.errors import TinkedgeError

MAX_URI_LENGTH: Final = 1024

_AUTHENTICATED_STORE: Final = UUID("aaf32c78-947b-439a-a180-2e144ec37792").bytes_le
_GLOBAL: Final = UUID("8be4df61-93ca-11d2-aa0d-00e098032b8c").bytes_le
"""EFI_GLOBAL_VARIABLE, the vendor of the boot variables (UEFI 2.10 section 3.3)."""
_VOLUME: Final = struct.Struct("<16s16sQ4sIH")
"""Reset vector, file system, length, signature, attributes, length of this header."""
_STORE: Final = struct.Struct("<16sIBBHI")
"""Format, size with this header, formatted, healthy, two reserved fields."""
_VARIABLE: Final = struct.Struct("<HBBIQ16sIII16s")
"""Start, state, reserved, attributes, counter, time, key, size of the name, size of the data, vendor."""
_START: Final = 0x55AA
_ADDED: Final = 0x3F
_NOT_DELETED: Final = 0x02
"""The bit of a state that is cleared when the variable is deleted: flash clears bits without an erasure."""
_ATTRIBUTES: Final = 0x07  # non-volatile, for boot services, at run time
_ACTIVE: Final = 1  # LOAD_OPTION_ACTIVE
_NUMBER: Final = 0x0099  # far from the entries that the firmware makes
_END_OF_PATH: Final = b"\x7f\xff\x04\x00"


class VariableStoreError(TinkedgeError):
    """The flash file has no variable store that is known, or no room; or the URI can't be stored."""


@dataclass(frozen=True, slots=True)
class _Variable:
    """A variable in the store. `offset` and `end` are positions in the file."""

    offset: int
    end: int
    state: int
    vendor: bytes
    name: bytes


def set_boot_uri(flash: bytes, uri: str) -> bytes:
    """Return the flash file with a boot entry for `uri` that the firmware uses for its next start only.

    The entry has the short form of a URI device path (UEFI 2.10 section 3.1.2), so that the firmware boots it from any
    of its network cards. The variable BootNext names the entry; the firmware deletes BootNext when it has read it.
    Raises VariableStoreError.
    """
    if not uri.isascii() or not 0 < len(uri) <= MAX_URI_LENGTH:
        raise VariableStoreError(f"an HTTP boot URI has 1 to {MAX_URI_LENGTH} characters, all of them ASCII")
    node = uri.encode()
    path = struct.pack("<BBH", 3, 24, 4 + len(node)) + node + _END_OF_PATH  # messaging device path, URI (10.3.4.23)
    entry = struct.pack("<IH", _ACTIVE, len(path)) + _text("HTTP boot by the BMC") + path
    changes = {_text(f"Boot{_NUMBER:04X}"): entry, _text("BootNext"): struct.pack("<H", _NUMBER)}
    first, limit = _bounds(flash)
    changed, end = bytearray(flash), first
    for variable in _variables(flash, first, limit):
        if variable.vendor == _GLOBAL and variable.name in changes:
            changed[variable.offset + 2] = variable.state & ~_NOT_DELETED
        end = variable.end
    for name, data in changes.items():
        header = _VARIABLE.pack(_START, _ADDED, 0, _ATTRIBUTES, 0, bytes(16), 0, len(name), len(data), _GLOBAL)
        added = header + name + data
        if end + len(added) > limit:
            raise VariableStoreError(
                "the firmware's variable store is full: remove the file, and the firmware resets it"
            )
        changed[end : end + len(added)] = added
        end = _aligned(end + len(added))
    return bytes(changed)


def _text(text: str) -> bytes:
    return text.encode("utf-16-le") + b"\0\0"


def _aligned(position: int) -> int:
    return position + -position % 4


def _bounds(flash: bytes) -> tuple[int, int]:
    """Return where the variables begin, and where the store ends."""
    if len(flash) >= _VOLUME.size:
        *_, signature, _, header_length = _VOLUME.unpack_from(flash)
        if signature == b"_FVH" and header_length + _STORE.size <= len(flash):
            kind, size, *_ = _STORE.unpack_from(flash, header_length)
            if kind == _AUTHENTICATED_STORE and header_length + size <= len(flash):
                return _aligned(header_length + _STORE.size), header_length + size
    raise VariableStoreError("the file has no variable store of EDK2 with authenticated variables")


def _variables(flash: bytes, position: int, limit: int) -> Iterator[_Variable]:
    """Yield the variables of the store, deleted ones too. Raises VariableStoreError."""
    while position + _VARIABLE.size <= limit:
        start, state, _, _, _, _, _, name_size, data_size, vendor = _VARIABLE.unpack_from(flash, position)
        if start != _START:
            return
        name_at = position + _VARIABLE.size
        end = _aligned(name_at + name_size + data_size)
        if end > limit:
            raise VariableStoreError(f"the variable at byte {position} reaches beyond the variable store")
        yield _Variable(position, end, state, vendor, flash[name_at : name_at + name_size])
        position = end
