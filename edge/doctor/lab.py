"""The requirements of `tinkedge lab`: programs, files, tap devices and disk space."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from edge.doctor.findings import Finding, passed, problem
from edge.doctor.host import check_capabilities, is_readable

# Program -> the Debian package that has it. deploy/setup.sh installs the same packages.
LAB_PROGRAMS: Final = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-system-aarch64": "qemu-system-arm",
    "ip": "iproute2",
    "docker-registry": "docker-registry",
    "skopeo": "skopeo",
    "umoci": "umoci",
    "mmdebstrap": "mmdebstrap",
    "mksquashfs": "squashfs-tools",
    "cpio": "cpio",
    "depmod": "kmod",
    "busybox": "busybox-static",
    "zstd": "zstd",
    "syslinux": "syslinux",
    "mcopy": "mtools",
    "mkfs.vfat": "dosfstools",
    "sgdisk": "gdisk",
    "mke2fs": "e2fsprogs",
}
# Package -> files of it; one of them is enough.
LAB_FILES: Final = {
    "ovmf": ("/usr/share/OVMF/OVMF_CODE_4M.fd",),
    "qemu-efi-aarch64": ("/usr/share/AAVMF/AAVMF_CODE.fd",),
    "ipxe": ("/usr/lib/ipxe/snponly.efi",),
    "ipxe-qemu": ("/usr/lib/ipxe/qemu/pxe-virtio.rom", "/usr/share/qemu/pxe-virtio.rom"),  # Debian 12's, Debian 13's
    "systemd-boot-efi": ("/usr/lib/systemd/boot/efi/systemd-bootx64.efi",),
    "syslinux-common": ("/usr/lib/syslinux/mbr/gptmbr.bin",),
    "debian-archive-keyring": ("/usr/share/keyrings/debian-archive-keyring.gpg",),
}
SWITCH_PROGRAMS: Final = {"lldpd": "lldpd"}  # only for `tinkedge lab --discover`
ARM64_PACKAGES: Final = {"qemu-system-arm", "qemu-efi-aarch64"}  # the packages that only a machine with arm64 needs
_DISK_MB: Final = 4000


def check_lab(cache: Path, *, uefi: bool = True, arm64: bool = False, switch: bool = False) -> Iterator[Finding]:
    """Examine what the lab needs beside a served network, for machines with UEFI (`uefi`) or an arm64 processor.

    `switch`: also what it needs to announce the machine's port as a switch does.
    """
    yield check_capabilities("namespaces", ("CAP_SYS_ADMIN", "CAP_NET_ADMIN"))
    programs = LAB_PROGRAMS | (SWITCH_PROGRAMS if switch else {})
    missing = {package for program, package in programs.items() if shutil.which(program) is None}
    missing |= {package for package, paths in LAB_FILES.items() if not any(is_readable(Path(path)) for path in paths)}
    missing -= set() if uefi else {"ovmf"}
    missing -= set() if arm64 else ARM64_PACKAGES
    if missing:
        packages = " ".join(sorted(missing))
        remedy = f"as root: apt-get install --no-install-recommends {packages}"
        yield problem("lab packages", f"missing: {packages}", remedy)
    else:
        yield passed("lab packages", "all installed")
    if (program := kubectl_path()) is not None:
        yield passed("kubectl", program)
    else:
        remedy = "`make run` unpacks one into .venv/bin; or put any kubectl on PATH"
        yield problem("kubectl", "not on PATH", remedy)
    if Path("/dev/net/tun").exists():
        yield passed("tap devices", "/dev/net/tun is there")
    else:
        yield problem("tap devices", "/dev/net/tun is missing", "modprobe tun")
    yield _check_disk(cache)


def kubectl_path() -> str | None:
    """Return the path of kubectl: on PATH, else beside this Python, where `make` unpacks it. None if there is none."""
    return shutil.which("kubectl") or shutil.which("kubectl", path=Path(sys.executable).parent)


def _check_disk(cache: Path) -> Finding:
    directory = cache
    while directory != directory.parent and not is_readable(directory):
        directory = directory.parent
    free = shutil.disk_usage(directory).free // 10**6
    seen = f"{free} MB free for {cache}"
    if free >= _DISK_MB:
        return passed("disk space", seen)
    remedy = f"the lab builds and keeps up to {_DISK_MB} MB: free some, or give another --cache-dir"
    return problem("disk space", seen, remedy)
