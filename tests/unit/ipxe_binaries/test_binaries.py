"""The table of architectures against directories as they are found on real hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipxe.binaries import (
    ARCHITECTURES,
    BinariesError,
    BootBinaries,
    BootPath,
    NoBinaryError,
    after_shim,
    architecture_name,
)

DEBIAN = (
    *("ipxe.efi", "ipxe.iso", "ipxe.lkrn", "ipxe.pxe", "snponly.efi", "undionly.kkpxe", "undionly.kpxe"),
    "virtio-net.rom",
)


def directory_of(path: Path, *names: str) -> BootBinaries:
    for name in names:
        (path / name).write_bytes(b"content of " + name.encode())
    return BootBinaries(path)


@pytest.fixture
def debian(tmp_path: Path) -> BootBinaries:
    return directory_of(tmp_path, *DEBIAN)


@pytest.mark.parametrize("code", [0, 20, 7, 9, 16])
def test_machine_gets_the_binary_that_runs_on_it(debian, code):
    assert debian.for_architectures([code]).name == ("undionly.kpxe" if code in (0, 20) else "snponly.efi")


@pytest.mark.parametrize("code", [1, 6, 10, 11, 15, 18, 19, 21, 22, 27, 39, 41, 42, 65535])
def test_machine_that_nothing_runs_on_gets_nothing_rather_than_a_wrong_binary(debian, code):
    with pytest.raises(NoBinaryError, match=f"no iPXE binary for architecture {code}"):
        debian.for_architectures([code])


@pytest.mark.parametrize(
    ("codes", "name"),
    [((6, 15), "ipxe-i386.efi"), ((11, 19, 22, 24), "snponly-arm64.efi"), ((27,), "ipxe-riscv64.efi")],
)
def test_operator_who_adds_a_binary_serves_that_architecture(tmp_path, codes, name):
    binaries = directory_of(tmp_path, "snponly.efi", "ipxe-i386.efi", "snponly-arm64.efi", "ipxe-riscv64.efi")
    assert {binaries.for_architectures([code]).name for code in codes} == {name}


def test_refusal_tells_the_operator_which_file_is_missing_where(debian):
    with pytest.raises(NoBinaryError, match=r"11 \(UEFI ARM 64-bit\); put one of snponly-arm64\.efi, .* into /"):
        debian.for_architectures([11])
    with pytest.raises(NoBinaryError, match="does not name its architecture"):
        debian.for_architectures([])


RELEASE = (
    *("ipxe.efi", "snponly.efi", "undionly.kpxe", "x86_64/ipxe.efi", "x86_64/snponly.efi", "i386/undionly.kpxe"),
    *("x86_64-sb/ipxe.efi", "x86_64-sb/snponly.efi", "x86_64-sb/shimx64.efi"),
    *("x86_64-sb/ipxe-shim.efi", "x86_64-sb/snponly-shim.efi", "i386/ipxe.efi", "i386/snponly.efi"),
    *("arm64/snponly.efi", "arm64-sb/snponly.efi", "arm64-sb/snponly-shim.efi", "arm32/snponly.efi"),
    *("riscv64-sb/snponly.efi", "riscv64/snponly.efi", "loong64/ipxe.efi", "somewhere/snponly.efi"),
)


@pytest.mark.parametrize(
    ("codes", "name", "second"),
    [
        ((0,), "undionly.kpxe", None),
        ((6,), "snponly-i386.efi", None),
        ((7, 9, 16), "snponly-x86_64-sb-shim.efi", "snponly-x86_64-sb.efi"),
        ((10,), "snponly-arm32.efi", None),
        ((11, 19), "snponly-arm64-sb-shim.efi", "snponly-arm64-sb.efi"),
        ((22, 24), "snponly-arm64.efi", None),  # U-Boot has no Secure Boot that iPXE's shim would be for.
        ((27,), "snponly-riscv64.efi", None),
        ((39,), "ipxe-loong64.efi", None),
    ],
)
def test_unpacked_release_of_ipxe_is_served_with_its_shims(tmp_path, codes, name, second):
    for directory in {path.rpartition("/")[0] for path in RELEASE}:
        (tmp_path / directory).mkdir(exist_ok=True)
    binaries = directory_of(tmp_path, *RELEASE)
    assert {binaries.for_architectures([code]).name for code in codes} == {name}
    assert not [served for served in binaries.names() if "/" in served or "somewhere" in served]
    assert after_shim(name) == second
    if second is not None:
        directory = second.removeprefix("snponly-").removesuffix(".efi")
        assert binaries.get(second).content == f"content of {directory}/snponly.efi".encode()


@pytest.mark.parametrize("shim", ["snponly-shim.efi", "ipxe-shim.efi"])
def test_shim_without_its_second_stage_is_not_offered(tmp_path, shim):
    binaries = directory_of(tmp_path, shim, "snponly-arm64.efi", "snp-x86_64.efi")
    assert binaries.for_architectures([7]).name == "snp-x86_64.efi"
    assert binaries.get(shim) is None
    (tmp_path / shim.replace("-shim", "")).write_bytes(b"second stage")
    assert BootBinaries(tmp_path).for_architectures([7]).name == shim


@pytest.mark.parametrize(
    ("name", "second"),
    [
        ("snponly-shim.efi", "snponly.efi"),
        ("ipxe-shimx64.efi", "ipxe.efi"),
        ("intel-shimaa64.efi", "intel.efi"),
        ("shimx64.efi", None),
        ("snponly.efi", None),
        ("a-shim-b.efi", None),
        ("a-shimtoolong.efi", None),
        ("a-shim.kpxe", None),
    ],
)
def test_second_stage_is_named_as_the_shim_names_it(name, second):
    assert after_shim(name) == second


def test_first_architecture_that_has_a_binary_wins_and_the_second_best_serves_where_the_best_is_not(debian, tmp_path):
    assert debian.for_architectures([11, 0, 7]).name == "undionly.kpxe"
    (tmp_path / "snponly.efi").unlink()
    assert BootBinaries(tmp_path).for_architectures([7]).name == "ipxe.efi"


def test_only_boot_files_are_served_and_only_by_their_plain_name(debian):
    assert debian.names() == ["ipxe.efi", "ipxe.pxe", "snponly.efi", "undionly.kkpxe", "undionly.kpxe"]
    for name in ("ipxe.iso", "../snponly.efi", "/etc/passwd", "", "SNPONLY.EFI"):
        assert debian.get(name) is None


@pytest.mark.parametrize(
    ("asked", "served"),
    [
        ("ipxe.efi", "ipxe.efi"),
        ("snp-x86_64.efi", "snponly.efi"),
        ("undionly.kpxe-00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "undionly.kpxe"),
    ],
)
def test_names_of_smee_lead_to_what_runs_there(debian, asked, served):
    found = debian.get(asked)
    assert found.name == served
    assert debian.get("snp-arm64.efi") is None  # never the program of another processor


def test_name_of_smee_never_leads_to_a_shim_that_would_look_for_its_second_stage_by_it(tmp_path):
    binaries = directory_of(tmp_path, "snponly-shim.efi", "snponly.efi", "snponly-arm64.efi")
    assert [found.name for name in ("ipxe.efi", "snp.efi") if (found := binaries.get(name))] == [
        "snponly.efi",
        "snponly-arm64.efi",
    ]


def test_dangling_links_and_empty_files_are_left_out(tmp_path, caplog):
    (tmp_path / "ipxe.efi").symlink_to(tmp_path / "boot-ipxe.efi")
    (tmp_path / "undionly.kpxe").touch()
    binaries = directory_of(tmp_path, "snponly.efi")
    assert binaries.names() == ["snponly.efi"]
    assert "undionly.kpxe is left out" in caplog.text


@pytest.mark.parametrize("make", ["absent", "empty"])
def test_host_without_ipxe_is_told_what_to_install(tmp_path, make):
    with pytest.raises(BinariesError, match=r"install the package ipxe, or name another directory with --ipxe-dir"):
        BootBinaries(tmp_path / make if make == "absent" else tmp_path)


def test_the_table_is_the_registry():
    assert sorted(ARCHITECTURES) == list(range(42))
    assert all(architecture.code == code for code, architecture in ARCHITECTURES.items())
    assert architecture_name(4242) == "architecture 4242"


def with_shims(
    path: Path, *names: str, grub: bytes = b"GET %s HTTP/1.1", usual: BootPath = BootPath.IPXE
) -> BootBinaries:
    directory, shims = path / "ipxe", path / "shims"
    for each in (directory, shims):
        each.mkdir()
    for name in DEBIAN:
        (directory / name).write_bytes(name.encode())
    for name in names:
        (shims / name).write_bytes(grub if name.startswith("grub") else name.encode())
    return BootBinaries(directory, shims, usual)


BOTH = ("shimx64.efi", "grubx64.efi")


@pytest.mark.parametrize("names", [BOTH, ("shimx64.efi.signed", "grubx64.efi.signed")], ids=["plain", "signed"])
@pytest.mark.parametrize(
    ("code", "name"), [(7, "shimx64.efi"), (9, "shimx64.efi"), (16, "shimx64.efi"), (0, "undionly.kpxe")]
)
def test_machine_that_boots_by_grub_gets_the_shim_where_there_is_one_for_it(tmp_path, names, code, name):
    binaries = with_shims(tmp_path, *names)
    assert binaries.for_architectures([code], BootPath.GRUB).name == name
    assert binaries.for_architectures([code]).name != "shimx64.efi"
    assert binaries.get("grubx64.efi") is not None


def test_usual_path_is_that_of_machines_that_name_none(tmp_path):
    binaries = with_shims(tmp_path, *BOTH, usual=BootPath.GRUB)
    assert binaries.for_architectures([7]).name == "shimx64.efi"
    assert binaries.for_architectures([7], BootPath.IPXE).name == "snponly.efi"


def test_shim_without_its_grub_is_offered_to_nobody(tmp_path):
    with pytest.raises(NoBinaryError, match=r"shimx64.efi or grubx64.efi is missing; put them into /"):
        with_shims(tmp_path, "shimx64.efi").for_architectures([7], BootPath.GRUB)


def test_firmware_that_boots_by_http_is_not_sent_to_a_grub_that_can_not(tmp_path):
    binaries = with_shims(tmp_path, *BOTH, grub=b"GRUB 2.06")
    assert binaries.for_architectures([7], BootPath.GRUB).name == "shimx64.efi"
    with pytest.raises(NoBinaryError, match=r"this grubx64\.efi speaks no HTTP, which this firmware boots by"):
        binaries.for_architectures([16], BootPath.GRUB, http=True)


def test_directory_without_a_shim_is_an_error_at_the_start(tmp_path):
    with pytest.raises(BinariesError, match=r"--shim-dir: .* has none of shimx64.efi, shimaa64.efi"):
        with_shims(tmp_path, "grubx64.efi")
    with pytest.raises(BinariesError, match=r"--shim-dir: .*nowhere: No such file"):
        BootBinaries(tmp_path / "ipxe", tmp_path / "nowhere")


def test_package_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("ipxe.binaries._SIGNED", {})
    with pytest.raises(NoBinaryError, match="install shim-signed and grub-efi-amd64-signed"):
        directory_of(tmp_path, *DEBIAN).for_architectures([7], BootPath.GRUB)


def test_file_that_the_operator_names_comes_first_for_its_kind_and_must_be_there(tmp_path):
    directory_of(tmp_path, "snponly.efi", "site.efi", "undionly.kpxe", "snponly-arm64.efi")
    binaries = BootBinaries(tmp_path, named={"x86_64": "site.efi"})
    offered = {code: binaries.for_architectures([code]).name for code in (0, 7, 9, 11, 16)}
    assert offered == {0: "undionly.kpxe", 7: "site.efi", 9: "site.efi", 11: "snponly-arm64.efi", 16: "site.efi"}
    with pytest.raises(BinariesError, match=r"--boot-file: .* has no boot file absent.efi"):
        BootBinaries(tmp_path, named={"x86_64": "absent.efi"})


@pytest.mark.parametrize("path", [BootPath.AUTO, BootPath.UKI])
def test_other_paths_are_ipxe_for_those_who_choose_a_file_here(tmp_path, path):
    binaries = directory_of(tmp_path, "snponly.efi", "shimx64.efi", "grubx64.efi")
    assert binaries.for_architectures([7], path).name == "snponly.efi"
    assert BootBinaries(tmp_path, usual_path=path).for_architectures([7]).name == "snponly.efi"
