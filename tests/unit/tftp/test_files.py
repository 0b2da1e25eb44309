"""Which file a machine gets for the name that it writes, and which it must not get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge.callers import Callers
from edge.inventory import Inventory
from edge.policy import NetbootPolicy
from edge.tftp.files import BootFiles, mac_of
from edge.tftp.packets import ErrorCode
from edge.tftp.source import Refusal, TftpFile, TftpRequest
from ipxe.binaries import BootBinaries

MAC = "52:54:00:12:34:56"
LOCKED = "52:54:00:00:00:02"


def hardware(name: str, mac: str, ip: str, **interface: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"networkInterfaces": {mac: {"dhcp": {"ip": ip}, **interface}}},
    }


@pytest.fixture
def files(tmp_path: Path) -> BootFiles:
    (tmp_path / "secret").write_text("secret")
    directory = tmp_path / "ipxe"
    directory.mkdir()
    (directory / "snponly.efi").write_bytes(b"snponly")
    (directory / "notes.txt").write_bytes(b"no boot file")
    inventory = Inventory()
    inventory.apply(hardware("lab-1", MAC, "10.0.0.50"))
    inventory.apply(hardware("lab-2", LOCKED, "10.0.0.51", disableNetboot=True))
    return BootFiles(BootBinaries(directory), inventory, Callers(inventory), NetbootPolicy())


@pytest.mark.parametrize(
    "name",
    [
        "snponly.efi",
        "/snponly.efi",
        "./snponly.efi",
        "//snponly.efi",
        "\\snponly.efi",
        "SNPONLY.EFI",
        f"{MAC}/snponly.efi",
        "52-54-00-12-34-56/snponly.efi",
        "525400123456\\snponly.efi",
        f"/{MAC.upper()}/snponly.efi",
    ],
)
def test_machine_gets_its_binary_however_its_rom_writes_the_name(files: BootFiles, name: str) -> None:
    assert files(TftpRequest(name, "10.0.0.50")) == TftpFile(b"snponly", "snponly.efi", MAC)


def test_unknown_client_gets_the_binary_and_has_no_journey(files: BootFiles) -> None:
    assert files(TftpRequest("snponly.efi", "10.9.9.9")) == TftpFile(b"snponly", "snponly.efi", None)


@pytest.mark.parametrize(
    ("name", "client"),
    [("snponly.efi", "10.0.0.51"), (f"{LOCKED}/snponly.efi", "10.9.9.9"), (f"{MAC}/snponly.efi", "10.0.0.51")],
)
def test_machine_that_may_not_netboot_gets_no_binary_and_reads_why(files: BootFiles, name: str, client: str) -> None:
    answer = files(TftpRequest(name, client))
    assert isinstance(answer, Refusal)
    assert answer.code is ErrorCode.ACCESS_VIOLATION
    assert "disableNetboot is true" in answer.message
    assert answer.mac == LOCKED


@pytest.mark.parametrize(
    "name", ["../secret", "/../secret", "..\\secret", f"{MAC}/../secret", "a/../snponly.efi", "../../../../etc/passwd"]
)
def test_names_that_climb_out_are_access_violations(files: BootFiles, name: str) -> None:
    answer = files(TftpRequest(name, "10.0.0.50"))
    assert isinstance(answer, Refusal)
    assert answer.code is ErrorCode.ACCESS_VIOLATION


@pytest.mark.parametrize(
    "name", ["nope.efi", "/etc/passwd", "notes.txt", "boot/snponly.efi", "x/y/snponly.efi", "/", "."]
)
def test_names_of_nothing_are_not_found(files: BootFiles, name: str) -> None:
    answer = files(TftpRequest(name, "10.0.0.50"))
    assert isinstance(answer, Refusal)
    assert (answer.code, answer.mac, answer.expected) == (ErrorCode.NOT_FOUND, MAC, False)


def test_autoexec_of_newer_ipxe_is_an_expected_miss(files: BootFiles) -> None:
    for name in ("autoexec.ipxe", "/autoexec.ipxe", f"{MAC}/autoexec.ipxe"):
        answer = files(TftpRequest(name, "10.0.0.50"))
        assert isinstance(answer, Refusal)
        assert (answer.code, answer.expected) == (ErrorCode.NOT_FOUND, True)


@given(st.text(max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_name_raises_or_reaches_another_file(files: BootFiles, name: str) -> None:
    answer = files(TftpRequest(name, "10.0.0.50"))
    if isinstance(answer, TftpFile):
        assert answer.content == b"snponly"
    else:
        assert answer.message.isprintable()
        assert len(answer.message) < 200


def test_mac_addresses_in_names_are_told_from_other_directories() -> None:
    assert mac_of("52.54.00.12.34.56") == MAC
    for segment in ("525400-12-34-56", "52:54-00:12:34:56", "5254001234567", "", "zz:54:00:12:34:56"):
        assert mac_of(segment) is None
