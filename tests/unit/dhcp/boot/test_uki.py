"""Boot path uki: the OSIE as one program, for firmware that is UEFI, and iPXE for any other."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.dhcp.boot import BootChoice, Client, ClientKind
from edge.dhcp.wire import options
from edge.machines import Inventory, Machine, NetbootPolicy
from ipxe.binaries import BootBinaries, BootPath, NoBinaryError

MAC = "52:54:00:00:00:01"
HTTP_ROM = Client(ClientKind.HTTP_ROM, (16,), "UEFI")
PXE_ROM = Client(ClientKind.PXE_ROM, (7,), "UEFI")
BIOS = Client(ClientKind.PXE_ROM, (0,), "BIOS")


@pytest.fixture
def choice(tmp_path: Path) -> BootChoice:
    for name in ("undionly.kpxe", "snponly.efi"):
        (tmp_path / name).write_bytes(b"MZ")
    return BootChoice(NetbootPolicy(), BootBinaries(tmp_path), "10.0.0.1", "http://10.0.0.1:7080")


def machine(osie: str = "lab") -> Machine:
    inventory = Inventory()
    metadata = {"name": "m1", "namespace": "default", "annotations": {"tinkerbell.org/boot-path": "uki"}}
    spec = {"networkInterfaces": {MAC: {}}} | ({"osie": {"name": osie}} if osie else {})
    inventory.apply({"metadata": metadata, "spec": spec})
    found = inventory.by_mac(MAC)
    assert found is not None
    return found


def test_uefi_is_named_the_osie_itself_by_the_way_that_it_asks_for(choice: BootChoice) -> None:
    by_http = choice.verdict(machine(), MAC, HTTP_ROM).boot
    assert by_http.text == "boot file http://10.0.0.1:7080/osie/lab/uki.efi"
    assert options.option(options.VENDOR_CLASS, b"HTTPClient") in by_http.options
    by_tftp = choice.verdict(machine(), MAC, PXE_ROM).boot
    assert (by_tftp.file, by_tftp.siaddr) == (b"osie/lab/uki.efi", bytes((10, 0, 0, 1)))
    assert not by_tftp.shared, "or another machine of that maker would get this one's OSIE"


def test_machine_with_a_bios_gets_ipxe(choice: BootChoice) -> None:
    assert choice.verdict(machine(), MAC, BIOS).boot.file == b"undionly.kpxe"


def test_machine_without_an_osie_is_told_what_is_missing(choice: BootChoice) -> None:
    assert "spec.osie.name is not set" in choice.verdict(machine(""), MAC, HTTP_ROM).refusal


def test_fast_path_which_knows_no_osie_leaves_it_to_the_full_one(choice: BootChoice) -> None:
    with pytest.raises(NoBinaryError):
        choice.choose(PXE_ROM, MAC, BootPath.UKI)
    assert choice.choose(BIOS, MAC, BootPath.UKI).file == b"undionly.kpxe"
