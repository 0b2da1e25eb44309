"""Boot path auto over IPv6: a machine that did not run what it was named is named the other program from then on."""

from __future__ import annotations

from functools import partial
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

import pytest

from edge.dhcp6.wire import Option
from ipxe.binaries import BootBinaries, BootPath
from tests.unit.dhcp6.harness import EDK2_HTTP_SOLICIT, EDK2_PXE_SOLICIT, MAC, Edge6, MakeEdge6, hardware, make

IPXE, SHIM = b"tftp://[fd00:77::1]/snponly.efi", b"tftp://[fd00:77::1]/shimx64.efi"
BIOS_SOLICIT = EDK2_PXE_SOLICIT.replace(bytes.fromhex("003d00020007"), bytes.fromhex("003d00020000"))


@pytest.fixture
def make_with_shim(tmp_path: Path) -> MakeEdge6:
    for name in ("undionly.kpxe", "snponly.efi", "shimx64.efi", "grubx64.efi"):
        (tmp_path / name).write_bytes(b"GET %s HTTP/1.1")
    return partial(make, BootBinaries(tmp_path, tmp_path, BootPath.AUTO), usual=BootPath.AUTO)


def named(edge: Edge6, packet: bytes = EDK2_PXE_SOLICIT) -> bytes | None:
    return edge.answer(packet).get(Option.BOOTFILE_URL)


def machine(path: str = "") -> dict[str, Any]:
    obj = hardware()
    if path:
        obj["metadata"]["annotations"] = {"tinkerbell.org/boot-path": path}
    return obj


def test_firmware_that_did_not_run_ipxe_is_named_the_shim_and_then_ipxe_again(make_with_shim: MakeEdge6) -> None:
    edge = make_with_shim(machine())
    assert named(edge) == IPXE
    edge.boot_paths.not_started(MAC)
    assert named(edge) == SHIM
    assert named(edge, EDK2_HTTP_SOLICIT) == f"http://[fd00:77::1]:7080/ipxe/binary/{MAC}/shimx64.efi".encode()
    assert any("iPXE was not started, so it is offered shim and GRUB" in line for line in edge.lines())
    edge.boot_paths.not_started(MAC)
    assert named(edge) == IPXE


def test_auto_of_one_machine_alone_changes_nothing_for_the_others(make_with_shim: MakeEdge6) -> None:
    other = hardware()
    other["metadata"]["name"] = "other"
    interfaces = other["spec"]["networkInterfaces"]
    interfaces["52:54:00:fa:00:2b"] = interfaces.pop(MAC) | {"dhcp": {"ipv6": {"address": "fd00:77::51"}}}
    edge = make_with_shim(machine("auto"), other, usual=BootPath.IPXE)
    edge.boot_paths.not_started(MAC)
    edge.boot_paths.not_started("52:54:00:fa:00:2b")
    assert named(edge) == SHIM
    source = IPv6Address("fe80::5054:ff:fefa:2b")
    assert edge.answer(EDK2_PXE_SOLICIT, source).get(Option.BOOTFILE_URL) == IPXE


@pytest.mark.parametrize("path", ["ipxe", "grub"])
def test_path_that_the_hardware_names_stays(make_with_shim: MakeEdge6, path: str) -> None:
    edge = make_with_shim(machine(path))
    before = named(edge)
    edge.boot_paths.not_started(MAC)
    assert named(edge) == before == (IPXE if path == "ipxe" else SHIM)


def test_bios_goes_on_with_ipxe(make_with_shim: MakeEdge6) -> None:
    edge = make_with_shim(machine())
    edge.boot_paths.not_started(MAC)
    assert named(edge, BIOS_SOLICIT) == b"tftp://[fd00:77::1]/undionly.kpxe"


def test_without_a_shim_ipxe_stays_and_the_journey_says_what_is_missing(make_edge: MakeEdge6) -> None:
    edge = make_edge(machine("auto"))
    edge.boot_paths.not_started(MAC)
    assert named(edge) == IPXE
    assert any("there is no shim and GRUB here to offer instead" in line for line in edge.lines())
