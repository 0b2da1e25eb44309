"""Boot entries in the variables of EDK2 firmware: what is written, where, and what is refused."""

from __future__ import annotations

import struct
from contextlib import suppress
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.lab.uefi_variables import VariableStoreError, set_boot_uri

GLOBAL = UUID("8be4df61-93ca-11d2-aa0d-00e098032b8c").bytes_le
OTHER = UUID("d719b2cb-3d3a-4596-a3bc-dad00e67656f").bytes_le
URI = "http://192.0.2.1:7080/ipxe.efi"


def variable(name, data, vendor=GLOBAL, state=0x3F):
    """A variable as EDK2 writes it, with the filling to the next one."""
    text = f"{name}\0".encode("utf-16-le")
    head = struct.pack("<HBBIQ16sIII16s", 0x55AA, state, 0, 7, 0, bytes(16), 0, len(text), len(data), vendor)
    made = head + text + data
    return made + b"\xff" * (-len(made) % 4)


def variable_store(*variables, size=0x1000):
    """A flash file with a firmware volume, a variable store of `size` bytes, and a part behind it."""
    volume = bytes(16) + bytes(16) + struct.pack("<Q4sIHHHBB", 0x2000, b"_FVH", 0x4FEFF, 0x48, 0, 0, 0, 2)
    store = UUID("aaf32c78-947b-439a-a180-2e144ec37792").bytes_le + struct.pack("<IBBHI", size, 0x5A, 0xFE, 0, 0)
    head = volume.ljust(0x48, b"\0") + store
    return (head + b"".join(variables)).ljust(0x48 + size, b"\xff") + b"behind"


def read(flash):
    """Return the variables that are not deleted, by vendor and name."""
    position, found = 0x64, {}
    while flash[position : position + 2] == b"\xaa\x55":
        _, state, *_, names, size, vendor = struct.unpack_from("<HBBIQ16sIII16s", flash, position)
        name = flash[position + 60 : position + 60 + names].decode("utf-16-le").rstrip("\0")
        data = flash[position + 60 + names : position + 60 + names + size]
        if state == 0x3F:
            assert (vendor, name) not in found, "twice"
            found[vendor, name] = data
        position += (60 + names + size + 3) // 4 * 4
    assert set(flash[position : position + 60]) <= {0xFF, *b"behind"}
    return found


def test_boot_next_names_an_entry_with_the_uri() -> None:
    flash = set_boot_uri(variable_store(), URI)
    found = read(flash)
    assert found[GLOBAL, "BootNext"] == b"\x99\x00"
    entry = found[GLOBAL, "Boot0099"]
    attributes, length = struct.unpack_from("<IH", entry)
    node = b"\x03\x18" + struct.pack("<H", 4 + len(URI)) + URI.encode()
    assert attributes == 1
    assert entry.endswith("HTTP boot by the BMC\0".encode("utf-16-le") + node + b"\x7f\xff\x04\x00")
    assert length == len(node) + 4
    assert len(flash) == len(variable_store())
    assert flash.endswith(b"behind")


def test_other_variables_stay_and_earlier_entries_are_replaced() -> None:
    kept = [variable("BootNext", b"x", OTHER), variable("Lang", b"abc"), variable("BootNext", b"\1\0", state=0x3D)]
    flash = set_boot_uri(variable_store(*kept, variable("BootNext", b"\2\0"), variable("Boot0001", b"disk")), URI)
    flash = set_boot_uri(flash, "http://192.0.2.1/other")
    found = read(flash)
    assert found[OTHER, "BootNext"] == b"x"
    assert found[GLOBAL, "Lang"] == b"abc"
    assert found[GLOBAL, "Boot0001"] == b"disk"
    assert found[GLOBAL, "BootNext"] == b"\x99\x00"
    assert b"http://192.0.2.1/other" in found[GLOBAL, "Boot0099"]
    assert len(found) == 5


@pytest.mark.parametrize("uri", ["", "http://h/" + "x" * 1024, "http://h/\u00fc"])
def test_uri_that_can_not_be_stored_is_refused(uri: str) -> None:
    with pytest.raises(VariableStoreError, match="1 to 1024 characters, all of them ASCII"):
        set_boot_uri(variable_store(), uri)


def test_full_store_is_refused() -> None:
    with pytest.raises(VariableStoreError, match="is full"):
        set_boot_uri(variable_store(size=200), URI)


@pytest.mark.parametrize("flash", [b"", b"factory settings", bytes(0x2000), variable_store()[:0x60]])
def test_file_without_a_variable_store_is_refused(flash: bytes) -> None:
    with pytest.raises(VariableStoreError, match="no variable store"):
        set_boot_uri(flash, URI)


def test_variable_that_reaches_beyond_the_store_is_refused() -> None:
    broken = bytearray(variable_store(variable("Lang", b"abc")))
    broken[0x64 + 40 : 0x64 + 44] = b"\xff\xff\xff\x7f"  # the size of its data
    with pytest.raises(VariableStoreError, match="beyond the variable store"):
        set_boot_uri(bytes(broken), URI)


@given(st.binary(max_size=400), st.integers(0, 400))
def test_broken_stores_never_cause_another_error(noise: bytes, at: int) -> None:
    flash = bytearray(variable_store(variable("Lang", b"abc"), size=400))
    flash[at : at + len(noise)] = noise
    with suppress(VariableStoreError):
        assert len(set_boot_uri(bytes(flash), URI)) == len(flash)
